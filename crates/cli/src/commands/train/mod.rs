//! `halfbyte train`: every parameter of a model learns from a data set.
//!
//! flags -> setup (model, data, plan) -> steps (log, line, samples, checkpoints) -> finish (the model,
//! the check, the report)

mod beginning;
mod course;
mod finish;
mod gradient;
mod not_finite;
mod one_step;
mod samples;
mod setup;
mod size;
mod state;
mod write;

use std::io::{IsTerminal, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::{Args, Command, FromArgMatches};
use halfbyte_model::training::Batch;
use halfbyte_plan::Plan;
use halfbyte_text::dataset::HeldOut;
use halfbyte_text::packing::Sequence;
use halfbyte_train::{Decay, GroupSettings, Live, RateScale, Record, Report, RunFolder, SpikeWatch, WarmUp};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::commands::check::Spec;
use crate::config;
use crate::corpus::CorpusArgs;
use crate::date::Date;
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::place::PlaceArgs;
use crate::signals;
use course::{Course, open_folder, resume, save};
use gradient::{GradientArgs, Learnt};
use not_finite::{NotFinite, OnNan};
use setup::Setup;

pub(crate) use gradient::Gradient;
pub(crate) use setup::restore;
pub(crate) use size::{RecomputeArg, Size};
pub(crate) use state::{State, StateArgs};
pub(crate) use write::model as write_model;

/// Far beyond any use.
const MOST_DECAY: f64 = 1e3;

/// Train every parameter of a model on your data, in four bits
#[derive(Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(after_help = "Examples:
  halfbyte train --model SmolLM2-135M-Instruct.Q4_1.gguf --data identity.tsv --out run --steps 100
  halfbyte train --config run/settings.toml --resume
  halfbyte train --random configs/qwen3-0.6b.json --data dialogues.jsonl --out run --seq 256

The folder gets settings.toml, log.jsonl (one line a step), samples.jsonl, checkpoints, report.html,
and at the end model/, a ModelOpt NVFP4 directory (with --state all-f32 a plain one in f32): talk to
it with `halfbyte chat run/model`. Other formats of any checkpoint come from
`halfbyte export run OUT --to gguf|hf|modelopt|dat`. Ctrl-C saves and stops; --resume goes on.")]
pub(crate) struct TrainArgs {
    /// The model to begin with: a Hugging Face directory, a .gguf, or a .dat
    #[arg(long, value_name = "MODEL", default_value = embedded::NAME, conflicts_with = "random")]
    #[serde(skip_serializing_if = "beginning::goes_without_saying")]
    pub(crate) model: PathBuf,
    /// Begin with random weights instead, of the shape in this config.json; the tokenizer is the one beside
    /// it, or this program's own
    #[arg(long, value_name = "config.json")]
    pub(crate) random: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) corpus: CorpusArgs,
    /// The run's folder
    #[arg(
        long,
        value_name = "DIR",
        required = false,
        required_unless_present = "one_step",
        default_value_if("one_step", "true", ".")
    )]
    pub(crate) out: PathBuf,
    /// Settings from a file: the names of these flags = their values. Flags win
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    #[allow(dead_code)] // read before the flags are, in crate::config
    pub(crate) config: Option<PathBuf>,
    /// Steps to take
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) steps: u64,
    /// Sequences of a batch
    #[arg(long, value_name = "B", default_value_t = 4)]
    pub(crate) batch: usize,
    /// Largest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 5e-5)]
    pub(crate) lr: f64,
    /// Learning rate at the end
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub(crate) min_lr: f64,
    /// Steps that rise to the largest rate: a number, or a share such as 5%
    #[arg(long, value_name = "STEPS", default_value = "5%")]
    #[serde(serialize_with = "config::text")]
    pub(crate) warm_up: WarmUp,
    /// How the rate falls afterwards: constant, linear, cosine
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    pub(crate) decay: Decay,
    /// Decoupled weight decay
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0)]
    pub(crate) weight_decay: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) gradient: GradientArgs,
    /// Most that a weight moves in one step, in learning rates [default: 1; no limit with full second moments]
    ///
    /// Factored second moments are of the steps before and may know too little of an element. Also where gradients are used up as they arrive, so that their common norm cannot be clipped, this
    /// bounds what one step can do.
    #[arg(long, value_name = "RATES", value_parser = parse_clip)]
    pub(crate) clip_update: Option<f64>,
    /// What is computed again on the way back; the numbers are the same
    #[arg(long, value_enum, value_name = "WHAT", default_value = "layer")]
    pub(crate) recompute: RecomputeArg,
    /// Leave tensors alone whose name matches; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    pub(crate) freeze: Vec<String>,
    /// Multiply the learning rate of tensors whose name matches; may be given more than once
    #[arg(long, value_name = "PATTERN=FACTOR")]
    #[serde(serialize_with = "config::list")]
    pub(crate) lr_scale: Vec<RateScale>,
    /// Train the last N layers only
    #[arg(long, value_name = "N")]
    pub(crate) train_last_layers: Option<usize>,
    /// Samples kept apart to measure with: a number, or a share such as 5%
    #[arg(long, value_name = "COUNT", default_value = "0")]
    #[serde(serialize_with = "config::text")]
    pub(crate) held_out: HeldOut,
    /// Steps between measurements of the held-out loss
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) measure_every: u64,
    /// Answer this prompt before training, from time to time, and at the end; may be given more than once
    #[arg(long, value_name = "PROMPT")]
    pub(crate) sample: Vec<String>,
    /// Steps between such answers
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) sample_every: u64,
    /// Check the result against a spec of `halfbyte check`; exit code 5 says that it failed
    #[arg(long, value_name = "SPEC")]
    pub(crate) check: Option<PathBuf>,
    /// When a loss or a gradient is not a number
    #[arg(long, value_enum, value_name = "RULE", default_value = "stop")]
    pub(crate) on_nan: OnNan,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) save_every: u64,
    /// Checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) keep: usize,
    /// Decides the order of the data, every rounding, and random weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// The date that a chat template sees which asks for it [default: today, or that of the run]
    #[arg(long, value_name = "YYYY-MM-DD")]
    #[serde(serialize_with = "config::maybe")]
    pub(crate) date: Option<Date>,
    /// Go on with the run in this folder
    #[arg(long)]
    #[serde(skip)]
    pub(crate) resume: bool,
    /// Take one step, write nothing, and print what memory was held at each phase as JSON
    #[arg(long, conflicts_with = "resume")]
    #[serde(skip)]
    pub(crate) one_step: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print JSON at the end
    #[arg(long)]
    #[serde(skip)]
    pub(crate) json: bool,
}

impl TrainArgs {
    fn groups(&self) -> GroupSettings {
        GroupSettings {
            freeze: self.freeze.clone(),
            scales: self.lr_scale.clone(),
            last_layers: self.train_last_layers,
        }
    }

    fn check(&self) -> Result<()> {
        self.state.check()?;
        let wrong = |flag: &str| Err(Failure::misuse(format!("{flag} must be at least 1")));
        match () {
            _ if self.steps == 0 => wrong("--steps"),
            _ if self.sample_every == 0 => wrong("--sample-every"),
            _ if self.save_every == 0 => wrong("--save-every"),
            _ if self.measure_every == 0 => wrong("--measure-every"),
            _ if self.keep == 0 => wrong("--keep"),
            _ if !(0.0..=MOST_DECAY).contains(&self.weight_decay) => {
                Err(Failure::misuse(format!("--weight-decay takes a number from 0 to {MOST_DECAY}")))
            }
            _ => self.gradient.check(),
        }
    }
}

/// The settings of the run in a folder, as flags.
pub(crate) fn settings_of(run: &Path) -> Result<TrainArgs> {
    let file = RunFolder::settings(run)?;
    let command = TrainArgs::augment_args(Command::new("train"));
    let mut words = vec!["train".into()];
    words.extend(config::flags(&file, &command, &|_| false)?);
    let wrong = |error: clap::Error| {
        let problem = format!("{}\nthese are not the settings of a run\n{error}", file.display());
        Failure::new(Code::BadInput, problem)
    };
    let matches = command.try_get_matches_from(words).map_err(wrong)?;
    TrainArgs::from_arg_matches(&matches).map_err(wrong)
}

/// What a run came to. The report is the caller's to complete and to write.
pub(crate) struct Done {
    pub(crate) folder: RunFolder,
    pub(crate) report: Report,
    pub(crate) model: PathBuf,
    plan: Plan,
    state_bytes: u64,
    parameters: u64,
}

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    // Before anything is computed: a spec that cannot be read is no reason to lose a run.
    let spec = args.check.as_deref().map(Spec::read).transpose()?;
    beginning::check(args, spec.as_ref())?;
    match args.one_step {
        true => one_step::run(args),
        false => finish::finish(args, train(args, &mut |_, _| ())?, spec.as_ref()),
    }
}

/// Trains, and writes the model; `ready` sees the plan and the bytes of the state before the first step.
pub(crate) fn train(args: &TrainArgs, ready: &mut dyn FnMut(&Plan, u64)) -> Result<Done> {
    args.check()?;
    // A run goes on with the date it began with, whatever the day.
    let date = match (args.date, args.resume) {
        (None, true) => settings_of(&args.out)?.date,
        (date, _) => date,
    };
    let args = &TrainArgs { date: Some(date.unwrap_or_else(Date::today)), ..args.clone() };
    // The step is finished and saved.
    let interrupt = signals::watch(&[SIGINT, SIGTERM, SIGHUP])?;
    let mut setup = Setup::new(args, &mut |_| ())?;
    ready(&setup.plan, setup.adam.state_bytes());
    let mut course = open_folder(args, &mut setup)?;
    if course.step == 0 {
        samples::ask(&mut setup, &mut course)?;
    }
    let mut live = Live::new(args.steps);
    let mut spikes = SpikeWatch::default();
    while course.step < args.steps {
        let before = setup.feed.position();
        let (record, trouble) = take_step(args, &mut setup, &course)?;
        if let Some(trouble) = trouble {
            match args.on_nan {
                OnNan::Stop => return Err(not_finite::stop(args, &mut setup, &mut course, before, trouble)?),
                OnNan::Skip => note(&format!("step {}: {}; skipped", record.step, trouble.what())),
            }
        } else if let Some(spike) = spikes.observe(record.step, record.loss) {
            note(&spike.to_string());
        }
        course.step = record.step;
        live.observe(&record);
        course.folder.log.append(&record)?;
        show(&live, course.step, args.steps);
        course.records.push(record);
        let last = course.step == args.steps;
        if last || course.step.is_multiple_of(args.sample_every) {
            samples::ask(&mut setup, &mut course)?;
        }
        let stop = interrupt.load(Ordering::Relaxed);
        if stop || last || course.step.is_multiple_of(args.save_every) {
            save(&mut course, &mut setup)?;
        }
        if stop && !last {
            clear_line();
            return Err(Failure::new(
                Code::Interrupted,
                format!("stopped after step {}, which is saved\ngo on with: {}", course.step, resume(args)),
            ));
        }
    }
    clear_line();
    let model = args.out.join("model");
    write::model(&mut setup.model, &setup.checkpoint, &model)?;
    let samples = samples::pairs(&setup, &course.samples);
    Ok(Done {
        report: Report { samples, ..write::report(args, &setup, course.records) },
        model,
        folder: course.folder,
        state_bytes: setup.adam.state_bytes(),
        parameters: setup.checkpoint.architecture.parameters(),
        plan: setup.plan,
    })
}

fn take_step(args: &TrainArgs, setup: &mut Setup, course: &Course) -> Result<(Record, Option<NotFinite>)> {
    let start = Instant::now();
    let step = course.step + 1;
    let count = args.batch * args.gradient.accumulate;
    let sequences: Vec<Sequence> = (0..count).map(|_| setup.feed.next_sequence()).collect();
    let batches: Vec<Batch> = sequences.chunks(args.batch).map(batch).collect();
    let rate = setup.schedule.rate(step);
    setup.adam.begin(step, rate);
    let Learnt { loss, gradient_norm, trouble } = gradient::learn(setup, step, &batches, sequences)?;
    if trouble.is_some() {
        setup.model.wipe()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let tokens = batches.iter().map(|batch| batch.tokens.len()).sum::<usize>();
    let held_out_loss = match step.is_multiple_of(args.measure_every) || step == args.steps {
        true => setup.held_out_loss()?,
        false => None,
    };
    let before = course.records.last().map_or(0, |record| record.non_finite);
    let record = Record {
        step,
        loss,
        held_out_loss,
        learning_rate: rate,
        update_size: setup.adam.update_size(),
        gradient_norm,
        optimizer_seconds: setup.adam.seconds(),
        codes_moved: setup.adam.codes_moved(),
        tokens: tokens as u64,
        trained_tokens: batches.iter().map(|batch| batch.trained() as u64).sum(),
        seconds,
        tokens_per_second: tokens as f64 / seconds,
        ceiling_share: setup.ceiling_share(tokens, seconds),
        memory_planned: setup.plan.peak_bytes() as u64,
        memory_measured: setup.place.held().unwrap_or(0),
        non_finite: before + u64::from(trouble.is_some()),
    };
    Ok((record, trouble))
}

fn parse_clip(text: &str) -> std::result::Result<f64, String> {
    let clip = text.parse().ok().filter(|clip: &f64| *clip > 0.0);
    clip.ok_or_else(|| "a number of learning rates above 0, 1 for instance".into())
}

/// Sequences without their padding, sample after sample.
pub(super) fn batch(sequences: &[Sequence]) -> Batch {
    let mut batch = Batch::default();
    for sequence in sequences {
        batch.tokens.extend(&sequence.tokens[..sequence.used]);
        batch.targets.extend(&sequence.targets[..sequence.used]);
        let starts = sequence.samples.iter().map(|(_, start)| *start);
        let ends = sequence.samples.iter().skip(1).map(|(_, start)| *start).chain([sequence.used]);
        batch.lengths.extend(starts.zip(ends).map(|(start, end)| end - start));
    }
    batch
}

/// One line, rewritten on a terminal; elsewhere a plain one now and then.
fn show(live: &Live, step: u64, steps: u64) {
    if stderr().is_terminal() {
        let width = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
        say(&format!("\r\x1b[K{}", live.line(width.saturating_sub(1))));
    } else if step == 1 || step == steps || step.is_multiple_of((steps / 20).max(1)) {
        say(&format!("{}\n", live.line(200)));
    }
}

fn clear_line() {
    if stderr().is_terminal() {
        say("\r\x1b[K");
    }
}

fn note(text: &str) {
    clear_line();
    say(&format!("note: {text}\n"));
}

/// A run goes on when nobody listens any more.
fn say(text: &str) {
    let _ = stderr().write_all(text.as_bytes()).and_then(|()| stderr().flush());
}
