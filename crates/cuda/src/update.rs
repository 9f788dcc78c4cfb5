//! Tensors learn: second moments follow the gradient, then every row moves in one pass.

use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::master::Master;
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{BLOCK, int8, second, weight as nvfp4};
use halfbyte_ops::update::{self, Kept, Recipe, Second, Step};
use halfbyte_ops::{Result, Rows, Tally, Vector, Weight, WeightFormat};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};

const OP: &str = "update";

/// Counts of a [`Tally`].
const COUNTS: usize = 5;

/// Threads of a kernel's block at most; `MOST_THREADS` in learn.cuh.
const MOST_THREADS: usize = 256;

/// Blocks that keep a large device busy; each takes many rows.
const MOST_BLOCKS: usize = 2048;

/// Before the columns' sums in the scratch: the mean of the rows' averages.
const MEAN_BYTES: usize = 64;

/// Bytes of scratch: the column sums of the chunks of rows.
pub(crate) fn scratch(columns: usize) -> usize {
    MEAN_BYTES + second::CHUNKS * columns * 4
}

pub(crate) fn weight(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    kept: &Kept,
    kind: Second,
    step: &Step,
) -> Result<Tally> {
    update::check_shapes(of, first, gradient, kept, kind, &step.recipe)?;
    let (weight, g) = (cuda.weight(OP, of)?, cuda.rows(OP, gradient)?);
    let (rest, moments) = (cuda.pointer(OP, kept.remainder)?, cuda.pointer(OP, kept.moment)?);
    let seconds = cuda.pointer(OP, kept.second)?;
    let mean = follow(cuda, of, first, gradient, seconds, kind, step)?;
    let (numbers, counts) = (cuda.upload(OP, &numbers(step))?, cuda.counters(COUNTS)?);
    let [key0, key1] = Draws::new(step.seed, step.step, step.tensor, Purpose::Weight).key();
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
    let kind = match kind {
        Second::Factored => 0,
        Second::PerRow => 1,
        Second::Full => 2,
    };
    cuda.launch(
        kernel(of.format, &step.recipe),
        Grid::line(gradient.rows.min(MOST_BLOCKS), threads(of.columns)),
        args![
            weight,
            rest,
            moments,
            seconds,
            mean,
            g,
            first,
            gradient.rows,
            of.rows,
            of.columns,
            moment,
            kind,
            scales,
            key0,
            key1,
            numbers,
            counts
        ],
    )?;
    tally(cuda)
}

/// Lets second moments of rows and columns follow the gradient, but those of single elements, which follow
/// when their weights move; gives the place of the rows' mean.
fn follow(
    cuda: &mut Cuda,
    of: &Weight,
    first: usize,
    gradient: Rows,
    seconds: DevicePtr,
    kind: Second,
    step: &Step,
) -> Result<DevicePtr> {
    if kind == Second::Full {
        return Ok(DevicePtr::NULL);
    }
    let g = cuda.rows(OP, gradient)?;
    let (rows, columns) = (gradient.rows, gradient.columns);
    let (keep, fresh) = (step.average.keep, step.average.fresh);
    let averages = args![g, seconds.add(4 * first), rows, columns, keep, fresh];
    cuda.launch("second_rows", Grid::each(rows * BLOCK, 128), averages)?;
    if kind == Second::PerRow {
        return Ok(DevicePtr::NULL);
    }
    let mean = cuda.scratch(OP, scratch(columns))?;
    let (sums, chunk) = (mean.add(MEAN_BYTES), second::chunk_rows(rows));
    let chunks = rows.div_ceil(chunk);
    let grid = Grid { blocks: (columns.div_ceil(128) as u32, chunks as u32, 1), ..Grid::line(1, 128) };
    cuda.launch("second_chunks", grid, args![g, sums, rows, columns, chunk])?;
    let averages = args![sums, seconds.add(4 * of.rows), rows, columns, chunks, keep, fresh];
    cuda.launch("second_columns", Grid::each(columns, 128), averages)?;
    cuda.launch("second_mean", Grid::line(1, 256), args![seconds, mean, rows])?;
    Ok(mean)
}

pub(crate) fn vector(cuda: &mut Cuda, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<Tally> {
    update::check_vector(of, gradient, kept)?;
    let (weight, g) = (cuda.vector(OP, of)?, cuda.rows(OP, gradient)?);
    let (moments, seconds) = (cuda.pointer(OP, kept.moment)?, cuda.pointer(OP, kept.second)?);
    let (numbers, counts) = (cuda.upload(OP, &numbers(step))?, cuda.counters(COUNTS)?);
    let arguments = args![weight, moments, seconds, g, of.len, numbers, counts];
    cuda.launch("update_vector", Grid::each(of.len.div_ceil(BLOCK), 64), arguments)?;
    tally(cuda)
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

/// Threads for the blocks of a row, so that few are idle in its last pass.
fn threads(columns: usize) -> u32 {
    let blocks = columns.div_ceil(BLOCK);
    let passes = blocks.div_ceil(MOST_THREADS);
    blocks.div_ceil(passes).next_multiple_of(32) as u32
}

/// A step's numbers in the order of `Step` in adamw.cuh, then those of the second moments.
fn numbers(step: &Step) -> [f32; 10] {
    let of = step.adamw;
    let (first, second) = (of.average, step.average);
    let (keep, fresh) = (first.keep, first.fresh);
    [keep, fresh, of.size, of.per_root, of.eps, of.decay, of.limit, of.correction, second.keep, second.fresh]
}

fn tally(cuda: &mut Cuda) -> Result<Tally> {
    let counts = cuda.read_counters(COUNTS)?;
    let [changed, rescaled, saturated, refused, squares] = counts[..] else { unreachable!("five counts") };
    Ok(Tally { changed, rescaled, saturated, refused, squares })
}
