//! The vocabulary of a GGUF file <-> a tokenizer definition, both ways.
//!
//! GGUF stores tokens by index with a type each, merges for byte-level BPE (`gpt2`) and scores for
//! SentencePiece (`llama`). From scores the merges follow: a pair merges earlier the higher the score
//! of the token it makes. In the other direction the rank of a merge becomes the score.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::definition::{Added, COPY_AGAIN, Decoding, Definition, MOST_TOKENS};
use crate::error::{Error, shown};
use crate::pre_tokenizers;
use crate::tokenizer::byte_token;

/// Values of `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: u32 = 1;
    pub(super) const UNKNOWN: u32 = 2;
    pub(super) const CONTROL: u32 = 3;
    pub(super) const USER: u32 = 4;
    pub(super) const UNUSED: u32 = 5;
    pub(super) const BYTE: u32 = 6;
}

/// Work allowed for deriving merges, in bytes compared; a real vocabulary needs a few million.
const MOST_SPLIT_WORK: usize = 1 << 30;

/// What a GGUF file says about its tokenizer, field by field (`tokenizer.ggml.*`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GgufVocabulary {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `pre`: name of the way text is cut; empty if the file has none.
    pub pre: String,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `token_type`, by id; empty means all normal.
    pub types: Vec<u32>,
    /// `scores`, by id; needed for `llama`.
    pub scores: Vec<f32>,
    /// `merges`, `"a b"`; needed for `gpt2`.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: bool,
    /// `add_eos_token`.
    pub add_eos: bool,
    /// `add_space_prefix` (GGUF's default is true; only `llama` uses it).
    pub add_space_prefix: bool,
}

impl GgufVocabulary {
    /// A tokenizer.json that gives the same ids; `file` is the name used in errors.
    pub fn to_tokenizer_json(&self, file: &str) -> Result<String, Error> {
        Ok(self.definition(file)?.to_json())
    }

    /// Text of a token such as `bos`, for the chat template.
    pub fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    pub(crate) fn definition(&self, file: &str) -> Result<Definition, Error> {
        self.check_lengths(file)?;
        let definition = match self.model.as_str() {
            "gpt2" => self.byte_level(file)?,
            "llama" => self.sentence_piece(file)?,
            other => {
                let problem = format!("{} is not supported", shown(other));
                let remedy = "gpt2 and llama vocabularies can be used.";
                return Err(Error::file(file, "tokenizer.ggml.model", problem, remedy));
            }
        };
        definition.check(file)?;
        Ok(definition)
    }

    fn check_lengths(&self, file: &str) -> Result<(), Error> {
        let count = self.tokens.len();
        if count == 0 || count > MOST_TOKENS {
            let problem = format!("{count} tokens; 1 to {MOST_TOKENS} can be used");
            return Err(Error::file(file, "tokenizer.ggml.tokens", problem, COPY_AGAIN));
        }
        for (place, length) in [("token_type", self.types.len()), ("scores", self.scores.len())] {
            if length != 0 && length != count {
                let place = format!("tokenizer.ggml.{place}");
                let problem = format!("{length} entries for {count} tokens");
                return Err(Error::file(file, place, problem, COPY_AGAIN));
            }
        }
        Ok(())
    }

    fn kind(&self, id: usize) -> u32 {
        self.types.get(id).copied().unwrap_or(kind::NORMAL)
    }

    fn byte_level(&self, file: &str) -> Result<Definition, Error> {
        let Some(pre) = pre_tokenizers::by_name(&self.pre) else {
            let problem = format!("{} is not a known way to cut text", shown(&self.pre));
            let names: Vec<&str> = pre_tokenizers::KNOWN.iter().map(|known| known.names[0]).collect();
            let remedy =
                format!("Known: {}. Use the model's Hugging Face directory instead.", names.join(", "));
            return Err(Error::file(file, "tokenizer.ggml.pre", problem, remedy));
        };
        Ok(Definition {
            vocabulary: self.vocabulary(),
            merges: self.split_merges(file)?,
            added: self.added(),
            normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
            pre_tokenizer: pre.to_json(),
            decoder: json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
            ignore_merges: pre.ignore_merges,
            ..Definition::default()
        })
    }

    fn split_merges(&self, file: &str) -> Result<Vec<(String, String)>, Error> {
        let split = |(index, merge): (usize, &String)| {
            // The first half is at least one character, so a space at the very start belongs to it.
            let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            let Some((at, _)) = space else {
                let place = format!("tokenizer.ggml.merges[{index}]");
                let problem = format!("{} has no space between two tokens", shown(merge));
                return Err(Error::file(file, place, problem, COPY_AGAIN));
            };
            Ok((merge[..at].to_owned(), merge[at + 1..].to_owned()))
        };
        self.merges.iter().enumerate().map(split).collect()
    }

    fn sentence_piece(&self, file: &str) -> Result<Definition, Error> {
        if self.scores.is_empty() {
            let problem = "a llama vocabulary needs scores";
            return Err(Error::file(file, "tokenizer.ggml.scores", problem, COPY_AGAIN));
        }
        if let Some(at) = self.scores.iter().position(|score| !score.is_finite()) {
            let place = format!("tokenizer.ggml.scores[{at}]");
            return Err(Error::file(file, place, "the score is not a number", COPY_AGAIN));
        }
        let mut normalizer = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
        let mut decoder = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.add_space_prefix {
            normalizer.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoder.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = (0..self.tokens.len()).find(|&id| self.kind(id) == kind::UNKNOWN);
        let unknown = unknown.or(self.unknown.map(|id| id as usize));
        Ok(Definition {
            vocabulary: self.vocabulary(),
            merges: self.derived_merges(file)?,
            added: self.added(),
            normalizer: json!({"type": "Sequence", "normalizers": normalizer}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoder}),
            unknown: unknown.and_then(|id| self.tokens.get(id).cloned()),
            fuse_unknown: true,
            byte_fallback: true,
            ..Definition::default()
        })
    }

    /// Every split of a token into two tokens, ordered by the score of the whole, best first.
    fn derived_merges(&self, file: &str) -> Result<Vec<(String, String)>, Error> {
        let work: usize = self.tokens.iter().map(|token| token.len().saturating_mul(token.len())).sum();
        if work > MOST_SPLIT_WORK {
            let problem = "the tokens are far too long for a SentencePiece vocabulary";
            return Err(Error::file(file, "tokenizer.ggml.tokens", problem, COPY_AGAIN));
        }
        let mergeable = |id: &usize| matches!(self.kind(*id), kind::NORMAL | kind::USER);
        let ids: HashMap<&str, usize> =
            (0..self.tokens.len()).filter(mergeable).map(|id| (self.tokens[id].as_str(), id)).collect();
        let mut found: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
        for id in (0..self.tokens.len()).filter(mergeable) {
            let token = self.tokens[id].as_str();
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&first), true) = (ids.get(left), ids.contains_key(right)) {
                    found.push((self.scores[id], id, first, left, right));
                }
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        Ok(found.into_iter().map(|(.., l, r)| (l.to_owned(), r.to_owned())).collect())
    }

    fn vocabulary(&self) -> Vec<(String, u32)> {
        let last_used = (0..self.tokens.len()).rev().find(|&id| self.kind(id) != kind::UNUSED);
        // Padding at the end is rows without tokens; an unused token between others stays.
        let used = last_used.map_or(0, |id| id + 1);
        self.tokens[..used].iter().zip(0..).map(|(token, id)| (token.clone(), id)).collect()
    }

    fn added(&self) -> Vec<Added> {
        let added = |id: usize| {
            let special = match self.kind(id) {
                kind::CONTROL => true,
                kind::UNKNOWN => self.model == "llama",
                kind::USER => false,
                _ => return None,
            };
            Some(Added {
                id: id as u32,
                content: self.tokens[id].clone(),
                special,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
            })
        };
        (0..self.tokens.len()).filter_map(added).collect()
    }
}

/// The GGUF vocabulary that gives the same ids as a tokenizer.json; `file` is the name used in errors.
///
/// tokenizer.json does not say which tokens begin and end a text: `bos`, `eos` and `padding` are left
/// empty for the caller, who has the model's configuration.
pub fn gguf_from_tokenizer_json(bytes: &[u8], file: &str) -> Result<GgufVocabulary, Error> {
    let definition = Definition::from_json(bytes, file)?;
    let byte_level = definition.decoding(file)? == Decoding::ByteLevel;
    let mut vocabulary = empty_rows(definition.id_count());
    for (token, id) in &definition.vocabulary {
        let fallback = !byte_level && byte_token(token).is_some();
        vocabulary.tokens[*id as usize] = token.clone();
        vocabulary.types[*id as usize] = if fallback { kind::BYTE } else { kind::NORMAL };
        if definition.unknown.as_deref() == Some(token.as_str()) {
            vocabulary.types[*id as usize] = kind::UNKNOWN;
            vocabulary.unknown = Some(*id);
        }
    }
    for added in &definition.added {
        let row = added.id as usize;
        vocabulary.tokens[row] = added.content.clone();
        if vocabulary.types[row] != kind::UNKNOWN {
            vocabulary.types[row] = if added.special { kind::CONTROL } else { kind::USER };
        }
    }
    if byte_level {
        fill_byte_level(&mut vocabulary, &definition, file)?;
    } else {
        fill_sentence_piece(&mut vocabulary, &definition);
    }
    Ok(vocabulary)
}

fn empty_rows(count: usize) -> GgufVocabulary {
    GgufVocabulary {
        tokens: (0..count).map(|id| format!("[PAD{id}]")).collect(),
        types: vec![kind::UNUSED; count],
        ..GgufVocabulary::default()
    }
}

fn fill_byte_level(
    vocabulary: &mut GgufVocabulary,
    definition: &Definition,
    file: &str,
) -> Result<(), Error> {
    let refuse = |problem: String| {
        let remedy = "Keep this model as a Hugging Face directory.";
        Error::file(file, "pre_tokenizer", problem, remedy)
    };
    let patterns = pre_tokenizers::patterns_of(&definition.pre_tokenizer)
        .map_err(|part| refuse(format!("GGUF has no words for {}", shown(&part))))?;
    let pre = pre_tokenizers::by_patterns(&patterns, definition.ignore_merges)
        .ok_or_else(|| refuse("GGUF has no name for this way of cutting text".to_owned()))?;
    vocabulary.model = "gpt2".to_owned();
    vocabulary.pre = pre.names[0].to_owned();
    vocabulary.merges = definition.merges.iter().map(|(l, r)| format!("{l} {r}")).collect();
    Ok(())
}

fn fill_sentence_piece(vocabulary: &mut GgufVocabulary, definition: &Definition) {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (left, right)) in definition.merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let count = definition.merges.len();
    let score = |token: &String| -(ranks.get(token).copied().unwrap_or(count) as f32);
    vocabulary.model = "llama".to_owned();
    vocabulary.pre = "default".to_owned();
    vocabulary.scores = vocabulary.tokens.iter().map(score).collect();
    let text = definition.normalizer.to_string() + &definition.pre_tokenizer.to_string();
    vocabulary.add_space_prefix = text.contains("Prepend") || text.contains("Metaspace");
}
