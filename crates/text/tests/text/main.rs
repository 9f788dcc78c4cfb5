//! crates/text against golden files, real vocabularies where HALFBYTE_ASSETS has them, and hostile input.

mod assets;
mod chat_template;
mod dataset;
mod gguf;
mod hostile;
mod packing;
mod reference;
mod tokenizer;
mod training_mask;
