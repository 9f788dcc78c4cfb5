//! Tensors learn: second moments follow the gradient, then every row moves in one pass.

use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::master::Master;
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{Average, BLOCK, int8, second, weight as nvfp4};
use halfbyte_ops::update::{self, Kept, Moving, Recipe, Step};
use halfbyte_ops::{Result, Rows, Vector, Weight, WeightFormat};

use crate::Cuda;
use crate::launch::{Arg, DevicePtr, Grid, args};

const OP: &str = "update";

/// Threads that move a row's blocks at most; `MOST_THREADS` in learn.cuh.
const MOST_THREADS: usize = 160;

/// Threads of a multiprocessor that run at once: it has so many registers, and `__launch_bounds__` in learn.cuh leaves so
/// many to a thread.
const THREADS_AT_ONCE: usize = 65536 / 80;

/// Thread blocks that find shared memory at once.
const BLOCKS_AT_ONCE: usize = 6;

/// A kernel that sums squares of a gradient.
struct Summing {
    kernel: &'static str,
    /// Of a thread block: `AT_ONCE` in update.cu.
    threads: usize,
    /// Columns that a thread takes.
    columns: usize,
    /// Threads for a row.
    for_row: usize,
}

impl Summing {
    fn of(gradient: Rows) -> Summing {
        match gradient.narrow {
            false => Summing { kernel: "second_sums", threads: 256, columns: 1, for_row: BLOCK },
            true => Summing { kernel: "second_sums_narrow", threads: 128, columns: 4, for_row: BLOCK / 2 },
        }
    }

    /// For every group of rows as many thread blocks as its rows and its columns take; and those that make the profile.
    fn grid(&self, rows: usize, columns: usize) -> Grid {
        let parts =
            second::GROUP * self.for_row / self.threads + columns.div_ceil(self.threads * self.columns);
        let profiling = update::padded(columns).div_ceil(PROFILE);
        Grid::line(rows.div_ceil(second::GROUP) * parts + profiling, self.threads as u32)
    }
}

/// Columns whose profile lies together, `profile_place` in second.cuh, and is made by one thread block.
const PROFILE: usize = 32 * BLOCK;

/// Where in the scratch what second moments need lies, in bytes from its beginning.
struct Places {
    /// Roots of the rows.
    rows: usize,
    /// Roots of the columns' profile.
    profile: usize,
    /// Columns' sums of the groups of rows.
    sums: usize,
    end: usize,
}

impl Places {
    fn of(rows: usize, columns: usize) -> Places {
        let profile = (rows * 4).next_multiple_of(64);
        let sums = profile + columns.next_multiple_of(PROFILE) * 4;
        Places { rows: 0, profile, sums, end: sums + rows.div_ceil(second::GROUP) * columns * 4 }
    }
}

/// Bytes of scratch.
pub(crate) fn scratch(rows: usize, columns: usize) -> usize {
    Places::of(rows, columns).end
}

pub(crate) fn weight(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    kept: &Kept,
    step: &Step,
) -> Result<()> {
    update::check_shapes(of, first, gradient, kept, &step.recipe)?;
    let (weight, g) = (cuda.changed_weight(OP, of)?, cuda.pointer(OP, gradient.buffer)?);
    let (rest, moments) = (cuda.pointer(OP, kept.remainder)?, cuda.pointer(OP, kept.moment)?);
    let seconds = cuda.pointer(OP, kept.second)?;
    let (full, [key0, key1]) = (step.recipe.full_second, Moving::new(step).draws.key());
    let moment = match step.recipe.moment {
        Moment::Four => 0,
        Moment::Eight => 1,
        Moment::Float => 2,
    };
    let scales = match step.recipe.scales {
        Scales::Nearest => 0,
        Scales::FourOverSix => 1,
        Scales::Search => 2,
    };
    let (rows, columns) = (gradient.rows, of.columns);
    let (kernel, threads) = (kernel(of, &step.recipe, gradient.narrow), threads(columns));
    // A thread block walks over rows with what it has prepared, so there are no more than run at once.
    let at_once = (THREADS_AT_ONCE / threads).min(BLOCKS_AT_ONCE);
    let at_once = cuda.device.properties.multiprocessors as usize * at_once;
    let grid = Grid::line(rows.min(at_once), threads as u32);
    cuda.counted(|cuda, counts| {
        let places =
            if full { [DevicePtr::NULL; 3] } else { follow_rows(cuda, of, first, gradient, seconds, step)? };
        let [row_roots, profile, sums] = places;
        let averages = seconds.add(4 * of.rows);
        let step_sums = averages.add(4 * update::padded(columns));
        let all_rows = if first + rows == of.rows { of.rows } else { 0 };
        let states = args![weight, rest, moments, seconds, row_roots, profile];
        let sums = args![sums, step_sums, averages, rows.div_ceil(second::GROUP), all_rows];
        let rest = args![g, gradient.narrow, first, rows, columns, moment, full, scales, key0, key1, counts];
        cuda.launch(kernel, grid, &[states, sums, rest, &numbers(step)].concat())
    })
}

/// Sums the squares of a gradient; second moments of rows follow. Gives the places of the roots of the rows, of those
/// of the columns' profile, which is that of the step before, and of the groups' sums.
fn follow_rows(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    seconds: DevicePtr,
    step: &Step,
) -> Result<[DevicePtr; 3]> {
    let (rows, columns, g) = (gradient.rows, gradient.columns, cuda.pointer(OP, gradient.buffer)?);
    let places = Places::of(rows, columns);
    let start = cuda.scratch(OP, places.end)?;
    let [roots, profile, sums] = [places.rows, places.profile, places.sums].map(|place| start.add(place));
    let pointers = args![g, seconds.add(4 * first), roots, sums, seconds.add(4 * of.rows), profile];
    let sizes = args![rows, columns, update::padded(columns)];
    let numbers = args![step.average.keep, step.average.fresh, step.adamw.per_root];
    let summing = Summing::of(gradient);
    cuda.launch(summing.kernel, summing.grid(rows, columns), &[pointers, sizes, numbers].concat())?;
    Ok([roots, profile, sums])
}

pub(crate) fn vector(cuda: &mut Cuda, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
    update::check_vector(of, gradient, kept)?;
    let (weight, g) = (cuda.vector(OP, of)?, cuda.rows(OP, gradient)?);
    let (moments, seconds) = (cuda.pointer(OP, kept.moment)?, cuda.pointer(OP, kept.second)?);
    cuda.counted(|cuda, counts| {
        let arguments = [args![weight, moments, seconds, g, of.len, counts], &numbers(step)].concat();
        // Threads of whole warps, whose blocks are whole.
        cuda.launch("update_vector", Grid::each(of.len, 64), &arguments)
    })
}

/// The kernel for a kind of weight: that of the usual states, where there is one, or that of any.
fn kernel(of: &Weight, recipe: &Recipe, narrow: bool) -> &'static str {
    let usual = recipe.moment == Moment::Four && !recipe.full_second && of.columns.is_multiple_of(64);
    match (of.format, recipe.master) {
        (WeightFormat::Nvfp4, Some(Master::Bf16)) => "update_nvfp4_bf16_any",
        (WeightFormat::Nvfp4, Some(Master::Float)) => "update_nvfp4_float_any",
        (WeightFormat::Int8, Some(Master::Bf16)) => "update_int8_bf16_any",
        (WeightFormat::Int8, Some(Master::Float)) => "update_int8_float_any",
        (WeightFormat::Nvfp4, None) => match (recipe.weight, usual, narrow) {
            (nvfp4::Remainder::Byte, true, false) => "update_nvfp4_byte",
            (nvfp4::Remainder::Byte, true, true) => "update_nvfp4_byte_narrow",
            (nvfp4::Remainder::Byte, false, _) => "update_nvfp4_byte_any",
            (nvfp4::Remainder::Nibble, true, false) => "update_nvfp4_nibble",
            (nvfp4::Remainder::Nibble, true, true) => "update_nvfp4_nibble_narrow",
            (nvfp4::Remainder::Nibble, false, _) => "update_nvfp4_nibble_any",
        },
        // Tables have kernels of their own for what is usual, which is a gradient in f32.
        (WeightFormat::Int8, None) => match (recipe.table, usual && !narrow) {
            (int8::Remainder::Byte, _) => "update_int8_byte_any",
            (int8::Remainder::Nibble, true) => "update_int8_nibble",
            (int8::Remainder::Nibble, false) => "update_int8_nibble_any",
            (int8::Remainder::None, true) => "update_int8_none",
            (int8::Remainder::None, false) => "update_int8_none_any",
        },
        (WeightFormat::F32 | WeightFormat::Bf16, _) => "update_f32_any",
    }
}

/// Threads for the blocks of a row, so that few are idle in its last pass, and a warp that adds up squares.
fn threads(columns: usize) -> usize {
    let blocks = columns.div_ceil(BLOCK);
    let passes = blocks.div_ceil(MOST_THREADS);
    let each = |passes: usize| blocks.div_ceil(passes).next_multiple_of(32);
    // A pass or two more may leave fewer idle.
    let least = (passes..passes + 3).min_by_key(|passes| passes * each(*passes)).unwrap_or(passes);
    each(least) + 32
}

/// A step's numbers in the order of `NUMBERS` in learn.cuh.
fn numbers(step: &Step) -> [Arg; 11] {
    let (of, second) = (step.adamw, step.average);
    let Average { keep, fresh } = of.average;
    let (size, own) = (of.size, step.own_root());
    [
        keep,
        fresh,
        size,
        of.per_root,
        of.eps,
        of.decay,
        of.limit,
        of.correction,
        second.keep,
        second.fresh,
        own,
    ]
    .map(Arg::from)
}
