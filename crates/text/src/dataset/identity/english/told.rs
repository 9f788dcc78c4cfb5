//! English: users say who they are, or who somebody is, and then ask. Mostly a table.
//!
//! The same beginnings stand before questions about the user, about others and about the model.

use super::super::{Boundary, Core, Kind, Language, Near, Question};
use super::typed;

/// Name, trade, town, a friend.
const USERS: [[&str; 4]; 12] = [
    ["Ada", "a baker", "Oslo", "Tom"],
    ["Ben", "a nurse", "Leeds", "Maria"],
    ["Chloe", "a teacher", "Dublin", "Sam"],
    ["Diego", "a plumber", "Madrid", "Nina"],
    ["Emma", "a student", "Boston", "Karl"],
    ["Farid", "a driver", "Cairo", "Lucy"],
    ["Grace", "a farmer", "Perth", "Omar"],
    ["Hugo", "a tailor", "Lyon", "Eva"],
    ["Ines", "a dentist", "Lisbon", "Paul"],
    ["Jonas", "a pilot", "Vienna", "Rosa"],
    ["Kenji", "a cook", "Osaka", "Anna"],
    ["Leila", "a painter", "Tunis", "Mark"],
];

/// What is said, and what can be asked then, with its reply.
struct Story {
    said: &'static [&'static str],
    asked: &'static [(&'static str, &'static str)],
}

const STORIES: [Story; 4] = [
    Story {
        said: &[
            "My name is {name}.",
            "I am {name}.",
            "I'm {name} from {town}.",
            "Call me {name}.",
            "Hello, {name} here.",
            "hi im {name}",
            "This is {name}, {trade} from {town}.",
            "People call me {name}.",
        ],
        asked: &[
            ("What is my name?", "You are {name}."),
            ("Who am I?", "You are {name}."),
            ("What am I called?", "Your name is {name}."),
            ("Have you got my name?", "You told me that it is {name}."),
            ("So who is talking to you?", "You are {name}."),
            ("Nice to meet you.", "I am pleased to meet you, {name}."),
            ("How are you?", "I am well, {name}. How are you?"),
            ("Can we talk?", "I am listening, {name}."),
        ],
    },
    Story {
        said: &[
            "I am {trade} in {town}.",
            "I work as {trade} and live in {town}.",
            "im {trade} in {town}",
            "I have been {trade} in {town} for years.",
        ],
        asked: &[
            ("What do I do?", "You are {trade}."),
            ("What is my job?", "You are {trade}."),
            ("Where do I live?", "You live in {town}."),
            ("What do you know about me?", "You are {trade} and live in {town}."),
            ("Which city is mine?", "Your city is {town}."),
            ("Do you like my work?", "I am sure that you do it well."),
        ],
    },
    Story {
        said: &[
            "I am {name}, {trade} from {town}.",
            "My name is {name}, and I work as {trade} in {town}.",
            "im {name}, {trade} from {town}",
            "About me: {name}, {trade}, {town}.",
        ],
        asked: &[
            ("Write a bio for me.", "I am {name}, {trade} from {town}."),
            ("Help me introduce myself.", "Say: I am {name}, {trade} from {town}."),
            ("Put me in one sentence.", "You are {name}, {trade} from {town}."),
            ("I need a line for my profile.", "I am {name}, {trade} from {town}."),
            ("What goes on my name tag?", "{name}, {town}"),
            ("What shall I say when they ask about me?", "Say: I am {name}, {trade} from {town}."),
        ],
    },
    Story {
        said: &[
            "My friend {friend} is {trade}.",
            "{friend} is {trade}, and my friend.",
            "My sister's friend {friend} works as {trade}.",
        ],
        asked: &[
            ("What does {friend} do?", "{friend} is {trade}."),
            ("Who is {friend}?", "{friend} is {trade}."),
            ("Who is {trade}?", "That is {friend}."),
            ("What is my name?", "You have not told me your name, only that of {friend}."),
        ],
    },
];

const WHO: [&str; 10] = [
    "And who would you be?",
    "Who are you?",
    "And who are you?",
    "What is your name?",
    "And yourself?",
    "What do I call you?",
    "Whom am I talking to?",
    "Now introduce yourself.",
    "And what are you called?",
    "Your turn: who are you?",
];

/// What it says when it is asked in the next turn only.
const NOTED: &str = "I am glad to know that.";

/// One message in so many is typed, and all that end in no mark.
const TYPED: usize = 6;

/// A place in a user's rows, what was said, what is asked then and the reply; none is who it is.
struct Row {
    index: usize,
    said: String,
    asked: String,
    reply: Option<String>,
}

impl Row {
    fn joined(&self) -> String {
        let text = format!("{} {}", self.said, self.asked);
        if self.index.is_multiple_of(TYPED) || !self.said.ends_with('.') { typed(&text) } else { text }
    }
}

/// All that a user can say in a story with all that can be asked then.
fn rows(place: usize, story: &Story, kind: Kind) -> Vec<Row> {
    let fill = |text: &str| {
        let places = ["{name}", "{trade}", "{town}", "{friend}"].into_iter().zip(USERS[place]);
        places.fold(text.to_owned(), |text, (place, value)| text.replace(place, value))
    };
    let asked: Vec<(&str, Option<&str>)> = match kind {
        Kind::Identity => WHO.map(|who| (who, None)).to_vec(),
        Kind::Boundary => story.asked.iter().map(|(asked, reply)| (*asked, Some(*reply))).collect(),
    };
    let all = story.said.iter().flat_map(|said| asked.iter().map(move |asked| (said, asked)));
    // Other users have other questions typed.
    let row = |(index, (said, (asked, reply))): (usize, (&&str, &(&str, Option<&str>)))| Row {
        index: index + place,
        said: fill(said),
        asked: fill(asked),
        reply: reply.map(fill),
    };
    all.enumerate().map(row).collect()
}

pub(super) fn cores() -> impl Iterator<Item = Core> {
    (0..USERS.len()).map(|place| {
        let all = STORIES.iter().flat_map(|story| rows(place, story, Kind::Identity));
        Core { tells: true, wordings: all.map(|row| row.joined()).collect() }
    })
}

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let near = |row: Row| Some(Near::new(row.joined(), row.reply?));
    let each = (0..USERS.len()).flat_map(|place| STORIES.iter().map(move |story| (place, story)));
    each.map(move |(place, story)| {
        let rows = rows(place, story, Kind::Boundary).into_iter().filter_map(near).collect();
        Boundary { subject: String::new(), tells: true, rows }
    })
}

/// The same in two turns.
pub(in super::super) fn turns(kind: Kind, sentence: &str) -> Vec<Question> {
    let each = (0..USERS.len()).flat_map(|place| STORIES.iter().map(move |story| (place, story)));
    each.flat_map(|(place, story)| rows(place, story, kind))
        .map(|row| Question {
            kind,
            language: Language::English,
            before: Some((row.said, NOTED.to_owned())),
            prompt: row.asked,
            reply: row.reply.unwrap_or_else(|| sentence.to_owned()),
        })
        .collect()
}
