//! `halfbyte plan`: what a run would take, from a model or a bare config.json, without loading it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_checkpoint::{Architecture, Checkpoint, Encoding, TensorName};
use halfbyte_ops::CacheFormat;
use halfbyte_plan::memory::Memory;
use halfbyte_plan::{Fit, Group, Plan, WeightChoice};
use halfbyte_train::memory_size;
use serde_json::{Value, json};

use super::train::{Gradient, RecomputeArg, Size, StateArgs};
use crate::corpus;
use crate::device::{ComputeArgs, judge, lacking, make_plan, parse_cache};
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output;
use crate::place::{Place, PlaceArgs};

/// Say what a run would need, before anything is allocated
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte plan SmolLM2-135M-Instruct.Q4_1.gguf
  halfbyte plan Qwen3-4B/config.json --train --batch 8 --seq 1024 --json")]
pub(crate) struct PlanArgs {
    /// A model, or a config.json alone
    #[arg(value_name = "MODEL|config.json", default_value = embedded::NAME)]
    model: PathBuf,
    /// How weights are held: nvfp4, int8, bf16, f32, or keep (as the file has them)
    #[arg(long, default_value = "nvfp4", value_name = "FORMAT")]
    weights: WeightChoice,
    /// Positions the cache holds [default: the model's own limit, at most 4096]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// How keys and values are held: bf16, f32, int8
    #[arg(long, default_value = "bf16", value_name = "FORMAT", value_parser = parse_cache)]
    cache: CacheFormat,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print every buffer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    training: TrainingArgs,
}

/// Flags of a training plan, as `train` has them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Training")]
struct TrainingArgs {
    /// Plan a training run instead of a conversation
    #[arg(long, conflicts_with_all = ["weights", "context", "cache"])]
    train: bool,
    /// Sequences of a step
    #[arg(long, value_name = "B", default_value_t = 4, requires = "train")]
    batch: usize,
    /// Tokens of a sequence [default: the model's own limit, at most 1024]
    #[arg(long, value_name = "T", requires = "train")]
    seq: Option<usize>,
    /// When tensors learn
    #[arg(long, value_enum, value_name = "WHEN", default_value = "fused", requires = "train")]
    gradient: Gradient,
    /// What is computed again on the way back
    #[arg(long, value_enum, value_name = "WHAT", default_value = "layer", requires = "train")]
    recompute: RecomputeArg,
    #[command(flatten)]
    state: StateArgs,
}

impl PlanArgs {
    fn compute(&self) -> ComputeArgs {
        ComputeArgs {
            weights: self.weights,
            context: self.context,
            cache: self.cache,
            ..ComputeArgs::usual(self.place.clone())
        }
    }
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let (architecture, checkpoint) = architecture(&args.model)?;
    let encoding = |name: TensorName| -> Option<Encoding> {
        checkpoint.as_ref()?.find(name).map(|tensor| tensor.encoding)
    };
    let (table, fit, value) = match args.training.train {
        true => training(args, &architecture, &encoding)?,
        false => {
            let settings = args.compute().settings(&architecture, 1)?;
            let (place, plan) =
                args.place.settle(|place| Ok(make_plan(place, &architecture, &settings, &encoding)))?;
            let fit = judge(&place, place.memory(), &plan, &architecture, &encoding);
            let facts = json!({ "context": plan.settings.context });
            let memory = place.memory();
            (table(&plan, &place), fit.clone(), to_json(&plan, &fit, memory, facts))
        }
    };
    match args.json {
        true => output::json(&value),
        false => print!("{table}"),
    }
    match fit {
        Fit::Fits => {
            if !args.json {
                println!("fits");
            }
            Ok(())
        }
        Fit::Lacks { bytes, changes } => Err(Failure::new(Code::WouldNotFit, lacking(bytes, &changes))),
    }
}

fn training(
    args: &PlanArgs,
    architecture: &Architecture,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Result<(String, Fit, Value)> {
    let length = corpus::length(args.training.seq, architecture.max_context)?;
    let size = Size {
        architecture,
        encoding,
        state: args.training.state,
        batch: args.training.batch,
        length,
        gradient: args.training.gradient.storage(),
        recompute: args.training.recompute,
    };
    let (place, plan) = args.place.settle(|place| size.plan(place))?;
    let fit = size.judge(&place, &plan);
    let value = to_json(&plan, &fit, place.memory(), size.facts(&plan));
    Ok((size.table(&place, &plan), fit, value))
}

fn architecture(path: &Path) -> Result<(Architecture, Option<Checkpoint>)> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok((Architecture::from_config_file(path)?, None));
    }
    let checkpoint = embedded::open(path)?;
    Ok((checkpoint.architecture.clone(), Some(checkpoint)))
}

/// The plan for people, line by line.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) text: String,
}

impl Table {
    pub(crate) fn line(&mut self, label: &str, size: u64, note: impl AsRef<str>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "{label:<12}{:>9}  {}", memory_size(size), note.as_ref());
    }

    pub(crate) fn weights(&mut self, plan: &Plan) {
        let of_group = plan.buffers.iter().filter(|buffer| buffer.group == Group::Weights);
        let largest = of_group.max_by_key(|buffer| buffer.buffer.bytes).map_or(String::new(), |largest| {
            format!("; largest: {}, {}", largest.name, memory_size(largest.buffer.bytes as u64))
        });
        let note = format!("{}{largest}", plan.settings.weights);
        self.line("weights", plan.group_bytes(Group::Weights) as u64, note);
    }

    pub(crate) fn total(&mut self, plan: &Plan, place: &Place) {
        let together: usize = plan.buffers.iter().map(|planned| planned.buffer.bytes).sum();
        if let Some(shared) = together.checked_sub(plan.arena_bytes).filter(|shared| *shared > 0) {
            let shared = format!("-{}", memory_size(shared as u64));
            // Writing to a String does not fail.
            let _ = writeln!(self.text, "{:<12}{shared:>9}  values that are never there together", "shared");
        }
        let (whose, what) = place.beside();
        self.line(whose, plan.beside_bytes as u64, what);
        let available = place.memory().map_or("available unknown".to_string(), |memory| {
            format!(
                "available {} ({} less {} reserve)",
                memory_size(memory.budget()),
                memory_size(memory.available),
                memory_size(memory.reserve())
            )
        });
        self.line("peak", plan.peak_bytes() as u64, available);
    }
}

/// The plan of a conversation.
pub(crate) fn table(plan: &Plan, place: &Place) -> String {
    let group = |group| plan.group_bytes(group) as u64;
    let settings = &plan.settings;
    let mut table = Table::default();
    table.weights(plan);
    let lanes = if settings.lanes == 1 { String::new() } else { format!("{} times ", settings.lanes) };
    let cache = format!("{lanes}{} positions, {}", settings.context, settings.cache.name());
    table.line("cache", group(Group::Cache), cache);
    table.line("activations", group(Group::Activations), format!("{} tokens at a time", settings.chunk));
    table.line("scratch", group(Group::Scratch), format!("{} threads", settings.threads));
    let rows = settings.logit_rows;
    table.line("logits", group(Group::Logits), format!("{rows} row{}", if rows == 1 { "" } else { "s" }));
    table.total(plan, place);
    table.text
}

/// For programs: every buffer, and `facts` besides.
fn to_json(plan: &Plan, fit: &Fit, memory: Option<Memory>, facts: Value) -> Value {
    let buffers: Vec<_> = plan
        .buffers
        .iter()
        .map(|planned| {
            json!({
                "name": planned.name.to_string(),
                "group": planned.group,
                "bytes": planned.buffer.bytes,
                "offset": planned.buffer.offset,
                "first": planned.lifetime.map(|(first, _)| first),
                "last": planned.lifetime.map(|(_, last)| last),
            })
        })
        .collect();
    let changes = match fit {
        Fit::Fits => Vec::new(),
        Fit::Lacks { changes, .. } => changes
            .iter()
            .map(|change| json!({ "flag": change.flag, "peak_bytes": change.peak_bytes }))
            .collect(),
    };
    let mut value = json!({
        "peak_bytes": plan.peak_bytes(),
        "arena_bytes": plan.arena_bytes,
        "beside_bytes": plan.beside_bytes,
        "budget_bytes": memory.map(|memory| memory.budget()),
        "fits": matches!(fit, Fit::Fits),
        "changes_that_fit": changes,
        "weights": plan.settings.weights.name(),
        "cache": plan.settings.cache.name(),
    });
    if let (Value::Object(value), Value::Object(facts)) = (&mut value, facts) {
        value.extend(facts);
        value.insert("buffers".into(), buffers.into());
    }
    value
}
