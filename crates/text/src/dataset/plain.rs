//! Plain text: a stream of documents, handed on in pieces so that no file has to be held whole.
//!
//! A line that is nothing but `<|endoftext|>` ends a document; without one the file is one document.
//! A piece ends at a line break before a character that is not white space: there the tokenizers'
//! splitting begins anew, so pieces give the tokens of the whole.

use super::lines::Lines;
use super::{Content, Row};
use crate::error::Error;

/// A piece is about this long; a tokenizer takes a hundred times as much memory for it.
const PIECE: usize = 1 << 16;
/// A piece is cut anywhere between lines from here on.
const LONGEST_PIECE: usize = 1 << 20;
const SEPARATOR: &str = "<|endoftext|>";

/// What is known between two pieces.
#[derive(Default)]
pub(super) struct Plain {
    text: String,
    /// Line where `text` begins.
    line: usize,
    /// `text` goes on with a document that began in an earlier piece.
    continues: bool,
    ended: bool,
}

impl Plain {
    /// The next piece of text.
    pub(super) fn next(&mut self, lines: &mut Lines) -> Result<Option<Row>, Error> {
        while !self.ended {
            let Some((number, line)) = lines.next()? else {
                self.ended = true;
                return Ok(self.take(true));
            };
            if line.trim() == SEPARATOR {
                match self.take(true) {
                    None => continue,
                    some => return Ok(some),
                }
            }
            let fresh = line.starts_with(|c: char| !c.is_whitespace());
            let full = self.text.len() >= PIECE && fresh || self.text.len() >= LONGEST_PIECE;
            let piece = if full { self.take(false) } else { None };
            if self.text.is_empty() {
                if line.is_empty() && !self.continues {
                    continue;
                }
                self.line = number;
            }
            self.text.push_str(&line);
            self.text.push('\n');
            if piece.is_some() {
                return Ok(piece);
            }
        }
        Ok(None)
    }

    fn take(&mut self, ends: bool) -> Option<Row> {
        let mut text = std::mem::take(&mut self.text);
        if ends {
            text.truncate(text.trim_end_matches('\n').len());
        }
        let begins = !std::mem::replace(&mut self.continues, !ends);
        if begins && text.trim().is_empty() {
            // White space alone is no document.
            self.continues = false;
            return None;
        }
        Some(Row { line: self.line, content: Content::Piece { text, begins, ends } })
    }
}
