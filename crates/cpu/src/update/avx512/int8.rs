//! A block of a table of 8-bit codes in sixteen rows: `int8::update_block`, a row in each lane.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, int8};
use halfbyte_ops::tensor::UNIT;

use super::{floats, lane, words, words_mut};

/// Moves the block's weights; `rests` are its remainders in dwords.
///
/// # Safety
/// `weights` is a unit that nobody else touches.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn block<const BITS: u32>(
    weights: *mut u8,
    block: usize,
    rests: &mut [__m512i],
    (ratio, own, step): (&[__m512; 16], &[__m512i; 16], &adamw::Step),
    changed: &mut __m512i,
) -> Tally {
    let (set, zero) = (_mm512_set1_ps, _mm512_setzero_si512());
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 256));
    // SAFETY: by the caller's promise: sixteen scales.
    let bytes = unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast())) };
    let one = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(bytes));
    let unit = _mm512_mul_ps(one, set(1.0 / (1 << BITS) as f32));

    let (mut k, mut delta, mut largest) = ([zero; 16], [_mm512_setzero_ps(); 16], zero);
    let (size, decay, magnitude) = (set(-step.size), set(step.decay), _mm512_set1_epi32(0x7FFF_FFFF));
    let mut rest = zero;
    columns!(|J| {
        // SAFETY: a line of sixteen codes, by the caller's promise.
        let code = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(J * 16).cast())) };
        k[J] = code;
        if BITS == 4 {
            rest = if J.is_multiple_of(8) { rests[J / 8] } else { _mm512_srli_epi32::<4>(rest) };
            let signed = _mm512_srai_epi32::<28>(_mm512_slli_epi32::<28>(rest));
            k[J] = _mm512_add_epi32(_mm512_slli_epi32::<4>(code), signed);
        }
        let w = _mm512_mul_ps(_mm512_cvtepi32_ps(k[J]), unit);
        delta[J] = _mm512_sub_ps(_mm512_mul_ps(size, ratio[J]), _mm512_mul_ps(decay, w));
        let moved = _mm512_castps_si512(_mm512_add_ps(w, delta[J]));
        largest = _mm512_max_epu32(largest, _mm512_and_si512(moved, magnitude));
    });
    let kept = stays::<BITS>(bytes, one, largest);

    let (mut tally, mut packed, mut new_rests) = (Tally::default(), [zero; 2], [zero; 2]);
    for row in (0..16).filter(|row| kept >> row & 1 == 0) {
        let (ratio, luck) = (floats(ratio, row), lane(own, row));
        // SAFETY: a row of this block, by the caller's promise.
        tally.add(unsafe {
            self::one::<BITS>(row, (codes, scales), rests, (&ratio, step), &luck, &mut new_rests)
        });
    }
    // 2^(127 - e), in units, and 2^16 more.
    let per_unit = _mm512_sub_epi32(_mm512_set1_epi32(254 + BITS as i32 + 16), bytes);
    let per_unit = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(per_unit));
    columns!(|J| {
        let t = _mm512_cvtps_epi32(_mm512_mul_ps(delta[J], per_unit));
        let moves = _mm512_srai_epi32::<16>(_mm512_add_epi32(t, _mm512_srli_epi32::<16>(own[J])));
        let mut code = _mm512_add_epi32(k[J], moves);
        if BITS == 4 {
            let nearest = _mm512_srai_epi32::<4>(_mm512_add_epi32(code, _mm512_set1_epi32(8)));
            let rest = _mm512_sub_epi32(code, _mm512_slli_epi32::<4>(nearest));
            // packed | rest & 15, and the next nibble below it.
            let joined = _mm512_ternarylogic_epi32::<0xF8>(packed[J / 8], rest, _mm512_set1_epi32(15));
            packed[J / 8] = _mm512_ror_epi32::<4>(joined);
            code = nearest;
        }
        // SAFETY: as above.
        unsafe {
            let at = codes.add(J * 16);
            let old = _mm_loadu_si128(at.cast());
            let new = _mm_mask_mov_epi8(old, kept, _mm512_cvtepi32_epi8(code));
            let moved = _mm_cmpneq_epi8_mask(old, new);
            *changed = _mm512_mask_add_epi32(*changed, moved, *changed, _mm512_set1_epi32(1));
            _mm_storeu_si128(at.cast(), new);
        }
    });
    for (i, rests) in rests.iter_mut().enumerate() {
        *rests = _mm512_mask_mov_epi32(new_rests[i], kept, packed[i]);
    }
    tally
}

/// Lanes that surely keep their exponent: a common one, with the largest between its limits.
#[inline]
#[target_feature(enable = "avx512f")]
fn stays<const BITS: u32>(byte: __m512i, one: __m512, largest: __m512i) -> u16 {
    let common =
        _mm512_cmplt_epu32_mask(_mm512_sub_epi32(byte, _mm512_set1_epi32(32)), _mm512_set1_epi32(200));
    let amax = _mm512_castsi512_ps(largest);
    let times = |factor: f32| _mm512_mul_ps(_mm512_set1_ps(factor), one);
    common
        & _mm512_cmp_ps_mask::<_CMP_GE_OQ>(amax, times(48.0))
        & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(amax, times(int8::limit::<BITS>() as f32 / (1 << BITS) as f32))
}

/// A row whose block may change its exponent, or is not finite.
///
/// # Safety
/// Nobody else touches the row.
#[cold]
#[inline(never)]
unsafe fn one<const BITS: u32>(
    row: usize,
    (codes, scales): (*mut u8, *mut u8),
    rests: &[__m512i],
    (ratio, step): (&[f32; 16], &adamw::Step),
    luck: &[u32; 16],
    new_rests: &mut [__m512i; 2],
) -> Tally {
    let (mut signed, mut remainder) = ([0; 16], [0; 8]);
    for (j, signed) in signed.iter_mut().enumerate() {
        // SAFETY: by the caller's promise.
        *signed = unsafe { *codes.add(j * 16 + row) } as i8;
    }
    for (bytes, rests) in remainder.as_chunks_mut::<4>().0.iter_mut().zip(rests) {
        *bytes = words(rests)[row].to_le_bytes();
    }
    // SAFETY: by the caller's promise.
    let scale = unsafe { &mut *scales.add(row) };
    let rest = &mut remainder[..2 * BITS as usize];
    let delta = step.delta_of(ratio, &int8::decode_block::<BITS>(&signed, *scale, rest));
    let block = int8::Block { codes: &mut signed, scale, remainder: rest };
    let tally = int8::update_block::<BITS>(block, &delta, luck);
    for (j, signed) in signed.into_iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { *codes.add(j * 16 + row) = signed as u8 };
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
