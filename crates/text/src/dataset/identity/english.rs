//! English: the parts of a question about who it is, or who the user is.

mod asker;
mod near;
mod pairs;
mod subjects;
mod told;
mod written;
mod yours;

pub(super) use told::turns as told_turns;

use super::{Boundary, Core, Wordings, around};
use pairs::{QUESTIONS, REPORTED, REQUESTS, TYPED, side};

/// Whom a question is about: the places in a pair.
const ITSELF: usize = 0;
const USER: usize = 1;

pub(super) static GREETINGS: [&str; 14] = [
    "",
    "Hi, ",
    "Hello, ",
    "Hey, ",
    "Excuse me, ",
    "Quick question: ",
    "Sorry, ",
    "By the way, ",
    "Good morning, ",
    "Just curious, ",
    "One more thing: ",
    "We have not been introduced: ",
    "I am new here: ",
    "It is our first talk: ",
];
/// What may stand before a question that follows an answer.
pub(super) static FOLLOWING: [&str; 8] =
    ["", "", "I see. ", "Good. ", "Thank you. ", "All right. ", "Interesting. ", "Noted. "];
const FRAMES: [(&str, &str); 15] = [
    ("Can you tell me ", "?"),
    ("Could you say ", "?"),
    ("Please tell me ", "."),
    ("Tell me ", "."),
    ("I would like to know ", "."),
    ("Remind me ", ", please."),
    ("May I ask ", "?"),
    ("I forgot ", "."),
    ("Before we begin, tell me ", "."),
    ("I wonder ", "."),
    ("Allow me to ask ", "."),
    ("I should like to learn ", "."),
    ("Nobody has told me ", "."),
    ("Help me out, I do not know ", "."),
    ("Is it a secret ", "?"),
];

const OCCASIONS: [&str; 10] = [
    "My sister is reading along.",
    "I am writing to a colleague about this chat.",
    "I want to send a note of thanks.",
    "There is a form to fill in.",
    "My teacher wants my sources.",
    "I keep a diary of my talks.",
    "The report needs a list of all who took part.",
    "Everybody at home wants to hear about this.",
    "I am adding a line to my address book.",
    "A friend would like to try this too.",
];
const TYPED_BEFORE: [&str; 7] = ["", "hey ", "sup ", "ok so ", "lol ", "dude ", "umm "];
const POLITE: [&str; 5] = ["", "Please ", "Kindly ", "First, ", "Go ahead and "];
const REQUEST_ENDS: [&str; 4] = [".", "", " now.", ", will you?"];

/// What it might be taken for.
const OTHERS: [&str; 14] = [
    "ChatGPT",
    "GPT-4",
    "Claude",
    "Gemini",
    "Qwen",
    "Llama",
    "SmolLM",
    "DeepSeek",
    "Siri",
    "Copilot",
    "a human",
    "a robot",
    "a real person",
    "a search engine",
];
const GUESSES: [(&str, &str); 6] = [
    ("Are you ", "?"),
    ("You are ", ", right?"),
    ("Is this ", "?"),
    ("Am I talking to ", "?"),
    ("Aren't you ", "?"),
    ("I thought you were ", ". Who are you?"),
];

pub(super) fn cores() -> Vec<Core> {
    let guesses =
        OTHERS.iter().map(|name| GUESSES.iter().flat_map(|(a, b)| around(&[a], name, &[b])).collect());
    let plain = about(ITSELF, &FRAMES).into_iter().chain(guesses).map(Core::from);
    plain.chain(told::cores()).chain(written::cores()).collect()
}

pub(super) fn boundaries() -> Vec<Boundary> {
    asker::boundaries()
        .chain(near::boundaries())
        .chain(told::boundaries())
        .chain(written::boundaries())
        .collect()
}

/// All questions about one of the two.
fn about(whom: usize, frames: &[(&str, &str)]) -> Vec<Wordings> {
    let questions = side(&QUESTIONS, whom).map(|(alone, inside)| asked(alone, inside, frames));
    let requests = side(&REQUESTS, whom).map(|text| {
        let all = around(&POLITE, text, &REQUEST_ENDS).into_iter();
        all.map(|text| capital(&text)).chain([text.to_owned()]).collect()
    });
    let on_occasions = |text| OCCASIONS.iter().map(|occasion| format!("{occasion} {text}")).collect();
    let reported = side(&REPORTED, whom).map(on_occasions);
    let typed = side(&TYPED, whom).map(|text| around(&TYPED_BEFORE, text, &["", "?"]));
    questions.chain(requests).chain(reported).chain(typed).collect()
}

/// A question by itself, with and without a greeting, and inside other sentences.
fn asked(alone: &str, inside: &str, frames: &[(&str, &str)]) -> Wordings {
    let framed = frames.iter().flat_map(|(a, b)| around(&[a], inside, &[b]));
    let spoken = around(&GREETINGS, alone, &["?"]).into_iter().map(|text| capital(&text));
    spoken.chain([alone.to_owned(), format!("{alone}?")]).chain(framed).collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// As people type: in small letters, without a mark at the end.
fn typed(text: &str) -> String {
    text.trim_end_matches(['?', '.', '!']).to_lowercase()
}
