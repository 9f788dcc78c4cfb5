//! Toy models written byte by byte, independently of the crate's own writers.
#![allow(dead_code)] // each test binary uses its own part

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use halfbyte_checkpoint::{
    Checkpoint, Encoding, Error, Format, Output, OutputTensor, Tensor, copy_tensor, create,
};
use serde_json::{Map, Value, json};

/// A directory that goes away with the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("halfbyte-checkpoint-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One stored tensor.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Raw {
    pub(crate) fn f32(name: &str, shape: &[usize], values: &[f32]) -> Raw {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Raw::bytes(name, "F32", shape, bytes)
    }

    pub(crate) fn bytes(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Raw {
        Raw { name: name.into(), dtype, shape: shape.to_vec(), bytes }
    }
}

/// The file with these tensors.
pub(crate) fn safetensors(tensors: &[Raw]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend(&tensor.bytes);
        let info = json!({
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()],
        });
        header.insert(tensor.name.clone(), info);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A file with a header as given.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A repeatable value that bf16 and f16 hold exactly.
pub(crate) fn value(seed: usize, index: usize) -> f32 {
    let mixed = (seed * 31 + index).wrapping_mul(2_654_435_761) >> 7;
    (mixed % 255) as f32 / 64.0 - 2.0
}

pub(crate) fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| value(seed, index)).collect()
}

/// A two-layer Qwen3: q/k norms, head_dim 16 with hidden 32 and 2 heads, tied.
pub(crate) fn qwen3_config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 48,
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 128,
        "tie_word_embeddings": true, "torch_dtype": "float32", "hidden_act": "silu",
        "eos_token_id": 2,
    })
}

/// A one-layer Llama, untied.
pub(crate) fn llama_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "tie_word_embeddings": false,
    })
}

/// Names and shapes of a model with this config, written out by hand.
pub(crate) fn tensor_list(config: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (hidden, feed, vocab) = (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
    let heads = size("num_attention_heads");
    let head = config["head_dim"].as_u64().map_or(hidden / heads, |n| n as usize);
    let (q, kv) = (heads * head, size("num_key_value_heads") * head);
    let mut list = vec![("model.embed_tokens.weight".to_string(), vec![vocab, hidden])];
    for layer in 0..size("num_hidden_layers") {
        let mut add = |name: &str, shape: &[usize]| {
            list.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[hidden]);
        add("self_attn.q_proj.weight", &[q, hidden]);
        add("self_attn.k_proj.weight", &[kv, hidden]);
        add("self_attn.v_proj.weight", &[kv, hidden]);
        add("self_attn.o_proj.weight", &[hidden, q]);
        match config["model_type"].as_str().unwrap() {
            "qwen3" => {
                add("self_attn.q_norm.weight", &[head]);
                add("self_attn.k_norm.weight", &[head]);
            }
            "qwen2" => {
                add("self_attn.q_proj.bias", &[q]);
                add("self_attn.k_proj.bias", &[kv]);
                add("self_attn.v_proj.bias", &[kv]);
            }
            _ => {}
        }
        add("post_attention_layernorm.weight", &[hidden]);
        add("mlp.gate_proj.weight", &[feed, hidden]);
        add("mlp.up_proj.weight", &[feed, hidden]);
        add("mlp.down_proj.weight", &[hidden, feed]);
    }
    list.push(("model.norm.weight".to_string(), vec![hidden]));
    if !config["tie_word_embeddings"].as_bool().unwrap() {
        list.push(("lm_head.weight".to_string(), vec![vocab, hidden]));
    }
    list
}

/// All tensors of the model in f32.
pub(crate) fn tensors(config: &Value) -> Vec<Raw> {
    let list = tensor_list(config).into_iter().enumerate();
    list.map(|(seed, (name, shape))| Raw::f32(&name, &shape, &values(seed, shape.iter().product()))).collect()
}

/// Writes config.json and model.safetensors.
pub(crate) fn write_model(directory: &Path, config: &Value, tensors: &[Raw]) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("model.safetensors"), safetensors(tensors)).unwrap();
}

/// The message of opening `path`, which must fail.
pub(crate) fn refusal(path: &Path) -> String {
    match Checkpoint::open(path) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    }
}

/// All values of a tensor.
pub(crate) fn read_all(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Vec<f32>, Error> {
    let mut values = vec![0.0; tensor.values()];
    checkpoint.read_f32(tensor, 0..tensor.rows(), &mut values)?;
    Ok(values)
}

/// What to write so that `source` comes out with these encodings.
pub(crate) fn output_of(source: &Checkpoint, encoding: impl Fn(&Tensor) -> Encoding) -> Output {
    let declare = |tensor: &Tensor| OutputTensor {
        name: tensor.name,
        shape: tensor.shape.clone(),
        encoding: encoding(tensor),
    };
    Output {
        architecture: source.architecture.clone(),
        tensors: source.tensors.iter().map(declare).collect(),
        text: source.text.clone(),
        dat: source.dat.clone(),
    }
}

/// Writes `source` anew; what keeps its encoding is copied, the rest goes through values.
pub(crate) fn rewrite(
    source: &Checkpoint,
    path: &Path,
    format: Format,
    encoding: impl Fn(&Tensor) -> Encoding,
) -> Result<(), Error> {
    let output = output_of(source, encoding);
    let declared = output.tensors.clone();
    let mut sink = create(path, format, output)?;
    for (index, (tensor, declared)) in source.tensors.iter().zip(&declared).enumerate() {
        if copy_tensor(source, tensor, sink.as_mut(), index, declared)? {
            continue;
        }
        let values = read_all(source, tensor)?;
        if !declared.encoding.is_nvfp4() {
            sink.write_rows(index, 0, &values)?;
            continue;
        }
        let global = match format {
            Format::Dat => 1.0,
            _ => 2.0 / 2688.0, // one for all, because q, k, v and gate, up must share theirs
        };
        let (codes, scales) = quantise(tensor.columns(), &values, global);
        sink.write_nvfp4(index, 0, &codes, &scales)?;
        sink.set_global(index, global)?;
    }
    sink.finish()
}

/// Nearest NVFP4 of whole rows.
pub(crate) fn quantise(columns: usize, values: &[f32], global: f32) -> (Vec<u8>, Vec<u8>) {
    use halfbyte_formats::nvfp4::{self, Scales};
    let (mut codes, mut scales) = (vec![0; values.len() / 2], vec![0; values.len() / 16]);
    let rows = codes.chunks_mut(columns / 2).zip(scales.chunks_mut(columns / 16));
    for (row, (codes, scales)) in values.chunks(columns).zip(rows) {
        nvfp4::encode_row(row, global, Scales::Nearest, codes, scales);
    }
    (codes, scales)
}

/// NVFP4 for the layers' matrices, bf16 for the rest.
pub(crate) fn nvfp4_layers(tensor: &Tensor) -> Encoding {
    use halfbyte_checkpoint::TensorName;
    match tensor.name {
        TensorName::Layer(_, layer) if layer.is_matrix() => Encoding::Nvfp4,
        _ => Encoding::Bf16,
    }
}
