//! ids one by one -> text, never half a character.
//!
//! A token can end inside a UTF-8 sequence; those bytes wait for the next token. Bytes that can never
//! become a character are replaced at once, so what was pushed equals what `decode` gives for all ids.

use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Decodes ids as they are generated.
#[derive(Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    waiting: Vec<u8>,
    /// The next byte is the first of the text, where SentencePiece's own space is dropped.
    at_start: bool,
}

impl<'a> Stream<'a> {
    /// Starts a text. `skip_special` leaves special tokens out.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        let at_start = tokenizer.strips_first_space();
        Stream { tokenizer, skip_special, waiting: Vec::new(), at_start }
    }

    /// The text that this id completes; empty while a character is unfinished.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        let mut bytes = self.tokenizer.bytes_of(id)?;
        if self.skip_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        if self.at_start && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.at_start = false;
        }
        self.waiting.extend_from_slice(bytes);
        let mut text = String::new();
        let kept = append_whole(&self.waiting, &mut text);
        self.waiting.drain(..kept);
        Ok(text)
    }

    /// Ends the text; an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.waiting);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Appends every whole character, U+FFFD for what is none; returns how many bytes are done with.
fn append_whole(bytes: &[u8], text: &mut String) -> usize {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[done..valid]));
                match error.error_len() {
                    None => return valid,
                    Some(length) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        done = valid + length;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_bytes_give_the_same_text_as_the_whole() {
        let bytes = b"a\xf0\x9f\x8c\x9f\xff\xe8\xaa\xb0\xe8\x28z\xc3";
        for size in 1..bytes.len() {
            let (mut text, mut waiting) = (String::new(), Vec::new());
            for chunk in bytes.chunks(size) {
                waiting.extend_from_slice(chunk);
                let kept = append_whole(&waiting, &mut text);
                waiting.drain(..kept);
            }
            text.push_str(&String::from_utf8_lossy(&waiting));
            assert_eq!(text, String::from_utf8_lossy(bytes), "chunks of {size}");
        }
    }
}
