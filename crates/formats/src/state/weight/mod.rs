//! Weights that learn: one NVFP4 plane, and an n-bit remainder under the same sticky block scale.
//!
//! ```text
//! w = s * (c + (r + 1/2) / U),   s = E4M3 block scale * tensor scale,  U = 2^(n-1) units
//! c  the E2M1 code: exactly what the forward pass uses and what is exported
//! r  in -U..U-1, in two's complement: n = 8 a byte (U = 128), n = 4 a nibble (U = 8)
//! ```
//!
//! **Units.** A weight lies in the middle of a unit: w / (s / U) = k + 1/2 with a whole k from -7 U to 7 U - 1, so up
//! to the largest code, 6, and almost 1 beyond it. The remainder reaches over half of every gap, the one from 4 to 6
//! included, where half the gap is U units. From k to !k is from w to -w, and no weight lies half way between
//! two codes: there is no tie to break, nothing leans to either side, and the code of k is that of k / (U / 4)
//! rounded down.
//!
//! **Round first, then split.** An update moves k by delta / (s / U), rounded stochastically to whole
//! units (a weight decays by its share of k: no value is computed while the scale stays), and the new k is split into
//! the nearest code and what remains. A code whose magnitude is zero is written 0, with the sign in r. A block in
//! which no k moves keeps its bytes, whatever spelling they have.
//!
//! **The scale is sticky.** It is kept while the largest |w| of the block, rounded, lies within s / 2 of 6 s or of
//! 4 s. Otherwise, where the largest is not rounded yet, the same holds or it becomes the nearest E4M3 of largest / 6, clamped to [2^-6, 448], which puts the
//! largest at 5.6 to 6.4; then all sixteen are rounded stochastically in the new units, at once
//! with the update. A scale is only raised by what is too large and only lowered by what is too
//! small, so a block at either end of E4M3 keeps its scale. Around 4, since `FourOverSix` and `Search`
//! put the largest there on purpose. Not between 4.5 and 5.5, where the largest weight of the block is
//! the one with the largest error: in `tests/state_training.rs`, where weights move by half their
//! size, a scale kept on all of [3.5, 6.5] ends 4.1% of the first loss above f32, this rule 1.2%.
//!
//! **The tensor scale is fixed at import**: [`tensor_scale`] is four times that of `nvfp4`, so that
//! the largest block can grow to 4.6 times its size. Four is a power of two: codes are those of the
//! same quantiser without head room, except in blocks below 1.4e-4 of the tensor's largest. What outgrows
//! 448 times the tensor scale saturates at |k| = 7 U - 1 and is counted. An imported NVFP4 tensor keeps
//! its tensor scale and all bytes; [`make_room`] gives it head room without changing a value.
//!
//! **Edges.** A block whose update or whose stored scale is not finite is left alone and counted. A
//! scale byte of zero or with its sign set (no quantiser writes them) decodes as it reads, and is
//! replaced by a positive one when its block next changes scale.

mod block;

use super::draw::{Draws, each_moving_block};
use super::{BLOCK, Push, Tally, units};
use crate::{e4m3, nvfp4};

pub use block::{Block, decode_block, forward_block, import_block, update_block};

/// How much a tensor can grow before its largest block saturates; a power of two.
pub const HEADROOM: f32 = 4.0;

/// Width of the remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remainder {
    /// Eight bits, units of s / 128: the default.
    Byte,
    /// Four bits, units of s / 8: lean.
    Nibble,
}

impl Remainder {
    /// n, for the const parameter of the block functions.
    pub const fn bits(self) -> u32 {
        match self {
            Remainder::Byte => 8,
            Remainder::Nibble => 4,
        }
    }

    /// Bytes of the remainders of `len` weights, a multiple of 16.
    pub const fn bytes(self, len: usize) -> usize {
        len * self.bits() as usize / 8
    }

    /// Bytes of one block: codes, scale and remainders.
    pub const fn block_bytes(self) -> usize {
        BLOCK / 2 + 1 + self.bytes(BLOCK)
    }

    /// Bytes per parameter: 1.5625 with a byte, 1.0625 with a nibble.
    pub const fn bytes_per_parameter(self) -> f64 {
        self.block_bytes() as f64 / BLOCK as f64
    }
}

/// The planes of one row, or of any run of whole blocks.
#[derive(Debug)]
pub struct Row<'a> {
    /// E2M1 codes, two a byte, the even index in the low nibble.
    pub codes: &'a mut [u8],
    /// One E4M3 scale for each block.
    pub scales: &'a mut [u8],
    /// Remainders: a byte each, or two a byte in the order of the codes.
    pub remainders: &'a mut [u8],
}

/// Tensor scale for training a tensor whose largest magnitude is `amax`: `nvfp4`'s with head room.
///
/// A tensor of zeros has 1.0, which is coarse for what it may become: give the magnitude you expect.
pub fn tensor_scale(amax: f32, scales: nvfp4::Scales) -> f32 {
    nvfp4::tensor_scale((amax.abs() * HEADROOM).min(f32::MAX), scales)
}

/// Quantises one row: codes and scales by `scales`, remainders to nearest.
///
/// What lies beyond 7 s (`Search` may clip) is held there. A block that is not finite becomes NaN.
///
/// # Panics
/// When the row is no whole number of blocks, or a plane has another length.
pub fn import_row(x: &[f32], tensor_scale: f32, scales: nvfp4::Scales, remainder: Remainder, row: Row<'_>) {
    nvfp4::encode_row(x, tensor_scale, scales, row.codes, row.scales);
    match remainder {
        Remainder::Byte => import_blocks::<8>(x, tensor_scale, row),
        Remainder::Nibble => import_blocks::<4>(x, tensor_scale, row),
    }
}

/// Stored weights of one row.
///
/// # Panics
/// When the row is no whole number of blocks, or a plane has another length.
pub fn decode_row(
    codes: &[u8],
    scales: &[u8],
    remainders: &[u8],
    remainder: Remainder,
    tensor_scale: f32,
    out: &mut [f32],
) {
    match remainder {
        Remainder::Byte => decode_blocks::<8>(codes, scales, remainders, tensor_scale, out),
        Remainder::Nibble => decode_blocks::<4>(codes, scales, remainders, tensor_scale, out),
    }
}

/// w += delta for one row; `first` is the index of its first element in the tensor.
///
/// # Panics
/// When the row is no whole number of blocks, a plane has another length, or `first` begins no block.
pub fn update_row(
    row: Row<'_>,
    remainder: Remainder,
    tensor_scale: f32,
    delta: &[f32],
    draws: &Draws,
    first: u64,
) -> Tally {
    match remainder {
        Remainder::Byte => update_blocks::<8>(row, tensor_scale, delta, draws, first),
        Remainder::Nibble => update_blocks::<4>(row, tensor_scale, delta, draws, first),
    }
}

/// Multiplies the tensor scale by 2^`doublings` and divides the block scales by it, if every value
/// stays exactly what it is; otherwise changes nothing and says so.
#[must_use]
pub fn make_room(scales: &mut [u8], tensor_scale: &mut f32, doublings: u32) -> bool {
    let power = f32::from_bits((127 - doublings.min(126)) << 23);
    let shifted = |byte: u8| e4m3::encode(e4m3::decode(byte) * power);
    let exact = |byte: u8| {
        let value = e4m3::decode(byte);
        value.is_nan() || e4m3::decode(shifted(byte)) == value * power
    };
    let raised = *tensor_scale / power;
    if !raised.is_finite() || !scales.iter().all(|byte| exact(*byte)) {
        return false;
    }
    scales.iter_mut().for_each(|byte| *byte = shifted(*byte));
    *tensor_scale = raised;
    true
}

#[inline(always)]
fn check(len: usize, codes: usize, scales: usize, remainders: usize, bits: u32) {
    assert_eq!(len % BLOCK, 0, "a row is whole blocks");
    assert_eq!(codes, len / 2, "codes");
    assert_eq!(scales, len / BLOCK, "scales");
    assert_eq!(remainders, len * bits as usize / 8, "remainders");
}

fn import_blocks<const BITS: u32>(x: &[f32], tensor_scale: f32, row: Row<'_>) {
    check(x.len(), row.codes.len(), row.scales.len(), row.remainders.len(), BITS);
    let planes = row.codes.as_chunks().0.iter().zip(row.scales.iter());
    let remainders = row.remainders.chunks_exact_mut(2 * BITS as usize);
    for ((x, (codes, scale)), remainder) in x.as_chunks().0.iter().zip(planes).zip(remainders) {
        import_block::<BITS>(x, codes, *scale, tensor_scale, remainder);
    }
}

#[inline(always)]
fn decode_blocks<const BITS: u32>(
    codes: &[u8],
    scales: &[u8],
    remainders: &[u8],
    tensor_scale: f32,
    out: &mut [f32],
) {
    check(out.len(), codes.len(), scales.len(), remainders.len(), BITS);
    let planes = codes.as_chunks().0.iter().zip(scales).zip(remainders.chunks_exact(2 * BITS as usize));
    for (out, ((codes, scale), remainder)) in out.as_chunks_mut().0.iter_mut().zip(planes) {
        *out = decode_block::<BITS>(codes, *scale, remainder, tensor_scale);
    }
}

#[inline(always)]
fn update_blocks<const BITS: u32>(
    row: Row<'_>,
    tensor_scale: f32,
    delta: &[f32],
    draws: &Draws,
    first: u64,
) -> Tally {
    check(delta.len(), row.codes.len(), row.scales.len(), row.remainders.len(), BITS);
    let codes = row.codes.as_chunks_mut().0;
    each_moving_block(draws, first, delta, |index, delta, bits| {
        let remainder = units::part_mut::<BITS>(row.remainders, index);
        let block = Block { codes: &mut codes[index], scale: &mut row.scales[index], remainder };
        update_block::<BITS>(block, tensor_scale, &Push::by(delta), bits)
    })
}
