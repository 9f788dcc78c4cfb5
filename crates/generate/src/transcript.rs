//! The conversation as the model saw it: text and the very ids, with marks where both agree.
//!
//! A reply's ids are not always what its text would be tokenized to. Encoding the whole conversation
//! again could therefore differ from the cache early in an old reply, and cost all that follows. So a
//! rendering that begins with a marked text keeps the ids of that mark; only the rest is encoded.

use halfbyte_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Text and ids of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transcript {
    text: String,
    ids: Vec<u32>,
    marks: Vec<Mark>,
}

/// A place where text and ids stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    bytes: usize,
    ids: usize,
}

impl Transcript {
    /// Ids of a rendering; `start` comes before its first id (a start token, in raw mode).
    pub(crate) fn encode(
        &self,
        rendering: &str,
        start: Option<u32>,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>> {
        for mark in self.marks.iter().rev() {
            let Some(rest) = rendering.strip_prefix(&self.text[..mark.bytes]) else {
                continue;
            };
            let rest = tokenizer.encode(rest)?;
            // A special token cannot grow together with what is before it; other text could.
            if rest.first().is_none_or(|&id| tokenizer.is_special(id)) {
                return Ok([&self.ids[..mark.ids], &rest].concat());
            }
        }
        let mut ids: Vec<u32> = start.into_iter().collect();
        ids.extend(tokenizer.encode(rendering)?);
        Ok(ids)
    }

    /// Takes over a rendering and its ids; forgets marks that are no beginning of it.
    pub(crate) fn set(&mut self, rendering: String, ids: Vec<u32>) {
        let (text, old) = (&self.text, &self.ids);
        self.marks
            .retain(|mark| rendering.starts_with(&text[..mark.bytes]) && ids.starts_with(&old[..mark.ids]));
        (self.text, self.ids) = (rendering, ids);
        self.mark();
    }

    /// Adds a reply whose text and ids belong together.
    pub(crate) fn add(&mut self, text: &str, ids: &[u32]) {
        self.text.push_str(text);
        self.ids.extend_from_slice(ids);
        self.mark();
    }

    fn mark(&mut self) {
        let mark = Mark { bytes: self.text.len(), ids: self.ids.len() };
        if self.marks.last() != Some(&mark) {
            self.marks.push(mark);
        }
    }

    /// Whether marks lie inside text and ids, in order: a file may say otherwise.
    pub(crate) fn holds_together(&self, vocabulary: usize) -> bool {
        let inside = |mark: &Mark| self.text.is_char_boundary(mark.bytes) && mark.ids <= self.ids.len();
        let ordered = self.marks.is_sorted_by(|a, b| a.bytes <= b.bytes && a.ids <= b.ids);
        ordered && self.marks.iter().all(inside) && self.ids.iter().all(|&id| (id as usize) < vocabulary)
    }
}
