//! What a training step takes: one plan, for `plan --train` and for `train`.

use std::path::Path;

use clap::ValueEnum;
use halfbyte_checkpoint::{Architecture, Encoding, TensorName};
use halfbyte_ops::accumulate::Storage;
use halfbyte_plan::{
    Change, Fit, Group, Name, Plan, Recompute, Settings, TrainingSettings, fit, plan_training,
};
use halfbyte_train::memory_size;
use serde::Serialize;
use serde_json::{Value, json};

use super::state::StateArgs;
use crate::commands::plan::Table;
use crate::device::lacking;
use crate::failure::{Code, Failure, Result};
use crate::place::Place;

/// Tokens by which a sequence is shortened to make a plan fit.
const STRIDE: usize = 64;
/// More than any machine trains at once; so that sizes can be multiplied.
pub(super) const MOST_SEQUENCES: usize = 1 << 16;

/// Everything that the size of a step depends on.
#[derive(Clone, Copy)]
pub(crate) struct Size<'a> {
    pub(crate) architecture: &'a Architecture,
    pub(crate) encoding: &'a dyn Fn(TensorName) -> Option<Encoding>,
    pub(crate) state: StateArgs,
    /// Sequences of a step.
    pub(crate) batch: usize,
    /// Tokens of a sequence.
    pub(crate) length: usize,
    /// How gradients are stored until a step knows all of them.
    pub(crate) gradient: Option<Storage>,
    /// What is computed again on the way back.
    pub(crate) recompute: RecomputeArg,
}

/// What is computed again on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RecomputeArg {
    /// Every layer, from its input: the least memory
    Layer,
    /// Every layer's feed-forward part: the values of attention are kept, for half of the memory that all take
    FeedForward,
    /// Nothing: the values of all layers are kept, in much more memory
    None,
}

impl RecomputeArg {
    /// What computes more again, in less memory, the nearest first.
    fn less_memory(self) -> &'static [RecomputeArg] {
        use RecomputeArg::{FeedForward, Layer, None};
        match self {
            Layer => &[],
            FeedForward => &[Layer],
            None => &[FeedForward, Layer],
        }
    }

    pub(crate) fn setting(self) -> Recompute {
        match self {
            RecomputeArg::Layer => Recompute::Layer,
            RecomputeArg::FeedForward => Recompute::FeedForward,
            RecomputeArg::None => Recompute::None,
        }
    }
}

impl Size<'_> {
    pub(crate) fn training(&self, place: &Place) -> TrainingSettings {
        let recompute = self.recompute.setting();
        let (recipe, gradient) = (self.state.recipe(), self.gradient);
        let vocabulary_chunk = place.words(self.architecture, self.batch * self.length);
        let rounds_residual = place.rounds_residual();
        let narrow_heads_from = place.narrow_heads_from(self.architecture.head_dim);
        TrainingSettings { vocabulary_chunk, recipe, gradient, recompute, rounds_residual, narrow_heads_from }
    }

    /// Every buffer of a run.
    pub(crate) fn plan(&self, place: &Place) -> Result<Plan> {
        match (1..=MOST_SEQUENCES).contains(&self.batch) {
            true => Ok(self.arrange(place)),
            false => Err(Failure::misuse(format!("--batch takes 1 to {MOST_SEQUENCES} sequences"))),
        }
    }

    /// The plan, if its place has room for it.
    pub(crate) fn fitting(&self, place: &Place, model: &Path) -> Result<Plan> {
        let plan = self.plan(place)?;
        match self.judge(place, &plan) {
            Fit::Fits => Ok(plan),
            Fit::Lacks { bytes, changes } => Err(Failure::new(
                Code::WouldNotFit,
                format!("{}\n{}{}", model.display(), self.table(place, &plan), lacking(bytes, &changes)),
            )),
        }
    }

    fn arrange(&self, place: &Place) -> Plan {
        let a = self.architecture;
        let (weights, cache) = self.state.forward();
        let settings = Settings {
            context: self.length,
            lanes: 1,
            chunk: self.batch * self.length,
            logit_rows: 1,
            weights,
            cache,
            threads: place.threads(),
        };
        let training = self.training(place);
        let scratch = place.training_scratch(a, &settings, training.vocabulary_chunk);
        place.complete(plan_training(a, &settings, training, self.encoding, scratch))
    }

    /// Judges its plan against the memory of its place.
    pub(crate) fn judge(&self, place: &Place, plan: &Plan) -> Fit {
        fit::lack(plan, place.memory()).map_or(Fit::Fits, |(bytes, budget)| {
            let fits = |size: Size<'_>| {
                let peak_bytes = size.arrange(place).peak_bytes();
                (peak_bytes as u64 <= budget).then_some(peak_bytes)
            };
            let change = |flag: String| move |peak_bytes| Change { flag, peak_bytes };
            let again = self.recompute.less_memory().iter().find_map(|recompute| {
                let name = recompute.to_possible_value()?.get_name().to_owned();
                let peak_bytes = fits(Size { recompute: *recompute, ..*self })?;
                Some(Change { flag: format!("--recompute {name}"), peak_bytes })
            });
            let batch = fit::largest(self.batch - 1, &|batch| fits(Size { batch, ..*self }));
            let lean = self.state.lean().and_then(|state| fits(Size { state, ..*self }));
            let shorter = (self.length - 1) / STRIDE;
            let length = fit::largest(shorter, &|strides| fits(Size { length: strides * STRIDE, ..*self }));
            let changes = [
                again,
                batch.map(|(batch, peak)| change(format!("--batch {batch}"))(peak)),
                lean.map(change("--state lean".into())),
                length.map(|(strides, peak)| change(format!("--seq {}", strides * STRIDE))(peak)),
            ];
            Fit::Lacks { bytes, changes: changes.into_iter().flatten().collect() }
        })
    }

    /// The plan for people.
    pub(crate) fn table(&self, place: &Place, plan: &Plan) -> String {
        let sum = |wanted: &dyn Fn(Name) -> bool| -> u64 {
            let of = plan.buffers.iter().filter(|planned| wanted(planned.name));
            of.map(|planned| planned.buffer.bytes as u64).sum()
        };
        let group = |group| plan.group_bytes(group) as u64;
        let remainder = sum(&|name| matches!(name, Name::Remainder(_)));
        let first = sum(&|name| matches!(name, Name::Moment(_)));
        let second = sum(&|name| matches!(name, Name::Second(_)));
        let kept = group(Group::Weights) + remainder + first + second;
        let each = kept as f64 / self.architecture.parameters() as f64;
        let gradient = sum(&|name| name == Name::Value(halfbyte_plan::Value::Gradient));
        let mut table = Table::default();
        table.weights(plan);
        table.line("remainder", remainder, "what the codes leave out, beside each weight");
        table.line(
            "moments",
            first + second,
            format!("first {}, second {}", memory_size(first), memory_size(second)),
        );
        table.line("kept", kept, format!("these three, between steps: {each:.2} bytes a parameter"));
        let stored = sum(&|name| matches!(name, Name::Gradient(_)));
        if stored > 0 {
            table.line("gradient", stored, "of all tensors, until a step knows all of it");
        }
        let tokens = format!("{} × {} tokens", self.batch, self.length);
        let cache = format!("one layer's keys and values, {}", plan.settings.cache.name());
        table.line("cache", group(Group::Cache), cache);
        let all = Size { recompute: RecomputeArg::None, ..*self };
        let activations = match self.recompute {
            RecomputeArg::Layer => {
                let all = memory_size(all.arrange(place).group_bytes(Group::Activations) as u64);
                format!("{tokens}; layers are computed again on the way back (keeping all: {all})")
            }
            RecomputeArg::FeedForward => {
                format!("{tokens}; feed-forward parts are computed again on the way back")
            }
            RecomputeArg::None => format!("{tokens}; those of all layers are kept"),
        };
        table.line("activations", group(Group::Activations), activations);
        let scratch = format!("{}; gradients, {} at a time", place.describe(), memory_size(gradient));
        table.line("scratch", group(Group::Scratch), scratch);
        let words = self.training(place).vocabulary_chunk.min(self.architecture.vocab_size);
        let words = format!("{words} of {} words at a time", self.architecture.vocab_size);
        table.line("logits chunk", group(Group::Logits), words);
        table.total(plan, place);
        table.text
    }

    /// What only a training plan says, for programs.
    pub(crate) fn facts(&self, plan: &Plan) -> Value {
        let kept = plan.group_bytes(Group::Weights) + plan.group_bytes(Group::State);
        json!({
            "batch": self.batch, "seq": self.length, "state": self.state.state, "state_bytes": kept,
            "recompute": self.recompute,
            "parameters": self.architecture.parameters(),
        })
    }
}
