//! crates/text against golden files, real vocabularies where HALFBYTE_ASSETS has them, and hostile input.

mod assets;
mod chat_template;
mod gguf;
mod hostile;
mod reference;
mod tokenizer;
