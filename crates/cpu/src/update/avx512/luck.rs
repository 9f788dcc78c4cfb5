//! The random words of sixteen rows: `draw::Row::pairs`, a row in each lane.

use std::arch::x86_64::*;

use halfbyte_formats::state::LUCK_BASE;
use halfbyte_formats::state::draw::{BLOCK_ROUNDS, KEY_STEPS, MULTIPLIERS, ROUNDS, windows};

use super::orders::Orders;

/// States of the rows, in lanes of 64 bits (even rows, then odd ones), and the keys of the rounds.
pub(super) struct Luck {
    states: [Words; 2],
    keys: [[__m512i; 2]; BLOCK_ROUNDS],
    /// The upper halves of what [`own`] gives. The compiler does not know it, or it would put bytes into zeros first and
    /// these bits in by another instruction.
    pub(super) base: __m512i,
}

/// Words of a block of sixteen columns: word i belongs to columns 4 i to 4 i + 3.
pub(super) type Words = [__m512i; 4];

impl Luck {
    /// Of rows whose first elements are `first`, `first + width` and so on, both multiples of sixteen.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(key: [u32; 2], first: u64, width: u64) -> Luck {
        let numbers = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
        let apart = _mm512_set1_epi64((width / 16) as i64);
        // Row numbers are small: a product of dwords is enough.
        let even = _mm512_add_epi64(_mm512_mul_epu32(numbers, apart), _mm512_set1_epi64((first / 16) as i64));
        let mut keys = [[_mm512_setzero_si512(); 2]; ROUNDS];
        let [mut k0, mut k1] = key;
        for keys in &mut keys {
            *keys = [_mm512_set1_epi64(i64::from(k0)), _mm512_set1_epi64(i64::from(k1))];
            (k0, k1) = (k0.wrapping_add(KEY_STEPS[0]), k1.wrapping_add(KEY_STEPS[1]));
        }
        let zero = _mm512_setzero_si512();
        let mut states = [even, _mm512_add_epi64(even, apart)]
            .map(|counter| [counter, _mm512_srli_epi64::<32>(counter), zero, zero]);
        for state in &mut states {
            for keys in &keys {
                *state = round(*state, keys);
            }
        }
        let base = std::hint::black_box(_mm512_set1_epi32(LUCK_BASE as i32));
        Luck { states, keys: *keys.first_chunk().expect("fewer rounds"), base }
    }

    /// What the words of sixteen columns begin as, of the even rows or of the odd ones.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn begin(&self, odd: usize, column: usize) -> Words {
        let [a, b, c, d] = self.states[odd];
        let number = (column / 16) as i64;
        let on = |word, step| _mm512_add_epi64(word, _mm512_set1_epi64(number * i64::from(step)));
        [on(a, KEY_STEPS[0]), b, on(c, KEY_STEPS[1]), d]
    }

    /// One of the rounds that tell blocks apart. After the last the words are in the lower halves of the lanes; the upper
    /// ones hold what is never read. A round waits for the one before, so something else should stand between them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn round<const ROUND: usize>(&self, words: Words) -> Words {
        round(words, &self.keys[ROUND])
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn round([c0, c1, c2, c3]: Words, [k0, k1]: &[__m512i; 2]) -> Words {
    let m0 = _mm512_set1_epi64(i64::from(MULTIPLIERS[0]));
    let m1 = _mm512_set1_epi64(i64::from(MULTIPLIERS[1]));
    let (p0, p1) = (_mm512_mul_epu32(c0, m0), _mm512_mul_epu32(c2, m1));
    let c0 = _mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p1), c1, *k0);
    let c2 = _mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p0), c3, *k1);
    [c0, p1, c2, p0]
}

/// Words of all rows: dwords of the even ones stay, those of the odd ones move up beside them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn join([even, odd]: &[Words; 2]) -> Words {
    four!(|I| _mm512_mask_shuffle_epi32::<0b10_10_00_00>(even[I], 0xAAAA, odd[I]))
}

/// What is added to the moves of the weights of the `I`-th of four columns: `units::luck`, two bytes of a word in the lower
/// halves of [`Luck::base`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn own<const I: usize>(word: __m512i, base: __m512i, orders: &Orders) -> __m512 {
    _mm512_castsi512_ps(match I {
        0 => _mm512_mask_mov_epi16(base, 0x5555_5555, word),
        _ => orders.two_bytes::<I>(word, base),
    })
}

/// What the moments of four columns are rounded by: the upper 22 bits of their words, in the lower ones.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn others(word: __m512i) -> [__m512i; 4] {
    let (turned, lower) = (_mm512_rol_epi32::<16>(word), _mm512_set1_epi32(0x3F_FFFF));
    [
        _mm512_srli_epi32::<10>(word),
        _mm512_and_si512(turned, lower),
        _mm512_srli_epi32::<10>(turned),
        _mm512_and_si512(word, lower),
    ]
}

/// Both of one row, as the reference takes them.
pub(super) fn of_row(words: &Words, row: usize) -> [[u32; 16]; 2] {
    windows(std::array::from_fn(|i| super::words(&words[i])[row]))
}
