//! `halfbyte inspect`: what is inside a model, from its headers; with `--stats`, from its values.

mod stats;

use std::path::PathBuf;

use clap::Args;
use halfbyte_checkpoint::{Checkpoint, RopeScaling, Tensor};
use serde_json::{Value, json};

use crate::commands::convert::has_tokenizer;
use crate::embedded;
use crate::failure::Result;
use crate::output::{self, bytes, count, grouped};
use crate::summary;
use stats::Stats;

/// Look inside a model
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte inspect SmolLM2-135M-Instruct.Q4_1.gguf
  halfbyte inspect Qwen3-4B --stats --json")]
pub(crate) struct InspectArgs {
    /// A model directory, a .gguf, or a .dat with config.json beside it
    #[arg(value_name = "PATH", default_value = embedded::NAME)]
    path: PathBuf,
    /// List every tensor (JSON always does)
    #[arg(long)]
    tensors: bool,
    /// Read all values: ranges, NaN counts, block scales
    #[arg(long)]
    stats: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let checkpoint = embedded::open(&args.path)?;
    let stats = match args.stats {
        true => Some(stats::read(&checkpoint)?),
        false => None,
    };
    if args.json {
        output::json(&as_json(&checkpoint, stats.as_deref()));
        return Ok(());
    }
    print_summary(&checkpoint);
    match (&stats, args.tensors) {
        (Some(stats), _) => print!("{}", stats::table(&checkpoint.tensors, stats)),
        (None, true) => print_tensors(&checkpoint.tensors),
        (None, false) => {}
    }
    Ok(())
}

fn print_summary(checkpoint: &Checkpoint) {
    let architecture = &checkpoint.architecture;
    let yes_no = |flag| if flag { "yes" } else { "no" };
    println!(
        "{} · {} · {} parameters · {} · {:.2} bits/parameter · chat template: {} · {}",
        summary::format(checkpoint),
        architecture.family.name(),
        count(summary::parameters(architecture)),
        bytes(checkpoint.file_bytes()),
        summary::bits_per_parameter(checkpoint),
        yes_no(checkpoint.text.chat_template.is_some()),
        if architecture.tied { "tied head" } else { "own head" },
    );
    println!("  {}", summary::layers_line(architecture));
    println!("  types  {}", summary::types_line(&checkpoint.tensors));
    println!(
        "  heads  {} of {} values, {} for keys · context {} · vocabulary {} · tokenizer: {}{}",
        architecture.heads,
        architecture.head_dim,
        architecture.kv_heads,
        grouped(architecture.max_context as u64),
        grouped(architecture.vocab_size as u64),
        yes_no(has_tokenizer(checkpoint)),
        switches(checkpoint),
    );
}

/// What is not the same for every model, in words; empty when there is nothing.
fn switches(checkpoint: &Checkpoint) -> String {
    let architecture = &checkpoint.architecture;
    let windows = architecture.sliding_window.iter().flatten().next();
    let words = [
        architecture.qk_norm.then(|| "q and k norms".to_string()),
        architecture.qkv_bias.then(|| "q, k, v biases".to_string()),
        architecture.output_bias.then(|| "o bias".to_string()),
        architecture.mlp_bias.then(|| "MLP biases".to_string()),
        windows.map(|window| format!("window {window}")),
        rope_word(&architecture.rope.scaling).map(|word| format!("rope {word}")),
    ];
    words.into_iter().flatten().map(|word| format!(" · {word}")).collect()
}

fn rope_word(scaling: &RopeScaling) -> Option<&'static str> {
    match scaling {
        RopeScaling::None => None,
        RopeScaling::Linear { .. } => Some("linear"),
        RopeScaling::Llama3 { .. } => Some("llama3"),
        RopeScaling::Yarn { .. } => Some("yarn"),
        RopeScaling::Frequencies(_) => Some("by divisors"),
    }
}

fn print_tensors(tensors: &[Tensor]) {
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.to_string()).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for (tensor, name) in tensors.iter().zip(&names) {
        let (shape, size) = (summary::shape_text(&tensor.shape), bytes(tensor.bytes));
        println!("  {name:<width$}  {shape:>13}  {:<6} {size:>9}", tensor.encoding.to_string());
    }
}

fn as_json(checkpoint: &Checkpoint, stats: Option<&[Stats]>) -> Value {
    let architecture = &checkpoint.architecture;
    let types: serde_json::Map<String, Value> = summary::types(&checkpoint.tensors)
        .iter()
        .map(|(encoding, tensors)| (encoding.to_string(), json!(tensors.len())))
        .collect();
    let tensor = |(index, tensor): (usize, &Tensor)| {
        let mut value = json!({
            "name": tensor.name.to_string(),
            "disk_name": tensor.disk_name,
            "shape": tensor.shape,
            "encoding": tensor.encoding.to_string(),
            "bytes": tensor.bytes,
        });
        if let Some(stats) = stats {
            value["stats"] = stats[index].json();
        }
        value
    };
    let tensors: Vec<Value> = checkpoint.tensors.iter().enumerate().map(tensor).collect();
    let mut value = json!({
        "path": checkpoint.path.display().to_string(),
        "format": checkpoint.format.to_string(),
        "format_version": checkpoint.version,
        "parameters": summary::parameters(architecture),
        "bytes": checkpoint.file_bytes(),
        "bits_per_parameter": summary::bits_per_parameter(checkpoint),
        "chat_template": checkpoint.text.chat_template.is_some(),
        "tokenizer": has_tokenizer(checkpoint),
        "fingerprint": format!("{:016x}", checkpoint.fingerprint()),
        "architecture": {
            "family": architecture.family.name(),
            "vocab_size": architecture.vocab_size,
            "hidden_size": architecture.hidden_size,
            "intermediate_size": architecture.intermediate_size,
            "layers": architecture.layers,
            "heads": architecture.heads,
            "kv_heads": architecture.kv_heads,
            "head_dim": architecture.head_dim,
            "norm_eps": architecture.norm_eps,
            "rope_theta": architecture.rope.theta,
            "rope_scaling": rope_word(&architecture.rope.scaling),
            "qk_norm": architecture.qk_norm,
            "qkv_bias": architecture.qkv_bias,
            "output_bias": architecture.output_bias,
            "mlp_bias": architecture.mlp_bias,
            "tied": architecture.tied,
            "max_context": architecture.max_context,
            "sliding_window": architecture.sliding_window,
            "bos": architecture.bos,
            "eos": architecture.eos,
        },
        "types": types,
        "tensors": tensors,
    });
    if let Some(stats) = stats {
        value["stats"] = stats::total_json(stats);
    }
    value
}
