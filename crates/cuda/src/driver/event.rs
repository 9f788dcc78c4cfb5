//! Places in the stream that can be waited for, and whose times the device notes.

use std::rc::Rc;
use std::time::Duration;

use super::device::Session;
use super::result::DriverError;
use super::sys::Handle;

/// A place in the stream; it may be noted again.
pub(crate) struct Event {
    session: Rc<Session>,
    handle: Handle,
}

impl Event {
    pub(crate) fn new(session: &Rc<Session>) -> Result<Event, DriverError> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes a handle, which is destroyed in `drop`.
        session.driver.check("cuEventCreate", unsafe { (session.driver.event_create)(&mut handle, 0) })?;
        Ok(Event { session: session.clone(), handle })
    }

    /// Notes the time when everything asked for so far is done.
    pub(crate) fn note(&self) -> Result<(), DriverError> {
        let driver = &self.session.driver;
        // SAFETY: both live as long as this.
        let status = unsafe { (driver.event_note)(self.handle, self.session.stream) };
        driver.check("cuEventRecord", status)
    }

    /// Waits until the stream has passed the place; no longer where it was never noted.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        let driver = &self.session.driver;
        // SAFETY: lives as long as this.
        driver.check("cuEventSynchronize", unsafe { (driver.event_wait)(self.handle) })
    }

    /// From another place to this one; the stream has passed both.
    pub(crate) fn since(&self, start: &Event) -> Result<Duration, DriverError> {
        let (driver, mut milliseconds) = (&self.session.driver, 0.0f32);
        // SAFETY: writes a number.
        let status = unsafe { (driver.event_time)(&mut milliseconds, start.handle, self.handle) };
        driver.check("cuEventElapsedTime", status)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`; the driver keeps it until the stream has passed it.
        unsafe { (self.session.driver.event_destroy)(self.handle) };
    }
}
