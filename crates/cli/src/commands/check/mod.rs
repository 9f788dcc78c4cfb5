//! `halfbyte check`: questions asked in several ways, and rules that the replies keep.
//!
//! spec -> ask every phrasing -> (the baseline's replies, read by both) -> judge -> table

mod ask;
mod judge;
pub(crate) mod reader;
pub(crate) mod report;
mod spec;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::device::ComputeArgs;
use crate::embedded::ModelArg;
use crate::failure::{Code, Failure, Result};
use crate::output::{self, Progress};
use judge::{Broken, Distance, judge};
use spec::Group;

pub(crate) use ask::Speaker;
pub(crate) use judge::Said;
pub(crate) use spec::Spec;

/// Check a model's replies against rules
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte check out/model --spec specs/identity-en.toml --baseline SmolLM2.gguf
  halfbyte check SmolLM2.gguf --spec capitals.toml --json

A spec is TOML: groups of phrasings, and what their replies contain, lack or match, how far they
may be from the baseline's, that they end and do not loop. specs/README.md lists every key. Replies
are greedy, in the model's own chat template. Exit code 5 says that the model failed.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    model: ModelArg,
    /// What to ask and what to demand
    #[arg(long, value_name = "FILE")]
    spec: PathBuf,
    /// The model that max_kl is measured from: the one before training. Held in memory beside the
    /// other, in the same way
    #[arg(long, value_name = "MODEL")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print every reply as JSON
    #[arg(long)]
    json: bool,
}

/// What became of a phrasing.
pub(crate) struct Answer {
    turns: Vec<Said>,
    distance: Option<Distance>,
    broken: Vec<Broken>,
}

/// What became of a group.
pub(crate) struct Verdict<'a> {
    group: &'a Group,
    answers: Vec<Answer>,
}

impl Verdict<'_> {
    /// Phrasings that keep every rule.
    pub(crate) fn kept(&self) -> usize {
        self.answers.iter().filter(|answer| answer.broken.is_empty()).count()
    }

    pub(crate) fn passed(&self) -> bool {
        self.kept() >= self.group.pass
    }

    fn worst(&self) -> Option<f64> {
        self.answers.iter().filter_map(|answer| Some(answer.distance.as_ref()?.mean)).reduce(f64::max)
    }
}

pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let spec = Spec::read(&args.spec)?;
    let baseline = match (spec.needs_baseline(), &args.baseline) {
        (Some(group), None) => {
            return Err(Failure::misuse(format!(
                "{}: group {:?} has max_kl, and there is nothing to measure it from\n\
                 give --baseline MODEL, the model before training",
                args.spec.display(),
                group.name
            )));
        }
        (None, Some(_)) => {
            eprintln!("note: no group of {} has max_kl, so --baseline is not read", args.spec.display());
            None
        }
        (_, path) => path.as_deref(),
    };
    let verdicts = examine_models(&spec, &args.model.model, baseline, &args.compute)?;
    match args.json {
        true => output::json(&report::json(&verdicts)),
        false => print!("{}", report::text(&verdicts)),
    }
    judgement(&verdicts)
}

/// The failure of a model that does not hold.
pub(crate) fn judgement(verdicts: &[Verdict<'_>]) -> Result<()> {
    let failed: Vec<&str> = verdicts
        .iter()
        .filter(|verdict| !verdict.passed())
        .map(|verdict| verdict.group.name.as_str())
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Code::CheckFailed, format!("the check failed: {}", failed.join(", ")))),
    }
}

/// Opens a model, and the one it is measured from, and asks everything.
pub(crate) fn examine_models<'a>(
    spec: &'a Spec,
    model: &Path,
    baseline: Option<&Path>,
    compute: &ComputeArgs,
) -> Result<Vec<Verdict<'a>>> {
    let mut model = Speaker::open(model, compute, spec.think)?;
    let mut baseline = match baseline {
        Some(path) => Some(Speaker::open(path, compute, spec.think)?),
        None => None,
    };
    examine(spec, &mut model, baseline.as_mut())
}

/// Asks everything that the spec asks.
pub(crate) fn examine<'a>(
    spec: &'a Spec,
    model: &mut Speaker,
    mut baseline: Option<&mut Speaker>,
) -> Result<Vec<Verdict<'a>>> {
    if let Some(baseline) = &baseline {
        model.speaks_as(baseline)?;
    }
    let mut progress = Progress::new("asking", spec.phrasings() as u64);
    let mut verdicts = Vec::new();
    for group in &spec.groups {
        let mut answers = Vec::new();
        for turns in &group.phrasings {
            let said = model.ask(group, turns)?;
            let distance = match (group.rules.max_kl, baseline.as_deref_mut()) {
                (Some(_), Some(baseline)) => Some(model.distance(baseline, group, turns)?),
                _ => None,
            };
            let broken = judge(&group.rules, &said, distance.as_ref());
            answers.push(Answer { turns: said, distance, broken });
            progress.add(1);
        }
        verdicts.push(Verdict { group, answers });
    }
    Ok(verdicts)
}
