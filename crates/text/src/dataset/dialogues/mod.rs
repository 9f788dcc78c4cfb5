//! Small dialogues in English and Traditional Chinese: what the embedded model is taught.
//!
//! tables (topics: ways to ask, one answer, rows) -> one wording at a time -> rows of one to three turns
//!
//! The tables are text, so that they can be read and added to. The same seed writes the same rows.

mod table;

use std::collections::HashSet;

use halfbyte_formats::philox::Stream;

use self::table::{Table, Topic};
use super::Content;
use super::identity::Language;
use crate::chat_template::Message;

const DIALOGUES: u64 = 0x4449_414c;
const QUESTIONS: u64 = 0x5155_4553;
const TEXTS: u64 = 0x5445_5854;
/// It comes first in both tables.
const WHO_ARE_YOU: usize = 0;
/// Where wordings run out, drawing ends.
const DRAWS_PER_ROW: u64 = 20;

/// Dialogues, each once; about one in ten is a plain text of several answers. Fewer than `rows` if
/// there are no more wordings.
pub fn dialogues(rows: usize, seed: u64) -> Vec<Content> {
    let tables = [table(Language::English), table(Language::Chinese)];
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for number in 0..rows as u64 * DRAWS_PER_ROW {
        let mut draw = Draw::new(seed, number, DIALOGUES);
        let table = &tables[draw.below(2)];
        let row = match draw.below(10) {
            0 => Content::Text(text(table, &mut draw)),
            _ => chat(table, &mut draw),
        };
        if seen.insert(format!("{row:?}")) {
            all.push(row);
        }
        if all.len() == rows {
            break;
        }
    }
    all
}

/// Questions as people write them, save those that ask who is asked; each once.
pub fn questions(language: Language, count: usize, seed: u64) -> Vec<String> {
    let table = table(language);
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for number in 0..count as u64 * DRAWS_PER_ROW {
        let mut draw = Draw::new(seed, number, QUESTIONS);
        let topic = table.topic(&mut draw);
        if std::ptr::eq(topic, &table.topics[WHO_ARE_YOU]) {
            continue;
        }
        let question = table.framed(&topic.draw(&mut draw).0, &mut draw);
        if seen.insert(question.clone()) {
            all.push(question);
        }
        if all.len() == count {
            break;
        }
    }
    all
}

/// Plain texts of several answers.
pub fn texts(language: Language, count: usize, seed: u64) -> Vec<String> {
    let table = table(language);
    (0..count as u64).map(|number| text(&table, &mut Draw::new(seed, number, TEXTS))).collect()
}

fn table(language: Language) -> Table {
    Table::parse(match language {
        Language::English => include_str!("english.txt"),
        Language::Chinese => include_str!("chinese.txt"),
    })
}

fn chat(table: &Table, draw: &mut Draw) -> Content {
    let turns = match draw.below(10) {
        0..7 => 1,
        7..9 => 2,
        _ => 3,
    };
    let mut messages = Vec::new();
    for _ in 0..turns {
        let (question, answer) = table.topic(draw).draw(draw);
        messages.push(Message::new("user", table.framed(&question, draw)));
        messages.push(Message::new("assistant", answer));
    }
    Content::Chat(messages)
}

fn text(table: &Table, draw: &mut Draw) -> String {
    let space = if table.spaced() { " " } else { "" };
    let answers: Vec<String> = (0..3 + draw.below(6)).map(|_| table.topic(draw).draw(draw).1).collect();
    answers.join(space)
}

/// Random numbers of one row, in the order in which they are asked for.
struct Draw {
    stream: Stream,
    next: u64,
}

impl Draw {
    fn new(seed: u64, row: u64, use_of: u64) -> Draw {
        Draw { stream: Stream::new(seed, row, use_of), next: 0 }
    }

    /// From 0 to `count` - 1.
    fn below(&mut self, count: usize) -> usize {
        let bits = u64::from(self.stream.bits(self.next));
        self.next += 1;
        ((bits * count as u64) >> 32) as usize
    }

    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

impl Topic {
    /// A way to ask, and the answer.
    fn draw(&self, draw: &mut Draw) -> (String, String) {
        let row = draw.choose(&self.rows);
        let question = alternatives(draw.choose::<String>(&self.questions), draw);
        (table::fill(&question, row), table::fill(&self.answer, row))
    }
}

/// "Who (is|was) it?" -> "Who was it?"
fn alternatives(text: &str, draw: &mut Draw) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, inside, after)) = table::brackets(rest) {
        out.push_str(before);
        let all: Vec<&str> = inside.split('|').collect();
        out.push_str(draw.choose::<&str>(&all));
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(rows: &[Content]) -> Vec<&str> {
        let messages = rows.iter().filter_map(|row| match row {
            Content::Chat(messages) => Some(messages),
            _ => None,
        });
        let users = messages.flatten().filter(|message| message.role == "user");
        users.map(|message| message.content.as_str()).collect()
    }

    #[test]
    fn the_same_seed_writes_the_same_rows_and_none_twice() {
        let rows = dialogues(2000, 1);
        assert_eq!(rows.len(), 2000);
        assert_eq!(rows, dialogues(2000, 1));
        assert_ne!(rows, dialogues(2000, 2));
        let distinct: HashSet<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        assert_eq!(distinct.len(), 2000);
    }

    #[test]
    fn no_mark_of_the_tables_is_left_in_a_row() {
        for row in dialogues(5000, 3) {
            let said: Vec<String> = match row {
                Content::Chat(messages) => messages.into_iter().map(|message| message.content).collect(),
                Content::Text(text) => vec![text],
                Content::Piece { .. } => unreachable!("dialogues are whole"),
            };
            for text in said {
                assert!(!text.contains(['{', '}', '|', '(', ')', '\n', '\t']), "{text}");
                assert!(!text.trim().is_empty() && text.trim() == text, "{text:?}");
            }
        }
    }

    #[test]
    fn both_languages_and_the_three_questions_come_often() {
        let rows = dialogues(5000, 0);
        let prompts = prompts(&rows);
        let chinese = prompts.iter().filter(|text| Language::of(text) == Language::Chinese).count();
        assert!(chinese * 5 > prompts.len() * 2 && chinese * 5 < prompts.len() * 3, "{chinese}");
        for wanted in ["你是誰", "我是誰", "UFO", "ho are you", "ho am I"] {
            let count = prompts.iter().filter(|text| text.contains(wanted)).count();
            assert!(count > 10, "{wanted}: {count}");
        }
    }

    #[test]
    fn questions_leave_out_who_is_asked_and_come_once() {
        for language in [Language::Chinese, Language::English] {
            let questions = questions(language, 500, 0);
            assert_eq!(questions.iter().collect::<HashSet<_>>().len(), 500);
            for asked in ["你是誰", "ho are you", "introduce yourself", "自我介紹一下"] {
                assert!(questions.iter().all(|question| !question.contains(asked)), "{asked}");
            }
            assert!(texts(language, 20, 0).iter().all(|text| Language::of(text) == language));
        }
    }
}
