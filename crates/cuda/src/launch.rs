//! Kernels by name: embedded PTX, translated by the driver when the first kernel of a module is asked for.

use std::collections::HashMap;
use std::ffi::c_void;

use halfbyte_ops::{Error, Result};

use crate::driver::{Function, LaunchAttribute, LaunchSettings, Module};
use crate::ptx::{MODULES, OF_SM_90};
use crate::{Cuda, Device};

/// More than any kernel takes.
const MOST_ARGUMENTS: usize = 48;
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
    fn find(&mut self, device: &Device, kernel: &'static str, shared: u32) -> Result<Function> {
        let mut known = match self.functions.get(kernel) {
            Some(known) if shared <= known.shared => return Ok(known.function),
            Some(known) => *known,
            None => Known { function: self.load(device, kernel)?, shared: PLAIN_SHARED },
        };
        if shared > known.shared {
            known.function.allow_shared(&device.session, shared)?;
            known.shared = shared;
        }
        self.functions.insert(kernel, known);
        Ok(known.function)
    }

    fn load(&mut self, device: &Device, kernel: &str) -> Result<Function> {
        let entry = format!(".entry {kernel}(");
        let has = |(_, ptx): &&(&str, &str)| ptx.contains(&entry);
        let (name, ptx) = MODULES.iter().chain(OF_SM_90).find(has).ok_or_else(|| {
            Error::Device(format!(
                "no embedded module has the kernel {kernel}: run cargo run -p xtask -- ptx"
            ))
        })?;
        if !self.modules.contains_key(name) {
            self.modules.insert(name, Module::load(&device.session, name, ptx)?);
        }
        Ok(self.modules[name].function(kernel)?)
    }
}

impl Cuda {
    /// Starts a kernel behind what was started before it.
    pub(crate) fn launch(&mut self, kernel: &'static str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        self.noted(kernel, |cuda| cuda.device.start(kernel, grid, arguments, None))
    }
}

impl Device {
    /// Starts a kernel with these arguments.
    pub(crate) fn start(
        &self,
        kernel: &'static str,
        grid: Grid,
        arguments: &[Arg],
        attribute: Option<LaunchAttribute>,
    ) -> Result<()> {
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        for (pointer, argument) in pointers[..arguments.len()].iter_mut().zip(arguments) {
            *pointer = std::ptr::from_ref(&argument.0).cast_mut().cast();
        }
        self.start_pointed(kernel, grid, &mut pointers, attribute)
    }

    /// Starts a kernel with one argument, laid out as it declares it.
    pub(crate) fn start_with<T>(
        &self,
        kernel: &'static str,
        grid: Grid,
        argument: &T,
        attribute: LaunchAttribute,
    ) -> Result<()> {
        self.start_pointed(
            kernel,
            grid,
            &mut [std::ptr::from_ref(argument).cast_mut().cast()],
            Some(attribute),
        )
    }

    fn start_pointed(
        &self,
        kernel: &'static str,
        grid: Grid,
        pointers: &mut [*mut c_void],
        attribute: Option<LaunchAttribute>,
    ) -> Result<()> {
        // The driver takes no launch of nothing.
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 || grid.blocks.2 == 0 {
            return Ok(());
        }
        let session = &self.session;
        let function = self.kernels.borrow_mut().find(self, kernel, grid.shared)?;
        let settings = LaunchSettings {
            blocks: grid.blocks.into(),
            threads: grid.threads.into(),
            shared: grid.shared,
            stream: session.stream,
            attributes: attribute.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            count: u32::from(attribute.is_some()),
        };
        let driver = &session.driver;
        // SAFETY: the function is of a loaded module; settings and arguments live through the call, which reads them;
        // arguments are as many and as wide as the kernel beside the caller declares; pointers were checked by
        // `pointer`.
        let status =
            unsafe { (driver.launch)(&settings, function.0, pointers.as_mut_ptr(), std::ptr::null_mut()) };
        if status != 0 {
            let Grid { blocks, threads, shared } = grid;
            let what = format!("{kernel}, {blocks:?} blocks of {threads:?} threads, {shared} bytes shared");
            driver.check(&format!("cuLaunchKernelEx of {what}"), status)?;
        }
        Ok(())
    }
}
