//! From flags to a decoder on a device. The only place that names a backend.

use std::path::Path;

use clap::Args;
use halfbyte_checkpoint::{Architecture, Checkpoint, Encoding, LayerTensor, TensorName};
use halfbyte_cpu::{Cpu, Isa, ScratchNeed};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_model::{Decoder, fill, load};
use halfbyte_ops::CacheFormat;
use halfbyte_plan::{Change, Fit, Name, Plan, Settings, WeightChoice, fit, memory, plan};

use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::{Progress, bytes};

/// Context where nobody asked for another: enough for a conversation, small for the cache.
const DEFAULT_CONTEXT: usize = 4096;
/// Tokens of a prompt computed together.
const CHUNK: usize = 512;

/// Flags of every command that computes.
#[derive(Args, Clone, Debug)]
pub(crate) struct ComputeArgs {
    /// How weights are held: nvfp4, int8, bf16, f32, or keep (as the file has them)
    #[arg(long, default_value = "nvfp4", value_name = "FORMAT")]
    pub(crate) weights: WeightChoice,
    /// How NVFP4 block scales are chosen: nearest, four-over-six, search
    #[arg(long, default_value = "nearest", value_name = "RULE", value_parser = parse_scales)]
    pub(crate) scales: Scales,
    /// Positions the cache holds [default: the model's own limit, at most 4096]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// How keys and values are held: bf16, f32, int8
    #[arg(long, default_value = "bf16", value_name = "FORMAT", value_parser = parse_cache)]
    pub(crate) cache: CacheFormat,
    /// Threads that compute [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Kernels to use: amx, avx512, avx2, neon, scalar [default: the fastest found]
    #[arg(long, value_name = "SET", value_parser = parse_isa)]
    pub(crate) kernels: Option<Isa>,
    /// Refuse to run on kernels slower than this set
    #[arg(long, value_name = "SET", value_parser = parse_isa)]
    pub(crate) require: Option<Isa>,
}

/// "nearest" and so on.
pub(crate) fn parse_scales(text: &str) -> std::result::Result<Scales, String> {
    match text {
        "nearest" => Ok(Scales::Nearest),
        "four-over-six" => Ok(Scales::FourOverSix),
        "search" => Ok(Scales::Search),
        _ => Err("one of nearest, four-over-six, search".into()),
    }
}

/// As `parse_scales` reads it.
pub(crate) fn scales_name(scales: Scales) -> &'static str {
    match scales {
        Scales::Nearest => "nearest",
        Scales::FourOverSix => "four-over-six",
        Scales::Search => "search",
    }
}

pub(crate) fn parse_cache(text: &str) -> std::result::Result<CacheFormat, String> {
    let all = [CacheFormat::Bf16, CacheFormat::F32, CacheFormat::Int8];
    let found = all.into_iter().find(|format| format.name() == text);
    found.ok_or_else(|| "one of bf16, f32, int8".into())
}

pub(crate) fn parse_isa(text: &str) -> std::result::Result<Isa, String> {
    let found = Isa::ALL.into_iter().find(|isa| isa.name() == text);
    found.ok_or_else(|| "one of amx, avx512, avx2, neon, scalar".into())
}

impl ComputeArgs {
    /// What a command computes with that has flags for these two alone.
    pub(crate) fn usual(threads: Option<usize>, kernels: Option<Isa>) -> ComputeArgs {
        ComputeArgs {
            weights: WeightChoice::Nvfp4,
            scales: Scales::Nearest,
            context: None,
            cache: CacheFormat::Bf16,
            threads,
            kernels,
            require: None,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores).clamp(1, 256)
    }

    /// The kernels to use, or the refusal that `--require` asked for.
    pub(crate) fn isa(&self) -> Result<Isa> {
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

    /// The sizes a plan depends on.
    pub(crate) fn settings(&self, architecture: &Architecture, logit_rows: usize) -> Result<Settings> {
        let limit = architecture.max_context;
        let context = self.context.unwrap_or(limit.min(DEFAULT_CONTEXT));
        if context == 0 || context > limit {
            return Err(Failure::misuse(format!(
                "--context {context}: this model was made for 1 to {limit} positions"
            )));
        }
        Ok(Settings {
            context,
            chunk: CHUNK.min(context),
            logit_rows,
            weights: self.weights,
            cache: self.cache,
            threads: self.threads(),
        })
    }
}

/// A decoder ready to compute.
pub(crate) struct Opened {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) plan: Plan,
    pub(crate) decoder: Decoder<Cpu>,
}

/// Opens a model, plans, refuses what does not fit, loads.
pub(crate) fn open(path: &Path, args: &ComputeArgs, logit_rows: usize) -> Result<Opened> {
    let isa = args.isa()?;
    let checkpoint = embedded::open(path)?;
    let architecture = checkpoint.architecture.clone();
    let settings = args.settings(&architecture, logit_rows)?;
    let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
    let plan = make_plan(&architecture, &settings, &encoding);
    refuse_if_too_large(path, &plan, &architecture, &encoding)?;
    let scratch = plan.buffer(Name::Scratch).unwrap_or_default();
    let cpu = Cpu::new(isa, settings.threads, plan.arena_bytes, scratch)?;
    let mut decoder = Decoder::new(cpu, &architecture, &plan, &encoding)?;
    let mut progress = Progress::new("loading", architecture.parameters());
    load::load(&mut decoder.backend, &checkpoint, &plan, args.scales, &mut |done| progress.add(done))?;
    drop(progress);
    Ok(Opened { checkpoint, plan, decoder })
}

/// A decoder of a shape with random weights.
pub(crate) fn random(
    architecture: &Architecture,
    config: &Path,
    args: &ComputeArgs,
) -> Result<(Decoder<Cpu>, Plan)> {
    let isa = args.isa()?;
    let settings = args.settings(architecture, 1)?;
    let plan = make_plan(architecture, &settings, &|_| None);
    refuse_if_too_large(config, &plan, architecture, &|_| None)?;
    let scratch = plan.buffer(Name::Scratch).unwrap_or_default();
    let cpu = Cpu::new(isa, settings.threads, plan.arena_bytes, scratch)?;
    let mut decoder = Decoder::new(cpu, architecture, &plan, &|_| None)?;
    fill::fill(&mut decoder.backend, architecture, &plan, 0)?;
    Ok((decoder, plan))
}

/// The plan of a run on this program's CPU backend.
pub(crate) fn make_plan(
    architecture: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Plan {
    let columns = |tensor| architecture.shape(TensorName::Layer(0, tensor))[1];
    let inputs = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down].map(columns);
    let scratch = ScratchNeed {
        tokens: settings.chunk.max(settings.logit_rows),
        columns: inputs.into_iter().max().unwrap_or(0),
        context: settings.context,
        head_dim: architecture.head_dim,
        threads: settings.threads,
    };
    plan(architecture, settings, encoding, scratch.bytes())
}

/// Judges a plan against this machine's memory.
pub(crate) fn judge(
    plan: &Plan,
    architecture: &Architecture,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Fit {
    fit::fit(plan, memory::read(), &|settings| make_plan(architecture, settings, encoding))
}

fn refuse_if_too_large(
    path: &Path,
    plan: &Plan,
    architecture: &Architecture,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Result<()> {
    match judge(plan, architecture, encoding) {
        Fit::Fits => Ok(()),
        Fit::Lacks { bytes: lack, changes } => Err(Failure::new(
            Code::WouldNotFit,
            format!("{}\n{}{}", path.display(), crate::commands::plan::table(plan), lacking(lack, &changes)),
        )),
    }
}

/// "does not fit by 0.83 GB. Smallest change …"
pub(crate) fn lacking(lack: u64, changes: &[Change]) -> String {
    let list: Vec<String> = changes
        .iter()
        .map(|change| format!("{} ({})", change.flag, bytes(change.peak_bytes as u64)))
        .collect();
    match list.is_empty() {
        true => format!("does not fit by {}; no flag makes it fit: a smaller model would", bytes(lack)),
        false => format!("does not fit by {}. Smallest change that fits: {}", bytes(lack), list.join(" or ")),
    }
}
