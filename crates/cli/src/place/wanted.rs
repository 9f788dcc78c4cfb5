//! `--device` and its companions, and the place that they lead to.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use halfbyte_cpu::Isa;
use halfbyte_cuda::{Compute, Device};
use serde::Serialize;

use super::kernels::{Kernels, Products};
use super::{Place, gpus};
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
    /// Kernels to use: of a CPU amx, avx512, avx2, neon or scalar, of a GPU own, or cublaslt for the products
    /// of many tokens [default: the fastest found]
    #[arg(long, value_name = "SET")]
    #[serde(serialize_with = "config::maybe")]
    pub(crate) kernels: Option<Kernels>,
    /// Refuse to run on kernels slower than this set
    #[arg(long, value_name = "SET")]
    #[serde(serialize_with = "config::maybe")]
    pub(crate) require: Option<Kernels>,
    /// Where a GPU shares the machine's memory: prefer (plan with what the system has free, read weights into
    /// it once), off (as if it were the GPU's own), or require (refuse a GPU that does not share)
    #[arg(long, value_enum, default_value = "prefer", value_name = "RULE", hide_possible_values = true)]
    pub(crate) unified: Unified,
    /// What a GPU's products of many tokens with NVFP4 weights are computed in: bf16 (exact weights), fp8 (on the way
    /// forward, weights and tokens rounded to 8 bits), native-fp4 (exact weights, tokens rounded to 4 bits, and in
    /// training gradients from sides of 4 bits rounded at random: Blackwell, not yet seen on one), or auto: bf16;
    /// reference computes everything by the plain lines that all kernels are judged by, on the CPU, slowly
    #[arg(long, value_enum, default_value = "auto", value_name = "BITS", hide_possible_values = true)]
    pub(crate) compute: InBits,
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

/// What `--unified` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unified {
    Off,
    Prefer,
    Require,
}

impl Unified {
    /// Whether the memory of a GPU counts as the machine's, for one of this name whose memory it is or is not.
    fn judge(self, name: &str, integrated: bool) -> Result<bool> {
        match self {
            Unified::Off => Ok(false),
            Unified::Require if !integrated => Err(Failure::misuse(format!(
                "--unified require: {name} has memory of its own\nleave the flag out, or choose another --device"
            ))),
            Unified::Prefer | Unified::Require => Ok(integrated),
        }
    }
}

/// What `--compute` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InBits {
    Auto,
    Bf16,
    Fp8,
    NativeFp4,
    Reference,
}

impl InBits {
    /// What a GPU is told. Weights are exact unless somebody asks for less.
    fn of_gpu(self) -> Compute {
        match self {
            InBits::Auto | InBits::Bf16 | InBits::Reference => Compute::Bf16,
            InBits::Fp8 => Compute::Fp8,
            InBits::NativeFp4 => Compute::NativeFp4,
        }
    }
}

fn parse_threads(text: &str) -> std::result::Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=MOST_THREADS).contains(threads))
        .ok_or(format!("1 to {MOST_THREADS}"))
}

impl PlaceArgs {
    pub(crate) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).clamp(1, MOST_THREADS)
    }

    /// What computes, with the plan that `plan` makes for it; a place where that fails is no place.
    pub(crate) fn settle<T>(&self, plan: impl Fn(&Place) -> Result<T>) -> Result<(Place, T)> {
        let wanted = self.wanted()?;
        let found = match wanted {
            Wanted::Cuda(number) => {
                let device = gpus::open(number, self.products())?;
                let place = self.gpu(&device)?;
                checked::gpu(&device)?;
                Some(place)
            }
            Wanted::Auto => gpus::open(0, self.products()).ok().and_then(|device| {
                let passed = checked::gpu(&device);
                let passed = passed.inspect_err(|failure| eprintln!("{failure}; the CPU computes"));
                passed.and_then(|()| self.gpu(&device)).ok()
            }),
            Wanted::Cpu => None,
        };
        if let Some(place) = found {
            match plan(&place) {
                Err(failure) if wanted == Wanted::Auto && failure.code == Code::WouldNotFit => {
                    eprintln!("{}: the plan does not fit, so the CPU computes", place.describe());
                }
                planned => return planned.map(|planned| (place, planned)),
            }
        }
        let place = Place::Cpu { isa: self.isa()?, threads: self.threads() };
        let planned = plan(&place)?;
        Ok((place, planned))
    }

    /// Why these flags are refused here, if they are. The kernels are not tested.
    pub(crate) fn refusal(&self) -> Option<Failure> {
        let found = self.wanted().and_then(|wanted| match wanted {
            Wanted::Cuda(number) => self.gpu(&gpus::open(number, self.products())?).map(drop),
            Wanted::Auto | Wanted::Cpu => self.isa().map(drop),
        });
        found.err()
    }

    /// The device, where other flags leave no choice: who names kernels wants what has them, and only a GPU can
    /// share the machine's memory or compute in few bits.
    fn wanted(&self) -> Result<Wanted> {
        let sets = [("--kernels", self.kernels), ("--require", self.require)];
        let named = sets.into_iter().filter_map(|(flag, set)| {
            set.map(|set| (format!("{flag} {set}"), matches!(set, Kernels::Gpu(_))))
        });
        let unified = (self.unified == Unified::Require).then(|| ("--unified require".to_owned(), true));
        let of_gpu = self.compute.of_gpu();
        let few_bits = (of_gpu != Compute::Bf16).then(|| (format!("--compute {}", of_gpu.name()), true));
        let reference = self.reference().then(|| ("--compute reference".to_owned(), false));
        let mut wanted = self.device;
        for (flag, on_gpu) in named.chain(unified).chain(few_bits).chain(reference) {
            wanted = match (wanted, on_gpu) {
                (Wanted::Auto, true) => Wanted::Cuda(0),
                (Wanted::Cuda(_), true) => wanted,
                (Wanted::Auto | Wanted::Cpu, false) => Wanted::Cpu,
                _ => {
                    let owner = if on_gpu { "GPU" } else { "CPU" };
                    return Err(Failure::misuse(format!(
                        "{flag}: this is for a {owner}, and --device or another flag asks for {wanted}\nleave one of them out"
                    )));
                }
            };
        }
        Ok(wanted)
    }

    /// The fastest products to look for.
    fn products(&self) -> Products {
        match self.kernels {
            Some(Kernels::Gpu(products)) => products,
            _ => Products::CublasLt,
        }
    }

    /// A GPU as a place, or the refusal that flags asked for.
    fn gpu(&self, device: &Device) -> Result<Place> {
        let found = if device.has_library() { Products::CublasLt } else { Products::Own };
        let why = device.library_problem().unwrap_or("--kernels own asks for them");
        // Who asks for the library by name wants nothing less.
        for (flag, required) in [("--kernels", self.kernels), ("--require", self.require)] {
            Kernels::Gpu(found).meet(flag, required, why)?;
        }
        let properties = device.properties();
        let unified = self.unified.judge(&properties.name, properties.integrated)?;
        let (mut device, compute) = (device.clone(), self.compute.of_gpu());
        if compute != Compute::Bf16 {
            device.compute(compute).map_err(|error| {
                Failure::misuse(format!("--compute {}: {error}\n--compute bf16 works here", compute.name()))
            })?;
        }
        Ok(Place::Cuda { device, unified })
    }

    fn reference(&self) -> bool {
        self.compute == InBits::Reference
    }

    /// The CPU's kernels, or the refusal that `--require` asked for.
    fn isa(&self) -> Result<Isa> {
        if self.reference() {
            for (flag, required) in [("--kernels", self.kernels), ("--require", self.require)] {
                Kernels::Cpu(Isa::Scalar).meet(flag, required, "--compute reference asks for them")?;
            }
            return Ok(Isa::Scalar);
        }
        let isa = match self.kernels {
            Some(Kernels::Cpu(isa)) => isa,
            _ => Isa::detect(),
        };
        let why = format!("this machine's fastest kernels are {}", Isa::detect());
        Kernels::Cpu(isa).meet("--require", self.require, &why)?;
        Ok(isa)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        place: PlaceArgs,
    }

    fn wanted(flags: &str) -> Result<Wanted> {
        Line::parse_from(std::iter::once("halfbyte").chain(flags.split_whitespace())).place.wanted()
    }

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

    #[test]
    fn who_names_kernels_or_shared_memory_names_a_device() {
        let agree = [
            ("", Wanted::Auto),
            ("--kernels scalar", Wanted::Cpu),
            ("--require avx2 --device cpu", Wanted::Cpu),
            ("--kernels own", Wanted::Cuda(0)),
            ("--require cublaslt --device cuda:2", Wanted::Cuda(2)),
            ("--unified require", Wanted::Cuda(0)),
            ("--unified off", Wanted::Auto),
            ("--compute bf16", Wanted::Auto),
            ("--compute fp8", Wanted::Cuda(0)),
            ("--compute reference", Wanted::Cpu),
        ];
        for (flags, device) in agree {
            assert_eq!(wanted(flags).unwrap(), device, "{flags}");
        }
        for flags in [
            "--kernels own --device cpu",
            "--kernels amx --device cuda",
            "--kernels scalar --require cublaslt",
            "--unified require --device cpu",
            "--unified require --kernels neon",
            "--compute native-fp4 --device cpu",
            "--compute reference --device cuda",
        ] {
            assert_eq!(wanted(flags).unwrap_err().code, Code::Misuse, "{flags}");
        }
    }

    #[test]
    fn memory_is_shared_where_the_gpu_says_so_and_the_flag_allows_it() {
        let judge = |unified: Unified, integrated| unified.judge("Spark", integrated).ok();
        assert_eq!([true, false].map(|own| judge(Unified::Prefer, own)), [Some(true), Some(false)]);
        assert_eq!([true, false].map(|own| judge(Unified::Off, own)), [Some(false), Some(false)]);
        assert_eq!([true, false].map(|own| judge(Unified::Require, own)), [Some(true), None]);
    }
}
