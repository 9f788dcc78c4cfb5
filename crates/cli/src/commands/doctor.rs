//! `halfbyte doctor`: what can compute here, by which path, and what stands in the way.

use clap::Args;
use halfbyte_plan::memory::{self, Memory};
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output::{self, bytes};
use crate::place::{Gpu, Gpus, Place, PlaceArgs, kernels};

/// Show what can compute here: kernels, GPUs, driver, libraries, memory, and which path is taken
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte doctor
  halfbyte doctor --json

HALFBYTE_CUBLASLT names a libcublasLt to use, or is \"off\": then our own kernels make all products.")]
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
    let paths = paths(&place);
    if args.json {
        output::json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": { "kernels": kernels(), "threads": args.place.threads(), "memory": memory::read().map(room) },
            "cuda": cuda(&gpus),
            "computes_on": place.describe(),
            "paths": paths.iter().map(|(what, path)| json!({ "what": what, "path": path })).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    let line = |name: &str, text: &str| println!("{name:<12} {text}");
    line("halfbyte", env!("CARGO_PKG_VERSION"));
    line("cpu", &format!("{} threads · kernels {}", args.place.threads(), kernels().join(", ")));
    let memory = memory::read().map_or("unknown".to_owned(), |memory| {
        format!(
            "{} may be used: {} are free, less {} reserve",
            bytes(memory.budget()),
            bytes(memory.available),
            bytes(memory.reserve())
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
    Ok(())
}

fn described(gpu: &Gpu) -> String {
    let kind =
        if gpu.integrated { "shared with the CPU: the system's memory counts" } else { "its own memory" };
    let free = gpu.free.map_or(String::new(), |free| format!(", {} free", bytes(free)));
    format!("{}, sm_{}{}, {}{free}, {kind}", gpu.name, gpu.capability.0, gpu.capability.1, bytes(gpu.memory))
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

/// What is computed how on a place, and why.
fn paths(place: &Place) -> Vec<(&'static str, String)> {
    match place {
        Place::Cpu { isa, .. } => {
            vec![("everything", format!("{isa}, the fastest set that was found or asked for"))]
        }
        Place::Cuda(device) => {
            let (major, _) = device.properties().capability;
            let fp4 = match major {
                ..10 => "not used: this chip has no 4-bit units; weights are decoded to bf16",
                _ => "not used: written for bf16 first; weights are decoded to bf16",
            };
            let many = match device.library_problem() {
                None => device.products(),
                Some(problem) => format!("own kernels on bf16 tensor cores: {problem}"),
            };
            vec![
                ("products of few tokens", "own kernels, weights decoded on the way".into()),
                ("products of many tokens", many),
                ("attention, both ways", "own kernels on bf16 tensor cores".into()),
                ("rounding and the optimizer", "own kernels, the bits of the CPU".into()),
                ("native NVFP4", fp4.into()),
            ]
        }
    }
}
