//! Sums and copies of rows. See `ops::residual`.

use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Buffer, Result, Rows, residual};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};

pub(crate) fn add(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cuda.rows("add", x)?, cuda.rows("add", out)?);
    let count = x.rows * x.columns;
    cuda.launch("add", Grid::each(count, 256), args![from, to, count])
}

pub(crate) fn clear(cuda: &mut Cuda, out: Rows) -> Result<()> {
    let (to, bytes) = whole(cuda, "clear", out)?;
    cuda.noted("clear", |cuda| Ok(cuda.arena.clear(to.0, bytes)?))
}

pub(crate) fn copy(cuda: &mut Cuda, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, bytes) = whole(cuda, "copy", x)?;
    if out.narrow {
        let to = cuda.pointer("copy", out.buffer)?;
        return narrow(cuda, from, (x.rows, x.columns), to);
    }
    let (to, _) = whole(cuda, "copy", out)?;
    cuda.noted("copy", |cuda| Ok(cuda.arena.copy(from.0, to.0, bytes)?))
}

/// Where f32 rows lie, and how many bytes they are.
fn whole(cuda: &Cuda, op: &'static str, rows: Rows) -> Result<(DevicePtr, usize)> {
    let bytes = rows.rows * rows.columns * 4;
    Ok((cuda.rows(op, Rows { buffer: Buffer { bytes, ..rows.buffer }, ..rows })?, bytes))
}

/// f32 rows as narrow ones.
pub(crate) fn narrow(
    cuda: &mut Cuda,
    from: DevicePtr,
    (rows, columns): (usize, usize),
    to: DevicePtr,
) -> Result<()> {
    let fours = rows * columns.next_multiple_of(UNIT) / 4;
    cuda.launch("narrow", Grid::line(fours.div_ceil(4 * 256), 256), args![from, to, rows, columns])
}
