//! A sample on the screen: what is trained and what is not, apart.

use halfbyte_text::dataset::Sample;
use halfbyte_text::{Error, Tokenizer};

/// A run of tokens of one kind.
pub(super) struct Run {
    pub(super) trained: bool,
    pub(super) text: String,
}

/// The runs of a sample, in order.
pub(super) fn runs(sample: &Sample, tokenizer: &Tokenizer) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    let mut at = 0;
    let mut push = |trained: bool, ids: &[u32]| -> Result<(), Error> {
        if !ids.is_empty() {
            runs.push(Run { trained, text: tokenizer.decode(ids, false)? });
        }
        Ok(())
    };
    for range in &sample.trained {
        push(false, &sample.tokens[at..range.start])?;
        push(true, &sample.tokens[range.clone()])?;
        at = range.end;
    }
    push(false, &sample.tokens[at..])?;
    Ok(runs)
}

/// One line: trained runs green, or between ⟦ and ⟧ without colour.
pub(super) fn line(runs: &[Run], colour: bool) -> String {
    let one = |run: &Run| {
        let text = printable(&run.text);
        match (run.trained, colour) {
            (true, true) => format!("\x1b[1;32m{text}\x1b[0m"),
            (false, true) => format!("\x1b[2m{text}\x1b[0m"),
            (true, false) => format!("⟦{text}⟧"),
            (false, false) => text,
        }
    };
    runs.iter().map(one).collect()
}

/// Line breaks as ↵; what could move the cursor, written out.
fn printable(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => "↵".to_owned(),
        '\t' => "⇥".to_owned(),
        c if c.is_control() => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trained_text_is_marked_with_and_without_colour() {
        let run = |trained, text: &str| Run { trained, text: text.into() };
        let runs = [run(false, "a\n"), run(true, "b\t\u{1b}[2J")];
        assert_eq!(line(&runs, false), "a↵⟦b⇥\\u{1b}[2J⟧");
        assert_eq!(line(&runs, true), "\x1b[2ma↵\x1b[0m\x1b[1;32mb⇥\\u{1b}[2J\x1b[0m");
    }
}
