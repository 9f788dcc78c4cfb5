//! `halfbyte plan`: what a run would take, from a model or a bare config.json, without loading it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_checkpoint::{Architecture, Checkpoint, Encoding, TensorName};
use halfbyte_plan::{Fit, Group, Plan, memory};
use serde_json::json;

use crate::device::{ComputeArgs, judge, lacking, make_plan};
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::{self, bytes};

/// Say what a run would need, before anything is allocated
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte plan SmolLM2-135M-Instruct.Q4_1.gguf
  halfbyte plan Qwen3-4B/config.json --context 32768 --cache int8 --json")]
pub(crate) struct PlanArgs {
    /// A model, or a config.json alone
    #[arg(value_name = "MODEL|config.json", default_value = embedded::NAME)]
    model: PathBuf,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print every buffer as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let (architecture, checkpoint) = architecture(&args.model)?;
    let encoding = |name: TensorName| -> Option<Encoding> {
        checkpoint.as_ref()?.find(name).map(|tensor| tensor.encoding)
    };
    let settings = args.compute.settings(&architecture, 1)?;
    let plan = make_plan(&architecture, &settings, &encoding);
    let fit = judge(&plan, &architecture, &encoding);
    if args.json {
        print_json(&plan, &fit);
    } else {
        print!("{}", table(&plan));
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

fn architecture(path: &Path) -> Result<(Architecture, Option<Checkpoint>)> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok((Architecture::from_config_file(path)?, None));
    }
    let checkpoint = embedded::open(path)?;
    Ok((checkpoint.architecture.clone(), Some(checkpoint)))
}

/// The plan for people.
pub(crate) fn table(plan: &Plan) -> String {
    let group = |group| bytes(plan.group_bytes(group) as u64);
    let settings = &plan.settings;
    let mut text = String::new();
    let largest = plan
        .buffers
        .iter()
        .filter(|buffer| buffer.group == Group::Weights)
        .max_by_key(|buffer| buffer.buffer.bytes);
    let mut line = |label: &str, size: String, note: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{label:<12}{size:>9}  {note}");
    };
    let largest =
        largest.map_or(String::new(), |l| format!("; largest: {}, {}", l.name, bytes(l.buffer.bytes as u64)));
    line("weights", group(Group::Weights), format!("{}{largest}", settings.weights));
    line("cache", group(Group::Cache), format!("{} positions, {}", settings.context, settings.cache.name()));
    line("activations", group(Group::Activations), format!("{} tokens at a time", settings.chunk));
    line("scratch", group(Group::Scratch), format!("{} threads", settings.threads));
    line(
        "logits",
        group(Group::Logits),
        format!("{} row{}", settings.logit_rows, if settings.logit_rows == 1 { "" } else { "s" }),
    );
    line("program", bytes(plan.host_bytes as u64), "tokenizer, rows on their way from the file".into());
    let available = memory::read().map_or("available unknown".to_string(), |memory| {
        format!(
            "available {} ({} less {} reserve)",
            bytes(memory.budget()),
            bytes(memory.available),
            bytes(memory.reserve())
        )
    });
    line("peak", bytes(plan.peak_bytes() as u64), available);
    text
}

fn print_json(plan: &Plan, fit: &Fit) {
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
    let memory = memory::read();
    let changes = match fit {
        Fit::Fits => Vec::new(),
        Fit::Lacks { changes, .. } => changes
            .iter()
            .map(|change| json!({ "flag": change.flag, "peak_bytes": change.peak_bytes }))
            .collect(),
    };
    output::json(&json!({
        "peak_bytes": plan.peak_bytes(),
        "arena_bytes": plan.arena_bytes,
        "program_bytes": plan.host_bytes,
        "budget_bytes": memory.map(|memory| memory.budget()),
        "fits": matches!(fit, Fit::Fits),
        "changes_that_fit": changes,
        "context": plan.settings.context,
        "weights": plan.settings.weights.name(),
        "cache": plan.settings.cache.name(),
        "buffers": buffers,
    }));
}
