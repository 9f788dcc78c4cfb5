//! `Architecture` -> config.json (and hf_quant_config.json). A config that came from Hugging Face
//! goes out as it was, with the fields about number formats adjusted.

use std::f64::consts::PI;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::architecture::{Architecture, Family};
use crate::checkpoint::Format;
use crate::error::Error;
use crate::hugging_face::text::{self, Named};
use crate::names::TensorName;
use crate::rope::{Rope, RopeScaling};
use crate::sink::Output;
use crate::tensor::Encoding;

/// config.json, and for ModelOpt hf_quant_config.json.
pub(crate) fn files(path: &Path, format: Format, output: &Output) -> Result<Vec<Named>, Error> {
    let original = match &output.text.config {
        Some(Value::Object(config)) => Some(config.clone()),
        _ => None,
    };
    // A `.dat` is read with the config it came with, whatever types its tensors have.
    if let (Format::Dat, Some(config)) = (format, &original) {
        return Ok(vec![text::json_file("config.json", &Value::Object(config.clone()))]);
    }
    let mut config = match original {
        Some(config) => config,
        None => synthesised(&expressible(path, &output.architecture)?),
    };
    // Both spellings exist; a reader takes the one it knows.
    let dtype = json!(dtype(output));
    if config.contains_key("dtype") {
        config.insert("dtype".into(), dtype.clone());
    }
    config.insert("torch_dtype".into(), dtype);
    config.insert("tie_word_embeddings".into(), json!(output.architecture.tied));
    config.remove("quantization_config");
    let mut files = Vec::new();
    if format == Format::ModelOpt {
        let excluded = excluded(output);
        config.insert("quantization_config".into(), quantization_config(&excluded));
        files.push(text::json_file("hf_quant_config.json", &quant_config_file(&excluded)));
    }
    files.push(text::json_file("config.json", &Value::Object(config)));
    Ok(files)
}

/// The widest type among the tensors that are not quantised.
fn dtype(output: &Output) -> &'static str {
    let uses = |encoding: Encoding| {
        output.tensors.iter().any(|tensor| {
            tensor.encoding == encoding && (tensor.name.is_matrix() || encoding != Encoding::F32)
        })
    };
    match () {
        _ if uses(Encoding::F32) => "float32",
        _ if uses(Encoding::F16) => "float16",
        _ => "bfloat16",
    }
}

/// Linear modules that stay unquantised; embeddings and norms are no linear modules.
fn excluded(output: &Output) -> Vec<String> {
    let mut modules: Vec<String> = Vec::new();
    for tensor in &output.tensors {
        let linear = tensor.name.is_matrix() && tensor.name != TensorName::Embedding;
        if linear && tensor.encoding != Encoding::Nvfp4 {
            modules.push(tensor.name.to_string().trim_end_matches(".weight").to_string());
        }
    }
    let head = "lm_head".to_string();
    if output.architecture.tied && !modules.contains(&head) {
        modules.push(head);
    }
    modules
}

/// Weights in NVFP4, activations as they are: there are no `input_scale` tensors, which the plain
/// "NVFP4" algorithm would ask for.
const ALGORITHM: &str = "W4A16_NVFP4";

/// Readers know the format by this name.
fn producer() -> Value {
    json!({ "name": "modelopt", "version": "0.47.0" })
}

fn quantization_config(excluded: &[String]) -> Value {
    json!({
        "quant_method": "modelopt",
        "quant_algo": ALGORITHM,
        "config_groups": {
            "group_0": {
                "weights": { "num_bits": 4, "type": "float", "group_size": 16, "dynamic": false },
                "input_activations": null,
                "targets": ["Linear"],
            }
        },
        "group_size": 16,
        "ignore": excluded,
        "kv_cache_scheme": null,
        "producer": producer(),
    })
}

fn quant_config_file(excluded: &[String]) -> Value {
    json!({
        "producer": producer(),
        "quantization": {
            "quant_algo": ALGORITHM,
            "kv_cache_quant_algo": null,
            "group_size": 16,
            "exclude_modules": excluded,
        },
    })
}

/// A config transformers loads, for a model that came without one.
fn synthesised(architecture: &Architecture) -> Map<String, Value> {
    let class = match architecture.family {
        Family::Qwen3 => "Qwen3ForCausalLM",
        Family::Qwen2 => "Qwen2ForCausalLM",
        Family::Llama => "LlamaForCausalLM",
    };
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_string(), value);
    set("architectures", json!([class]));
    set("model_type", json!(architecture.family.name()));
    set("vocab_size", json!(architecture.vocab_size));
    set("hidden_size", json!(architecture.hidden_size));
    set("intermediate_size", json!(architecture.intermediate_size));
    set("num_hidden_layers", json!(architecture.layers));
    set("num_attention_heads", json!(architecture.heads));
    set("num_key_value_heads", json!(architecture.kv_heads));
    set("head_dim", json!(architecture.head_dim));
    set("hidden_act", json!("silu"));
    set("rms_norm_eps", json!(shortest(architecture.norm_eps)));
    set("max_position_embeddings", json!(architecture.max_context));
    set("attention_bias", json!(architecture.output_bias));
    set("mlp_bias", json!(architecture.mlp_bias));
    set("bos_token_id", json!(architecture.bos));
    set("eos_token_id", end_tokens(&architecture.eos));
    set("rope_theta", json!(architecture.rope.theta));
    set("rope_scaling", rope_scaling(architecture));
    add_windows(&mut config, architecture);
    config
}

/// The f32 by its shortest decimal, so 1e-5 is not written as 9.999999747378752e-6.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn end_tokens(eos: &[u32]) -> Value {
    match eos {
        [] => Value::Null,
        [one] => json!(one),
        many => json!(many),
    }
}

fn add_windows(config: &mut Map<String, Value>, architecture: &Architecture) {
    let window = architecture.sliding_window.iter().flatten().next();
    config.insert("use_sliding_window".into(), json!(window.is_some()));
    if let Some(window) = window {
        config.insert("sliding_window".into(), json!(window));
        let kind = |window: &Option<usize>| match window {
            Some(_) => "sliding_attention",
            None => "full_attention",
        };
        let types: Vec<&str> = architecture.sliding_window.iter().map(kind).collect();
        config.insert("layer_types".into(), json!(types));
    }
}

fn rope_scaling(architecture: &Architecture) -> Value {
    match &architecture.rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "attention_factor": attention_factor,
            "truncate": truncate,
        }),
        // `expressible` has turned divisors into one of the above.
        RopeScaling::Frequencies(_) => Value::Null,
    }
}

/// The architecture with a rope setting that config.json has words for.
fn expressible(file: &Path, architecture: &Architecture) -> Result<Architecture, Error> {
    let mut architecture = architecture.clone();
    if let RopeScaling::Frequencies(divisors) = &architecture.rope.scaling {
        let Some(scaling) = llama3_from_divisors(&architecture, divisors) else {
            return Err(Error::request(
                file,
                "rope_scaling",
                "the model's rope divisors are not llama3's; config.json cannot say them",
                "keep this model in GGUF",
            ));
        };
        architecture.rope.scaling = scaling;
    }
    Ok(architecture)
}

/// GGUF stores llama3 scaling as a divisor per pair. Between the two ends the blend is linear in
/// the frequency, so a line through it gives the bounds back; the original context is free and is
/// taken as 8192, with which every published model has whole bounds.
fn llama3_from_divisors(architecture: &Architecture, divisors: &[f32]) -> Option<RopeScaling> {
    let original = 8192.0;
    let factor = divisors.iter().copied().fold(1.0f32, f32::max);
    let factor = f64::from(factor);
    let plain = Rope { theta: architecture.rope.theta, scaling: RopeScaling::None };
    let (inverse, _) = plain.inverse_frequencies(architecture.head_dim);
    let blended: Vec<(f64, f64)> = inverse
        .iter()
        .zip(divisors)
        .map(|(inv, divisor)| {
            let smooth = (1.0 / f64::from(*divisor) - 1.0 / factor) / (1.0 - 1.0 / factor);
            (inv / (2.0 * PI), smooth)
        })
        .filter(|(_, smooth)| *smooth > 0.001 && *smooth < 0.999)
        .collect();
    let (low, high) = match (blended.first(), blended.last()) {
        (Some(a), Some(b)) if blended.len() > 1 => {
            let slope = (a.1 - b.1) / (a.0 - b.0);
            let span = original / slope;
            let low = original * a.0 - a.1 * span;
            (whole(low), whole(low + span))
        }
        _ => (1.0, 4.0),
    };
    let scaling = RopeScaling::Llama3 { factor, low, high, original: original as usize };
    let rope = Rope { theta: architecture.rope.theta, scaling: scaling.clone() };
    let (stretched, _) = rope.inverse_frequencies(architecture.head_dim);
    let close = inverse
        .iter()
        .zip(&stretched)
        .zip(divisors)
        .all(|((plain, got), divisor)| (plain / f64::from(*divisor) / got - 1.0).abs() < 1e-4);
    close.then_some(scaling)
}

/// The whole number next to `value`, where rounding of stored f32 alone moved it.
fn whole(value: f64) -> f64 {
    match (value - value.round()).abs() < 1e-3 {
        true => value.round(),
        false => value,
    }
}
