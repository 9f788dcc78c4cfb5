//! An NVIDIA GPU as a backend: one arena of its memory, one stream, kernels embedded as PTX.
//!
//! Only the driver's library is needed, and it is found at run time (`driver`); cuBLASLt makes the products of many
//! tokens where one is found too, or our own warpgroups where the chip has them (`library`). Each op has its
//! launches in `<op>.rs` and its kernels in `<op>.cu` beside it; `cargo run -p xtask -- ptx` makes
//! `ptx/<op>.ptx` of them. All is asynchronous but what brings values back to the host.
//!
//! What rounds, quantises or learns gives the bits of the CPU. Products and attention sum in f32 on
//! tensor cores, in an order that is fixed but not that of `ops::dot`: the same bits at every run,
//! within rounding of the CPU's.

mod accumulate;
mod arena;
mod attend;
mod attend_gradient;
mod backend;
mod best;
mod chain;
mod copies;
mod cublaslt;
pub mod driver;
mod dynamic;
mod embed;
mod few_bits;
mod few_tokens;
mod gated;
mod heads;
mod heads_gradient;
mod launch;
mod library;
mod linear;
mod loss;
pub mod measure;
mod one_token;
mod product_gradients;
mod product_warpgroup;
mod profile;
mod ptx;
mod recording;
mod residual;
mod ring;
mod rms_norm;
mod rope;
mod row_gradients;
mod scratch;
pub mod self_test;
mod tallies;
mod update;
mod weight;

use std::cell::RefCell;
use std::rc::Rc;

use halfbyte_ops::{Buffer, Error, Luck, Result};

pub use cublaslt::usual_places;
pub use driver::{Driver, DriverError, Properties};
pub use few_bits::Compute;
pub use library::MANY;
pub use scratch::{ScratchNeed, TrainingNeed};

use driver::{DeviceMemory, Session};
use launch::Kernels;

/// Major compute capability that the PTX is made for.
const OLDEST: u32 = 8;

/// A GPU in use by this thread, with the kernels that the driver has translated for it so far.
#[derive(Clone)]
pub struct Device {
    kernels: Rc<RefCell<Kernels>>,
    session: Rc<Session>,
    properties: Rc<Properties>,
    library: Option<library::Library>,
    library_problem: Option<String>,
    /// Bytes of its memory that were in use when it had been opened.
    taken: usize,
}

/// Bytes that are taken beside an arena after a device was opened: kernels, rings, counters.
const BESIDE: usize = 26 << 20;

impl Device {
    /// The device with this number.
    pub fn open(driver: Driver, ordinal: u32) -> Result<Device> {
        let properties = Rc::new(driver.properties(ordinal)?);
        let (major, minor) = properties.capability;
        if major < OLDEST {
            return Err(Error::Device(format!(
                "{} is sm_{major}{minor}, and the kernels need sm_{OLDEST}0 (Ampere) or newer. Compute with --device cpu.",
                properties.name
            )));
        }
        let session = Session::open(driver, ordinal)?;
        let (kernels, library, library_problem) = (Rc::default(), None, None);
        let mut device = Device { kernels, session, properties, library, library_problem, taken: 0 };
        device.library = library::Library::own(&device);
        device.look()?;
        Ok(device)
    }

    /// Notes what is in use now, before any arena.
    fn look(&mut self) -> Result<()> {
        let (free, total) = self.memory()?;
        self.taken = total - free;
        Ok(())
    }

    /// Bytes of its memory beside an arena: what the driver, libraries and other programs hold.
    pub fn beside(&self) -> usize {
        self.taken + BESIDE
    }

    /// What it says of itself.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Free and total bytes of its memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        Ok(self.session.memory()?)
    }
}

/// The backend.
pub struct Cuda {
    /// Goes first: its graph is made of the device's kernels and of what the others hold.
    recorder: recording::Recorder,
    device: Device,
    arena: DeviceMemory,
    scratch: Buffer,
    ring: ring::Ring,
    lists: DeviceMemory,
    counters: DeviceMemory,
    counted: tallies::Counted,
    tickets: DeviceMemory,
    profile: Option<profile::Profile>,
    /// What decides random roundings in the gradients of products, where they may be rounded so.
    luck: Option<Luck>,
    chain: chain::Chain,
    decoded: RefCell<library::Decoded>,
}

impl Cuda {
    /// An arena of `bytes` on a device, with `scratch` inside it. Where that has no room for decoded weights, all are
    /// decoded on the way.
    pub fn new(device: &Device, bytes: usize, scratch: Buffer) -> Result<Cuda> {
        let session = &device.session;
        let library = device.library.clone().filter(|_| scratch.bytes >= library::SCRATCH);
        let cuda = Cuda {
            recorder: recording::Recorder::default(),
            device: Device { library, ..device.clone() },
            arena: DeviceMemory::take(session, bytes)?,
            scratch,
            ring: ring::Ring::new(session)?,
            lists: DeviceMemory::take(session, ring::ALL)?,
            counters: DeviceMemory::take(session, arena::COUNTERS * 8)?,
            counted: tallies::Counted::new(session)?,
            tickets: DeviceMemory::take(session, arena::TICKETS * 4)?,
            profile: None,
            luck: None,
            chain: chain::Chain::default(),
            decoded: RefCell::default(),
        };
        cuda.pointer("scratch", scratch)?;
        Ok(cuda)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The first device; says so where there is none.
    pub(crate) fn device() -> Option<Device> {
        let opened = Driver::load().map_err(Into::into).and_then(|driver| Device::open(driver, 0));
        opened.inspect_err(|error| eprintln!("skipped: no CUDA device: {error}")).ok()
    }

    /// Runs a contract on a device.
    pub(crate) fn on(device: &Device, scratch: usize, contract: impl Fn(&dyn Fn(usize) -> Cuda)) {
        contract(&|bytes| {
            let scratch = Buffer { offset: bytes, bytes: scratch };
            Cuda::new(device, bytes + scratch.bytes, scratch).unwrap()
        });
    }

    /// Runs a contract with every product made by cuBLASLt, whole and then in small parts; says so where there is none.
    fn by_the_library(contract: impl Fn(&dyn Fn(usize) -> Cuda)) {
        computed_by_the_library(Compute::Bf16, |make, _| contract(make));
    }

    /// The same in a way of its own; the contract is told how many tokens are multiplied at once.
    pub(crate) fn computed_by_the_library(
        compute: Compute,
        contract: impl Fn(&dyn Fn(usize) -> Cuda, usize),
    ) {
        let Some(mut device) = device() else { return };
        let asked = device.use_library(&usual_places(&[]), 1).and_then(|()| device.compute(compute));
        if let Err(error) = asked {
            return eprintln!("skipped: {error}");
        }
        whole_and_in_parts(device, contract);
    }

    fn whole_and_in_parts(mut device: Device, contract: impl Fn(&dyn Fn(usize) -> Cuda, usize)) {
        for most in [(usize::MAX, usize::MAX), (16, 64)] {
            device.library.as_mut().unwrap().most = most;
            on(&device, library::SCRATCH, |make| contract(make, most.0));
        }
    }

    /// The same by our own warpgroups, where the chip has them.
    fn by_warpgroups(contract: impl Fn(&dyn Fn(usize) -> Cuda)) {
        let Some(mut device) = device() else { return };
        device.library = library::Library::own(&device).map(|own| own.for_all());
        match device.library {
            Some(_) => whole_and_in_parts(device, |make, _| contract(make)),
            None => eprintln!("skipped: {} has no products of warpgroups", device.properties.name),
        }
    }

    macro_rules! contracts {
        ($($op:ident),*) => {$(
            #[test]
            fn $op() {
                if let Some(device) = device() {
                    on(&device, 8 << 20, |make| halfbyte_ops::$op::contract(make));
                }
            }
        )*};
    }

    contracts!(
        rms_norm,
        gated,
        residual,
        rope,
        heads,
        embed,
        linear,
        attend,
        loss,
        best,
        accumulate,
        again,
        update,
        learn,
        finite_differences
    );

    #[test]
    fn the_third_token_of_a_kind_is_done_by_a_recording() {
        if let Some(device) = device() {
            on(&device, 8 << 20, |make| assert_eq!(halfbyte_ops::again::repeated(make), 4));
        }
    }

    #[test]
    fn update_by_narrow_gradients() {
        if let Some(device) = device() {
            on(&device, 8 << 20, |make| halfbyte_ops::update::narrow_contract(make));
        }
    }

    #[test]
    fn linear_by_the_library() {
        by_the_library(|make| halfbyte_ops::linear::contract(make));
    }

    #[test]
    fn learn_by_the_library() {
        by_the_library(|make| halfbyte_ops::learn::contract(make));
    }

    #[test]
    fn linear_by_warpgroups() {
        by_warpgroups(|make| halfbyte_ops::linear::contract(make));
    }

    #[test]
    fn gated_by_warpgroups() {
        by_warpgroups(|make| halfbyte_ops::gated::contract(make));
    }

    #[test]
    fn heads_by_the_library() {
        by_the_library(|make| halfbyte_ops::heads::contract(make));
    }

    #[test]
    fn attend_by_the_library() {
        by_the_library(|make| halfbyte_ops::attend::contract(make));
    }

    #[test]
    fn gated_by_the_library() {
        by_the_library(|make| halfbyte_ops::gated::contract(make));
    }
}
