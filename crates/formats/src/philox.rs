//! Philox4x32-10 (Salmon et al., SC 2011): random bits keyed by meaning, not by order of drawing.
//!
//! ```text
//! subkey = philox(counter = (step, tensor), key = seed)
//! bits(element) = philox(counter = (element / 4, 0), key = subkey)[element % 4]
//! ```
//!
//! The same (seed, step, tensor, element) gives the same bits on every backend, for every thread
//! count and launch shape; one block of four words serves four neighbouring elements.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32: four random words for one counter and key.
#[inline]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    rounds::<10>(counter, key)
}

/// Philox4x32 of any number of rounds. Seven pass every test of its authors, who advise ten to be safe.
#[inline]
pub fn rounds<const ROUNDS: usize>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}

/// The bits of one tensor at one step; elements may be asked for in any order.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
}

impl Stream {
    /// The stream that belongs to (seed, step, tensor).
    pub fn new(seed: u64, step: u64, tensor: u64) -> Self {
        let counter = [step as u32, (step >> 32) as u32, tensor as u32, (tensor >> 32) as u32];
        let [low, high, _, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        Stream { key: [low, high] }
    }

    /// Bits of elements `4 * quad` to `4 * quad + 3`.
    #[inline]
    pub fn quad(&self, quad: u64) -> [u32; 4] {
        philox4x32([quad as u32, (quad >> 32) as u32, 0, 0], self.key)
    }

    /// Bits of one element.
    #[inline]
    pub fn bits(&self, element: u64) -> u32 {
        self.quad(element / 4)[(element % 4) as usize]
    }
}

/// Bits of one element, keyed by all four numbers.
pub fn random_bits(seed: u64, step: u64, tensor: u64, element: u64) -> u32 {
    Stream::new(seed, step, tensor).bits(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the Random123 library.
    #[test]
    fn known_answers_are_reproduced() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
        assert_eq!(rounds::<7>([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(
            rounds::<7>([u32::MAX; 4], [u32::MAX; 2]),
            [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]
        );
    }

    #[test]
    fn each_part_of_the_key_changes_the_bits() {
        let base = random_bits(1, 2, 3, 4);
        assert_ne!(base, random_bits(2, 2, 3, 4));
        assert_ne!(base, random_bits(1, 3, 3, 4));
        assert_ne!(base, random_bits(1, 2, 4, 4));
        assert_ne!(base, random_bits(1, 2, 3, 5));
        assert_ne!(base, random_bits(1 | 1 << 40, 2, 3, 4));
        assert_ne!(base, random_bits(1, 2 | 1 << 40, 3, 4));
        assert_ne!(base, random_bits(1, 2, 3 | 1 << 40, 4));
        assert_ne!(base, random_bits(1, 2, 3, 4 | 1 << 40));
    }

    #[test]
    fn a_stream_gives_the_bits_of_single_elements() {
        let stream = Stream::new(7, 8, 9);
        for element in 0..64 {
            assert_eq!(stream.bits(element), random_bits(7, 8, 9, element));
            assert_eq!(stream.quad(element / 4)[(element % 4) as usize], stream.bits(element));
        }
    }

    #[test]
    fn bits_are_balanced() {
        let stream = Stream::new(0, 0, 0);
        let ones: u64 = (0..100_000).map(|e| u64::from(stream.bits(e).count_ones())).sum();
        // 3.2 million fair bits: five standard deviations are 4472.
        assert!(ones.abs_diff(1_600_000) < 4472, "{ones}");
    }
}
