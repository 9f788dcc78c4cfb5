//! Scores and dP of a block of queries become P and dS, in bf16 tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use halfbyte_ops::math;
use halfbyte_ops::tensor::PANEL;

use super::tiled::{Parts, TOGETHER};
use super::{BLOCK, Sample};
use crate::tiles::SIDE;
use crate::vector;

/// `attend::soften` of a block's queries, two at a time: P and dS in bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn soften(
    task: &Sample,
    block: usize,
    place: usize,
    seen: Range<usize>,
    parts: &mut Parts<'_>,
) {
    let along = parts.along;
    for row in (0..BLOCK).step_by(2) {
        // A query that is not there weighs nothing.
        let mut factors = [(0.0, 0.0); 2];
        for (i, factors) in factors.iter_mut().enumerate() {
            if block * BLOCK + row + i < task.tokens {
                // SAFETY: AVX-512 is there.
                *factors = unsafe { soften_row(task, block, row + i, seen.clone(), parts) };
            }
        }
        let scale = _mm512_set1_ps(task.scale());
        for key in seen.clone() {
            for side in 0..2 {
                let mut pairs = [_mm512_setzero_si512(); 2];
                for (i, (total, mean)) in factors.into_iter().enumerate() {
                    let (tile, line) = ((row + i) / SIDE, (row + i) % SIDE);
                    // SAFETY: lines of 16.
                    let (e, dp) = unsafe {
                        let e = _mm512_loadu_ps(parts.scores[key].0[tile][side][line].as_ptr());
                        (e, _mm512_loadu_ps(parts.dp[key].0[tile][side][line].as_ptr()))
                    };
                    let p = _mm512_mul_ps(e, _mm512_set1_ps(total));
                    let ds = _mm512_mul_ps(_mm512_mul_ps(p, _mm512_sub_ps(dp, _mm512_set1_ps(mean))), scale);
                    let (p, ds) = (vector::narrow(p), vector::narrow(ds));
                    let to = &mut parts.ds[tile * along + key].0[line][side * PANEL..][..PANEL];
                    // SAFETY: half a line.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), ds) };
                    for (pairs, x) in pairs.iter_mut().zip([p, ds]) {
                        let x = _mm512_cvtepu16_epi32(x);
                        *pairs = match i {
                            0 => x,
                            _ => _mm512_or_si512(*pairs, _mm512_slli_epi32::<16>(x)),
                        };
                    }
                }
                let at = key * TOGETHER + place;
                for (all, pairs) in [&mut *parts.p_pairs, &mut *parts.ds_pairs].into_iter().zip(pairs) {
                    // SAFETY: a line.
                    unsafe { _mm512_storeu_si512(all[at][side].0[row / 2].as_mut_ptr().cast(), pairs) };
                }
            }
        }
    }
}

/// A row's scores become exponentials, zero out of sight; gives 1 / their sum and sum P dP.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn soften_row(
    task: &Sample,
    block: usize,
    row: usize,
    seen: Range<usize>,
    parts: &mut Parts<'_>,
) -> (f32, f32) {
    let end = block * BLOCK + row + 1;
    let low = task.window.map_or(0, |window| end.saturating_sub(window));
    let (tile, line) = (row / SIDE, row % SIDE);
    let load = |line: &[f32; SIDE]| {
        // SAFETY: 16 values.
        unsafe { _mm512_loadu_ps(line.as_ptr()) }
    };
    // Where keys are in sight: whole lines, but at the ends.
    let visible = |first: usize| -> u16 {
        let below = |count: usize| (1u32 << count.min(SIDE)).wrapping_sub(1) as u16;
        below(end.saturating_sub(first)) & !below(low.saturating_sub(first))
    };
    let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut top = hidden;
    for key in seen.clone() {
        for side in 0..2 {
            let s = load(&parts.scores[key].0[tile][side][line]);
            // In this order a NaN is passed over.
            top = _mm512_mask_max_ps(top, visible(key * BLOCK + side * SIDE), s, top);
        }
    }
    let scale = task.scale();
    let top = _mm512_set1_ps(_mm512_reduce_max_ps(top) * scale);
    let scale = _mm512_set1_ps(scale);
    let mut sums = _mm512_setzero_ps();
    for key in seen.clone() {
        for side in 0..2 {
            let at = &mut parts.scores[key].0[tile][side][line];
            let s = _mm512_mask_mov_ps(hidden, visible(key * BLOCK + side * SIDE), load(at));
            let e = vector::exp_to_one(_mm512_sub_ps(_mm512_mul_ps(s, scale), top));
            sums = _mm512_add_ps(sums, e);
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(at.as_mut_ptr(), e) };
        }
    }
    let fold = |lanes: __m512| {
        let mut values = [0.0; SIDE];
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), lanes) };
        math::fold(values)
    };
    let total = 1.0 / fold(sums);
    let mut sums = _mm512_setzero_ps();
    for key in seen {
        for side in 0..2 {
            let p = _mm512_mul_ps(load(&parts.scores[key].0[tile][side][line]), _mm512_set1_ps(total));
            sums = _mm512_fmadd_ps(p, load(&parts.dp[key].0[tile][side][line]), sums);
        }
    }
    (total, fold(sums))
}
