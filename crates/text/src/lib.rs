//! Text <-> token ids, chat messages -> prompt, ids -> streamed text. Knows no tensor, prints nothing.
//!
//! ```text
//! tokenizer.json ─┐                      ┌─ Tokenizer: encode, decode
//!                 ├─> Definition (checked)├─ Stream: whole characters only -> StopMatcher
//! GGUF vocabulary ┘                      └─ tokenizer.json / GgufVocabulary again
//! messages -> ChatTemplate (fuel, depth and size caps) -> prompt
//! data files -> dataset (rows, ids, what is trained, order) -> packing -> sequences
//! ```
//! Every file is checked before a library sees it, so bad input ends in an [`Error`] that names the
//! file and the place, never in a panic or a hang.
#![forbid(unsafe_code)]

pub mod dataset;
pub mod packing;

mod byte_level;
mod chat_template;
mod definition;
mod definition_json;
mod error;
mod gguf_vocabulary;
mod pre_tokenizers;
mod python;
mod regex_check;
mod stop;
mod stream;
mod template_filters;
mod template_source;
mod tokenizer;
mod vocabulary;

pub use chat_template::{ChatTemplate, Message};
pub use error::Error;
pub use gguf_vocabulary::{GgufVocabulary, gguf_from_tokenizer_json};
pub use stop::{Stop, StopMatcher};
pub use stream::Stream;
pub use tokenizer::Tokenizer;
pub use vocabulary::train_tokenizer;
