//! `halfbyte doctor`: what can compute here, by which path, and what stands in the way.

mod paths;

use clap::Args;
use halfbyte_plan::memory::{self, Memory};
use halfbyte_train::memory_size;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output;
use crate::place::{Gpu, Gpus, InBits, Kernels, PlaceArgs, Unified, Wanted, cpu_kernels};
use paths::paths;

/// Show what can compute here: kernels, GPUs, driver, libraries, memory, and which path is taken
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte doctor
  halfbyte doctor --json

Under \"refused\" are the flags that would not be taken here, and why. HALFBYTE_CUBLASLT names a
libcublasLt to use where several are installed.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let gpus = Gpus::look();
    let (place, ()) = args.place.settle(|_| Ok(()))?;
    let (paths, refused) = (paths(&place), refused());
    if args.json {
        output::json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": { "kernels": cpu_kernels(), "threads": args.place.threads(), "memory": memory::read().map(room) },
            "cuda": cuda(&gpus),
            "computes_on": place.describe(),
            "paths": paths.iter().map(|(what, path)| json!({ "what": what, "path": path })).collect::<Vec<_>>(),
            "refused": refused.iter().map(|(flags, reason)| json!({ "flags": flags, "reason": reason })).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    let line = |name: &str, text: &str| println!("{name:<12} {text}");
    line("halfbyte", env!("CARGO_PKG_VERSION"));
    line("cpu", &format!("{} threads · kernels {}", args.place.threads(), cpu_kernels().join(", ")));
    let memory = memory::read().map_or("unknown".to_owned(), |memory| {
        format!(
            "{} may be used: {} are free, less {} reserve",
            memory_size(memory.budget()),
            memory_size(memory.available),
            memory_size(memory.reserve())
        )
    });
    line("memory", &memory);
    match &gpus {
        Err(reason) => line("cuda", reason),
        Ok(gpus) => {
            line("cuda", &format!("driver for CUDA {}.{}", gpus.version / 1000, gpus.version % 1000 / 10));
            for (number, gpu) in gpus.devices.iter().enumerate() {
                line(&format!("cuda:{number}"), &described(gpu));
            }
        }
    }
    line("computes on", &place.describe());
    for (what, path) in paths {
        line("", &format!("{what:<28} {path}"));
    }
    for (number, (flags, reason)) in refused.iter().enumerate() {
        line(if number == 0 { "refused" } else { "" }, &format!("{}: {reason}", flags.join(", ")));
    }
    Ok(())
}

/// Flags that are refused here, those with one reason together.
fn refused() -> Vec<(Vec<String>, String)> {
    let plain = PlaceArgs {
        device: Wanted::Auto,
        threads: None,
        kernels: None,
        require: None,
        unified: Unified::Prefer,
        compute: InBits::Auto,
    };
    let gpu = ("--device cuda".to_owned(), PlaceArgs { device: Wanted::Cuda(0), ..plain.clone() });
    let sets = Kernels::all()
        .map(|set| (format!("--require {set}"), PlaceArgs { require: Some(set), ..plain.clone() }));
    let shared = ("--unified require".to_owned(), PlaceArgs { unified: Unified::Require, ..plain.clone() });
    let few_bits = [("--compute fp8", InBits::Fp8), ("--compute native-fp4", InBits::NativeFp4)]
        .map(|(flag, compute)| (flag.to_owned(), PlaceArgs { compute, ..plain.clone() }));
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for (flag, args) in std::iter::once(gpu).chain(sets).chain([shared]).chain(few_bits) {
        let Some(failure) = args.refusal() else { continue };
        let reason = failure.text.replace('\n', "; ");
        let reason = reason.strip_prefix(&format!("{flag}: ")).unwrap_or(&reason);
        match found.iter_mut().find(|(_, known)| known == reason) {
            Some((flags, _)) => flags.push(flag),
            None => found.push((vec![flag], reason.to_owned())),
        }
    }
    found
}

fn described(gpu: &Gpu) -> String {
    let kind =
        if gpu.integrated { "shared with the CPU: the system's memory counts" } else { "its own memory" };
    let free = gpu.free.map_or(String::new(), |free| format!(", {} free", memory_size(free)));
    format!(
        "{}, sm_{}{}, {}{free}, {kind}",
        gpu.name,
        gpu.capability.0,
        gpu.capability.1,
        memory_size(gpu.memory)
    )
}

fn room(memory: Memory) -> Value {
    json!({ "total": memory.total, "available": memory.available, "reserve": memory.reserve(), "budget": memory.budget() })
}

fn cuda(gpus: &std::result::Result<Gpus, String>) -> Value {
    match gpus {
        Err(reason) => json!({ "found": false, "reason": reason }),
        Ok(gpus) => {
            let devices = gpus.devices.iter().map(|gpu| {
                json!({
                    "name": gpu.name,
                    "capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
                    "memory_bytes": gpu.memory,
                    "free_bytes": gpu.free,
                    "unified": gpu.integrated,
                })
            });
            json!({ "found": true, "cuda_version": gpus.version, "devices": devices.collect::<Vec<_>>() })
        }
    }
}
