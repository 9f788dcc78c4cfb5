//! Losses, gradients and AdamW steps against torch in f32, and what must hold for any step.

use std::collections::HashMap;

use halfbyte_checkpoint::TensorName;
use halfbyte_cpu::{Cpu, Isa, TrainingNeed};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_model::{Batch, Learner, Result, Training, load};
use halfbyte_ops::update::Recipe;
use halfbyte_ops::{Backend, CacheFormat, Rows, Weight, WeightRows, loss};
use halfbyte_plan::{Name, Plan, Recompute, Settings, TrainingSettings, WeightChoice, plan_training};

use crate::common::{Toy, golden, kernel_sets, numbers, tokens};

/// How a toy is trained.
#[derive(Clone, Copy)]
struct Way {
    isa: Isa,
    threads: usize,
    weights: WeightChoice,
    cache: CacheFormat,
    words: usize,
    recompute: Recompute,
}

impl Way {
    fn exact(isa: Isa) -> Way {
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

fn open(toy: &Toy, way: Way, tokens: usize, longest: usize) -> (Training<Cpu>, Plan) {
    let a = toy.architecture();
    let settings = Settings {
        context: longest,
        chunk: tokens,
        logit_rows: 1,
        weights: way.weights,
        cache: way.cache,
        threads: way.threads,
    };
    let widest = a.hidden_size.max(a.intermediate_size).max(a.heads * a.head_dim).max(way.words);
    let need = TrainingNeed { tokens, longest, widest, head_dim: a.head_dim, threads: way.threads };
    let training =
        TrainingSettings { vocabulary_chunk: way.words, recipe: Recipe::DEFAULT, recompute: way.recompute };
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
struct Notes(HashMap<TensorName, Vec<f32>>);

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

/// AdamW on the host, in f32 weights.
struct Host<'a> {
    plan: &'a Plan,
    state: HashMap<(TensorName, usize), [Vec<f64>; 3]>,
    toy: &'a Toy,
    step: i32,
}

impl Learner<Cpu> for Host<'_> {
    fn learn(&mut self, backend: &mut Cpu, name: TensorName, first: usize, gradient: Rows) -> Result<()> {
        let count = gradient.rows * gradient.columns;
        let mut g = vec![0.0; count];
        backend.read(gradient, &mut g)?;
        let [w, m, v] = self.state.entry((name, first)).or_insert_with(|| {
            let tensor = self.toy.checkpoint.find(name).unwrap();
            let mut values = vec![0.0; tensor.shape.iter().product()];
            self.toy.checkpoint.read_f32(tensor, 0..tensor.rows(), &mut values).unwrap();
            let start = values[first * gradient.columns..][..count].iter().map(|x| f64::from(*x));
            [start.collect(), vec![0.0; count], vec![0.0; count]]
        });
        for i in 0..count {
            let g = f64::from(g[i]);
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            let (mean, square) =
                (m[i] / (1.0 - 0.9f64.powi(self.step)), v[i] / (1.0 - 0.999f64.powi(self.step)));
            w[i] -= 1e-3 * (0.01 * w[i] + mean / (square.sqrt() + 1e-8));
        }
        let values: Vec<f32> = w.iter().map(|w| *w as f32).collect();
        let buffer = self.plan.buffer(Name::Tensor(name)).unwrap();
        let shape = self.toy.architecture().shape(name);
        match shape[..] {
            [rows, columns] => {
                let format = self.plan.settings.weights.format(name, None);
                let weight = Weight { buffer, rows, columns, format };
                Ok(backend.write_weight(&weight, first, WeightRows::Values(&values))?)
            }
            _ => Ok(backend.write(buffer, &values)?),
        }
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
        let (mut model, plan) = open(&toy, Way::exact(Isa::detect()), 96, 48);
        let mut host = Host { plan: &plan, state: HashMap::new(), toy: &toy, step: 0 };
        for want in numbers(&reference["adamw_lr1e-3_wd0.01_losses_same_batch"]) {
            host.step += 1;
            let mean = model.step(&batch, &mut host).unwrap();
            assert!((mean - want).abs() / want < 1e-5, "{kind}, step {}: {mean}, torch {want}", host.step);
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
fn keeping_every_layer_changes_no_bit() {
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
            let (again, kept) = (step(Recompute::Layer), step(Recompute::None));
            assert_eq!((again.0, &again.2), (kept.0, &kept.2), "{kind}");
            for (name, values) in &again.1 {
                let same = values.iter().zip(&kept.1[name]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{kind}: {name}");
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
