//! Which samples are held out, and in which order the others come: the same for the same seed, always.

use std::fmt;
use std::str::FromStr;

use halfbyte_formats::philox;

use super::{Dataset, Sample};

/// Each use of random bits has its own number in place of a tensor's.
const SHUFFLE: u64 = 0x5348_5546;
const SUBSET: u64 = 0x5355_4253;
const HELD: u64 = 0x4845_4c44;

/// How much is held out of training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HeldOut {
    /// Nothing.
    #[default]
    None,
    /// About this share of the rows.
    Fraction(f64),
    /// At least so many samples; a row and its duplicates stay together.
    Count(usize),
}

/// As it is read back.
impl fmt::Display for HeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldOut::None => f.write_str("0"),
            HeldOut::Fraction(share) => write!(f, "{share:?}"),
            HeldOut::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for HeldOut {
    type Err = String;

    /// `0.05`, `5%` or `100`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(count) = text.parse::<usize>() {
            return Ok(if count == 0 { HeldOut::None } else { HeldOut::Count(count) });
        }
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        match share {
            Ok(share) if share > 0.0 && share < 1.0 => Ok(HeldOut::Fraction(share)),
            Ok(0.0) => Ok(HeldOut::None),
            _ => Err("a share such as 0.05 or 5%, or a number of rows such as 100".into()),
        }
    }
}

/// Indices of samples, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// To learn from.
    pub train: Vec<usize>,
    /// To measure on.
    pub held: Vec<usize>,
}

/// Splits by what a row says: duplicates fall on the same side, and a row stays where it is when
/// others come or go (with a share; a number depends on all rows).
pub fn split(samples: &[Sample], held: HeldOut, seed: u64) -> Split {
    let is_held: Box<dyn Fn(u64) -> bool> = match held {
        HeldOut::None => Box::new(|_| false),
        HeldOut::Fraction(share) => {
            Box::new(move |hash| (draw(seed, 0, HELD, hash) as f64) < share * (u64::MAX as f64))
        }
        HeldOut::Count(count) => {
            let limit = limit_of(samples, count, seed);
            Box::new(move |hash| limit.is_some_and(|limit| held_key(seed, hash) <= limit))
        }
    };
    let (held, train) = (0..samples.len()).partition(|&index| is_held(samples[index].hash));
    Split { train, held }
}

fn held_key(seed: u64, hash: u64) -> (u64, u64) {
    (draw(seed, 0, HELD, hash), hash)
}

/// The largest key that is held so that at least `count` samples are.
fn limit_of(samples: &[Sample], count: usize, seed: u64) -> Option<(u64, u64)> {
    let mut keys: Vec<(u64, u64)> = samples.iter().map(|sample| held_key(seed, sample.hash)).collect();
    keys.sort_unstable();
    count.min(keys.len()).checked_sub(1).map(|last| keys[last])
}

/// 64 random bits keyed by meaning.
fn draw(seed: u64, epoch: u64, purpose: u64, element: u64) -> u64 {
    let [low, high, _, _] = philox::Stream::new(seed, epoch, purpose).quad(element);
    u64::from(high) << 32 | u64::from(low)
}

/// The order of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The run's seed.
    pub seed: u64,
    /// Epochs before this one.
    pub epoch: u64,
}

impl Order {
    /// These samples as often as their sources' weights say, shuffled.
    pub fn arrange(&self, data: &Dataset, train: &[usize]) -> Vec<usize> {
        let mut order = Vec::with_capacity(train.len());
        for (source, report) in data.sources.iter().enumerate() {
            let own = || train.iter().copied().filter(|&index| data.samples[index].source == source);
            for _ in 0..report.weight.floor() as usize {
                order.extend(own());
            }
            order.extend(self.subset(own().collect(), report.weight.fract()));
        }
        shuffle(&mut order, self.seed, self.epoch, SHUFFLE);
        order
    }

    /// A share of these, drawn anew each epoch; to the nearest whole number.
    fn subset(&self, indices: Vec<usize>, share: f64) -> Vec<usize> {
        let count = (indices.len() as f64 * share).round() as usize;
        let key = |&index: &usize| (draw(self.seed, self.epoch, SUBSET, index as u64), index);
        let mut drawn = indices;
        drawn.sort_by_cached_key(key);
        drawn.truncate(count);
        drawn.sort_unstable();
        drawn
    }
}

/// Fisher and Yates, from the end.
pub(super) fn shuffle<T>(items: &mut [T], seed: u64, epoch: u64, purpose: u64) {
    for last in (1..items.len()).rev() {
        let bits = draw(seed, epoch, purpose, last as u64);
        let other = (u128::from(bits) * (last as u128 + 1)) >> 64;
        items.swap(last, other as usize);
    }
}
