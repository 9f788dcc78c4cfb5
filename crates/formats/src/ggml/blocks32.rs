//! Blocks of 32 with f16 scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! Nibble types: the low nibble of byte j is value j, the high nibble value j + 16.

use super::{field, half};

/// f16 d, 16 nibble bytes; y = d (q - 8).
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (j, byte) in field::<16, 18>(block, 2).iter().enumerate() {
        out[j] = scale * (i32::from(byte & 15) - 8) as f32;
        out[j + 16] = scale * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// f16 d, f16 m, 16 nibble bytes; y = d q + m.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for (j, byte) in field::<16, 20>(block, 4).iter().enumerate() {
        out[j] = scale * f32::from(byte & 15) + minimum;
        out[j + 16] = scale * f32::from(byte >> 4) + minimum;
    }
}

/// The fifth bits and nibbles of 32 values put together.
#[inline(always)]
fn five_bits(high: &[u8; 4], nibbles: &[u8; 16]) -> [i32; 32] {
    let high = u32::from_le_bytes(*high);
    let mut codes = [0; 32];
    for (j, byte) in nibbles.iter().enumerate() {
        codes[j] = i32::from(byte & 15) | (((high >> j) & 1) << 4) as i32;
        codes[j + 16] = i32::from(byte >> 4) | (((high >> (j + 16)) & 1) << 4) as i32;
    }
    codes
}

/// f16 d, u32 of fifth bits, 16 nibble bytes; y = d (q - 16).
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    let codes = five_bits(field(block, 2), field(block, 6));
    for (value, code) in out.iter_mut().zip(codes) {
        *value = scale * (code - 16) as f32;
    }
}

/// f16 d, f16 m, u32 of fifth bits, 16 nibble bytes; y = d q + m.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    let codes = five_bits(field(block, 4), field(block, 8));
    for (value, code) in out.iter_mut().zip(codes) {
        *value = scale * code as f32 + minimum;
    }
}

/// f16 d, 32 signed bytes; y = d q.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (value, byte) in out.iter_mut().zip(field::<32, 34>(block, 2)) {
        *value = f32::from(*byte as i8) * scale;
    }
}

/// Encodes whole blocks of 32 as Q8_0, byte for byte as the `gguf` package does for finite values:
/// d = amax / 127 in f32, q = x * (1 / d) rounded half away from zero, then d rounded to f16.
///
/// A block with a NaN or an infinity has no meaning in Q8_0: its scale becomes NaN, so that the
/// damage shows when it is read, and its codes zero.
///
/// # Panics
/// If `x` is not a whole number of blocks, or `out` does not have exactly their bytes.
pub fn encode_row_q8_0(x: &[f32], out: &mut [u8]) {
    assert_eq!(super::Type::Q8_0.bytes(x.len()), Some(out.len()));
    let blocks = out.as_chunks_mut::<34>().0;
    for (values, block) in x.as_chunks::<32>().0.iter().zip(blocks) {
        encode_block_q8_0(values, block);
    }
}

fn encode_block_q8_0(x: &[f32; 32], block: &mut [u8; 34]) {
    let finite = x.iter().all(|value| value.is_finite());
    let amax = x.iter().fold(0.0f32, |amax, value| amax.max(value.abs()));
    let scale = if finite { amax / 127.0 } else { f32::NAN };
    let inverse = 1.0 / scale;
    // Zero for an empty block, and for one so small that 1/d overflows: f16 makes its d zero.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let (head, codes) = block.split_at_mut(2);
    head.copy_from_slice(&crate::f16::encode(scale).to_le_bytes());
    for (code, value) in codes.iter_mut().zip(x) {
        *code = half_away_from_zero(value * inverse) as u8;
    }
}

/// Rounds |x| < 128; written without `f32::round`, which is a library call without SSE4.1.
#[inline(always)]
fn half_away_from_zero(x: f32) -> i8 {
    let magnitude = x.abs();
    let whole = magnitude as i32;
    let rounded = whole + i32::from(magnitude - whole as f32 >= 0.5);
    (if x < 0.0 { -rounded } else { rounded }) as i8
}
