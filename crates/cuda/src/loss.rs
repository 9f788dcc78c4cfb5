//! Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`.

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
    cuda.launch("loss", Grid::line(logits.rows, 256), arguments)
}

pub(crate) fn gradient(
    cuda: &mut Cuda,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
    weight: f32,
) -> Result<()> {
    loss::check_shapes(logits, targets, state)?;
    let (x, states) = (cuda.rows(OP, logits)?, cuda.rows(OP, state)?);
    let targets = cuda.upload(OP, targets)?;
    let blocks = (logits.rows as u32, logits.columns.div_ceil(256) as u32, 1);
    let arguments = args![x, logits.columns, first, targets, states, weight];
    cuda.launch("loss_gradient", Grid { blocks, ..Grid::line(1, 256) }, arguments)
}
