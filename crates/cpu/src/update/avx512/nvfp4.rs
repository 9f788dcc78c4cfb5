//! A block of NVFP4 weights in sixteen rows, whole units as in `pairs`: `weight::update_block`.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, weight};
use halfbyte_ops::tensor::UNIT;

use super::luck;
use super::pairs::{
    self, EVEN, Eight, MORE, Span, bytes_of, nibbles, other_byte, pack_nibbles, quarter, rows, signed_nibbles,
};
use super::{Moves, floats, select, within, words, words_mut};

/// The size of a step for the block's rows, in their units.
///
/// # Safety
/// `weights` is a unit.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn times<const BITS: u32>(
    weights: *const u8,
    block: usize,
    global: f32,
    step: &adamw::Step,
) -> __m512 {
    let (one, set) = ((1 << (BITS - 1)) as f32, _mm512_set1_ps);
    // SAFETY: by the caller's promise: sixteen scales.
    let bytes = unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(weights.add(block * 16).cast())) };
    let unit = _mm512_mul_ps(_mm512_mul_ps(decode_scale(bytes), set(1.0 / one)), set(global));
    _mm512_div_ps(set(-step.size), unit)
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
    global: f32,
    moves: &Moves<'_>,
    changed: &mut __m512i,
) -> Tally {
    let zero = _mm512_setzero_si512();
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 128));
    // SAFETY: by the caller's promise: sixteen scales, and two lines of codes.
    let (bytes, old) = unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast()));
        (bytes, [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())])
    };
    let (mut span, mut new, mut new_rests) = (Span::new(), [zero; 2], [zero; 4]);
    let [low, high] = split_table::<BITS>();
    for half in 0..2 {
        let k = whole_units::<BITS>(old[half], &rests[half * rests.len() / 2..]);
        let whole = pairs::whole::<PLAIN>(half, &k, moves);
        let moved = four!(|P| _mm512_add_epi16(k[P], whole[P]));
        span.add(&moved, &whole);
        let found = four!(|P| _mm512_permutex2var_epi16(low, quarters::<BITS>(moved[P]), high));
        let rest = four!(|P| _mm512_sub_epi16(moved[P], found[P]));
        new[half] = pack_codes(&found);
        match BITS {
            8 => [new_rests[2 * half], new_rests[2 * half + 1]] = pack_bytes(&rest),
            _ => new_rests[half] = pack_nibbles(&rest),
        }
    }
    let (near, moved) = span.moved();
    let kept = stays::<BITS>(bytes, span.farthest(1)) & near;
    // Codes of a block in which nothing moves need not be the nearest. Bit by bit, since a masked store would hold up whoever
    // reads it back.
    let fresh = _mm512_movm_epi32(kept & moved);
    for (new, old) in new.iter_mut().zip(&old) {
        *new = select(fresh, *new, *old);
    }
    for (new, old) in new_rests.iter_mut().zip(&*rests) {
        *new = select(fresh, *new, *old);
    }
    for (new, old) in new.iter().zip(&old) {
        *changed = _mm512_add_epi32(*changed, differing(*old, *new));
    }
    let mut tally = Tally::default();
    if kept != 0xFFFF {
        for row in (0..16).filter(|row| kept >> row & 1 == 0) {
            // SAFETY: a row's scale, by the caller's promise.
            let scale = (unsafe { &mut *scales.add(row) }, global);
            let (old, new) = ((&old, &*rests), (&mut new, &mut new_rests));
            tally.add(self::one::<BITS>(row, old, scale, moves, new));
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

/// Lanes that keep their scale: a common one, and the farthest is near six or four of it.
#[inline]
#[target_feature(enable = "avx512f")]
fn stays<const BITS: u32>(byte: __m512i, farthest: __m512i) -> u16 {
    let half = 1 << (BITS - 2);
    let near = |code: i32| within(farthest, (2 * code - 1) * half, (2 * code + 1) * half - 1);
    within(byte, 0x08, 0x7E) & (near(6) | near(4))
}

/// Whole units of eight columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn whole_units<const BITS: u32>(codes: __m512i, rests: &[__m512i]) -> Eight {
    let halves = quarter([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
    let code = nibbles(codes).map(|code| _mm512_shuffle_epi8(halves, code));
    let rest = match BITS {
        8 => {
            let first = _mm512_shuffle_epi8(rests[0], bytes_of([0, 2, 1, 3]));
            let second = _mm512_shuffle_epi8(rests[1], bytes_of([1, 3, 0, 2]));
            [first, second, second, first]
        }
        _ => signed_nibbles(rests[0]),
    };
    // A code is counted in halves of one.
    pairs::units(1 << (BITS - 2), code, rest)
}

/// Whole quarters of one, the grid of the midpoints, for [`split_table`]; the low six bits count.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn quarters<const BITS: u32>(k: __m512i) -> __m512i {
    match BITS {
        8 => _mm512_srli_epi16::<5>(k),
        _ => _mm512_srli_epi16::<1>(k),
    }
}

/// Nearest codes, as `weight` splits, in the upper four bits; below, their units and [`MORE`].
#[inline]
#[target_feature(enable = "avx512f")]
fn split_table<const BITS: u32>() -> [__m512i; 2] {
    const fn entries(quarter: i32, half: i32) -> [i16; 64] {
        let (mut table, mut i) = ([0; 64], 0);
        while i < 64 {
            // Negative numbers are those of the upper half, but for what MORE has moved them.
            let whole = (((i - MORE as i32 / quarter) & 63) ^ 32) - 32;
            let a = whole ^ (whole >> 31);
            let code = (a >= 1) as i32
                + (a >= 3) as i32
                + (a >= 5) as i32
                + (a >= 7) as i32
                + (a >= 10) as i32
                + (a >= 14) as i32
                + (a >= 20) as i32;
            let (units, sign) = ([0, 1, 2, 3, 4, 6, 8, 12][code as usize] * half, whole < 0 && code > 0);
            let below = MORE as i32 + if sign { -units } else { units };
            table[i as usize] = ((code | (sign as i32) << 3) << 12 | below & 0xFFF) as i16;
            i += 1;
        }
        table
    }
    const BYTE: [i16; 64] = entries(32, 64);
    const NIBBLE: [i16; 64] = entries(2, 4);
    let table = if BITS == 8 { &BYTE } else { &NIBBLE };
    // SAFETY: sixty-four words.
    unsafe { [_mm512_loadu_si512(table.as_ptr().cast()), _mm512_loadu_si512(table[32..].as_ptr().cast())] }
}

/// Eight columns' codes, in the upper four bits of their words, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_codes(found: &[__m512i; 4]) -> __m512i {
    let both = |even, odd| select(_mm512_set1_epi16(0xF000u16 as i16), odd, _mm512_srli_epi16::<4>(even));
    let (low, high) = (both(found[0], found[3]), both(found[1], found[2]));
    // Upper bytes of the one below those of the other.
    let joined = _mm512_mask_shuffle_epi8(high, EVEN, low, other_byte());
    rows(joined, [0, 8, 1, 9])
}

/// The low bytes of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_bytes(rest: &[__m512i; 4]) -> [__m512i; 2] {
    let both = |even, odd| _mm512_mask_shuffle_epi8(even, !EVEN, odd, other_byte());
    [both(rest[0], rest[3]), both(rest[1], rest[2])].map(|both| rows(both, [0, 1, 8, 9]))
}

/// Ones in nibbles that are not what they were.
#[inline]
#[target_feature(enable = "avx512f")]
fn differing(old: __m512i, new: __m512i) -> __m512i {
    let bits = _mm512_xor_si512(old, new);
    let pairs = _mm512_or_si512(bits, _mm512_srli_epi32::<1>(bits));
    // The lowest bit of either.
    _mm512_ternarylogic_epi32::<0xE0>(_mm512_set1_epi32(0x1111_1111), pairs, _mm512_srli_epi32::<2>(pairs))
}

/// A row whose block may change its scale, or is not finite.
#[cold]
#[inline(never)]
fn one<const BITS: u32>(
    row: usize,
    (old, rests): (&[__m512i; 2], &[__m512i]),
    (scale, global): (&mut u8, f32),
    moves: &Moves<'_>,
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
    let (ratio, [own, _]) = (floats(moves.ratio, row), luck::of_row(moves.luck, row));
    let block = weight::Block { codes: &mut codes, scale, remainder: rest };
    let tally = weight::update_block::<BITS>(block, global, &moves.step.push(&ratio), &own);
    for (new, bytes) in new.iter_mut().zip(codes.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
