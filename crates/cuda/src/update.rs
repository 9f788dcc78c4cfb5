//! Tensors learn: second moments follow the gradient, then every row moves in one pass.

use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::master::Master;
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{Average, adamw, int8, second, weight as nvfp4};
use halfbyte_ops::update::{self, Kept, Moving, Recipe, Step};
use halfbyte_ops::{Result, Rows, Vector, Weight, WeightFormat};

use crate::Cuda;
use crate::launch::{Arg, DevicePtr, Grid, args};

const OP: &str = "update";

/// Threads that move a row's blocks, a warp each tile, at most; `THREADS` in learn.cuh.
const THREADS: usize = 160;

/// Threads of a thread block that moves what is usual, a warp each tile; `USUAL_THREADS` in usual.cuh.
const USUAL_THREADS: usize = 256;

/// Thread blocks of so many threads for each multiprocessor, which walk over the rows with what they have prepared: of
/// `USUAL_THREADS` as in usual.cuh, of `THREADS`.
const USUAL_AT_ONCE: usize = 2;
const AT_ONCE: usize = 4;

/// Columns whose squares a warp sums, and threads of a thread block that does nothing else; `ABREAST` and `PROFILING` in
/// columns.cuh.
const ABREAST: usize = 32;
const SUMMING: usize = 256;

/// Where in the scratch what second moments need lies, in bytes from its beginning.
struct Places {
    /// Columns' sums of panels that are looked at; the profile comes first.
    sums: usize,
    end: usize,
}

impl Places {
    fn of(rows: usize, columns: usize) -> Places {
        let sums = columns.next_multiple_of(second::TILE) * 4;
        let groups = rows.div_ceil(second::GROUP * second::APART).div_ceil(second::TOGETHER);
        Places { sums, end: sums + groups * columns * 4 }
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
    let (kernel, usual) = kernel(of, &step.recipe, gradient.narrow);
    let grid = grid(cuda, usual, rows, columns);
    cuda.counted(|cuda, counts| {
        let tiles = second::tiles(columns);
        let (averages, places) = (seconds.add(4 * of.rows * tiles), Places::of(rows, columns));
        let profile = cuda.scratch(OP, if full { 0 } else { places.end })?;
        let sums = profile.add(places.sums);
        let looked_at = LookedAt::of(first, rows, step.step);
        if !full && !usual {
            sum_columns(cuda, gradient, sums, averages, profile, &looked_at)?;
        }
        let step_sums = averages.add(4 * update::padded(columns));
        let in_all = second::rows_looked_at(0..of.rows, step.step);
        let states = args![weight, rest, moments, seconds, profile];
        let sums = args![
            sums,
            step_sums,
            averages,
            looked_at.first,
            looked_at.panels,
            first + rows == of.rows,
            in_all
        ];
        let rest = args![g, gradient.narrow, first, rows, columns, moment, full, scales, key0, key1, counts];
        cuda.launch(kernel, grid, &[states, sums, rest, &numbers(step, step.limit())].concat())
    })
}

/// Panels of a call whose columns are looked at: the first of them, and how many.
struct LookedAt {
    first: usize,
    panels: usize,
}

impl LookedAt {
    fn of(first: usize, rows: usize, step: u64) -> LookedAt {
        let panel = first / second::GROUP;
        LookedAt {
            first: (0..second::APART).find(|at| second::looked_at(panel + at, step)).unwrap_or(0),
            panels: second::rows_looked_at(first..first + rows, step).div_ceil(second::GROUP),
        }
    }
}

/// As many thread blocks as find room at once, or one for each tile if these are more.
fn grid(cuda: &Cuda, usual: bool, rows: usize, columns: usize) -> Grid {
    let processors = cuda.device.properties.multiprocessors as usize;
    if usual {
        // All tiles have equally many.
        let tiles = second::tiles(columns);
        let each = rows.div_ceil(USUAL_THREADS / 32).min((USUAL_AT_ONCE * processors / tiles).max(1));
        return Grid::line(tiles * each, USUAL_THREADS as u32);
    }
    let threads = threads(columns);
    Grid::line(rows.min(AT_ONCE * THREADS / threads * processors), threads as u32)
}

/// Sums the squares of a gradient's columns, panel by panel of those that are looked at, and makes the profile, which is
/// that of the step before. What is usual does it while it learns.
fn sum_columns(
    cuda: &mut Cuda,
    gradient: Rows,
    sums: DevicePtr,
    averages: DevicePtr,
    profile: DevicePtr,
    of: &LookedAt,
) -> Result<()> {
    let (rows, columns, g) = (gradient.rows, gradient.columns, cuda.pointer(OP, gradient.buffer)?);
    let warps = of.panels.div_ceil(second::TOGETHER) * columns.div_ceil(ABREAST);
    let grid = Grid::line(second::tiles(columns) + (32 * warps).div_ceil(SUMMING), SUMMING as u32);
    let places = args![g, gradient.narrow, sums, averages, profile];
    cuda.launch("column_sums", grid, &[places, args![of.first, of.panels, rows, columns]].concat())
}

pub(crate) fn vector(cuda: &mut Cuda, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
    update::check_vector(of, gradient, kept)?;
    let (weight, g) = (cuda.vector(OP, of)?, cuda.rows(OP, gradient)?);
    let (moments, seconds) = (cuda.pointer(OP, kept.moment)?, cuda.pointer(OP, kept.second)?);
    cuda.counted(|cuda, counts| {
        let arguments =
            [args![weight, moments, seconds, g, of.len, counts], &numbers(step, step.adamw.limit)].concat();
        // Threads of whole warps, whose blocks are whole.
        cuda.launch("update_vector", Grid::each(of.len, 64), &arguments)
    })
}

/// The kernel for a kind of weight: that of the usual states, where there is one, or that of any; and which it is.
fn kernel(of: &Weight, recipe: &Recipe, narrow: bool) -> (&'static str, bool) {
    let usual = recipe.moment == Moment::Four && !recipe.full_second && of.columns.is_multiple_of(64);
    match (of.format, recipe.master) {
        (WeightFormat::Nvfp4, Some(Master::Bf16)) => ("update_nvfp4_bf16_any", false),
        (WeightFormat::Nvfp4, Some(Master::Float)) => ("update_nvfp4_float_any", false),
        (WeightFormat::Int8, Some(Master::Bf16)) => ("update_int8_bf16_any", false),
        (WeightFormat::Int8, Some(Master::Float)) => ("update_int8_float_any", false),
        (WeightFormat::Nvfp4, None) => match (recipe.weight, usual, narrow) {
            (nvfp4::Remainder::Byte, true, false) => ("update_nvfp4_byte", true),
            (nvfp4::Remainder::Byte, true, true) => ("update_nvfp4_byte_narrow", true),
            (nvfp4::Remainder::Byte, false, _) => ("update_nvfp4_byte_any", false),
            (nvfp4::Remainder::Nibble, true, false) => ("update_nvfp4_nibble", true),
            (nvfp4::Remainder::Nibble, true, true) => ("update_nvfp4_nibble_narrow", true),
            (nvfp4::Remainder::Nibble, false, _) => ("update_nvfp4_nibble_any", false),
        },
        // Tables have kernels of their own for what is usual, which is a gradient in f32.
        (WeightFormat::Int8, None) => match (recipe.table, usual && !narrow) {
            (int8::Remainder::Byte, _) => ("update_int8_byte_any", false),
            (int8::Remainder::Nibble, true) => ("update_int8_nibble", true),
            (int8::Remainder::Nibble, false) => ("update_int8_nibble_any", false),
            (int8::Remainder::None, true) => ("update_int8_none", true),
            (int8::Remainder::None, false) => ("update_int8_none_any", false),
        },
        (WeightFormat::F32 | WeightFormat::Bf16, _) => ("update_f32_any", false),
    }
}

/// Threads for the blocks of a row, so that few are idle in its last pass.
fn threads(columns: usize) -> usize {
    let tiles = second::tiles(columns);
    let passes = tiles.div_ceil(THREADS / 32);
    // A pass or two more may leave fewer idle.
    let least = (passes..passes + 3).min_by_key(|passes| passes * tiles.div_ceil(*passes)).unwrap_or(passes);
    32 * tiles.div_ceil(least)
}

/// A step's numbers in the order of `NUMBERS` in learn.cuh.
fn numbers(step: &Step, limit: f32) -> [Arg; 11] {
    let (of, Average { keep, fresh }) = (step.adamw, step.average);
    let adamw::Step { size, per_root, per_old_root, eps, decay, per_square, .. } = of;
    [of.keep, size, per_root, per_old_root, eps, decay, limit, per_square, keep, fresh, 0.75].map(Arg::from)
}
