//! A block of NVFP4 weights in sixteen rows: `weight::update_block`, a row in each lane.
//!
//! Codes, remainders and whole units have room in 16 bits, so columns j and j + 4 of eight share a register:
//! column j in the lower halves of the lanes. Only positions, which have 16 bits below the unit, take whole
//! lanes.

use std::arch::x86_64::*;

use halfbyte_formats::state::{Tally, adamw, weight};
use halfbyte_ops::tensor::UNIT;

use super::luck::{self, own};
use super::{Moves, floats, select, within, words, words_mut};

/// The size of a step for the block's rows, in 2^-16 of their units: the integer part of the fixed-point number is a
/// whole unit.
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
    _mm512_mul_ps(_mm512_div_ps(set(-step.size), unit), set(65536.0))
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
) -> (Tally, u16) {
    let zero = _mm512_setzero_si512();
    let (scales, codes) = (weights.wrapping_add(block * 16), weights.wrapping_add(UNIT + block * 128));
    // SAFETY: by the caller's promise: sixteen scales, and two lines of codes.
    let (bytes, old) = unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast()));
        (bytes, [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())])
    };
    let table = units_of_codes(1 << (BITS - 1));
    let upper = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    let (mut farthest, mut new, mut new_rests) = (Farthest(zero), [zero; 2], [zero; 4]);
    for half in 0..2 {
        let along = unpack::<BITS>(&rests[half * rests.len() / 2..]);
        let code = [
            old[half],
            _mm512_srli_epi32::<4>(old[half]),
            _mm512_srli_epi32::<8>(old[half]),
            _mm512_srli_epi32::<12>(old[half]),
        ];
        // The table knows the code's sign; the remainder counts along it.
        let base = four!(|J| _mm512_permutexvar_epi16(code[J], table));
        let negative = four!(|J| _mm512_test_epi16_mask(code[J], _mm512_set1_epi16(8)));
        let k = four!(|J| {
            _mm512_mask_sub_epi16(_mm512_add_epi16(base[J], along[J]), negative[J], base[J], along[J])
        });
        // Whole units in the upper halves of dwords: of column j, and of column j + 4.
        let [k_low, k_high] =
            [four!(|J| _mm512_slli_epi32::<16>(k[J])), four!(|J| _mm512_and_si512(k[J], upper))];
        let ratio = &moves.ratio[half];
        let low = four!(|J| moves.distance::<PLAIN>(k_low[J], ratio[J]));
        let high = four!(|J| moves.distance::<PLAIN>(k_high[J], ratio[4 + J]));
        let settled_low = four!(|J| _mm512_add_epi32(low[J], own::<J>(moves.luck[2 * half])));
        let settled_high = four!(|J| _mm512_add_epi32(high[J], own::<J>(moves.luck[2 * half + 1])));
        let moved = four!(|J| {
            let whole = select(upper, settled_high[J], _mm512_srli_epi32::<16>(settled_low[J]));
            _mm512_add_epi16(k[J], whole)
        });
        farthest = match BITS {
            8 => farthest.of_words(&moved),
            _ => farthest.of(&k_low, &low).of(&k_high, &high),
        };
        let (nearest, rest) = split::<BITS>(&moved);
        let unmoved = four!(|J| _mm512_cmpeq_epi16_mask(moved[J], k[J]));
        let fresh = four!(|J| _mm512_mask_mov_epi16(nearest[J], unmoved[J], code[J]));
        let fresh_rests = four!(|J| _mm512_mask_mov_epi16(rest[J], unmoved[J], along[J]));
        new[half] = pack_nibbles(&fresh);
        match BITS {
            8 => [new_rests[2 * half], new_rests[2 * half + 1]] = pack_bytes(&fresh_rests),
            _ => new_rests[half] = pack_nibbles(&fresh_rests),
        }
    }
    let kept = farthest.stays::<BITS>(bytes);
    *changed = _mm512_add_epi32(*changed, differing(kept, &old, &new));
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
    (tally, kept)
}

/// E4M3 of 0x08 to 0x7E; of the other bytes [`Farthest::stays`] says no.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode_scale(byte: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32::<20>(byte), _mm512_set1_epi32(120 << 23)))
}

/// What has come to lie farthest from zero. With a byte's remainders it is known in whole units, after rounding, less
/// than one from where it lies: that leaves four numbers of some hundred that say nothing, and their lanes take the
/// reference's way. With a nibble's there are too few others, so positions are looked at.
#[derive(Clone, Copy)]
struct Farthest(__m512i);

impl Farthest {
    /// With words of whole units.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn of_words(self, [a, b, c, d]: &[__m512i; 4]) -> Farthest {
        let larger = |a, b| _mm512_max_epu16(_mm512_abs_epi16(a), _mm512_abs_epi16(b));
        Farthest(_mm512_max_epu16(self.0, _mm512_max_epu16(larger(*a, *b), larger(*c, *d))))
    }

    /// With what lay at `k` and moved by `t`, in 2^-16 of a unit.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(self, k: &[__m512i; 4], t: &[__m512i; 4]) -> Farthest {
        let [a, b, c, d] = four!(|J| _mm512_abs_epi32(_mm512_add_epi32(k[J], t[J])));
        let larger = _mm512_max_epu32;
        Farthest(larger(self.0, larger(larger(a, b), larger(c, d))))
    }

    /// Lanes that keep their scale: a common one, and the farthest is surely near six or four of it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn stays<const BITS: u32>(self, byte: __m512i) -> u16 {
        // Half of one, and what is no more than near.
        let (distance, half, edge) = match BITS {
            8 => {
                let low = _mm512_and_si512(self.0, _mm512_set1_epi32(0xFFFF));
                (_mm512_max_epu32(low, _mm512_srli_epi32::<16>(self.0)), 1 << (BITS - 2), 1)
            }
            _ => (self.0, 1 << (BITS - 2 + 16), 0),
        };
        let near = |code: i32| within(distance, (2 * code - 1) * half + edge, (2 * code + 1) * half - edge);
        within(byte, 0x08, 0x7E) & (near(6) | near(4))
    }
}

/// Units of the sixteen codes, with their signs, for whatever follows the four bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn units_of_codes(one: i16) -> __m512i {
    let halves = [0i16, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    lookup(std::array::from_fn(|i| halves[i % 16] * (one / 2)))
}

/// Thirty-two words as a register.
#[inline(always)]
fn lookup(words: [i16; 32]) -> __m512i {
    // SAFETY: as many bytes, of any bits.
    unsafe { std::mem::transmute(words) }
}

/// Nearest code and what remains along its sign, as `weight` splits; other bits may be set above the code's four.
///
/// A quarter of one is the grid of the midpoints, so the number of whole quarters finds the code in
/// a table. Where the lower neighbour takes the tie, at 1, 5 and 10 quarters, one unit less is looked up; at 17,
/// 21 and 26, too, where it makes no difference.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split<const BITS: u32>(k: &[__m512i; 4]) -> ([__m512i; 4], [__m512i; 4]) {
    let ties = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0));
    // Halves of one times 64 and, if the code is not zero, 8 + the code.
    const TABLE: [i16; 32] = {
        let codes = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6];
        let (mut table, mut i) = ([12 << 6 | 15; 32], 0);
        while i < codes.len() {
            let code = codes[i] as usize;
            table[i] = if code == 0 { 0 } else { [0, 1, 2, 3, 4, 6, 8][code] << 6 | 8 | code as i16 };
            i += 1;
        }
        table
    };
    let table = lookup(TABLE);
    let quarters = |a: __m512i| match BITS {
        8 => _mm512_srli_epi16::<5>(a),
        _ => _mm512_srli_epi16::<1>(a),
    };
    let a = four!(|J| _mm512_abs_epi16(k[J]));
    let ties = four!(|J| _mm512_shuffle_epi8(ties, quarters(a[J])));
    let below = four!(|J| quarters(_mm512_sub_epi16(a[J], ties[J])));
    let found = four!(|J| _mm512_permutexvar_epi16(below[J], table));
    let some = four!(|J| _mm512_test_epi16_mask(found[J], found[J]));
    // Bit 3 is the sign's, if there is any code; other bits are as found.
    let sign = four!(|J| _mm512_srli_epi16::<12>(k[J]));
    let code = four!(|J| _mm512_ternarylogic_epi32::<0xD0>(found[J], sign[J], _mm512_set1_epi16(8)));
    // Half of one is 64 or 4 units.
    let units = four!(|J| match BITS {
        8 => _mm512_and_si512(found[J], _mm512_set1_epi16(15 << 6)),
        _ => _mm512_srli_epi16::<4>(found[J]),
    });
    (code, four!(|J| _mm512_mask_sub_epi16(k[J], some[J], a[J], units[J])))
}

/// Signed remainders of eight columns: column j below, j + 4 above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn unpack<const BITS: u32>(rests: &[__m512i]) -> [__m512i; 4] {
    if BITS == 4 {
        let nibbles = |up: __m512i| _mm512_srai_epi16::<12>(up);
        return [
            nibbles(_mm512_slli_epi16::<12>(rests[0])),
            nibbles(_mm512_slli_epi16::<8>(rests[0])),
            nibbles(_mm512_slli_epi16::<4>(rests[0])),
            nibbles(rests[0]),
        ];
    }
    let (first, second, upper) = (rests[0], rests[1], _mm512_set1_epi32(0xFFFF_0000u32 as i32));
    let low = select(upper, _mm512_slli_epi32::<16>(second), first);
    let high = select(upper, second, _mm512_srli_epi32::<16>(first));
    let (odd, even) = (_mm512_srai_epi16::<8>, |x| _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x)));
    [even(low), odd(low), even(high), odd(high)]
}

/// The low nibbles of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_nibbles(columns: &[__m512i; 4]) -> __m512i {
    let both = |even, odd| select(_mm512_set1_epi16(15), even, _mm512_slli_epi16::<4>(odd));
    let high = _mm512_slli_epi16::<8>(both(columns[2], columns[3]));
    select(_mm512_set1_epi16(255), both(columns[0], columns[1]), high)
}

/// The low bytes of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_bytes(columns: &[__m512i; 4]) -> [__m512i; 2] {
    let both = |even, odd| select(_mm512_set1_epi16(255), even, _mm512_slli_epi16::<8>(odd));
    let (low, high) = (both(columns[0], columns[1]), both(columns[2], columns[3]));
    let upper = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    [select(upper, _mm512_slli_epi32::<16>(high), low), select(upper, high, _mm512_srli_epi32::<16>(low))]
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
