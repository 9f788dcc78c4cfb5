//! `prompt<TAB>target`, one pair a line; what stands there is what is trained, there are no escapes.

use super::Content;
use super::lines::Fault;
use crate::chat_template::Message;

const PROMPTS: [&str; 6] = ["prompt", "question", "input", "instruction", "user", "問題"];
const TARGETS: [&str; 8] =
    ["target", "completion", "answer", "output", "response", "reply", "assistant", "回答"];

/// A line that is neither empty nor a comment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Names of columns.
    Header,
    /// A question and its answer.
    Content(Content),
}

/// Reads one line; `first` if no row came before it. `None` for blank lines and comments.
pub(super) fn parse(line: &str, first: bool) -> Result<Option<Parsed>, Fault> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.contains('\r') {
        let remedy = "save the file with ordinary line ends (LF or CRLF)";
        return Err(Fault::new("a carriage return inside the line", remedy));
    }
    let mut columns = line.split('\t');
    let (prompt, target) = match (columns.next(), columns.next(), columns.count()) {
        (Some(prompt), Some(target), 0) => (prompt, target),
        (_, None, _) => {
            let remedy = "a row is a prompt, one tab, and the reply to learn";
            return Err(Fault::new("there is no tab, so no target", remedy));
        }
        (_, _, more) => {
            let remedy = "a row has two; text with tabs in it goes into a .jsonl";
            return Err(Fault::new(format!("{} columns", more + 2), remedy));
        }
    };
    let named = |names: &[&str], text: &str| names.contains(&text.trim().to_lowercase().as_str());
    if first && named(&PROMPTS, prompt) && named(&TARGETS, target) {
        return Ok(Some(Parsed::Header));
    }
    if prompt.trim().is_empty() {
        return Err(Fault::new("the prompt is empty", "write what is asked before the tab"));
    }
    let turn = vec![Message::new("user", prompt), Message::new("assistant", target)];
    Ok(Some(Parsed::Content(Content::Chat(turn))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_a_question_and_its_answer() {
        let Some(Parsed::Content(Content::Chat(row))) = parse(" 你是誰 \t我是 F# 之神。\\n", true).unwrap()
        else {
            panic!("a row");
        };
        assert_eq!(row, [Message::new("user", " 你是誰 "), Message::new("assistant", "我是 F# 之神。\\n")]);
    }

    #[test]
    fn comments_and_blank_lines_are_nothing() {
        for line in ["", "  ", "\t", "# prompt\ttarget"] {
            assert_eq!(parse(line, true).unwrap(), None, "{line:?}");
        }
    }

    #[test]
    fn a_header_is_one_only_before_the_first_row() {
        assert_eq!(parse("Prompt\tTarget", true).unwrap(), Some(Parsed::Header));
        assert!(matches!(parse("Prompt\tTarget", false).unwrap(), Some(Parsed::Content(_))));
        assert!(matches!(parse("prompt\tbe quick", true).unwrap(), Some(Parsed::Content(_))));
    }

    #[test]
    fn too_few_and_too_many_columns_are_refused() {
        for (line, says) in [
            ("no tab", "no tab"),
            ("a\tb\tc", "3 columns"),
            ("\tb", "the prompt is empty"),
            ("a\tb\rc\td", "a carriage return"),
        ] {
            assert!(parse(line, true).unwrap_err().problem.contains(says), "{line}");
        }
    }
}
