//! The pinned memory that copies go through, in two halves: one is filled while copies from the other are under way.
//! Behind them lies what a recording copies.

use std::rc::Rc;

use halfbyte_ops::{Error, Result};

use crate::driver::{Event, PinnedMemory, Session};

/// Bytes of both.
pub(crate) const RING: usize = 4 << 20;
/// Bytes behind them for what a recording copies, whenever it is run.
const RECORDED: usize = PIECE;
/// All of it; on the device there are as many for lists of an op.
pub(crate) const ALL: usize = RING + RECORDED;
/// Most bytes that are put there at once.
pub(crate) const PIECE: usize = RING / 4;
const HALF: usize = RING / 2;

pub(crate) struct Ring {
    session: Rc<Session>,
    memory: PinnedMemory,
    /// Where in the stream each half was last left.
    left: [Event; 2],
    half: usize,
    used: usize,
    /// How much of its place a recording has taken so far, while there is one.
    recorded: Option<usize>,
}

impl Ring {
    pub(crate) fn new(session: &Rc<Session>) -> Result<Ring> {
        let left = [Event::new(session)?, Event::new(session)?];
        let memory = PinnedMemory::take(session, ALL)?;
        Ok(Ring { session: session.clone(), memory, left, half: 0, used: 0, recorded: None })
    }

    /// Has so many bytes, [`PIECE`] at most, filled where no copy reads any more; gives their place. Waits where the other
    /// half's copies are not done.
    pub(crate) fn put(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize> {
        assert!(bytes <= PIECE);
        if let Some(used) = self.recorded {
            let end = (used + bytes).next_multiple_of(64);
            if end > RECORDED {
                return Err(Error::Device(format!("a token's lists take {end} bytes, {RECORDED} are kept")));
            }
            self.recorded = Some(end);
            fill(self.memory.part(RING + used, bytes));
            return Ok(RING + used);
        }
        if self.used + bytes > HALF {
            self.left[self.half].note()?;
            self.half ^= 1;
            self.left[self.half].wait()?;
            self.used = 0;
        }
        let at = self.half * HALF + self.used;
        fill(self.memory.part(at, bytes));
        self.used = (self.used + bytes).next_multiple_of(64);
        Ok(at)
    }

    /// What is put there from here on stays for a recording, or no longer.
    pub(crate) fn record(&mut self, on: bool) {
        self.recorded = on.then_some(0);
    }

    /// What was put there for a recording, to be changed once its copies are done.
    pub(crate) fn change(&mut self, at: usize, bytes: &[u8]) {
        self.memory.part(at, bytes.len()).copy_from_slice(bytes);
    }

    /// Starts a copy of what was put there to the device.
    pub(crate) fn send(&self, at: usize, bytes: usize, to: u64) -> Result<()> {
        Ok(self.memory.send(at, bytes, to)?)
    }

    /// Brings bytes from the device, [`RING`] at most; waits for all that was started before.
    pub(crate) fn fetch(&mut self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory.fetch(0, bytes.len(), from)?;
        self.session.wait()?;
        bytes.copy_from_slice(self.memory.part(0, bytes.len()));
        self.used = 0;
        Ok(())
    }
}
