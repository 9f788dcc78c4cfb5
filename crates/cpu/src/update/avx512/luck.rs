//! The random words of sixteen rows: `Draws::pairs`, a row in each lane.

use std::arch::x86_64::*;

/// Counters of the rows' Philox blocks, in lanes of 64 bits (even rows, then odd ones), and the keys of
/// the rounds.
pub(super) struct Luck {
    counters: [__m512i; 2],
    keys: [[__m512i; 2]; 10],
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

impl Luck {
    /// Of rows whose first elements are `first`, `first + width` and so on, both multiples of eight.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(key: [u32; 2], first: u64, width: u64) -> Luck {
        let numbers = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
        let apart = _mm512_set1_epi64((width / 8) as i64);
        // Row numbers are small: a product of dwords is enough.
        let even = _mm512_add_epi64(_mm512_mul_epu32(numbers, apart), _mm512_set1_epi64((first / 8) as i64));
        let mut keys = [[_mm512_setzero_si512(); 2]; 10];
        let [mut k0, mut k1] = key;
        for keys in &mut keys {
            *keys = [_mm512_set1_epi64(i64::from(k0)), _mm512_set1_epi64(i64::from(k1))];
            (k0, k1) = (k0.wrapping_add(KEY_STEPS[0]), k1.wrapping_add(KEY_STEPS[1]));
        }
        Luck { counters: [even, _mm512_add_epi64(even, apart)], keys }
    }

    /// What each of sixteen columns rounds its weights by; moments take their neighbour's.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn block(&self, column: usize, own: &mut [__m512i; 16]) {
        for (half, own) in own.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let at = _mm512_set1_epi64((column / 8 + half) as i64);
            let even = self.quads(_mm512_add_epi64(self.counters[0], at));
            let odd = self.quads(_mm512_add_epi64(self.counters[1], at));
            for pair in 0..4 {
                // Dwords of the even rows stay, those of the odd rows move up beside them.
                let word = _mm512_mask_shuffle_epi32::<0b10_10_00_00>(even[pair], 0xAAAA, odd[pair]);
                own[2 * pair] = _mm512_rol_epi32::<16>(word);
                own[2 * pair + 1] = word;
            }
        }
    }

    /// Philox4x32-10 of eight counters; the upper halves of the lanes hold what is never read.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn quads(&self, counter: __m512i) -> [__m512i; 4] {
        let m0 = _mm512_set1_epi64(i64::from(MULTIPLIERS[0]));
        let m1 = _mm512_set1_epi64(i64::from(MULTIPLIERS[1]));
        let zero = _mm512_setzero_si512();
        let (mut c0, mut c1, mut c2, mut c3) = (counter, _mm512_srli_epi64::<32>(counter), zero, zero);
        for [k0, k1] in &self.keys {
            let (p0, p1) = (_mm512_mul_epu32(c0, m0), _mm512_mul_epu32(c2, m1));
            c0 = _mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p1), c1, *k0);
            c2 = _mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p0), c3, *k1);
            (c1, c3) = (p1, p0);
        }
        [c0, c1, c2, c3]
    }
}
