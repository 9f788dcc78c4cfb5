//! Where it is computed: `--device` and its companions. The only file that names a backend.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use halfbyte_checkpoint::{Architecture, Checkpoint, LayerTensor, TensorName};
use halfbyte_cpu::{Cpu, Isa, measure};
use halfbyte_cuda::{Cuda, Device, Driver, MANY, usual_places};
use halfbyte_ops::{Backend, Buffer};
use halfbyte_plan::memory::{self, Memory};
use halfbyte_plan::{Name, Plan, Settings};
use serde::Serialize;

use crate::checked;
use crate::config;
use crate::failure::{Code, Failure, Result};

/// More would wait for each other only.
const MOST_THREADS: usize = 256;

/// Flags that say what computes.
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct PlaceArgs {
    /// What computes: cpu, cuda (cuda:1 is the second GPU), or auto: the first GPU if there is one and
    /// the plan fits, else the CPU
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    #[serde(serialize_with = "config::text")]
    pub(crate) device: Wanted,
    /// Threads that compute on the CPU [default: one for each core]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
    /// CPU kernels to use: amx, avx512, avx2, neon, scalar [default: the fastest found]
    #[arg(long, value_name = "SET", value_parser = parse_isa)]
    #[serde(serialize_with = "config::maybe")]
    pub(crate) kernels: Option<Isa>,
    /// Refuse to run on CPU kernels slower than this set
    #[arg(long, value_name = "SET", value_parser = parse_isa)]
    #[serde(serialize_with = "config::maybe")]
    pub(crate) require: Option<Isa>,
}

/// What `--device` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Auto,
    Cpu,
    Cuda(u32),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Wanted, String> {
        let number = |text: &str| text.parse().ok().map(Wanted::Cuda);
        let found = match text {
            "auto" => Some(Wanted::Auto),
            "cpu" => Some(Wanted::Cpu),
            "cuda" => Some(Wanted::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(number),
        };
        found.ok_or_else(|| "one of auto, cpu, cuda, cuda:1".into())
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Auto => f.write_str("auto"),
            Wanted::Cpu => f.write_str("cpu"),
            Wanted::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

fn parse_threads(text: &str) -> std::result::Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=MOST_THREADS).contains(threads))
        .ok_or(format!("1 to {MOST_THREADS}"))
}

pub(crate) fn parse_isa(text: &str) -> std::result::Result<Isa, String> {
    let found = Isa::ALL.into_iter().find(|isa| isa.name() == text);
    found.ok_or_else(|| "one of amx, avx512, avx2, neon, scalar".into())
}

impl PlaceArgs {
    pub(crate) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).clamp(1, MOST_THREADS)
    }

    /// What computes, with the plan that `plan` makes for it; a place where that fails is no place.
    pub(crate) fn settle<T>(&self, plan: impl Fn(&Place) -> Result<T>) -> Result<(Place, T)> {
        // Who names CPU kernels wants them.
        let cpu = self.device == Wanted::Cpu || self.kernels.is_some() || self.require.is_some();
        let found = match self.device {
            Wanted::Cuda(number) => {
                let device = gpu(number)?;
                checked::gpu(&device)?;
                Some(Place::Cuda(device))
            }
            Wanted::Auto if !cpu => {
                let passes = |device: &Device| {
                    checked::gpu(device)
                        .inspect_err(|failure| eprintln!("{failure}; the CPU computes"))
                        .is_ok()
                };
                gpu(0).ok().filter(passes).map(Place::Cuda)
            }
            _ => None,
        };
        if let Some(place) = found {
            match plan(&place) {
                Err(failure) if self.device == Wanted::Auto && failure.code == Code::WouldNotFit => {
                    eprintln!("{}: the plan does not fit, so the CPU computes", place.describe());
                }
                planned => return planned.map(|planned| (place, planned)),
            }
        }
        let place = Place::Cpu { isa: self.isa()?, threads: self.threads() };
        let planned = plan(&place)?;
        Ok((place, planned))
    }

    /// The kernels to use, or the refusal that `--require` asked for.
    fn isa(&self) -> Result<Isa> {
        let isa = self.kernels.unwrap_or_else(Isa::detect);
        match self.require {
            Some(required) if isa < required || !required.available() => Err(Failure::new(
                Code::Failed,
                format!(
                    "--require {required}: this run would use {isa}\nthis machine's fastest kernels are {}",
                    Isa::detect()
                ),
            )),
            _ => Ok(isa),
        }
    }
}

fn gpu(number: u32) -> Result<Device> {
    let driver = Driver::load().map_err(halfbyte_ops::Error::from)?;
    let mut device = Device::open(driver, number)?;
    // Without the library our own kernels make all products; `doctor` says why.
    let _ = device.use_library(&libraries(), MANY);
    Ok(device)
}

/// Where cuBLASLt may be: the file that is named ("off" for none), else Python environments in use and the usual
/// places.
fn libraries() -> Vec<PathBuf> {
    if let Some(named) = env::var_os("HALFBYTE_CUBLASLT") {
        return if named == "off" { Vec::new() } else { vec![named.into()] };
    }
    let virtual_environment = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    let pythons = beside.filter_map(|folder| folder.parent().map(Path::to_path_buf));
    let pythons: Vec<PathBuf> = virtual_environment.into_iter().chain(pythons).collect();
    usual_places(&pythons)
}

/// The sets of kernels that this CPU has, slowest first.
pub(crate) fn kernels() -> Vec<&'static str> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).map(Isa::name).collect()
}

/// A GPU that the driver shows, whether or not it can be used.
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) capability: (u32, u32),
    pub(crate) memory: u64,
    /// Where it can be opened.
    pub(crate) free: Option<u64>,
    pub(crate) integrated: bool,
}

/// What the driver shows.
pub(crate) struct Gpus {
    /// 13000 for CUDA 13.0
    pub(crate) version: u32,
    pub(crate) devices: Vec<Gpu>,
}

impl Gpus {
    /// Asks the driver; or why there is nobody to ask.
    pub(crate) fn look() -> std::result::Result<Gpus, String> {
        let look = || -> std::result::Result<Gpus, halfbyte_cuda::DriverError> {
            let driver = Driver::load()?;
            let version = driver.version()?;
            let all: std::result::Result<Vec<_>, _> =
                (0..driver.devices()?).map(|number| driver.properties(number)).collect();
            let devices = all?.into_iter().enumerate().map(|(number, found)| Gpu {
                free: gpu(number as u32)
                    .ok()
                    .and_then(|device| device.memory().ok())
                    .map(|(free, _)| free as u64),
                name: found.name,
                capability: found.capability,
                memory: found.memory as u64,
                integrated: found.integrated,
            });
            Ok(Gpus { version, devices: devices.collect() })
        };
        look().map_err(|error| error.to_string())
    }
}

/// What computes.
#[derive(Clone)]
pub(crate) enum Place {
    Cpu { isa: Isa, threads: usize },
    Cuda(Device),
}

impl Place {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Place::Cpu { isa, threads } => format!("{threads} threads · {isa}"),
            Place::Cuda(device) => device.properties().name.clone(),
        }
    }

    /// Threads of the host that compute.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Place::Cpu { threads, .. } => *threads,
            Place::Cuda(_) => 1,
        }
    }

    /// Has a file read so that it does not take the memory of this place twice.
    pub(crate) fn prepare(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        match self {
            Place::Cuda(device) if device.properties().integrated => Ok(checkpoint.read_directly()?),
            _ => Ok(()),
        }
    }

    /// Tokens of a prompt that are computed together: enough to keep all of it busy.
    pub(crate) fn chunk(&self) -> usize {
        match self {
            Place::Cpu { .. } => 512,
            Place::Cuda(_) => 4096,
        }
    }

    /// An empty arena for a plan.
    pub(crate) fn backend(&self, plan: &Plan) -> Result<Box<dyn Backend>> {
        let scratch: Buffer = plan.buffer(Name::Scratch).unwrap_or_default();
        Ok(match self {
            Place::Cpu { isa, threads } => Box::new(Cpu::new(*isa, *threads, plan.arena_bytes, scratch)?),
            Place::Cuda(device) => Box::new(Cuda::new(device, plan.arena_bytes, scratch)?),
        })
    }

    /// Bytes of scratch that a conversation needs.
    pub(crate) fn scratch(&self, a: &Architecture, settings: &Settings) -> usize {
        let tokens = settings.chunk.max(settings.logit_rows);
        let (context, head_dim) = (settings.context, a.head_dim);
        match self {
            Place::Cpu { threads, .. } => {
                let columns = |tensor| a.shape(TensorName::Layer(0, tensor))[1];
                let inputs = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down].map(columns);
                let columns = inputs.into_iter().max().unwrap_or(0);
                halfbyte_cpu::ScratchNeed { tokens, columns, context, head_dim, threads: *threads }.bytes()
            }
            Place::Cuda(device) => {
                let (heads, library) = (a.heads, device.has_library());
                halfbyte_cuda::ScratchNeed { tokens, heads, head_dim, context, library }.bytes()
            }
        }
    }

    /// Bytes of scratch that a training step needs, with `words` of the vocabulary at a time.
    pub(crate) fn training_scratch(&self, a: &Architecture, settings: &Settings, words: usize) -> usize {
        let sides = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down, LayerTensor::Gate]
            .into_iter()
            .flat_map(|tensor| a.shape(TensorName::Layer(0, tensor)));
        let widest = sides.max().unwrap_or(0).max(words.min(a.vocab_size));
        let (tokens, longest, head_dim) = (settings.chunk, settings.context, a.head_dim);
        match self {
            Place::Cpu { threads, .. } => {
                halfbyte_cpu::TrainingNeed { tokens, longest, widest, head_dim, threads: *threads }.bytes()
            }
            Place::Cuda(_) => {
                let (heads, kv_heads) = (a.heads, a.kv_heads);
                let need = halfbyte_cuda::TrainingNeed { tokens, heads, kv_heads, head_dim, widest };
                need.bytes().max(self.scratch(a, settings))
            }
        }
    }

    /// A GPU with memory of its own. One that shares the machine's must leave it alive: the system's meters count.
    fn apart(&self) -> Option<&Device> {
        match self {
            Place::Cuda(device) if !device.properties().integrated => Some(device),
            _ => None,
        }
    }

    /// The memory that a plan must fit into; `None` where there is no meter.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let Some(device) = self.apart() else { return memory::read() };
        let (_, total) = device.memory().ok()?;
        // What others hold is part of the plan, see `complete`.
        Some(Memory { total: total as u64, available: total as u64 })
    }

    /// A plan with what is held beside its arena, in the memory that it must fit into.
    pub(crate) fn complete(&self, mut plan: Plan) -> Plan {
        if let Some(device) = self.apart() {
            plan.beside_bytes = device.beside();
        }
        plan
    }

    /// By whom what lies beside the arena is held, and what it is.
    pub(crate) fn beside(&self) -> (&'static str, &'static str) {
        match self.apart() {
            Some(_) => ("driver", "its own memory, libraries, other programs on this GPU"),
            None => ("program", "tokenizer, rows on their way from the file"),
        }
    }

    /// The most memory that was held: by this process, or on the GPU by all.
    pub(crate) fn held(&self) -> Option<u64> {
        let Some(device) = self.apart() else { return memory::peak_resident() };
        let (free, total) = device.memory().ok()?;
        Some((total - free) as u64)
    }

    /// Operations a second of the unit that makes products, where it can be measured.
    pub(crate) fn arithmetic(&self) -> Option<f64> {
        match self {
            Place::Cpu { isa, threads } => measure::arithmetic(*isa, *threads).ok(),
            Place::Cuda(device) => halfbyte_cuda::measure::arithmetic(device).ok(),
        }
    }

    /// Measures the speed of reading memory, again and again.
    pub(crate) fn reader(&self, bytes: usize) -> Result<Reader> {
        Ok(match self {
            Place::Cpu { isa, threads } => Reader::Cpu(measure::Reader::new(*isa, *threads, bytes)?),
            Place::Cuda(device) => {
                Reader::Cuda(Box::new(halfbyte_cuda::measure::Reader::new(device, bytes)?))
            }
        })
    }
}

/// See [`Place::reader`].
pub(crate) enum Reader {
    Cpu(measure::Reader),
    Cuda(Box<halfbyte_cuda::measure::Reader>),
}

impl Reader {
    /// Bytes a second.
    pub(crate) fn pass(&mut self) -> Result<f64> {
        Ok(match self {
            Reader::Cpu(reader) => reader.pass()?,
            Reader::Cuda(reader) => reader.pass()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(Wanted::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "CPU"] {
            assert!(text.parse::<Wanted>().is_err(), "{text}");
        }
    }
}
