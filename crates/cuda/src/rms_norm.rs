//! The norm of rows, with the bits of `ops::rms_norm`.

use halfbyte_ops::{Norm, Result, residual, rms_norm};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};

/// Rows no wider than this are taken by 16 threads each; others by a block each, through shared memory.
const NARROW: usize = 256;
/// Rows that leave most of the device idle.
const FEW: usize = 64;

pub(crate) fn forward(cuda: &mut Cuda, Norm { x, rounded, gain, eps, out }: Norm) -> Result<()> {
    rms_norm::check_shapes(x, gain, out)?;
    rounded.map_or(Ok(()), |rounded| residual::check_shapes(x, rounded))?;
    let [from, to] = [x, out].map(|rows| cuda.pointer("rms_norm", rows.buffer));
    let (from, to, gain) = (from?, to?, cuda.vector("rms_norm", gain)?);
    let kept = rounded.map_or(Ok(DevicePtr::NULL), |rounded| cuda.pointer("rms_norm", rounded.buffer))?;
    let arguments = args![from, x.narrow, kept, gain, eps, to, out.narrow, x.rows, x.columns];
    let aligned =
        x.columns.is_multiple_of(4) && [from, kept, gain, to].iter().all(|at| at.0.is_multiple_of(16));
    if x.columns <= NARROW {
        cuda.launch("rms_norm_heads", Grid::each(x.rows * 16, 256), arguments)
    } else if aligned && x.rows > FEW {
        let grid = Grid { shared: (16 + x.columns * 4) as u32, ..Grid::line(x.rows, 128) };
        cuda.launch("rms_norm_many", grid, arguments)
    } else {
        // Few rows: as many threads as a row has use for, so that all of it is on its way at once.
        let most = if x.rows <= FEW { 1024 } else { 256 };
        let threads = x.columns.div_ceil(4).next_multiple_of(32).min(most);
        let grid = Grid { shared: (16 + x.columns * 4) as u32, ..Grid::line(x.rows, threads as u32) };
        cuda.launch("rms_norm", grid, arguments)
    }
}
