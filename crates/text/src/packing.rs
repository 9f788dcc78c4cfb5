//! Samples -> sequences of one length, side by side, each with its own positions.
//!
//! ```text
//! tokens         a0 a1 a2 b0 b1 .      a sample's last token is only predicted, so it takes no place
//! targets        a1 a2 a3 b1 b2 -      the next token where that is trained, else UNTRAINED
//! segment_start  0  0  0  3  3  5      attention looks back to here and no further;
//! position       0  1  2  0  1  0      index - segment_start
//! ```
//! First fit, in the order given, among the sequences opened last. Padding at the end of a sequence is
//! token 0, one segment each, untrained.

use std::collections::VecDeque;

use crate::dataset::Sample;

/// The target of a position that is not trained.
pub const UNTRAINED: u32 = u32::MAX;
/// Sequences that still take samples; one more closes the oldest.
const OPEN: usize = 64;

/// Which samples share a sequence. Holds indices only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    length: usize,
    sequences: Vec<Vec<usize>>,
}

/// One sequence, ready for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Ids; as many as the sequence is long.
    pub tokens: Vec<u32>,
    /// What each position has to predict, or [`UNTRAINED`].
    pub targets: Vec<u32>,
    /// Index in this sequence where the position's sample begins.
    pub segment_start: Vec<u32>,
    /// Samples in it, with the index where each begins.
    pub samples: Vec<(usize, usize)>,
    /// Positions before the padding.
    pub used: usize,
}

impl Sequence {
    /// The position of each token in its sample.
    pub fn positions(&self) -> Vec<u32> {
        self.segment_start.iter().enumerate().map(|(index, start)| index as u32 - start).collect()
    }
}

impl Packing {
    /// Packs samples in this order into sequences of `length`; none may need more positions.
    pub fn first_fit(samples: &[Sample], order: &[usize], length: usize) -> Self {
        let mut packing = Packing { length, sequences: Vec::new() };
        let mut open: VecDeque<(usize, usize)> = VecDeque::new();
        for &index in order {
            let need = samples[index].positions();
            match open.iter().position(|&(_, free)| free >= need) {
                Some(place) => {
                    packing.sequences[open[place].0].push(index);
                    open[place].1 -= need;
                    if open[place].1 == 0 {
                        open.remove(place);
                    }
                }
                None => {
                    open.push_back((packing.sequences.len(), length.saturating_sub(need)));
                    packing.sequences.push(vec![index]);
                    if open.len() > OPEN {
                        open.pop_front();
                    }
                }
            }
        }
        packing
    }

    /// Each sample in a sequence of its own.
    pub fn apart(order: &[usize], length: usize) -> Self {
        Packing { length, sequences: order.iter().map(|&index| vec![index]).collect() }
    }

    /// Sequences.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Builds one sequence; `None` past the last.
    pub fn sequence(&self, index: usize, samples: &[Sample]) -> Option<Sequence> {
        let mut sequence = Sequence::default();
        for &sample in self.sequences.get(index)? {
            let begin = sequence.tokens.len();
            sequence.samples.push((sample, begin));
            append(&mut sequence, &samples[sample], begin as u32);
        }
        sequence.used = sequence.tokens.len();
        for at in sequence.used..self.length {
            sequence.tokens.push(0);
            sequence.targets.push(UNTRAINED);
            sequence.segment_start.push(at as u32);
        }
        Some(sequence)
    }
}

fn append(sequence: &mut Sequence, sample: &Sample, begin: u32) {
    let first = sequence.targets.len();
    let count = sample.positions();
    sequence.tokens.extend_from_slice(&sample.tokens[..count]);
    sequence.segment_start.resize(first + count, begin);
    sequence.targets.resize(first + count, UNTRAINED);
    for range in &sample.trained {
        for token in range.start.max(1)..range.end {
            sequence.targets[first + token - 1] = sample.tokens[token];
        }
    }
}
