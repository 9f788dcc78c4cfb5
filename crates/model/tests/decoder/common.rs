//! Toy models whose weights are a formula: written as Hugging Face directories, opened on the CPU.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use halfbyte_checkpoint::{Architecture, Checkpoint, LayerTensor, TensorName};
use halfbyte_cpu::{Cpu, Isa, ScratchNeed};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_model::{Decoder, Wanted, load};
use halfbyte_ops::CacheFormat;
use halfbyte_plan::{Name, Settings, WeightChoice, plan};
use serde_json::{Map, Value, json};

/// A model directory that goes away with the test.
pub(crate) struct Toy {
    path: PathBuf,
    pub(crate) checkpoint: Checkpoint,
}

impl Drop for Toy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Fails unless one of the models has what a test asks for.
pub(crate) fn has(toys: &[Toy], what: &str, test: &dyn Fn(&Architecture) -> bool) {
    assert!(toys.iter().any(|toy| test(toy.architecture())), "no case with {what}");
}

/// Fails unless every switch that a family may have is on in one model and off in another.
pub(crate) fn covers_every_switch(toys: &[Toy]) {
    for ratio in [1, 2, 4] {
        has(toys, "each GQA ratio", &|a| a.heads == ratio * a.kv_heads);
    }
    for flag in [true, false] {
        has(toys, "tied", &|a| a.tied == flag);
        has(toys, "q/k norm", &|a| a.qk_norm == flag);
        has(toys, "q/k/v bias", &|a| a.qkv_bias == flag);
        has(toys, "o bias", &|a| a.output_bias == flag);
        has(toys, "mlp bias", &|a| a.mlp_bias == flag);
        has(toys, "a window", &|a| a.sliding_window.iter().any(Option::is_some) == flag);
    }
    has(toys, "a head_dim of its own", &|a| a.head_dim * a.heads != a.hidden_size);
}

impl Toy {
    /// The model of a config.json with the formula's weights.
    pub(crate) fn new(config: &Value) -> Toy {
        Toy::with(config, &|_, _| ())
    }

    /// The same; `change` may touch a tensor's values before they are written.
    pub(crate) fn with(config: &Value, change: &dyn Fn(TensorName, &mut [f32])) -> Toy {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("halfbyte-model-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let file = path.join("config.json");
        fs::write(&file, config.to_string()).unwrap();
        let architecture = Architecture::from_config_file(&file).unwrap();
        fs::write(path.join("model.safetensors"), safetensors(&architecture, change)).unwrap();
        Toy { checkpoint: Checkpoint::open(&path).unwrap(), path }
    }

    pub(crate) fn architecture(&self) -> &Architecture {
        &self.checkpoint.architecture
    }

    /// A decoder of this model.
    pub(crate) fn open(&self, run: Run) -> Decoder<Cpu> {
        self.open_as(self.architecture(), run)
    }

    /// A decoder of this model's tensors that takes them for another architecture.
    pub(crate) fn open_as(&self, architecture: &Architecture, run: Run) -> Decoder<Cpu> {
        let settings = Settings {
            context: run.context,
            lanes: run.lanes,
            chunk: run.chunk,
            logit_rows: run.logit_rows,
            weights: run.weights,
            cache: run.cache,
            threads: run.threads,
        };
        let columns = |tensor| architecture.shape(TensorName::Layer(0, tensor))[1];
        let inputs = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down].map(columns);
        let scratch = ScratchNeed {
            tokens: run.chunk.max(run.logit_rows),
            columns: inputs.into_iter().max().unwrap(),
            context: run.context,
            head_dim: architecture.head_dim,
            threads: run.threads,
        };
        let encoding = |name| self.checkpoint.find(name).map(|tensor| tensor.encoding);
        let plan = plan(architecture, &settings, &encoding, scratch.bytes());
        let scratch = plan.buffer(Name::Scratch).unwrap();
        let cpu = Cpu::new(run.isa, run.threads, plan.arena_bytes, scratch).unwrap();
        let mut decoder = Decoder::new(cpu, architecture, &plan, &encoding).unwrap();
        load::load(&mut decoder.backend, &self.checkpoint, &plan, Scales::Nearest, &mut |_| ()).unwrap();
        decoder
    }
}

/// How a toy is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    pub(crate) context: usize,
    pub(crate) lanes: usize,
    pub(crate) chunk: usize,
    pub(crate) logit_rows: usize,
    pub(crate) weights: WeightChoice,
    pub(crate) cache: CacheFormat,
}

impl Run {
    /// Everything in f32, `tokens` at once.
    pub(crate) fn exact(isa: Isa, tokens: usize) -> Run {
        Run {
            isa,
            threads: 2,
            context: tokens,
            lanes: 1,
            chunk: tokens,
            logit_rows: 16,
            weights: WeightChoice::F32,
            cache: CacheFormat::F32,
        }
    }
}

/// The kernel sets of this machine.
pub(crate) fn kernel_sets() -> Vec<Isa> {
    let (have, lack): (Vec<Isa>, Vec<Isa>) = Isa::ALL.into_iter().partition(|isa| isa.available());
    for isa in lack {
        eprintln!("skipped: this machine has no {isa}");
    }
    have
}

/// The logits of every token, appended to what the decoder holds.
pub(crate) fn all_logits(decoder: &mut Decoder<Cpu>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let each = &mut |index: usize, logits: &[f32]| {
        assert_eq!(index, rows.len(), "logits come in order");
        rows.push(logits.to_vec());
    };
    decoder.feed(tokens, Wanted::All, None, each).unwrap();
    rows
}

/// Largest difference, as a part of the range that `want` spans.
pub(crate) fn worst(got: &[f32], want: &[f64]) -> f64 {
    let (low, high) = want.iter().fold((f64::MAX, f64::MIN), |(l, h), &x| (l.min(x), h.max(x)));
    let difference = |(g, w): (&f32, &f64)| (f64::from(*g) - w).abs();
    assert!(got.iter().all(|x| x.is_finite()), "a logit is not finite");
    let largest = got.iter().zip(want).map(difference).fold(0.0, f64::max);
    largest / (high - low)
}

/// A golden file.
pub(crate) fn golden(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A list of numbers.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// A list of tokens.
pub(crate) fn tokens(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|x| x as u32).collect()
}

/// offset + amplitude * (m / 2^23 - 1), m = 24 bits of a hash of name and index; the golden
/// scripts have the same.
fn formula(name: TensorName, shape: &[usize]) -> Vec<f32> {
    let text = name.to_string();
    let (amplitude, offset) = match (shape, name) {
        (_, TensorName::Embedding) => (0.05, 0.0),
        ([_, columns], _) => ((1.5 / (*columns as f64).sqrt()) as f32, 0.0),
        _ if text.ends_with("bias") => (0.1, 0.0),
        _ => (0.1, 1.0),
    };
    let seed = text.bytes().fold(2_166_136_261u32, |h, c| (h ^ u32::from(c)).wrapping_mul(16_777_619));
    let value = |i: usize| {
        let mut u = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
        u ^= u >> 16;
        u = u.wrapping_mul(2_246_822_519);
        u ^= u >> 13;
        offset + amplitude * ((u >> 8) as f32 / 8_388_608.0 - 1.0)
    };
    (0..shape.iter().product()).map(value).collect()
}

fn safetensors(architecture: &Architecture, change: &dyn Fn(TensorName, &mut [f32])) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for name in architecture.tensor_names() {
        let shape = architecture.shape(name);
        let mut values = formula(name, &shape);
        change(name, &mut values);
        let start = data.len();
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.to_string(), entry);
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
