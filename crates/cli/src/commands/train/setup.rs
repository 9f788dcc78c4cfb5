//! Model, data and plan of a run, checked before anything is allocated.

use std::path::Path;

use halfbyte_checkpoint::{Checkpoint, Encoding, TensorName};
use halfbyte_formats::state::adamw;
use halfbyte_model::training::{Training, import};
use halfbyte_ops::Backend;
use halfbyte_plan::Plan;
use halfbyte_text::dataset::{Feed, FeedSettings};
use halfbyte_text::packing::Sequence;
use halfbyte_train::{Accumulation, Adam, Binding, Facts, Schedule, ScheduleSettings, Snapshot, groups};

use super::not_finite::OnNan;
use super::samples::Prompt;
use super::size::{RecomputeArg, Size};
use super::{TrainArgs, batch};
use crate::config;
use crate::corpus::Speech;
use crate::date::Date;
use crate::embedded;
use crate::failure::Result;
use crate::output::Progress;
use crate::place::Place;

/// A model that learns on any device.
pub(crate) type AnyTraining = Training<Box<dyn Backend>>;

/// Everything that a run needs.
pub(super) struct Setup {
    pub(super) checkpoint: Checkpoint,
    pub(super) plan: Plan,
    pub(super) place: Place,
    pub(super) model: AnyTraining,
    pub(super) feed: Feed,
    pub(super) speech: Speech,
    pub(super) prompts: Vec<Prompt>,
    pub(super) adam: Adam,
    /// Where gradients are not learnt from at once.
    pub(super) stored: Option<Accumulation>,
    pub(super) schedule: Schedule,
    pub(super) binding: Binding,
    pub(super) length: usize,
    recompute: RecomputeArg,
    ceiling: Option<f64>,
}

impl Setup {
    /// `reached` hears of phases of memory: "model_loaded" and so on.
    pub(super) fn new(args: &TrainArgs, reached: &mut dyn FnMut(&'static str)) -> Result<Setup> {
        let mut checkpoint = args.open()?;
        let architecture = checkpoint.architecture.clone();
        let length = args.corpus.length(architecture.max_context)?;
        let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
        let size = size(args, &checkpoint, length, &encoding);
        let (place, plan) = args.place.settle(|place| size.fitting(place, args.beginning()))?;
        let date = args.date.unwrap_or_else(Date::today);
        let speech = Speech::new(&checkpoint, args.corpus.no_think, date.seconds())?;
        let prompts = Prompt::all(&args.sample, &speech, length)?;
        let data = args.corpus.read(&speech, architecture.max_context)?;
        let settings = FeedSettings { seed: args.seed, held_out: args.held_out, packed: true };
        let feed = Feed::new(data, settings)?;
        let schedule = Schedule::new(&ScheduleSettings {
            peak: args.lr,
            minimum: args.min_lr,
            warm_up: args.warm_up,
            decay: args.decay,
            steps: args.steps,
        })?;
        let binding = bind(args, &checkpoint, &feed, &speech, length);
        let (mut model, mut adam, stored) = on_device(args, &checkpoint, &size, &place, &plan)?;
        place.prepare(&mut checkpoint)?;
        let mut progress = Progress::new("loading", architecture.parameters());
        let done = &mut |done| progress.add(done);
        let recipe = args.state.recipe();
        import(&mut model.backend, &checkpoint, &plan, &recipe, done)?;
        drop(progress);
        reached("model_loaded");
        if args.on_nan == OnNan::Skip {
            adam.look_first();
        }
        let ceiling = place.arithmetic();
        reached("state_initialized");
        let recompute = args.recompute;
        Ok(Setup {
            checkpoint,
            plan,
            place,
            model,
            feed,
            speech,
            prompts,
            adam,
            stored,
            schedule,
            binding,
            length,
            recompute,
            ceiling,
        })
    }

    /// For the run's folder: what every flag came to, for any working directory.
    pub(super) fn settings(&self, args: &TrainArgs) -> Result<String> {
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut args = args.clone();
        args.corpus.seq = Some(self.length);
        for source in &mut args.corpus.data {
            source.path = whole(&source.path);
        }
        args.out = whole(&args.out);
        args.check = args.check.as_deref().map(whole);
        if args.beginning() != Path::new(embedded::NAME) {
            args.begin_with(whole(args.beginning()));
        }
        config::to_toml(&args)
    }

    /// Mean loss of the samples kept apart.
    pub(super) fn held_out_loss(&mut self) -> Result<Option<f64>> {
        let sequences: Vec<Sequence> = self.feed.held_out().collect();
        let (mut sum, mut count) = (0.0, 0);
        for sequence in sequences {
            let batch = batch(std::slice::from_ref(&sequence));
            sum += self.model.loss(&batch)? * batch.trained() as f64;
            count += batch.trained();
        }
        Ok((count > 0).then(|| sum / count as f64))
    }

    pub(super) fn ceiling_share(&self, tokens: usize, seconds: f64) -> Option<f64> {
        let architecture = &self.checkpoint.architecture;
        let each = self.recompute.setting().operations(architecture);
        let work = each * architecture.parameters() as f64 * tokens as f64;
        self.ceiling.map(|ceiling| work / seconds / ceiling)
    }
}

fn size<'a>(
    args: &TrainArgs,
    checkpoint: &'a Checkpoint,
    length: usize,
    encoding: &'a dyn Fn(TensorName) -> Option<Encoding>,
) -> Size<'a> {
    Size {
        architecture: &checkpoint.architecture,
        encoding,
        state: args.state,
        batch: args.batch,
        length,
        gradient: args.gradient.storage(),
        recompute: args.recompute,
    }
}

/// Model, optimizer and stored gradients in the places of the plan; nothing is in them yet.
fn on_device(
    args: &TrainArgs,
    checkpoint: &Checkpoint,
    size: &Size<'_>,
    place: &Place,
    plan: &Plan,
) -> Result<(AnyTraining, Adam, Option<Accumulation>)> {
    let architecture = &checkpoint.architecture;
    let names: Vec<String> = architecture.tensor_names().iter().map(ToString::to_string).collect();
    let training = groups(&names, &args.groups())?;
    let model = Training::new(place.backend(plan)?, architecture, plan, size.training(place), size.encoding)?;
    let clip = args.clip_update.unwrap_or(f64::INFINITY);
    let optimizer = adamw::Settings { decay: args.weight_decay, clip, ..adamw::Settings::default() };
    let adam = Adam::new(&model, plan, &training, optimizer, args.state.recipe(), args.seed);
    let clip = args.gradient.clip_norm;
    let stored = size.gradient.map(|_| Accumulation::new(&model, plan, &training, clip, args.seed));
    Ok((model, adam, stored))
}

/// The model of a checkpoint of a run with these settings, as it was trained.
pub(crate) fn restore(args: &TrainArgs, checkpoint: &Checkpoint, snapshot: &Snapshot) -> Result<AnyTraining> {
    let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
    // No step is taken: the smallest will do.
    let size = Size {
        batch: 1,
        gradient: None,
        recompute: RecomputeArg::Layer,
        ..size(args, checkpoint, 2, &encoding)
    };
    let (place, plan) = args.place.settle(|place| size.fitting(place, args.beginning()))?;
    let (mut model, adam, _) = on_device(args, checkpoint, &size, &place, &plan)?;
    snapshot.read_part("state", |from| adam.restore(&mut model.backend, from))?;
    Ok(model)
}

fn bind(args: &TrainArgs, checkpoint: &Checkpoint, feed: &Feed, speech: &Speech, length: usize) -> Binding {
    let facts = |list: &[(&str, String)]| -> Facts {
        list.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    };
    Binding {
        model: facts(&[("fingerprint", format!("{:016x}", checkpoint.fingerprint()))]),
        data: facts(&[
            ("fingerprint", format!("{:016x}", feed.fingerprint())),
            ("seed", args.seed.to_string()),
        ]),
        recipe: facts(&[
            ("state", format!("{:?}", args.state.state)),
            ("moments", format!("{:?}", args.state.moments)),
            ("second", format!("{:?}", args.state.second)),
            ("batch", args.batch.to_string()),
            ("accumulate", args.gradient.accumulate.to_string()),
            ("gradient", args.gradient.name().to_string()),
            ("clip_norm", format!("{:?}", args.gradient.clip_norm)),
            ("seq", length.to_string()),
            ("steps", args.steps.to_string()),
            ("lr", args.lr.to_string()),
            ("min_lr", args.min_lr.to_string()),
            ("warm_up", format!("{:?}", args.warm_up)),
            ("decay", format!("{:?}", args.decay)),
            ("weight_decay", args.weight_decay.to_string()),
            ("clip_update", args.clip_update.map_or("none".to_string(), |clip| clip.to_string())),
            ("scales", format!("{:?}", args.state.scales)),
            ("groups", format!("{:?}", args.groups())),
        ]),
        template: speech.fingerprint(),
    }
}
