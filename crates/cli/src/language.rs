//! A model's tokenizer and chat template, wherever they came from.

use std::path::Path;

use halfbyte_checkpoint::{Checkpoint, GgufArray, GgufMetadata, GgufValue};
use halfbyte_text::{ChatTemplate, GgufVocabulary, Tokenizer};

use crate::failure::{Code, Failure, Result};

/// The tokenizer, from tokenizer.json or GGUF metadata.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    let file = checkpoint.path.display().to_string();
    let tokenizer = match (&checkpoint.text.tokenizer_json, &checkpoint.text.gguf) {
        (Some(json), _) => Tokenizer::from_json(json, &format!("{file}/tokenizer.json"))?,
        (None, Some(metadata)) => Tokenizer::from_gguf(&vocabulary(metadata, &checkpoint.path)?, &file)?,
        (None, None) => {
            return Err(Failure::new(
                Code::BadInput,
                format!(
                    "{file}\nthere is no tokenizer.json beside the weights\ncopy it from the model's directory"
                ),
            ));
        }
    };
    tokenizer.check_model_vocabulary(checkpoint.architecture.vocab_size)?;
    Ok(tokenizer)
}

/// The vocabulary in a GGUF's metadata.
pub(crate) fn vocabulary(metadata: &GgufMetadata, path: &Path) -> Result<GgufVocabulary> {
    let get = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}"));
    let text = |key| get(key).and_then(GgufValue::as_str).unwrap_or_default().to_string();
    let strings = |key| get(key).and_then(GgufValue::as_strings).unwrap_or_default().to_vec();
    let id = |key| get(key).and_then(GgufValue::as_u64).and_then(|id| u32::try_from(id).ok());
    let flag = |key, default| get(key).and_then(GgufValue::as_bool).unwrap_or(default);
    let tokens = strings("tokens");
    if tokens.is_empty() {
        return Err(Failure::new(
            Code::BadInput,
            format!(
                "{}: tokenizer.ggml.tokens\nthe file has no vocabulary\nconvert the model again with its tokenizer",
                path.display()
            ),
        ));
    }
    let types = match get("token_type") {
        Some(GgufValue::Array(GgufArray::I32(types))) => {
            types.iter().map(|&kind| u32::try_from(kind).unwrap_or(0)).collect()
        }
        Some(GgufValue::Array(GgufArray::U32(types))) => types.clone(),
        _ => Vec::new(),
    };
    let scores = match get("scores") {
        Some(GgufValue::Array(GgufArray::F32(scores))) => scores.clone(),
        _ => Vec::new(),
    };
    Ok(GgufVocabulary {
        model: text("model"),
        pre: text("pre"),
        tokens,
        types,
        scores,
        merges: strings("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unknown: id("unknown_token_id"),
        padding: id("padding_token_id"),
        add_bos: flag("add_bos_token", false),
        add_eos: flag("add_eos_token", false),
        add_space_prefix: flag("add_space_prefix", true),
    })
}

/// The model's own chat template, if it has one.
pub(crate) fn template(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let Some(source) = &checkpoint.text.chat_template else {
        return Ok(None);
    };
    let architecture = &checkpoint.architecture;
    let token = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
    let (bos, eos) = (token(architecture.bos), token(architecture.eos.first().copied()));
    Ok(Some(ChatTemplate::new(source, &bos, &eos)?))
}

/// The token that plain text starts with, for models that were trained so.
pub(crate) fn start_token(checkpoint: &Checkpoint) -> Option<u32> {
    let text = &checkpoint.text;
    let in_gguf = || text.gguf.as_ref()?.get("tokenizer.ggml.add_bos_token")?.as_bool();
    let in_config = || text.tokenizer_config.as_ref()?.get("add_bos_token")?.as_bool();
    let adds = in_gguf().or_else(in_config).unwrap_or(false);
    checkpoint.architecture.bos.filter(|_| adds)
}
