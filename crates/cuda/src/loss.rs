//! Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`.

use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Result, Rows, loss};

use crate::Cuda;
use crate::launch::{Grid, args};

const OP: &str = "loss";

/// A block for each token, whose threads have sixteen logits each where that is all of them (`EACH` and `MOST` of the
/// kernels), with room for them.
fn grid(logits: Rows) -> Grid {
    let threads = logits.columns.div_ceil(16).next_multiple_of(32).clamp(128, 512) as u32;
    Grid { shared: threads * 16 * 4, ..Grid::line(logits.rows, threads) }
}

pub(crate) fn forward(
    cuda: &mut Cuda,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
) -> Result<()> {
    loss::check_shapes(logits, targets, state)?;
    let (x, states) = (cuda.rows(OP, logits)?, cuda.rows(OP, state)?);
    let targets = cuda.upload(OP, targets)?;
    cuda.launch("loss", grid(logits), args![x, logits.columns, first, targets, states])
}

pub(crate) fn exponentials(
    cuda: &mut Cuda,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
    out: Rows,
    sums: Rows,
) -> Result<()> {
    loss::check_exponentials(logits, targets, state, out, sums)?;
    let (x, states) = (cuda.rows(OP, logits)?, cuda.rows(OP, state)?);
    let (to, sums_at) = (cuda.pointer(OP, out.buffer)?, cuda.rows(OP, sums)?);
    let targets = cuda.upload(OP, targets)?;
    let (columns, narrow) = (logits.columns, out.narrow);
    let arguments = args![x, columns, first, targets, states, to, narrow, sums_at, sums.columns];
    cuda.launch("loss_exponentials", grid(logits), arguments)
}

pub(crate) fn input_gradient(
    cuda: &mut Cuda,
    targets: &[u32],
    state: Rows,
    weight: f32,
    of_targets: Rows,
    dx: Rows,
) -> Result<()> {
    loss::check_input_gradient(targets, state, of_targets, dx)?;
    let (states, rows, to) = (cuda.rows(OP, state)?, cuda.rows(OP, of_targets)?, cuda.rows(OP, dx)?);
    let targets = cuda.upload(OP, targets)?;
    let blocks = (dx.rows as u32, dx.columns.div_ceil(256) as u32, 1);
    let grid = Grid { blocks, ..Grid::line(1, 256) };
    cuda.launch("loss_input_gradient", grid, args![targets, states, weight, rows, to, dx.columns])
}

pub(crate) fn gradient(
    cuda: &mut Cuda,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
    weight: f32,
    out: Rows,
) -> Result<()> {
    loss::check_gradient(logits, targets, state, out)?;
    let (x, states) = (cuda.rows(OP, logits)?, cuda.rows(OP, state)?);
    let to = cuda.pointer(OP, out.buffer)?;
    let targets = cuda.upload(OP, targets)?;
    // Eight columns for each thread, up to the end of a narrow row's padding.
    let blocks = (logits.rows as u32, logits.columns.next_multiple_of(UNIT).div_ceil(8 * 256) as u32, 1);
    let arguments = args![x, logits.columns, first, targets, states, weight, to, out.narrow];
    cuda.launch("loss_gradient", Grid { blocks, ..Grid::line(1, 256) }, arguments)
}
