//! out[r,c] (+)= sum_i s_i * sum_k left_i[r,k] right_i[k,c] by our own kernels, on chips that have products of warpgroups;
//! and the same where results are mixed before they are written, or gradients are taken of what was. Every result is
//! the sum of one order, whatever the shape.

use halfbyte_ops::{Error, Result};

use crate::Device;
use crate::cublaslt::{Operand, Product, Results};
use crate::driver::{LaunchAttribute, TensorMap};
use crate::launch::{DevicePtr, Grid};

/// The chips: others of that generation have none.
const CAPABILITY: (u32, u32) = (9, 0);

/// Rows of results that two blocks make.
const ROWS: usize = 256;
/// Both sides in four stages or more, what counts their arrivals, and 32 results of each thread that has some.
const SHARED: u32 = 24 * 8192 + 256 + 256 * 32 * 4;
const THREADS: u32 = 384;
/// How long narrow tiles take for each column, by wide ones.
const NARROW_COST: f64 = 1.2;

/// Most products that are summed at once.
pub(crate) const MOST_FACTORS: usize = 3;

/// Two sides that are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) inner: usize,
    /// Where on the device s stands; 1 if nowhere.
    pub(crate) scale: Option<DevicePtr>,
}

/// A gated pair's products, narrow rows that lie as results do; and where the gradient of the second goes.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) gate: DevicePtr,
    pub(crate) up: DevicePtr,
    pub(crate) dup: DevicePtr,
}

/// `Factors` of the kernels.
#[derive(Default)]
#[repr(C)]
struct Sides {
    left: TensorMap,
    right: TensorMap,
    scale: u64,
    inner: u32,
    left_skipped: u32,
    right_skipped: u32,
}

/// `Work` of the kernels.
#[repr(C)]
struct Work {
    factors: [Sides; MOST_FACTORS],
    out: u64,
    added: u64,
    pair: [u64; 3],
    count: u32,
    rows: u32,
    columns: u32,
    stride: u32,
    narrow: u32,
}

/// Whether a device has them.
pub(crate) fn fits(device: &Device) -> bool {
    device.properties.capability == CAPABILITY
}

/// Starts a product behind what was started before it.
pub(crate) fn multiply(device: &Device, of: &Product) -> Result<()> {
    let Product { rows, columns, inner, left, right, out, scale } = *of;
    sum(device, (rows, columns), &[Factors { left, right, inner, scale }], out)
}

/// The sum of several, whose sides are turned alike: more than one only where neither is.
pub(crate) fn sum(
    device: &Device,
    (rows, columns): (usize, usize),
    factors: &[Factors],
    out: Results,
) -> Result<()> {
    let turned = factors.first().map(|of| (of.left.turned, of.right.turned));
    let kernels = match (turned, factors.len()) {
        (Some((false, true)), 1) => ["product_rows_rows_256", "product_rows_rows_128"],
        (Some((false, false)), _) => ["product_rows_columns_256", "product_rows_columns_128"],
        (Some((true, false)), 1) => ["product_columns_columns_256", "product_columns_columns_128"],
        _ => {
            return Err(Error::Device(format!(
                "no kernel for {} products, turned {turned:?}",
                factors.len()
            )));
        }
    };
    let work = Work::new(device, (rows, columns), factors, out, None)?;
    let time = |width: usize| (work.tiles(width).div_ceil(pairs(device)) * width) as f64;
    let (width, which) = if time(128) * NARROW_COST < time(256) { (128, 1) } else { (256, 0) };
    work.start(device, kernels[which], width)
}

/// out = silu(g) u of the products of one left side with two right ones, which may be kept. Narrow rows are written to
/// the end of their padding.
pub(crate) fn gated(
    device: &Device,
    (rows, columns): (usize, usize),
    factors: &[Factors; 2],
    out: Results,
    kept: Option<Pair>,
) -> Result<()> {
    Work::new(device, (rows, columns), factors, out, kept)?.padded().start(device, "gated_rows", 128)
}

/// The gradients of both of a pair, of products that are the gradients of what was mixed: that of the gate goes to `out`.
/// Narrow rows again.
pub(crate) fn gated_gradient(
    device: &Device,
    (rows, columns): (usize, usize),
    factors: Factors,
    out: Results,
    pair: Pair,
) -> Result<()> {
    let work = Work::new(device, (rows, columns), &[factors], out, Some(pair))?;
    work.padded().start(device, "gated_gradient_rows", 256)
}

/// Pairs of blocks that run at once.
fn pairs(device: &Device) -> usize {
    device.properties.multiprocessors as usize / 2
}

impl Work {
    fn new(
        device: &Device,
        (rows, columns): (usize, usize),
        factors: &[Factors],
        out: Results,
        pair: Option<Pair>,
    ) -> Result<Work> {
        let mut all: [Sides; MOST_FACTORS] = Default::default();
        for (sides, of) in all.iter_mut().zip(factors) {
            *sides = Sides::new(device, (rows, columns), of)?;
        }
        Ok(Work {
            factors: all,
            out: out.at.0,
            added: out.added.map_or(0, |added| added.0),
            pair: pair.map_or([0; 3], |Pair { gate, up, dup }| [gate.0, up.0, dup.0]),
            count: factors.len() as u32,
            rows: rows as u32,
            columns: columns as u32,
            stride: out.stride as u32,
            narrow: u32::from(out.narrow),
        })
    }

    /// The same with results to the end of narrow rows' padding; the sides end before.
    fn padded(self) -> Work {
        Work { columns: self.columns.next_multiple_of(64), ..self }
    }

    /// Tiles of so many columns.
    fn tiles(&self, width: usize) -> usize {
        (self.rows as usize).div_ceil(ROWS) * (self.columns as usize).div_ceil(width)
    }

    fn start(&self, device: &Device, kernel: &'static str, width: usize) -> Result<()> {
        let grid = Grid { shared: SHARED, ..Grid::line(2 * self.tiles(width).min(pairs(device)), THREADS) };
        device.start_with(kernel, grid, self, LaunchAttribute::PAIRS)
    }
}

impl Sides {
    fn new(device: &Device, (rows, columns): (usize, usize), of: &Factors) -> Result<Sides> {
        let Factors { left, right, inner, scale } = of;
        let (left, left_skipped) = map(device, left, rows, *inner, left.turned)?;
        let (right, right_skipped) = map(device, right, columns, *inner, !right.turned)?;
        let scale = scale.map_or(0, |scale| scale.0);
        Ok(Sides { left, right, scale, inner: *inner as u32, left_skipped, right_skipped })
    }
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
