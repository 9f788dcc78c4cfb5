//! Kernels by name: embedded PTX, translated by the driver when the first kernel of a module is asked for.

use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

use halfbyte_ops::{Error, Result};

use crate::driver::{Function, Module, Session};
use crate::ptx::MODULES;
use crate::{Cuda, Device};

/// Shared memory that every kernel may use without asking.
const PLAIN_SHARED: u32 = 48 * 1024;

/// An address on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevicePtr(pub(crate) u64);

impl DevicePtr {
    /// What a kernel takes for "not there".
    pub(crate) const NULL: DevicePtr = DevicePtr(0);

    /// So many bytes further.
    pub(crate) fn add(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

/// How many blocks of how many threads, with how much shared memory of their own choosing each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (u32, u32, u32),
    pub(crate) threads: (u32, u32, u32),
    pub(crate) shared: u32,
}

impl Grid {
    /// Blocks of `threads` along one axis.
    pub(crate) fn line(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: (blocks as u32, 1, 1), threads: (threads, 1, 1), shared: 0 }
    }

    /// One thread for each of `count`.
    pub(crate) fn each(count: usize, threads: u32) -> Grid {
        Grid::line(count.div_ceil(threads as usize), threads)
    }
}

/// An argument of a kernel. The driver takes as many of the bytes as the parameter has, so a size
/// may be declared with 32 bits or with 64.
#[derive(Clone, Copy)]
pub(crate) struct Arg(u64);

macro_rules! arguments {
    ($($type:ty: $value:ident => $bits:expr;)*) => {$(
        impl From<$type> for Arg {
            fn from($value: $type) -> Arg {
                Arg($bits)
            }
        }
    )*};
}

arguments! {
    DevicePtr: pointer => pointer.0;
    u64: value => value;
    usize: value => value as u64;
    u32: value => u64::from(value);
    i32: value => u64::from(value as u32);
    bool: value => u64::from(value);
    f32: value => u64::from(value.to_bits());
    f64: value => value.to_bits();
}

/// `args![x, n, eps]` for [`Cuda::launch`].
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::launch::Arg::from($value)),*] as &[$crate::launch::Arg] };
}
pub(crate) use args;

/// Modules and functions that were asked for so far.
#[derive(Default)]
pub(crate) struct Kernels {
    functions: HashMap<&'static str, Known>,
    modules: HashMap<&'static str, Module>,
}

/// A function, and how much shared memory it may use.
#[derive(Clone, Copy)]
struct Known {
    function: Function,
    shared: u32,
}

impl Kernels {
    /// A kernel that may use so much shared memory.
    fn find(&mut self, session: &Rc<Session>, kernel: &'static str, shared: u32) -> Result<Function> {
        let mut known = match self.functions.get(kernel) {
            Some(known) if shared <= known.shared => return Ok(known.function),
            Some(known) => *known,
            None => Known { function: self.load(session, kernel)?, shared: PLAIN_SHARED },
        };
        if shared > known.shared {
            known.function.allow_shared(session, shared)?;
            known.shared = shared;
        }
        self.functions.insert(kernel, known);
        Ok(known.function)
    }

    fn load(&mut self, session: &Rc<Session>, kernel: &str) -> Result<Function> {
        let entry = format!(".entry {kernel}(");
        let found = MODULES.iter().find(|(_, ptx)| ptx.contains(&entry));
        let (name, ptx) = found.ok_or_else(|| {
            Error::Device(format!(
                "no embedded module has the kernel {kernel}: run cargo run -p xtask -- ptx"
            ))
        })?;
        if !self.modules.contains_key(name) {
            self.modules.insert(name, Module::load(session, name, ptx)?);
        }
        Ok(self.modules[name].function(kernel)?)
    }
}

impl Cuda {
    /// Starts a kernel behind what was started before it.
    pub(crate) fn launch(&mut self, kernel: &'static str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let blocks = grid.blocks;
        if blocks.0 == 0 || blocks.1 == 0 || blocks.2 == 0 {
            return Ok(());
        }
        self.noted(kernel, |cuda| cuda.device.start(kernel, grid, arguments))
    }
}

impl Device {
    fn start(&self, kernel: &'static str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let (blocks, threads) = (grid.blocks, grid.threads);
        let session = &self.session;
        let function = self.kernels.borrow_mut().find(session, kernel, grid.shared)?;
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.0).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let driver = &session.driver;
        // SAFETY: the function is of a loaded module; arguments live through the call, and are as many
        // and as wide as the kernel beside the caller declares; pointers were checked by `pointer`.
        let status = unsafe {
            (driver.launch)(
                function.0,
                blocks.0,
                blocks.1,
                blocks.2,
                threads.0,
                threads.1,
                threads.2,
                grid.shared,
                session.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if status != 0 {
            let shared = grid.shared;
            let what = format!("{kernel}, {blocks:?} blocks of {threads:?} threads, {shared} bytes shared");
            driver.check(&format!("cuLaunchKernel of {what}"), status)?;
        }
        Ok(())
    }
}
