//! Sixteen rows in lanes of 16 bits, in which whole units have room: a row's dword holds two columns.
//!
//! Bytes of four columns that lie side by side in a dword are those of two such registers, put into one another. So of eight
//! columns these share a register:
//!
//! ```text
//! columns 0 2 | 1 3 | 4 6 | 5 7
//! ```

use std::arch::x86_64::*;

use halfbyte_formats::state::LUCK_BASE;

use super::{Moves, select};

/// What [`whole`] adds: the upper half of [`Luck::base`](super::Luck). Its low six bits are zero.
pub(super) const MORE: i16 = (LUCK_BASE >> 16) as i16;

/// The columns that share a register.
const PAIRS: [[usize; 2]; 4] = [[0, 2], [1, 3], [4, 6], [5, 7]];

/// Eight columns, two by two.
pub(super) type Eight = [__m512i; 4];

/// Whole units of eight columns: every word comes as a code of so many units and above it a rest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn units(per_code: i16, of: &Eight) -> Eight {
    let weights = _mm512_set1_epi16(1 << 8 | per_code);
    four!(|P| _mm512_maddubs_epi16(weights, of[P]))
}

/// By how many whole units eight columns of a block move, and [`MORE`]; they lie at `k`. A sum within 64 units of that of
/// [`Luck::base`](super::Luck) has them in the low bits of its upper half, the lower one being what is cut off.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn whole<const PLAIN: bool>(half: usize, k: &Eight, moves: &Moves<'_>) -> Eight {
    four!(|P| {
        const A: usize = PAIRS[P][0];
        const B: usize = PAIRS[P][1];
        let (ratio, word) = (&moves.ratio[half], |column: usize| moves.luck[2 * half + column / 4]);
        // Sign-extended, for the decay.
        let low = || _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(k[P]));
        let high = || _mm512_srai_epi32::<16>(k[P]);
        let a = moves.sum::<{ A % 4 }, PLAIN>(word(A), ratio[A], low);
        let b = moves.sum::<{ B % 4 }, PLAIN>(word(B), ratio[B], high);
        select(_mm512_set1_epi32(0xFFFF_0000u32 as i32), b, _mm512_srli_epi32::<16>(a))
    })
}

/// Between which whole units the weights have come to lie, and by which bits they moved; two words of each row.
pub(super) struct Span {
    most: __m512i,
    least: __m512i,
    moved: __m512i,
}

impl Span {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new() -> Span {
        let more = _mm512_set1_epi16(MORE);
        Span { most: more, least: more, moved: _mm512_setzero_si512() }
    }

    /// With eight columns; both hold [`MORE`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn add(&mut self, moved: &Eight, whole: &Eight) {
        let (larger, smaller) = (_mm512_max_epi16, _mm512_min_epi16);
        let [a, b, c, d] = *moved;
        self.most = larger(self.most, larger(larger(a, b), larger(c, d)));
        self.least = smaller(self.least, smaller(smaller(a, b), smaller(c, d)));
        for whole in whole {
            // Bits that are not those of MORE.
            self.moved = _mm512_ternarylogic_epi32::<0xF6>(self.moved, *whole, _mm512_set1_epi16(MORE));
        }
    }

    /// The farthest of each row: of those below MORE, so much nearer.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn farthest(&self, nearer: i16) -> __m512i {
        let above = _mm512_sub_epi16(self.most, _mm512_set1_epi16(MORE));
        let below = _mm512_sub_epi16(_mm512_set1_epi16(MORE - nearer), self.least);
        let both = _mm512_max_epi16(above, below);
        _mm512_srli_epi32::<16>(_mm512_max_epi16(both, _mm512_slli_epi32::<16>(both)))
    }

    /// Lanes in which all moves are near, and those in which a weight moves.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn moved(&self) -> (u16, u16) {
        let far = _mm512_set1_epi32(0xFF80_FF80u32 as i32);
        (_mm512_testn_epi32_mask(self.moved, far), _mm512_test_epi32_mask(self.moved, self.moved))
    }
}

/// What a table of sixteen bytes has for the nibbles of eight columns: of the even ones, and of the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn of_nibbles<const VBMI: bool>(columns: __m512i, table: [i8; 16]) -> [__m512i; 2] {
    // Four of them, so two more bits do not count.
    let table = quarter(table);
    [permuted::<VBMI>(columns, table), permuted::<VBMI>(_mm512_srli_epi16::<4>(columns), table)]
}

/// Rests of four bits.
pub(super) const SIGNED: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1];

/// The nibbles of eight columns side by side, from bytes of four and four, which hold nothing else.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pack_nibbles(bytes: [__m512i; 2]) -> __m512i {
    let sixteen = _mm512_set1_epi16(16 << 8 | 1);
    let [low, high] = bytes.map(|bytes| _mm512_maddubs_epi16(bytes, sixteen));
    let rows = quarter([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]);
    _mm512_shuffle_epi8(_mm512_packus_epi16(low, high), rows)
}

/// Bytes of a register, where the low six bits of others say: one instruction, or ten where there is no VBMI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn permuted<const VBMI: bool>(at: __m512i, bytes: __m512i) -> __m512i {
    if VBMI {
        // SAFETY: who says so has asked for it (`learn`).
        return unsafe { _mm512_permutexvar_epi8(at, bytes) };
    }
    let high = _mm512_and_si512(at, _mm512_set1_epi8(0x30));
    let at = _mm512_and_si512(at, _mm512_set1_epi8(15));
    let of = |quarter: i8| _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8(quarter << 4));
    let first = _mm512_maskz_shuffle_epi8(of(0), _mm512_shuffle_i64x2::<0x00>(bytes, bytes), at);
    let second = _mm512_mask_shuffle_epi8(first, of(1), _mm512_shuffle_i64x2::<0x55>(bytes, bytes), at);
    let third = _mm512_mask_shuffle_epi8(second, of(2), _mm512_shuffle_i64x2::<0xAA>(bytes, bytes), at);
    _mm512_mask_shuffle_epi8(third, of(3), _mm512_shuffle_i64x2::<0xFF>(bytes, bytes), at)
}

/// Sixteen bytes in each quarter.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn quarter(bytes: [i8; 16]) -> __m512i {
    // SAFETY: as many bytes, of any bits.
    _mm512_broadcast_i32x4(unsafe { std::mem::transmute::<[i8; 16], __m128i>(bytes) })
}

/// A table of sixty-four bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn table(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: as many bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
