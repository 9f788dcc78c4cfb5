//! Damaged and malicious tokenizer files end in an error that names file and place, never in a panic.

use halfbyte_text::{Error, GgufVocabulary, Tokenizer};
use serde_json::{Value, json};

use crate::{assets, gguf};

fn refusal(change: impl Fn(&mut Value)) -> Error {
    let mut file = assets::golden("small-tokenizer.json");
    change(&mut file);
    Tokenizer::from_json(file.to_string().as_bytes(), "models/tokenizer.json").unwrap_err()
}

fn assert_names(error: &Error, place: &str) {
    let text = error.to_string();
    assert!(text.starts_with("models/tokenizer.json: "), "{text}");
    assert!(text.contains(place), "{text} should name {place}");
}

fn pattern(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

#[test]
fn row_32_nested_quantifiers_are_refused_and_linear_ones_do_not_hang() {
    let error = refusal(|file| file["pre_tokenizer"] = pattern(r"(a+)+(?!b)|(?:\s*)*$(?=x)"));
    assert_names(&error, "pre_tokenizer");
    let error = refusal(|file| {
        file["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "((x+)*)+\\1"}, "content": ""})
    });
    assert_names(&error, "normalizer");
    let error = refusal(|file| file["pre_tokenizer"] = pattern("(unclosed"));
    assert_names(&error, "pre_tokenizer");
    let error = refusal(|file| file["pre_tokenizer"] = pattern(&"a{1000}".repeat(1100)));
    assert_names(&error, "pre_tokenizer");

    let mut file = assets::golden("small-tokenizer.json");
    file["pre_tokenizer"]["pretokenizers"][0] = pattern("(a+)+$");
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), "x").unwrap();
    let text = "a".repeat(20_000) + "b";
    assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap(), false).unwrap(), text);
}

#[test]
fn row_33_merges_that_lead_nowhere_are_refused() {
    let longest = "the world".repeat(100);
    for merge in [
        json!(["the", longest]),
        json!(["x", "missing"]),
        json!("noSpace"),
        json!(["a"]),
        json!(["a", "b", "c"]),
        json!(7),
    ] {
        let error = refusal(|file| file["model"]["merges"].as_array_mut().unwrap().push(merge.clone()));
        assert!(error.to_string().starts_with("models/tokenizer.json: "), "{error}");
    }
    // Both halves are tokens, together they are longer than any token.
    let error = refusal(|file| {
        let tokens: Vec<String> = file["model"]["vocab"].as_object().unwrap().keys().cloned().collect();
        let longest = tokens.iter().max_by_key(|token| token.len()).unwrap().clone();
        file["model"]["merges"].as_array_mut().unwrap().push(json!([longest, longest]));
    });
    assert_names(&error, "model.merges[");
    let error = refusal(|file| file["model"]["continuing_subword_prefix"] = json!("##"));
    assert_names(&error, "model.merges[0]");
}

#[test]
fn row_34_ids_outside_or_twice_are_refused() {
    let error = refusal(|file| file["model"]["vocab"]["a"] = json!(4_294_967_295u32));
    assert_names(&error, "model.vocab");
    let error = refusal(|file| file["model"]["vocab"]["a"] = json!(3));
    assert_names(&error, "also belongs to");
    let error = refusal(|file| file["model"]["vocab"]["a"] = json!(-1));
    assert!(error.to_string().contains("line 1 column"), "{error}");
    let error = refusal(|file| file["added_tokens"][0]["id"] = json!(4_000_000_000u32));
    assert_names(&error, "added_tokens");
    let error = refusal(|file| file["added_tokens"][0]["id"] = json!(5));
    assert_names(&error, "already belongs");
    let error = refusal(|file| {
        let twin = file["added_tokens"][0].clone();
        file["added_tokens"].as_array_mut().unwrap().push(twin);
    });
    assert_names(&error, "twice");
    let text = String::from_utf8(assets::golden_bytes("small-tokenizer.json")).unwrap();
    let twice = text.replacen("\"vocab\":{", "\"vocab\":{\"a\":9,", 1);
    let error = Tokenizer::from_json(twice.as_bytes(), "models/tokenizer.json").unwrap_err();
    assert_names(&error, "model.vocab");
}

#[test]
fn row_35_special_tokens_that_collide_with_text_are_refused() {
    for content in ["", " ", "the", "hello there", "a", "\n", "誰"] {
        let error = refusal(|file| file["added_tokens"][0]["content"] = json!(content));
        assert_names(&error, "added_tokens");
    }
    let error = refusal(|file| {
        file["added_tokens"][0]["content"] = json!("!");
    });
    assert_names(&error, "in model.vocab");
}

#[test]
fn other_kinds_of_tokenizer_are_refused_by_name() {
    let error =
        refusal(|file| file["model"] = json!({"type": "Unigram", "vocab": [["a", 0.5]], "unk_id": 0}));
    assert_names(&error, "Unigram");
    let error =
        refusal(|file| file["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
    assert_names(&error, "WordPiece");
    let error = refusal(|file| file["decoder"] = Value::Null);
    assert_names(&error, "decoder");
    let error = refusal(|file| file["model"]["dropout"] = json!(0.5));
    assert_names(&error, "dropout");
    let error =
        refusal(|file| file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}));
    assert_names(&error, "precompiled");
    let error = refusal(|file| file["model"]["vocab"] = json!({}));
    assert_names(&error, "model.vocab");
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(Tokenizer::from_json(deep.as_bytes(), "x").is_err());
    assert!(Tokenizer::from_json(b"", "x").is_err());
    assert!(Tokenizer::from_json(b"\xff\xfe{}", "x").is_err());
}

/// Numbers for mutations; the same on every run.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn mutated_files_never_panic() {
    let original = assets::golden_bytes("small-tokenizer.json");
    let mut state = 7;
    for _ in 0..400 {
        let mut bytes = original.clone();
        for _ in 0..=next(&mut state) % 4 {
            let at = next(&mut state) % bytes.len();
            match next(&mut state) % 3 {
                0 => bytes[at] = b"0\"{}[],:\\9az\x00\xff"[next(&mut state) % 14],
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.truncate(at.max(1)),
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes, "x") {
            let ids = tokenizer.encode("the world's 誰 <|im_end|> \u{1f31f}").unwrap();
            tokenizer.decode(&ids, true).unwrap();
        }
    }
}

#[test]
fn broken_gguf_vocabularies_are_refused() {
    type Change = fn(&mut GgufVocabulary);
    let cases: [(&str, Change); 9] = [
        ("tokenizer.ggml.tokens", |v| v.tokens.clear()),
        ("tokenizer.ggml.token_type", |v| v.types.truncate(5)),
        ("tokenizer.ggml.scores", |v| v.scores.truncate(5)),
        ("tokenizer.ggml.scores", |v| v.scores.clear()),
        ("tokenizer.ggml.scores[7]", |v| v.scores[7] = f32::NAN),
        ("appears twice", |v| v.tokens[260] = v.tokens[261].clone()),
        ("tokenizer.ggml.tokens", |v| v.tokens[260] = "x".repeat(1 << 20)),
        ("tokenizer.ggml.model", |v| v.model = "bert".to_owned()),
        ("tokenizer.ggml.pre", |v| (v.model, v.pre) = ("gpt2".to_owned(), "no-such".to_owned())),
    ];
    for (place, change) in cases {
        let mut vocabulary = gguf::small_pieces();
        change(&mut vocabulary);
        let error = Tokenizer::from_gguf(&vocabulary, "model.gguf").unwrap_err().to_string();
        assert!(error.contains("model.gguf") && error.contains(place), "{error}");
    }
    let mut vocabulary = gguf::small_pieces();
    vocabulary.model = "gpt2".to_owned();
    vocabulary.merges = vec!["h e".to_owned(), "nospace".to_owned()];
    let error = Tokenizer::from_gguf(&vocabulary, "model.gguf").unwrap_err().to_string();
    assert!(error.contains("merges[1]"), "{error}");
}
