//! `Architecture` and vocabulary -> the metadata llama.cpp needs.

use std::path::Path;

use halfbyte_formats::ggml;

use super::metadata::default_attention_factor;
use crate::architecture::{Architecture, Family};
use crate::error::Error;
use crate::names::TensorName;
use crate::rope::RopeScaling;
use crate::sink::Output;
use crate::tensor::Encoding;
use crate::text_files::{GgufArray, GgufMetadata, GgufValue};

/// Keys that describe the file they came from, not the model.
const NOT_CARRIED: [&str; 4] =
    ["general.architecture", "general.file_type", "general.quantization_version", "general.alignment"];
/// Version of the block formats; 2 since 2023.
const QUANTIZATION_VERSION: u32 = 2;
/// A token that fills a row of the embedding nobody uses.
const UNUSED: i32 = 5;
const UNUSED_SCORE: f32 = -1000.0;

/// All metadata of a written file.
pub(super) fn output_metadata(path: &Path, output: &Output) -> Result<GgufMetadata, Error> {
    let architecture = &output.architecture;
    let name = architecture.family.name();
    let mut metadata = GgufMetadata::default();
    metadata.set("general.architecture", text(name));
    let carried = output.text.gguf.clone().unwrap_or_default();
    let (tokenizer, other): (Vec<_>, Vec<_>) = carried
        .entries
        .into_iter()
        .filter(|(key, _)| carried_key(key))
        .partition(|(key, _)| key.starts_with("tokenizer."));
    metadata.entries.extend(other);
    metadata.set("general.file_type", GgufValue::U32(file_type(output)));
    let version = GgufValue::U32(QUANTIZATION_VERSION);
    metadata.set("general.quantization_version", version);
    sizes(&mut metadata, architecture);
    rope(path, &mut metadata, architecture)?;
    windows(path, &mut metadata, architecture)?;
    metadata.entries.extend(tokenizer);
    vocabulary(path, &mut metadata, output)?;
    Ok(metadata)
}

fn text(value: &str) -> GgufValue {
    GgufValue::String(value.to_string())
}

/// Descriptions and vocabulary are kept; what the tensors or the architecture decide is not.
fn carried_key(key: &str) -> bool {
    let kept = key.starts_with("general.") || key.starts_with("tokenizer.");
    kept && !NOT_CARRIED.contains(&key)
}

/// Sizes were checked to be far below 2^32.
fn size(value: usize) -> GgufValue {
    GgufValue::U32(value as u32)
}

fn sizes(metadata: &mut GgufMetadata, architecture: &Architecture) {
    let a = architecture;
    let sizes = [
        ("block_count", a.layers),
        ("context_length", a.max_context),
        ("embedding_length", a.hidden_size),
        ("feed_forward_length", a.intermediate_size),
        ("vocab_size", a.vocab_size),
        ("attention.head_count", a.heads),
        ("attention.head_count_kv", a.kv_heads),
        ("attention.key_length", a.head_dim),
        ("attention.value_length", a.head_dim),
        ("rope.dimension_count", a.head_dim),
    ];
    let name = a.family.name();
    for (key, value) in sizes {
        metadata.set(&format!("{name}.{key}"), size(value));
    }
    let epsilon = format!("{name}.attention.layer_norm_rms_epsilon");
    metadata.set(&epsilon, GgufValue::F32(a.norm_eps));
    let theta = GgufValue::F32(a.rope.theta as f32);
    metadata.set(&format!("{name}.rope.freq_base"), theta);
}

fn rope(path: &Path, metadata: &mut GgufMetadata, architecture: &Architecture) -> Result<(), Error> {
    let name = architecture.family.name();
    let mut set = |key: &str, value| metadata.set(&format!("{name}.rope.scaling.{key}"), value);
    let number = |value: f64| GgufValue::F32(value as f32);
    match architecture.rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            set("type", text("linear"));
            set("factor", number(factor));
        }
        RopeScaling::Yarn { truncate: false, .. } => {
            let problem = "yarn with ends that are not whole pairs (truncate = false)";
            let remedy = "GGUF cannot say this; write the model as --to hf";
            return Err(Error::request(path, "rope scaling", problem, remedy));
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, .. } => {
            set("type", text("yarn"));
            set("factor", number(factor));
            set("original_context_length", size(original));
            set("yarn_beta_fast", number(beta_fast));
            set("yarn_beta_slow", number(beta_slow));
            let extra = attention_factor / default_attention_factor(factor);
            if (extra - 1.0).abs() > 1e-6 {
                set("attn_factor", number(extra));
            }
        }
        // These two are stored as the tensor rope_freqs.weight, which only llama files may have.
        RopeScaling::Llama3 { .. } | RopeScaling::Frequencies(_) => {
            if architecture.family != Family::Llama {
                let problem = format!("llama3 frequencies in a {name} model");
                let remedy = "llama.cpp reads rope_freqs of llama models only; write it as --to hf";
                return Err(Error::request(path, "rope scaling", problem, remedy));
            }
        }
    }
    Ok(())
}

/// The divisors of `rope_freqs.weight`, where the model needs that tensor.
pub(super) fn rope_divisors(architecture: &Architecture) -> Option<Vec<f32>> {
    match &architecture.rope.scaling {
        RopeScaling::Frequencies(divisors) => Some(divisors.clone()),
        RopeScaling::Llama3 { .. } => {
            let mut plain = architecture.rope.clone();
            let (stretched, _) = plain.inverse_frequencies(architecture.head_dim);
            plain.scaling = RopeScaling::None;
            let (plain, _) = plain.inverse_frequencies(architecture.head_dim);
            Some(plain.iter().zip(stretched).map(|(plain, inv)| (plain / inv) as f32).collect())
        }
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => None,
    }
}

fn windows(path: &Path, metadata: &mut GgufMetadata, architecture: &Architecture) -> Result<(), Error> {
    let windows = &architecture.sliding_window;
    let Some(window) = windows.iter().flatten().next() else {
        return Ok(());
    };
    if let Some(other) = windows.iter().flatten().find(|other| *other != window) {
        let problem = format!("layers with windows of {window} and of {other}");
        let remedy = "GGUF has one window for all layers that have one; write it as --to hf";
        return Err(Error::request(path, "sliding window", problem, remedy));
    }
    let name = architecture.family.name();
    metadata.set(&format!("{name}.attention.sliding_window"), size(*window));
    if windows.iter().any(Option::is_none) {
        let marks = windows.iter().map(Option::is_some).collect();
        let marks = GgufValue::Array(GgufArray::Bool(marks));
        metadata.set(&format!("{name}.attention.sliding_window_pattern"), marks);
    }
    Ok(())
}

fn vocabulary(path: &Path, metadata: &mut GgufMetadata, output: &Output) -> Result<(), Error> {
    if metadata.get("tokenizer.ggml.model").is_none() {
        // What llama.cpp calls a model without a vocabulary; it then takes ids only.
        metadata.set("tokenizer.ggml.model", text("none"));
    }
    pad_vocabulary(path, metadata, output.architecture.vocab_size)?;
    let architecture = &output.architecture;
    let ends = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let ends = ends.into_iter().zip(architecture.eos.iter().copied());
    let begin = architecture.bos.map(|token| ("bos_token_id", token));
    let known_end = metadata.get("tokenizer.ggml.eos_token_id").is_some();
    for (key, token) in begin.into_iter().chain(ends.filter(|_| !known_end)) {
        let key = format!("tokenizer.ggml.{key}");
        // Small models often keep the token ids of the large one their config came from.
        let exists = (token as usize) < architecture.vocab_size;
        if exists && metadata.get(&key).is_none() {
            metadata.set(&key, GgufValue::U32(token));
        }
    }
    if let Some(template) = &output.text.chat_template {
        metadata.set("tokenizer.chat_template", text(template));
    }
    Ok(())
}

/// llama.cpp wants one token for each row of the embedding; models round their rows up.
fn pad_vocabulary(path: &Path, metadata: &mut GgufMetadata, vocab_size: usize) -> Result<(), Error> {
    let entries = metadata.entries.iter_mut();
    for (key, value) in entries.filter(|(key, _)| key.starts_with("tokenizer.ggml.")) {
        let GgufValue::Array(array) = value else {
            continue;
        };
        let length = match (key.as_str(), array) {
            ("tokenizer.ggml.tokens", GgufArray::String(tokens)) => {
                let given = tokens.len();
                tokens.extend((given..vocab_size).map(|id| format!("[PAD{id}]")));
                given
            }
            ("tokenizer.ggml.token_type", GgufArray::I32(types)) => pad(types, vocab_size, UNUSED),
            ("tokenizer.ggml.token_type", GgufArray::U32(types)) => pad(types, vocab_size, UNUSED as u32),
            ("tokenizer.ggml.scores", GgufArray::F32(scores)) => pad(scores, vocab_size, UNUSED_SCORE),
            _ => continue,
        };
        if length > vocab_size {
            let problem = format!("{length} entries for {vocab_size} rows of the embedding");
            let remedy = "take tokenizer and tensors from the same model";
            return Err(Error::request(path, format!("metadata {key}"), problem, remedy));
        }
    }
    Ok(())
}

/// Fills a list up to `length`; gives the length it had.
fn pad<T: Clone>(list: &mut Vec<T>, length: usize, filler: T) -> usize {
    let given = list.len();
    if given < length {
        list.resize(length, filler);
    }
    given
}

/// llama.cpp's number for the type that most bytes of the matrices have.
fn file_type(output: &Output) -> u32 {
    let mut sizes: Vec<(u32, usize)> = Vec::new();
    let layers = |name: &TensorName| matches!(name, TensorName::Layer(..)) && name.is_matrix();
    for tensor in output.tensors.iter().filter(|tensor| layers(&tensor.name)) {
        let (kind, values) = (file_type_of(tensor.encoding), tensor.rows() * tensor.columns());
        match sizes.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, size)) => *size += values,
            None => sizes.push((kind, values)),
        }
    }
    sizes.iter().max_by_key(|(_, size)| *size).map_or(0, |(kind, _)| *kind)
}

fn file_type_of(encoding: Encoding) -> u32 {
    use ggml::Type;
    match encoding {
        Encoding::F32 | Encoding::E2m1(_) => 0,
        Encoding::F16 => 1,
        Encoding::Bf16 => 32,
        Encoding::Nvfp4 => 39,
        Encoding::Ggml(kind) => match kind {
            Type::F32 => 0,
            Type::F16 => 1,
            Type::Q4_0 => 2,
            Type::Q4_1 => 3,
            Type::Q8_0 => 7,
            Type::Q5_0 => 8,
            Type::Q5_1 => 9,
            Type::Q2K => 10,
            Type::Q3K => 12,
            Type::Q4K => 15,
            Type::Q5K => 17,
            Type::Q6K => 18,
            Type::Iq4Nl => 25,
            Type::Iq4Xs => 30,
            Type::Bf16 => 32,
            Type::Mxfp4 => 38,
            Type::Nvfp4 => 39,
        },
    }
}
