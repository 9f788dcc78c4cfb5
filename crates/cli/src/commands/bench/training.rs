//! `halfbyte bench --train`: steps of a training run on random weights and tokens.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use halfbyte_checkpoint::Architecture;
use halfbyte_formats::state::adamw;
use halfbyte_model::fill;
use halfbyte_model::training::{Batch, Training};
use halfbyte_ops::Backend;
use halfbyte_train::{Adam, GroupSettings, groups, memory_size};
use serde_json::json;

use super::profile::Profile;
use crate::commands::train::{RecomputeArg, Size, State, StateArgs};
use crate::corpus;
use crate::failure::{Code, Failure, Result};
use crate::output::{self, Progress};
use crate::place::PlaceArgs;

/// Steps before the clock runs: buffers are touched, kernels translated, products tried.
const WARM: usize = 2;
/// Too small to change what is measured.
const RATE: f64 = 1e-7;

#[derive(Args, Debug)]
#[command(next_help_heading = "Training")]
pub(super) struct TrainingArgs {
    /// Measure training steps of the model's shape instead of a conversation
    #[arg(long, conflicts_with_all = ["weights", "scales", "context", "cache", "prompt_tokens", "decode_tokens", "decode_at"])]
    pub(super) train: bool,
    /// Sequences of a step
    #[arg(long, value_name = "B", default_value_t = 4, requires = "train")]
    batch: usize,
    /// Tokens of a sequence [default: the model's own limit, at most 1024]
    #[arg(long, value_name = "T", requires = "train")]
    seq: Option<usize>,
    /// How weights are kept between steps
    #[arg(long, value_enum, value_name = "STATE", default_value = "default", requires = "train")]
    state: State,
    /// What is computed again on the way back
    #[arg(long, value_enum, value_name = "WHAT", default_value = "layer", requires = "train")]
    recompute: RecomputeArg,
}

pub(super) fn run(
    args: &TrainingArgs,
    place: &PlaceArgs,
    (architecture, path): (&Architecture, &Path),
    repeat: usize,
    (profile, as_json): (bool, bool),
) -> Result<()> {
    let size = Size {
        architecture,
        encoding: &|_| None,
        state: StateArgs::of(args.state),
        batch: args.batch,
        length: corpus::length(args.seq, architecture.max_context)?,
        gradient: None,
        recompute: args.recompute,
    };
    let (place, plan) = place.settle(|place| size.fitting(place, path))?;
    super::profile::check(profile, &place)?;
    let progress = Progress::waiting("measuring");
    let mut model =
        Training::new(place.backend(&plan)?, architecture, &plan, size.training(&place), size.encoding)?;
    fill::fill(&mut model.backend, architecture, &plan, 0)?;
    let names: Vec<String> = architecture.tensor_names().iter().map(ToString::to_string).collect();
    let all = groups(&names, &GroupSettings::default())?;
    let mut adam = Adam::new(&model, &plan, &all, adamw::Settings::default(), size.state.recipe(), 0);
    let batch = noise(architecture.vocab_size, args.batch, size.length);
    let (mut steps, mut optimizer) = (Vec::new(), Vec::new());
    for step in 0..WARM + repeat {
        adam.begin(step as u64 + 1, RATE);
        let start = Instant::now();
        let loss = model.step(&batch, &mut adam)?;
        if !loss.is_finite() {
            return Err(Failure::new(Code::Failed, format!("the loss of random weights is {loss}")));
        }
        if step >= WARM {
            steps.push(start.elapsed().as_secs_f64());
            optimizer.push(adam.seconds());
        }
    }
    let mut measured = None;
    if profile {
        adam.begin((WARM + repeat) as u64 + 1, RATE);
        Profile::begin(&mut model.backend)?;
        model.step(&batch, &mut adam)?;
        measured = Some(Profile::end("a step", &mut model.backend)?);
    }
    drop(progress);
    steps.sort_by(f64::total_cmp);
    optimizer.sort_by(f64::total_cmp);
    let (step, optimizer) = (steps[steps.len() / 2], optimizer[optimizer.len() / 2]);
    let tokens = batch.tokens.len() as f64;
    let each = args.recompute.setting().operations(architecture);
    let work = each * architecture.parameters() as f64 * tokens / step;
    // Before the ceiling is measured, which takes memory of its own.
    let (planned, held) = (plan.peak_bytes() as u64, place.held());
    let share = place.arithmetic().map(|most| work / most);
    if as_json {
        output::json(&json!({
            "model": path.display().to_string(),
            "device": model.backend.describe(),
            "batch": args.batch,
            "seq": size.length,
            "train_tok_s": tokens / step,
            "step_seconds": step,
            "optimizer_seconds": optimizer,
            "flop_s": work,
            "percent_of_ceiling": share.map(|share| 100.0 * share),
            "state_bytes": adam.state_bytes(),
            "planned_peak_bytes": planned,
            "measured_peak_bytes": held,
            "profile": measured,
        }));
        return Ok(());
    }
    println!("{} · {}", path.display(), model.backend.describe());
    let ceiling = share.map_or(String::new(), |share| format!(", {:.0}% of the ceiling", 100.0 * share));
    println!(
        "steps of {}×{}   {:>8.0} tok/s   {:.1} Tflop/s{ceiling}",
        args.batch,
        size.length,
        tokens / step,
        work / 1e12
    );
    println!("a step           {:>8.1} ms      the optimizer {:.1} ms of it", step * 1e3, optimizer * 1e3);
    println!(
        "memory           {:>8} planned   {} measured",
        memory_size(planned),
        held.map_or("not".into(), memory_size)
    );
    measured.iter().for_each(Profile::print);
    Ok(())
}

/// Tokens without meaning; each is followed by the next.
fn noise(vocabulary: usize, count: usize, length: usize) -> Batch {
    let token = |index: usize| (index * 7919 % vocabulary) as u32;
    Batch {
        tokens: (0..count * length).map(token).collect(),
        targets: (1..=count * length).map(token).collect(),
        lengths: vec![length; count],
    }
}
