//! One JSON object a line: `messages`, `prompt`/`completion`, `instruction`/`input`/`output` or `text`.
//!
//! A row with several of them is read as the first of this list. Keys that would change what the
//! model sees and that we do not read are refused; all others are the owner's notes.

use serde_json::{Map, Value};

use super::Content;
use super::lines::Fault;
use crate::chat_template::Message;
use crate::error::shown;

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Most messages of a row: each reply is rendered with all that is before it.
const MOST_MESSAGES: usize = 1024;
const SHAPES: &str =
    "a row has messages, or prompt and completion, or instruction (input) and output, or text";

/// Reads one line; `None` for a blank one.
pub(super) fn parse(line: &str) -> Result<Option<Content>, Fault> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let value: Value = serde_json::from_str(line).map_err(|error| {
        let remedy = match line.trim_start().starts_with('[') {
            true => "a .jsonl has one object a line, not a list of them",
            false => "each line is one JSON object",
        };
        Fault::new(format!("column {}: wrong JSON: {}", error.column(), reason(&error)), remedy)
    })?;
    let Value::Object(row) = value else {
        return Err(Fault::new("the line is not a JSON object", SHAPES));
    };
    unread(&row, &["tools", "functions"])?;
    let content = if let Some(messages) = row.get("messages") {
        Content::Chat(self::messages(messages)?)
    } else if row.contains_key("prompt") || row.contains_key("completion") {
        pair(text(&row, "prompt")?, text(&row, "completion")?, &row)?
    } else if row.contains_key("instruction") || row.contains_key("output") {
        alpaca(&row)?
    } else if row.contains_key("text") {
        Content::Text(text(&row, "text")?.to_owned())
    } else {
        let keys: Vec<String> = row.keys().take(8).map(|key| shown(key)).collect();
        let found = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        return Err(Fault::new(format!("no key that we know (found {found})"), SHAPES));
    };
    check(&content)?;
    Ok(Some(content))
}

/// serde's text without its own line and column.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

fn unread(object: &Map<String, Value>, keys: &[&str]) -> Result<(), Fault> {
    let given = |key: &&&str| match object.get(**key) {
        None | Some(Value::Null) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    };
    match keys.iter().find(given) {
        None => Ok(()),
        Some(&"reasoning_content") => {
            let remedy =
                "put thoughts into content, between <think> and </think>, if the template knows them";
            Err(Fault::new("reasoning_content is not read", remedy))
        }
        Some(key) => Err(Fault::new(format!("{key} is not read"), "training knows messages of text only")),
    }
}

fn text<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a str, Fault> {
    match row.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(Fault::new(format!("{key} is {}, not a text", kind(other)), SHAPES)),
        None => Err(Fault::new(format!("the key {key} is missing"), SHAPES)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn pair(prompt: &str, reply: &str, row: &Map<String, Value>) -> Result<Content, Fault> {
    let system = match row.get("system") {
        Some(Value::Null) | None => "",
        Some(_) => text(row, "system")?,
    };
    let system = (!system.is_empty()).then(|| Message::new("system", system));
    let turn = [Message::new("user", prompt), Message::new("assistant", reply)];
    Ok(Content::Chat(system.into_iter().chain(turn).collect()))
}

fn alpaca(row: &Map<String, Value>) -> Result<Content, Fault> {
    let instruction = text(row, "instruction")?;
    let input = match row.get("input") {
        Some(Value::Null) | None => "",
        Some(_) => text(row, "input")?,
    };
    let prompt = match input.is_empty() {
        true => instruction.to_owned(),
        false => format!("{instruction}\n\n{input}"),
    };
    pair(&prompt, text(row, "output")?, row)
}

fn messages(value: &Value) -> Result<Vec<Message>, Fault> {
    let Value::Array(list) = value else {
        return Err(Fault::new(format!("messages is {}, not a list", kind(value)), SHAPES));
    };
    if list.is_empty() || list.len() > MOST_MESSAGES {
        let problem = format!("{} messages", list.len());
        return Err(Fault::new(problem, format!("a row has 1 to {MOST_MESSAGES}; split it")));
    }
    list.iter().enumerate().map(|(index, value)| message(index, value)).collect()
}

fn message(index: usize, value: &Value) -> Result<Message, Fault> {
    let place = format!("message {}", index + 1);
    let Value::Object(message) = value else {
        let remedy = "a message is an object with role and content";
        return Err(Fault::new(format!("{place} is {}", kind(value)), remedy));
    };
    unread(message, &["tool_calls", "function_call", "reasoning_content"])
        .map_err(|fault| Fault::new(format!("{place}: {}", fault.problem), fault.remedy))?;
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        let problem = match message.get("role") {
            Some(Value::String(role)) => format!("{place} has the role {}", shown(role)),
            Some(other) => format!("{place}: role is {}", kind(other)),
            None => format!("{place} has no role"),
        };
        return Err(Fault::new(problem, "roles are system, user, assistant and tool"));
    }
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().map(|part| text_part(&place, part)).collect::<Result<_, _>>()?
        }
        Some(other) => {
            let problem = format!("{place}: content is {}", kind(other));
            return Err(Fault::new(problem, "content is a text"));
        }
        None => return Err(Fault::new(format!("{place} has no content"), "content is a text")),
    };
    Ok(Message::new(role, content))
}

/// `{"type": "text", "text": "…"}`, as some services write a text.
fn text_part(place: &str, part: &Value) -> Result<String, Fault> {
    let is_text = part.get("type").and_then(Value::as_str) == Some("text");
    match part.get("text").and_then(Value::as_str).filter(|_| is_text) {
        Some(text) => Ok(text.to_owned()),
        None => {
            Err(Fault::new(format!("{place}: a part of content is not text"), "training knows text only"))
        }
    }
}

/// What no row of text may be.
fn check(content: &Content) -> Result<(), Fault> {
    let zero = |text: &str| text.contains('\0');
    let (bad, empty) = match content {
        Content::Chat(messages) => {
            let asks = |m: &&Message| m.role == "user" && m.content.trim().is_empty();
            (messages.iter().any(|m| zero(&m.content)), messages.iter().find(asks).is_some())
        }
        Content::Text(text) | Content::Piece { text, .. } => (zero(text), false),
    };
    if bad {
        return Err(Fault::new("a text holds a zero character", "take \\u0000 out of it"));
    }
    if empty {
        return Err(Fault::new("the prompt is empty", "write what is asked, or take the row out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(line: &str) -> Vec<(String, String)> {
        match parse(line).unwrap() {
            Some(Content::Chat(messages)) => messages.into_iter().map(|m| (m.role, m.content)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_shape_becomes_the_same_conversation() {
        let expected = [("user".to_owned(), "q\n\nx".to_owned()), ("assistant".to_owned(), "a".to_owned())];
        for line in [
            r#"{"messages": [{"role": "user", "content": "q\n\nx"}, {"role": "assistant", "content": "a"}]}"#,
            r#"{"id": 7, "prompt": "q\n\nx", "completion": "a"}"#,
            r#"{"instruction": "q", "input": "x", "output": "a"}"#,
            r#"{"instruction": "q\n\nx", "input": "", "output": "a", "text": "ignored"}"#,
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "q\n\n"}, {"type": "text", "text": "x"}]}, {"role": "assistant", "content": "a"}]}"#,
        ] {
            assert_eq!(chat(line), expected, "{line}");
        }
        let system = chat(r#"{"system": "s", "instruction": "q", "output": "a"}"#);
        assert_eq!(system[0], ("system".to_owned(), "s".to_owned()));
        assert_eq!(parse(r#"{"text": "t"}"#).unwrap(), Some(Content::Text("t".into())));
        assert_eq!(parse("  ").unwrap(), None);
    }

    #[test]
    fn a_wrong_line_says_what_and_what_to_change() {
        let deep = format!("{{\"text\": {}}}", "[".repeat(100_000));
        let many =
            format!(r#"{{"messages": [{}]}}"#, vec![r#"{"role":"user","content":"x"}"#; 1025].join(","));
        for (line, says) in [
            (r#"{"text": "a"#, "column 11: wrong JSON: EOF"),
            (r#"[{"text": "a"}]"#, "not a JSON object"),
            (r#"["#, "wrong JSON"),
            ("3", "not a JSON object"),
            (r#"{"prompt": "a"}"#, "the key completion is missing"),
            (r#"{"prompt": ["a"], "completion": "b"}"#, "prompt is a list, not a text"),
            (r#"{"question": "a"}"#, "no key that we know (found \"question\")"),
            (r#"{}"#, "found none"),
            (r#"{"messages": []}"#, "0 messages"),
            (r#"{"messages": [{"role": "human", "content": "x"}]}"#, "message 1 has the role \"human\""),
            (r#"{"messages": [{"content": "x"}]}"#, "message 1 has no role"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1 has no content"),
            (r#"{"messages": [{"role": "assistant", "content": null}]}"#, "content is null"),
            (
                r#"{"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}"#,
                "tool_calls is not read",
            ),
            (r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#, "is not text"),
            (r#"{"messages": "x"}"#, "messages is a text, not a list"),
            (r#"{"text": "a\u0000"}"#, "a zero character"),
            (r#"{"prompt": " ", "completion": "b"}"#, "the prompt is empty"),
            (&deep, "recursion limit"),
            (&many, "1025 messages"),
        ] {
            let fault = parse(line).unwrap_err();
            assert!(fault.problem.contains(says), "{says}: {fault:?}");
            assert!(!fault.remedy.is_empty());
        }
    }
}
