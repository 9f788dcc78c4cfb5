//! Where real files are found, and a small reader for GGUF metadata.

use std::collections::HashMap;
use std::path::PathBuf;

use halfbyte_text::GgufVocabulary;

/// A file below the folder HALFBYTE_ASSETS, or a visible line that it is missing.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("HALFBYTE_ASSETS") else {
        eprintln!("skipped: HALFBYTE_ASSETS is not set, {name} is needed");
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    if !path.exists() {
        eprintln!("skipped: {} is missing", path.display());
        return None;
    }
    Some(path)
}

pub(crate) fn bytes(name: &str) -> Option<Vec<u8>> {
    path(name).map(|path| std::fs::read(path).unwrap())
}

pub(crate) fn golden(name: &str) -> serde_json::Value {
    serde_json::from_slice(&golden_bytes(name)).unwrap()
}

pub(crate) fn golden_bytes(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::read(folder.join(name)).unwrap()
}

pub(crate) fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A metadata value, as far as tokenizers need it.
pub(crate) enum Meta {
    Number(f64),
    Text(String),
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

/// Metadata of a GGUF file that is known to be good.
pub(crate) fn metadata(name: &str) -> Option<HashMap<String, Meta>> {
    let file = std::fs::File::open(path(name)?).unwrap();
    let mut reader = Reader { input: std::io::BufReader::new(file) };
    reader.take(8);
    reader.number(10);
    let count = reader.number(10) as usize;
    let entry = |_| {
        let key = reader.text();
        let kind = reader.number(4) as u32;
        let value = reader.value(kind);
        (key, value)
    };
    Some((0..count).map(entry).collect())
}

struct Reader {
    input: std::io::BufReader<std::fs::File>,
}

impl Reader {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        std::io::Read::read_exact(&mut self.input, &mut bytes).unwrap();
        bytes
    }

    fn text(&mut self) -> String {
        let length = self.number(10) as usize;
        String::from_utf8(self.take(length)).unwrap()
    }

    fn number(&mut self, kind: u32) -> f64 {
        match kind {
            0 | 7 => f64::from(self.take(1)[0]),
            1 => f64::from(self.take(1)[0] as i8),
            2 | 3 => f64::from(u16::from_le_bytes(self.take(2).try_into().unwrap())),
            4 => f64::from(u32::from_le_bytes(self.take(4).try_into().unwrap())),
            5 => f64::from(i32::from_le_bytes(self.take(4).try_into().unwrap())),
            6 => f64::from(f32::from_le_bytes(self.take(4).try_into().unwrap())),
            10 | 11 => u64::from_le_bytes(self.take(8).try_into().unwrap()) as f64,
            12 => f64::from_le_bytes(self.take(8).try_into().unwrap()),
            _ => panic!("metadata type {kind}"),
        }
    }

    fn value(&mut self, kind: u32) -> Meta {
        match kind {
            8 => Meta::Text(self.text()),
            9 => {
                let (inner, count) = (self.number(4) as u32, self.number(10) as usize);
                match inner {
                    8 => Meta::Texts((0..count).map(|_| self.text()).collect()),
                    _ => Meta::Numbers((0..count).map(|_| self.number(inner)).collect()),
                }
            }
            _ => Meta::Number(self.number(kind)),
        }
    }
}

pub(crate) fn vocabulary(name: &str) -> Option<GgufVocabulary> {
    let mut fields = metadata(name)?;
    let mut take = |key: &str| fields.remove(&format!("tokenizer.ggml.{key}"));
    let text = |value: Option<Meta>| match value {
        Some(Meta::Text(text)) => text,
        _ => String::new(),
    };
    let texts = |value: Option<Meta>| match value {
        Some(Meta::Texts(texts)) => texts,
        _ => Vec::new(),
    };
    let numbers = |value: Option<Meta>| match value {
        Some(Meta::Numbers(numbers)) => numbers,
        _ => Vec::new(),
    };
    let number = |value: Option<Meta>| match value {
        Some(Meta::Number(number)) => Some(number as u32),
        _ => None,
    };
    Some(GgufVocabulary {
        model: text(take("model")),
        pre: text(take("pre")),
        tokens: texts(take("tokens")),
        types: numbers(take("token_type")).into_iter().map(|n| n as u32).collect(),
        scores: numbers(take("scores")).into_iter().map(|n| n as f32).collect(),
        merges: texts(take("merges")),
        bos: number(take("bos_token_id")),
        eos: number(take("eos_token_id")),
        unknown: number(take("unknown_token_id")),
        padding: number(take("padding_token_id")),
        add_bos: number(take("add_bos_token")) == Some(1),
        add_eos: number(take("add_eos_token")) == Some(1),
        add_space_prefix: number(take("add_space_prefix")) != Some(0),
    })
}
