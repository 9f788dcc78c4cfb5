//! Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`.

use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Result, Rows, loss};

use crate::Cuda;
use crate::launch::{Grid, args};

const OP: &str = "loss";

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
    let arguments = args![x, logits.columns, first, targets, states];
    cuda.launch("loss", Grid::line(logits.rows, 128), arguments)
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
