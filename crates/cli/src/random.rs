//! `train --random`: a model that no file has, and words for it.

use std::path::Path;

use halfbyte_checkpoint::{Checkpoint, GgufMetadata, GgufValue, TextFiles};

use crate::embedded;
use crate::failure::{Code, Failure, Result};

/// Random weights of a config's shape, with the tokenizer beside it or, where there is none, that of the embedded
/// model: data must become tokens somehow, and a shape is all that a measurement of size and speed needs.
pub(crate) fn open(config: &Path, seed: u64) -> Result<Checkpoint> {
    let mut model = Checkpoint::random(config, seed)?;
    if model.text.tokenizer_json.is_some() {
        return Ok(model);
    }
    let own = embedded::open(Path::new(embedded::NAME))?;
    let (words, needed) = (model.architecture.vocab_size, own.architecture.vocab_size);
    if words < needed {
        return Err(Failure::new(
            Code::BadInput,
            format!(
                "{}: vocab_size\nthere is no tokenizer.json beside it, and this program's own has {needed} tokens where the \
                 model has {words}\nput the model's tokenizer.json there, or make vocab_size {needed} or more",
                config.display()
            ),
        ));
    }
    let of_words = own.text.gguf.into_iter().flat_map(|metadata| metadata.entries);
    let entries = of_words.filter(|(key, _)| key.starts_with("tokenizer.")).collect();
    let gguf = Some(GgufMetadata { entries });
    model.text = TextFiles { gguf, chat_template: own.text.chat_template, ..TextFiles::default() };
    (model.architecture.bos, model.architecture.eos) = (own.architecture.bos, own.architecture.eos);
    Ok(model)
}

/// Whether there are words for every token that a model from `open` knows.
pub(crate) fn speaks(model: &Checkpoint) -> bool {
    let tokens = |metadata: &GgufMetadata| {
        metadata.get("tokenizer.ggml.tokens").and_then(GgufValue::as_strings).map_or(0, <[String]>::len)
    };
    let own = model.text.gguf.as_ref().map(tokens);
    own.is_none_or(|own| own >= model.architecture.vocab_size)
}
