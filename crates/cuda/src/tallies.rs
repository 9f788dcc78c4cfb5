//! What calls did, counted on the device until somebody asks: counters for each call, and two places in the
//! stream between which it ran.

use std::rc::Rc;

use halfbyte_ops::{Result, Tallies, Tally};

use crate::Cuda;
use crate::driver::{DeviceMemory, Event, Session};
use crate::launch::DevicePtr;

/// Calls that are counted before the host must take them: the optimizer of a large model has a few hundred a step.
const MOST: usize = 4096;

/// Counters of a call: changed, rescaled, saturated, refused, squares; and one that a kernel has for itself.
const COUNTS: usize = 6;

/// What is counted and not asked for yet.
pub(crate) struct Counted {
    counts: DeviceMemory,
    /// For each call that was ever counted at once; used again.
    times: Vec<[Event; 2]>,
    /// Calls whose counts are on the device.
    calls: usize,
    /// What the host has already.
    told: Tallies,
}

impl Counted {
    pub(crate) fn new(session: &Rc<Session>) -> Result<Counted> {
        let counts = DeviceMemory::take(session, MOST * COUNTS * 8)?;
        Ok(Counted { counts, times: Vec::new(), calls: 0, told: Tallies::default() })
    }
}

/// What the calls since the last reading did. Waits.
pub(crate) fn read(cuda: &mut Cuda) -> Result<Tallies> {
    cuda.take_counts()?;
    Ok(std::mem::take(&mut cuda.counted.told))
}

impl Cuda {
    /// Makes a call with counters of its own, which are zero.
    pub(crate) fn counted(&mut self, call: impl FnOnce(&mut Cuda, DevicePtr) -> Result<()>) -> Result<()> {
        if self.counted.calls == MOST {
            self.take_counts()?;
        }
        let number = self.counted.calls;
        if number == self.counted.times.len() {
            let session = &self.device.session;
            self.counted.times.push([Event::new(session)?, Event::new(session)?]);
        }
        let counts = self.counted.counts.at(number * COUNTS * 8, COUNTS * 8).unwrap_or_default();
        self.counted.times[number][0].note()?;
        let made = call(self, DevicePtr(counts)).and_then(|()| Ok(self.counted.times[number][1].note()?));
        match made {
            Ok(()) => self.counted.calls += 1,
            // The next call has these counters.
            Err(_) => self.counted.counts.clear(counts, COUNTS * 8)?,
        }
        made
    }

    fn take_counts(&mut self) -> Result<()> {
        let mut bytes = vec![0; self.counted.calls * COUNTS * 8];
        let start = self.counted.counts.at(0, bytes.len()).unwrap_or_default();
        self.copy_out(DevicePtr(start), &mut bytes)?;
        let Counted { counts, times, told, calls } = &mut self.counted;
        counts.clear(start, bytes.len())?;
        *calls = 0;
        for (bytes, [from, to]) in bytes.as_chunks::<{ COUNTS * 8 }>().0.iter().zip(times) {
            let count = |index: usize| {
                let (words, _) = bytes.as_chunks::<8>();
                u64::from_le_bytes(words[index])
            };
            let [changed, rescaled, saturated, refused, squares, _] = std::array::from_fn(count);
            told.push(Tally { changed, rescaled, saturated, refused, squares }, to.since(from)?);
        }
        Ok(())
    }
}
