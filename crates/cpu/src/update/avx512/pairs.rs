//! Sixteen rows in lanes of 16 bits, in which whole units have room: two columns share a register.
//!
//! Each quarter of it holds four rows of the one and then the same rows of the other, as instructions that pack dwords
//! leave them. Of eight columns the even ones share their low nibbles' bytes and the odd ones the high, hence these four:
//!
//! ```text
//! columns 0 2 | 4 6 | 5 7 | 1 3
//! ```

use std::arch::x86_64::*;

use super::{Moves, select};

/// What [`Moves::whole`] adds.
pub(super) const MORE: i16 = super::MORE as i16;

/// The columns that share a register.
const PAIRS: [[usize; 2]; 4] = [[0, 2], [4, 6], [5, 7], [1, 3]];

/// Eight columns, two by two.
pub(super) type Eight = [__m512i; 4];

/// Whole units of eight columns: codes of so many units each, and rests. Bytes of codes come as [`nibbles`] gives them, those
/// of rests where [`Eight`] takes its own from: lower halves of quarters, upper, lower, upper.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn units(per_code: i16, code: [__m512i; 2], [a, b, c, d]: Eight) -> Eight {
    let weights = _mm512_set1_epi16(1 << 8 | per_code);
    [
        _mm512_unpacklo_epi8(code[0], a),
        _mm512_unpackhi_epi8(code[0], b),
        _mm512_unpacklo_epi8(code[1], c),
        _mm512_unpackhi_epi8(code[1], d),
    ]
    .map(|pair| _mm512_maddubs_epi16(weights, pair))
}

/// Rests of four bits, for [`units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn signed_nibbles(rests: __m512i) -> Eight {
    let signed = quarter([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
    let [even, odd] = nibbles(rests).map(|rest| _mm512_shuffle_epi8(signed, rest));
    [even, even, odd, odd]
}

/// By how many whole units eight columns of a block move, and [`MORE`]; they lie at `k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn whole<const PLAIN: bool>(half: usize, k: &Eight, moves: &Moves<'_>) -> Eight {
    four!(|P| {
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
    })
}

/// Between which whole units the weights have come to lie, and by which bits they moved; two of a row's words each.
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
        let larger = _mm512_max_epi16(both, _mm512_shuffle_epi32::<0b01_00_11_10>(both));
        _mm512_unpacklo_epi16(larger, _mm512_setzero_si512())
    }

    /// Lanes in which all moves are near, and those in which a weight moves.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn moved(&self) -> (u16, u16) {
        let low = _mm512_unpacklo_epi16(self.moved, self.moved);
        let both = _mm512_or_si512(low, _mm512_unpackhi_epi16(self.moved, self.moved));
        (_mm512_testn_epi32_mask(both, _mm512_set1_epi32(0xFF80)), _mm512_test_epi32_mask(both, both))
    }
}

/// The low nibbles of eight columns, of the even ones in the order 0 2 4 6, of the odd ones in the order 5 7 1 3.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn nibbles(columns: __m512i) -> [__m512i; 2] {
    let low = _mm512_set1_epi8(15);
    let even = _mm512_shuffle_epi8(columns, bytes_of([0, 1, 2, 3]));
    let odd = _mm512_srli_epi16::<4>(_mm512_shuffle_epi8(columns, bytes_of([2, 3, 0, 1])));
    [_mm512_and_si512(even, low), _mm512_and_si512(odd, low)]
}

/// For a shuffle that puts bytes of four rows' dwords side by side: of all rows the first of these, then the second.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn bytes_of(order: [i8; 4]) -> __m512i {
    quarter(std::array::from_fn(|i| order[i / 4] + 4 * (i % 4) as i8))
}

/// Sixteen bytes in each quarter.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn quarter(bytes: [i8; 16]) -> __m512i {
    // SAFETY: as many bytes, of any bits.
    _mm512_broadcast_i32x4(unsafe { std::mem::transmute::<[i8; 16], __m128i>(bytes) })
}

/// Bytes with an even number.
pub(super) const EVEN: u64 = 0x5555_5555_5555_5555;

/// For a shuffle that gives every byte the other one of its word.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn other_byte() -> __m512i {
    quarter([1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14])
}

/// Words of a row, from two columns and two more, side by side; bytes of each word are one of these or in between.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn rows(words: __m512i, order: [i8; 4]) -> __m512i {
    _mm512_shuffle_epi8(words, quarter(std::array::from_fn(|i| order[i % 4] + 2 * (i / 4) as i8)))
}

/// The low nibbles of eight columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pack_nibbles(rest: &Eight) -> __m512i {
    let both = |even, odd| select(_mm512_set1_epi16(15), even, _mm512_slli_epi16::<4>(odd));
    let (low, high) = (both(rest[0], rest[3]), both(rest[1], rest[2]));
    rows(select(_mm512_set1_epi16(255), low, _mm512_slli_epi16::<8>(high)), [0, 8, 1, 9])
}
