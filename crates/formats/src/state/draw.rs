//! Sixteen random words at a time: the bits of `philox`, laid out so that rounds run over lanes.
//!
//! block(e)[i] = philox::random_bits(seed, step, tensor + (purpose << 56), e + i)
//!
//! The purpose keeps the roundings of one step apart: weight and moment of an element must not
//! share their luck, or the error of one would follow the error of the other.

use super::BLOCK;
use crate::philox::{Stream, philox4x32};

/// What a random number decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Rounding of a stored weight.
    Weight,
    /// Rounding of a stored first moment.
    Moment,
    /// Rounding of a stored gradient.
    Gradient,
}

/// The random words of one tensor at one step for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    key: [u32; 2],
}

const LANES: usize = BLOCK / 4;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

impl Draws {
    /// The words that belong to (seed, step, tensor) and a purpose; `tensor` is below 2^56.
    pub fn new(seed: u64, step: u64, tensor: u64, purpose: Purpose) -> Self {
        let tensor = Self::tensor_key(tensor, purpose);
        let counter = [step as u32, (step >> 32) as u32, tensor as u32, (tensor >> 32) as u32];
        let [low, high, _, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        Draws { key: [low, high] }
    }

    /// The same words as a [`Stream`], one at a time or by four.
    pub fn stream(seed: u64, step: u64, tensor: u64, purpose: Purpose) -> Stream {
        Stream::new(seed, step, Self::tensor_key(tensor, purpose))
    }

    fn tensor_key(tensor: u64, purpose: Purpose) -> u64 {
        assert!(tensor < 1 << 56, "tensor {tensor} leaves no room for the purpose");
        tensor | (purpose as u64) << 56
    }

    /// Words of elements `first` to `first + 15`.
    ///
    /// # Panics
    /// When `first` is not a multiple of 4; blocks begin at multiples of 16.
    #[inline(always)]
    pub fn block(&self, first: u64) -> [u32; BLOCK] {
        assert!(first.is_multiple_of(4), "element {first} begins no four");
        let mut counter = [[0u32; LANES]; 4];
        let [low, high, ..] = &mut counter;
        for lane in 0..LANES {
            let quad = (first / 4).wrapping_add(lane as u64);
            (low[lane], high[lane]) = (quad as u32, (quad >> 32) as u32);
        }
        let mut key = self.key;
        for _ in 0..10 {
            counter = round(counter, key);
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let mut words = [0; BLOCK];
        for lane in 0..LANES {
            for (word, part) in counter.iter().enumerate() {
                words[4 * lane + word] = part[lane];
            }
        }
        words
    }
}

/// One round of Philox4x32 on every lane.
#[inline(always)]
fn round(c: [[u32; LANES]; 4], key: [u32; 2]) -> [[u32; LANES]; 4] {
    let mut next = [[0u32; LANES]; 4];
    for lane in 0..LANES {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0][lane]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2][lane]);
        next[0][lane] = (p1 >> 32) as u32 ^ c[1][lane] ^ key[0];
        next[1][lane] = p1 as u32;
        next[2][lane] = (p0 >> 32) as u32 ^ c[3][lane] ^ key[1];
        next[3][lane] = p0 as u32;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_the_bits_of_its_elements() {
        for (seed, step, tensor, first) in [
            (0, 0, 0, 0),
            (7, 1000, 31, 4),
            (1 << 40, 1 << 33, 1 << 50, (1 << 34) - 16),
            (3, 2, 1, u64::MAX - 15),
        ] {
            for purpose in [Purpose::Weight, Purpose::Moment, Purpose::Gradient] {
                let words = Draws::new(seed, step, tensor, purpose).block(first);
                let stream = Draws::stream(seed, step, tensor, purpose);
                for (i, word) in words.into_iter().enumerate() {
                    assert_eq!(word, stream.bits(first + i as u64));
                }
            }
        }
    }

    #[test]
    fn each_purpose_has_its_own_bits() {
        let block = |purpose| Draws::new(1, 2, 3, purpose).block(0);
        assert_ne!(block(Purpose::Weight), block(Purpose::Moment));
        assert_ne!(block(Purpose::Moment), block(Purpose::Gradient));
        assert_eq!(block(Purpose::Weight)[5], crate::philox::random_bits(1, 2, 3, 5));
    }
}
