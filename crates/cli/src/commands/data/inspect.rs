//! `halfbyte data inspect`: what a model would learn from some files, before it does.

use std::io::{IsTerminal, stdout};

use clap::Args;
use halfbyte_text::dataset::{Dataset, Order, Places, Sample, SourceReport};
use halfbyte_text::packing::Packing;
use serde_json::{Value, json};

use super::show;
use crate::corpus::{self, CorpusArgs, Speech};
use crate::embedded::{self, ModelArg};
use crate::failure::Result;
use crate::output::{self, grouped};

/// Show what of some data would be trained
#[derive(Args, Debug)]
#[command(
    // The model first: --data takes all that follows it.
    override_usage = "halfbyte data inspect [MODEL] --data <FILE[:WEIGHT]>... [OPTIONS]",
    after_help = "Examples:
  halfbyte data inspect SmolLM2.gguf --data identity.tsv
  halfbyte data inspect Qwen3-4B --data chats.jsonl notes.txt:0.5 --seq 512 --skip-empty --json

Trained tokens are green on a terminal and stand between ⟦ and ⟧ elsewhere; ↵ is a line break."
)]
pub(crate) struct InspectDataArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    corpus: CorpusArgs,
    /// Samples of each source to show
    #[arg(long, default_value_t = 3, value_name = "N")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InspectDataArgs) -> Result<()> {
    let checkpoint = embedded::open(&args.model.model)?;
    let speech = Speech::new(&checkpoint, args.corpus.no_think, corpus::today())?;
    let data = args.corpus.read(&speech, checkpoint.architecture.max_context)?;
    let packed = Packed::new(&data);
    if args.json {
        output::json(&report(&data, &packed, &speech, args.limit)?);
        return Ok(());
    }
    print_summary(&data, &packed);
    print_sources(&data.sources);
    print_histogram(&data);
    data.sources.iter().for_each(print_notes);
    let colour = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for sample in shown(&data, args.limit) {
        println!(
            "\n{} line {} · {} tokens, {} trained",
            data.sources[sample.source].path.display(),
            sample.line,
            grouped(sample.tokens.len() as u64),
            grouped(sample.targets() as u64)
        );
        println!("  {}", show::line(&show::runs(sample, &speech.tokenizer)?, colour));
    }
    Ok(())
}

/// An epoch in sequences.
struct Packed {
    sequences: usize,
    /// Share of the positions that hold a token.
    filled: f64,
}

impl Packed {
    fn new(data: &Dataset) -> Packed {
        let all: Vec<usize> = (0..data.samples.len()).collect();
        let order = Order { seed: 0, epoch: 0 }.arrange(data, &all);
        let sequences = Packing::first_fit(&data.samples, &order, data.length).len();
        let used: usize = order.iter().map(|&index| data.samples[index].positions()).sum();
        Packed { sequences, filled: used as f64 / (sequences * data.length).max(1) as f64 }
    }
}

/// The first samples of each source.
fn shown(data: &Dataset, limit: usize) -> impl Iterator<Item = &Sample> {
    (0..data.sources.len())
        .flat_map(move |source| data.samples.iter().filter(move |s| s.source == source).take(limit))
}

fn total(data: &Dataset, part: impl Fn(&SourceReport) -> usize) -> usize {
    data.sources.iter().map(part).sum()
}

fn print_summary(data: &Dataset, packed: &Packed) {
    let (tokens, trained) = (total(data, |source| source.tokens), total(data, |source| source.trained));
    println!(
        "{} · {} tokens, {} trained ({:.1}%) · {} of {} an epoch, {:.0}% full",
        counted(data.samples.len(), "sample"),
        grouped(tokens as u64),
        grouped(trained as u64),
        100.0 * trained as f64 / tokens.max(1) as f64,
        counted(packed.sequences, "sequence"),
        grouped(data.length as u64),
        100.0 * packed.filled,
    );
}

/// "1 row", "1,204 rows"
fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count as u64), if count == 1 { "" } else { "s" })
}

fn print_sources(sources: &[SourceReport]) {
    let name = |source: &SourceReport| source.path.display().to_string();
    let width = sources.iter().map(|source| name(source).chars().count()).max().unwrap_or(0).max(6);
    println!(
        "\n{:width$}  {:>6}  {:>8}  {:>8}  {:>10}  {:>10}  {:>6}  {:>10}",
        "source", "weight", "rows", "samples", "tokens", "trained", "share", "duplicates"
    );
    for source in sources {
        println!(
            "{:width$}  {:>6}  {:>8}  {:>8}  {:>10}  {:>10}  {:>5.1}%  {:>10}",
            name(source),
            source.weight,
            grouped(source.rows as u64),
            grouped(source.samples as u64),
            grouped(source.tokens as u64),
            grouped(source.trained as u64),
            100.0 * source.trained_share(),
            grouped(source.duplicates as u64),
        );
    }
}

/// Samples by length: upper bounds that double, and how many are at most so long.
fn histogram(data: &Dataset) -> Vec<(usize, usize)> {
    let mut bounds: Vec<usize> = std::iter::successors(Some(16), |bound| Some(bound * 2))
        .take_while(|bound| *bound < data.length)
        .chain([data.length])
        .collect();
    bounds.dedup();
    let mut counts = vec![0; bounds.len()];
    for sample in &data.samples {
        let place = bounds.partition_point(|bound| *bound < sample.positions());
        counts[place.min(bounds.len() - 1)] += 1;
    }
    bounds.into_iter().zip(counts).collect()
}

fn print_histogram(data: &Dataset) {
    let bars = histogram(data);
    let most = bars.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    println!();
    for (index, (bound, count)) in bars.iter().enumerate() {
        let label = if index == 0 { "positions" } else { "" };
        let bar = "█".repeat((40 * count).div_ceil(most));
        println!("{label:9} ≤ {:>6}  {bar} {}", grouped(*bound as u64), grouped(*count as u64));
    }
}

/// What happened to rows, in words; nothing if all went in as they are.
fn notes(source: &SourceReport) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for (line, text) in &source.headers {
        notes.push(format!("line {line} names columns and is not trained: {}", text.replace('\t', " ⇥ ")));
    }
    let mut add = |places: &Places, noun: &str, what: &str| {
        if places.count > 0 {
            let lines: Vec<String> = places.lines.iter().map(usize::to_string).collect();
            let more = if places.count > places.lines.len() { ", …" } else { "" };
            notes.push(format!("{} {what} (line {}{more})", counted(places.count, noun), lines.join(", ")));
        }
    };
    add(&source.empty, "row", "without a reply to learn from: left out");
    add(&source.truncated, "text", "longer than a sequence: cut at its end");
    add(&source.shortened, "conversation", "longer than a sequence: ends with the last reply that fits");
    add(&source.dropped, "conversation", "without a reply that ends within a sequence: left out");
    add(&source.unended, "row", "with a reply that the template does not end: chat would not stop");
    add(&source.controls, "text", "with control tokens written out: trained as those tokens");
    notes
}

fn print_notes(source: &SourceReport) {
    let notes = notes(source);
    if !notes.is_empty() {
        println!("\n{}", source.path.display());
        notes.iter().for_each(|note| println!("  {note}"));
    }
}

fn report(data: &Dataset, packed: &Packed, speech: &Speech, limit: usize) -> Result<Value> {
    let places = |places: &Places| json!({ "count": places.count, "lines": places.lines });
    let source = |source: &SourceReport| {
        json!({
            "path": source.path.display().to_string(),
            "format": source.format.name(),
            "weight": source.weight,
            "rows": source.rows,
            "samples": source.samples,
            "tokens": source.tokens,
            "trained": source.trained,
            "trained_share": source.trained_share(),
            "duplicates": source.duplicates,
            "headers": source.headers.iter().map(|(line, text)| json!({ "line": line, "text": text })).collect::<Vec<_>>(),
            "empty": places(&source.empty),
            "truncated": places(&source.truncated),
            "shortened": places(&source.shortened),
            "dropped": places(&source.dropped),
            "unended": places(&source.unended),
            "control_tokens": places(&source.controls),
        })
    };
    let mut rows = Vec::new();
    for sample in shown(data, limit) {
        let runs = show::runs(sample, &speech.tokenizer)?;
        rows.push(json!({
            "path": data.sources[sample.source].path.display().to_string(),
            "line": sample.line,
            "tokens": sample.tokens,
            "trained": sample.trained.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>(),
            "runs": runs.iter().map(|run| json!({ "trained": run.trained, "text": run.text })).collect::<Vec<_>>(),
        }));
    }
    let bar = |(bound, count): &(usize, usize)| json!({ "at_most": bound, "samples": count });
    Ok(json!({
        "samples": data.samples.len(),
        "tokens": total(data, |source| source.tokens),
        "trained": total(data, |source| source.trained),
        "length": data.length,
        "sequences_per_epoch": packed.sequences,
        "filled": packed.filled,
        "fingerprint": format!("{:016x}", data.fingerprint()),
        "sources": data.sources.iter().map(source).collect::<Vec<_>>(),
        "histogram": histogram(data).iter().map(bar).collect::<Vec<_>>(),
        "rows": rows,
    }))
}
