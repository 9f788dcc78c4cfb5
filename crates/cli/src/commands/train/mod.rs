//! `halfbyte train`: every parameter of a model learns from a data set.
//!
//! flags -> setup (model, data, plan) -> steps (log, line, checkpoints) -> write (the model, the report)

mod setup;
mod write;

use std::io::{IsTerminal, Write as _, stderr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::{Args, ValueEnum};
use halfbyte_model::training::Batch;
use halfbyte_ops::update::Recipe;
use halfbyte_plan::{Plan, memory};
use halfbyte_text::dataset::{HeldOut, Position};
use halfbyte_text::packing::Sequence;
use halfbyte_train::{
    DataPosition, Decay, GroupSettings, Live, Progress, RateScale, Record, Report, RunFolder, SpikeWatch,
    WarmUp, html,
};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::corpus::CorpusArgs;
use crate::device::{parse_isa, parse_scales};
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::signals;
use setup::Setup;

/// More than any machine trains at once; so that sizes can be multiplied.
const MOST_SEQUENCES: usize = 1 << 16;

/// How what is learnt is kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// NVFP4 with a remainder of eight bits, moments in four: 2.1 bytes a parameter
    Default,
    /// NVFP4 with a remainder of four bits: 1.6 bytes a parameter
    Lean,
}

impl State {
    fn recipe(self) -> Recipe {
        match self {
            State::Default => Recipe::DEFAULT,
            State::Lean => Recipe::LEAN,
        }
    }
}

/// Train every parameter of a model on your data, in four bits
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  halfbyte train --model SmolLM2-135M-Instruct.Q4_1.gguf --data identity.tsv --out run --steps 100
  halfbyte train --model qwen3-0.6b --data talks.jsonl notes.txt:0.5 --out run --steps 1000 --resume

The folder gets log.jsonl (one line a step), checkpoints, report.html, and at the end model/, which
is a ModelOpt NVFP4 directory: talk to it with `halfbyte chat run/model`, turn it into other formats
with `halfbyte convert run/model OUT --to gguf|hf|dat`. Ctrl-C saves and stops; --resume goes on.")]
pub(crate) struct TrainArgs {
    /// The model to begin with: a Hugging Face directory, a .gguf, or a .dat
    #[arg(long, value_name = "MODEL", default_value = embedded::NAME)]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) corpus: CorpusArgs,
    /// The run's folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Steps to take
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) steps: u64,
    /// Sequences of a step
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
    pub(crate) warm_up: WarmUp,
    /// How the rate falls afterwards: constant, linear, cosine
    #[arg(long, value_name = "SHAPE", default_value = "cosine")]
    pub(crate) decay: Decay,
    /// Decoupled weight decay
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0)]
    pub(crate) weight_decay: f64,
    /// How what is learnt is kept between steps
    #[arg(long, value_enum, value_name = "STATE", default_value = "default")]
    pub(crate) state: State,
    /// How NVFP4 block scales are chosen at the start: nearest, four-over-six, search
    #[arg(long, default_value = "nearest", value_name = "RULE", value_parser = parse_scales)]
    pub(crate) scales: halfbyte_formats::nvfp4::Scales,
    /// Leave tensors alone whose name matches; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    pub(crate) freeze: Vec<String>,
    /// Multiply the learning rate of tensors whose name matches; may be given more than once
    #[arg(long, value_name = "PATTERN=FACTOR")]
    pub(crate) lr_scale: Vec<RateScale>,
    /// Train the last N layers only
    #[arg(long, value_name = "N")]
    pub(crate) train_last_layers: Option<usize>,
    /// Samples kept apart to measure with: a number, or a share such as 5%
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub(crate) held_out: HeldOut,
    /// Steps between measurements of the held-out loss
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) measure_every: u64,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) save_every: u64,
    /// Checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) keep: usize,
    /// Decides the order of the data and every rounding
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Go on with the run in this folder
    #[arg(long)]
    pub(crate) resume: bool,
    /// Threads that compute [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Kernels to use: amx, avx512, avx2, neon, scalar [default: the fastest found]
    #[arg(long, value_name = "SET", value_parser = parse_isa)]
    pub(crate) kernels: Option<halfbyte_cpu::Isa>,
    /// Print JSON at the end
    #[arg(long)]
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
        let wrong = |flag: &str| Err(Failure::misuse(format!("{flag} must be at least 1")));
        match () {
            _ if self.steps == 0 => wrong("--steps"),
            _ if self.batch == 0 => wrong("--batch"),
            _ if self.batch > MOST_SEQUENCES => {
                Err(Failure::misuse(format!("--batch takes at most {MOST_SEQUENCES} sequences")))
            }
            _ if self.save_every == 0 => wrong("--save-every"),
            _ if self.measure_every == 0 => wrong("--measure-every"),
            _ if self.keep == 0 => wrong("--keep"),
            _ => Ok(()),
        }
    }
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
    let done = train(args, &mut |_, _| ())?;
    let (model, report) = (done.model, done.folder.write_report(&html(&done.report))?);
    let loss = |record: Option<&Record>| record.map_or(f64::NAN, |record| record.loss);
    let (first, last) = (loss(done.report.records.first()), loss(done.report.records.last()));
    match args.json {
        true => crate::output::json(&json!({
            "steps": args.steps, "first_loss": first, "last_loss": last,
            "state_bytes": done.state_bytes, "parameters": done.parameters,
            "peak_bytes_planned": done.plan.peak_bytes(), "peak_bytes_measured": memory::peak_resident(),
            "model": model, "report": report,
        })),
        false => println!(
            "loss    {first:.3} -> {last:.3} in {} steps\nmodel   {}   talk to it: halfbyte chat {}\nreport  {}",
            args.steps,
            model.display(),
            model.display(),
            report.display()
        ),
    }
    Ok(())
}

/// Trains; `ready` sees the plan and the bytes of the state before the first step.
pub(crate) fn train(args: &TrainArgs, ready: &mut dyn FnMut(&Plan, u64)) -> Result<Done> {
    args.check()?;
    // The step is finished and saved.
    let interrupt = signals::watch(&[SIGINT, SIGTERM])?;
    let mut setup = Setup::new(args)?;
    ready(&setup.plan, setup.adam.state_bytes());
    let (mut folder, mut records, mut step) = open_folder(args, &mut setup)?;
    let mut live = Live::new(args.steps);
    let mut spikes = SpikeWatch::default();
    while step < args.steps {
        step += 1;
        let record = take_step(args, &mut setup, step)?;
        if let Some(spike) = spikes.observe(step, record.loss) {
            note(&spike.to_string());
        }
        live.observe(&record);
        folder.log.append(&record)?;
        show(&live, step, args.steps);
        records.push(record);
        let stop = interrupt.load(Ordering::Relaxed);
        if stop || step.is_multiple_of(args.save_every) || step == args.steps {
            save(&mut folder, &mut setup, step)?;
        }
        if stop && step < args.steps {
            clear_line();
            let folder = args.out.display();
            return Err(Failure::new(
                Code::Interrupted,
                format!(
                    "stopped after step {step}, which is saved\ngo on with the same command and --resume ({folder})"
                ),
            ));
        }
    }
    clear_line();
    let model = write::model(args, &mut setup)?;
    Ok(Done {
        report: write::report(args, &setup, records),
        model,
        folder,
        state_bytes: setup.adam.state_bytes(),
        parameters: setup.checkpoint.architecture.parameters(),
        plan: setup.plan,
    })
}

/// A new folder, or one to go on with: the records and the step so far.
fn open_folder(args: &TrainArgs, setup: &mut Setup) -> Result<(RunFolder, Vec<Record>, u64)> {
    if !args.resume {
        let folder = RunFolder::create(&args.out, setup.settings(args), &setup.binding, args.keep)?;
        return Ok((folder, Vec::new(), 0));
    }
    let resumed = RunFolder::resume(&args.out, &setup.binding, args.keep)?;
    for passed in &resumed.passed {
        note(&format!("passed over {}: {}", passed.path.display(), passed.reason));
    }
    let Some(snapshot) = resumed.snapshot else { return Ok((resumed.folder, resumed.records, 0)) };
    let backend = &mut setup.model.backend;
    snapshot.read_part("state", |from| setup.adam.restore(backend, from))?;
    let position = snapshot.manifest().progress.position;
    let position = Position { epoch: position.epoch, sequence: position.sequence as usize };
    setup.feed.seek(position)?;
    note(&format!("going on after step {}", snapshot.step()));
    Ok((resumed.folder, resumed.records, snapshot.step()))
}

fn take_step(args: &TrainArgs, setup: &mut Setup, step: u64) -> Result<Record> {
    let start = Instant::now();
    let sequences: Vec<Sequence> = (0..args.batch).map(|_| setup.feed.next_sequence()).collect();
    let batch = batch(&sequences);
    let rate = setup.schedule.rate(step);
    setup.adam.begin(step, rate);
    let loss = match setup.model.step(&batch, &mut setup.adam) {
        Err(halfbyte_model::Error::LossNotFinite) => {
            return Err(setup.not_finite(step, "the loss", &sequences));
        }
        loss => loss?,
    };
    if setup.adam.tally().refused > 0 {
        return Err(setup.not_finite(step, "a gradient", &sequences));
    }
    let seconds = start.elapsed().as_secs_f64();
    let held_out_loss = match step.is_multiple_of(args.measure_every) || step == args.steps {
        true => setup.held_out_loss()?,
        false => None,
    };
    Ok(Record {
        step,
        loss,
        held_out_loss,
        learning_rate: rate,
        update_size: f64::NAN,
        codes_moved: setup.adam.codes_moved(),
        tokens: batch.tokens.len() as u64,
        trained_tokens: batch.trained() as u64,
        seconds,
        tokens_per_second: batch.tokens.len() as f64 / seconds,
        ceiling_share: setup.ceiling_share(batch.tokens.len(), seconds),
        memory_planned: setup.plan.peak_bytes() as u64,
        memory_measured: memory::peak_resident().unwrap_or(0),
        non_finite: 0,
    })
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

fn save(folder: &mut RunFolder, setup: &mut Setup, step: u64) -> Result<()> {
    folder.log.sync()?;
    let position = setup.feed.position();
    let progress = Progress {
        step,
        counters: Default::default(),
        position: DataPosition { epoch: position.epoch, sequence: position.sequence as u64 },
        schedule: setup.schedule,
        binding: setup.binding.clone(),
    };
    let (adam, backend) = (&setup.adam, &mut setup.model.backend);
    folder.save(progress, adam.state_bytes(), |staging| {
        staging.write_part("state", |to| adam.save(backend, &mut *to))
    })?;
    Ok(())
}

/// One line, rewritten on a terminal; elsewhere a plain one now and then.
fn show(live: &Live, step: u64, steps: u64) {
    if stderr().is_terminal() {
        let width = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
        eprint!("\r\x1b[K{}", live.line(width.saturating_sub(1)));
        let _ = stderr().flush();
    } else if step == 1 || step == steps || step.is_multiple_of((steps / 20).max(1)) {
        eprintln!("{}", live.line(200));
    }
}

fn clear_line() {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn note(text: &str) {
    clear_line();
    eprintln!("note: {text}");
}
