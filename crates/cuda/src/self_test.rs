//! Whether this chip and driver compute what they must: the contracts of the ops whose faults nobody would notice
//! until a model is ruined, run on the device itself.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use halfbyte_ops::{Buffer, Error, Result, attend, gated, linear, loss, update};

use crate::{Cuda, Device, library};

/// What `make` gives to a contract: a backend with an arena of so many bytes.
type Contract = fn(&dyn Fn(usize) -> Cuda);

/// Rounding and the optimizer first: a wrong bit there is learnt, and never seen.
const FAMILIES: [(&str, Contract); 5] = [
    ("rounding and the optimizer", |make| update::contract(make)),
    ("products", |make| linear::contract(make)),
    ("gated products", |make| gated::contract(make)),
    ("attention", |make| attend::contract(make)),
    ("the loss", |make| loss::contract(make)),
];

/// What a check was made of, for who remembers it: the chip, the driver and the kernels.
pub fn identity(device: &Device) -> Result<String> {
    let (major, minor) = device.properties.capability;
    let sources = include_str!("../ptx/sources.txt");
    let hash = sources
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let driver = device.session.driver.version()?;
    Ok(format!("{} sm_{major}{minor} driver {driver} kernels {hash:016x}", device.properties.name))
}

/// Runs the contracts; the first that does not hold is an error. Takes a few seconds.
pub fn run(device: &Device) -> Result<()> {
    let make = |bytes: usize| {
        let scratch = Buffer { offset: bytes, bytes: library::SCRATCH };
        Cuda::new(device, bytes + scratch.bytes, scratch).expect("an arena for the self-test")
    };
    // A contract says by a panic what does not hold; nobody else's is silenced, for nobody else runs.
    let usual = take_hook();
    set_hook(Box::new(|_| {}));
    let broken = FAMILIES.iter().find_map(|(what, contract)| {
        let outcome = catch_unwind(AssertUnwindSafe(|| contract(&make)));
        outcome.err().map(|reason| (what, reason))
    });
    set_hook(usual);
    let Some((what, reason)) = broken else { return Ok(()) };
    let text = reason.downcast_ref::<String>().map(String::as_str);
    let text =
        text.or_else(|| reason.downcast_ref::<&str>().copied()).unwrap_or("for a reason it did not tell");
    Err(Error::Device(format!(
        "{}: {what} failed the self-test: {}. Another driver may help; --device cpu computes without this GPU.",
        device.properties.name,
        text.lines().next().unwrap_or_default()
    )))
}
