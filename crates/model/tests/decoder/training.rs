//! Losses, gradients and AdamW steps against torch in f32, and what must hold for any step.

use std::collections::HashMap;

use halfbyte_checkpoint::TensorName;
use halfbyte_cpu::{Cpu, Isa, TrainingNeed};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{Average, adamw};
use halfbyte_model::training::Learnt;
use halfbyte_model::{Batch, Learner, Result, Training, load};
use halfbyte_ops::accumulate::Storage;
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{Backend, CacheFormat, Rows, loss};
use halfbyte_plan::{Name, Plan, Recompute, Settings, TrainingSettings, WeightChoice, plan_training};

use crate::common::{Toy, golden, kernel_sets, numbers, tokens};

/// Moments as torch has them.
const WIDE: Recipe = Recipe { moment: Moment::Float, full_second: true, ..Recipe::DEFAULT };

/// How a toy is trained.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    pub(crate) weights: WeightChoice,
    pub(crate) cache: CacheFormat,
    pub(crate) words: usize,
    pub(crate) recompute: Recompute,
}

impl Way {
    pub(crate) fn exact(isa: Isa) -> Way {
        Way {
            isa,
            threads: 2,
            weights: WeightChoice::F32,
            cache: CacheFormat::F32,
            words: 96,
            recompute: Recompute::Layer,
        }
    }
}

pub(crate) fn open(toy: &Toy, way: Way, tokens: usize, longest: usize) -> (Training<Cpu>, Plan) {
    let a = toy.architecture();
    let settings = Settings {
        context: longest,
        lanes: 1,
        chunk: tokens,
        logit_rows: 1,
        weights: way.weights,
        cache: way.cache,
        threads: way.threads,
    };
    let widest = a.hidden_size.max(a.intermediate_size).max(a.heads * a.head_dim).max(way.words);
    let need = TrainingNeed { tokens, longest, widest, head_dim: a.head_dim, threads: way.threads };
    let gradient = Some(Storage::Float);
    let training = TrainingSettings {
        vocabulary_chunk: way.words,
        recipe: WIDE,
        gradient,
        recompute: way.recompute,
        rounds_residual: false,
        narrow_heads_from: None,
    };
    let encoding = |name| toy.checkpoint.find(name).map(|tensor| tensor.encoding);
    let plan = plan_training(a, &settings, training, &encoding, need.bytes());
    let scratch = plan.buffer(Name::Scratch).unwrap();
    let cpu = Cpu::new(way.isa, way.threads, plan.arena_bytes, scratch).unwrap();
    let mut model = Training::new(cpu, a, &plan, training, &encoding).unwrap();
    load::load(&mut model.backend, &toy.checkpoint, &plan, Scales::Nearest, &mut |_| ()).unwrap();
    (model, plan)
}

/// Writes gradients down.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) HashMap<TensorName, Vec<f32>>);

impl Learner<Cpu> for Notes {
    fn learn(&mut self, backend: &mut Cpu, name: TensorName, first: usize, gradient: Rows) -> Result<()> {
        let mut values = vec![0.0; gradient.rows * gradient.columns];
        backend.read(gradient, &mut values)?;
        let whole = self.0.entry(name).or_default();
        assert_eq!(whole.len(), first * gradient.columns, "{name}: rows come in order");
        whole.extend(values);
        Ok(())
    }
}

/// AdamW on the device, with weights and moments in f32.
pub(crate) struct Adam<'a> {
    plan: &'a Plan,
    tensors: Vec<(TensorName, Learnt)>,
    pub(crate) step: u64,
}

impl<'a> Adam<'a> {
    pub(crate) fn new(model: &Training<Cpu>, plan: &'a Plan) -> Self {
        let names = model.architecture().tensor_names().into_iter();
        let tensors = names.map(|name| (name, model.tensor(name).unwrap())).collect();
        Adam { plan, tensors, step: 0 }
    }
}

impl Learner<Cpu> for Adam<'_> {
    fn learn(&mut self, backend: &mut Cpu, name: TensorName, first: usize, gradient: Rows) -> Result<()> {
        let buffer = |name| self.plan.buffer(name).unwrap_or_default();
        let kept = Kept {
            remainder: buffer(Name::Remainder(name)),
            moment: buffer(Name::Moment(name)),
            second: buffer(Name::Second(name)),
        };
        let settings = adamw::Settings { beta2: 0.999, decay: 0.01, ..adamw::Settings::default() };
        let (adamw, average) = (adamw::Step::new(&settings, 1e-3, self.step), Average::new(settings.beta2));
        let step = Step { recipe: WIDE, adamw, average, seed: 0, step: self.step, tensor: 0 };
        match self.tensors.iter().find(|(found, _)| *found == name).unwrap().1 {
            Learnt::Matrix(weight) => backend.update(&weight, first, gradient, &kept, &step)?,
            Learnt::Vector(vector) => backend.update_vector(vector, gradient, &kept, &step)?,
        }
        Ok(())
    }

    fn end(&mut self, backend: &mut Cpu) -> Result<()> {
        assert_eq!(backend.tallies()?.sum().refused, 0);
        Ok(())
    }
}

/// The reference's two rows as two samples; the last token of a row has no target.
fn batch(reference: &serde_json::Value) -> Batch {
    let mut batch = Batch::default();
    for row in reference["input_ids"].as_array().unwrap() {
        let row = tokens(row);
        batch.lengths.push(row.len());
        batch.targets.extend(&row[1..]);
        batch.targets.push(loss::UNTRAINED);
        batch.tokens.extend(row);
    }
    batch
}

/// Learns nothing.
struct Nobody;

impl Learner<Cpu> for Nobody {
    fn wants(&self, _: TensorName) -> bool {
        false
    }

    fn learn(&mut self, _: &mut Cpu, name: TensorName, _: usize, _: Rows) -> Result<()> {
        panic!("{name} was handed out")
    }
}

#[test]
fn what_nobody_wants_is_not_handed_out() {
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let toy = Toy::new(&reference["config"]);
        let (mut model, _) = open(&toy, Way::exact(Isa::detect()), 96, 48);
        assert!(model.step(&batch(&reference), &mut Nobody).unwrap().is_finite());
    }
}

#[test]
fn gradients_and_loss_equal_those_of_torch() {
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let (toy, batch) = (Toy::new(&reference["config"]), batch(&reference));
        for isa in kernel_sets() {
            let (mut model, _) = open(&toy, Way::exact(isa), 96, 48);
            let mut notes = Notes::default();
            let mean = model.step(&batch, &mut notes).unwrap();
            let want = reference["loss_mean_over_94_predictions"].as_f64().unwrap();
            assert!((mean - want).abs() < 1e-5, "{kind}, {isa}: loss {mean}, torch {want}");
            let mut largest = 0.0f64;
            for name in toy.architecture().tensor_names() {
                let want = &reference["gradients"][name.to_string()];
                let got = notes.0.get(&name).unwrap_or_else(|| panic!("{name} was not learnt"));
                let norm = got.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let length = want["l2"].as_f64().unwrap();
                let mut error = (norm - length).abs() / length;
                for (got, want) in got.iter().zip(numbers(&want["first6"])) {
                    let size = length / (notes.0[&name].len() as f64).sqrt();
                    error = error.max((f64::from(*got) - want).abs() / size.max(want.abs()));
                }
                assert!(error < 1e-4, "{kind}, {isa}, {name}: off by {error:e}");
                largest = largest.max(error);
            }
            eprintln!("{kind}, {isa}: gradients off by {largest:.1e} at most");
        }
    }
}

#[test]
fn six_steps_of_adamw_give_the_losses_of_torch() {
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let (toy, batch) = (Toy::new(&reference["config"]), batch(&reference));
        for isa in kernel_sets() {
            let (mut model, plan) = open(&toy, Way::exact(isa), 96, 48);
            let mut adam = Adam::new(&model, &plan);
            for want in numbers(&reference["adamw_lr1e-3_wd0.01_losses_same_batch"]) {
                adam.step += 1;
                let mean = model.step(&batch, &mut adam).unwrap();
                let error = (mean - want).abs() / want;
                assert!(error < 1e-5, "{kind}, {isa}, step {}: {mean}, torch {want}", adam.step);
            }
        }
    }
}

#[test]
fn gradients_are_the_same_bits_in_every_kernel_set_with_any_threads() {
    let reference = golden("tiny-qwen3.json");
    let (toy, batch) = (Toy::new(&reference["config"]), batch(&reference));
    let gradients = |isa, threads, weights, cache, words| {
        let (mut model, _) = open(&toy, Way { threads, weights, cache, words, ..Way::exact(isa) }, 96, 48);
        let mut notes = Notes::default();
        let mean = model.step(&batch, &mut notes).unwrap();
        (mean.to_bits(), notes.0)
    };
    for (weights, cache) in [(WeightChoice::Nvfp4, CacheFormat::Bf16), (WeightChoice::F32, CacheFormat::F32)]
    {
        let want = gradients(Isa::Scalar, 1, weights, cache, 512);
        for isa in kernel_sets() {
            for threads in [1, 3] {
                let got = gradients(isa, threads, weights, cache, 512);
                assert_eq!(got.0, want.0, "{isa}, {threads} threads: loss");
                for (name, values) in &want.1 {
                    let same = values.iter().zip(&got.1[name]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{isa}, {threads} threads: {name}");
                }
            }
        }
    }
}

#[test]
fn what_is_kept_changes_no_bit() {
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let (toy, batch) = (Toy::new(&reference["config"]), batch(&reference));
        let exact = Way::exact(Isa::detect());
        let nvfp4 = Way { weights: WeightChoice::Nvfp4, cache: CacheFormat::Bf16, words: 512, ..exact };
        for way in [nvfp4, exact] {
            let step = |recompute| {
                let (mut model, _) = open(&toy, Way { recompute, ..way }, 96, 48);
                let mut notes = Notes::default();
                let mean = model.step(&batch, &mut notes).unwrap();
                let logits = model.last_logits(&batch.tokens[..20]).unwrap();
                (mean.to_bits(), notes.0, logits)
            };
            let again = step(Recompute::Layer);
            for kept in [Recompute::FeedForward, Recompute::None].map(step) {
                assert_eq!((again.0, &again.2), (kept.0, &kept.2), "{kind}");
                for (name, values) in &again.1 {
                    let same = values.iter().zip(&kept.1[name]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{kind}: {name}");
                }
            }
        }
    }
}

#[test]
fn samples_in_one_batch_do_not_see_each_other() {
    let reference = golden("tiny-llama.json");
    let (toy, both) = (Toy::new(&reference["config"]), batch(&reference));
    let way = Way { weights: WeightChoice::Nvfp4, cache: CacheFormat::Bf16, ..Way::exact(Isa::detect()) };
    let (mut model, _) = open(&toy, way, 96, 48);
    let together = model.loss(&both).unwrap();
    let apart: f64 = (0..2)
        .map(|row| {
            let range = row * 48..(row + 1) * 48;
            let (tokens, targets) = (both.tokens[range.clone()].to_vec(), both.targets[range].to_vec());
            model.loss(&Batch { tokens, targets, lengths: vec![48] }).unwrap()
        })
        .sum();
    assert!((together - apart / 2.0).abs() < 1e-12, "{together} and {}", apart / 2.0);
}

#[test]
fn a_batch_that_teaches_nothing_or_does_not_fit_is_refused() {
    let reference = golden("tiny-llama.json");
    let toy = Toy::new(&reference["config"]);
    let (mut model, _) = open(&toy, Way::exact(Isa::detect()), 96, 48);
    let untrained = Batch { tokens: vec![1, 2], targets: vec![loss::UNTRAINED; 2], lengths: vec![2] };
    let too_long = Batch { tokens: vec![1; 49], targets: vec![2; 49], lengths: vec![49] };
    let torn = Batch { tokens: vec![1; 4], targets: vec![2; 4], lengths: vec![3] };
    for batch in [Batch::default(), untrained, too_long, torn] {
        let error = model.step(&batch, &mut Notes::default()).unwrap_err().to_string();
        assert!(error.contains("batch"), "{error}");
    }
}
