//! NVFP4: blocks of 16 E2M1 codes along the inner dimension, one E4M3 scale each, one f32 per tensor.
//!
//! ```text
//! x -> amax -> tensor_scale g -> per block: scale byte s, codes c (low nibble = even index)
//! value = (c * s) * g        c * s is exact, so a value is rounded once
//! ```
//!
//! **Choosing s** (`y = (amax_block / 6) / g`, `code = nearest E2M1 of x * ((1 / g) / s)`):
//! - [`Scales::Nearest`]: s = E4M3 of y clamped to [2^-6, 448]. Bit for bit what torchao does.
//! - [`Scales::FourOverSix`]: the better of s(y) and s(1.5 y) in squared error, ties to the first.
//! - [`Scales::Search`]: the best of every positive E4M3 scale in squared error.
//!
//! **One level** (the origin's `.dat`): g = 1.0; `encode_row` with `tensor_scale` 1.0 is bit for bit
//! torchao's single-level form.
//!
//! **Two levels**: [`tensor_scale`] is amax / 2688 (= 6 * 448) for `Nearest`, as every peer has it,
//! and amax / 1536 (= 6 * 256) for the other two, which leaves room above for scales that map the
//! largest magnitude to 4. Sharing it makes `Search` never worse than `FourOverSix`.
//!
//! **Quantising decoded values again changes no byte**, the tensor scale included: for every
//! amax, n = 2688 or 1536, and g = fl(amax / n), fl(fl(n * g) / n) = g. That needs the product
//! n * g rounded once, hence the order of decoding; (s * g) * c, the peers' order, rounds twice and
//! fails for 18% of all amax. Three rules complete it: `Nearest` and `FourOverSix` write no
//! subnormal scale; a block that has the same values with a smaller scale is written with that one;
//! `Search` lets no value exceed 1536 g and maps the tensor's largest magnitude to exactly that.
//!
//! **Edges**: a zero block has scale 2^-6 (byte 0x08), as has one that rounds to zero. A block that
//! holds a NaN or an infinity gets scale NaN (0x7F) and zero codes, so that the damage stays
//! visible and inside the block. Negative zero is code 8. A short last block is padded with zero
//! and only `ceil(len / 2)` code bytes are written.

mod block;

use crate::state::draw::Draws;
use crate::{e2m1, e4m3};
use block::{Encoded, Tensor};

/// Values that share one scale.
pub const BLOCK: usize = 16;

const BLOCK_BYTES: usize = BLOCK / 2;

// With any smaller tensor scale, the smallest value 0.5 * 2^-9 * g would not be a normal f32.
const SMALLEST_TENSOR_SCALE: f32 = f32::from_bits((127 - 116) << 23);

/// How a block's scale is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// The block's largest magnitude maps to 6.
    Nearest,
    /// It maps to 6 or to 4, whichever leaves the smaller squared error.
    FourOverSix,
    /// The scale with the smallest squared error of all.
    Search,
}

/// Largest finite magnitude of `x`; zero when there is none.
pub fn amax(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<BLOCK>();
    let mut lanes = [0.0f32; BLOCK];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            let a = value.abs();
            // NaN fails the first comparison, infinity the second.
            *lane = if a > *lane && a <= f32::MAX { a } else { *lane };
        }
    }
    let tail = rest.iter().map(|value| value.abs()).filter(|a| a.is_finite());
    lanes.into_iter().chain(tail).fold(0.0, f32::max)
}

/// Tensor scale for a tensor (or a group that shares it) whose largest magnitude is `amax`.
///
/// amax / 2688 for `Nearest`, amax / 1536 for `FourOverSix` and `Search`. 1.0 when `amax` is not
/// finite, zero, or so small (below 2688 or 1536 times 2^-116) that the tensor counts as zero.
pub fn tensor_scale(amax: f32, scales: Scales) -> f32 {
    let divisor = match scales {
        Scales::Nearest => 2688.0,
        Scales::FourOverSix | Scales::Search => block::TOP,
    };
    let scale = amax.abs() / divisor;
    if scale.is_finite() && scale >= SMALLEST_TENSOR_SCALE { scale } else { 1.0 }
}

/// Quantises one row.
///
/// `tensor_scale` is positive and finite: from [`tensor_scale`], or 1.0 for one level, or any
/// other (values beyond 2688 times it saturate).
///
/// # Panics
/// When `codes` is not `ceil(len / 2)` long or `block_scales` not `ceil(len / 16)`.
pub fn encode_row(x: &[f32], tensor_scale: f32, scales: Scales, codes: &mut [u8], block_scales: &mut [u8]) {
    let tensor = Tensor::new(tensor_scale);
    match scales {
        Scales::Nearest => each_block(x, codes, block_scales, |x, _| block::nearest(x, tensor)),
        Scales::FourOverSix => each_block(x, codes, block_scales, |x, _| block::four_over_six(x, tensor)),
        Scales::Search => each_block(x, codes, block_scales, |x, _| block::search(x, tensor)),
    }
}

/// Quantises one row with stochastic rounding: the mean over many steps is `x`.
///
/// `first_element` is the index of `x[0]` in its tensor; an element is rounded by its own word of [`Draws::pairs`].
/// Block scales are rounded up, not to nearest, so that nothing is clipped and the mean is unbiased;
/// otherwise rules and lengths are those of [`encode_row`].
///
/// # Panics
/// When `codes` is not `ceil(len / 2)` long or `block_scales` not `ceil(len / 16)`, or `first_element` no multiple of 16.
pub fn encode_row_stochastic(
    x: &[f32],
    tensor_scale: f32,
    draws: &Draws,
    first_element: u64,
    codes: &mut [u8],
    block_scales: &mut [u8],
) {
    let tensor = Tensor::new(tensor_scale);
    each_block(x, codes, block_scales, |x, index| {
        block::stochastic(x, tensor, draws, first_element.wrapping_add((index * BLOCK) as u64))
    });
}

/// Values of one row: (code * scale) * tensor scale.
///
/// # Panics
/// When `codes` is not `ceil(len / 2)` long or `block_scales` not `ceil(len / 16)`.
pub fn decode_row(codes: &[u8], block_scales: &[u8], tensor_scale: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len().div_ceil(2), "codes");
    assert_eq!(block_scales.len(), out.len().div_ceil(BLOCK), "block scales");
    let blocks = out.chunks_mut(BLOCK).zip(codes.chunks(BLOCK_BYTES));
    for ((out, codes), scale) in blocks.zip(block_scales) {
        let scale = e4m3::decode(*scale);
        for (pair, byte) in out.chunks_mut(2).zip(codes) {
            pair[0] = e2m1::decode(byte & 15) * scale * tensor_scale;
            if let Some(odd) = pair.get_mut(1) {
                *odd = e2m1::decode(byte >> 4) * scale * tensor_scale;
            }
        }
    }
}

/// Runs `encode` over the blocks of a row, the last one padded with zero.
#[inline(always)]
fn each_block(
    x: &[f32],
    codes: &mut [u8],
    block_scales: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], usize) -> Encoded,
) {
    assert_eq!(codes.len(), x.len().div_ceil(2), "codes");
    assert_eq!(block_scales.len(), x.len().div_ceil(BLOCK), "block scales");
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    let (code_blocks, rest_codes) = codes.split_at_mut(blocks.len() * BLOCK_BYTES);
    let (code_blocks, _) = code_blocks.as_chunks_mut::<BLOCK_BYTES>();
    let outputs = code_blocks.iter_mut().zip(block_scales.iter_mut());
    for (index, (block, (codes, scale))) in blocks.iter().zip(outputs).enumerate() {
        let encoded = encode(block, index);
        (*codes, *scale) = (encoded.codes, encoded.scale);
    }
    if let ([_, ..], Some(scale)) = (rest, block_scales.last_mut()) {
        let mut padded = [0.0; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        let encoded = encode(&padded, blocks.len());
        rest_codes.copy_from_slice(&encoded.codes[..rest_codes.len()]);
        *scale = encoded.scale;
    }
}
