//! One query in AVX-512: tiles of the cache are decoded in registers.

use std::arch::x86_64::*;

use halfbyte_ops::CacheFormat;
use halfbyte_ops::tensor::{BLOCK, KEYS, PANEL};

use super::Task;
use crate::keys::{Side, Tiles};

/// # Safety
/// The machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn query(
    task: &Task<'_>,
    q: &[f32],
    t: usize,
    head: usize,
    p: &mut [f32],
    out: &mut [f32],
) {
    let sum = |tiles: &Tiles, side, tile: &[u8], first, x: &[f32], sum: &mut [f32; PANEL]| {
        // SAFETY: `Task::query` gives whole tiles and 32 values.
        unsafe { add(tiles, side, tile, first, x, sum) }
    };
    task.query(q, t, head, p, out, sum);
}

/// sum += the canonical sum of 32 inner positions of a tile, from `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add(tiles: &Tiles, side: Side, tile: &[u8], first: usize, x: &[f32], sum: &mut [f32; PANEL]) {
    let inner = if side == Side::Keys { tiles.width } else { KEYS };
    assert!(tile.len() >= tiles.format.bytes(inner * PANEL) && first + 32 <= inner && x.len() >= 32);
    let (mut even, mut odd) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    // SAFETY: sizes checked above; the layouts are those of `crate::keys`.
    unsafe {
        for pair in 0..16 {
            let (w0, w1) = match tiles.format {
                CacheFormat::Bf16 => {
                    let pairs = _mm512_loadu_si512(tile.as_ptr().add((first / 2 + pair) * 64).cast());
                    let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
                    (
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                        _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
                    )
                }
                CacheFormat::F32 => {
                    let at = tile.as_ptr().add((first + 2 * pair) * PANEL * 4);
                    (_mm512_loadu_ps(at.cast()), _mm512_loadu_ps(at.add(64).cast()))
                }
                CacheFormat::Int8 => {
                    let k = first + 2 * pair;
                    (int8(tile.as_ptr(), side, inner, k), int8(tile.as_ptr(), side, inner, k + 1))
                }
            };
            even = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[2 * pair]), even);
            odd = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[2 * pair + 1]), odd);
        }
        let total = _mm512_add_ps(_mm512_loadu_ps(sum.as_ptr()), _mm512_add_ps(even, odd));
        _mm512_storeu_ps(sum.as_mut_ptr(), total);
    }
}

/// Inner position k of an 8-bit tile.
///
/// # Safety
/// The tile is whole.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn int8(tile: *const u8, side: Side, inner: usize, k: usize) -> __m512 {
    // SAFETY: `inner` lines of 16 codes, then the scales.
    unsafe {
        let codes = _mm_loadu_si128(tile.add(k * PANEL).cast());
        let scales = tile.add(inner * PANEL);
        let exponents = match side {
            Side::Keys => _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.add(k / BLOCK * PANEL).cast())),
            Side::Values => _mm512_set1_epi32(i32::from(*scales.add(k))),
        };
        let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponents));
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale)
    }
}
