//! `halfbyte compare`: two ways to compute the same prompt, stage by stage.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use halfbyte_model::{Wanted, Watch};
use halfbyte_plan::Stage;
use serde_json::json;

use crate::device::{self, ComputeArgs, Opened};
use crate::embedded::ModelArg;
use crate::failure::{Failure, Result};
use crate::{language, output};

/// Longer prompts would keep too many values for two sides.
const MOST_TOKENS: usize = 256;

/// Compare two ways to compute a prompt, stage by stage
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte compare MODEL --a weights=keep --b weights=nvfp4 --prompt \"Why is the sky blue?\"
  halfbyte compare MODEL --a kernels=amx,feed=whole --b kernels=scalar,feed=token --prompt Hello

A SPEC is a list of: weights=keep|f32|bf16|int8|nvfp4, scales=nearest|four-over-six|search,
device=cpu|cuda, kernels=amx|avx512|avx2|neon|scalar|own|cublaslt, threads=N,
cache=bf16|f32|int8|off (off: every token from the beginning), feed=whole|token|N (tokens
given at a time). What a SPEC leaves out is taken from the other flags.")]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    model: ModelArg,
    /// One way
    #[arg(long, value_name = "SPEC")]
    a: Spec,
    /// The other
    #[arg(long, value_name = "SPEC")]
    b: Spec,
    /// The prompt, taken as it is
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Name the first stage whose relative error passes this
    #[arg(long, default_value_t = 0.2, value_name = "X")]
    limit: f64,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print every layer and stage as JSON
    #[arg(long)]
    json: bool,
}

/// A parsed SPEC: pairs that change the common flags.
#[derive(Clone, Debug)]
struct Spec(Vec<(String, String)>);

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Spec, String> {
        let known = ["weights", "scales", "device", "kernels", "threads", "cache", "feed"];
        let pair = |part: &str| {
            let (key, value) = part.split_once('=').ok_or(format!("{part}: write key=value"))?;
            match known.contains(&key) {
                true => Ok((key.to_string(), value.to_string())),
                false => Err(format!("{key}: one of {}", known.join(", "))),
            }
        };
        text.split(',').map(pair).collect::<std::result::Result<_, _>>().map(Spec)
    }
}

/// How a side feeds its tokens.
#[derive(Clone, Copy, PartialEq)]
enum Feed {
    /// So many at a time onto the cache.
    Runs(usize),
    /// Every position from the beginning, without a cache.
    Again,
}

impl Spec {
    /// The flags and the way of feeding.
    fn settle(&self, common: &ComputeArgs) -> Result<(ComputeArgs, Feed)> {
        let (mut args, mut feed) = (common.clone(), Feed::Runs(usize::MAX));
        for (key, value) in &self.0 {
            let wrong = |allowed: String| Failure::misuse(format!("{key}={value}: {allowed}"));
            let number = || value.parse::<usize>().ok().filter(|n| *n > 0);
            match key.as_str() {
                "weights" => args.weights = value.parse().map_err(wrong)?,
                "scales" => args.scales = device::parse_scales(value).map_err(wrong)?,
                "device" => args.place.device = value.parse().map_err(wrong)?,
                "kernels" => args.place.kernels = Some(value.parse().map_err(wrong)?),
                "threads" => {
                    args.place.threads = Some(number().ok_or_else(|| wrong("a number above 0".into()))?)
                }
                "cache" if value == "off" => feed = Feed::Again,
                "cache" => args.cache = device::parse_cache(value).map_err(wrong)?,
                _ => {
                    feed = match value.as_str() {
                        "whole" => Feed::Runs(usize::MAX),
                        "token" => Feed::Runs(1),
                        _ => Feed::Runs(number().ok_or_else(|| wrong("whole, token or a number".into()))?),
                    }
                }
            }
        }
        Ok((args, feed))
    }
}

type Key = (Option<usize>, Stage);

/// Everything a side computed, in order of positions.
#[derive(Default)]
struct Record {
    stages: BTreeMap<Key, Vec<f32>>,
    /// Without a cache only the last row of each pass is new.
    last_only: bool,
}

impl Watch for Record {
    fn see(&mut self, layer: Option<usize>, stage: Stage, _: usize, columns: usize, values: &[f32]) {
        let values = if self.last_only { &values[values.len() - columns..] } else { values };
        self.stages.entry((layer, stage)).or_default().extend_from_slice(values);
    }
}

fn record(
    path: &std::path::Path,
    spec: &Spec,
    common: &ComputeArgs,
    prompt: &str,
) -> Result<(Record, Opened, Vec<u32>)> {
    let (mut args, feed) = spec.settle(common)?;
    args.context = Some(args.context.unwrap_or(MOST_TOKENS));
    let mut opened = device::open(path, &args, 1)?;
    let tokens = language::tokenizer(&opened.checkpoint)?.encode(prompt)?;
    if tokens.is_empty() || tokens.len() > MOST_TOKENS {
        let problem = format!("--prompt: {} tokens; give 1 to {MOST_TOKENS}", tokens.len());
        return Err(Failure::misuse(problem));
    }
    let mut record = Record { last_only: feed == Feed::Again, ..Record::default() };
    let decoder = &mut opened.decoder;
    match feed {
        Feed::Runs(run) => {
            for part in tokens.chunks(run.min(tokens.len())) {
                decoder.feed(part, Wanted::All, Some(&mut record), &mut |_, _| ())?;
            }
        }
        Feed::Again => {
            for end in 1..=tokens.len() {
                decoder.keep(0);
                decoder.feed(&tokens[..end], Wanted::Last, Some(&mut record), &mut |_, _| ())?;
            }
        }
    }
    Ok((record, opened, tokens))
}

/// How far two recordings of one stage are apart.
#[derive(Clone, Copy)]
struct Distance {
    max_abs: f64,
    relative: f64,
    cosine: f64,
}

fn distance(a: &[f32], b: &[f32]) -> Distance {
    let (mut max_abs, mut error, mut aa, mut bb, mut ab) = (0.0f64, 0.0, 0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b))) {
        max_abs = max_abs.max((a - b).abs());
        error += (a - b) * (a - b);
        aa += a * a;
        bb += b * b;
        ab += a * b;
    }
    let ratio = |x: f64, y: f64, none: f64| if y > 0.0 { x / y } else { none };
    Distance {
        max_abs,
        relative: ratio(error, aa, error).sqrt(),
        cosine: if error == 0.0 { 1.0 } else { ratio(ab, (aa * bb).sqrt(), 0.0) },
    }
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let path = &args.model.model;
    let (a, opened, tokens) = record(path, &args.a, &args.compute, &args.prompt)?;
    let vocabulary = opened.decoder.architecture().vocab_size;
    let tokenizer = language::tokenizer(&opened.checkpoint)?;
    drop(opened);
    let (b, _, _) = record(path, &args.b, &args.compute, &args.prompt)?;
    let distances: Vec<(Key, Distance)> = a
        .stages
        .iter()
        .filter_map(|(key, values)| Some((*key, distance(values, b.stages.get(key)?))))
        .collect();
    // In the order of computation: layer by layer, the head last.
    let first_bad =
        distances.iter().filter(|(_, d)| d.relative > args.limit || d.relative.is_nan()).min_by_key(
            |((layer, stage), _)| (*stage == Stage::FinalNorm || *stage == Stage::Head, *layer, *stage),
        );
    let best = |record: &Record| {
        let logits = &record.stages[&(None, Stage::Head)];
        top(&logits[logits.len() - vocabulary..], 10)
    };
    let (top_a, top_b) = (best(&a), best(&b));
    let overlap = top_a.iter().filter(|(id, _)| top_b.iter().any(|(other, _)| other == id)).count();
    let text = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default();
    if args.json {
        let row = |((layer, stage), d): &(Key, Distance)| json!({ "layer": layer, "stage": stage, "max_abs": d.max_abs, "relative": d.relative, "cosine": d.cosine });
        let list = |top: &[(u32, f32)]| {
            top.iter()
                .map(|(id, logit)| json!({ "id": id, "text": text(*id), "logit": logit }))
                .collect::<Vec<_>>()
        };
        output::json(&json!({
            "tokens": tokens.len(),
            "stages": distances.iter().map(row).collect::<Vec<_>>(),
            "first_past_limit": first_bad.map(row),
            "top10_a": list(&top_a),
            "top10_b": list(&top_b),
            "top1_agrees": top_a[0].0 == top_b[0].0,
            "top10_overlap": overlap,
        }));
        return Ok(());
    }
    print_table(&distances);
    let agrees = if top_a[0].0 == top_b[0].0 { "agrees" } else { "differs" };
    println!("\ntop-1 {agrees} · top-10 overlap {overlap}          a                                b");
    for (a, b) in top_a.iter().zip(&top_b) {
        let side = |(id, logit): &(u32, f32)| format!("{logit:>9.4} {:<22}", format!("{:?}", text(*id)));
        println!("{:>34}{}{}", "", side(a), side(b));
    }
    match first_bad {
        Some(((layer, stage), d)) => println!(
            "first stage past {} relative: {}{} ({:.3})",
            args.limit,
            layer.map(|l| format!("layer {l} ")).unwrap_or_default(),
            stage.name(),
            d.relative
        ),
        None => println!("first stage past {} relative: none", args.limit),
    }
    Ok(())
}

/// One line per stage, the layer that is worst.
fn print_table(distances: &[(Key, Distance)]) {
    println!("{:<15}{:>12}{:>12}{:>11}{:>11}", "stage", "worst layer", "max abs", "relative", "cosine");
    let mut worst: BTreeMap<Stage, (Option<usize>, Distance)> = BTreeMap::new();
    for ((layer, stage), d) in distances {
        let entry = worst.entry(*stage).or_insert((*layer, *d));
        if d.relative > entry.1.relative {
            *entry = (*layer, *d);
        }
    }
    for (stage, (layer, d)) in worst {
        let layer = layer.map(|l| l.to_string()).unwrap_or_default();
        println!("{:<15}{layer:>12}{:>12.4}{:>11.5}{:>11.6}", stage.name(), d.max_abs, d.relative, d.cosine);
    }
}

fn top(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    order.into_iter().take(count).map(|id| (id, logits[id as usize])).collect()
}
