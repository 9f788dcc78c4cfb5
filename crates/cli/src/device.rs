//! From flags to a decoder on a device.

use std::path::Path;

use clap::Args;
use halfbyte_checkpoint::{Architecture, Checkpoint, Encoding, TensorName};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_model::{Decoder, fill, load};
use halfbyte_ops::{Backend, CacheFormat};
use halfbyte_plan::memory::Memory;
use halfbyte_plan::{Change, Fit, Plan, Settings, WeightChoice, fit, plan};
use halfbyte_train::memory_size;

use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::Progress;
use crate::place::{Place, PlaceArgs};

/// Context where nobody asked for another: enough for a conversation, small for the cache.
const DEFAULT_CONTEXT: usize = 4096;
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
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
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

impl ComputeArgs {
    /// What a command computes with that only says where.
    pub(crate) fn usual(place: PlaceArgs) -> ComputeArgs {
        ComputeArgs {
            weights: WeightChoice::Nvfp4,
            scales: Scales::Nearest,
            context: None,
            cache: CacheFormat::Bf16,
            place,
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
            lanes: 1,
            // As many as the place takes, see `make_plan`.
            chunk: context,
            logit_rows,
            weights: self.weights,
            cache: self.cache,
            threads: self.place.threads(),
        })
    }
}

/// A decoder on any device.
pub(crate) type AnyDecoder = Decoder<Box<dyn Backend>>;

/// A decoder ready to compute.
pub(crate) struct Opened {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) plan: Plan,
    pub(crate) place: Place,
    pub(crate) decoder: AnyDecoder,
}

/// Opens a model, plans, refuses what does not fit, loads.
pub(crate) fn open(path: &Path, args: &ComputeArgs, logit_rows: usize) -> Result<Opened> {
    loaded(embedded::open(path)?, path, args, logit_rows)
}

/// The same, of a model that is open.
pub(crate) fn loaded(
    checkpoint: Checkpoint,
    path: &Path,
    args: &ComputeArgs,
    logit_rows: usize,
) -> Result<Opened> {
    let settings = args.settings(&checkpoint.architecture, logit_rows)?;
    loaded_as(checkpoint, path, args, &settings)
}

/// The same, with settings of the caller's own.
pub(crate) fn loaded_as(
    mut checkpoint: Checkpoint,
    path: &Path,
    args: &ComputeArgs,
    settings: &Settings,
) -> Result<Opened> {
    let architecture = checkpoint.architecture.clone();
    let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
    let (place, plan) =
        args.place.settle(|place| fitting(path, place, &architecture, settings, &encoding))?;
    let mut decoder = Decoder::new(place.backend(&plan)?, &architecture, &plan, &encoding)?;
    place.prepare(&mut checkpoint)?;
    let mut progress = Progress::new("loading", architecture.parameters());
    load::load(&mut decoder.backend, &checkpoint, &plan, args.scales, &mut |done| progress.add(done))?;
    drop(progress);
    Ok(Opened { checkpoint, plan, place, decoder })
}

/// A decoder of a shape with random weights.
pub(crate) fn random(
    architecture: &Architecture,
    config: &Path,
    args: &ComputeArgs,
) -> Result<(AnyDecoder, Plan, Place)> {
    let settings = args.settings(architecture, 1)?;
    let (place, plan) =
        args.place.settle(|place| fitting(config, place, architecture, &settings, &|_| None))?;
    let mut decoder = Decoder::new(place.backend(&plan)?, architecture, &plan, &|_| None)?;
    fill::fill(&mut decoder.backend, architecture, &plan, 0)?;
    Ok((decoder, plan, place))
}

/// The plan of a run.
pub(crate) fn make_plan(
    place: &Place,
    architecture: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Plan {
    let settings = Settings { chunk: place.chunk().min(settings.context), ..settings.clone() };
    place.complete(plan(architecture, &settings, encoding, place.scratch(architecture, &settings)))
}

/// Judges a plan against the memory of its place.
pub(crate) fn judge(
    place: &Place,
    memory: Option<Memory>,
    plan: &Plan,
    architecture: &Architecture,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Fit {
    fit::fit(plan, memory, &|settings| make_plan(place, architecture, settings, encoding))
}

/// The plan of a run, if its place has room for it; with fewer lanes, if it has room for them only.
fn fitting(
    path: &Path,
    place: &Place,
    architecture: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Result<Plan> {
    let in_lanes = |lanes| {
        let logit_rows = settings.logit_rows.max(lanes);
        make_plan(place, architecture, &Settings { lanes, logit_rows, ..settings.clone() }, encoding)
    };
    // Looked at once: what others take meanwhile must not refuse what was found to fit.
    let memory = place.memory();
    let fits = |lanes: usize| {
        let plan = in_lanes(lanes);
        (memory.is_some() && fit::lack(&plan, memory).is_none()).then(|| plan.peak_bytes())
    };
    let lanes = fit::largest(settings.lanes, &fits).map_or(1, |(lanes, _)| lanes);
    let plan = in_lanes(lanes);
    match judge(place, memory, &plan, architecture, encoding) {
        Fit::Fits => Ok(plan),
        Fit::Lacks { bytes: lack, changes } => Err(Failure::new(
            Code::WouldNotFit,
            format!(
                "{}\n{}{}",
                path.display(),
                crate::commands::plan::table(&plan, place),
                lacking(lack, &changes)
            ),
        )),
    }
}

/// "does not fit by 0.83 GB. Smallest change …"
pub(crate) fn lacking(lack: u64, changes: &[Change]) -> String {
    let list: Vec<String> = changes
        .iter()
        .map(|change| format!("{} ({})", change.flag, memory_size(change.peak_bytes as u64)))
        .collect();
    match list.is_empty() {
        true => format!("does not fit by {}; no flag makes it fit: a smaller model would", memory_size(lack)),
        false => {
            format!("does not fit by {}. Smallest change that fits: {}", memory_size(lack), list.join(" or "))
        }
    }
}
