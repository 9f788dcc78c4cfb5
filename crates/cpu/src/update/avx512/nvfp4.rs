//! A block of NVFP4 weights in sixteen rows: `weight::update_block`, a row in each lane.
//!
//! Whole units have room in 16 bits, so two columns share a register. Each quarter of it holds four rows of the one and
//! then the same rows of the other, as instructions that pack dwords leave them. Of eight columns the even ones share
//! their low nibbles' bytes and the odd ones the high, hence these four:
//!
//! ```text
//! columns 0 2 | 4 6 | 5 7 | 1 3
//! ```

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, weight};
use halfbyte_ops::tensor::UNIT;

use super::luck;
use super::{Moves, floats, select, within, words, words_mut};

/// What [`Moves::whole`] adds.
const MORE: i16 = super::MORE as i16;

/// The columns that share a register.
const PAIRS: [[usize; 2]; 4] = [[0, 2], [4, 6], [5, 7], [1, 3]];

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
        let whole = four!(|P| {
            const A: usize = PAIRS[P][0];
            const B: usize = PAIRS[P][1];
            let (ratio, word) = (&moves.ratio[half], |column: usize| moves.luck[2 * half + column / 4]);
            // Sign-extended, for the decay.
            let low = || _mm512_srai_epi32::<16>(_mm512_unpacklo_epi16(k[P], k[P]));
            let high = || _mm512_srai_epi32::<16>(_mm512_unpackhi_epi16(k[P], k[P]));
            _mm512_packus_epi32(
                moves.whole::<{ A % 4 }, PLAIN>(word(A), ratio[A], low),
                moves.whole::<{ B % 4 }, PLAIN>(word(B), ratio[B], high),
            )
        });
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
    let kept = span.stays::<BITS>(bytes) & near;
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

/// E4M3 of 0x08 to 0x7E; of the other bytes [`Span::stays`] says no.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode_scale(byte: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<20>(byte), _mm512_set1_epi32(120 << 23)))
}

/// Between which whole units the weights have come to lie, and by which bits they moved; two of a row's words each.
struct Span {
    most: __m512i,
    least: __m512i,
    moved: __m512i,
}

impl Span {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Span {
        let more = _mm512_set1_epi16(MORE);
        Span { most: more, least: more, moved: _mm512_setzero_si512() }
    }

    /// With eight columns; both hold [`MORE`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn add(&mut self, moved: &[__m512i; 4], whole: &[__m512i; 4]) {
        let (larger, smaller) = (_mm512_max_epi16, _mm512_min_epi16);
        let [a, b, c, d] = *moved;
        self.most = larger(self.most, larger(larger(a, b), larger(c, d)));
        self.least = smaller(self.least, smaller(smaller(a, b), smaller(c, d)));
        for whole in whole {
            // Bits that are not those of MORE.
            self.moved = _mm512_ternarylogic_epi32::<0xF6>(self.moved, *whole, _mm512_set1_epi16(MORE));
        }
    }

    /// Lanes that keep their scale: a common one, and the farthest is near six or four of it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn stays<const BITS: u32>(&self, byte: __m512i) -> u16 {
        let above = _mm512_sub_epi16(self.most, _mm512_set1_epi16(MORE));
        let below = _mm512_sub_epi16(_mm512_set1_epi16(MORE - 1), self.least);
        let both = _mm512_max_epi16(above, below);
        let larger = _mm512_max_epi16(both, _mm512_shuffle_epi32::<0b01_00_11_10>(both));
        let farthest = _mm512_unpacklo_epi16(larger, _mm512_setzero_si512());
        let half = 1 << (BITS - 2);
        let near = |code: i32| within(farthest, (2 * code - 1) * half, (2 * code + 1) * half - 1);
        within(byte, 0x08, 0x7E) & (near(6) | near(4))
    }

    /// Lanes in which all moves are near, and those in which a weight moves.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn moved(&self) -> (u16, u16) {
        let low = _mm512_unpacklo_epi16(self.moved, self.moved);
        let both = _mm512_or_si512(low, _mm512_unpackhi_epi16(self.moved, self.moved));
        (_mm512_testn_epi32_mask(both, _mm512_set1_epi32(0xFF80)), _mm512_test_epi32_mask(both, both))
    }
}

/// Whole units of eight columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn whole_units<const BITS: u32>(codes: __m512i, rests: &[__m512i]) -> [__m512i; 4] {
    let halves = quarter([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
    let code = nibbles(codes).map(|code| _mm512_shuffle_epi8(halves, code));
    let [a, b, c, d] = match BITS {
        8 => {
            let first = _mm512_shuffle_epi8(rests[0], bytes_of([0, 2, 1, 3]));
            let second = _mm512_shuffle_epi8(rests[1], bytes_of([1, 3, 0, 2]));
            [first, second, second, first]
        }
        _ => {
            let signed = quarter([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
            let [even, odd] = nibbles(rests[0]).map(|rest| _mm512_shuffle_epi8(signed, rest));
            [even, even, odd, odd]
        }
    };
    // Units of half a one, and one.
    let weights = _mm512_set1_epi16(1 << 8 | 1 << (BITS - 2));
    [
        _mm512_unpacklo_epi8(code[0], a),
        _mm512_unpackhi_epi8(code[0], b),
        _mm512_unpacklo_epi8(code[1], c),
        _mm512_unpackhi_epi8(code[1], d),
    ]
    .map(|pair| _mm512_maddubs_epi16(weights, pair))
}

/// The low nibbles of eight columns, of the even ones in the order 0 2 4 6, of the odd ones in the order 5 7 1 3.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(columns: __m512i) -> [__m512i; 2] {
    let low = _mm512_set1_epi8(15);
    let even = _mm512_shuffle_epi8(columns, bytes_of([0, 1, 2, 3]));
    let odd = _mm512_srli_epi16::<4>(_mm512_shuffle_epi8(columns, bytes_of([2, 3, 0, 1])));
    [_mm512_and_si512(even, low), _mm512_and_si512(odd, low)]
}

/// For a shuffle that puts bytes of four rows' dwords side by side: of all rows the first of these, then the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn bytes_of(order: [i8; 4]) -> __m512i {
    quarter(std::array::from_fn(|i| order[i / 4] + 4 * (i % 4) as i8))
}

/// Sixteen bytes in each quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(bytes: [i8; 16]) -> __m512i {
    // SAFETY: as many bytes, of any bits.
    _mm512_broadcast_i32x4(unsafe { std::mem::transmute::<[i8; 16], __m128i>(bytes) })
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

/// Words of a row, from two columns and two more, side by side; bytes of each word are one of these or in between.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn rows(words: __m512i, order: [i8; 4]) -> __m512i {
    _mm512_shuffle_epi8(words, quarter(std::array::from_fn(|i| order[i % 4] + 2 * (i / 4) as i8)))
}

/// Eight columns' codes, in the upper four bits of their words, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_codes(found: &[__m512i; 4]) -> __m512i {
    let both = |even, odd| select(_mm512_set1_epi16(0xF000u16 as i16), odd, _mm512_srli_epi16::<4>(even));
    let (low, high) = (both(found[0], found[3]), both(found[1], found[2]));
    let joined = select(_mm512_set1_epi16(0xFF00u16 as i16), high, _mm512_srli_epi16::<8>(low));
    rows(joined, [0, 8, 1, 9])
}

/// The low nibbles of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_nibbles(rest: &[__m512i; 4]) -> __m512i {
    let both = |even, odd| select(_mm512_set1_epi16(15), even, _mm512_slli_epi16::<4>(odd));
    let (low, high) = (both(rest[0], rest[3]), both(rest[1], rest[2]));
    rows(select(_mm512_set1_epi16(255), low, _mm512_slli_epi16::<8>(high)), [0, 8, 1, 9])
}

/// The low bytes of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_bytes(rest: &[__m512i; 4]) -> [__m512i; 2] {
    let both = |even, odd| select(_mm512_set1_epi16(255), even, _mm512_slli_epi16::<8>(odd));
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
