//! Memory that the driver hands out: the device's own, and the host's that copies can run beside.

use std::ffi::c_void;
use std::rc::Rc;

use super::device::Session;
use super::result::DriverError;
use super::sys::Address;

/// Bytes on the device, zeroed.
pub(crate) struct DeviceMemory {
    session: Rc<Session>,
    start: Address,
    bytes: usize,
}

impl DeviceMemory {
    pub(crate) fn take(session: &Rc<Session>, bytes: usize) -> Result<DeviceMemory, DriverError> {
        let mut start = 0;
        let bytes = bytes.max(64);
        // SAFETY: writes an address, which is freed in `drop`.
        let status = unsafe { (session.driver.memory_take)(&mut start, bytes) };
        let (free, total) = session.memory()?;
        let call = format!("cuMemAlloc of {bytes} bytes, where {free} of {total} are free");
        session.driver.check(&call, status)?;
        let memory = DeviceMemory { session: session.clone(), start, bytes };
        memory.clear(start, bytes)?;
        Ok(memory)
    }

    /// The address of `bytes` from `offset` on, if they lie inside.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Option<Address> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| self.start + offset as u64)
    }

    /// How many.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Zeros; `to` came from [`DeviceMemory::at`] with as many bytes.
    pub(crate) fn clear(&self, to: Address, bytes: usize) -> Result<(), DriverError> {
        let driver = &self.session.driver;
        // SAFETY: the range lies inside this allocation.
        driver.check("cuMemsetD8Async", unsafe { (driver.fill)(to, 0, bytes, self.session.stream) })
    }

    /// Bytes to another place; both addresses came from [`DeviceMemory::at`] with as many bytes.
    pub(crate) fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DriverError> {
        let driver = &self.session.driver;
        // SAFETY: both ranges lie inside this allocation.
        let status = unsafe { (driver.copy)(to, from, bytes, self.session.stream) };
        driver.check(&format!("cuMemcpyDtoDAsync of {bytes} bytes"), status)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `take`; the stream may still use it, so it is waited for.
        unsafe {
            (self.session.driver.stream_wait)(self.session.stream);
            (self.session.driver.memory_free)(self.start);
        }
    }
}

/// Bytes of the host that stay where they are, so that copies need not wait for the host.
pub(crate) struct PinnedMemory {
    session: Rc<Session>,
    start: *mut u8,
    bytes: usize,
}

impl PinnedMemory {
    pub(crate) fn take(session: &Rc<Session>, bytes: usize) -> Result<PinnedMemory, DriverError> {
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes a pointer, which is freed in `drop`.
        let status = unsafe { (session.driver.pinned_take)(&mut start, bytes) };
        session.driver.check(&format!("cuMemAllocHost of {bytes} bytes"), status)?;
        // SAFETY: just given, so long.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(PinnedMemory { session: session.clone(), start: start.cast(), bytes })
    }

    /// The part a copy is about to read or has just written. The stream must not be using it.
    pub(crate) fn part(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the allocation, initialised, and ours by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), bytes) }
    }

    /// Starts a copy from here to the device.
    pub(crate) fn send(&self, offset: usize, bytes: usize, to: Address) -> Result<(), DriverError> {
        assert!(offset + bytes <= self.bytes);
        let driver = &self.session.driver;
        // SAFETY: inside the allocation; `to` was checked by who gave it.
        let status =
            unsafe { (driver.copy_in)(to, self.start.add(offset).cast(), bytes, self.session.stream) };
        driver.check(&format!("cuMemcpyHtoDAsync of {bytes} bytes"), status)
    }

    /// Starts a copy from the device to here.
    pub(crate) fn fetch(&self, offset: usize, bytes: usize, from: Address) -> Result<(), DriverError> {
        assert!(offset + bytes <= self.bytes);
        let driver = &self.session.driver;
        // SAFETY: as in `send`; whoever reads it waits for the stream first.
        let status =
            unsafe { (driver.copy_out)(self.start.add(offset).cast(), from, bytes, self.session.stream) };
        driver.check(&format!("cuMemcpyDtoHAsync of {bytes} bytes"), status)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `take`; the stream may still use it, so it is waited for.
        unsafe {
            (self.session.driver.stream_wait)(self.session.stream);
            (self.session.driver.pinned_free)(self.start.cast());
        }
    }
}
