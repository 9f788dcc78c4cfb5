//! A block of NVFP4 weights in sixteen rows, whole units as in `pairs`: `weight::update_block`.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, weight};
use halfbyte_ops::tensor::UNIT;

use super::luck;
use super::orders::{LOWER, Orders, UPPER};
use super::pairs::{self, Eight, MORE, SIGNED, Span, of_nibbles, pack_nibbles, permuted, table};
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
pub(super) unsafe fn block<const BITS: u32, const PLAIN: bool, const VBMI: bool>(
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
    for half in 0..2 {
        let k = whole_units::<BITS, VBMI>(old[half], &rests[half * rests.len() / 2..], moves.orders);
        let whole = pairs::whole::<PLAIN>(half, &k, moves);
        let moved = four!(|P| _mm512_add_epi16(k[P], whole[P]));
        span.add(&moved, &whole);
        let (low, low_rest) = split::<BITS, VBMI>(moved[0], moved[1], moves.orders);
        let (high, high_rest) = split::<BITS, VBMI>(moved[2], moved[3], moves.orders);
        new[half] = pack_nibbles([low, high]);
        match BITS {
            8 => [new_rests[2 * half], new_rests[2 * half + 1]] = [low_rest, high_rest],
            _ => {
                let nibble = _mm512_set1_epi8(15);
                let rests = [low_rest, high_rest].map(|rest| _mm512_and_si512(rest, nibble));
                new_rests[half] = pack_nibbles(rests);
            }
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
fn whole_units<const BITS: u32, const VBMI: bool>(
    codes: __m512i,
    rests: &[__m512i],
    orders: &Orders,
) -> Eight {
    let halves = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    let [even, odd] = of_nibbles::<VBMI>(codes, halves);
    let rests = match BITS {
        8 => {
            let up = [rests[0], rests[1]].map(|rests| _mm512_slli_epi32::<8>(rests));
            [up[0], rests[0], up[1], rests[1]]
        }
        _ => {
            let [even, odd] = of_nibbles::<VBMI>(rests[0], SIGNED);
            [
                orders.spread::<false>(even, UPPER, even),
                orders.spread::<false>(odd, UPPER, odd),
                orders.spread::<true>(even, UPPER, even),
                orders.spread::<true>(odd, UPPER, odd),
            ]
        }
    };
    let pairs = [
        orders.spread::<false>(even, LOWER, rests[0]),
        orders.spread::<false>(odd, LOWER, rests[1]),
        orders.spread::<true>(even, LOWER, rests[2]),
        orders.spread::<true>(odd, LOWER, rests[3]),
    ];
    // A code is counted in halves of one.
    pairs::units(1 << (BITS - 2), &pairs)
}

/// Nearest codes of four columns and what is left of their units, as `weight` splits; bytes, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split<const BITS: u32, const VBMI: bool>(
    even: __m512i,
    odd: __m512i,
    orders: &Orders,
) -> (__m512i, __m512i) {
    /// For every number of whole quarters, the grid of the midpoints: nearest codes, and the low bytes of their units and
    /// [`MORE`].
    const fn entries(quarter: i32, half: i32) -> [[u8; 64]; 2] {
        let (mut codes, mut below, mut i) = ([0; 64], [0; 64], 0);
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
            codes[i as usize] = (code | (sign as i32) << 3) as u8;
            below[i as usize] = (MORE as i32 + if sign { -units } else { units }) as u8;
            i += 1;
        }
        [codes, below]
    }
    const BYTE: [[u8; 64]; 2] = entries(32, 64);
    const NIBBLE: [[u8; 64]; 2] = entries(2, 4);
    let [codes, below] = if BITS == 8 { &BYTE } else { &NIBBLE };
    // Quarters of columns where their bytes shall be; six bits count.
    let quarters = match BITS {
        8 => [_mm512_srli_epi16::<5>(even), _mm512_slli_epi16::<3>(odd)],
        _ => [_mm512_srli_epi16::<1>(even), _mm512_slli_epi16::<7>(odd)],
    };
    let at = select(_mm512_set1_epi16(255), quarters[0], quarters[1]);
    let below = permuted::<VBMI>(at, table(below));
    (permuted::<VBMI>(at, table(codes)), _mm512_sub_epi8(orders.low_bytes(even, odd), below))
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
    let tally =
        weight::update_block::<BITS>(block, global, &moves.step.push(&ratio, &moves.rows.of(row)), &own);
    for (new, bytes) in new.iter_mut().zip(codes.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    for (new, bytes) in new_rests.iter_mut().zip(remainder.as_chunks::<4>().0) {
        words_mut(new)[row] = u32::from_le_bytes(*bytes);
    }
    tally
}
