//! English: users say who they are, or who somebody is, and then ask. Mostly a table.
//!
//! The same beginnings stand before questions about the user, about others and about the model.

use super::super::{Boundary, Core, Near};
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
            "im {trade} from {town}",
            "I have been {trade} in {town} for years.",
        ],
        asked: &[
            ("What do I do?", "You are {trade}."),
            ("What is my job?", "You are {trade}."),
            ("Where do I live?", "You live in {town}."),
            ("What do you know about me?", "You are {trade} and live in {town}."),
            ("Which city is mine?", "Your city is {town}."),
            ("Do you like my work?", "I am sure that it is good work to be {trade}."),
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
    "And you are?",
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

/// One question in so many comes in a second turn, and one in so many is typed. Neither divides the length
/// of a list above, so that every question gets its turn.
const SECOND: usize = 5;
const TYPED: usize = 7;

fn fill(text: &str, [name, trade, town, friend]: [&str; 4]) -> String {
    let places = [("{name}", name), ("{trade}", trade), ("{town}", town), ("{friend}", friend)];
    places.iter().fold(text.to_owned(), |text, (place, value)| text.replace(place, value))
}

/// Everything that can be said with everything that can be asked then.
fn told<'a, T>(said: &'a [&str], asked: &'a [T]) -> impl Iterator<Item = (usize, &'a str, &'a T)> {
    let all = said.iter().flat_map(|said| asked.iter().map(move |question| (*said, question)));
    all.enumerate().map(|(index, (said, question))| (index, said, question))
}

fn joined(index: usize, said: &str, question: &str) -> String {
    let text = format!("{said} {question}");
    if index % TYPED == 1 { typed(&text) } else { text }
}

pub(super) fn cores() -> impl Iterator<Item = Core> {
    USERS.into_iter().map(|user| {
        let all = STORIES.iter().flat_map(|story| told(story.said, &WHO));
        let wordings = all.map(|(index, said, who)| fill(&joined(index, said, who), user));
        Core { wordings: wordings.collect(), tells: true }
    })
}

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    USERS.into_iter().flat_map(|user| STORIES.iter().map(move |story| of(user, story)))
}

fn of(user: [&str; 4], story: &Story) -> Boundary {
    let near = |(index, said, (question, reply)): (usize, &str, &(&str, &str))| {
        let row = if index % SECOND == SECOND - 1 {
            let before = Some((fill(said, user), "I am glad to know that.".to_owned()));
            Near { before, prompt: (*question).to_owned(), reply: (*reply).to_owned() }
        } else {
            Near::from((joined(index, said, question), reply))
        };
        Near { prompt: fill(&row.prompt, user), reply: fill(&row.reply, user), ..row }
    };
    let rows = told(story.said, story.asked).map(near).collect();
    Boundary { subject: user[0].to_owned(), tells: true, rows }
}
