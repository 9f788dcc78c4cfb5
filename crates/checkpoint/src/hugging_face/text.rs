//! The text files of a directory, read as they are and written back.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::json as text;
use crate::text_files::TextFiles;

/// Files that travel along untouched.
const OTHER: [&str; 6] = [
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
];

/// Reads what is there; nothing but config.json is required, and that by the caller.
pub(crate) fn read(directory: &Path) -> Result<TextFiles, Error> {
    let bytes = |name: &str| match directory.join(name) {
        path if path.is_file() => text::read_bytes(&path).map(Some),
        _ => Ok(None),
    };
    let value = |name: &str| match directory.join(name) {
        path if path.is_file() => text::read(&path).map(Some),
        _ => Ok(None),
    };
    let tokenizer_config = value("tokenizer_config.json")?;
    let mut other = Vec::new();
    for name in OTHER {
        other.extend(bytes(name)?.map(|content| (name.to_string(), content)));
    }
    Ok(TextFiles {
        config: value("config.json")?,
        tokenizer_json: bytes("tokenizer.json")?,
        generation_config: value("generation_config.json")?,
        special_tokens_map: value("special_tokens_map.json")?,
        chat_template: chat_template(directory, tokenizer_config.as_ref())?,
        tokenizer_config,
        other,
        gguf: None,
    })
}

/// `chat_template.jinja` wins over tokenizer_config.json, as in transformers; of a list of
/// templates the one called `default` is taken.
fn chat_template(directory: &Path, config: Option<&Value>) -> Result<Option<String>, Error> {
    let path = directory.join("chat_template.jinja");
    if path.is_file() {
        let bytes = text::read_bytes(&path)?;
        let template = String::from_utf8(bytes).map_err(|error| {
            let place = format!("offset {}", error.utf8_error().valid_up_to());
            let remedy = "the file is damaged: copy it again";
            Error::input(&path, place, "this is not UTF-8 text", remedy)
        })?;
        return Ok(Some(template));
    }
    let found = match config.and_then(|config| config.get("chat_template")) {
        Some(Value::String(template)) => Some(template.clone()),
        Some(Value::Array(list)) => list
            .iter()
            .find(|item| item.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|item| item.get("template")?.as_str().map(str::to_string)),
        _ => None,
    };
    Ok(found)
}

/// A small file: its name and content.
pub(crate) type Named = (String, Vec<u8>);

/// Everything but config.json, as it shall be written.
pub(crate) fn files(files: &TextFiles) -> Vec<Named> {
    let mut written = Vec::new();
    if let Some(tokenizer) = &files.tokenizer_json {
        written.push(("tokenizer.json".to_string(), tokenizer.clone()));
    }
    written.extend(tokenizer_config(files).map(|config| json_file("tokenizer_config.json", &config)));
    let values = [
        ("generation_config.json", &files.generation_config),
        ("special_tokens_map.json", &files.special_tokens_map),
    ];
    for (name, value) in values {
        written.extend(value.as_ref().map(|value| json_file(name, value)));
    }
    // Templates that tokenizer_config.json does not hold live in a file of their own.
    if let Some(template) = &files.chat_template
        && (files.tokenizer_config.is_some() || files.tokenizer_json.is_none())
        && template_in(files.tokenizer_config.as_ref()) != Some(template)
    {
        written.push(("chat_template.jinja".into(), template.clone().into_bytes()));
    }
    let known = |name: &String| OTHER.contains(&name.as_str());
    written.extend(files.other.iter().filter(|(name, _)| known(name)).cloned());
    written
}

fn template_in(config: Option<&Value>) -> Option<&String> {
    match config?.get("chat_template") {
        Some(Value::String(template)) => Some(template),
        _ => None,
    }
}

/// The configuration as it was; for a model from GGUF the least that transformers loads.
fn tokenizer_config(files: &TextFiles) -> Option<Value> {
    if files.tokenizer_config.is_some() || files.tokenizer_json.is_none() {
        return files.tokenizer_config.clone();
    }
    let mut config = Map::new();
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    for (key, token) in gguf_special_tokens(files) {
        config.insert(key.into(), json!(token));
    }
    if let Some(template) = &files.chat_template {
        config.insert("chat_template".into(), json!(template));
    }
    Some(Value::Object(config))
}

fn gguf_special_tokens(files: &TextFiles) -> Vec<(&'static str, String)> {
    let keys = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let Some(metadata) = &files.gguf else {
        return Vec::new();
    };
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(|value| value.as_strings());
    let token = |key: &str| {
        let id = usize::try_from(metadata.get(key)?.as_u64()?).ok()?;
        tokens?.get(id).cloned()
    };
    let pairs = keys.into_iter();
    pairs.filter_map(|(name, key)| Some((name, token(key)?))).collect()
}

/// A value indented by two, as Python's `json.dump(indent=2)` does.
pub(crate) fn json_file(name: &str, value: &Value) -> Named {
    (name.to_string(), format!("{value:#}\n").into_bytes())
}

/// Whether a file of this name is part of a model directory and may be replaced with it.
pub(crate) fn is_model_file(name: &str) -> bool {
    let endings = [".safetensors", ".json", ".jinja", ".txt", ".model", ".tmp"];
    endings.iter().any(|ending| name.ends_with(ending))
}
