//! tokenizer.json <-> [`Definition`], in one pass over the bytes, with duplicate keys kept for the checks.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::definition::{Added, COPY_AGAIN, Definition};
use crate::error::{Error, shown};

#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileAdded>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(serde::Deserialize)]
struct FileAdded {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(serde::Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(default)]
    vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// The entries as they stand in the file; a map type would hide a token that appears twice.
#[derive(Default)]
struct Vocabulary(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocabulary;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from token to id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocabulary(entries))
            }
            // Unigram models list pairs; they are refused by their type, with a better message.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocabulary::default())
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// `"a b"` in older files, `["a", "b"]` in newer ones.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge, \"a b\" or [\"a\", \"b\"]")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) => Ok(Merge(left.to_owned(), right.to_owned())),
                    None => Err(E::custom(format!("merge {} has no space", shown(text)))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let missing = || serde::de::Error::custom("a merge needs two tokens");
                let left = seq.next_element()?.ok_or_else(missing)?;
                let right = seq.next_element()?.ok_or_else(missing)?;
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(missing()),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

impl Definition {
    /// Reads and checks a tokenizer.json.
    pub(crate) fn from_json(bytes: &[u8], file: &str) -> Result<Self, Error> {
        let read: File = serde_json::from_slice(bytes).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            Error::file(file, place, error.to_string(), COPY_AGAIN)
        })?;
        refuse_other_models(&read.model, file)?;
        let definition = read.into_definition();
        definition.check(file)?;
        Ok(definition)
    }

    /// The tokenizer.json of this definition.
    pub(crate) fn to_json(&self) -> String {
        let added: Vec<Value> = self.added.iter().map(Added::to_json).collect();
        let mut vocabulary: Vec<&(String, u32)> = self.vocabulary.iter().collect();
        vocabulary.sort_by_key(|(_, id)| *id);
        let vocabulary: Map<String, Value> =
            vocabulary.into_iter().map(|(token, id)| (token.clone(), json!(id))).collect();
        let file = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": null,
            "decoder": self.decoder,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": self.unknown,
                "continuing_subword_prefix": self.subword_prefix,
                "end_of_word_suffix": self.word_suffix,
                "fuse_unk": self.fuse_unknown,
                "byte_fallback": self.byte_fallback,
                "ignore_merges": self.ignore_merges,
                "vocab": vocabulary,
                "merges": self.merges,
            },
        });
        file.to_string()
    }
}

impl Added {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "content": self.content,
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": self.normalized,
            "special": self.special,
        })
    }
}

impl File {
    fn into_definition(self) -> Definition {
        let model = self.model;
        let added = self.added_tokens.into_iter().map(|added| Added {
            id: added.id,
            content: added.content,
            special: added.special,
            single_word: added.single_word,
            lstrip: added.lstrip,
            rstrip: added.rstrip,
            normalized: added.normalized,
        });
        let some_text = |text: Option<String>| text.filter(|text| !text.is_empty());
        Definition {
            vocabulary: model.vocab.0,
            merges: model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect(),
            added: added.collect(),
            normalizer: self.normalizer,
            pre_tokenizer: self.pre_tokenizer,
            decoder: self.decoder,
            unknown: model.unk_token,
            subword_prefix: some_text(model.continuing_subword_prefix),
            word_suffix: some_text(model.end_of_word_suffix),
            fuse_unknown: model.fuse_unk.unwrap_or(false),
            byte_fallback: model.byte_fallback.unwrap_or(false),
            ignore_merges: model.ignore_merges.unwrap_or(false),
        }
    }
}

fn refuse_other_models(model: &Model, file: &str) -> Result<(), Error> {
    let kind = model.kind.as_deref().unwrap_or("BPE");
    if kind != "BPE" {
        let problem = format!("{} is not supported", shown(kind));
        let remedy = "Byte-level and SentencePiece BPE can be used.";
        return Err(Error::file(file, "model.type", problem, remedy));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        let problem = "dropout makes the same text give other ids each time";
        let remedy = "Set model.dropout to null.";
        return Err(Error::file(file, "model.dropout", problem, remedy));
    }
    Ok(())
}
