//! Model, data and plan of a run, checked before anything is allocated.

use halfbyte_checkpoint::{Checkpoint, LayerTensor, TensorName};
use halfbyte_cpu::{Cpu, Isa, TrainingNeed, measure};
use halfbyte_formats::state::adamw;
use halfbyte_model::training::{Training, import};
use halfbyte_ops::CacheFormat;
use halfbyte_plan::{Name, Plan, Settings, TrainingSettings, WeightChoice, memory, plan_training};
use halfbyte_text::dataset::{Feed, FeedSettings};
use halfbyte_text::packing::Sequence;
use halfbyte_train::{Adam, Binding, Facts, Schedule, ScheduleSettings, groups};
use serde_json::{Value, json};

use super::{TrainArgs, batch};
use crate::corpus::{Speech, today};
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::output::{Progress, bytes};

/// Words of the vocabulary whose logits exist at a time.
const WORDS: usize = 2048;

/// Everything that a run needs.
pub(super) struct Setup {
    pub(super) checkpoint: Checkpoint,
    pub(super) plan: Plan,
    pub(super) model: Training<Cpu>,
    pub(super) feed: Feed,
    pub(super) adam: Adam,
    pub(super) schedule: Schedule,
    pub(super) binding: Binding,
    pub(super) length: usize,
    ceiling: Option<f64>,
}

impl Setup {
    pub(super) fn new(args: &TrainArgs) -> Result<Setup> {
        let checkpoint = embedded::open(&args.model)?;
        let architecture = checkpoint.architecture.clone();
        let speech = Speech::new(&checkpoint, args.corpus.no_think, today())?;
        let length = args.corpus.length(architecture.max_context)?;
        let data = args.corpus.read(&speech, architecture.max_context)?;
        let settings = FeedSettings { seed: args.seed, held_out: args.held_out, packed: true };
        let feed = Feed::new(data, settings)?;
        let names: Vec<String> = architecture.tensor_names().iter().map(ToString::to_string).collect();
        let training = groups(&names, &args.groups())?;
        let schedule = Schedule::new(&ScheduleSettings {
            peak: args.lr,
            minimum: args.min_lr,
            warm_up: args.warm_up,
            decay: args.decay,
            steps: args.steps,
        })?;
        let binding = bind(args, &checkpoint, &feed, &speech, length);
        let isa = args.kernels.unwrap_or_else(Isa::detect);
        let (plan, training_settings) = plan(args, &checkpoint, length)?;
        let scratch = plan.buffer(Name::Scratch).unwrap_or_default();
        let cpu = Cpu::new(isa, plan.settings.threads, plan.arena_bytes, scratch)?;
        let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
        let mut model = Training::new(cpu, &architecture, &plan, training_settings, &encoding)?;
        let recipe = args.state.recipe();
        let mut progress = Progress::new("loading", architecture.parameters());
        let done = &mut |done| progress.add(done);
        import(&mut model.backend, &checkpoint, &plan, &recipe, args.scales, done)?;
        drop(progress);
        let optimizer = adamw::Settings { decay: args.weight_decay, ..adamw::Settings::default() };
        let adam = Adam::new(&model, &plan, &training, optimizer, recipe, args.seed);
        let ceiling = measure::arithmetic(isa, plan.settings.threads).ok();
        Ok(Setup { checkpoint, plan, model, feed, adam, schedule, binding, length, ceiling })
    }

    /// For the run's folder: what every flag came to.
    pub(super) fn settings(&self, args: &TrainArgs) -> Value {
        json!({
            "model": args.model, "data": self.binding.data, "recipe": self.binding.recipe,
            "steps": args.steps, "seq": self.length, "batch": args.batch, "seed": args.seed,
            "save_every": args.save_every, "keep": args.keep,
        })
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

    /// The run ends: what is on the disk is older than this step, and good.
    pub(super) fn not_finite(&self, step: u64, what: &str, sequences: &[Sequence]) -> Failure {
        let samples = sequences.iter().flat_map(|sequence| &sequence.samples);
        let places: Vec<String> = samples.take(4).map(|(sample, _)| self.feed.place_of(*sample)).collect();
        Failure::new(
            Code::Failed,
            format!(
                "stopped at step {step}: {what} is not a number\nin a batch that begins with {}\nno checkpoint \
                 holds anything of this step; begin again in another --out folder with a smaller --lr",
                places.join(", ")
            ),
        )
    }

    /// 8 operations a parameter and token: there, there again, and twice that back.
    pub(super) fn ceiling_share(&self, tokens: usize, seconds: f64) -> Option<f64> {
        let work = 8.0 * self.checkpoint.architecture.parameters() as f64 * tokens as f64;
        self.ceiling.map(|ceiling| work / seconds / ceiling)
    }
}

fn plan(args: &TrainArgs, checkpoint: &Checkpoint, length: usize) -> Result<(Plan, TrainingSettings)> {
    let a = &checkpoint.architecture;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let settings = Settings {
        context: length,
        chunk: args.batch * length,
        logit_rows: 1,
        weights: WeightChoice::Nvfp4,
        cache: CacheFormat::Bf16,
        threads: threads.clamp(1, 256),
    };
    let training = TrainingSettings { vocabulary_chunk: WORDS, recipe: args.state.recipe() };
    let sides = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down, LayerTensor::Gate]
        .into_iter()
        .flat_map(|tensor| a.shape(TensorName::Layer(0, tensor)));
    let need = TrainingNeed {
        tokens: settings.chunk,
        longest: length,
        widest: sides.max().unwrap_or(0).max(WORDS.min(a.vocab_size)),
        head_dim: a.head_dim,
        threads: settings.threads,
    };
    let encoding = |name: TensorName| checkpoint.find(name).map(|tensor| tensor.encoding);
    let plan = plan_training(a, &settings, training, &encoding, need.bytes());
    if let Some(memory) = memory::read() {
        let (peak, budget) = (plan.peak_bytes() as u64, memory.budget());
        if peak > budget {
            return Err(Failure::new(
                Code::WouldNotFit,
                format!(
                    "{}\ntraining needs {}, available are {}\ntake a smaller --batch or --seq, or --state lean",
                    args.model.display(),
                    bytes(peak),
                    bytes(budget)
                ),
            ));
        }
    }
    Ok((plan, training))
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
            ("state", format!("{:?}", args.state)),
            ("batch", args.batch.to_string()),
            ("seq", length.to_string()),
            ("steps", args.steps.to_string()),
            ("lr", args.lr.to_string()),
            ("min_lr", args.min_lr.to_string()),
            ("warm_up", format!("{:?}", args.warm_up)),
            ("decay", format!("{:?}", args.decay)),
            ("weight_decay", args.weight_decay.to_string()),
            ("scales", format!("{:?}", args.scales)),
            ("groups", format!("{:?}", args.groups())),
        ]),
        template: speech.fingerprint(),
    }
}
