//! What a stream was asked for, kept, to be asked for again by one call.

use std::rc::Rc;

use super::device::Session;
use super::result::DriverError;
use super::sys::{CAPTURE, Handle};

/// Launches and copies in their order; they read and write the same places every time.
pub(crate) struct Graph {
    session: Rc<Session>,
    handle: Handle,
}

impl Session {
    /// Keeps what the stream is asked for from here on, instead of having it done.
    pub(crate) fn begin_capture(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as the session.
        let status = unsafe { (self.driver.capture_begin)(self.stream, CAPTURE) };
        self.driver.check("cuStreamBeginCapture", status)
    }

    /// What was kept. Whatever the answer, the stream has things done again.
    pub(crate) fn end_capture(self: &Rc<Session>) -> Result<Graph, DriverError> {
        let (driver, mut kept, mut handle) = (&self.driver, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both calls write a handle; the first is no longer needed behind the second, which copies what it says.
        unsafe {
            driver.check("cuStreamEndCapture", (driver.capture_end)(self.stream, &mut kept))?;
            let made = (driver.graph_make)(&mut handle, kept, 0);
            (driver.graph_destroy)(kept);
            driver.check("cuGraphInstantiateWithFlags", made)?;
        }
        Ok(Graph { session: self.clone(), handle })
    }
}

impl Graph {
    /// Has all of it done behind what was asked for before.
    pub(crate) fn launch(&self) -> Result<(), DriverError> {
        let driver = &self.session.driver;
        // SAFETY: made in `end_capture`; it is dropped before the kernels and the memory it is made of.
        driver.check("cuGraphLaunch", unsafe { (driver.graph_launch)(self.handle, self.session.stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `end_capture`; the driver keeps it until the stream has passed it.
        unsafe { (self.session.driver.graph_made_destroy)(self.handle) };
    }
}
