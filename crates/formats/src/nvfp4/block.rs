//! One block of 16: scale byte and codes for each way of choosing the scale.
//!
//! error(s) = sum ((|x| - (c * s) * g) / g)^2, in units of the tensor scale g, so that neither tiny
//! nor huge tensors leave the range of f32.

use super::{BLOCK, BLOCK_BYTES};
use crate::state::draw::Draws;
use crate::{e2m1, e4m3, rounding};

/// Largest c * s that `FourOverSix` and `Search` give in a tensor of their own tensor scale.
pub(super) const TOP: f32 = 1536.0;

const LARGEST: u8 = 0x7E;
const MIN_NORMAL: u8 = 0x08;

/// A finished block.
pub(super) struct Encoded {
    pub(super) codes: [u8; BLOCK_BYTES],
    pub(super) scale: u8,
}

const POISONED: Encoded = Encoded { codes: [0; BLOCK_BYTES], scale: e4m3::NAN };

/// A tensor's scale and its inverse.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    scale: f32,
    inverse: f32,
}

impl Tensor {
    pub(super) fn new(scale: f32) -> Self {
        Tensor { scale, inverse: 1.0 / scale }
    }
}

/// A scale byte that was tried, and the squared error it leaves.
#[derive(Clone, Copy)]
struct Trial {
    scale: u8,
    error: f32,
}

#[inline(always)]
pub(super) fn nearest(x: &[f32; BLOCK], tensor: Tensor) -> Encoded {
    let Some(amax) = finite_amax(x) else {
        return POISONED;
    };
    let scale = e4m3::encode((amax / 6.0 / tensor.scale).clamp(e4m3::MIN_NORMAL, e4m3::MAX));
    let codes = pack(&codes(x, scale, tensor));
    Encoded { codes, scale }
}

#[inline]
pub(super) fn four_over_six(x: &[f32; BLOCK], tensor: Tensor) -> Encoded {
    let Some(amax) = finite_amax(x) else {
        return POISONED;
    };
    let y = amax / 6.0 / tensor.scale;
    let six = e4m3::encode(y.clamp(e4m3::MIN_NORMAL, e4m3::MAX));
    let four = e4m3::encode((1.5 * y).clamp(e4m3::MIN_NORMAL, e4m3::MAX));
    if error(x, four, tensor) < error(x, six, tensor) {
        canonical(codes(x, four, tensor), four, MIN_NORMAL)
    } else {
        let codes = pack(&codes(x, six, tensor));
        Encoded { codes, scale: six }
    }
}

/// The best of all scales, though few are tried:
/// - above 12/7 y the largest code is 3 or less, and half the scale has all the same values;
///   only odd bytes up to 15 have no half;
/// - below y the largest magnitude is clipped; once that error alone is too much, all smaller
///   scales are worse.
pub(super) fn search(x: &[f32; BLOCK], tensor: Tensor) -> Encoded {
    let Some(amax) = finite_amax(x) else {
        return POISONED;
    };
    let y = amax / 6.0 / tensor.scale;
    // The block with the tensor's largest magnitude keeps it, so that the tensor scale can be
    // computed again from decoded values; 2^-20 is more than the roundings of y and less than a step.
    let top = TOP / 6.0;
    if amax == 0.0 || (y - top).abs() <= top / 1_048_576.0 {
        return four_over_six(x, tensor);
    }
    let limit = if y < top { TOP } else { f32::INFINITY };
    let start = e4m3::encode(y.clamp(e4m3::MIN_POSITIVE, e4m3::MAX));
    let end = e4m3::encode(y * (12.0 / 7.0)).clamp(14, LARGEST - 1) + 1;
    let mut best = Trial { scale: start, error: error(x, start, tensor) };
    for scale in start + 1..=end {
        let s = e4m3::decode(scale);
        let peak = e2m1::round_magnitude(amax * (tensor.inverse / s));
        if peak * s <= limit {
            best = better(best, scale, x, tensor);
        }
    }
    for scale in (1..start).rev() {
        let clipped = amax * tensor.inverse - 6.0 * e4m3::decode(scale);
        if clipped > 0.0 && clipped * clipped >= best.error {
            break;
        }
        best = better(best, scale, x, tensor);
    }
    canonical(codes(x, best.scale, tensor), best.scale, 1)
}

pub(super) fn stochastic(x: &[f32; BLOCK], tensor: Tensor, draws: &Draws, first: u64) -> Encoded {
    let Some(amax) = finite_amax(x) else {
        return POISONED;
    };
    let y = (amax / 6.0 / tensor.scale).clamp(e4m3::MIN_NORMAL, e4m3::MAX);
    let nearest = e4m3::encode(y);
    let scale = nearest + u8::from(e4m3::decode(nearest) < y);
    let inverse = tensor.inverse / e4m3::decode(scale);
    let [bits, _] = draws.pairs(first);
    let codes = std::array::from_fn(|i| u32::from(rounding::stochastic_e2m1(x[i] * inverse, bits[i])));
    Encoded { codes: pack(&codes), scale }
}

/// Largest magnitude, or nothing when a NaN or an infinity is among the values.
#[inline(always)]
fn finite_amax(x: &[f32; BLOCK]) -> Option<f32> {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [0.0f32; 4];
    let mut beyond = [0u32; 4];
    for quad in x.as_chunks::<4>().0 {
        for lane in 0..4 {
            let bits = quad[lane].to_bits() & 0x7FFF_FFFF;
            lanes[lane] = larger(f32::from_bits(bits), lanes[lane]);
            beyond[lane] |= u32::from(bits >= 0x7F80_0000);
        }
    }
    let amax = larger(larger(lanes[0], lanes[1]), larger(lanes[2], lanes[3]));
    (beyond == [0; 4]).then_some(amax)
}

#[inline(always)]
fn codes(x: &[f32; BLOCK], scale: u8, tensor: Tensor) -> [u32; BLOCK] {
    let inverse = tensor.inverse / e4m3::decode(scale);
    let mut codes = [0; BLOCK];
    for (code, value) in codes.iter_mut().zip(x) {
        *code = e2m1::encode_lane(value * inverse);
    }
    codes
}

/// Two codes a byte, the even index in the low nibble.
#[inline(always)]
fn pack(codes: &[u32; BLOCK]) -> [u8; BLOCK_BYTES] {
    let bytes = codes.map(|code| code as u8);
    let half = |bytes: [u8; 8]| {
        let nibbles = u64::from_le_bytes(bytes);
        let pairs = (nibbles | nibbles >> 4) & 0x00FF_00FF_00FF_00FF;
        let quads = (pairs | pairs >> 8) & 0x0000_FFFF_0000_FFFF;
        (quads | quads >> 16) & 0xFFFF_FFFF
    };
    let [low, high] = [0, 8].map(|first| half(std::array::from_fn(|i| bytes[first + i])));
    (low | high << 32).to_le_bytes()
}

#[inline(always)]
fn error(x: &[f32; BLOCK], scale: u8, tensor: Tensor) -> f32 {
    let s = e4m3::decode(scale);
    let inverse = tensor.inverse / s;
    let mut lanes = [0.0f32; 4];
    for quad in x.as_chunks::<4>().0 {
        for lane in 0..4 {
            let a = quad[lane].abs();
            let decoded = e2m1::round_magnitude(a * inverse) * s * tensor.scale;
            let difference = (a - decoded) * tensor.inverse;
            lanes[lane] += difference * difference;
        }
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

#[inline(always)]
fn better(best: Trial, scale: u8, x: &[f32; BLOCK], tensor: Tensor) -> Trial {
    let error = error(x, scale, tensor);
    if error < best.error { Trial { scale, error } } else { best }
}

/// The same values with the smallest scale byte, `floor` or more, that can hold them.
///
/// Values 4 2 1 of scale 3 are also 6 3 1.5 of scale 2, and nothing decoded tells which it was; one
/// spelling for each block keeps quantising decoded values from changing bytes.
fn canonical(codes: [u32; BLOCK], scale: u8, floor: u8) -> Encoded {
    let largest = codes.iter().fold(0, |largest, code| largest.max(code & 7));
    if largest == 0 {
        return Encoded { codes: pack(&codes), scale: MIN_NORMAL };
    }
    let smaller = (largest + 1..8).rev().find_map(|target| respell(&codes, scale, largest, target, floor));
    let (codes, scale) = smaller.unwrap_or((codes, scale));
    Encoded { codes: pack(&codes), scale }
}

/// The block with code `largest` become `target`, if all its values are exact that way.
fn respell(
    codes: &[u32; BLOCK],
    scale: u8,
    largest: u32,
    target: u32,
    floor: u8,
) -> Option<([u32; BLOCK], u8)> {
    let s = e4m3::decode(scale);
    let magnitude = |code: u32| e2m1::MAGNITUDES[(code & 7) as usize];
    let byte = e4m3::encode(s * magnitude(largest) / magnitude(target));
    let t = e4m3::decode(byte);
    let mut respelled = [0; BLOCK];
    for (new, code) in respelled.iter_mut().zip(codes) {
        let value = magnitude(*code) * s;
        let nearest = e2m1::encode_lane(value / t);
        if magnitude(nearest) * t != value {
            return None;
        }
        *new = nearest | code & 8;
    }
    (byte >= floor).then_some((respelled, byte))
}
