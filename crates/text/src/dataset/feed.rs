//! Sequences, epoch after epoch, from a place that can be written down and taken up again.

use serde::{Deserialize, Serialize};

use super::hash::Hash;
use super::order::{HeldOut, Order, Split, split};
use super::{Dataset, Sample};
use crate::error::Error;
use crate::packing::{Packing, Sequence};

/// Where a run is in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Whole epochs behind.
    pub epoch: u64,
    /// Sequences of this epoch behind.
    pub sequence: usize,
}

/// What decides the order, besides the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedSettings {
    /// Seed of split and order.
    pub seed: u64,
    /// What is held out.
    pub held_out: HeldOut,
    /// Several samples in a sequence; else each has its own.
    pub packed: bool,
}

/// Gives sequence after sequence.
pub struct Feed {
    data: Dataset,
    settings: FeedSettings,
    split: Split,
    position: Position,
    epoch: Packing,
    held: Packing,
}

impl Feed {
    /// Splits the data and stands at its beginning.
    pub fn new(data: Dataset, settings: FeedSettings) -> Result<Self, Error> {
        let split = split(&data.samples, settings.held_out, settings.seed);
        let files = || data.sources.first().map(|source| source.path.display().to_string());
        if split.train.is_empty() {
            let problem = format!("all {} samples are held out", split.held.len());
            let file = files().unwrap_or_default();
            return Err(Error::file(&file, "held-out split", problem, "Hold out less, or add rows."));
        }
        let held = pack(&settings, &data, &split.held);
        let mut feed =
            Feed { data, settings, split, position: Position::default(), epoch: Packing::default(), held };
        feed.epoch = feed.packing(0);
        if feed.epoch.is_empty() {
            let file = feed.data.sources.first().map(|source| source.path.display().to_string());
            let problem = "the weights leave no row in an epoch";
            return Err(Error::file(&file.unwrap_or_default(), "weights", problem, "Give larger weights."));
        }
        Ok(feed)
    }

    /// Goes to a place written down before.
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        let epoch = self.packing(position.epoch);
        if position.sequence > epoch.len() {
            let problem = format!("sequence {} of an epoch that has {}", position.sequence, epoch.len());
            return Err(Error::file("data", "position", problem, "The data or its settings have changed."));
        }
        (self.position, self.epoch) = (position, epoch);
        Ok(())
    }

    /// The next sequence; the next epoch follows the last one.
    pub fn next_sequence(&mut self) -> Sequence {
        if self.position.sequence >= self.epoch.len() {
            self.position = Position { epoch: self.position.epoch + 1, sequence: 0 };
            self.epoch = self.packing(self.position.epoch);
        }
        let sequence = self.epoch.sequence(self.position.sequence, &self.data.samples);
        self.position.sequence += 1;
        sequence.unwrap_or_default()
    }

    /// Where the next sequence is.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The sequences that are held out, in the order of the files.
    pub fn held_out(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.held.len()).filter_map(|index| self.held.sequence(index, &self.data.samples))
    }

    /// What is trained and what is held out.
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// The data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// "train.tsv line 204", for messages.
    pub fn place_of(&self, sample: usize) -> String {
        let place = |sample: &Sample| {
            let source = self.data.sources.get(sample.source);
            let file = source.map(|source| source.path.display().to_string()).unwrap_or_default();
            format!("{file} line {}", sample.line)
        };
        self.data.samples.get(sample).map(place).unwrap_or_default()
    }

    /// A number that changes with the data and with all that decides the order.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Hash::new();
        hash.number(self.data.fingerprint());
        hash.number(self.settings.seed);
        hash.number(u64::from(self.settings.packed));
        hash.number(self.split.held.len() as u64);
        self.split.held.iter().for_each(|&index| hash.number(index as u64));
        hash.finish()
    }

    fn packing(&self, epoch: u64) -> Packing {
        let order = Order { seed: self.settings.seed, epoch };
        pack(&self.settings, &self.data, &order.arrange(&self.data, &self.split.train))
    }
}

fn pack(settings: &FeedSettings, data: &Dataset, order: &[usize]) -> Packing {
    match settings.packed {
        true => Packing::first_fit(&data.samples, order, data.length),
        false => Packing::apart(order, data.length),
    }
}
