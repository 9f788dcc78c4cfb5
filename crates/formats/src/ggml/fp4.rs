//! E2M1 blocks: MXFP4 and GGUF's NVFP4, and the repacking between GGUF's and safetensors' order.

use super::field;

/// Twice the E2M1 values, so that a halved scale loses nothing; code 8 decodes to plain zero.
const DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// 2^(e-128): half of what the byte means, finite even for e = 255.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        normal => (u32::from(normal) - 1) << 23,
    })
}

/// E8M0 byte, 16 nibble bytes (low nibble value j, high j + 16); y = 2^(e-127) E2M1.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = half_power(block[0]);
    for (j, byte) in field::<16, 17>(block, 1).iter().enumerate() {
        out[j] = scale * DOUBLED[usize::from(byte & 15)];
        out[j + 16] = scale * DOUBLED[usize::from(byte >> 4)];
    }
}

/// Half of the unsigned E4M3 scale. 0x7F counts as zero; the sign bit means nothing here.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    match clean_scale(byte) {
        subnormal @ 0..8 => f32::from(subnormal) / 1024.0,
        normal => f32::from_bits((u32::from(normal) + ((127 - 8) << 3)) << 20),
    }
}

/// The scale byte as plain E4M3 reads it: no sign, and zero for what GGUF counts as zero.
#[inline(always)]
fn clean_scale(byte: u8) -> u8 {
    match byte & 0x7F {
        0x7F => 0,
        scale => scale,
    }
}

/// Four scales, four times 8 bytes: low nibble of byte j is value j of 16, high nibble j + 8.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let codes = field::<32, 36>(block, 4).as_chunks::<8>().0;
    for (s, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half_scale(block[s]);
        for (j, byte) in codes[s].iter().enumerate() {
            values[j] = scale * DOUBLED[usize::from(byte & 15)];
            values[j + 8] = scale * DOUBLED[usize::from(byte >> 4)];
        }
    }
}

/// GGUF's NVFP4 blocks -> safetensors' order: `codes` two per byte, low nibble the even value,
/// and one E4M3 byte per 16 in `scales`. Scale bytes that GGUF counts as zero become zero.
///
/// # Panics
/// If the lengths do not describe the same number of whole blocks of 64.
pub fn nvfp4_to_rows(bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
    check_lengths(bytes.len(), codes.len(), scales.len());
    let codes = codes.as_chunks_mut::<32>().0;
    let scales = scales.as_chunks_mut::<4>().0;
    let blocks = bytes.as_chunks::<36>().0;
    for ((block, codes), scales) in blocks.iter().zip(codes).zip(scales) {
        *scales = field::<4, 36>(block, 0).map(clean_scale);
        let parts = field::<32, 36>(block, 4).as_chunks::<8>().0;
        for (part, codes) in parts.iter().zip(codes.as_chunks_mut::<8>().0) {
            for j in 0..4 {
                let (even, odd) = (part[2 * j], part[2 * j + 1]);
                codes[j] = (even & 15) | (odd << 4);
                codes[j + 4] = (even >> 4) | (odd & 0xF0);
            }
        }
    }
}

/// Safetensors' order -> GGUF's NVFP4 blocks; the inverse of [`nvfp4_to_rows`].
///
/// # Panics
/// If the lengths do not describe the same number of whole blocks of 64.
pub fn nvfp4_from_rows(codes: &[u8], scales: &[u8], bytes: &mut [u8]) {
    check_lengths(bytes.len(), codes.len(), scales.len());
    let codes = codes.as_chunks::<32>().0;
    let scales = scales.as_chunks::<4>().0;
    let blocks = bytes.as_chunks_mut::<36>().0;
    for ((block, codes), scales) in blocks.iter_mut().zip(codes).zip(scales) {
        let (head, parts) = block.split_at_mut(4);
        head.copy_from_slice(&scales.map(clean_scale));
        for (part, codes) in parts.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
            for j in 0..4 {
                let (first, second) = (codes[j], codes[j + 4]);
                part[2 * j] = (first & 15) | (second << 4);
                part[2 * j + 1] = (first >> 4) | (second & 0xF0);
            }
        }
    }
}

fn check_lengths(bytes: usize, codes: usize, scales: usize) {
    let blocks = bytes / 36;
    let fits = bytes == blocks * 36 && codes == blocks * 32 && scales == blocks * 4;
    assert!(fits, "NVFP4 blocks: {bytes} bytes for {codes} code bytes and {scales} scales");
}
