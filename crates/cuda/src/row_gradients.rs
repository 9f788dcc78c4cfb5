//! Gradients of what goes row by row: norm, bias, rope, embedding.

use halfbyte_ops::error::check;
use halfbyte_ops::{
    Result, Rows, Vector, embed as ops_embed, residual as ops_residual, rms_norm as ops_rms_norm,
    rope as ops_rope,
};

use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, residual};

/// Rows wider than the first and no wider than the second are taken by a block, several each, if they are whole fours.
const WIDE: (usize, usize) = (256, 8192);

/// Columns and chunks of rows that are summed at the same time, together; chunks alone.
const SUMS: usize = 1 << 20;
pub(crate) const CHUNKS: usize = 512;

/// Multiprocessors of a large device.
const LARGEST_BLOCKS: usize = 128;

/// Threads of such a norm that one has registers for, by the rows that a block takes at a time.
const fn largest_threads(together: usize) -> usize {
    if together == 4 { 640 } else { 1024 }
}

/// Bytes of scratch: a number for each row, and the sums of the chunks of rows.
pub(crate) fn scratch(rows: usize, columns: usize) -> usize {
    (rows * 4).next_multiple_of(64) + SUMS.max(columns) * 4
}

pub(crate) fn rms_norm(
    cuda: &mut Cuda,
    x: Rows,
    gain: Vector,
    eps: f32,
    dy: Rows,
    (given_dx, narrow): (Rows, Option<Rows>),
    dgain: Vector,
) -> Result<()> {
    const OP: &str = "rms_norm_gradient";
    ops_rms_norm::check_gradient(x, gain, dy, given_dx, dgain)?;
    narrow.map_or(Ok(()), |narrow| ops_residual::check_shapes(given_dx, narrow))?;
    let (rows, columns, x_narrow, dx) = (x.rows, x.columns, x.narrow, given_dx);
    let [x, dy, dx] = [cuda.pointer(OP, x.buffer)?, cuda.rows(OP, dy)?, cuda.rows(OP, dx)?];
    let (gain, dgain) = (cuda.vector(OP, gain)?, cuda.vector(OP, dgain)?);
    let place = cuda.scratch(OP, scratch(rows, columns))?;
    let wide = columns > WIDE.0 && columns <= WIDE.1 && columns.is_multiple_of(4);
    let aligned = [x, dy, dx, gain].iter().all(|at| at.0.is_multiple_of(16));
    // Two fours of columns for each thread.
    let threads = columns.div_ceil(8).next_multiple_of(32);
    // The gain, and x and dy of the rows at a time.
    let x_bytes = if x_narrow { columns.next_multiple_of(8) * 2 } else { columns * 4 };
    let shared = |together: usize| (1 + together) * columns * 4 + together * x_bytes;
    let most = cuda.device.properties.shared as usize;
    // Two warps for each row, few enough threads for the registers, and room for another block.
    let fits = |&(together, threads_of_kernel, _): &(usize, usize, _)| {
        (64 * together..=threads_of_kernel).contains(&threads) && 2 * shared(together) <= most
    };
    let kernels = [
        (4, 512, ["rms_norm_gradient_4", "rms_norm_gradient_narrow_4"]),
        (2, 1024, ["rms_norm_gradient_2", "rms_norm_gradient_narrow_2"]),
        (1, 1024, ["rms_norm_gradient_1", "rms_norm_gradient_narrow_1"]),
    ];
    let (together, _, kernel) = kernels.into_iter().find(fits).unwrap_or(kernels[2]);
    if wide && aligned && shared(together) <= most {
        let blocks = (largest_threads(together) / threads).min(most / shared(together)).max(1);
        let chunk = rows.div_ceil((LARGEST_BLOCKS * blocks).min(SUMS / columns)).max(1);
        let count = rows.div_ceil(chunk);
        let grid = Grid { shared: shared(together) as u32, ..Grid::line(count, threads as u32) };
        let also = narrow.map_or(Ok(DevicePtr::NULL), |narrow| cuda.pointer(OP, narrow.buffer))?;
        cuda.launch(
            kernel[usize::from(x_narrow)],
            grid,
            args![x, gain, eps, dy, dx, place, rows, columns, chunk, also],
        )?;
        return add_chunks(cuda, place, dgain, columns, count);
    }
    let arguments = args![x, x_narrow, gain, eps, dy, dx, place, rows, columns];
    cuda.launch("rms_norm_gradient_any", Grid::each(rows * 16, 256), arguments)?;
    let parts = place.add((rows * 4).next_multiple_of(64));
    add_columns(cuda, dy, Some((x, x_narrow, place)), parts, (rows, columns), dgain)?;
    narrow.map_or(Ok(()), |narrow| residual::copy(cuda, given_dx, narrow))
}

pub(crate) fn bias(cuda: &mut Cuda, dy: Rows, db: Vector) -> Result<()> {
    const OP: &str = "bias_gradient";
    check(dy.columns == db.len, OP, || format!("dy {}x{}, bias {}", dy.rows, dy.columns, db.len))?;
    let shape = (dy.rows, dy.columns);
    let parts = cuda.scratch(OP, scratch(0, dy.columns))?;
    let (dy, db) = (cuda.rows(OP, dy)?, cuda.vector(OP, db)?);
    add_columns(cuda, dy, None, parts, shape, db)
}

/// sums[c] += sum_t dy[t,c] (x[t,c] r[t], where they are given).
fn add_columns(
    cuda: &mut Cuda,
    dy: DevicePtr,
    by: Option<(DevicePtr, bool, DevicePtr)>,
    parts: DevicePtr,
    (rows, columns): (usize, usize),
    sums: DevicePtr,
) -> Result<()> {
    let chunk = rows.div_ceil((SUMS / columns).clamp(1, CHUNKS)).max(16);
    let count = rows.div_ceil(chunk);
    let (x, narrow, reciprocals) = by.unwrap_or((DevicePtr::NULL, false, DevicePtr::NULL));
    let grid = Grid { blocks: (columns.div_ceil(128) as u32, count as u32, 1), ..Grid::line(1, 128) };
    cuda.launch("column_chunks", grid, args![dy, x, narrow, reciprocals, parts, rows, columns, chunk])?;
    add_chunks(cuda, parts, sums, columns, count)
}

/// sums[c] += sum of so many rows of `parts`.
pub(crate) fn add_chunks(
    cuda: &mut Cuda,
    parts: DevicePtr,
    sums: DevicePtr,
    columns: usize,
    count: usize,
) -> Result<()> {
    cuda.launch("add_chunks", Grid::line(columns.div_ceil(32), 1024), args![parts, sums, columns, count])
}

pub(crate) fn rope(cuda: &mut Cuda, dx: Rows, head_dim: usize, turns: Rows) -> Result<()> {
    const OP: &str = "rope_gradient";
    ops_rope::check_shapes(dx, head_dim, turns)?;
    let (rows, columns) = (dx.rows, dx.columns);
    let arguments = args![cuda.rows(OP, dx)?, cuda.rows(OP, turns)?, rows, columns, head_dim];
    cuda.launch("rope_gradient", Grid::each(rows * columns / 2, 256), arguments)
}

/// Tokens are sorted here by their words, so that each row of the table is added to by one block, in the
/// tokens' order.
pub(crate) fn embed(cuda: &mut Cuda, tokens: &[u32], first: usize, dy: Rows, dtable: Rows) -> Result<()> {
    const OP: &str = "embed_gradient";
    ops_embed::check_gradient(tokens, dy, dtable)?;
    let rows = first..first + dtable.rows;
    let (mut words, mut starts, mut order) = (Vec::new(), Vec::new(), Vec::new());
    let mut sorted: Vec<(u32, u32)> = tokens.iter().copied().zip(0..).collect();
    sorted.retain(|(token, _)| rows.contains(&(*token as usize)));
    sorted.sort_unstable();
    for (token, at) in sorted {
        let row = (token as usize - first) as u32;
        if words.last() != Some(&row) {
            words.push(row);
            starts.push(order.len() as u32);
        }
        order.push(at);
    }
    if words.is_empty() {
        return Ok(());
    }
    starts.push(order.len() as u32);
    let (columns, blocks) = (dy.columns, words.len() as u32);
    let [dy, table] = [cuda.rows(OP, dy)?, cuda.rows(OP, dtable)?];
    let grid = Grid { blocks: (blocks, columns.div_ceil(128) as u32, 1), ..Grid::line(1, 128) };
    let [words, starts, order] =
        [cuda.upload(OP, &words)?, cuda.upload(OP, &starts)?, cuda.upload(OP, &order)?];
    cuda.launch("embed_gradient", grid, args![words, starts, order, dy, table, columns])
}
