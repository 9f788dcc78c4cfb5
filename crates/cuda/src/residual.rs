//! Sums and copies of rows. See `ops::residual`.

use halfbyte_ops::{Result, Rows, residual};

use crate::Cuda;
use crate::launch::{Grid, args};

pub(crate) fn add(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cuda.rows("add", x)?, cuda.rows("add", out)?);
    let count = x.rows * x.columns;
    cuda.launch("add", Grid::each(count, 256), args![from, to, count])
}

pub(crate) fn copy(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cuda.rows("copy", x)?, cuda.pointer("copy", out.buffer)?);
    cuda.launch("copy", Grid::line(x.rows, 256), args![from, to, out.narrow, x.columns])
}
