//! Ceilings of a device, as its own products and its own reading show them.

use std::time::Instant;

use halfbyte_ops::{Backend, Buffer, Matrix, Product, Result, Rows, Weight, WeightFormat};

use crate::launch::{Grid, args};
use crate::{Cuda, Device, library};

/// Rows and columns of the product: large enough for every multiprocessor to be busy, small enough for any device.
const SIDE: usize = 4096;
/// Times that something is done at once, and rounds of which the best counts.
const TIMES: usize = 8;
const ROUNDS: usize = 3;

/// Operations a second of products in bf16, by whoever makes them on this device.
pub fn arithmetic(device: &Device) -> Result<f64> {
    let weight = WeightFormat::Bf16.bytes(SIDE, SIDE).next_multiple_of(256);
    let [x, out] = [Rows::narrow_bytes(SIDE, SIDE), Rows::bytes(SIDE, SIDE)];
    let buffer = |offset, bytes| Buffer { offset, bytes };
    let end = weight + x + out;
    let scratch = buffer(end, library::SCRATCH);
    let mut cuda = Cuda::new(device, end + scratch.bytes, scratch)?;
    fill(&mut cuda, buffer(0, weight + x))?;
    let of = Weight {
        buffer: buffer(0, WeightFormat::Bf16.bytes(SIDE, SIDE)),
        rows: SIDE,
        columns: SIDE,
        format: WeightFormat::Bf16,
    };
    let x = Rows::new(buffer(weight, x), SIDE, SIDE).narrow();
    let product = Product::new(
        Matrix { weight: of, bias: None },
        Rows::new(buffer(weight + x.buffer.bytes, out), SIDE, SIDE),
    );
    let seconds = best(&mut cuda, |cuda| cuda.linear(x, &[product]))?;
    Ok(2.0 * (SIDE as f64).powi(3) / seconds)
}

/// Reads a large buffer, again and again.
pub struct Reader {
    cuda: Cuda,
    bytes: usize,
}

impl Reader {
    /// With a buffer of so many bytes.
    pub fn new(device: &Device, bytes: usize) -> Result<Reader> {
        let cuda = Cuda::new(device, bytes, Buffer::default())?;
        Ok(Reader { cuda, bytes })
    }

    /// Bytes a second.
    pub fn pass(&mut self) -> Result<f64> {
        let (from, bytes) =
            (self.cuda.pointer("measure", Buffer { offset: 0, bytes: self.bytes })?, self.bytes);
        let blocks = self.cuda.device.properties.multiprocessors as usize * 16;
        let arguments = args![from, bytes / 16];
        let seconds =
            best(&mut self.cuda, |cuda| cuda.launch("read_all", Grid::line(blocks, 256), arguments))?;
        Ok(bytes as f64 / seconds)
    }
}

/// Seconds of one call.
fn best(cuda: &mut Cuda, call: impl Fn(&mut Cuda) -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..=ROUNDS {
        cuda.device.session.wait()?;
        let start = Instant::now();
        (0..TIMES).try_for_each(|_| call(cuda))?;
        cuda.device.session.wait()?;
        best = best.min(start.elapsed().as_secs_f64() / TIMES as f64);
    }
    Ok(best)
}

/// Fills a buffer with numbers near one of either sign, whatever they are taken for: zeros would need less power than
/// any model.
pub fn fill(cuda: &mut Cuda, buffer: Buffer) -> Result<()> {
    let mut state = 1u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) & 0x80ff | 0x3f00) as u16
    };
    let bytes: Vec<u8> = (0..1 << 20).flat_map(|_| word().to_le_bytes()).collect();
    for offset in (0..buffer.bytes).step_by(bytes.len()) {
        let count = bytes.len().min(buffer.bytes - offset);
        cuda.write_bytes(Buffer { offset: buffer.offset + offset, bytes: count }, &bytes[..count])?;
    }
    Ok(())
}
