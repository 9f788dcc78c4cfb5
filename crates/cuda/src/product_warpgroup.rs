//! out[r,c] (+)= s * sum_k left[r,k] right[k,c] by our own kernels, on chips that have products of warpgroups. Every
//! result is the sum of one order, whatever the shape.

use halfbyte_ops::{Error, Result};

use crate::Device;
use crate::cublaslt::{Operand, Product};
use crate::driver::{LaunchAttribute, TensorMap};
use crate::launch::Grid;

/// The chips: others of that generation have none.
const CAPABILITY: (u32, u32) = (9, 0);

/// Rows of results that two blocks make.
const ROWS: usize = 256;
/// Both sides in four stages or more, what counts their arrivals, and 32 results of each thread that has some.
const SHARED: u32 = 24 * 8192 + 256 + 256 * 32 * 4;
const THREADS: u32 = 288;
/// How long narrow tiles take for each column, by wide ones.
const NARROW_COST: f64 = 1.2;

/// `Work` of the kernels.
#[repr(C)]
struct Work {
    left: TensorMap,
    right: TensorMap,
    out: u64,
    added: u64,
    scale: u64,
    rows: u32,
    columns: u32,
    inner: u32,
    stride: u32,
    left_skipped: u32,
    right_skipped: u32,
    narrow: u32,
}

/// Whether a device has them.
pub(crate) fn fits(device: &Device) -> bool {
    device.properties.capability == CAPABILITY
}

/// Starts a product behind what was started before it.
pub(crate) fn multiply(device: &Device, of: &Product) -> Result<()> {
    let Product { rows, columns, inner, left, right, out, scale } = of;
    let (left_map, left_skipped) = map(device, left, *rows, *inner, left.turned)?;
    let (right_map, right_skipped) = map(device, right, *columns, *inner, !right.turned)?;
    let work = Work {
        left: left_map,
        right: right_map,
        out: out.at.0,
        added: out.added.map_or(0, |added| added.0),
        scale: scale.map_or(0, |scale| scale.0),
        rows: *rows as u32,
        columns: *columns as u32,
        inner: *inner as u32,
        stride: out.stride as u32,
        left_skipped,
        right_skipped,
        narrow: u32::from(out.narrow),
    };
    let pairs = device.properties.multiprocessors as usize / 2;
    let tiles = |width: usize| rows.div_ceil(ROWS) * columns.div_ceil(width);
    let time = |width: usize| (tiles(width).div_ceil(pairs) * width) as f64;
    let (width, which) = if time(128) * NARROW_COST < time(256) { (128, 1) } else { (256, 0) };
    let kernels = match (left.turned, right.turned) {
        (false, true) => ["product_rows_rows_256", "product_rows_rows_128"],
        (false, false) => ["product_rows_columns_256", "product_rows_columns_128"],
        (true, false) => ["product_columns_columns_256", "product_columns_columns_128"],
        (true, true) => return Err(Error::Device("no product has both sides turned".to_owned())),
    };
    let grid = Grid { shared: SHARED, ..Grid::line(2 * tiles(width).min(pairs), THREADS) };
    device.start_with(kernels[which], grid, &work, LaunchAttribute::PAIRS)
}

/// A side as the copy engine knows it, which is `across` by `inner` values; `turned` if rows are those of what is
/// summed. The engine's rows begin at a multiple of 16 bytes: so many values before these.
fn map(
    device: &Device,
    side: &Operand,
    across: usize,
    inner: usize,
    turned: bool,
) -> Result<(TensorMap, u32)> {
    let (wide, high) = if turned { (across, inner) } else { (inner, across) };
    let skipped = (side.at.0 % 16 / 2) as usize;
    let map = TensorMap::of_bf16(&device.session, side.at.0 & !15, [wide + skipped, high], side.stride * 2)?;
    Ok((map, skipped as u32))
}
