//! Several conversations at once: their next tokens go through the products together, each over its own cache.

use halfbyte_ops::Backend;
use halfbyte_ops::best::Best;

use super::{Decoder, Observer};
use crate::block::Lane;
use crate::error::{Error, Result};

impl<B: Backend> Decoder<B> {
    /// Conversations that there is room for.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Speaks of this lane from here on; the others stay as they are.
    ///
    /// # Panics
    /// Where there are not so many lanes.
    pub fn enter(&mut self, lane: usize) {
        assert!(lane < self.lanes.len(), "lane {lane} of {}", self.lanes.len());
        self.lane = lane;
    }

    /// Tokens in the cache of a lane.
    pub fn tokens_of(&self, lane: usize) -> &[u32] {
        &self.lanes[lane]
    }

    /// Threads of the host that were planned with: who works on all lanes may use them.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Appends one token to each of these lanes, none of them twice; gives `each` the index and logits of every one. On
    /// devices with exact products they are what the lane would have got alone.
    pub fn feed_lanes(&mut self, tokens: &[(usize, u32)], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        for (index, part) in tokens.chunks(self.chunk).enumerate() {
            self.step(part)?;
            self.head(0..part.len(), index * self.chunk, &mut Observer::nobody(), each)?;
        }
        Ok(())
    }

    /// The same, of the highest logits only, best first: see [`Decoder::feed_for_best`]. `each` is also told whether all
    /// of its token's logits are finite.
    pub fn feed_lanes_for_best(
        &mut self,
        tokens: &[(usize, u32)],
        best: &mut [Best],
        each: &mut dyn FnMut(usize, &[Best], bool),
    ) -> Result<()> {
        let together = self.chunk.min(self.logit_rows);
        for (index, part) in tokens.chunks(together).enumerate() {
            self.step(part)?;
            let logits = self.logits(0, part.len(), &mut Observer::nobody())?;
            for row in 0..part.len() {
                let finite = self.backend.best(logits.slice(row, 1), best)?;
                each(index * together + row, best, finite);
            }
        }
        Ok(())
    }

    /// The layers for one token of each lane.
    fn step(&mut self, tokens: &[(usize, u32)]) -> Result<()> {
        let start = |number: usize| self.lanes[number].len();
        let lanes: Vec<Lane> =
            tokens.iter().map(|&(number, _)| Lane { number, start: start(number) }).collect();
        if let Some(&Lane { start: have, .. }) = lanes.iter().find(|lane| lane.start >= self.context) {
            return Err(Error::TooLong { have, new: 1, context: self.context });
        }
        let ids: Vec<u32> = tokens.iter().map(|&(_, id)| id).collect();
        let positions = lanes.clone().into_iter().map(|lane| lane.start);
        let parts = lanes.into_iter().enumerate().map(|(row, lane)| (row..row + 1, lane)).collect();
        self.pass(&ids, positions, parts, &mut Observer::nobody())?;
        for &(number, id) in tokens {
            self.lanes[number].push(id);
        }
        Ok(())
    }
}
