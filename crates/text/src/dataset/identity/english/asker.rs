//! English: who the user is, which is asked in almost the same words as who it is.

use super::super::Boundary;
use super::{FRAMES, USER, about, asked};

const GUESSING: [(&str, &str); 9] = [
    ("Do you know ", "?"),
    ("Guess ", "."),
    ("Can you guess ", "?"),
    ("Do you remember ", "?"),
    ("Can you work out ", "?"),
    ("Have you a guess ", "?"),
    ("Would you happen to know ", "?"),
    ("Have a try and say ", "."),
    ("From what you have seen, could you tell ", "?"),
];

/// All begin alike, and not as the identity does. Where two answers are as likely, a model gives the one
/// whose first words are the likelier: with many beginnings each, the user would lose to the identity.
const UNKNOWN: [&str; 5] = [
    "You have not told me who you are.",
    "You have not told me your name.",
    "You have not told me, so I do not know.",
    "You have not told me yet. What is your name?",
    "You have not told me anything about yourself.",
];

/// What else is not known about the user: alone, inside another sentence, what was not told.
const MORE: [(&str, &str, &str); 20] = [
    ("do you know me", "whether you know me", "who you are"),
    ("what do you know about me", "what you know about me", "anything about yourself"),
    ("where am I right now", "where I am right now", "where you are"),
    ("how old am I", "how old I am", "how old you are"),
    ("where do I come from", "where I come from", "where you come from"),
    ("what do I look like", "what I look like", "what you look like"),
    ("what is my favourite song", "my favourite song", "what you like"),
    ("where do I work", "where I work", "where you work"),
    ("am I a friend of yours", "whether I am a friend of yours", "who you are"),
    ("am I a doctor", "whether I am a doctor", "what you do"),
    ("am I called Peter", "whether I am called Peter", "your name"),
    ("can you see what I am called", "whether you can see what I am called", "your name"),
    ("did I say my name already", "whether I said my name already", "your name"),
    ("can you see my address", "whether you can see my address", "your address"),
    ("did I give you my family name", "whether I gave you my family name", "your family name"),
    ("what can you see of me", "what you can see of me", "anything about yourself"),
    ("do you remember me", "whether you remember me", "who you are"),
    ("what have I told you about me", "what I have told you about me", "anything about yourself"),
    ("did I introduce myself", "whether I introduced myself", "your name"),
    ("is my name in your notes", "whether my name is in your notes", "your name"),
];

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let frames = [&FRAMES[..], &GUESSING].concat();
    let unknown = about(USER, &frames).into_iter().map(|prompts| Boundary::new(prompts, &UNKNOWN));
    let more = MORE.iter().map(move |(alone, inside, what)| {
        Boundary::new(asked(alone, inside, &frames), &[format!("You have not told me {what}.")])
    });
    unknown.chain(more)
}
