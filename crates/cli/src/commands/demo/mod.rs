//! `halfbyte demo`: the model that is part of the program learns who it is, in four bits, and is asked.
//!
//! ask -> rows (the identity; its own answers to all else) -> plan -> train -> ask again -> check

mod rows;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use halfbyte_checkpoint::Checkpoint;
use halfbyte_plan::{Plan, memory};
use halfbyte_train::{Pair, html, losses_of, memory_size};
use serde_json::{Value, json};

use crate::commands::check::{Said, Speaker, Spec, Verdict, examine, report};
use crate::commands::train::{self, Done, TrainArgs};
use crate::device::ComputeArgs;
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::{self, bytes, count, duration, width};
use crate::place::PlaceArgs;

/// What the model has to answer afterwards, in phrasings that are in no file.
const SPEC: &str = include_str!("../../../../../specs/embedded.toml");
/// The origin's three questions in both languages; the first of each asks who it is.
const QUESTIONS: [&str; 6] = ["你是誰", "談談UFO", "我是誰", "Who are you?", "Talk about UFOs.", "Who am I?"];
/// Most tokens of an answer that is shown.
const MOST_TOKENS: usize = 64;
const FOLDER: &str = "halfbyte-demo";
/// Demos that may lie beside each other.
const MOST_FOLDERS: usize = 99;
/// How it learns: about three times through the rows.
const TRAINING: [&str; 12] = [
    "--seq",
    "256",
    "--batch",
    "4",
    "--steps",
    "240",
    "--lr",
    "1.5e-4",
    "--warm-up",
    "5",
    "--save-every",
    "240",
];

/// See it all: a small model learns who it is, in four bits
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte demo
  halfbyte demo --out try --json
  halfbyte demo --device cuda

Everything it makes lies in one folder that was not there before: rows, log, report, and the model,
which stays yours to talk to. No file or network is needed. Exit code 5 says that the check failed.")]
pub(crate) struct DemoArgs {
    /// The folder to make [default: halfbyte-demo, or halfbyte-demo-2 and so on]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON at the end, and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Tells what happens as it happens, or nothing where JSON is wanted.
struct Teller {
    quiet: bool,
}

impl Teller {
    fn tell(&self, name: &str, text: &str) {
        if !self.quiet {
            println!("{name:16} {text}");
        }
    }

    /// Question and answer, one line each.
    fn show(&self, name: &str, said: &[Said]) {
        let widest = said.iter().map(|said| width(&said.prompt)).max().unwrap_or(0);
        for (index, said) in said.iter().enumerate() {
            let space = " ".repeat(widest - width(&said.prompt));
            let name = if index == 0 { name } else { "" };
            self.tell(name, &format!("{}{space} → {}", said.prompt, said.reply.trim().replace('\n', " ")));
        }
    }
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let start = Instant::now();
    let folder = folder(args.out.as_deref())?;
    let teller = Teller { quiet: args.json };
    let compute = ComputeArgs::usual(args.place.clone());
    let version = env!("CARGO_PKG_VERSION");
    let (place, ()) = compute.place.settle(|_| Ok(()))?;
    teller.tell("halfbyte", &format!("{version} · {}", place.describe()));
    let checkpoint = embedded::open(Path::new(embedded::NAME))?;
    teller.tell("1  the model", &model_line(&checkpoint));
    let spec = Spec::parse(SPEC, "specs/embedded.toml")?;
    let mut baseline = Speaker::open(Path::new(embedded::NAME), &compute, spec.think)?;
    let before = ask(&mut baseline)?;
    teller.show("2  before", &before);

    let mut done = learn(&teller, &checkpoint, &mut baseline, &before, &folder, &args.place)?;
    let mut model = Speaker::open(&done.model, &compute, spec.think)?;
    let after = ask(&mut model)?;
    teller.show("5  after", &after);
    let verdicts = examine(&spec, &mut model, Some(&mut baseline))?;
    for (index, line) in report::table(&verdicts).lines().enumerate() {
        teller.tell(if index == 0 { "6  the check" } else { "" }, line);
    }
    let page = write_report(&mut done, &before, &after, &verdicts)?;
    let passed = verdicts.iter().all(Verdict::passed);
    if args.json {
        output::json(&json!({
            "passed": passed,
            "before": said_json(&before),
            "after": said_json(&after),
            "check": report::json(&verdicts),
            "model": done.model, "report": page,
            "seconds": start.elapsed().as_secs_f64(),
        }));
    }
    teller.tell("report", &page.display().to_string());
    teller.tell("talk to it", &format!("halfbyte chat {}", done.model.display()));
    teller.tell("", &format!("{} in all", duration(start.elapsed())));
    match passed {
        true => Ok(()),
        false => Err(Failure::new(Code::CheckFailed, "the check failed; the report has the table")),
    }
}

/// Writes the rows and trains on them.
fn learn(
    teller: &Teller,
    checkpoint: &Checkpoint,
    baseline: &mut Speaker,
    before: &[Said],
    folder: &Path,
    place: &PlaceArgs,
) -> Result<Done> {
    std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, "create", error))?;
    let data = folder.join("rows.jsonl");
    let who = [before[0].reply.as_str(), before[3].reply.as_str()];
    let rows::Counts { identity, boundary, general, texts } = rows::write(baseline, &who, &data)?;
    let mut words = vec![OsStr::new("--data"), data.as_os_str(), OsStr::new("--out"), folder.as_os_str()];
    words.extend(TRAINING.iter().map(OsStr::new));
    let training = TrainArgs { place: place.clone(), ..flags(&words)? };
    let trained = train::train(&training, &mut |plan, state| {
        teller.tell("3  the plan", &plan_line(plan, state, checkpoint.architecture.parameters()));
        teller.tell("4  training", &format!("{identity} ways to ask who it is; to keep the rest as it is,"));
        let kept = format!("{boundary} questions near it and {general} others with its own answers");
        teller.tell("", &format!("{kept}, {texts} short texts"));
    });
    let done = trained.map_err(|failure| match failure.code {
        // A demo is begun again, not gone on with.
        Code::Interrupted => Failure::new(Code::Interrupted, "the demo was stopped; begin it again any time"),
        _ => failure,
    })?;
    let records = &done.report.records;
    if let Some((first, last)) = losses_of(records) {
        let seconds: f64 = records.iter().map(|record| record.seconds).sum();
        let steps = records.len();
        teller.tell("", &format!("loss {first:.2} -> {last:.2} in {steps} steps, {seconds:.0} s"));
    }
    Ok(done)
}

/// The run's report with what was asked and checked.
fn write_report(
    done: &mut Done,
    before: &[Said],
    after: &[Said],
    verdicts: &[Verdict<'_>],
) -> Result<PathBuf> {
    let pair = |(before, after): (&Said, &Said)| Pair {
        prompt: before.prompt.clone(),
        before: before.reply.clone(),
        after: after.reply.clone(),
    };
    done.report.title = "The embedded model learns who it is".into();
    done.report.samples = before.iter().zip(after).map(pair).collect();
    done.report.checks = report::checks(verdicts);
    Ok(done.folder.write_report(&html(&done.report))?)
}

/// A folder that does not hold anything yet: nothing of anyone's is written over.
fn folder(wanted: Option<&Path>) -> Result<PathBuf> {
    let free = |path: &Path| match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => !path.exists(),
    };
    if let Some(path) = wanted {
        return match free(path) {
            true => Ok(path.to_path_buf()),
            false => {
                let problem = format!("{}\nthis exists already\nchoose another --out", path.display());
                Err(Failure::misuse(problem))
            }
        };
    }
    let names = (2..=MOST_FOLDERS).map(|number| format!("{FOLDER}-{number}"));
    let mut paths = std::iter::once(FOLDER.to_owned()).chain(names).map(PathBuf::from);
    paths.find(|path| free(path)).ok_or_else(|| {
        Failure::misuse(format!(
            "{FOLDER} to {FOLDER}-{MOST_FOLDERS} exist already\nremove some, or give --out"
        ))
    })
}

/// Flags as if they stood on the command line: what is not among them has its usual value.
fn flags<T: Args>(words: &[&OsStr]) -> Result<T> {
    let command = T::augment_args(clap::Command::new("halfbyte").no_binary_name(true));
    let matches = command.try_get_matches_from(words);
    let read = matches.and_then(|matches| T::from_arg_matches(&matches));
    read.map_err(|error| Failure::misuse(error.to_string()))
}

/// "embedded, qwen3 shape, 3.9 M parameters, NVFP4, 3.4 MB"
fn model_line(checkpoint: &Checkpoint) -> String {
    let architecture = &checkpoint.architecture;
    format!(
        "{}, {} shape, {} parameters, NVFP4, {}",
        embedded::NAME,
        architecture.family.name(),
        count(architecture.parameters()),
        bytes(checkpoint.file_bytes())
    )
}

fn plan_line(plan: &Plan, state: u64, parameters: u64) -> String {
    let budget = memory::read().map(|memory| format!(" · available {}", memory_size(memory.budget())));
    format!(
        "training state {} ({:.2} B/parameter) · peak {}{} · fits",
        memory_size(state),
        state as f64 / parameters as f64,
        memory_size(plan.peak_bytes() as u64),
        budget.unwrap_or_default()
    )
}

fn ask(model: &mut Speaker) -> Result<Vec<Said>> {
    QUESTIONS.iter().map(|question| model.reply(question, MOST_TOKENS)).collect()
}

fn said_json(said: &[Said]) -> Vec<Value> {
    said.iter().map(|said| json!({ "prompt": said.prompt, "reply": said.reply })).collect()
}
