//! How long each kernel took: two places in the stream around every one, read when somebody asks.

use std::time::Duration;

use halfbyte_ops::Result;

use crate::Cuda;
use crate::driver::Event;

/// What was noted since the last reading; events are used again.
#[derive(Default)]
pub(crate) struct Profile {
    events: Vec<[Event; 2]>,
    names: Vec<&'static str>,
}

/// Times of the kernels since the last reading, in order; the first reading begins the noting. Waits.
pub(crate) fn read(cuda: &mut Cuda) -> Result<Vec<(&'static str, Duration)>> {
    cuda.start_chain()?;
    cuda.device.session.wait()?;
    let profile = cuda.profile.get_or_insert_default();
    let noted = profile.names.drain(..).zip(&profile.events);
    noted.map(|(name, [from, to])| Ok((name, to.since(from)?))).collect()
}

impl Cuda {
    /// Starts something on the stream, and notes its time where times are noted.
    pub(crate) fn noted(
        &mut self,
        name: &'static str,
        start: impl FnOnce(&mut Cuda) -> Result<()>,
    ) -> Result<()> {
        self.start_chain()?;
        self.note_start(name);
        self.timed(name, start)
    }

    /// The same, in front of what was put down and not started yet.
    pub(crate) fn timed(
        &mut self,
        name: &'static str,
        start: impl FnOnce(&mut Cuda) -> Result<()>,
    ) -> Result<()> {
        let Some(mut profile) = self.profile.take() else { return start(self) };
        if profile.names.len() == profile.events.len() {
            let session = &self.device.session;
            profile.events.push([Event::new(session)?, Event::new(session)?]);
        }
        let [from, to] = &profile.events[profile.names.len()];
        from.note()?;
        let started = start(self);
        to.note()?;
        profile.names.push(name);
        self.profile = Some(profile);
        started
    }
}
