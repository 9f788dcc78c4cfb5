//! A step with stored gradients: clipped by the norm over all tensors, and whole or not at all.

use std::fs;

use halfbyte_checkpoint::{Architecture, TensorName};
use halfbyte_cpu::{Cpu, Isa, TrainingNeed};
use halfbyte_formats::state::adamw;
use halfbyte_formats::state::moment::Moment;
use halfbyte_model::training::{Batch, Learnt, Training as Model};
use halfbyte_ops::update::Recipe;
use halfbyte_ops::{Backend, CacheFormat, Rows, WeightRows, loss, testing};
use halfbyte_plan::{Name, Plan, Recompute, Settings, TrainingSettings, WeightChoice, plan_training};
use halfbyte_train::{Accumulation, Adam, STORAGE, Training};

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;
const TOKENS: usize = 12;

struct Run {
    model: Model<Cpu>,
    plan: Plan,
    adam: Adam,
    training: Vec<Training>,
}

/// `change` may touch a tensor's values before they are written.
fn open(
    name: &str,
    training: &dyn Fn(TensorName) -> Training,
    change: &dyn Fn(TensorName, &mut [f32]),
) -> Run {
    let file = std::env::temp_dir().join(format!("halfbyte-train-{name}-{}.json", std::process::id()));
    fs::write(&file, CONFIG).unwrap();
    let a = Architecture::from_config_file(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let (weights, cache) = (WeightChoice::F32, CacheFormat::F32);
    let settings =
        Settings { context: TOKENS, lanes: 1, chunk: TOKENS, logit_rows: 1, weights, cache, threads: 2 };
    let recipe = Recipe { moment: Moment::Float, ..Recipe::DEFAULT };
    let need = TrainingNeed { tokens: TOKENS, longest: TOKENS, widest: 64, head_dim: 16, threads: 2 };
    let sizes = TrainingSettings {
        vocabulary_chunk: 16,
        recipe,
        gradient: Some(STORAGE),
        recompute: Recompute::Layer,
        rounds_residual: false,
        narrow_heads_from: None,
    };
    let plan = plan_training(&a, &settings, sizes, &|_| None, need.bytes());
    let scratch = plan.buffer(Name::Scratch).unwrap();
    let cpu = Cpu::new(Isa::detect(), 2, plan.arena_bytes, scratch).unwrap();
    let mut model = Model::new(cpu, &a, &plan, sizes, &|_| None).unwrap();
    for (seed, name) in (1..).zip(a.tensor_names()) {
        let mut values = testing::numbers(seed, a.shape(name).iter().product());
        change(name, &mut values);
        match model.tensor(name).unwrap() {
            Learnt::Matrix(to) => model.backend.write_weight(&to, 0, WeightRows::Values(&values)).unwrap(),
            Learnt::Vector(to) => model.backend.write(to.buffer, &values).unwrap(),
        }
    }
    let training: Vec<Training> = a.tensor_names().into_iter().map(training).collect();
    let adam = Adam::new(&model, &plan, &training, adamw::Settings::default(), recipe, 3);
    Run { model, plan, adam, training }
}

fn batches() -> Vec<Batch> {
    let batch = |tokens: &[u32]| {
        let mut targets = tokens[1..].to_vec();
        targets.push(loss::UNTRAINED);
        Batch { tokens: tokens.to_vec(), targets, lengths: vec![tokens.len()] }
    };
    vec![batch(&[5, 39, 2, 7, 7, 11, 30]), batch(&[1, 0, 38])]
}

impl Run {
    fn step(&mut self, clip: Option<f64>) -> halfbyte_train::Taken {
        let mut stored = Accumulation::new(&self.model, &self.plan, &self.training, clip, 3);
        self.adam.begin(1, 1e-3);
        stored.step(&mut self.model, 1, &batches(), &mut self.adam).unwrap()
    }

    fn state(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.adam.save(&mut self.model.backend, &mut bytes).unwrap();
        bytes
    }

    /// First moments of the last norm: its gradient, after one step.
    fn moments(&mut self) -> Vec<f32> {
        let rows = Rows::new(self.plan.buffer(Name::Moment(TensorName::FinalNorm)).unwrap(), 1, 32);
        let mut values = vec![0.0; 32];
        self.model.backend.read(rows, &mut values).unwrap();
        values
    }
}

fn all(_: TensorName) -> Training {
    Training::Rate(1.0)
}

#[test]
fn a_clip_scales_every_gradient_by_the_norm_over_all_tensors() {
    let (mut free, mut clipped) = (open("free", &all, &|_, _| ()), open("clipped", &all, &|_, _| ()));
    let taken = free.step(None);
    assert!(taken.norm > 0.0 && taken.loss.is_finite());
    assert_eq!(taken, clipped.step(Some(taken.norm / 4.0)), "the norm is that before clipping");
    for (free, clipped) in free.moments().iter().zip(clipped.moments()) {
        assert!((free * 0.25 - clipped).abs() <= 1e-6 * free.abs(), "{free} became {clipped}");
    }
    // A gradient that is short enough is left as it is.
    let mut loose = open("loose", &all, &|_, _| ());
    loose.step(Some(taken.norm * 2.0));
    assert!(loose.state() == free.state());
}

#[test]
fn frozen_tensors_count_neither_in_the_norm_nor_in_the_step() {
    let frozen = |name| if name == TensorName::FinalNorm { all(name) } else { Training::Frozen };
    let mut run = open("frozen", &frozen, &|_, _| ());
    let taken = run.step(None);
    let length = run.moments().iter().map(|m| f64::from(*m).powi(2)).sum::<f64>().sqrt();
    assert!((taken.norm - length).abs() < 1e-5 * length, "{} and {length}", taken.norm);
    let Some(Learnt::Matrix(table)) = run.model.tensor(TensorName::Embedding) else {
        panic!("the embedding is a matrix")
    };
    let place = Rows::new(run.plan.buffer(Name::Scratch).unwrap(), 1, 32);
    run.model.backend.embed(&[3], &table, place).unwrap();
    let mut row = vec![0.0; 32];
    run.model.backend.read(place, &mut row).unwrap();
    assert_eq!(row, testing::numbers(1, 40 * 32)[3 * 32..][..32]);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_at_all() {
    // The loss of these weights is finite, and so is every logit: a token too large for its norm is
    // divided by infinity. On the way back that infinity meets a zero.
    let mut run = open("not-finite", &all, &|name, values| match name {
        TensorName::Embedding => values[7 * 32..8 * 32].fill(3e38),
        TensorName::FinalNorm => values.fill(1e10),
        _ => (),
    });
    let before = run.state();
    let taken = run.step(Some(1.0));
    assert!(taken.loss.is_finite() && taken.norm.is_nan(), "{taken:?}");
    assert!(run.state() == before, "something was learnt");
}
