//! A block of a table of 8-bit codes in sixteen rows, whole units as in `pairs`: `int8::update_block`.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, int8};
use halfbyte_ops::tensor::UNIT;

use super::luck;
use super::orders::{Orders, UPPER};
use super::pairs::{self, Eight, MORE, SIGNED, Span, of_nibbles, pack_nibbles, permuted, table};
use super::{Moves, floats, within, words, words_mut};

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
pub(super) unsafe fn block<const BITS: u32, const PLAIN: bool, const VBMI: bool>(
    weights: *mut u8,
    block: usize,
    rests: &mut [__m512i],
    moves: &Moves<'_>,
) -> Tally {
    let zero = _mm512_setzero_si512();
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 256));
    // SAFETY: by the caller's promise: sixteen scales, and sixteen lines of codes.
    let (bytes, old) = unsafe {
        let four = |i: usize| _mm512_loadu_si512(codes.add(i * 64).cast());
        (_mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast())), [[four(0), four(1)], [four(2), four(3)]])
    };
    let orders = moves.orders;
    let (mut span, mut packed, mut new) = (Span::new(), [zero; 2], [[zero; 2]; 2]);
    for half in 0..2 {
        let k = whole_units::<BITS, VBMI>(old[half], rests.get(half), orders);
        let whole = pairs::whole::<PLAIN>(half, &k, moves);
        let moved = four!(|P| _mm512_add_epi16(k[P], whole[P]));
        span.add(&moved, &whole);
        if BITS == 4 {
            let (low, high) = (orders.low_bytes(moved[0], moved[1]), orders.low_bytes(moved[2], moved[3]));
            let nibble = _mm512_set1_epi8(15);
            packed[half] = pack_nibbles([_mm512_and_si512(low, nibble), _mm512_and_si512(high, nibble)]);
        }
        let [a, b, c, d] = four!(|P| nearest::<BITS>(moved[P]));
        new[half] =
            [lines::<BITS, VBMI>(orders.low_bytes(a, b)), lines::<BITS, VBMI>(orders.low_bytes(c, d))];
    }
    let new = new.as_flattened();
    let (near, _) = span.moved();
    let kept = stays::<BITS>(bytes, span.farthest(0)) & near;

    let (mut tally, mut new_rests) = (Tally::default(), [zero; 2]);
    for row in (0..16).filter(|row| kept >> row & 1 == 0) {
        // SAFETY: a row of this block, by the caller's promise.
        tally.add(unsafe { one::<BITS>(row, (codes, scales), rests, moves, &mut new_rests) });
    }
    let four_columns = u64::from(kept) * 0x0001_0001_0001_0001;
    for (i, new) in new.iter().enumerate() {
        // SAFETY: four lines of codes, as above.
        unsafe {
            let at = codes.add(i * 64);
            let old = _mm512_loadu_si512(at.cast());
            let differs = _mm512_mask_cmpneq_epi8_mask(four_columns, old, *new);
            tally.changed += u64::from(differs.count_ones());
            _mm512_storeu_si512(at.cast(), _mm512_mask_mov_epi8(old, four_columns, *new));
        }
    }
    for (i, rests) in rests.iter_mut().enumerate() {
        *rests = _mm512_mask_mov_epi32(new_rests[i], kept, packed[i]);
    }
    tally
}

/// Whole units of eight columns, whose codes are two by four lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn whole_units<const BITS: u32, const VBMI: bool>(
    lines: [__m512i; 2],
    rests: Option<&__m512i>,
    orders: &Orders,
) -> Eight {
    const ROWS: [u8; 64] = turned(16);
    let [first, second] = lines.map(|lines| permuted::<VBMI>(table(&ROWS), lines));
    let zero = _mm512_setzero_si512();
    let [even, odd] = rests.map_or([zero; 2], |rests| of_nibbles::<VBMI>(*rests, SIGNED));
    let pairs = [
        orders.spread::<false>(even, UPPER, first),
        orders.spread::<false>(odd, UPPER, _mm512_srli_epi32::<8>(first)),
        orders.spread::<true>(even, UPPER, second),
        orders.spread::<true>(odd, UPPER, _mm512_srli_epi32::<8>(second)),
    ];
    pairs::units(1 << BITS, &pairs)
}

/// Where the bytes of lines of so many are that lie below each other.
const fn turned(line: usize) -> [u8; 64] {
    let (mut at, mut i, lines) = ([0; 64], 0, 64 / line);
    while i < 64 {
        at[i] = (i % lines * line + i / lines) as u8;
        i += 1;
    }
    at
}

/// The nearest code of so many units and MORE, in the lower byte, and that much more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nearest<const BITS: u32>(moved: __m512i) -> __m512i {
    match BITS {
        4 => _mm512_srli_epi16::<4>(_mm512_add_epi16(moved, _mm512_set1_epi16(8))),
        _ => moved,
    }
}

/// Four lines of codes again, from bytes of what [`nearest`] gave.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lines<const BITS: u32, const VBMI: bool>(codes: __m512i) -> __m512i {
    const LINES: [u8; 64] = turned(4);
    let more = _mm512_set1_epi8((MORE >> BITS) as i8);
    permuted::<VBMI>(table(&LINES), _mm512_sub_epi8(codes, more))
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
    let tally = int8::update_block::<BITS>(block, &moves.step.push(&ratio, &moves.rows.of(row)), &own);
    for (j, signed) in signed.into_iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { *codes.add(j * 16 + row) = signed as u8 };
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
