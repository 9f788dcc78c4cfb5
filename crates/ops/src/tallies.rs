//! What calls did, kept by a device until somebody asks: nothing waits for it inside a step.

use std::time::Duration;

use halfbyte_formats::state::Tally;

/// What the calls since the last reading did.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    /// One for each call, in order.
    pub each: Vec<Tally>,
    /// How long the device worked on them; inside a longer call, the time of all its threads divided by their number.
    pub time: Duration,
}

impl Tallies {
    /// One more call.
    pub fn push(&mut self, tally: Tally, time: Duration) {
        self.each.push(tally);
        self.time += time;
    }

    /// All calls together.
    pub fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.each.iter().for_each(|tally| sum.add(*tally));
        sum
    }
}
