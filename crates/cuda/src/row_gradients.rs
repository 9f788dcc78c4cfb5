//! Gradients of what goes row by row: norm, bias, rope, embedding.

use halfbyte_ops::error::check;
use halfbyte_ops::{Result, Rows, Vector, embed as ops_embed, rms_norm as ops_rms_norm, rope as ops_rope};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};

/// Rows no wider than this are taken by 16 threads each.
const SHORT: usize = 256;

/// Columns and chunks of rows that are summed at the same time, together; chunks alone.
const SUMS: usize = 1 << 16;
const CHUNKS: usize = 512;

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
    dx: Rows,
    dgain: Vector,
) -> Result<()> {
    const OP: &str = "rms_norm_gradient";
    ops_rms_norm::check_gradient(x, gain, dy, dx, dgain)?;
    let (rows, columns) = (x.rows, x.columns);
    let [x, dy, dx] = [cuda.rows(OP, x)?, cuda.rows(OP, dy)?, cuda.rows(OP, dx)?];
    let (gain, dgain) = (cuda.vector(OP, gain)?, cuda.vector(OP, dgain)?);
    let reciprocals = cuda.scratch(OP, scratch(rows, columns))?;
    let arguments = args![x, gain, eps, dy, dx, reciprocals, rows, columns];
    if columns <= SHORT {
        cuda.launch("rms_norm_gradient_heads", Grid::each(rows * 16, 256), arguments)?;
    } else {
        let grid = Grid { shared: (16 + 2 * columns * 4) as u32, ..Grid::line(rows, 256) };
        cuda.launch("rms_norm_gradient", grid, arguments)?;
    }
    add_columns(
        cuda,
        dy,
        Some((x, reciprocals)),
        reciprocals.add((rows * 4).next_multiple_of(64)),
        (rows, columns),
        dgain,
    )
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
    by: Option<(DevicePtr, DevicePtr)>,
    parts: DevicePtr,
    (rows, columns): (usize, usize),
    sums: DevicePtr,
) -> Result<()> {
    let chunk = rows.div_ceil((SUMS / columns).clamp(1, CHUNKS)).max(16);
    let chunks = rows.div_ceil(chunk);
    let (x, reciprocals) = by.unwrap_or((DevicePtr::NULL, DevicePtr::NULL));
    let grid = Grid { blocks: (columns.div_ceil(128) as u32, chunks as u32, 1), ..Grid::line(1, 128) };
    cuda.launch("column_chunks", grid, args![dy, x, reciprocals, parts, rows, columns, chunk])?;
    cuda.launch("add_chunks", Grid::each(columns, 128), args![parts, sums, columns, chunks])
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
