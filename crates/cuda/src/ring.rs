//! The pinned memory that copies go through, in two halves: one is filled while copies from the other are under way.

use std::rc::Rc;

use halfbyte_ops::Result;

use crate::driver::{Event, PinnedMemory, Session};

/// Bytes of it; on the device there are as many for lists of an op.
pub(crate) const RING: usize = 4 << 20;
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
}

impl Ring {
    pub(crate) fn new(session: &Rc<Session>) -> Result<Ring> {
        let left = [Event::new(session)?, Event::new(session)?];
        let memory = PinnedMemory::take(session, RING)?;
        Ok(Ring { session: session.clone(), memory, left, half: 0, used: 0 })
    }

    /// Has so many bytes, [`PIECE`] at most, filled where no copy reads any more; gives their place. Waits where the other
    /// half's copies are not done.
    pub(crate) fn put(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize> {
        assert!(bytes <= PIECE);
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
