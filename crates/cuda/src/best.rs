//! The highest values of a row. See `ops::best`.

use halfbyte_ops::best::{self, Best};
use halfbyte_ops::{Result, Rows};

use crate::Cuda;
use crate::arena::COUNTERS;
use crate::launch::{DevicePtr, Grid, args};

/// Threads of a block, and values that one of them holds.
const THREADS: usize = 512;
const EACH: usize = 8;
/// What stands for a value that is not finite, and is above all others.
const NOT_FINITE: u64 = u64::MAX;

pub(crate) fn find(cuda: &mut Cuda, x: Rows, found: &mut [Best]) -> Result<bool> {
    best::check_shapes(x, found)?;
    let (blocks, count) = (x.columns.div_ceil(THREADS * EACH), found.len());
    // All blocks' and, in front of them, those that are asked for.
    if (blocks + 1) * count > COUNTERS {
        return best::by_reading(cuda, x, found);
    }
    let values = cuda.rows("best", x)?;
    let keys = DevicePtr(cuda.counters.at(0, COUNTERS * 8).unwrap_or_default());
    let tickets = cuda.tickets("best", 1)?;
    let grid = Grid { shared: (blocks * count * 8) as u32, ..Grid::line(blocks, THREADS as u32) };
    cuda.launch("best", grid, args![values, x.columns, count, keys, tickets])?;
    let keys = cuda.read_counters(count)?;
    for (best, key) in found.iter_mut().zip(&keys) {
        *best = of_key(*key);
    }
    Ok(keys[0] != NOT_FINITE)
}

/// The value whose bits best.cu made comparable, and its column.
fn of_key(key: u64) -> Best {
    let high = (key >> 32) as u32;
    let bits = if high >> 31 == 1 { high ^ 1 << 31 } else { !high };
    Best { column: !(key as u32), value: f32::from_bits(bits) }
}
