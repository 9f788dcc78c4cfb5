//! A block of NVFP4 weights in sixteen rows: `weight::update_block`, a row in each lane.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, weight};
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
    global: f32,
    (ratio, own, step): (&[__m512; 16], &[__m512i; 16], &adamw::Step),
    changed: &mut __m512i,
) -> Tally {
    let units_per_one = 1 << (BITS - 1);
    let (set, zero) = (_mm512_set1_ps, _mm512_setzero_si512());
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 128));
    // SAFETY: by the caller's promise: sixteen scales, and two lines of codes.
    let (bytes, old) = unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast()));
        (bytes, [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())])
    };
    let scale = decode_scale(bytes);
    let unit = _mm512_mul_ps(scale, set(1.0 / units_per_one as f32));

    let (mut k, mut delta, mut largest) = ([zero; 16], [_mm512_setzero_ps(); 16], zero);
    let (mut old_codes, mut old_rests) = ([zero; 16], [zero; 16]);
    let table = units_of_codes(units_per_one);
    let (size, decay, magnitude) = (set(-step.size), set(step.decay), _mm512_set1_epi32(0x7FFF_FFFF));
    let per_dword = 32 / BITS as usize;
    let (mut code, mut rest) = (zero, zero);
    columns!(|J| {
        code = if J.is_multiple_of(8) { old[J / 8] } else { _mm512_srli_epi32::<4>(code) };
        rest = match (J % per_dword, BITS) {
            (0, _) => rests[J / per_dword],
            (_, 8) => _mm512_srli_epi32::<8>(rest),
            _ => _mm512_srli_epi32::<4>(rest),
        };
        (old_codes[J], old_rests[J]) = (code, rest);
        let along = match BITS {
            8 => _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(rest)),
            _ => _mm512_srai_epi32::<28>(_mm512_slli_epi32::<28>(rest)),
        };
        // The table knows the code's sign; the remainder counts along it.
        let base = _mm512_permutexvar_epi32(code, table);
        let negative = _mm512_test_epi32_mask(code, _mm512_set1_epi32(8));
        k[J] = _mm512_mask_sub_epi32(_mm512_add_epi32(base, along), negative, base, along);
        let w = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(k[J]), unit), set(global));
        delta[J] = _mm512_sub_ps(_mm512_mul_ps(size, ratio[J]), _mm512_mul_ps(decay, w));
        let moved = _mm512_castps_si512(_mm512_add_ps(w, delta[J]));
        largest = _mm512_max_epu32(largest, _mm512_and_si512(moved, magnitude));
    });
    let kept = stays(bytes, scale, largest, global);

    let per_tensor = set(1.0 / global);
    // 2^16 more: the integer part of the fixed-point number is a whole unit.
    let per_unit = _mm512_mul_ps(_mm512_div_ps(set(units_per_one as f32), scale), set(65536.0));
    let (mut new, mut new_rests) = ([zero; 2], [zero; 4]);
    columns!(|J| {
        let t = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_mul_ps(delta[J], per_tensor), per_unit));
        let moves = _mm512_srai_epi32::<16>(_mm512_add_epi32(t, _mm512_srli_epi32::<16>(own[J])));
        let (code, rest) = split::<BITS>(_mm512_add_epi32(k[J], moves));
        let unmoved = _mm512_testn_epi32_mask(moves, moves);
        let code = _mm512_mask_mov_epi32(code, unmoved, old_codes[J]);
        let rest = _mm512_mask_mov_epi32(rest, unmoved, old_rests[J]);
        // What is there | code & 15; what went in first comes round to the low end.
        let joined = _mm512_ternarylogic_epi32::<0xF8>(new[J / 8], code, _mm512_set1_epi32(15));
        new[J / 8] = _mm512_ror_epi32::<4>(joined);
        let (to, mask) = (&mut new_rests[J / per_dword], _mm512_set1_epi32((1 << BITS) - 1));
        let joined = _mm512_ternarylogic_epi32::<0xF8>(*to, rest, mask);
        *to = match BITS {
            8 => _mm512_ror_epi32::<8>(joined),
            _ => _mm512_ror_epi32::<4>(joined),
        };
    });
    *changed = _mm512_add_epi32(*changed, differing(kept, &old, &new));
    let mut tally = Tally::default();
    if kept != 0xFFFF {
        for row in (0..16).filter(|row| kept >> row & 1 == 0) {
            let (ratio, luck) = (floats(ratio, row), lane(own, row));
            // SAFETY: a row's scale, by the caller's promise.
            let scale = (unsafe { &mut *scales.add(row) }, global);
            let (old, new) = ((&old, &*rests), (&mut new, &mut new_rests));
            tally.add(one::<BITS>(row, old, scale, (&ratio, step), &luck, new));
        }
    }
    rests.copy_from_slice(&new_rests[..rests.len()]);
    // SAFETY: as above.
    unsafe {
        _mm512_storeu_si512(codes.cast(), new[0]);
        _mm512_storeu_si512(codes.add(64).cast(), new[1]);
    }
    tally
}

/// E4M3 of 0x08 to 0x7E; of the other bytes [`stays`] says no.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode_scale(byte: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<20>(byte), _mm512_set1_epi32(120 << 23)))
}

/// Lanes that surely keep their scale: a common one, with the largest near six or four of it.
#[inline]
#[target_feature(enable = "avx512f")]
fn stays(byte: __m512i, scale: __m512, largest: __m512i, global: f32) -> u16 {
    let common =
        _mm512_cmplt_epu32_mask(_mm512_sub_epi32(byte, _mm512_set1_epi32(0x08)), _mm512_set1_epi32(0x77));
    let finite = _mm512_cmplt_epu32_mask(largest, _mm512_set1_epi32(0x7F80_0000));
    let (amax, s) = (_mm512_castsi512_ps(largest), _mm512_mul_ps(scale, _mm512_set1_ps(global)));
    let times = |factor: f32| _mm512_mul_ps(_mm512_set1_ps(factor), s);
    let near = |low: f32, high: f32| {
        _mm512_cmp_ps_mask::<_CMP_GE_OQ>(amax, times(low))
            & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(amax, times(high))
    };
    common & finite & (near(5.5, 6.5) | near(3.5, 4.5))
}

/// Units of the sixteen codes, with their signs.
#[inline]
#[target_feature(enable = "avx512f")]
fn units_of_codes(one: i32) -> __m512i {
    let halves = _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    _mm512_mullo_epi32(halves, _mm512_set1_epi32(one / 2))
}

/// Nearest code and what remains along its sign, as `weight` splits; other bits may be set above the code's four.
///
/// A quarter of one is the grid of the midpoints, so the number of whole quarters finds the code in
/// a table. Where the lower neighbour takes the tie, at 1, 5 and 10 quarters, one unit less is looked up.
#[inline]
#[target_feature(enable = "avx512f")]
fn split<const BITS: u32>(k: __m512i) -> (__m512i, __m512i) {
    let zero = _mm512_setzero_si512();
    let ties = _mm512_setr_epi32(0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0);
    // Halves times eight, and the code.
    let low = _mm512_setr_epi32(0, 17, 17, 34, 34, 51, 51, 68, 68, 68, 101, 101, 101, 101, 134, 134);
    let high =
        _mm512_setr_epi32(134, 134, 134, 134, 199, 199, 199, 199, 199, 199, 199, 199, 199, 199, 199, 199);
    let quarters = |a: __m512i| match BITS {
        8 => _mm512_srli_epi32::<5>(a),
        _ => _mm512_srli_epi32::<1>(a),
    };
    let a = _mm512_abs_epi32(k);
    let below = _mm512_sub_epi32(a, _mm512_permutex2var_epi32(ties, quarters(a), zero));
    let found = _mm512_permutex2var_epi32(low, quarters(below), high);
    let some = _mm512_test_epi32_mask(found, found);
    let signed = _mm512_ternarylogic_epi32::<0xF8>(found, _mm512_srli_epi32::<28>(k), _mm512_set1_epi32(8));
    let code = _mm512_mask_mov_epi32(found, some, signed);
    // halves * 16 + code, in units of one / 2 = 64 or 4.
    let units = match BITS {
        8 => _mm512_slli_epi32::<2>(_mm512_and_si512(found, _mm512_set1_epi32(0xF0))),
        _ => _mm512_srli_epi32::<2>(_mm512_and_si512(found, _mm512_set1_epi32(0xF0))),
    };
    (code, _mm512_mask_sub_epi32(k, some, a, units))
}

/// Nibbles of the kept lanes that are not what they were, counted in the dwords.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn differing(kept: u16, old: &[__m512i; 2], new: &[__m512i; 2]) -> __m512i {
    let flags = |i: usize| {
        let bits = _mm512_xor_si512(old[i], new[i]);
        let pairs = _mm512_or_si512(bits, _mm512_srli_epi32::<1>(bits));
        let any = _mm512_or_si512(pairs, _mm512_srli_epi32::<2>(pairs));
        _mm512_maskz_and_epi32(kept, any, _mm512_set1_epi32(0x1111_1111))
    };
    let (both, nibble) = (_mm512_add_epi32(flags(0), flags(1)), _mm512_set1_epi32(0x0F0F_0F0F));
    let high = _mm512_and_si512(_mm512_srli_epi32::<4>(both), nibble);
    let bytes = _mm512_add_epi32(_mm512_and_si512(both, nibble), high);
    _mm512_sad_epu8(bytes, _mm512_setzero_si512())
}

/// A row whose block may change its scale, or is not finite.
#[cold]
#[inline(never)]
fn one<const BITS: u32>(
    row: usize,
    (old, rests): (&[__m512i; 2], &[__m512i]),
    (scale, global): (&mut u8, f32),
    (ratio, step): (&[f32; 16], &adamw::Step),
    luck: &[u32; 16],
    (new, new_rests): (&mut [__m512i; 2], &mut [__m512i; 4]),
) -> Tally {
    let (mut codes, mut remainder) = ([0; 8], [0; 16]);
    for (bytes, old) in codes.as_chunks_mut::<4>().0.iter_mut().zip(old) {
        *bytes = words(old)[row].to_le_bytes();
    }
    for (bytes, rests) in remainder.as_chunks_mut::<4>().0.iter_mut().zip(rests) {
        *bytes = words(rests)[row].to_le_bytes();
    }
    let rest = &mut remainder[..2 * BITS as usize];
    let delta = step.delta_of(ratio, &weight::decode_block::<BITS>(&codes, *scale, rest, global));
    let block = weight::Block { codes: &mut codes, scale, remainder: rest };
    let tally = weight::update_block::<BITS>(block, global, &delta, luck);
    for (new, bytes) in new.iter_mut().zip(codes.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
