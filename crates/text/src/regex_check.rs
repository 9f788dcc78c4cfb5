//! Refuses patterns that backtrack without end: a repeated group with a repetition inside, next to look-around.
//!
//! Patterns without look-around or back-references run on an automaton in linear time and may nest as
//! they like. The others backtrack; the engine stops after a million steps, and the tokenizer library
//! then silently leaves the rest of the text unsplit. So such patterns are refused when the file is read.

/// Longest pattern accepted, in bytes; the longest in use has about 700.
const LONGEST: usize = 8 * 1024;
/// A counted repetition up to this many times is not a danger by itself.
const FEW: usize = 32;

/// `Err` says what is wrong with the pattern.
pub(crate) fn check(pattern: &str) -> Result<(), String> {
    if pattern.len() > LONGEST {
        return Err(format!("the pattern has {} bytes, at most {LONGEST} are allowed", pattern.len()));
    }
    if !backtracks(pattern) {
        return Ok(());
    }
    match nested_repetition(pattern.as_bytes()) {
        Some(at) => Err(format!(
            "a repeated group at byte {at} repeats inside too; with look-around this can take forever"
        )),
        None => Ok(()),
    }
}

fn backtracks(pattern: &str) -> bool {
    let marks = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "\\k", "\\g", "\\K", "\\G"];
    let reference = pattern.as_bytes().windows(2).any(|w| w[0] == b'\\' && w[1].is_ascii_digit());
    reference || marks.iter().any(|mark| pattern.contains(mark))
}

/// Byte position of the first group that is repeated and repeats inside.
fn nested_repetition(pattern: &[u8]) -> Option<usize> {
    let mut at = 0;
    // For each open group: where it began, and whether it holds a repetition.
    let mut groups: Vec<(usize, bool)> = Vec::new();
    let mut closed: Option<(usize, bool)> = None;
    while at < pattern.len() {
        let (repeats, length) = repetition(&pattern[at..]);
        if length > 0 {
            if let (true, Some((start, true))) = (repeats, closed) {
                return Some(start);
            }
            if repeats && let Some(open) = groups.last_mut() {
                open.1 = true;
            }
            at += length;
            closed = None;
            continue;
        }
        closed = None;
        match pattern[at] {
            b'\\' => at += 1,
            b'[' => at = class_end(pattern, at),
            b'(' => {
                groups.push((at, false));
                at += usize::from(pattern.get(at + 1) == Some(&b'?'));
            }
            b')' => {
                closed = groups.pop();
                if let (Some((_, true)), Some(outer)) = (closed, groups.last_mut()) {
                    outer.1 = true;
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether a quantifier starts here that repeats many times, and its length (0: no quantifier).
fn repetition(rest: &[u8]) -> (bool, usize) {
    match rest.first() {
        Some(b'*' | b'+') => (true, 1),
        Some(b'?') => (false, 1),
        Some(b'{') => counted(rest),
        _ => (false, 0),
    }
}

fn counted(rest: &[u8]) -> (bool, usize) {
    let Some(end) = rest.iter().position(|&b| b == b'}') else {
        return (false, 0);
    };
    let body = &rest[1..end];
    let digits = body.iter().all(|b| b.is_ascii_digit() || *b == b',');
    if body.is_empty() || !digits {
        return (false, 0);
    }
    let upper = body.rsplit(|&b| b == b',').next().unwrap_or_default();
    let many = match std::str::from_utf8(upper).ok().and_then(|s| s.parse::<usize>().ok()) {
        Some(count) => count > FEW,
        None => true,
    };
    (many, end + 1)
}

/// Position of the `]` that closes the class opened at `at` (classes may hold classes).
fn class_end(pattern: &[u8], mut at: usize) -> usize {
    let mut depth = 0usize;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => at += 1,
            b'[' => depth += 1,
            b']' => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_real_tokenizers_pass() {
        for known in crate::pre_tokenizers::KNOWN {
            for pattern in known.patterns {
                assert_eq!(check(pattern), Ok(()), "{pattern}");
            }
        }
    }

    #[test]
    fn nested_repetition_beside_look_around_is_refused() {
        for pattern in [
            r"(a+)+(?!b)",
            r"(?:a*)*(?=c)",
            r"((x{2,})y)*\1",
            r"(([a(]+)b){1,99}(?<!q)",
            r"(?!z)(?:(?:\s+)){3,}",
        ] {
            assert!(check(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn nesting_without_backtracking_and_short_counts_pass() {
        for pattern in [r"(a+)+", r"(?:\p{N}{1,3})+(?!\S)", r"[+*()]+(?!a)", r"\(a+\)+(?!b)"] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }
}
