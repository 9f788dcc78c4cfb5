//! GGUF metadata -> `Architecture`, and the checks of the vocabulary that travels with it.

use std::path::Path;

use super::Found;
use crate::architecture::{Architecture, Family, MAX_LAYERS};
use crate::error::Error;
use crate::names::{LayerTensor, TensorName};
use crate::rope::{Rope, RopeScaling};
use crate::text_files::{GgufArray, GgufMetadata, GgufValue};

const REWRITE: &str = "the file was written wrongly; convert the model again";

/// Sizes and switches: numbers from the metadata, switches from the tensors that are there.
pub(super) fn architecture(
    file: &Path,
    metadata: &GgufMetadata,
    found: &Found,
) -> Result<Architecture, Error> {
    let family = family(file, metadata)?;
    let keys = Keys { file, metadata, prefix: family.name() };
    let (heads, layers) = (keys.size("attention.head_count")?, keys.size("block_count")?);
    if layers > MAX_LAYERS {
        return Err(keys.error("block_count", format!("{layers} layers, {MAX_LAYERS} are the most")));
    }
    let hidden_size = keys.size("embedding_length")?;
    let head_dim = head_dim(&keys, hidden_size, heads)?;
    let max_context = keys.size("context_length")?;
    let layer_has = |tensor| found.has(TensorName::Layer(0, tensor));
    let architecture = Architecture {
        family,
        vocab_size: vocab_size(file, metadata, found)?,
        hidden_size,
        intermediate_size: keys.size("feed_forward_length")?,
        layers,
        heads,
        kv_heads: keys.optional_size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        norm_eps: keys.number("attention.layer_norm_rms_epsilon")? as f32,
        rope: rope(&keys, max_context, found.rope_frequencies.clone())?,
        qk_norm: layer_has(LayerTensor::QNorm),
        qkv_bias: layer_has(LayerTensor::QBias),
        output_bias: layer_has(LayerTensor::OBias),
        mlp_bias: layer_has(LayerTensor::DownBias),
        tied: !found.has(TensorName::Head),
        max_context,
        sliding_window: sliding_window(&keys, layers)?,
        bos: keys.token("bos_token_id")?,
        eos: end_tokens(&keys)?,
    };
    architecture.check(file)?;
    let mut tokens = architecture.bos.iter().chain(&architecture.eos);
    match tokens.find(|token| **token as usize >= architecture.vocab_size) {
        None => Ok(architecture),
        Some(token) => {
            let problem = format!("token {token} of {}", architecture.vocab_size);
            let place = "metadata tokenizer.ggml.bos_token_id or eos_token_id";
            Err(Error::input(file, place, problem, REWRITE))
        }
    }
}

fn family(file: &Path, metadata: &GgufMetadata) -> Result<Family, Error> {
    let place = "metadata general.architecture";
    let name = metadata.get("general.architecture").and_then(GgufValue::as_str);
    let Some(name) = name else {
        return Err(Error::input(file, place, "the file does not say what model it is", REWRITE));
    };
    Family::from_name(name).ok_or_else(|| {
        let problem = format!("\"{}\" models are not read", super::shown(name));
        Error::input(file, place, problem, "use a qwen3, qwen2 or llama model")
    })
}

/// The embedding's rows: files need not state the number, and tokens may be fewer.
fn vocab_size(file: &Path, metadata: &GgufMetadata, found: &Found) -> Result<usize, Error> {
    let mut tensors = found.tensors.iter();
    let embedding = tensors.find(|tensor| tensor.name == TensorName::Embedding);
    let Some(embedding) = embedding else {
        let problem = "the token embedding is missing: the file holds no model, or half of one";
        let remedy = "give a file with the model's tensors";
        return Err(Error::input(file, "tensor token_embd.weight", problem, remedy));
    };
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(GgufValue::as_strings);
    let tokens = tokens.map_or(0, <[String]>::len);
    if tokens > embedding.rows() {
        let problem = format!("{tokens} tokens for {} rows of the embedding", embedding.rows());
        return Err(Error::input(file, "metadata tokenizer.ggml.tokens", problem, REWRITE));
    }
    Ok(embedding.rows())
}

fn head_dim(keys: &Keys<'_>, hidden_size: usize, heads: usize) -> Result<usize, Error> {
    let default = hidden_size.checked_div(heads).unwrap_or(0);
    let head_dim = keys.optional_size("attention.key_length")?.unwrap_or(default);
    for key in ["attention.value_length", "rope.dimension_count"] {
        let other = keys.optional_size(key)?.unwrap_or(head_dim);
        if other != head_dim {
            let problem = format!("{other}, but heads are {head_dim} wide; both must be equal");
            return Err(keys.error(key, problem));
        }
    }
    Ok(head_dim)
}

fn rope(keys: &Keys<'_>, max_context: usize, frequencies: Option<Vec<f32>>) -> Result<Rope, Error> {
    let theta = keys.optional_number("rope.freq_base")?.unwrap_or(10000.0);
    let factor = match keys.optional_number("rope.scaling.factor")? {
        None => keys.optional_number("rope.scale_linear")?,
        factor => factor,
    };
    // Zero and one both mean "not stretched" in files.
    let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
    let stretched = match keys.text("rope.scaling.type")?.unwrap_or("linear") {
        "yarn" => yarn(keys, factor, max_context)?,
        "none" => RopeScaling::None,
        "linear" if factor == 1.0 => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        other => {
            let problem = format!("\"{}\" is not none, linear or yarn", super::shown(other));
            return Err(keys.error("rope.scaling.type", problem));
        }
    };
    let scaling = match (frequencies, stretched) {
        (None, stretched) => stretched,
        (Some(divisors), RopeScaling::None) => RopeScaling::Frequencies(divisors),
        (Some(_), _) => {
            let problem = "stretched twice, by this and by rope_freqs.weight".to_string();
            return Err(keys.error("rope.scaling.type", problem));
        }
    };
    Ok(Rope { theta, scaling })
}

fn yarn(keys: &Keys<'_>, factor: f64, max_context: usize) -> Result<RopeScaling, Error> {
    let original = keys.optional_size("rope.scaling.original_context_length")?;
    // llama.cpp multiplies its own default by this; `yarn_attn_factor` has no effect there.
    let extra = keys.optional_number("rope.scaling.attn_factor")?.unwrap_or(1.0);
    Ok(RopeScaling::Yarn {
        factor,
        original: original.unwrap_or(max_context),
        beta_fast: keys.optional_number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.optional_number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        attention_factor: default_attention_factor(factor) * extra,
        truncate: true,
    })
}

/// What yarn multiplies cos and sin by when the model does not say.
pub(super) fn default_attention_factor(factor: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// One window for all layers, or for those that `sliding_window_pattern` marks.
fn sliding_window(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<usize>>, Error> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = keys.optional_size("attention.sliding_window")?.filter(|window| *window > 0);
    match keys.get(PATTERN) {
        None => Ok(vec![window; layers]),
        Some(GgufValue::Array(GgufArray::Bool(marks))) if marks.len() == layers => {
            Ok(marks.iter().map(|mark| window.filter(|_| *mark)).collect())
        }
        Some(_) => Err(keys.error(PATTERN, format!("not one boolean for each of {layers} layers"))),
    }
}

/// All tokens that end a reply, the main one first.
fn end_tokens(keys: &Keys<'_>) -> Result<Vec<u32>, Error> {
    let mut tokens = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        if let Some(token) = keys.token(key)?.filter(|token| !tokens.contains(token)) {
            tokens.push(token);
        }
    }
    Ok(tokens)
}

/// Refuses vocabularies whose lists have the wrong type or different lengths.
pub(super) fn check_vocabulary(file: &Path, metadata: &GgufMetadata) -> Result<(), Error> {
    let refuse =
        |key: &str, problem: String| Err(Error::input(file, format!("metadata {key}"), problem, REWRITE));
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        if metadata.get(key).is_some_and(|value| value.as_strings().is_none()) {
            return refuse(key, "not a list of strings".to_string());
        }
    }
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(GgufValue::as_strings);
    let tokens = tokens.map_or(0, <[String]>::len);
    for (key, kind) in [("tokenizer.ggml.scores", "F32"), ("tokenizer.ggml.token_type", "I32 or U32")] {
        let length = match (key, metadata.get(key)) {
            (_, None) => continue,
            ("tokenizer.ggml.scores", Some(GgufValue::Array(GgufArray::F32(list)))) => list.len(),
            ("tokenizer.ggml.token_type", Some(GgufValue::Array(GgufArray::I32(list)))) => list.len(),
            ("tokenizer.ggml.token_type", Some(GgufValue::Array(GgufArray::U32(list)))) => list.len(),
            _ => return refuse(key, format!("not a list of {kind}")),
        };
        if length != tokens {
            return refuse(key, format!("{length} entries for {tokens} tokens"));
        }
    }
    Ok(())
}

/// The keys of one family.
struct Keys<'a> {
    file: &'a Path,
    metadata: &'a GgufMetadata,
    prefix: &'static str,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(&format!("{}.{key}", self.prefix))
    }

    fn error(&self, key: &str, problem: String) -> Error {
        Error::input(self.file, format!("metadata {}.{key}", self.prefix), problem, REWRITE)
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        let value = self.optional_size(key)?;
        value.ok_or_else(|| self.error(key, "this key is missing".to_string()))
    }

    /// A whole number; a list of one number for each layer only where all are the same.
    fn optional_size(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = match value {
            GgufValue::Array(array) => uniform(array),
            scalar => scalar.as_u64(),
        };
        match number.and_then(|number| usize::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(key, "not one whole number for all layers".to_string())),
        }
    }

    fn number(&self, key: &str) -> Result<f64, Error> {
        let value = self.optional_number(key)?;
        value.ok_or_else(|| self.error(key, "this key is missing".to_string()))
    }

    fn optional_number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key).map(GgufValue::as_f64) {
            None => Ok(None),
            Some(Some(number)) => Ok(Some(number)),
            Some(None) => Err(self.error(key, "not a floating-point number".to_string())),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key).map(GgufValue::as_str) {
            None => Ok(None),
            Some(Some(text)) => Ok(Some(text)),
            Some(None) => Err(self.error(key, "not a text".to_string())),
        }
    }

    /// A token id; some writers put 2^32 - 1 for "none".
    fn token(&self, key: &str) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{key}");
        let Some(value) = self.metadata.get(&key) else {
            return Ok(None);
        };
        match value.as_u64().map(u32::try_from) {
            Some(Ok(token)) => Ok(Some(token).filter(|token| *token != u32::MAX)),
            _ => {
                let place = format!("metadata {key}");
                Err(Error::input(self.file, place, "not a token id", REWRITE))
            }
        }
    }
}

/// The number that all items of a list are.
fn uniform(array: &GgufArray) -> Option<u64> {
    let numbers: Vec<u64> = match array {
        GgufArray::U32(list) => list.iter().map(|n| u64::from(*n)).collect(),
        GgufArray::I32(list) => list.iter().map(|n| u64::try_from(*n).ok()).collect::<Option<_>>()?,
        GgufArray::U64(list) => list.clone(),
        _ => return None,
    };
    let first = *numbers.first()?;
    numbers.iter().all(|number| *number == first).then_some(first)
}
