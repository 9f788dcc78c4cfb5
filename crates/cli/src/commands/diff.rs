//! `halfbyte diff`: how far the decoded values of two models are apart, worst tensor first.

use std::path::PathBuf;

use clap::Args;
use halfbyte_checkpoint::{Checkpoint, Tensor, TensorName};
use serde_json::{Value, json};

use crate::coding::Deviation;
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::{self, Progress};
use crate::rows::{self, each_run, runs};
use crate::summary::shape_text;

/// Compare the values of two models
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte diff Qwen3-0.6B qwen3-nvfp4
  halfbyte diff a.gguf b --most 3 --exit-code

Relative RMS is the root of the mean squared difference over that of A's values.")]
pub(crate) struct DiffArgs {
    /// The model to compare with
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The model compared
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Show at most so many tensors
    #[arg(long, default_value_t = 10, value_name = "N")]
    most: usize,
    /// End with code 1 when anything differs
    #[arg(long)]
    exit_code: bool,
    /// Print JSON, with every tensor
    #[arg(long)]
    json: bool,
}

/// A tensor both models have.
struct Pair<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    /// `None` when the shapes differ.
    deviation: Option<Deviation>,
}

struct Comparison<'a> {
    /// Worst first.
    pairs: Vec<Pair<'a>>,
    only_a: Vec<TensorName>,
    only_b: Vec<TensorName>,
}

pub(crate) fn run(args: &DiffArgs) -> Result<()> {
    let (a, b) = (embedded::open(&args.a)?, embedded::open(&args.b)?);
    let comparison = compare(&a, &b)?;
    match args.json {
        true => output::json(&comparison.json()),
        false => comparison.print(args.most),
    }
    let differing = comparison.differing();
    match args.exit_code && differing > 0 {
        true => Err(Failure::new(Code::Failed, format!("the models differ in {differing} tensors"))),
        false => Ok(()),
    }
}

fn compare<'a>(a: &'a Checkpoint, b: &'a Checkpoint) -> Result<Comparison<'a>> {
    let values: u64 = a.tensors.iter().map(|tensor| tensor.values() as u64).sum();
    let mut progress = Progress::new("comparing", values);
    let mut pairs = Vec::new();
    for tensor in &a.tensors {
        if let Some(other) = b.find(tensor.name) {
            let same_shape = tensor.shape == other.shape;
            let deviation = same_shape.then(|| deviation(a, tensor, b, other)).transpose()?;
            pairs.push(Pair { a: tensor, b: other, deviation });
        }
        progress.add(tensor.values() as u64);
    }
    pairs.sort_by(|one, other| other.badness().total_cmp(&one.badness()));
    let missing = |from: &Checkpoint, other: &Checkpoint| -> Vec<TensorName> {
        let names = from.tensors.iter().map(|tensor| tensor.name);
        names.filter(|name| other.find(*name).is_none()).collect()
    };
    Ok(Comparison { pairs, only_a: missing(a, b), only_b: missing(b, a) })
}

fn deviation(a: &Checkpoint, tensor: &Tensor, b: &Checkpoint, other: &Tensor) -> Result<Deviation> {
    let parts = each_run(&runs(tensor.rows(), tensor.columns()), |run| {
        let ours = rows::read(a, tensor, run.clone())?;
        Ok(Deviation::between(&ours, &rows::read(b, other, run)?))
    })?;
    let mut sum = Deviation::default();
    parts.into_iter().for_each(|part| sum.add(part));
    Ok(sum)
}

impl Pair<'_> {
    /// Orders pairs: other shapes and NaN before everything else.
    fn badness(&self) -> f64 {
        match self.deviation.map(|deviation| deviation.relative()) {
            Some(relative) if !relative.is_nan() => relative,
            _ => f64::INFINITY,
        }
    }

    fn differs(&self) -> bool {
        self.badness() > 0.0
    }

    fn json(&self) -> Value {
        json!({
            "name": self.a.name.to_string(),
            "a": { "shape": self.a.shape, "encoding": self.a.encoding.to_string() },
            "b": { "shape": self.b.shape, "encoding": self.b.encoding.to_string() },
            "max_abs": self.deviation.map(|deviation| deviation.largest),
            "relative_rms": self.deviation.map(|deviation| deviation.relative()),
            "differs": self.differs(),
        })
    }
}

impl Comparison<'_> {
    fn differing(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.differs()).count() + self.only_a.len() + self.only_b.len()
    }

    fn overall(&self) -> Deviation {
        let mut sum = Deviation::default();
        self.pairs.iter().filter_map(|pair| pair.deviation).for_each(|part| sum.add(part));
        sum
    }

    fn print(&self, most: usize) {
        let differing: Vec<&Pair<'_>> = self.pairs.iter().filter(|pair| pair.differs()).collect();
        let (overall, same) = (self.overall(), self.pairs.len() - differing.len());
        match self.differing() {
            0 => println!("the same: all {same} tensors have equal values"),
            _ => println!(
                "{} of {} tensors differ · relative RMS {:.5} · largest difference {:.5}",
                differing.len(),
                self.pairs.len(),
                overall.relative(),
                overall.largest,
            ),
        }
        let shown = &differing[..most.min(differing.len())];
        let names: Vec<String> = shown.iter().map(|pair| pair.a.name.to_string()).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0).max(6);
        if !shown.is_empty() {
            println!("  {:<width$}  {:>12}  {:>10}  types", "tensor", "relative RMS", "max abs");
        }
        for (pair, name) in shown.iter().zip(&names) {
            let types = format!("{} / {}", pair.a.encoding, pair.b.encoding);
            match pair.deviation {
                Some(sums) => {
                    let (relative, largest) = (sums.relative(), sums.largest);
                    println!("  {name:<width$}  {relative:>12.5}  {largest:>10.5}  {types}");
                }
                None => {
                    let (a, b) = (shape_text(&pair.a.shape), shape_text(&pair.b.shape));
                    println!("  {name:<width$}  shapes {a} / {b}");
                }
            }
        }
        if differing.len() > shown.len() {
            println!("  … {} more (--most {})", differing.len() - shown.len(), differing.len());
        }
        for (side, names) in [("A", &self.only_a), ("B", &self.only_b)] {
            names.iter().for_each(|name| println!("  only in {side}: {name}"));
        }
    }

    fn json(&self) -> Value {
        let names = |names: &[TensorName]| names.iter().map(TensorName::to_string).collect::<Vec<_>>();
        let overall = self.overall();
        json!({
            "same": self.differing() == 0,
            "tensors_that_differ": self.pairs.iter().filter(|pair| pair.differs()).count(),
            "relative_rms": overall.relative(),
            "max_abs": overall.largest,
            "only_in_a": names(&self.only_a),
            "only_in_b": names(&self.only_b),
            "tensors": self.pairs.iter().map(Pair::json).collect::<Vec<_>>(),
        })
    }
}
