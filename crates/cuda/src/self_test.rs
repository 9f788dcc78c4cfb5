//! Whether this chip and driver compute what they must: the contracts of the ops whose faults nobody would notice
//! until a model is ruined, run on the device itself.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use halfbyte_ops::{Buffer, Error, Result, again, attend, gated, linear, loss, update};

use crate::{Cuda, Device, library};

/// What `make` gives to a contract: a backend with an arena of so many bytes.
type Contract = fn(&dyn Fn(usize) -> Cuda);

/// Rounding and the optimizer first: a wrong bit there is learnt, and never seen.
const FAMILIES: [(&str, Contract); 6] = [
    ("rounding and the optimizer", |make| update::contract(make)),
    ("products", |make| linear::contract(make)),
    ("gated products", |make| gated::contract(make)),
    ("attention", |make| attend::contract(make)),
    ("the loss", |make| loss::contract(make)),
    ("one token after another", |make| again::contract(make)),
];

/// Again as products of many tokens are made, where they are made in a way of their own: all are then.
const OF_MANY_TOKENS: [(&str, Contract); 3] = [
    ("the optimizer of narrow gradients", |make| update::narrow_contract(make)),
    ("products of many tokens", |make| linear::contract(make)),
    ("gated products of many tokens", |make| gated::contract(make)),
];

/// What a check was made of, for who remembers it: the chip, the driver, the kernels and what multiplies.
pub fn identity(device: &Device) -> Result<String> {
    let (major, minor) = device.properties.capability;
    let sources = include_str!("../ptx/sources.txt");
    let hash = sources
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let driver = device.session.driver.version()?;
    let (name, products) = (&device.properties.name, device.products());
    Ok(format!("{name} sm_{major}{minor} driver {driver} kernels {hash:016x} products {products}"))
}

/// Runs the contracts; the first that does not hold is an error. Takes a few seconds.
pub fn run(device: &Device) -> Result<()> {
    let make = |device: &Device, bytes: usize| {
        let scratch = Buffer { offset: bytes, bytes: library::SCRATCH };
        Cuda::new(device, bytes + scratch.bytes, scratch).expect("an arena for the self-test")
    };
    let many = Device { library: device.library.as_ref().map(library::Library::for_all), ..device.clone() };
    let of_many = OF_MANY_TOKENS.iter().filter(|_| many.library.is_some()).map(|family| (&many, family));
    let mut families = FAMILIES.iter().map(|family| (device, family)).chain(of_many);
    // A contract says by a panic what does not hold; nobody else's is silenced, for nobody else runs.
    let usual = take_hook();
    set_hook(Box::new(|_| {}));
    let broken = families.find_map(|(device, (what, contract))| {
        let outcome = catch_unwind(AssertUnwindSafe(|| contract(&|bytes| make(device, bytes))));
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
