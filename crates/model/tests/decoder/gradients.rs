//! Losses, gradients and AdamW steps of further random configs of the three families against torch in
//! f32: packed samples of different lengths, masked targets, the vocabulary in chunks.

use halfbyte_cpu::Isa;
use halfbyte_model::Batch;
use halfbyte_ops::loss;
use serde_json::Value;

use crate::common::{Toy, covers_every_switch, golden, has, kernel_sets, numbers, tokens};
use crate::training::{Adam, Notes, Way, open};

/// Largest relative difference of a loss, of a gradient's length, and of its entries (as a part of
/// the entry or of the tensor's root mean square, whichever is larger).
const BOUND: f64 = 1e-4;

fn cases() -> Vec<Value> {
    golden("gradients.json").as_array().unwrap().clone()
}

fn way(isa: Isa) -> Way {
    Way { words: 32, ..Way::exact(isa) }
}

/// The samples one after the other.
fn batch(case: &Value) -> Batch {
    let mut batch = Batch::default();
    for sample in case["samples"].as_array().unwrap() {
        let (of_sample, targets) = (tokens(&sample[0]), numbers(&sample[1]));
        batch.lengths.push(of_sample.len());
        batch.tokens.extend(of_sample);
        let target = |target: f64| if target < 0.0 { loss::UNTRAINED } else { target as u32 };
        batch.targets.extend(targets.into_iter().map(target));
    }
    batch
}

fn longest(batch: &Batch) -> usize {
    *batch.lengths.iter().max().unwrap()
}

/// The worst of a tensor's length and entries.
fn off(got: &[f32], want: &Value) -> f64 {
    let length = want["l2"].as_f64().unwrap();
    let norm = got.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let size = length / (got.len() as f64).sqrt();
    let entries = want["entries"].as_object().unwrap().iter().map(|(index, want)| {
        let (got, want) = (f64::from(got[index.parse::<usize>().unwrap()]), want.as_f64().unwrap());
        (got - want).abs() / size.max(want.abs())
    });
    entries.fold((norm - length).abs() / length, f64::max)
}

#[test]
fn gradients_of_further_configs_equal_those_of_torch() {
    for (index, case) in cases().iter().enumerate() {
        let (toy, batch) = (Toy::new(&case["config"]), batch(case));
        let want = numbers(&case["losses"])[0];
        for isa in kernel_sets() {
            let (mut model, _) = open(&toy, way(isa), batch.tokens.len(), longest(&batch));
            let mut notes = Notes::default();
            let mean = model.step(&batch, &mut notes).unwrap();
            assert!((mean - want).abs() / want < BOUND, "case {index}, {isa}: loss {mean}, torch {want}");
            let mut largest = 0.0f64;
            for name in toy.architecture().tensor_names() {
                let off = off(&notes.0[&name], &case["gradients"][name.to_string()]);
                assert!(off < BOUND, "case {index}, {}, {isa}, {name}: off by {off:e}", case["config"]);
                largest = largest.max(off);
            }
            let family = toy.architecture().family.name();
            eprintln!("case {index}, {family}, {isa}: gradients off by {largest:.1e} at most");
        }
    }
}

#[test]
fn adamw_on_further_configs_gives_the_losses_of_torch() {
    for (index, case) in cases().iter().enumerate() {
        let (toy, batch) = (Toy::new(&case["config"]), batch(case));
        let (mut model, plan) = open(&toy, way(Isa::detect()), batch.tokens.len(), longest(&batch));
        let mut adam = Adam::new(&model, &plan);
        for want in numbers(&case["losses"]) {
            adam.step += 1;
            let mean = model.step(&batch, &mut adam).unwrap();
            let off = (mean - want).abs() / want;
            assert!(off < BOUND, "case {index}, step {}: {mean}, torch {want}: off by {off:e}", adam.step);
        }
    }
}

#[test]
fn the_configs_cover_every_switch() {
    let toys: Vec<Toy> = cases().iter().map(|case| Toy::new(&case["config"])).collect();
    covers_every_switch(&toys);
    has(&toys, "a vocabulary that ends inside a panel", &|a| a.vocab_size % 16 != 0);
    for family in ["qwen3", "qwen2", "llama"] {
        let count = cases().iter().filter(|case| case["config"]["model_type"] == family).count();
        assert!(count >= 4, "{count} cases of {family}");
    }
}
