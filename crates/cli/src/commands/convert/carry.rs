//! Tokenizer, template and configuration on their way: a GGUF's metadata becomes the files of a
//! directory, a directory's files become metadata.

use halfbyte_checkpoint::{Checkpoint, Format, GgufArray, GgufMetadata, GgufValue, TextFiles};
use halfbyte_text::{GgufVocabulary, gguf_from_tokenizer_json};
use serde_json::{Map, Value, json};

use crate::failure::Result;
use crate::language;

/// The text that goes out with a model written as `target`.
pub(crate) fn text(source: &Checkpoint, target: Format) -> Result<TextFiles> {
    match (target, &source.text.gguf) {
        (Format::Gguf, Some(_)) => Ok(source.text.clone()),
        (Format::Gguf, None) => for_gguf(source),
        (_, Some(metadata)) => for_directory(source, metadata),
        (_, None) => {
            let mut text = source.text.clone();
            // It described the tensors of the source; writers that quantise add their own.
            if let (true, Some(Value::Object(config))) = (source.format != target, &mut text.config) {
                config.shift_remove("quantization_config");
            }
            Ok(text)
        }
    }
}

/// Files that transformers loads, from metadata.
fn for_directory(source: &Checkpoint, metadata: &GgufMetadata) -> Result<TextFiles> {
    let mut text = TextFiles { chat_template: source.text.chat_template.clone(), ..TextFiles::default() };
    let architecture = &source.architecture;
    let ids = [("bos_token_id", json!(architecture.bos)), ("eos_token_id", json!(architecture.eos))];
    let known = ids.into_iter().filter(|(_, ids)| !ids.is_null() && *ids != json!([]));
    let generation: Map<String, Value> = known.map(|(key, ids)| (key.to_string(), ids)).collect();
    text.generation_config = (!generation.is_empty()).then_some(Value::Object(generation));
    if metadata.get("tokenizer.ggml.tokens").is_none() {
        return Ok(text);
    }
    let vocabulary = language::vocabulary(metadata, &source.path)?;
    let file = source.path.display().to_string();
    let mut definition: Value =
        serde_json::from_str(&vocabulary.to_tokenizer_json(&file)?).unwrap_or_default();
    definition["post_processor"] = post_processor(&vocabulary);
    text.tokenizer_json = Some(definition.to_string().into_bytes());
    let special = special_tokens(&vocabulary);
    let mut config = special.clone();
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    config.insert("add_bos_token".into(), json!(vocabulary.add_bos));
    config.insert("add_eos_token".into(), json!(vocabulary.add_eos));
    config.insert("model_max_length".into(), json!(architecture.max_context));
    if let Some(template) = &text.chat_template {
        config.insert("chat_template".into(), json!(template));
    }
    text.tokenizer_config = Some(Value::Object(config));
    text.special_tokens_map = (!special.is_empty()).then_some(Value::Object(special));
    Ok(text)
}

fn special_tokens(vocabulary: &GgufVocabulary) -> Map<String, Value> {
    let tokens = [
        ("bos_token", vocabulary.bos),
        ("eos_token", vocabulary.eos),
        ("unk_token", vocabulary.unknown),
        ("pad_token", vocabulary.padding),
    ];
    let text = |(key, id): (&str, _)| Some((key.to_string(), json!(vocabulary.token(id)?)));
    tokens.into_iter().filter_map(text).collect()
}

/// Puts the tokens around a text that the metadata asks for.
fn post_processor(vocabulary: &GgufVocabulary) -> Value {
    let token = |wanted: bool, id: Option<u32>| Some((id.filter(|_| wanted)?, vocabulary.token(id)?));
    let begin = token(vocabulary.add_bos, vocabulary.bos);
    let end = token(vocabulary.add_eos, vocabulary.eos);
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let around = |sequence: &str, kind: u32| {
        let special = |text: &str| json!({ "SpecialToken": { "id": text, "type_id": kind } });
        let mut parts: Vec<Value> = begin.iter().map(|(_, text)| special(text)).collect();
        parts.push(json!({ "Sequence": { "id": sequence, "type_id": kind } }));
        parts.extend(end.iter().map(|(_, text)| special(text)));
        parts
    };
    let mut pair = around("A", 0);
    pair.extend(around("B", 1));
    let named = |(id, text): &(u32, &str)| {
        let entry = json!({ "id": text, "ids": [id], "tokens": [text] });
        (text.to_string(), entry)
    };
    let special: Map<String, Value> = begin.iter().chain(&end).map(named).collect();
    json!({ "type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": special })
}

/// Metadata that llama.cpp loads, from files.
fn for_gguf(source: &Checkpoint) -> Result<TextFiles> {
    let mut text = source.text.clone();
    let mut metadata = GgufMetadata::default();
    let name = source.path.file_stem().and_then(|name| name.to_str());
    if let Some(name) = name {
        metadata.set("general.name", GgufValue::String(name.to_string()));
    }
    if let Some(json) = &source.text.tokenizer_json {
        let file = source.path.join("tokenizer.json").display().to_string();
        let mut vocabulary = gguf_from_tokenizer_json(json, &file)?;
        let definition = serde_json::from_slice(json).unwrap_or_default();
        complete(&mut vocabulary, source, &definition);
        write_vocabulary(&mut metadata, vocabulary);
        write_ends(&mut metadata, &source.architecture.eos);
    }
    text.gguf = Some(metadata);
    Ok(text)
}

/// Fills in what tokenizer_config.json and config.json know and tokenizer.json does not.
fn complete(vocabulary: &mut GgufVocabulary, source: &Checkpoint, definition: &Value) {
    let config = source.text.tokenizer_config.as_ref().unwrap_or(&Value::Null);
    let id = |key: &str| {
        let token = match &config[key] {
            Value::String(token) => token,
            other => other["content"].as_str()?,
        };
        vocabulary.tokens.iter().position(|known| known == token).map(|id| id as u32)
    };
    let bos = id("bos_token").or(source.architecture.bos);
    let eos = id("eos_token").or(source.architecture.eos.first().copied());
    let (padding, unknown) = (id("pad_token"), id("unk_token"));
    let adds = |key: &str, id: Option<u32>, at_end: bool| {
        let token = id.and_then(|id| vocabulary.tokens.get(id as usize));
        let stated = config[key].as_bool();
        token.is_some_and(|token| stated.unwrap_or_else(|| template_adds(definition, token, at_end)))
    };
    let (add_bos, add_eos) = (adds("add_bos_token", bos, false), adds("add_eos_token", eos, true));
    vocabulary.unknown = vocabulary.unknown.or(unknown);
    (vocabulary.bos, vocabulary.eos, vocabulary.padding) = (bos, eos, padding);
    (vocabulary.add_bos, vocabulary.add_eos) = (add_bos, add_eos);
}

/// Whether the post-processor of a tokenizer.json puts `token` first (or last) around a text.
fn template_adds(definition: &Value, token: &str, at_end: bool) -> bool {
    let processor = &definition["post_processor"];
    let parts = processor["processors"].as_array().map(Vec::as_slice);
    let parts = parts.unwrap_or(std::slice::from_ref(processor));
    parts.iter().filter_map(|part| part["single"].as_array()).any(|single| {
        let outer = if at_end { single.last() } else { single.first() };
        outer.is_some_and(|outer| outer["SpecialToken"]["id"].as_str() == Some(token))
    })
}

fn write_vocabulary(metadata: &mut GgufMetadata, vocabulary: GgufVocabulary) {
    let sentence_piece = vocabulary.model == "llama";
    let mut set = |key: &str, value| metadata.set(&format!("tokenizer.ggml.{key}"), value);
    set("model", GgufValue::String(vocabulary.model));
    set("pre", GgufValue::String(vocabulary.pre));
    set("tokens", GgufValue::Array(GgufArray::String(vocabulary.tokens)));
    let types = vocabulary.types.into_iter().map(|kind| kind as i32).collect();
    set("token_type", GgufValue::Array(GgufArray::I32(types)));
    if !vocabulary.scores.is_empty() {
        set("scores", GgufValue::Array(GgufArray::F32(vocabulary.scores)));
    }
    if !vocabulary.merges.is_empty() {
        set("merges", GgufValue::Array(GgufArray::String(vocabulary.merges)));
    }
    let ids = [
        ("bos_token_id", vocabulary.bos),
        ("eos_token_id", vocabulary.eos),
        ("unknown_token_id", vocabulary.unknown),
        ("padding_token_id", vocabulary.padding),
    ];
    for (key, id) in ids {
        if let Some(id) = id {
            set(key, GgufValue::U32(id));
        }
    }
    set("add_bos_token", GgufValue::Bool(vocabulary.add_bos));
    set("add_eos_token", GgufValue::Bool(vocabulary.add_eos));
    if sentence_piece {
        set("add_space_prefix", GgufValue::Bool(vocabulary.add_space_prefix));
    }
}

/// GGUF has two more keys for tokens that end a reply.
fn write_ends(metadata: &mut GgufMetadata, eos: &[u32]) {
    let first = metadata.get("tokenizer.ggml.eos_token_id").and_then(GgufValue::as_u64);
    let others = eos.iter().filter(|id| Some(u64::from(**id)) != first);
    for (key, id) in ["eot_token_id", "eom_token_id"].into_iter().zip(others) {
        metadata.set(&format!("tokenizer.ggml.{key}"), GgufValue::U32(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> GgufVocabulary {
        GgufVocabulary {
            tokens: ["<s>", "</s>", "a"].map(String::from).to_vec(),
            bos: Some(0),
            eos: Some(1),
            ..GgufVocabulary::default()
        }
    }

    #[test]
    fn a_begin_token_goes_through_the_post_processor_both_ways() {
        let vocabulary = GgufVocabulary { add_bos: true, ..vocabulary() };
        let definition = json!({ "post_processor": post_processor(&vocabulary) });
        assert!(template_adds(&definition, "<s>", false));
        assert!(!template_adds(&definition, "</s>", true));
        let nested = json!({ "post_processor": { "type": "Sequence", "processors": [
            { "type": "ByteLevel" }, definition["post_processor"].clone() ] } });
        assert!(template_adds(&nested, "<s>", false));
    }

    #[test]
    fn a_vocabulary_that_adds_nothing_has_no_post_processor() {
        assert_eq!(post_processor(&vocabulary()), Value::Null);
        assert!(!template_adds(&json!({ "post_processor": null }), "<s>", false));
    }

    #[test]
    fn every_end_token_finds_a_key() {
        let mut metadata = GgufMetadata::default();
        write_vocabulary(&mut metadata, vocabulary());
        write_ends(&mut metadata, &[2, 1]);
        let id = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}")).and_then(GgufValue::as_u64);
        assert_eq!((id("eos_token_id"), id("eot_token_id"), id("eom_token_id")), (Some(1), Some(2), None));
    }
}
