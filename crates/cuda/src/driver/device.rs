//! A device in use: its context, one stream, modules and their functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::rc::Rc;

use super::result::DriverError;
use super::sys::{self, Device, Driver, Handle};

/// What a device says of itself.
#[derive(Clone, Debug)]
pub struct Properties {
    /// "NVIDIA H200"
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory: usize,
    /// Whether that memory is the host's.
    pub integrated: bool,
    /// Shared memory that a block may ask for.
    pub shared: u32,
    /// Whether blocks of a launch can wait for each other.
    pub cooperative: bool,
}

impl Driver {
    /// Devices that the driver shows.
    pub fn devices(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&mut count) })?;
        Ok(count.max(0) as u32)
    }

    /// The newest CUDA that the driver speaks, as 12090 for 12.9.
    pub fn version(&self) -> Result<u32, DriverError> {
        let mut version = 0;
        // SAFETY: writes one number.
        self.check("cuDriverGetVersion", unsafe { (self.driver_version)(&mut version) })?;
        Ok(version.max(0) as u32)
    }

    /// What a device says of itself.
    pub fn properties(&self, ordinal: u32) -> Result<Properties, DriverError> {
        let device = self.device(ordinal)?;
        let (mut name, mut memory) = ([0 as c_char; 128], 0usize);
        // SAFETY: the driver writes at most so many characters, with a zero at the end, and a number.
        let name = unsafe {
            self.check("cuDeviceGetName", (self.device_name)(name.as_mut_ptr(), 127, device))?;
            self.check("cuDeviceTotalMem", (self.device_memory)(&mut memory, device))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let attribute = |which| self.attribute(device, which);
        Ok(Properties {
            name,
            capability: (attribute(sys::CAPABILITY[0])?, attribute(sys::CAPABILITY[1])?),
            multiprocessors: attribute(sys::MULTIPROCESSORS)?,
            memory,
            integrated: attribute(sys::INTEGRATED)? != 0,
            shared: attribute(sys::SHARED_OPTIN)?,
            cooperative: attribute(sys::COOPERATIVE_LAUNCH)? != 0,
        })
    }

    fn device(&self, ordinal: u32) -> Result<Device, DriverError> {
        let count = self.devices()?;
        if ordinal >= count {
            return Err(DriverError::new(format!(
                "there is no CUDA device {ordinal}: the driver shows {count}. Choose a smaller number, or --device cpu."
            )));
        }
        let mut device = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&mut device, ordinal as c_int) })?;
        Ok(device)
    }

    fn attribute(&self, device: Device, which: c_int) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGetAttribute", unsafe { (self.device_attribute)(&mut value, which, device) })?;
        Ok(value.max(0) as u32)
    }
}

/// A device's primary context, current on this thread, and the one stream everything runs on.
pub(crate) struct Session {
    pub(crate) driver: Driver,
    device: Device,
    pub(crate) stream: Handle,
}

impl Session {
    pub(crate) fn open(driver: Driver, ordinal: u32) -> Result<Rc<Session>, DriverError> {
        let device = driver.device(ordinal)?;
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: writes a handle, which is released in `drop`.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.context_retain)(&mut context, device) })?;
        let mut session = Session { driver, device, stream: std::ptr::null_mut() };
        // SAFETY: the context was just given; the stream does not wait for others (1).
        unsafe {
            session.driver.check("cuCtxSetCurrent", (session.driver.context_use)(context))?;
            let created = (session.driver.stream_create)(&mut session.stream, 1);
            session.driver.check("cuStreamCreate", created)?;
        }
        Ok(Rc::new(session))
    }

    /// Waits until everything that was asked for is done.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as the session.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(self.stream) })
    }

    /// Free and total bytes of the device's memory.
    pub(crate) fn memory(&self) -> Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.driver.check("cuMemGetInfo", unsafe { (self.driver.memory_info)(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: both were given by the driver; what failed to be made is null or never got here.
        unsafe {
            if !self.stream.is_null() {
                (self.driver.stream_wait)(self.stream);
                (self.driver.stream_destroy)(self.stream);
            }
            (self.driver.context_release)(self.device);
        }
    }
}

/// Kernels that were compiled together.
pub(crate) struct Module {
    session: Rc<Session>,
    handle: Handle,
}

/// A kernel; it lives as long as its module.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(crate) Handle);

impl Module {
    /// Has the driver translate PTX, which ends with a zero, for this device.
    pub(crate) fn load(session: &Rc<Session>, name: &str, ptx: &str) -> Result<Module, DriverError> {
        assert!(ptx.ends_with('\0'), "PTX ends with a zero");
        let mut log = [0u8; 4096];
        let mut options = sys::JIT_ERROR_LOG;
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: text and log live through the call; as many options as values.
        let status = unsafe {
            (session.driver.module_load)(
                &mut handle,
                ptx.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let said = CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy()).unwrap_or_default();
        session
            .driver
            .check(&format!("cuModuleLoadDataEx of {name} ({} bytes) {}", ptx.len(), said.trim()), status)?;
        Ok(Module { session: session.clone(), handle })
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function, DriverError> {
        let missing = |_| DriverError::new(format!("no kernel can be called {name:?}"));
        let text = CString::new(name).map_err(missing)?;
        let (driver, mut handle) = (&self.session.driver, std::ptr::null_mut());
        // SAFETY: writes a handle that lives as long as the module.
        let status = unsafe { (driver.module_function)(&mut handle, self.handle, text.as_ptr()) };
        driver.check(&format!("cuModuleGetFunction of {name}"), status)?;
        Ok(Function(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by this driver; nothing runs of it any more once the stream is idle.
        unsafe {
            (self.session.driver.stream_wait)(self.session.stream);
            (self.session.driver.module_unload)(self.handle);
        }
    }
}

impl Function {
    /// Lets blocks ask for more shared memory than the 48 KiB that all may have.
    pub(crate) fn allow_shared(self, session: &Session, bytes: u32) -> Result<(), DriverError> {
        let set = session.driver.function_attribute;
        // SAFETY: the function lives with its module.
        let status = unsafe { set(self.0, sys::DYNAMIC_SHARED, bytes as c_int) };
        session.driver.check(&format!("cuFuncSetAttribute for {bytes} bytes of shared memory"), status)
    }
}
