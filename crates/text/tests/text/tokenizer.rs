//! Ids and decoded text equal those of the Python package, on awkward text and cut anywhere.

use halfbyte_text::{Stream, Tokenizer};
use serde_json::Value;

use crate::assets;

fn check_golden(tokenizer: &Tokenizer, name: &str) {
    let golden = assets::golden("tokenizer.json");
    let texts = golden["texts"].as_array().unwrap();
    let expected = &golden["tokenizers"][name];
    for (text, case) in texts.iter().zip(expected["cases"].as_array().unwrap()) {
        let text = text.as_str().unwrap();
        let ids = assets::ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
        let decoded = case["decoded"].as_str().unwrap_or(text);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), decoded, "{name}");
        let skipped = case["skipped"].as_str().unwrap_or(decoded);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), skipped, "{name}");
        check_stream(tokenizer, &ids, decoded);
    }
    for pair in expected["broken"].as_array().unwrap() {
        let ids = assets::ids(&pair[0]);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), pair[1].as_str().unwrap(), "{name}");
    }
}

fn check_stream(tokenizer: &Tokenizer, ids: &[u32], whole: &str) {
    let mut stream = Stream::new(tokenizer, false);
    let mut text = String::new();
    for &id in ids {
        let piece = stream.push(id).unwrap();
        assert!(whole.contains('\u{fffd}') || !piece.contains('\u{fffd}'), "half a character");
        text.push_str(&piece);
        assert!(whole.starts_with(&text));
    }
    assert_eq!(text + &stream.finish(), whole);
}

pub(crate) fn small() -> Tokenizer {
    Tokenizer::from_json(&assets::golden_bytes("small-tokenizer.json"), "small-tokenizer.json").unwrap()
}

#[test]
fn the_small_tokenizer_equals_python() {
    check_golden(&small(), "small");
}

#[test]
fn real_tokenizers_equal_python() {
    for name in ["qwen3", "qwen2_5", "llama3_2"] {
        let path = format!("tok/{name}/package/models/tokenizer.json");
        if let Some(bytes) = assets::bytes(&path) {
            check_golden(&Tokenizer::from_json(&bytes, &path).unwrap(), name);
        }
    }
}

#[test]
fn tokens_ids_and_special_flags_agree_with_the_file() {
    let tokenizer = small();
    let file: Value = assets::golden("small-tokenizer.json");
    for added in file["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as u32;
        let content = added["content"].as_str().unwrap();
        assert_eq!(tokenizer.id(content), Some(id));
        assert_eq!(tokenizer.token(id).as_deref(), Some(content));
        assert_eq!(tokenizer.is_special(id), added["special"].as_bool().unwrap());
        assert_eq!(tokenizer.encode(content).unwrap(), [id]);
    }
    let highest = tokenizer.vocab_size() as u32 - 1;
    assert!(tokenizer.token(highest).is_some());
    assert_eq!(tokenizer.token(highest + 1), None);
}

#[test]
fn padding_rows_have_no_text_and_foreign_ids_are_refused() {
    let tokenizer = small();
    let size = tokenizer.vocab_size() as u32;
    assert_eq!(tokenizer.decode(&[size], false).unwrap(), "");
    let error = tokenizer.decode(&[151_936], false).unwrap_err().to_string();
    assert!(error.contains("151936") && error.contains("small-tokenizer.json"), "{error}");
    assert!(tokenizer.check_model_vocabulary(size as usize).is_ok());
    let error = tokenizer.check_model_vocabulary(100).unwrap_err().to_string();
    assert!(error.contains("100 rows"), "{error}");
}

#[test]
fn long_runs_are_cut_as_short_ones_are() {
    // The pattern engine gives up after a million backtracks; these must not come near it.
    let tokenizer = small();
    let spaces = " ".repeat(2_000_000) + "the end";
    let ids = tokenizer.encode(&spaces).unwrap();
    let tail = tokenizer.encode(" the end").unwrap();
    assert!(ids.ends_with(&tail));
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), spaces);
    let lines = " \n".repeat(300_000) + "x";
    let ids = tokenizer.encode(&lines).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), lines);
    assert_eq!(ids.last(), tokenizer.encode("x").unwrap().last());
}
