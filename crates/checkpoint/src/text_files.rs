//! Tokenizer, template and configuration as found beside the tensors; nothing is interpreted here.

use serde_json::Value;

/// The text that belongs to a model. The same type goes out again with a written model.
#[derive(Debug, Clone, Default)]
pub struct TextFiles {
    /// `config.json` as it was.
    pub config: Option<Value>,
    /// `tokenizer.json`, byte for byte.
    pub tokenizer_json: Option<Vec<u8>>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Value>,
    /// `generation_config.json`.
    pub generation_config: Option<Value>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<Value>,
    /// The chat template, from `chat_template.jinja`, `tokenizer_config.json` or GGUF metadata.
    pub chat_template: Option<String>,
    /// Other small files that travel along untouched: (file name, content).
    pub other: Vec<(String, Vec<u8>)>,
    /// All key-value pairs of a GGUF file.
    pub gguf: Option<GgufMetadata>,
}

/// The key-value pairs of a GGUF file, in file order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufMetadata {
    /// Keys (unique) and values.
    pub entries: Vec<(String, GgufValue)>,
}

impl GgufMetadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        let mut entries = self.entries.iter();
        entries.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Replaces the value of `key` in its place, or appends it.
    pub fn set(&mut self, key: &str, value: GgufValue) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_string(), value)),
        }
    }
}

/// A value of GGUF metadata.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are the types of the format
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(GgufArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of GGUF metadata; the format has no nested arrays that we accept.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are the types of the format
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl GgufValue {
    /// A non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            GgufValue::U8(value) => Some(value.into()),
            GgufValue::U16(value) => Some(value.into()),
            GgufValue::U32(value) => Some(value.into()),
            GgufValue::U64(value) => Some(value),
            GgufValue::I8(value) => value.try_into().ok(),
            GgufValue::I16(value) => value.try_into().ok(),
            GgufValue::I32(value) => value.try_into().ok(),
            GgufValue::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// A floating-point number of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            GgufValue::F32(value) => Some(value.into()),
            GgufValue::F64(value) => Some(value),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            GgufValue::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            GgufValue::String(value) => Some(value),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            GgufValue::Array(GgufArray::String(values)) => Some(values),
            _ => None,
        }
    }
}
