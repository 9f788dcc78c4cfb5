//! Weights of four and eight bits decoded by hand in AVX2, for the kernel in lanes: the compiler finds no table for a
//! nibble.

use std::arch::x86_64::*;

use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{BLOCK, PANEL, UNIT};

use super::Sums;
use super::job::Panel;
use super::lanes::{self, Decode};
use crate::panel::{self, Decoded};

/// Outputs of a register.
const LANES: usize = 8;

/// `lanes::product`.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn product(
    format: WeightFormat,
    panels: &super::Panels<'_>,
    units: usize,
    x: &[f32],
    sums: &mut Sums<'_>,
) {
    for (panel, sums) in panels.iter().flatten().zip(sums) {
        lanes::product::<ByHand>(format, panel, units, x, sums);
    }
}

/// `lanes::decode_panel`.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode_panel(panel: &Panel<'_>, out: &mut [Decoded]) {
    lanes::decode::<ByHand>(panel, out);
}

/// Used by functions alone that have AVX2.
struct ByHand;

impl Decode for ByHand {
    #[inline(always)]
    fn block(format: WeightFormat, unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
        assert!(unit.len() == format.unit_bytes() && block < UNIT / BLOCK);
        // SAFETY: a whole unit, and AVX2 (see `ByHand`).
        unsafe {
            match format {
                WeightFormat::Nvfp4 => nvfp4(unit.as_ptr(), block, out),
                WeightFormat::Int8 => int8(unit.as_ptr(), block, out),
                WeightFormat::Bf16 | WeightFormat::F32 => panel::decode_block(format, unit, block, out),
            }
        }
    }
}

/// Twice the value of a code comes from a table of bytes, goes to the top of its dword and becomes a float there. A zero
/// loses its sign that way, which no sum shows: it begins with one that has none.
///
/// # Safety
/// `unit` is a whole unit.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn nvfp4(unit: *const u8, block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    let twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    let (twice, nibble) = (_mm256_broadcastsi128_si256(twice), _mm256_set1_epi8(15));
    let top = |byte: i32| {
        let of = |dword: i32| (4 * dword + byte) << 24 | 0x80_8080;
        _mm256_broadcastsi128_si256(_mm_setr_epi32(of(0), of(1), of(2), of(3)))
    };
    for half in 0..PANEL / LANES {
        // SAFETY: four times 16 scale bytes start a unit, eight lines of 16 dwords follow; 8 values.
        unsafe {
            let bytes = _mm_loadl_epi64(unit.add(block * PANEL + half * LANES).cast());
            // An E4M3 byte shifted to an f16's place is that number divided by 256, subnormals too.
            let scale = _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_cvtepu8_epi16(bytes)));
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(256.0 / (1 << 25) as f32));
            for (line, out) in out.chunks_exact_mut(BLOCK / 2).enumerate() {
                let at = unit.add(UNIT + (2 * block + line) * 4 * PANEL + half * 4 * LANES);
                let codes = _mm256_loadu_si256(at.cast());
                let even = _mm256_shuffle_epi8(twice, _mm256_and_si256(codes, nibble));
                let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
                let odd = _mm256_shuffle_epi8(twice, odd);
                for (byte, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    for (out, values) in pair.iter_mut().zip([even, odd]) {
                        let values = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(values, top(byte as i32)));
                        _mm256_storeu_ps(out[half * LANES..].as_mut_ptr(), _mm256_mul_ps(values, scale));
                    }
                }
            }
        }
    }
}

/// # Safety
/// `unit` is a whole unit.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn int8(unit: *const u8, block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    for half in 0..PANEL / LANES {
        // SAFETY: four times 16 scale bytes start a unit, 64 lines of 16 codes follow; 8 values.
        unsafe {
            let bytes = _mm_loadl_epi64(unit.add(block * PANEL + half * LANES).cast());
            let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(bytes)));
            for (k, out) in out.iter_mut().enumerate() {
                let codes = unit.add(UNIT + (block * BLOCK + k) * PANEL + half * LANES);
                let values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.cast())));
                _mm256_storeu_ps(out[half * LANES..].as_mut_ptr(), _mm256_mul_ps(values, scale));
            }
        }
    }
}
