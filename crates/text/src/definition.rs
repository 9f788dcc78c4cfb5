//! A BPE tokenizer as data, and the checks that stand between a file and the tokenizer library.
//!
//! Both tokenizer.json and a GGUF vocabulary become a [`Definition`]. Only a checked one is built, and
//! the checks cover everything the library would answer with a panic or a silent surprise: merges that
//! lead to no token, ids twice or far outside, special tokens that would swallow ordinary text,
//! patterns that backtrack without end.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::error::{Error, shown};
use crate::regex_check;

/// Most tokens accepted; the largest vocabularies in use have about 260,000.
pub(crate) const MOST_TOKENS: usize = 4_000_000;
/// Longest token accepted, in bytes.
const LONGEST_TOKEN: usize = 64 * 1024;

/// An entry of `added_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) content: String,
    pub(crate) special: bool,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
}

/// A BPE tokenizer, complete.
#[derive(Debug, Clone, Default)]
pub(crate) struct Definition {
    pub(crate) vocabulary: Vec<(String, u32)>,
    pub(crate) merges: Vec<(String, String)>,
    pub(crate) added: Vec<Added>,
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) decoder: Value,
    pub(crate) unknown: Option<String>,
    pub(crate) subword_prefix: Option<String>,
    pub(crate) word_suffix: Option<String>,
    pub(crate) fuse_unknown: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) ignore_merges: bool,
}

/// How the decoder turns a token into bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// Each character stands for a byte.
    ByteLevel,
    /// `▁` is a space, `<0xNN>` a byte; `strip` removes the space the encoder put in front.
    SentencePiece { strip: bool },
}

impl Definition {
    /// Refuses what cannot be built or would not mean what it says.
    pub(crate) fn check(&self, file: &str) -> Result<(), Error> {
        let ids = self.check_vocabulary(file)?;
        self.check_added(file, &ids)?;
        self.check_merges(file, &ids)?;
        for (place, value) in [
            ("normalizer", &self.normalizer),
            ("pre_tokenizer", &self.pre_tokenizer),
            ("decoder", &self.decoder),
        ] {
            check_steps(file, place, value)?;
        }
        self.decoding(file).map(|_| ())
    }

    fn check_vocabulary(&self, file: &str) -> Result<HashMap<&str, u32>, Error> {
        let entries = self.vocabulary.len() + self.added.len();
        if self.vocabulary.is_empty() || entries > MOST_TOKENS {
            let problem = format!("{entries} tokens; 1 to {MOST_TOKENS} can be used");
            return Err(Error::file(file, "model.vocab", problem, COPY_AGAIN));
        }
        let mut ids = HashMap::with_capacity(entries);
        let mut owners: HashMap<u32, &str> = HashMap::with_capacity(entries);
        for (token, id) in &self.vocabulary {
            let place = || format!("model.vocab {}", shown(token));
            check_id(file, place, *id, entries)?;
            if token.len() > LONGEST_TOKEN {
                let problem = format!("the token has {} bytes, at most {LONGEST_TOKEN}", token.len());
                return Err(Error::file(file, place(), problem, COPY_AGAIN));
            }
            if ids.insert(token.as_str(), *id).is_some() {
                return Err(Error::file(file, place(), "the token appears twice", COPY_AGAIN));
            }
            if let Some(other) = owners.insert(*id, token) {
                let problem = format!("id {id} also belongs to {}", shown(other));
                return Err(Error::file(file, place(), problem, COPY_AGAIN));
            }
        }
        Ok(ids)
    }

    fn check_added(&self, file: &str, ids: &HashMap<&str, u32>) -> Result<(), Error> {
        let entries = self.vocabulary.len() + self.added.len();
        let owned: HashSet<u32> = ids.values().copied().collect();
        let mut contents = HashSet::new();
        let mut new_ids = HashSet::new();
        for added in &self.added {
            let place = || format!("added_tokens {}", shown(&added.content));
            let refuse = |problem: String| Err(Error::file(file, place(), problem, COPY_AGAIN));
            check_id(file, place, added.id, entries)?;
            if added.content.is_empty() {
                return refuse("an empty token would match everywhere".to_owned());
            }
            if !contents.insert(added.content.as_str()) {
                return refuse("the token appears twice".to_owned());
            }
            match ids.get(added.content.as_str()) {
                Some(id) if *id != added.id => {
                    return refuse(format!("id {} here, but {id} in model.vocab", added.id));
                }
                None if owned.contains(&added.id) || !new_ids.insert(added.id) => {
                    return refuse(format!("id {} already belongs to another token", added.id));
                }
                _ => {}
            }
            if added.special && is_ordinary_text(&added.content) {
                return refuse(
                    "a special token that is an ordinary word or space would swallow normal text".to_owned(),
                );
            }
        }
        Ok(())
    }

    fn check_merges(&self, file: &str, ids: &HashMap<&str, u32>) -> Result<(), Error> {
        let prefix = self.subword_prefix.as_deref().unwrap_or("");
        let longest = self.vocabulary.iter().map(|(token, _)| token.len()).max().unwrap_or(0);
        let mut product = String::new();
        for (index, (left, right)) in self.merges.iter().enumerate() {
            let refuse = |problem: String| {
                let place = format!("model.merges[{index}]");
                Err(Error::file(file, place, problem, COPY_AGAIN))
            };
            for half in [left, right] {
                if !ids.contains_key(half.as_str()) {
                    return refuse(format!("{} is not a token", shown(half)));
                }
            }
            let Some(tail) = right.strip_prefix(prefix) else {
                return refuse(format!("{} lacks the subword prefix", shown(right)));
            };
            if left.len() + tail.len() > longest {
                let length = left.len() + tail.len();
                return refuse(format!("makes {length} bytes, the longest token has {longest}"));
            }
            product.clear();
            product.push_str(left);
            product.push_str(tail);
            if !ids.contains_key(product.as_str()) {
                return refuse(format!("makes {}, which is not a token", shown(&product)));
            }
        }
        Ok(())
    }

    /// How tokens become bytes, from the `decoder` entry.
    pub(crate) fn decoding(&self, file: &str) -> Result<Decoding, Error> {
        let steps: Vec<&Value> = match self.decoder["type"].as_str() {
            Some("Sequence") => self.decoder["decoders"].as_array().into_iter().flatten().collect(),
            _ => vec![&self.decoder],
        };
        let has = |kind: &str| steps.iter().find(|step| step["type"] == kind);
        if has("ByteLevel").is_some() {
            return Ok(Decoding::ByteLevel);
        }
        if let Some(metaspace) = has("Metaspace") {
            let strip = metaspace["prepend_scheme"] != "never" && metaspace["add_prefix_space"] != false;
            return Ok(Decoding::SentencePiece { strip });
        }
        if has("ByteFallback").is_some() {
            return Ok(Decoding::SentencePiece { strip: has("Strip").is_some() });
        }
        let found = self.decoder["type"].as_str().unwrap_or("none").to_owned();
        Err(Error::file(
            file,
            "decoder",
            format!("{} is not supported", shown(&found)),
            "Byte-level and SentencePiece BPE can be used.",
        ))
    }

    /// One past the highest id.
    pub(crate) fn id_count(&self) -> usize {
        let added = self.added.iter().map(|added| added.id);
        let highest = self.vocabulary.iter().map(|(_, id)| *id).chain(added).max();
        highest.map_or(0, |id| id as usize + 1)
    }
}

pub(crate) const COPY_AGAIN: &str =
    "The file is damaged or was edited; copy it again from where the model came from.";

/// Ids may leave gaps, but not more gaps than there are tokens: tables are sized by the highest id.
fn check_id(file: &str, place: impl Fn() -> String, id: u32, entries: usize) -> Result<(), Error> {
    let limit = 2 * entries + 1024;
    if (id as usize) < limit {
        return Ok(());
    }
    let problem = format!("id {id} is far outside a vocabulary of {entries} tokens");
    Err(Error::file(file, place(), problem, COPY_AGAIN))
}

fn is_ordinary_text(content: &str) -> bool {
    content.chars().all(|c| c.is_alphanumeric() || c.is_whitespace())
}

/// Looks through the steps of a normalizer, pre-tokenizer or decoder for what must not run.
fn check_steps(file: &str, place: &str, value: &Value) -> Result<(), Error> {
    match value {
        Value::Object(map) => {
            if map.get("type").and_then(Value::as_str) == Some("Precompiled") {
                let remedy = "Byte-level and SentencePiece BPE can be used.";
                return Err(Error::file(file, place, "a precompiled map is not supported", remedy));
            }
            if let Some(Value::String(pattern)) = map.get("Regex") {
                let remedy = "Take the tokenizer from the model's publisher.";
                regex_check::check(pattern).map_err(|problem| Error::file(file, place, problem, remedy))?;
            }
            map.values().try_for_each(|inner| check_steps(file, place, inner))
        }
        Value::Array(items) => items.iter().try_for_each(|inner| check_steps(file, place, inner)),
        _ => Ok(()),
    }
}
