//! Tensors learn: second moments follow the gradient, then every row moves in one pass.

use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::master::Master;
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{BLOCK, int8, second, weight as nvfp4};
use halfbyte_ops::update::{self, Kept, Moving, Recipe, Step};
use halfbyte_ops::{Result, Rows, Vector, Weight, WeightFormat};

use crate::Cuda;
use crate::launch::{Arg, DevicePtr, Grid, args};

const OP: &str = "update";

/// Threads that move a row's blocks at most; `MOST_THREADS` in learn.cuh.
const MOST_THREADS: usize = 256;

/// Blocks that keep a large device busy; each takes many rows.
const MOST_BLOCKS: usize = 2048;

/// Shared memory of `second_sums`: its tile.
const TILE_BYTES: u32 = (second::GROUP * (256 + 16) * 4) as u32;

/// Bytes of scratch: roots of the columns' profile, and column sums of the groups of rows.
pub(crate) fn scratch(rows: usize, columns: usize) -> usize {
    profile_bytes(columns) + rows.div_ceil(second::GROUP) * columns * 4
}

fn profile_bytes(columns: usize) -> usize {
    (update::padded(columns) * 4).next_multiple_of(64)
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
    let (weight, g) = (cuda.weight(OP, of)?, cuda.rows(OP, gradient)?);
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
    let kernel = kernel(of.format, &step.recipe);
    cuda.counted(|cuda, counts| {
        let (rows, columns) = (gradient.rows, of.columns);
        let profile =
            if full { DevicePtr::NULL } else { follow_rows(cuda, of, first, gradient, seconds, step)? };
        let places = args![weight, rest, moments, seconds, profile, g, first, rows, columns];
        let arguments = [places, args![moment, full, scales, key0, key1, counts], &numbers(step)].concat();
        cuda.launch(kernel, Grid::line(rows.min(MOST_BLOCKS), threads(columns)), &arguments)?;
        if full { Ok(()) } else { follow_columns(cuda, of, first, gradient, seconds, step) }
    })
}

/// Sums the squares of a gradient; second moments of rows follow. Gives the place of the roots of the columns'
/// profile, which is that of the step before.
fn follow_rows(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    seconds: DevicePtr,
    step: &Step,
) -> Result<DevicePtr> {
    let (rows, columns, g) = (gradient.rows, gradient.columns, cuda.rows(OP, gradient)?);
    let roots = cuda.scratch(OP, scratch(rows, columns))?;
    let (sums, columns_averages) = (roots.add(profile_bytes(columns)), seconds.add(4 * of.rows));
    let places = args![g, seconds.add(4 * first), sums, columns_averages, roots];
    let sizes = args![rows, columns, update::padded(columns), step.average.keep, step.average.fresh];
    // A thread block more, for the profile.
    let blocks = rows.div_ceil(second::GROUP) + 1;
    let grid = Grid { shared: TILE_BYTES, ..Grid::line(blocks, (second::GROUP * BLOCK) as u32) };
    cuda.launch("second_sums", grid, &[places, sizes].concat())?;
    Ok(roots)
}

/// Adds the squares of a gradient to the columns' sums of this step; behind its last rows the columns' averages
/// follow them.
fn follow_columns(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    seconds: DevicePtr,
    step: &Step,
) -> Result<()> {
    let (rows, columns) = (gradient.rows, gradient.columns);
    let (keep, fresh) = (step.average.keep, step.average.fresh);
    let sums = cuda.scratch(OP, scratch(rows, columns))?.add(profile_bytes(columns));
    let averages = seconds.add(4 * of.rows);
    let totals = averages.add(4 * update::padded(columns));
    let (groups, all_rows) =
        (rows.div_ceil(second::GROUP), if first + rows == of.rows { of.rows } else { 0 });
    let arguments = args![sums, totals, averages, columns, groups, first == 0, all_rows, keep, fresh];
    cuda.launch("second_columns", Grid::each(columns, 64), arguments)
}

pub(crate) fn vector(cuda: &mut Cuda, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
    update::check_vector(of, gradient, kept)?;
    let (weight, g) = (cuda.vector(OP, of)?, cuda.rows(OP, gradient)?);
    let (moments, seconds) = (cuda.pointer(OP, kept.moment)?, cuda.pointer(OP, kept.second)?);
    cuda.counted(|cuda, counts| {
        let arguments = [args![weight, moments, seconds, g, of.len, counts], &numbers(step)].concat();
        cuda.launch("update_vector", Grid::each(of.len.div_ceil(BLOCK), 64), &arguments)
    })
}

/// The kernel for a kind of weight.
fn kernel(format: WeightFormat, recipe: &Recipe) -> &'static str {
    match (format, recipe.master) {
        (WeightFormat::Nvfp4, Some(Master::Bf16)) => "update_nvfp4_bf16",
        (WeightFormat::Nvfp4, Some(Master::Float)) => "update_nvfp4_float",
        (WeightFormat::Int8, Some(Master::Bf16)) => "update_int8_bf16",
        (WeightFormat::Int8, Some(Master::Float)) => "update_int8_float",
        (WeightFormat::Nvfp4, None) => match recipe.weight {
            nvfp4::Remainder::Byte => "update_nvfp4_byte",
            nvfp4::Remainder::Nibble => "update_nvfp4_nibble",
        },
        (WeightFormat::Int8, None) => match recipe.table {
            int8::Remainder::Byte => "update_int8_byte",
            int8::Remainder::Nibble => "update_int8_nibble",
            int8::Remainder::None => "update_int8_none",
        },
        (WeightFormat::F32 | WeightFormat::Bf16, _) => "update_f32",
    }
}

/// Threads for the blocks of a row, so that few are idle in its last pass, and a warp that adds up squares.
fn threads(columns: usize) -> u32 {
    let blocks = columns.div_ceil(BLOCK);
    let passes = blocks.div_ceil(MOST_THREADS);
    blocks.div_ceil(passes).next_multiple_of(32) as u32 + 32
}

/// A step's numbers in the order of `NUMBERS` in learn.cuh.
fn numbers(step: &Step) -> [Arg; 10] {
    let of = step.adamw;
    let (first, second) = (of.average, step.average);
    let (keep, fresh) = (first.keep, first.fresh);
    [keep, fresh, of.size, of.per_root, of.eps, of.decay, of.limit, of.correction, second.keep, second.fresh]
        .map(Arg::from)
}
