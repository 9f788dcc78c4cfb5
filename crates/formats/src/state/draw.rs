//! Sixteen random words at a time, laid out so that rounds run over lanes: as in `philox`, but with seven rounds.
//!
//! ```text
//! subkey = philox10(counter = (step, tensor + (purpose << 56)), key = seed)
//! bits(element) = philox7(counter = (element / 4, 0), key = subkey)[element % 4]
//! ```
//!
//! A step draws a word for every four parameters, a good part of the optimizer's work. Seven rounds are what
//! Philox4x32 needs to pass BigCrush by its authors' own account; the three more of `philox` are a margin,
//! which what is drawn rarely can afford and a rounding does not need.
//!
//! The purpose keeps the roundings of one step apart: weight and moment of an element must not
//! share their luck, or the error of one would follow the error of the other. Since a rounding takes 16 bits,
//! of which the upper ones decide nearly always, one word serves four elements ([`Draws::pairs`]), each with a
//! window that begins at another byte: it rounds its weight by the window, its moment by the other half of the
//! word. Every decision has 16 bits of its full range, so none leans; what two neighbours share, one has
//! among its lower eight, where it decides once in 256 times.

use super::{BLOCK, Tally, units};
use crate::philox::philox4x32;

/// What a random number decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Rounding of a stored weight and, in pairs, of its first moment.
    Weight,
    /// Rounding of a stored gradient.
    Gradient,
    /// Rounding of the gradient of a product's results, for the gradient of its input.
    Results,
    /// The same for the gradient of its weight.
    ResultsOverTokens,
    /// Rounding of a weight that takes part in the gradient of its input.
    Transposed,
    /// Signs of a Hadamard transform.
    Signs,
}

/// The random words of one tensor at one step for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    key: [u32; 2],
}

/// Rounds of Philox4x32.
pub const ROUNDS: usize = 7;

const LOW: u64 = 0xFFFF_FFFF;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

impl Draws {
    /// The words that belong to (seed, step, tensor) and a purpose; `tensor` is below 2^56.
    pub fn new(seed: u64, step: u64, tensor: u64, purpose: Purpose) -> Self {
        assert!(tensor < 1 << 56, "tensor {tensor} leaves no room for the purpose");
        let tensor = tensor | (purpose as u64) << 56;
        let counter = [step as u32, (step >> 32) as u32, tensor as u32, (tensor >> 32) as u32];
        let [low, high, _, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        Draws { key: [low, high] }
    }

    /// Words of elements `first` to `first + 15`.
    ///
    /// # Panics
    /// When `first` is not a multiple of 4; blocks begin at multiples of 16.
    #[inline(always)]
    pub fn block(&self, first: u64) -> [u32; BLOCK] {
        let mut words = [0; BLOCK];
        self.fill(first, &mut words);
        words
    }

    /// Words of elements `first` and following, a multiple of four: fastest by the hundred.
    ///
    /// # Panics
    /// When `first` or the number of words is not a multiple of 4.
    #[inline(always)]
    pub fn fill(&self, first: u64, words: &mut [u32]) {
        let (quads, rest) = words.as_chunks_mut::<4>();
        assert!(first.is_multiple_of(4) && rest.is_empty(), "element {first} begins no whole fours");
        let (counter, key) = (first / 4, self.key);
        for (index, words) in quads.iter_mut().enumerate() {
            *words = quad(counter.wrapping_add(index as u64), key);
        }
    }

    /// Two decisions for each of the elements `first` and following, in the upper halves of two words: of
    /// word w = bits(element / 4), `own` is w turned so that bits 8 i to 8 i + 15 are on top, i = element % 4, and
    /// `other` is `own` with its halves exchanged. Lower halves are no more than a tie-break.
    ///
    /// # Panics
    /// When `first` or the number of elements is not a multiple of 16, or the numbers differ.
    #[inline(always)]
    pub fn pairs(&self, first: u64, own: &mut [u32], other: &mut [u32]) {
        assert_eq!(own.len(), other.len(), "two decisions each");
        let ((own, rest), (other, _)) = (own.as_chunks_mut::<BLOCK>(), other.as_chunks_mut::<BLOCK>());
        assert!(first.is_multiple_of(16) && rest.is_empty(), "element {first} begins no block");
        let (counter, key) = (first / 16, self.key);
        for (index, (own, other)) in own.iter_mut().zip(other).enumerate() {
            let words = quad(counter.wrapping_add(index as u64), key);
            for i in 0..BLOCK {
                own[i] = words[i / 4].rotate_left(16 + 24 * (i as u32 % 4));
                other[i] = own[i].rotate_left(16);
            }
        }
    }

    /// The key of the Philox blocks: block n holds the words of elements 4 n to 4 n + 3.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }
}

/// Blocks whose words are drawn together.
const CHUNK: usize = 16;

/// Runs `work` (index, update, words) on every block whose update is not all zero, and sums what it did.
///
/// # Panics
/// When `first` begins no block or `delta` is no whole number of blocks.
#[inline(always)]
pub(super) fn each_moving_block(
    draws: &Draws,
    first: u64,
    delta: &[f32],
    mut work: impl FnMut(usize, &[f32; BLOCK], &[u32; BLOCK]) -> Tally,
) -> Tally {
    let (blocks, rest) = delta.as_chunks::<BLOCK>();
    assert!(first.is_multiple_of(BLOCK as u64) && rest.is_empty(), "a row is whole blocks");
    let mut words = [[0; BLOCK]; CHUNK];
    let mut tally = Tally::default();
    for (chunk, deltas) in blocks.chunks(CHUNK).enumerate() {
        if !deltas.iter().any(units::any) {
            continue;
        }
        let element = first + (chunk * CHUNK * BLOCK) as u64;
        draws.fill(element, words[..deltas.len()].as_flattened_mut());
        for (index, (delta, words)) in deltas.iter().zip(&words).enumerate() {
            if units::any(delta) {
                tally.add(work(chunk * CHUNK + index, delta, words));
            }
        }
    }
    tally
}

/// Philox4x32-7 in lanes of 64 bits, of which only the low halves count: what products and shifts leave
/// in the high ones is never read, so nothing is masked or narrowed between rounds, and a loop over
/// counters becomes one over vectors.
#[inline(always)]
fn quad(counter: u64, key: [u32; 2]) -> [u32; 4] {
    let (mut c0, mut c1, mut c2, mut c3) = (counter, counter >> 32, 0, 0);
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * (c0 & LOW);
        let p1 = u64::from(MULTIPLIERS[1]) * (c2 & LOW);
        (c0, c1, c2, c3) = (p1 >> 32 ^ c1 ^ u64::from(k0), p1, p0 >> 32 ^ c3 ^ u64::from(k1), p0);
        (k0, k1) = (k0.wrapping_add(KEY_STEPS[0]), k1.wrapping_add(KEY_STEPS[1]));
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::rounds;

    /// The word of one element.
    fn bits(draws: &Draws, element: u64) -> u32 {
        let quad = element / 4;
        rounds::<ROUNDS>([quad as u32, (quad >> 32) as u32, 0, 0], draws.key())[(element % 4) as usize]
    }

    #[test]
    fn a_block_holds_the_bits_of_its_elements() {
        for (seed, step, tensor, first) in [
            (0, 0, 0, 0),
            (7, 1000, 31, 4),
            (1 << 40, 1 << 33, 1 << 50, (1 << 34) - 16),
            (3, 2, 1, u64::MAX - 15),
        ] {
            for purpose in [Purpose::Weight, Purpose::Signs] {
                let draws = Draws::new(seed, step, tensor, purpose);
                for (i, word) in draws.block(first).into_iter().enumerate() {
                    assert_eq!(word, bits(&draws, first + i as u64));
                }
            }
        }
    }

    #[test]
    fn many_words_are_those_of_single_elements() {
        let draws = Draws::new(5, 6, 7, Purpose::Weight);
        let first = (1 << 34) - 96;
        let mut words = [0; 260];
        draws.fill(first, &mut words);
        assert!((first..).zip(words).all(|(element, word)| word == bits(&draws, element)));
    }

    #[test]
    fn four_elements_share_a_word_and_no_byte_leads_two_of_them() {
        let draws = Draws::new(5, 6, 7, Purpose::Weight);
        let first = (1 << 35) - 96;
        let (mut own, mut other) = ([0; 208], [0; 208]);
        draws.pairs(first, &mut own, &mut other);
        for (i, element) in (first..first + 208).enumerate() {
            let word = bits(&draws, element / 4);
            let bytes = word.to_le_bytes();
            let at = |k: usize| u32::from(bytes[(element as usize + k) % 4]);
            assert_eq!(own[i] >> 16, at(1) << 8 | at(0));
            assert_eq!(other[i] >> 16, at(3) << 8 | at(2));
        }
    }

    #[test]
    fn each_purpose_has_its_own_bits() {
        let block = |purpose| Draws::new(1, 2, 3, purpose).block(0);
        use Purpose::{Gradient, Results, ResultsOverTokens, Signs, Transposed, Weight};
        let all = [Weight, Gradient, Results, ResultsOverTokens, Transposed, Signs].map(block);
        assert!(all.iter().enumerate().all(|(i, words)| !all[..i].contains(words)));
    }
}
