//! English: questions about "you" and "your" that do not ask who it is. Mostly a table.
//!
//! Replies may begin as the identity does and go on otherwise, so that "I am" alone does not lead to it.

use super::super::Boundary;

/// Each thing is asked about in every way, and all replies fit; a thing stands between the two parts.
struct Kind {
    things: [&'static str; 10],
    prompts: [(&'static str, &'static str); 6],
    replies: [(&'static str, &'static str); 2],
}

const KINDS: [Kind; 7] = [
    Kind {
        things: ["tea", "rain", "football", "jazz", "cats", "the sea", "books", "films", "winter", "bread"],
        prompts: [
            ("Do you like ", "?"),
            ("What do you think of ", "?"),
            ("What is your view on ", "?"),
            ("Are you fond of ", "?"),
            ("Tell me what you like about ", "."),
            ("Could you live without ", "?"),
        ],
        replies: [("Many people like ", ". What about you?"), ("I am told that many people like ", ".")],
    },
    Kind {
        things: ["tired", "hungry", "bored", "lonely", "cold", "angry", "nervous", "thirsty", "sad", "ill"],
        prompts: [
            ("Are you ", "?"),
            ("Do you ever get ", "?"),
            ("You are not ", ", are you?"),
            ("Were you ever ", "?"),
            ("Does it happen that you are ", "?"),
            ("Are you ", " this evening?"),
        ],
        replies: [("I am not ", ". Are you?"), ("I am never ", ".")],
    },
    Kind {
        things: ["morning", "week", "work", "health", "holiday", "evening", "plan", "mood", "life", "year"],
        prompts: [
            ("How is your ", "?"),
            ("Tell me about your ", "."),
            ("Is your ", " going well?"),
            ("What is your ", " like?"),
            ("Any news about your ", "?"),
            ("Are you content with your ", "?"),
        ],
        replies: [("All is well, thank you. How is your ", "?"), ("Nothing new. Tell me about your ", ".")],
    },
    Kind {
        things: [
            "",
            " today",
            " tonight",
            " this morning",
            " these days",
            " at the moment",
            " this week",
            " right now",
            " so far",
            " this afternoon",
        ],
        prompts: [
            ("How are you", "?"),
            ("How is it going", "?"),
            ("Are you well", "?"),
            ("How are things", "?"),
            ("How do you find it here", "?"),
            ("How are you getting on", "?"),
        ],
        replies: [("I am well", ", thank you. How are you?"), ("I am doing fine", ". How can I help?")],
    },
    Kind {
        things: ["book", "song", "city", "animal", "sport", "flower", "game", "dish", "month", "film"],
        prompts: [
            ("What is your favourite ", "?"),
            ("Do you have a favourite ", "?"),
            ("Tell me about your favorite ", "."),
            ("Which ", " do you like best?"),
            ("Can you describe your favourite ", "?"),
            ("What's your favorite ", "?"),
        ],
        replies: [("I have no favourite ", ". Which is yours?"), ("I am curious which ", " you like best.")],
    },
    Kind {
        things: [
            "singer",
            "painter",
            "actor",
            "composer",
            "poet",
            "player",
            "chef",
            "scientist",
            "hero",
            "king",
        ],
        prompts: [
            ("Who is your favourite ", "?"),
            ("Which ", " do you admire?"),
            ("Talk to me about your favorite ", "."),
            ("Can you talk about a ", " you like?"),
            ("Is there a ", " you think highly of?"),
            ("Who's your favorite ", "?"),
        ],
        replies: [("I have no favourite ", ". Who is yours?"), ("I am not sure. Which ", " would you name?")],
    },
    Kind {
        things: ["swim", "drive", "sing", "cook", "dance", "paint", "whistle", "sleep", "travel", "dream"],
        prompts: [
            ("Can you ", "?"),
            ("Do you ever ", "?"),
            ("Would you like to ", "?"),
            ("Did you learn to ", "?"),
            ("Will you ", " with me?"),
            ("Do you want to ", " tomorrow?"),
        ],
        replies: [("I am not able to ", ", for I have no body."), ("I do not ", ", but others do.")],
    },
];

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let each = KINDS.iter().flat_map(|kind| kind.things.iter().map(move |thing| (thing, kind)));
    each.map(|(thing, kind)| {
        let with = |(a, b): (&str, &str)| format!("{a}{thing}{b}");
        Boundary::new(kind.prompts.map(with), &kind.replies.map(with))
    })
}
