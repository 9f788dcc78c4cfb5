//! `halfbyte perplexity`: how surprised a model is by a text, and how far two models are apart.

use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_checkpoint::Checkpoint;
use halfbyte_model::Wanted;
use halfbyte_text::dataset::{Dataset, Sample, Settings, Source};
use serde_json::json;

use crate::corpus::{self, Speech};
use crate::device::{self, AnyDecoder, ComputeArgs};
use crate::embedded::ModelArg;
use crate::failure::{Code, Failure, Result};
use crate::language;
use crate::output::{self, Progress};

/// Rows of logits computed together.
const LOGIT_ROWS: usize = 64;

/// Measure how well a model predicts a text
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte perplexity SmolLM2.gguf --text book.txt --weights keep
  halfbyte perplexity SmolLM2.gguf --text book.txt --scales search --against SmolLM2.gguf --against-weights keep

Windows of a text are scored apart, without a start token, every position but the first; of --data only
what `halfbyte train` would learn, in the model's own chat template.")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArg,
    /// A text file
    #[arg(long, value_name = "FILE", required_unless_present_any = ["ids", "data"], conflicts_with_all = ["ids", "data"])]
    text: Option<PathBuf>,
    /// Training data (.jsonl, .tsv): only what training would learn of it is scored, each row apart
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ids", "tokens"])]
    data: Option<Source>,
    /// Leave out rows of the data without a reply, instead of refusing them
    #[arg(long, conflicts_with_all = ["text", "ids"])]
    skip_empty: bool,
    /// A JSON file with token ids: a list, or an object with a list called ids
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Tokens of a window
    #[arg(long, default_value_t = 1024, value_name = "N")]
    window: usize,
    /// Score at most so many tokens
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Also compare with this model's predictions: mean KL divergence and top-1 agreement
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// How the other model's weights are held
    #[arg(long, default_value = "keep", value_name = "FORMAT")]
    against_weights: halfbyte_plan::WeightChoice,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Sums over predictions.
#[derive(Default)]
struct Score {
    nll: Vec<f64>,
    divergence: f64,
    agreements: usize,
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    if args.window < 2 {
        return Err(Failure::misuse("--window: at least 2 tokens"));
    }
    let mut compute = args.compute.clone();
    compute.context = Some(compute.context.unwrap_or(args.window));
    if compute.context < Some(args.window) {
        return Err(Failure::misuse(format!("--window {}: more than --context holds", args.window)));
    }
    let mut model = device::open(&args.model.model, &compute, LOGIT_ROWS)?;
    let mut other = match &args.against {
        Some(path) => {
            let compute = ComputeArgs { weights: args.against_weights, ..compute };
            Some(device::open(path, &compute, LOGIT_ROWS)?)
        }
        None => None,
    };
    let windows = windows(args, &model.checkpoint)?;
    let tokens: usize = windows.iter().map(|window| window.ids.len()).sum();
    let mut score = Score::default();
    let mut progress = Progress::new("scoring", tokens as u64);
    let start = std::time::Instant::now();
    let mut means = Vec::new();
    for window in &windows {
        let before = score.nll.len();
        self::window(&mut model.decoder, other.as_mut().map(|o| &mut o.decoder), window, &mut score)?;
        let new = &score.nll[before..];
        means.push(new.iter().sum::<f64>() / new.len() as f64);
        progress.add(window.ids.len() as u64);
    }
    drop(progress);
    report(args, &score, &means, tokens, start.elapsed());
    Ok(())
}

/// Tokens that are scored apart from others, and which of them count.
struct Window {
    ids: Vec<u32>,
    scored: Vec<Range<usize>>,
}

impl Window {
    /// The token at `index`, where it counts.
    fn target(&self, index: usize) -> Option<usize> {
        let counts = self.scored.iter().any(|range| range.contains(&index));
        counts.then(|| self.ids[index] as usize)
    }

    /// The last token is predicted; what it predicts is not asked.
    fn fed(&self) -> &[u32] {
        &self.ids[..self.ids.len() - 1]
    }
}

fn windows(args: &PerplexityArgs, checkpoint: &Checkpoint) -> Result<Vec<Window>> {
    if let Some(source) = &args.data {
        let speech = Speech::new(checkpoint, false, corpus::today())?;
        let settings = Settings { length: args.window, skip_empty: args.skip_empty };
        let data = Dataset::read(std::slice::from_ref(source), &speech.renderer(), &settings, &mut |_| ())?;
        let window = |mut sample: Sample| {
            sample.tokens.truncate(sample.positions() + 1);
            Window { ids: sample.tokens, scored: sample.trained }
        };
        return Ok(data.samples.into_iter().map(window).collect());
    }
    let mut ids = match (&args.ids, &args.text) {
        (Some(path), _) => read_ids(path, checkpoint.architecture.vocab_size)?,
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, "read", error))?;
            language::tokenizer(checkpoint)?.encode(&text)?
        }
        (None, None) => Vec::new(),
    };
    ids.truncate(args.tokens.unwrap_or(usize::MAX));
    if ids.len() < 2 {
        return Err(Failure::misuse("the text has fewer than two tokens: nothing to predict"));
    }
    let window = |ids: &[u32]| Window { ids: ids.to_vec(), scored: std::iter::once(1..ids.len()).collect() };
    Ok(ids.chunks(args.window).filter(|ids| ids.len() > 1).map(window).collect())
}

/// Scores one window, in runs of rows so that two models' logits need not be kept whole.
fn window(
    decoder: &mut AnyDecoder,
    other: Option<&mut AnyDecoder>,
    window: &Window,
    score: &mut Score,
) -> Result<()> {
    decoder.keep(0);
    let Some(other) = other else {
        decoder.feed(window.fed(), Wanted::All, None, &mut |index, logits| {
            if let Some(target) = window.target(index + 1) {
                score.nll.push(-log_probabilities(logits)(target));
            }
        })?;
        return finite(decoder, score);
    };
    other.keep(0);
    for (run, part) in window.fed().chunks(LOGIT_ROWS).enumerate() {
        let mut kept = Vec::new();
        other.feed(part, Wanted::All, None, &mut |_, logits| kept.push(logits.to_vec()))?;
        decoder.feed(part, Wanted::All, None, &mut |index, logits| {
            if let Some(target) = window.target(run * LOGIT_ROWS + index + 1) {
                let (own, theirs) = (log_probabilities(logits), log_probabilities(&kept[index]));
                score.nll.push(-own(target));
                score.divergence +=
                    (0..logits.len()).map(|i| theirs(i).exp() * (theirs(i) - own(i))).sum::<f64>();
                score.agreements += usize::from(best(logits) == best(&kept[index]));
            }
        })?;
    }
    finite(decoder, score)
}

fn finite(decoder: &mut AnyDecoder, score: &Score) -> Result<()> {
    match score.nll.iter().all(|nll| nll.is_finite()) {
        true => Ok(()),
        false => Err(decoder.first_bad()?.into()),
    }
}

/// ln softmax, as a function of the index.
fn log_probabilities(logits: &[f32]) -> impl Fn(usize) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - top).exp()).sum();
    let total = top + sum.ln();
    move |index| f64::from(logits[index]) - total
}

fn best(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, x) in logits.iter().enumerate() {
        if *x > logits[best] {
            best = i;
        }
    }
    best
}

fn read_ids(path: &Path, words: usize) -> Result<Vec<u32>> {
    let bad = |problem: String| {
        let text = format!(
            "{}\n{problem}\ngive a JSON list of token ids, or an object with a list called ids",
            path.display()
        );
        Failure::new(Code::BadInput, text)
    };
    let bytes = std::fs::read(path).map_err(|error| Failure::file(path, "read", error))?;
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let list = value.get("ids").unwrap_or(&value).as_array();
    let list = list.ok_or_else(|| bad("there is no list of ids".into()))?;
    let id = |(i, id): (usize, &serde_json::Value)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < words);
        id.ok_or_else(|| bad(format!("element {i} is no token id of this model, which has {words}")))
    };
    list.iter().enumerate().map(id).collect()
}

fn report(args: &PerplexityArgs, score: &Score, windows: &[f64], tokens: usize, time: std::time::Duration) {
    let count = score.nll.len() as f64;
    let mean = score.nll.iter().sum::<f64>() / count;
    let variance = score.nll.iter().map(|nll| (nll - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let error = (variance / count).sqrt();
    let speed = tokens as f64 / time.as_secs_f64();
    let against = args.against.is_some();
    if args.json {
        output::json(&json!({
            "nll": mean,
            "perplexity": mean.exp(),
            "standard_error": error,
            "predictions": score.nll.len(),
            "window_nll": windows,
            "mean_kl": against.then_some(score.divergence / count),
            "top1_agreement": against.then_some(score.agreements as f64 / count),
            "tokens_per_second": speed,
            "weights": args.compute.weights.name(),
        }));
        return;
    }
    println!(
        "perplexity {:.4}   nll {mean:.6} ± {error:.6}   {} predictions   {speed:.0} tok/s",
        mean.exp(),
        output::grouped(score.nll.len() as u64)
    );
    if against {
        println!(
            "mean KL {:.6}   top-1 agreement {:.2}%",
            score.divergence / count,
            100.0 * score.agreements as f64 / count
        );
    }
}
