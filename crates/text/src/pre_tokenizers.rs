//! How text is cut before merging: the names GGUF uses for it, and the patterns behind each name.
//!
//! A GGUF file stores only a name (`tokenizer.ggml.pre`); tokenizer.json stores the patterns. The
//! table translates both ways. Patterns are applied one after the other, each match is a piece.

use serde_json::{Value, json};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";

/// One way of cutting text.
pub(crate) struct PreTokenizer {
    /// Names in GGUF files; the first is the one written.
    pub(crate) names: &'static [&'static str],
    /// Applied in order.
    pub(crate) patterns: &'static [&'static str],
    /// Text is composed (NFC) first; GGUF does not say so.
    pub(crate) nfc: bool,
    /// A piece that is a token is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
}

const fn plain(names: &'static [&'static str], patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, patterns, nfc: false, ignore_merges: false }
}

pub(crate) const KNOWN: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[QWEN2],
        nfc: true,
        ignore_merges: false,
    },
    plain(&["qwen35"], &[QWEN35]),
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[LLAMA3],
        nfc: false,
        ignore_merges: true,
    },
    plain(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], nfc: false, ignore_merges: true },
    plain(&["gpt-2", "default", "phi-2", "mpt", "olmo", "roberta-bpe", ""], &[GPT2]),
    plain(&["smollm", "starcoder", "refact", "command-r", "codeshell"], &[DIGIT, GPT2]),
    plain(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    plain(&["deepseek-coder"], &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT]),
];

pub(crate) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    KNOWN.iter().find(|known| known.names.contains(&name))
}

pub(crate) fn by_patterns(patterns: &[String], ignore_merges: bool) -> Option<&'static PreTokenizer> {
    let same = |known: &&PreTokenizer| known.patterns == patterns;
    let matching: Vec<_> = KNOWN.iter().filter(same).collect();
    let exact = matching.iter().find(|known| known.ignore_merges == ignore_merges);
    exact.or(matching.first()).copied()
}

impl PreTokenizer {
    /// The `pre_tokenizer` entry of tokenizer.json.
    pub(crate) fn to_json(&self) -> Value {
        let mut steps: Vec<Value> = self.patterns.iter().map(|pattern| {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
        }).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// The patterns behind a `pre_tokenizer` entry, or which part GGUF has no words for.
pub(crate) fn patterns_of(pre_tokenizer: &Value) -> Result<Vec<String>, String> {
    let kind = pre_tokenizer["type"].as_str().unwrap_or("none");
    match kind {
        "Sequence" => {
            let steps = pre_tokenizer["pretokenizers"].as_array();
            let mut patterns = Vec::new();
            for step in steps.into_iter().flatten() {
                patterns.extend(patterns_of(step)?);
            }
            Ok(patterns)
        }
        "Split" if pre_tokenizer["invert"] != true && pre_tokenizer["behavior"] == "Isolated" => {
            let pattern = pre_tokenizer["pattern"]["Regex"].as_str();
            pattern.map(|p| vec![p.to_owned()]).ok_or_else(|| "Split by a plain string".to_owned())
        }
        "Digits" if pre_tokenizer["individual_digits"] == true => Ok(vec![DIGIT.to_owned()]),
        "ByteLevel" if pre_tokenizer["add_prefix_space"] == true => {
            Err("ByteLevel with add_prefix_space".to_owned())
        }
        "ByteLevel" if pre_tokenizer["use_regex"] == false => Ok(Vec::new()),
        "ByteLevel" => Ok(vec![GPT2.to_owned()]),
        other => Err(other.to_owned()),
    }
}
