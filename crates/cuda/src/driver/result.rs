//! Answers of the driver as values: which call, what the driver calls the failure, what to do.

use std::ffi::{CStr, c_char};

use super::sys::{Driver, Status};

/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NO_DEVICE`
const NO_DEVICE: Status = 100;
/// `CUDA_ERROR_INVALID_PTX`, `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`
const OLD_DRIVER: [Status; 2] = [218, 222];
/// `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_LAUNCH_FAILED`, `CUDA_ERROR_MISALIGNED_ADDRESS`
const BROKEN_KERNEL: [Status; 3] = [700, 719, 716];

/// What the driver could not do, with the remedy.
#[derive(Debug)]
pub struct DriverError {
    text: String,
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DriverError {}

impl From<DriverError> for halfbyte_ops::Error {
    fn from(error: DriverError) -> halfbyte_ops::Error {
        halfbyte_ops::Error::Device(error.text)
    }
}

impl DriverError {
    pub(super) fn new(text: String) -> DriverError {
        DriverError { text }
    }

    pub(super) fn library_missing(reason: &str) -> DriverError {
        DriverError::new(format!(
            "no CUDA: {reason}. Install the NVIDIA driver (575 or newer), or compute with --device cpu."
        ))
    }

    pub(super) fn call_missing(name: &str, reason: &str) -> DriverError {
        DriverError::new(format!(
            "the CUDA driver has no {name}: {reason}. Install NVIDIA driver 575 or newer."
        ))
    }
}

impl Driver {
    /// An error unless the call succeeded; `call` is its name with the sizes that matter.
    pub(crate) fn check(&self, call: &str, status: Status) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let remedy = match status {
            OUT_OF_MEMORY => {
                " Close what else uses the GPU, or ask for less (a shorter context, a smaller batch)."
            }
            NO_DEVICE => " Compute with --device cpu.",
            status if OLD_DRIVER.contains(&status) => " Install NVIDIA driver 575 or newer.",
            status if BROKEN_KERNEL.contains(&status) => {
                " A kernel failed, which is a fault of halfbyte: please report it; --device cpu avoids it."
            }
            _ => "",
        };
        let (name, text) = (self.text_of(self.error_name, status), self.text_of(self.error_string, status));
        Err(DriverError::new(format!("{call}: {name} ({text}).{remedy}")))
    }

    fn text_of(
        &self,
        function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a text of its own that lives for ever, or null.
        unsafe {
            if function(status, &mut text) != 0 || text.is_null() {
                return format!("status {status}");
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
