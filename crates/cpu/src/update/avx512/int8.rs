//! A block of a table of 8-bit codes in sixteen rows: `int8::update_block`, a row in each lane.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, int8};
use halfbyte_ops::tensor::UNIT;

use super::luck;
use super::{MORE, Moves, floats, select, within, words, words_mut};

/// The size of a step for the block's rows, in their units.
///
/// # Safety
/// `weights` is a unit.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn times<const BITS: u32>(weights: *const u8, block: usize, step: &adamw::Step) -> __m512 {
    // SAFETY: by the caller's promise: sixteen scales.
    let bytes = unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(weights.add(block * 16).cast())) };
    // 2^(127 - e), in units.
    let per_unit = _mm512_sub_epi32(_mm512_set1_epi32(254 + BITS as i32), bytes);
    _mm512_mul_ps(_mm512_set1_ps(-step.size), _mm512_castsi512_ps(_mm512_slli_epi32::<23>(per_unit)))
}

/// Moves the block's weights; `rests` are its remainders in dwords.
///
/// # Safety
/// `weights` is a unit that nobody else touches.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn block<const BITS: u32, const PLAIN: bool>(
    weights: *mut u8,
    block: usize,
    rests: &mut [__m512i],
    moves: &Moves<'_>,
) -> Tally {
    let zero = _mm512_setzero_si512();
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 256));
    // SAFETY: by the caller's promise: sixteen scales.
    let bytes = unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast())) };
    let (mut farthest, mut bits, mut rest, mut packed) = (zero, zero, zero, [zero; 2]);
    let mut new = [_mm_setzero_si128(); 16];
    columns!(|J| {
        // SAFETY: a line of sixteen codes, by the caller's promise.
        let code = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(J * 16).cast())) };
        let mut k = _mm512_slli_epi32::<BITS>(code);
        if BITS == 4 {
            rest = if J.is_multiple_of(8) { rests[J / 8] } else { _mm512_srli_epi32::<4>(rest) };
            k = _mm512_add_epi32(k, _mm512_srai_epi32::<28>(_mm512_slli_epi32::<28>(rest)));
        }
        let whole = moves.whole::<{ J % 4 }, PLAIN>(moves.luck[J / 4], moves.ratio[J / 8][J % 8], || k);
        // Bits that are not those of MORE.
        bits = _mm512_ternarylogic_epi32::<0xF6>(bits, whole, _mm512_set1_epi32(MORE));
        let moved = _mm512_add_epi32(k, _mm512_sub_epi32(whole, _mm512_set1_epi32(MORE)));
        farthest = _mm512_max_epu32(farthest, _mm512_abs_epi32(moved));
        let code = match BITS {
            4 => {
                // Units below the code; what went in first comes round to where it was.
                packed[J / 8] = _mm512_ror_epi32::<4>(select(_mm512_set1_epi32(15), moved, packed[J / 8]));
                _mm512_srai_epi32::<4>(_mm512_add_epi32(moved, _mm512_set1_epi32(8)))
            }
            _ => moved,
        };
        new[J] = _mm512_cvtepi32_epi8(code);
    });
    let near = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(!127));
    let kept = stays::<BITS>(bytes, farthest) & near;

    let (mut tally, mut new_rests) = (Tally::default(), [zero; 2]);
    for row in (0..16).filter(|row| kept >> row & 1 == 0) {
        // SAFETY: a row of this block, by the caller's promise.
        tally.add(unsafe { one::<BITS>(row, (codes, scales), rests, moves, &mut new_rests) });
    }
    let four_columns = u64::from(kept) * 0x0001_0001_0001_0001;
    for (i, new) in new.as_chunks::<4>().0.iter().enumerate() {
        // SAFETY: four lines of codes, as above, and as many in `new`.
        unsafe {
            let (at, new) = (codes.add(i * 64), _mm512_loadu_si512(new.as_ptr().cast()));
            let old = _mm512_loadu_si512(at.cast());
            let differs = _mm512_mask_cmpneq_epi8_mask(four_columns, old, new);
            tally.changed += u64::from(differs.count_ones());
            _mm512_storeu_si512(at.cast(), _mm512_mask_mov_epi8(old, four_columns, new));
        }
    }
    for (i, rests) in rests.iter_mut().enumerate() {
        *rests = _mm512_mask_mov_epi32(new_rests[i], kept, packed[i]);
    }
    tally
}

/// Lanes that keep their exponent: a common one, with the farthest between its limits.
#[inline]
#[target_feature(enable = "avx512f")]
fn stays<const BITS: u32>(byte: __m512i, farthest: __m512i) -> u16 {
    within(byte, 32, 231) & within(farthest, int8::least::<BITS>(), int8::limit::<BITS>())
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
    moves: &Moves<'_>,
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
    let (ratio, [own, _]) = (floats(moves.ratio, row), luck::of_row(moves.luck, row));
    let block = int8::Block { codes: &mut signed, scale, remainder: rest };
    let tally = int8::update_block::<BITS>(block, &moves.step.push(&ratio), &own);
    for (j, signed) in signed.into_iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { *codes.add(j * 16 + row) = signed as u8 };
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
