//! Which path each op takes on a place, and why.

use halfbyte_cpu::Isa;
use halfbyte_cuda::{Compute, Device};

use crate::place::Place;

/// What four bits mean; no chip that has them has run it.
const NATIVE: &str = "exact weights, tokens rounded to 4 bits; gradients of layers from sides of 4 bits, rounded at \
    random after a Hadamard transform (of weights) or along outputs (of inputs, where the weight, whose scales lie along \
    inputs, is rounded once more); head and embedding in bf16; seen in emulation, not yet on such a chip";

const DECODED: &str = "the plain lines of each op, compiled for avx2; weights decoded by hand";

/// What is computed, and how.
pub(super) fn paths(place: &Place) -> Vec<(&'static str, String)> {
    match place {
        Place::Cpu { isa, .. } => on_cpu(*isa),
        Place::Cuda { device, unified } => on_gpu(device, *unified),
    }
}

fn on_cpu(isa: Isa) -> Vec<(&'static str, String)> {
    let compiled = |set: Isa| format!("the plain lines of each op, compiled for {set}");
    let (few, many, attention, optimizer, rest) = match isa {
        Isa::Amx => (
            "avx512, written by hand",
            "amx tiles, written by hand",
            "amx tiles, written by hand",
            "avx512, written by hand for the default states",
            Isa::Avx512,
        ),
        Isa::Avx512 => (
            "avx512, written by hand",
            "avx512, written by hand",
            "there avx512, written by hand; back the plain lines, compiled for avx512",
            "avx512, written by hand for the default states",
            isa,
        ),
        Isa::Avx2 => (DECODED, DECODED, "", "", isa),
        _ => ("", "", "", "", isa),
    };
    let or_compiled = |path: &str| if path.is_empty() { compiled(rest) } else { path.to_owned() };
    vec![
        ("products of few tokens", or_compiled(few)),
        ("products of many tokens", or_compiled(many)),
        ("attention, both ways", or_compiled(attention)),
        ("rounding and the optimizer", or_compiled(optimizer)),
        ("everything else", compiled(rest)),
    ]
}

fn on_gpu(device: &Device, unified: bool) -> Vec<(&'static str, String)> {
    let (major, _) = device.properties().capability;
    let one = match major {
        ..9 => "own kernels, weights decoded on the way; this chip starts them one after the other",
        _ => "own kernels, weights decoded on the way; each begins before the one in front has ended",
    };
    let by = if device.decodes_before() { &device.products() } else { "own kernels on bf16 tensor cores" };
    let many = match device.library_problem() {
        None if device.mixes_products() => {
            format!("{by}; gate and up, and sums of several products, by own warpgroups")
        }
        None if device.has_library() => by.to_owned(),
        None => format!("{by}: asked for by --kernels own"),
        Some(problem) => format!("{by}: {problem}"),
    };
    let few_bits = |compute: Compute, rounded: &str| match device.clone().compute(compute) {
        Ok(()) => format!("with --compute {}: {rounded}", compute.name()),
        Err(error) => format!("not here: {error}"),
    };
    let memory = match unified {
        true => "the machine's: what the system has free is the budget, files are read past its cache",
        false => "the GPU's own: what the driver counts is the budget",
    };
    vec![
        ("products of one token", one.into()),
        ("products of few tokens", "own kernels on bf16 tensor cores, weights decoded on the way".into()),
        ("products of many tokens", many),
        ("products with f32 weights", "own kernels, there the bits of the CPU".into()),
        ("attention, both ways", "own kernels on bf16 tensor cores".into()),
        ("rounding and the optimizer", "own kernels, the bits of the CPU".into()),
        ("norms and all that is left", "own kernels".into()),
        ("native NVFP4", few_bits(Compute::NativeFp4, NATIVE)),
        ("FP8", few_bits(Compute::Fp8, "weights and tokens rounded to 8 bits; gradients in bf16")),
        ("memory", memory.into()),
    ]
}
