//! `--one-step`: one step, and the memory held at its phases. Their names are those of the origin's
//! report, so that the two can be laid side by side.

use std::time::Instant;

use halfbyte_model::training::Batch;
use halfbyte_plan::memory;
use halfbyte_text::packing::Sequence;
use serde_json::{Value, json};

use super::setup::Setup;
use super::{TrainArgs, batch, gradient};
use crate::failure::Result;
use crate::output;

pub(super) fn run(args: &TrainArgs) -> Result<()> {
    let start = Instant::now();
    let mut phases: Vec<Value> = Vec::new();
    let mut reached = |phase: &'static str| {
        phases.push(json!({
            "phase": phase, "resident_bytes": memory::resident(), "seconds": start.elapsed().as_secs_f64(),
        }));
    };
    reached("start");
    let mut setup = Setup::new(args, &mut reached)?;
    let count = args.batch * args.gradient.accumulate;
    let sequences: Vec<Sequence> = (0..count).map(|_| setup.feed.next_sequence()).collect();
    let batches: Vec<Batch> = sequences.chunks(args.batch).map(batch).collect();
    let tokens: usize = batches.iter().map(|batch| batch.tokens.len()).sum();
    reached("batch_ready");
    setup.adam.begin(1, setup.schedule.rate(1));
    // No gradient outlives its tensor's turn: there is none to set to zero.
    reached("zero_grad_done");
    let loss = gradient::learn(&mut setup, 1, &batches, sequences)?.loss;
    // Every tensor learns as soon as its gradient is there, or all in one go: these two end together.
    reached("backward_done");
    reached("optimizer_step_done");
    let (planned, state) = (setup.plan.peak_bytes(), setup.adam.state_bytes());
    let (parameters, length) = (setup.checkpoint.architecture.parameters(), setup.length);
    let held = setup.place.held();
    drop(setup);
    reached("cleanup_done");
    output::json(&json!({
        "phases": phases,
        "planned_peak_bytes": planned,
        "measured_peak_bytes": held,
        "state_bytes": state,
        "parameters": parameters,
        "batch": args.batch,
        "seq": length,
        "tokens": tokens,
        "loss": loss,
    }));
    Ok(())
}
