//! Blocks of 256 with scales of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
//!
//! Two-bit planes: value 128h + 32s + l has its bits at byte 32h + l, shifted by 2s.

use super::{field, half};

/// scales[16], codes[64], f16 d, f16 dmin; y = d (s & 15) q - dmin (s >> 4).
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, codes) = (field::<16, 84>(block, 0), field::<64, 84>(block, 16));
    let (scale, minimum) = (half(block, 80), half(block, 82));
    for (group, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let group_scale = scale * f32::from(scales[group] & 15);
        let group_minimum = minimum * f32::from(scales[group] >> 4);
        let (plane, shift) = two_bit_place(group);
        for (value, byte) in values.iter_mut().zip(&codes[plane..plane + 16]) {
            *value = group_scale * f32::from((byte >> shift) & 3) - group_minimum;
        }
    }
}

/// Where the 16 values of a group keep their two bits: (first byte, shift).
#[inline(always)]
fn two_bit_place(group: usize) -> (usize, usize) {
    (32 * (group / 8) + 16 * (group % 2), 2 * ((group / 2) % 4))
}

/// high bits[32], codes[64], scales[12], f16 d; y = d sc q, q in -4..=3.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, codes) = (field::<32, 110>(block, 0), field::<64, 110>(block, 32));
    let scales = q3_k_scales(field(block, 96));
    let scale = half(block, 108);
    for (group, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let group_scale = scale * scales[group] as f32;
        let (plane, shift) = two_bit_place(group);
        let high = &high[16 * (group % 2)..][..16];
        for ((value, byte), high) in values.iter_mut().zip(&codes[plane..plane + 16]).zip(high) {
            let code = i32::from((byte >> shift) & 3) + i32::from((high >> (group / 2)) & 1) * 4;
            *value = group_scale * (code - 4) as f32;
        }
    }
}

/// Sixteen 6-bit scales: low four bits in bytes 0-7, high two in bytes 8-11; minus 32.
#[inline(always)]
fn q3_k_scales(packed: &[u8; 12]) -> [i32; 16] {
    std::array::from_fn(|j| {
        let low = (packed[j % 8] >> (4 * (j / 8))) & 15;
        let high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
        i32::from(low | (high << 4)) - 32
    })
}

/// Eight (scale, minimum) pairs of 6 bits packed in 12 bytes.
#[inline(always)]
fn scales_and_minimums(packed: &[u8; 12]) -> [(f32, f32); 8] {
    std::array::from_fn(|j| {
        let (scale, minimum) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
            (scale, (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
        };
        (f32::from(scale), f32::from(minimum))
    })
}

/// f16 d, f16 dmin, scales[12], codes[128]; y = d sc q - dmin m.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    let groups = scales_and_minimums(field(block, 4));
    let codes = field::<128, 144>(block, 16).as_chunks::<32>().0;
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (group_scale, group_minimum) = (scale * groups[j].0, minimum * groups[j].1);
        let shift = 4 * (j % 2);
        for (value, byte) in values.iter_mut().zip(&codes[j / 2]) {
            *value = group_scale * f32::from((byte >> shift) & 15) - group_minimum;
        }
    }
}

/// f16 d, f16 dmin, scales[12], high bits[32], codes[128]; y = d sc q - dmin m.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    let groups = scales_and_minimums(field(block, 4));
    let high = field::<32, 176>(block, 16);
    let codes = field::<128, 176>(block, 48).as_chunks::<32>().0;
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (group_scale, group_minimum) = (scale * groups[j].0, minimum * groups[j].1);
        let shift = 4 * (j % 2);
        for ((value, byte), high) in values.iter_mut().zip(&codes[j / 2]).zip(high) {
            let code = ((byte >> shift) & 15) | (((high >> j) & 1) << 4);
            *value = group_scale * f32::from(code) - group_minimum;
        }
    }
}

/// low nibbles[128], high pairs[64], i8 scales[16], f16 d; y = d sc (q - 32).
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let low = field::<128, 210>(block, 0).as_chunks::<16>().0;
    let high = field::<64, 210>(block, 128);
    let (scales, scale) = (field::<16, 210>(block, 192), half(block, 208));
    for (group, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let group_scale = scale * f32::from(scales[group] as i8);
        // Value 128h + 64b + l has its nibble at byte 64h + l, the low one for b = 0.
        let (nibbles, nibble_shift) = (&low[4 * (group / 8) + group % 4], (group / 4) % 2 * 4);
        let (plane, shift) = two_bit_place(group);
        for ((value, nibble), pair) in values.iter_mut().zip(nibbles).zip(&high[plane..plane + 16]) {
            let code = ((nibble >> nibble_shift) & 15) | (((pair >> shift) & 3) << 4);
            *value = group_scale * (i32::from(code) - 32) as f32;
        }
    }
}
