//! Several conversations at once: their next tokens go through the products together, each over its own cache.

use halfbyte_ops::Backend;
use halfbyte_ops::best::Best;

use super::{Decoder, Observer, Wanted};
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

    /// Appends one token to each of these lanes; gives `each` the index and logits of every one. On devices with exact
    /// products they are what the lane would have got alone. Where one is full, nothing is done.
    ///
    /// # Panics
    /// Where a lane comes twice.
    pub fn feed_lanes(&mut self, tokens: &[(usize, u32)], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.check_lanes(tokens)?;
        if let &[(lane, token)] = tokens {
            return self.in_lane(lane, |it| it.feed(&[token], Wanted::Last, None, each));
        }
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
        self.check_lanes(tokens)?;
        if let &[(lane, token)] = tokens {
            let finite = self.in_lane(lane, |it| it.feed_for_best(&[token], best))?;
            each(0, best, finite);
            return Ok(());
        }
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

    /// Whether every lane has room for a token.
    fn check_lanes(&self, tokens: &[(usize, u32)]) -> Result<()> {
        for (i, (lane, _)) in tokens.iter().enumerate() {
            assert!(tokens[..i].iter().all(|(other, _)| other != lane), "two tokens for lane {lane}");
            let (have, context) = (self.lanes[*lane].len(), self.context);
            if have >= context {
                return Err(Error::TooLong { have, new: 1, context });
            }
        }
        Ok(())
    }

    /// Speaks of a lane for a moment.
    fn in_lane<T>(&mut self, lane: usize, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.lane, lane);
        let done = what(self);
        self.lane = before;
        done
    }

    /// The layers for one token of each lane.
    fn step(&mut self, tokens: &[(usize, u32)]) -> Result<()> {
        let ids: Vec<u32> = tokens.iter().map(|&(_, id)| id).collect();
        let lane = |number: usize| Lane { number, start: self.lanes[number].len() };
        let parts =
            tokens.iter().enumerate().map(|(row, &(number, _))| (row..row + 1, lane(number))).collect();
        self.pass(&ids, parts, &mut Observer::nobody())?;
        for &(number, id) in tokens {
            self.lanes[number].push(id);
        }
        Ok(())
    }
}
