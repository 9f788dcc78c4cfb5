//! Sums and copies of rows. See `ops::residual`.

use halfbyte_ops::{Buffer, Result, Rows, residual};

use crate::Cuda;
use crate::launch::{Grid, args};

pub(crate) fn add(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cuda.rows("add", x)?, cuda.rows("add", out)?);
    let count = x.rows * x.columns;
    cuda.launch("add", Grid::each(count, 256), args![from, to, count])
}

pub(crate) fn clear(cuda: &mut Cuda, out: Rows) -> Result<()> {
    let bytes = out.rows * out.columns * 4;
    let to = cuda.rows("clear", Rows { buffer: Buffer { bytes, ..out.buffer }, ..out })?;
    cuda.noted("clear", |cuda| Ok(cuda.arena.clear(to.0, bytes)?))
}

pub(crate) fn copy(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cuda.rows("copy", x)?, cuda.pointer("copy", out.buffer)?);
    cuda.launch("copy", Grid::line(x.rows, 256), args![from, to, out.narrow, x.columns])
}
