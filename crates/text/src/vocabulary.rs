//! Texts -> a byte-level BPE vocabulary of their own, as a tokenizer.json.
//!
//! It cuts text as Qwen2 does, so GGUF has a name for it. While it is learnt, Chinese characters stand
//! apart besides: each becomes a token, where whole phrases would otherwise, and a phrase that was
//! never seen would share nothing with those that were.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Trainer,
};

use crate::byte_level;
use crate::definition::{Added, Definition};
use crate::error::Error;
use crate::pre_tokenizers;

/// Learns at most `size` tokens, those of `special` last; what comes only once is worth no token.
pub fn train_tokenizer(texts: &[String], size: usize, special: &[&str]) -> Result<String, Error> {
    let failed = |error: tokenizers::Error| {
        Error::file("a new tokenizer", "training", error.to_string(), "Give other texts.")
    };
    let (model, cut) = learn(texts, size.saturating_sub(special.len())).map_err(failed)?;
    let mut vocabulary: Vec<(String, u32)> = model.get_vocab().into_iter().collect();
    vocabulary.sort_by_key(|(_, id)| *id);
    let added = (vocabulary.len() as u32..).zip(special).map(|(id, text)| Added {
        id,
        content: (*text).to_owned(),
        special: true,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
    });
    let definition = Definition {
        merges: merges(&model).map_err(|error| failed(error.into()))?,
        vocabulary,
        added: added.collect(),
        pre_tokenizer: cut,
        normalizer: json!({ "type": "NFC" }),
        decoder: json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }),
        ..Definition::default()
    };
    definition.check("a new tokenizer")?;
    Ok(definition.to_json())
}

/// The model, and how text is cut for it.
fn learn(texts: &[String], size: usize) -> tokenizers::Result<(BPE, Value)> {
    let cut = pre_tokenizers::by_name("qwen2").ok_or("qwen2 is not known")?.to_json();
    let character = json!({
        "type": "Split", "pattern": { "Regex": r"\p{Han}" }, "behavior": "Isolated", "invert": false,
    });
    let apart = json!({ "type": "Sequence", "pretokenizers": [character, cut.clone()] });
    let apart: PreTokenizerWrapper = serde_json::from_value(apart)?;
    let bytes: HashSet<char> = (0..=255).map(byte_level::character).collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(size)
        .min_frequency(2)
        .show_progress(false)
        .initial_alphabet(bytes)
        .build();
    trainer.feed(texts.iter(), |text| {
        let mut pieces = PreTokenizedString::from(text);
        apart.pre_tokenize(&mut pieces)?;
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        Ok(splits.into_iter().map(|(piece, _, _)| piece.to_owned()).collect())
    })?;
    let mut model = BPE::default();
    trainer.train(&mut model)?;
    Ok((model, cut))
}

/// The library gives its merges only as JSON.
fn merges(model: &BPE) -> serde_json::Result<Vec<(String, String)>> {
    let mut json = serde_json::to_value(model)?;
    serde_json::from_value(json["merges"].take())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    fn texts() -> Vec<String> {
        ["Who are you? I am a small assistant.", "你是誰？我是一個小助手。", "9 times 6 is 54."]
            .iter()
            .flat_map(|text| vec![(*text).to_owned(); 3])
            .collect()
    }

    #[test]
    fn every_text_comes_back_and_words_are_tokens() {
        let json = train_tokenizer(&texts(), 600, &["<|im_start|>", "<|im_end|>"]).unwrap();
        let tokenizer = Tokenizer::from_json(json.as_bytes(), "t").unwrap();
        for text in ["你是誰？", "Who are you, 小助手?", "never seen: ∑ 𝄞 é 龜\n\t  x"] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
        assert_eq!(tokenizer.encode(" assistant").unwrap().len(), 1);
        // Characters stay apart, digits too.
        assert_eq!(tokenizer.encode("我是一個小助手").unwrap().len(), 7);
        assert_eq!(tokenizer.encode("54").unwrap().len(), 2);
        assert_eq!(tokenizer.encode("<|im_end|>").unwrap().len(), 1);
    }

    #[test]
    fn the_same_texts_give_the_same_file() {
        let make = || train_tokenizer(&texts(), 400, &["<|im_end|>"]).unwrap();
        assert_eq!(make(), make());
    }
}
