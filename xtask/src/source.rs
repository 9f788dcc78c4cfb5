//! Rust text -> lines with code and comments apart, so that a word in a string is not code.
//!
//! Not a parser: it knows comments, strings, characters and braces, which is all that tidy asks.

/// One line of a Rust file. String contents are in neither part.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) code: String,
    pub(crate) comment: String,
    /// Inside an item marked `#[cfg(test)]`.
    pub(crate) test: bool,
}

impl Line {
    /// Whether the code has `word` with no letter of an identifier on either side.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        has_word(&self.code, word)
    }
}

pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let opens = word.starts_with(part_of_word);
    let closes = word.ends_with(part_of_word);
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].ends_with(part_of_word);
        let after = text[at + word.len()..].starts_with(part_of_word);
        !(opens && before || closes && after)
    })
}

enum State {
    Code,
    LineComment,
    BlockComment {
        depth: usize,
    },
    /// `hashes` is none for a string with escapes.
    Text {
        hashes: Option<usize>,
    },
}

/// Splits a file.
pub(crate) fn split(text: &str) -> Vec<Line> {
    let characters: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut at = 0;
    while let Some(&c) = characters.get(at) {
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(Line::default());
            at += 1;
            continue;
        }
        let line = lines.last_mut().expect("one line at least");
        let rest = &characters[at..];
        let (taken, next) = match state {
            State::Code => code(rest, line),
            State::LineComment => {
                line.comment.push(c);
                (1, None)
            }
            State::BlockComment { depth } => block_comment(rest, depth, line),
            State::Text { hashes } => string(rest, hashes, line),
        };
        at += taken;
        if let Some(next) = next {
            state = next;
        }
    }
    mark_tests(&mut lines);
    lines
}

/// How many characters are taken, and the state after them if it changes.
fn code(rest: &[char], line: &mut Line) -> (usize, Option<State>) {
    match rest {
        ['/', '/', ..] => {
            line.comment.push_str("//");
            return (2, Some(State::LineComment));
        }
        ['/', '*', ..] => return (2, Some(State::BlockComment { depth: 1 })),
        ['"', ..] => {
            line.code.push('"');
            return (1, Some(State::Text { hashes: None }));
        }
        ['r', after @ ..] if !in_identifier(&line.code) => {
            let hashes = after.iter().take_while(|c| **c == '#').count();
            if after.get(hashes) == Some(&'"') {
                line.code.push('"');
                return (hashes + 2, Some(State::Text { hashes: Some(hashes) }));
            }
        }
        // A character, told from a lifetime by its closing quote.
        ['\'', '\\', escaped @ ..] => {
            let end = escaped.iter().skip(1).position(|c| *c == '\'').unwrap_or(escaped.len());
            line.code.push_str("' '");
            return ((end + 4).min(rest.len()), None);
        }
        ['\'', _, '\'', ..] => {
            line.code.push_str("' '");
            return (3, None);
        }
        _ => {}
    }
    line.code.push(rest[0]);
    (1, None)
}

/// Whether an `r` here continues a word; `b` and `c` before it are prefixes of a raw string.
fn in_identifier(code: &str) -> bool {
    let prefix = code.strip_suffix(['b', 'c']).unwrap_or(code);
    prefix.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn block_comment(rest: &[char], depth: usize, line: &mut Line) -> (usize, Option<State>) {
    match rest {
        ['*', '/', ..] if depth == 1 => (2, Some(State::Code)),
        ['*', '/', ..] => (2, Some(State::BlockComment { depth: depth - 1 })),
        ['/', '*', ..] => (2, Some(State::BlockComment { depth: depth + 1 })),
        _ => {
            line.comment.push(rest[0]);
            (1, None)
        }
    }
}

fn string(rest: &[char], hashes: Option<usize>, line: &mut Line) -> (usize, Option<State>) {
    match (rest, hashes) {
        // A newline after the backslash must still end the line.
        (['\\', escaped, ..], None) if *escaped != '\n' => (2, None),
        (['"', after @ ..], hashes) => {
            let wanted = hashes.unwrap_or(0);
            if after.iter().take_while(|c| **c == '#').take(wanted).count() < wanted {
                return (1, None);
            }
            line.code.push('"');
            (1 + wanted, Some(State::Code))
        }
        _ => (1, None),
    }
}

/// Marks the items under `#[cfg(test)]`, to their closing brace or semicolon.
fn mark_tests(lines: &mut [Line]) {
    let mut waiting = false;
    let mut depth = 0usize;
    for line in lines {
        if depth == 0 && line.code.contains("#[cfg(test)]") {
            waiting = true;
        }
        line.test = waiting || depth > 0;
        // The attribute's own brackets hold neither brace nor semicolon.
        for c in line.code.chars().filter(|_| line.test) {
            match c {
                '{' => (waiting, depth) = (false, depth + 1),
                '}' => depth = depth.saturating_sub(1),
                ';' if depth == 0 => waiting = false,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> String {
        split(text).iter().map(|line| line.code.as_str()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code_of("a(\"x // y\"); // z"), "a(\"\"); ");
        assert_eq!(code_of("a /* b /* c */ d */ e"), "a  e");
        assert_eq!(code_of(r##"a(r#"x " y"#, br"\", 'c', '\'', '"')"##), r#"a("", b"", ' ', ' ', ' ')"#);
        assert_eq!(code_of("let four = \"x\\\ny\"; z"), "let four = \"|\"; z");
        assert_eq!(code_of("fn a<'b>(x: &'b str)"), "fn a<'b>(x: &'b str)");
        assert_eq!(code_of(r"'\u{1f600}' + '\\' + 1"), "' ' + ' ' + 1");
    }

    #[test]
    fn comments_are_kept_apart() {
        let lines = split("a // SAFETY: b\n/* c\nd */ e");
        assert_eq!(lines[0].comment, "// SAFETY: b");
        assert_eq!((lines[1].comment.as_str(), lines[2].comment.as_str()), (" c", "d "));
        assert_eq!(lines[2].code, " e");
    }

    #[test]
    fn items_for_tests_are_marked_to_their_end() {
        let lines = split("a\n#[cfg(test)]\nmod tests {\n{ }\n}\nb\n#[cfg(test)]\nuse c;\nd");
        let marked: Vec<bool> = lines.iter().map(|line| line.test).collect();
        assert_eq!(marked, [false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn a_word_ends_where_the_identifier_ends() {
        assert!(has_word("x = unsafe { y }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(!has_word("eprintln!()", "println!"));
        assert!(has_word("std::println!()", "println!"));
    }
}
