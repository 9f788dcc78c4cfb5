//! A training step of a small model: in four bits, both ways, beside the same step in bf16; and with all values kept,
//! beside one that computes layers again.

use std::path::Path;

use halfbyte_checkpoint::{Architecture, TensorName};
use halfbyte_model::{Batch, Learner, Result, Training, fill};
use halfbyte_ops::update::Recipe;
use halfbyte_ops::{Backend, CacheFormat, Luck, Rows, loss};
use halfbyte_plan::{Recompute, Settings, TrainingSettings, WeightChoice, plan_training};

use super::Compute;
use crate::Cuda;
use crate::tests::computed_by_the_library;

const TOKENS: usize = 64;
const WORDS: usize = 96;

/// Writes gradients down.
struct Notes {
    names: Vec<TensorName>,
    batch: u64,
    gradients: Vec<(TensorName, Vec<f32>)>,
}

impl Learner<Cuda> for Notes {
    fn luck(&self, name: TensorName) -> Option<Luck> {
        let tensor = self.names.iter().position(|known| *known == name)? as u64;
        Some(Luck { seed: 1, batch: self.batch, tensor })
    }

    fn learn(&mut self, backend: &mut Cuda, name: TensorName, _: usize, gradient: Rows) -> Result<()> {
        let mut values = vec![0.0; gradient.rows * gradient.columns];
        backend.read(gradient, &mut values)?;
        self.gradients.push((name, values));
        Ok(())
    }
}

fn architecture(head_dim: usize) -> Architecture {
    let config = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "vocab_size": WORDS, "max_position_embeddings": 128,
        "tie_word_embeddings": true, "hidden_act": "silu",
    });
    Architecture::from_config(Path::new("config.json"), &config, None).unwrap()
}

/// How a batch is computed.
#[derive(Clone, Copy)]
struct Way {
    batch: u64,
    recompute: Recompute,
    head_dim: usize,
}

const WAY: Way = Way { batch: 1, recompute: Recompute::Layer, head_dim: 32 };

/// Loss and gradients of a batch with a number.
fn step(make: &dyn Fn(usize) -> Cuda, way: Way) -> (f64, Vec<(TensorName, Vec<f32>)>) {
    let Way { batch, recompute, head_dim } = way;
    let a = architecture(head_dim);
    let settings = Settings {
        context: TOKENS,
        lanes: 1,
        chunk: TOKENS,
        logit_rows: 1,
        weights: WeightChoice::Nvfp4,
        cache: CacheFormat::Bf16,
        threads: 1,
    };
    let training = TrainingSettings {
        vocabulary_chunk: WORDS,
        recipe: Recipe::DEFAULT,
        gradient: None,
        recompute,
        rounds_residual: true,
        narrow_heads_from: (head_dim == 64).then_some(16),
    };
    let plan = plan_training(&a, &settings, training, &|_| None, 0);
    let mut model = Training::new(make(plan.arena_bytes), &a, &plan, training, &|_| None).unwrap();
    fill::fill(&mut model.backend, &a, &plan, 3).unwrap();
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|t| t * t * 7 % WORDS as u32).collect();
    let targets = tokens[1..].iter().copied().chain([loss::UNTRAINED]).collect();
    let of = Batch { tokens, targets, lengths: vec![TOKENS / 2; 2] };
    let mut notes = Notes { names: a.tensor_names(), batch, gradients: Vec::new() };
    let loss = model.step(&of, &mut notes).unwrap();
    (loss, notes.gradients)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_step_in_four_bits_goes_the_way_of_one_in_bf16() {
    let exact = std::cell::RefCell::default();
    computed_by_the_library(Compute::Bf16, |make, _| *exact.borrow_mut() = step(make, WAY));
    let (exact_loss, exact): (f64, Vec<(TensorName, Vec<f32>)>) = exact.into_inner();
    computed_by_the_library(Compute::NativeFp4, |make, _| {
        let (loss, gradients) = step(make, WAY);
        assert!((loss / exact_loss - 1.0).abs() < 0.02, "loss {loss}, in bf16 {exact_loss}");
        for ((name, got), (_, want)) in gradients.iter().zip(&exact) {
            let along = cosine(got, want);
            // A gain's gradient is 64 numbers, each a sum of 64 roundings: one draw is another's by a tenth.
            let least = if got.len() > 64 { 0.9 } else { 0.85 };
            assert!(along > least, "{name}: the cosine of both gradients is {along}");
        }
        assert!(step(make, WAY) == (loss, gradients.clone()), "the same batch gives the same bits");
        assert!(step(make, Way { batch: 2, ..WAY }) != (loss, gradients), "another is rounded otherwise");
    });
}

// Gate and up are rounded before or after their tensor's scale, by whether they are kept.
#[test]
fn a_layer_computed_again_goes_the_way_of_one_that_was_kept() {
    computed_by_the_library(Compute::Bf16, |make, _| {
        // Heads are narrow.
        let way = Way { head_dim: 64, ..WAY };
        let (kept_loss, kept) = step(make, Way { recompute: Recompute::None, ..way });
        for recompute in [Recompute::Layer, Recompute::FeedForward] {
            let (loss, again) = step(make, Way { recompute, ..way });
            assert!((loss / kept_loss - 1.0).abs() < 1e-4, "loss {loss}, with all kept {kept_loss}");
            for ((name, got), (_, want)) in again.iter().zip(&kept) {
                let along = cosine(got, want);
                assert!(along > 0.9999, "{name}: the cosine of both gradients is {along}");
            }
        }
    });
}
