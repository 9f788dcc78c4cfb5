//! The byte-level alphabet: every byte has one printable character, so a vocabulary is plain text.
//!
//! Printable Latin-1 bytes stand for themselves, the other 68 take the characters from U+0100 on.

/// The character that stands for `byte`.
pub(crate) fn character(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let index = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(256 + index).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

/// Character -> byte, as a table for the characters below U+0200.
pub(crate) struct Alphabet {
    bytes: [Option<u8>; 512],
}

impl Alphabet {
    pub(crate) fn new() -> Self {
        let mut bytes = [None; 512];
        for byte in 0..=255u8 {
            bytes[character(byte) as usize] = Some(byte);
        }
        Alphabet { bytes }
    }

    /// Appends the bytes of a token; a token with a foreign character stands for its own text.
    pub(crate) fn append(&self, token: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for c in token.chars() {
            match self.bytes.get(c as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    out.extend_from_slice(token.as_bytes());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back_from_its_character() {
        let alphabet = Alphabet::new();
        for byte in 0..=255u8 {
            let mut out = Vec::new();
            alphabet.append(&character(byte).to_string(), &mut out);
            assert_eq!(out, [byte]);
        }
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
    }

    #[test]
    fn a_token_outside_the_alphabet_stands_for_its_text() {
        let mut out = Vec::new();
        Alphabet::new().append("a b誰", &mut out);
        assert_eq!(out, "a b誰".as_bytes());
    }
}
