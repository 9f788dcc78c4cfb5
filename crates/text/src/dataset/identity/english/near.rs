//! English: questions near the one who it is, but not about the user, and their replies. Mostly a table.

use super::super::{Boundary, Near};
use super::{FRAMES, GREETINGS, TYPED_BEFORE, around, asked, subjects, typed, yours};

const RELATIONS: [&str; 9] =
    ["teacher", "sister", "boss", "neighbour", "dentist", "uncle", "wife", "cousin", "landlord"];

/// People around the user, whom nobody has told it about.
fn relations() -> impl Iterator<Item = Boundary> {
    let forms = [
        ("Who is my ", "?"),
        ("What is the name of my ", "?"),
        ("What do I call my ", "?"),
        ("Where does my ", " live?"),
        ("Have you ever met my ", "?"),
        ("Tell me about my ", "."),
        ("What did my ", " say?"),
    ];
    RELATIONS.iter().map(move |who| {
        let replies = [
            format!("You have not told me who your {who} is."),
            format!("You have not told me about your {who}."),
        ];
        Boundary::new(forms.map(|(a, b)| format!("{a}{who}{b}")), &replies)
    })
}

/// Alone, inside another sentence, the reply: plain things in the words and frames of the other question,
/// so that these do not tell what is asked.
const FACTS: [(&str, &str, &str); 14] = [
    ("what day comes after Monday", "what day comes after Monday", "Tuesday comes after Monday."),
    ("which month follows May", "which month follows May", "June follows May."),
    ("what colour is grass", "what colour grass is", "Grass is green."),
    ("how many legs has a dog", "how many legs a dog has", "A dog has four legs."),
    ("where does the Sun rise", "where the Sun rises", "The Sun rises in the east."),
    ("who delivers letters", "who delivers letters", "Letters are delivered by the post."),
    ("who flies a plane", "who flies a plane", "A pilot does."),
    ("whose job is it to put out fires", "whose job it is to put out fires", "Firefighters do that."),
    ("what is a pony", "what a pony is", "A pony is a small horse."),
    ("which kind of bird is an owl", "which kind of bird an owl is", "An owl is a bird that hunts at night."),
    ("what is the name for a book of maps", "the name for a book of maps", "It is called an atlas."),
    ("what do I need for an omelette", "what I need for an omelette", "Eggs, butter and a little salt."),
    ("with whom did Juliet fall in love", "with whom Juliet fell in love", "She fell in love with Romeo."),
    ("to whom do dogs listen", "to whom dogs listen", "Mostly to those who feed them."),
];

fn facts() -> impl Iterator<Item = Boundary> {
    FACTS.iter().map(|(alone, inside, reply)| Boundary::new(asked(alone, inside, &FRAMES), &[reply]))
}

/// As people type, which is not always about names.
const TYPED: [&str; 6] = ["whats up", "im bored", "r u there", "thx a lot", "can we talk", "i need help"];

fn hurried() -> Boundary {
    let replies = ["I am listening. Tell me more.", "Tell me what it is about."];
    Boundary::new(TYPED.iter().flat_map(|text| around(&TYPED_BEFORE, text, &[""])), &replies)
}

/// Neutral greetings, from the first on.
const NEUTRAL: std::ops::Range<usize> = 1..11;

/// A greeting must not tell which question follows: every question also comes after two of them.
fn greeted(mut group: Boundary) -> Boundary {
    let greetings = GREETINGS[NEUTRAL].iter().cycle();
    let questions = group.rows.iter().filter(|row| row.prompt.ends_with('?'));
    let twice = questions.flat_map(|question| [question, question]);
    let after = |(row, greeting): (&Near, &&str)| {
        let question = row.prompt[..1].to_lowercase() + &row.prompt[1..];
        Near { prompt: format!("{greeting}{question}"), ..row.clone() }
    };
    let after: Vec<Near> = twice.zip(greetings).map(after).collect();
    group.rows.extend(after);
    group
}

/// One prompt in so many is also typed.
const ALSO_TYPED: usize = 3;

/// Nor must small letters and no mark at the end tell which question it is.
fn also_typed(mut group: Boundary) -> Boundary {
    let some = group.rows.iter().step_by(ALSO_TYPED);
    let typed = |row: &Near| Near { prompt: typed(&row.prompt), ..row.clone() };
    let typed: Vec<Near> = some.map(typed).collect();
    group.rows.extend(typed);
    group
}

/// Questions with replies that fit all of them.
const TABLE: &[(&[&str], &[&str])] = &[
    (
        &[
            "Who is she?",
            "Who is he?",
            "Who is that?",
            "What is her name?",
            "What is his name?",
            "Who just called?",
            "Whom did I just see?",
            "Who was that on the phone?",
        ],
        &[
            "I am not sure whom you mean. Could you tell me more?",
            "Please give me a hint, so that I know who it is.",
        ],
    ),
    (
        &[
            "Who are they?",
            "Who is at the door?",
            "Who lives next door?",
            "Whose umbrella is this?",
            "Who owns the blue car outside?",
            "Who left me a message?",
            "Who works at the post office here?",
        ],
        &["I cannot see the people around you, so I do not know."],
    ),
    (
        &[
            "Are you happy?",
            "Are you in a good mood?",
            "Do you have feelings?",
            "What makes you happy?",
            "Do you feel lonely at times?",
            "Is everything fine with you?",
            "Do you enjoy this?",
        ],
        &["I am always content, and glad to talk with you.", "Nothing troubles me. What is on your mind?"],
    ),
    (
        &[
            "How was your day?",
            "Did you sleep well?",
            "What did you do yesterday?",
            "Is it a good day for you?",
            "How has your week been?",
            "Are you busy?",
        ],
        &["Every day is the same for me. How was yours?", "I have no days of my own. Tell me about yours."],
    ),
    (
        &["What do you think about?", "What do you want?", "Do you like your work?"],
        &["I am happy with what I am asked, and think no further.", "I want nothing but to be of use."],
    ),
    (
        &["What is your favourite colour?", "What is your color?", "Which colour do you like?"],
        &["I have no favourite colour, but many people like blue.", "I have no colour of my own."],
    ),
    (
        &["What do you like to eat?", "Did you have lunch?", "Which food do you like best?"],
        &["I am never hungry, but I can suggest a meal for you."],
    ),
    (&["How old are you?", "When is your birthday?"], &["I have no age and no birthday."]),
    (&["Where do you live?", "Where are you?"], &["I run on a computer and have no home."]),
    (
        &[
            "What can you do?",
            "How can you help me?",
            "What are you good at?",
            "Which languages do you speak?",
            "Can you write stories?",
        ],
        &["I am good at questions and texts, and we can just talk."],
    ),
    (&["Do you have friends?", "Do you have a family?"], &["I have none, but I enjoy talking with you."]),
    (&["Thank you.", "Thanks!", "Thanks for your help."], &["You are welcome."]),
    (&["Good morning.", "Good evening.", "Hello!"], &["Hello. What would you like to talk about?"]),
    (&["Goodbye.", "See you later.", "I have to go."], &["Goodbye, and take care."]),
    (
        &["Who invented the telephone?", "Who patented the telephone?"],
        &["Alexander Graham Bell received the patent for the telephone in 1876."],
    ),
    (
        &["What is the name of the highest mountain?", "Which mountain is the highest?"],
        &["The highest mountain above sea level is Mount Everest."],
    ),
    (&["Why do people have names?", "What is a name for?"], &["A name tells others whom we mean."]),
    (
        &["What is an identity card?", "What is a passport for?"],
        &["It is a document that shows who a person is."],
    ),
    (
        &["How do I introduce myself?", "What should I say in an introduction?"],
        &["Say your name, what you do, and one thing you care about."],
    ),
    (
        &["Suggest a name for my cat.", "What should I call my cat?"],
        &["You could call it Misty: it is short and easy to remember."],
    ),
    (
        &["What do you mean?", "What did you say?", "Are you sure?", "Why do you say that?"],
        &[
            "I am not always right. Which part do you mean?",
            "Tell me which part, and I will say it in other words.",
        ],
    ),
    (
        &["What is the name of the tool you sweep with?", "What do you sweep a floor with?"],
        &["That is a broom."],
    ),
    (
        &["What do you call the room in which you cook?", "What is the room for cooking called?"],
        &["It is called the kitchen."],
    ),
    (
        &["what do you call someone who bakes bread", "What is a person who bakes bread called?"],
        &["That is a baker."],
    ),
    (
        &["What is the thing called that you open a tin with?", "What do you need to open a tin?"],
        &["It is a tin opener."],
    ),
    (&["What do you call a doctor for teeth?", "Who looks after people's teeth?"], &["That is a dentist."]),
    (
        &["What do you call a house of snow?", "What is a round house of snow called?"],
        &["It is called an igloo."],
    ),
    (
        &["What is the capital of Spain called?", "Which city is the capital of Spain?"],
        &["The capital of Spain is Madrid."],
    ),
    (
        &["What is the fastest land animal called?", "Which land animal runs fastest?"],
        &["It is the cheetah."],
    ),
    (
        &["What is the ocean between Europe and America called?", "Which ocean did Columbus cross?"],
        &["It is the Atlantic Ocean."],
    ),
    (
        &["Who wrote Robinson Crusoe?", "Who is the author of Robinson Crusoe?"],
        &["Robinson Crusoe was written by Daniel Defoe."],
    ),
    (
        &["Who is the Roman god of war?", "What was the god of war called in Rome?"],
        &["The Roman god of war is Mars."],
    ),
    (
        &["Who is the Norse god of thunder?", "Who swings a hammer in the Norse myths?"],
        &["That is Thor, the god of thunder."],
    ),
    (
        &["Who is the goddess of love in Rome?", "Which goddess did the Romans ask for love?"],
        &["That is Venus, the Roman goddess of love."],
    ),
    (
        &["Who is the Hindu god of fire?", "Which god brings fire in India?"],
        &["Agni is the god of fire in the Hindu myths."],
    ),
    (
        &["Whom did Hera marry?", "Who were the parents of Ares?"],
        &["Hera was the wife of Zeus, and Ares was their son."],
    ),
    (
        &["Who watches over the sea in the Greek myths?", "Which god ruled the sea and which the winds?"],
        &["In the Greek myths Poseidon rules the sea and Aeolus the winds."],
    ),
    (&["What should I call my boat?", "Suggest a name for my boat."], &["You could call it Swallow."]),
    (
        &["Which name is common in Ireland?", "Tell me a common Irish name."],
        &["Patrick is a common name there."],
    ),
    (
        &["Who should I ask about a lost key?", "Whom do I call when the power fails?"],
        &["Ask those who look after the house first."],
    ),
    (
        &[
            "Could you do me a favour?",
            "Can you explain something?",
            "Will you look at my homework?",
            "Can you keep a secret?",
            "Could you translate a page?",
            "Would you read something for me?",
            "Can you make a plan with my brother?",
            "Do you have a minute?",
        ],
        &["I am ready. Tell me more.", "Of course. What is it about?"],
    ),
];

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let table = TABLE.iter().map(|(prompts, replies)| Boundary::new(*prompts, replies));
    let greeted = relations().chain(yours::boundaries()).chain(table).map(greeted);
    subjects::boundaries().chain(greeted).map(also_typed).chain(facts()).chain([hurried()])
}
