//! Sixteen random words at a time, laid out so that rounds run over lanes: as in `philox`, but with seven rounds.
//!
//! ```text
//! subkey = philox10(counter = (step, tensor + (purpose << 56)), key = seed)
//! bits(element) = philox7(counter = (element / 4, 0), key = subkey)[element % 4]
//! row = philox7(counter = (its first element / 16, 0), key = subkey)
//! block(n) = philox3(counter = row + n * (KEY_STEPS[0], 0, KEY_STEPS[1], 0), key = subkey)
//! ```
//!
//! Seven rounds are what Philox4x32 needs to pass BigCrush by its authors' own account; the three more of `philox` are
//! a margin, which what is drawn rarely can afford and a rounding does not need.
//!
//! A step of the optimizer draws a word for every four parameters, a good part of its work. So a row's state is drawn
//! with seven rounds, and its blocks are told apart by three ([`Row`]): they begin at words that differ in all their bits,
//! not in the last ones, as counters do. With two rounds neighbouring blocks are seen to resemble each other, with three
//! they are not (`scripts/study/luck.py`).
//!
//! The purpose keeps the roundings of one step apart: weight and moment of an element must not
//! share their luck, or the error of one would follow the error of the other. Since a rounding takes 16 bits,
//! of which the upper ones decide nearly always, one word serves four elements ([`Draws::pairs`]), each with windows of its
//! own: for its weight and for its moment, which begins in the other half of the word. Every decision has 16 bits of its
//! full range or more, so none leans. What the windows of two weights, of two moments, or of an element's weight and moment
//! have in common, one of them has behind its first six to ten bits, where it decides once in 64 times or more rarely; a
//! weight and the moment two elements on have nearly the same.

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

/// Those that tell a row's blocks apart.
pub const BLOCK_ROUNDS: usize = 3;

const LOW: u64 = 0xFFFF_FFFF;
/// What words are multiplied by in a round.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What is added to the key after a round.
pub const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

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

    /// Two decisions for each element of the block that begins with `first`, in the upper halves of two words: of
    /// word w = words[i / 4] of its Philox block, `own` is w turned so that bits 8 j to 8 j + 15 are on top, j = i % 4, and
    /// `other` so that bit 31, 5, 15 or 21 is on top: 22 bits below these are what a shift of w or of w with its halves
    /// exchanged leaves, or a mask. Lower halves are no more than a tie-break.
    #[inline(always)]
    pub fn pairs(&self, first: u64) -> [[u32; BLOCK]; 2] {
        windows(quad(first / BLOCK as u64, self.key))
    }

    /// The words of the row whose first element is this.
    #[inline(always)]
    pub fn row(&self, first: u64) -> Row {
        Row { state: quad(first / BLOCK as u64, self.key), key: self.key }
    }

    /// The key of the Philox blocks: block n holds the words of elements 4 n to 4 n + 3.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }
}

/// The random words of a row's blocks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    state: [u32; 4],
    key: [u32; 2],
}

impl Row {
    /// [`Draws::pairs`] of blocks `first` and following.
    ///
    /// # Panics
    /// When the number of elements is not a multiple of 16, or the numbers differ.
    #[inline(always)]
    pub fn pairs(&self, first: usize, own: &mut [u32], other: &mut [u32]) {
        assert_eq!(own.len(), other.len(), "two decisions each");
        let ((own, rest), (other, _)) = (own.as_chunks_mut::<BLOCK>(), other.as_chunks_mut::<BLOCK>());
        assert!(rest.is_empty(), "whole blocks");
        for (index, (own, other)) in own.iter_mut().zip(other).enumerate() {
            [*own, *other] = windows(self.block((first + index) as u32));
        }
    }

    /// Words of a block.
    #[inline(always)]
    fn block(&self, number: u32) -> [u32; 4] {
        let [a, b, c, d] = self.state;
        let [a, c] = [(a, KEY_STEPS[0]), (c, KEY_STEPS[1])]
            .map(|(word, step)| word.wrapping_add(number.wrapping_mul(step)));
        rounds::<BLOCK_ROUNDS>([a, b, c, d].map(u64::from), self.key)
    }
}

/// Two decisions for each of sixteen elements: see [`Draws::pairs`].
#[inline(always)]
pub fn windows(words: [u32; 4]) -> [[u32; BLOCK]; 2] {
    let (mut own, mut other) = ([0; BLOCK], [0; BLOCK]);
    for i in 0..BLOCK {
        own[i] = words[i / 4].rotate_left(16 + 24 * (i as u32 % 4));
        other[i] = words[i / 4].rotate_left([0, 26, 16, 10][i % 4]);
    }
    [own, other]
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

#[inline(always)]
fn quad(counter: u64, key: [u32; 2]) -> [u32; 4] {
    rounds::<ROUNDS>([counter, counter >> 32, 0, 0], key)
}

/// Philox4x32 in lanes of 64 bits, of which only the low halves count: what products and shifts leave
/// in the high ones is never read, so nothing is masked or narrowed between rounds, and a loop over
/// counters becomes one over vectors.
#[inline(always)]
fn rounds<const COUNT: usize>([mut c0, mut c1, mut c2, mut c3]: [u64; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    for _ in 0..COUNT {
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
    use crate::philox;

    /// The word of one element.
    fn bits(draws: &Draws, element: u64) -> u32 {
        let quad = element / 4;
        philox::rounds::<ROUNDS>([quad as u32, (quad >> 32) as u32, 0, 0], draws.key())
            [(element % 4) as usize]
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
    fn four_elements_share_a_word_whose_bits_lead_neither_two_weights_nor_two_moments() {
        /// The first bit of each window.
        const TOPS: [[u32; 2]; 4] = [[15, 31], [23, 5], [31, 15], [7, 21]];
        let row = Draws::new(5, 6, 7, Purpose::Weight).row((1 << 35) - 96);
        let (mut own, mut other) = ([0; 208], [0; 208]);
        row.pairs(40, &mut own, &mut other);
        for i in 0..208 {
            let word = row.block(40 + i as u32 / 16)[i % 16 / 4];
            assert_eq!([own[i], other[i]], TOPS[i % 4].map(|top| word.rotate_left(31 - top)));
        }
        let first =
            |top: u32, count: u32| (0..count).fold(0, |bits, bit| bits | 1u32 << ((top + 32 - bit) % 32));
        assert!(TOPS.iter().all(|[own, other]| (first(*own, 10) & first(*other, 10)) == 0));
        assert_eq!(TOPS.iter().fold(0, |all, [own, _]| all | first(*own, 8)), u32::MAX);
        assert_eq!(TOPS.iter().fold(0, |all, [_, other]| all | first(*other, 6)).count_ones(), 24);
    }

    #[test]
    fn a_block_is_three_rounds_from_its_row() {
        let draws = Draws::new(5, 6, 7, Purpose::Weight);
        let state = philox::rounds::<ROUNDS>([123, 0, 0, 0], draws.key());
        assert_eq!(draws.row(123 * 16).state, state);
        let mut counter = state;
        counter[0] = counter[0].wrapping_add(0x9E37_79B9u32.wrapping_mul(77));
        counter[2] = counter[2].wrapping_add(0xBB67_AE85u32.wrapping_mul(77));
        assert_eq!(draws.row(123 * 16).block(77), philox::rounds::<3>(counter, draws.key()));
    }

    #[test]
    fn neighbours_of_a_row_and_of_a_column_share_no_more_bits_than_chance_gives() {
        let draws = Draws::new(11, 12, 13, Purpose::Weight);
        let blocks: Vec<Vec<[u32; 4]>> = (0..2000)
            .map(|row| {
                let row = draws.row(row * 576);
                (0..36).map(|block| row.block(block)).collect()
            })
            .collect();
        for (down, right) in [(0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (1, 1)] {
            for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
                let (mut same, mut count) = ([0u32; 32], 0u32);
                for row in 0..2000 - down {
                    for block in 0..36 - right {
                        let both = blocks[row][block][a] ^ blocks[row + down][block + right][b];
                        same.iter_mut().enumerate().for_each(|(bit, same)| *same += !both >> bit & 1);
                        count += 1;
                    }
                }
                let deviation = f64::from(count).sqrt() / 2.0;
                for (bit, same) in same.into_iter().enumerate() {
                    let off = (f64::from(same) - f64::from(count) / 2.0) / deviation;
                    assert!(off.abs() < 5.0, "{down} {right}, words {a} {b}, bit {bit}: {off:.1} deviations");
                }
            }
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
