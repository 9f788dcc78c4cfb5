//! Vocabularies from GGUF files give the expected ids, and survive the way to tokenizer.json and back.

use halfbyte_text::{GgufVocabulary, Tokenizer, gguf_from_tokenizer_json};

use crate::{assets, tokenizer};

/// The `.inp`/`.out` pair beside a vocabulary: texts, and the ids each must give.
fn expected(name: &str) -> Option<Vec<(String, Vec<u32>)>> {
    let texts = String::from_utf8(assets::bytes(&format!("vocabs/{name}.gguf.inp"))?).unwrap();
    let lines = String::from_utf8(assets::bytes(&format!("vocabs/{name}.gguf.out"))?).unwrap();
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let texts = texts.split("\n__ggml_vocab_test__\n").map(str::to_owned);
    Some(texts.zip(lines.lines().map(ids)).collect())
}

fn check_vocabulary(name: &str) {
    let file = format!("vocabs/{name}.gguf");
    let (Some(vocabulary), Some(cases)) = (assets::vocabulary(&file), expected(name)) else {
        return;
    };
    assert!(cases.len() > 40, "{name}");
    let direct = Tokenizer::from_gguf(&vocabulary, &file).unwrap();
    let json = vocabulary.to_tokenizer_json(&file).unwrap();
    let through_json = Tokenizer::from_json(json.as_bytes(), "tokenizer.json").unwrap();
    let back = gguf_from_tokenizer_json(json.as_bytes(), "tokenizer.json").unwrap();
    assert_eq!(back.model, vocabulary.model);
    let again = Tokenizer::from_gguf(&back, "again.gguf").unwrap();
    for (text, ids) in cases {
        assert_eq!(direct.decode(&ids, false).unwrap(), text, "{name}");
        assert_eq!(direct.encode(&text).unwrap(), ids, "{name}: {text:?}");
        assert_eq!(through_json.encode(&text).unwrap(), ids, "{name} as JSON: {text:?}");
        assert_eq!(again.encode(&text).unwrap(), ids, "{name} there and back: {text:?}");
    }
}

macro_rules! vocabularies {
    ($($test:ident $name:literal)*) => { $(
        #[test]
        fn $test() {
            check_vocabulary(concat!("ggml-vocab-", $name));
        }
    )* };
}

vocabularies! {
    qwen2_vocabulary_gives_the_expected_ids "qwen2"
    qwen35_vocabulary_gives_the_expected_ids "qwen35"
    llama_bpe_vocabulary_gives_the_expected_ids "llama-bpe"
    llama_spm_vocabulary_gives_the_expected_ids "llama-spm"
    phi_3_vocabulary_gives_the_expected_ids "phi-3"
    gpt_2_vocabulary_gives_the_expected_ids "gpt-2"
    mpt_vocabulary_gives_the_expected_ids "mpt"
    starcoder_vocabulary_gives_the_expected_ids "starcoder"
    refact_vocabulary_gives_the_expected_ids "refact"
    command_r_vocabulary_gives_the_expected_ids "command-r"
    falcon_vocabulary_gives_the_expected_ids "falcon"
    deepseek_coder_vocabulary_gives_the_expected_ids "deepseek-coder"
}

#[test]
fn vocabularies_without_expected_ids_load_and_other_kinds_are_refused_by_name() {
    for name in ["aquila", "baichuan", "gpt-neox"] {
        let file = format!("vocabs/ggml-vocab-{name}.gguf");
        if let Some(vocabulary) = assets::vocabulary(&file) {
            let tokenizer = Tokenizer::from_gguf(&vocabulary, &file).unwrap();
            let ids = tokenizer.encode("Hello, 你好 \u{1f31f}").unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), "Hello, 你好 \u{1f31f}", "{name}");
        }
    }
    for (name, place) in [("bert-bge", ".model"), ("gemma-4", ".model"), ("deepseek-llm", ".pre")] {
        let file = format!("vocabs/ggml-vocab-{name}.gguf");
        if let Some(vocabulary) = assets::vocabulary(&file) {
            let error = Tokenizer::from_gguf(&vocabulary, &file).unwrap_err().to_string();
            assert!(error.contains(&file) && error.contains(place), "{error}");
        }
    }
}

#[test]
fn the_small_tokenizer_survives_the_way_through_gguf() {
    let bytes = assets::golden_bytes("small-tokenizer.json");
    let vocabulary = gguf_from_tokenizer_json(&bytes, "small").unwrap();
    assert_eq!((vocabulary.model.as_str(), vocabulary.pre.as_str()), ("gpt2", "qwen2"));
    let (before, after) = (tokenizer::small(), Tokenizer::from_gguf(&vocabulary, "small.gguf").unwrap());
    let golden = assets::golden("tokenizer.json");
    for text in golden["texts"].as_array().unwrap() {
        let text = text.as_str().unwrap();
        let ids = before.encode(text).unwrap();
        assert_eq!(after.encode(text).unwrap(), ids);
        assert_eq!(after.decode(&ids, true).unwrap(), before.decode(&ids, true).unwrap());
    }
}

#[test]
fn real_tokenizers_survive_the_way_through_gguf() {
    for (model, pre) in [("qwen3", "qwen2"), ("llama3_2", "llama-bpe")] {
        let path = format!("tok/{model}/package/models/tokenizer.json");
        let Some(bytes) = assets::bytes(&path) else {
            continue;
        };
        let vocabulary = gguf_from_tokenizer_json(&bytes, &path).unwrap();
        assert_eq!(vocabulary.pre, pre);
        let before = Tokenizer::from_json(&bytes, &path).unwrap();
        let after = Tokenizer::from_gguf(&vocabulary, "x.gguf").unwrap();
        for text in assets::golden("tokenizer.json")["texts"].as_array().unwrap() {
            let text = text.as_str().unwrap();
            assert_eq!(after.encode(text).unwrap(), before.encode(text).unwrap(), "{model} {text:?}");
        }
    }
}

/// A SentencePiece vocabulary small enough to reason about.
pub(crate) fn small_pieces() -> GgufVocabulary {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    let mut types = vec![2, 3, 3];
    types.resize(259, 6);
    for piece in ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "誰"] {
        tokens.push(piece.to_owned());
        types.push(1);
    }
    GgufVocabulary {
        model: "llama".to_owned(),
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        tokens,
        types,
        add_space_prefix: true,
        ..GgufVocabulary::default()
    }
}

#[test]
fn pieces_merge_by_score_and_unknown_text_falls_back_to_bytes() {
    let vocabulary = small_pieces();
    let tokenizer = Tokenizer::from_gguf(&vocabulary, "small.gguf").unwrap();
    let hello = tokenizer.id("▁hello").unwrap();
    assert_eq!(tokenizer.encode("hello hello").unwrap(), [hello, hello]);
    let text = "hello 誰 \u{1f31f}\n";
    let ids = tokenizer.encode(text).unwrap();
    assert!(ids.contains(&(3 + 0xf0)) && ids.contains(&(3 + 0x0a)));
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    let json = vocabulary.to_tokenizer_json("small.gguf").unwrap();
    let back = gguf_from_tokenizer_json(json.as_bytes(), "tokenizer.json").unwrap();
    assert_eq!((back.types, back.tokens), (vocabulary.types, vocabulary.tokens));
    assert!(back.add_space_prefix);
}
