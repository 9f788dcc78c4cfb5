//! What can be wrong with a tokenizer, a vocabulary, a template or a request; every message names place and remedy.

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A tokenizer or vocabulary file cannot be used.
    #[error("{file}: {place}: {problem}. {remedy}")]
    File {
        /// File as the caller named it.
        file: String,
        /// Key, token or merge inside the file.
        place: String,
        /// What is wrong there.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// A chat template cannot be read or rendered.
    #[error("chat template, line {line}: {problem}. {remedy}")]
    Template {
        /// Line of the template, 1 if the whole template is meant.
        line: usize,
        /// What is wrong there.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The tokenizer could not turn this text into ids.
    #[error("{file}: the text could not be tokenized: {problem}")]
    Encode {
        /// File the tokenizer came from.
        file: String,
        /// What the tokenizer said.
        problem: String,
    },
    /// An id that no token and no padding row of this vocabulary has.
    #[error(
        "{file}: token id {id} is past this vocabulary of {size} tokens. \
         The ids come from another model; use the tokenizer they were made with."
    )]
    UnknownId {
        /// File the tokenizer came from.
        file: String,
        /// The id asked for.
        id: u32,
        /// Ids of the vocabulary.
        size: usize,
    },
    /// A row of a data file that cannot be trained on.
    #[error("{file} line {line}: {problem}\n{remedy}")]
    Row {
        /// File as the caller named it.
        file: String,
        /// Line of the file, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// A stop string that cannot be used.
    #[error("stop strings: {0}")]
    Stop(String),
}

impl Error {
    pub(crate) fn file(
        file: &str,
        place: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Error::File {
            file: file.to_owned(),
            place: place.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

/// The start of hostile text, made printable, for use in a message.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        short.push('…');
    }
    format!("\"{short}\"")
}
