//! Conversations as JSON lines, `{ts, messages: [{role, text}], output}`, written and read back.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use halfbyte_text::Message;
use serde_json::{Value, json};

use crate::commands::check::reader;
use crate::failure::{Code, Failure, Result};

/// Most bytes of a conversation to be replayed.
const LARGEST: u64 = 64 << 20;

/// A log that grows by a line each turn.
pub(crate) struct ChatLog {
    path: PathBuf,
    file: File,
}

impl ChatLog {
    /// Appends to what is there.
    pub(crate) fn open(path: &Path) -> Result<ChatLog> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| Failure::file(path, "write", error))?;
        Ok(ChatLog { path: path.to_path_buf(), file })
    }

    /// Adds a turn: all messages up to the last reply, which is `output`.
    pub(crate) fn add(&mut self, messages: &[Message], output: &str) -> Result<()> {
        let asked = match messages.split_last() {
            Some((last, before)) if last.role == "assistant" => before,
            _ => messages,
        };
        let messages: Vec<Value> =
            asked.iter().map(|message| json!({ "role": message.role, "text": message.content })).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let line = json!({ "ts": timestamp(now), "messages": messages, "output": output });
        writeln!(self.file, "{line}").map_err(|error| Failure::file(&self.path, "write", error))
    }
}

/// Something to say again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A new conversation with this system message (none if empty).
    New(Option<String>),
    /// A user's message.
    User(String),
}

/// The user messages of a log, or the lines of a plain text.
pub(crate) fn read(path: &Path) -> Result<Vec<Said>> {
    let text = reader::at_most(path, LARGEST)?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let is_log = lines.peek().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
    if !is_log {
        return Ok(lines.map(|(_, line)| Said::User(line.to_owned())).collect());
    }
    let mut said = Vec::new();
    for (index, line) in lines {
        let turn = turn(line).ok_or_else(|| {
            let text = format!(
                "{} line {}\nthis is no turn of a chat log\nexpected {{\"ts\", \"messages\": [{{\"role\", \"text\"}}], \"output\"}}",
                path.display(),
                index + 1
            );
            Failure::new(Code::BadInput, text)
        })?;
        said.extend(turn);
    }
    Ok(said)
}

/// The last user message of a line; a line with only one begins a conversation.
fn turn(line: &str) -> Option<Vec<Said>> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text_of = |message: &Value, role: &str| -> Option<String> {
        let is_role = message.get("role")?.as_str()? == role;
        is_role.then(|| message.get("text")?.as_str().map(str::to_owned)).flatten()
    };
    let messages = value.get("messages")?.as_array()?;
    let mut users: Vec<String> = messages.iter().filter_map(|message| text_of(message, "user")).collect();
    let last = Said::User(users.pop()?);
    match users.is_empty() {
        true => Some(vec![Said::New(messages.iter().find_map(|m| text_of(m, "system"))), last]),
        false => Some(vec![last]),
    }
}

/// Unix seconds as 2026-11-16T02:15:00Z (civil date by counting days in 400-year cycles from 1 March).
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * cycle + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn a_log_line_gives_its_last_user_message() {
        let first =
            r#"{"ts":"t","messages":[{"role":"system","text":"s"},{"role":"user","text":"a"}],"output":"x"}"#;
        assert_eq!(turn(first).unwrap(), [Said::New(Some("s".into())), Said::User("a".into())]);
        let second = r#"{"messages":[{"role":"user","text":"a"},{"role":"assistant","text":"x"},{"role":"user","text":"b"}]}"#;
        assert_eq!(turn(second).unwrap(), [Said::User("b".into())]);
        assert!(turn("{}").is_none() && turn("[1]").is_none() && turn(r#"{"messages":[]}"#).is_none());
    }
}
