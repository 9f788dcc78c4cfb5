//! Rows from the tables: every question in turn, in the order that the seed gives.

use std::collections::HashSet;

use super::super::order::shuffle;
use super::{Kind, Language, Question, Recipe, chinese, english};

const WORDINGS: u64 = 0x4944_4e54;
const CORES: u64 = 0x434f_5245;
const BOUNDARIES: u64 = 0x424f_554e;

pub(super) type Wordings = Vec<String>;

/// All wordings of one question about who it is.
pub(super) struct Core {
    /// Whether users may say something about themselves in it, which would answer what they ask next.
    pub(super) tells: bool,
    pub(super) wordings: Wordings,
}

impl From<Wordings> for Core {
    fn from(wordings: Wordings) -> Self {
        Core { tells: false, wordings }
    }
}

/// A question that was drawn.
pub(super) struct Drawn {
    /// As in [`Core`].
    pub(super) tells: bool,
    pub(super) question: Question,
}

pub(super) fn first_turns(recipe: &Recipe) -> Vec<Drawn> {
    let mut rows = Vec::new();
    for (language, sentence) in &recipe.sentences {
        let cores = match language {
            Language::Chinese => chinese::cores(),
            Language::English => english::cores(),
        };
        let all = spread(cores, recipe.seed).into_iter().map(|(tells, prompt)| {
            let reply = sentence.clone();
            let question =
                Question { kind: Kind::Identity, language: *language, before: None, prompt, reply };
            Drawn { tells, question }
        });
        rows.extend(all.filter(|row| !recipe.names(&row.question)).take(recipe.identity));
    }
    for (language, _) in &recipe.sentences {
        rows.extend(boundaries(*language, recipe));
    }
    rows
}

impl Recipe {
    /// Whether a row speaks of someone whom a sentence names: no example of someone else, nor of the user.
    pub(super) fn names(&self, row: &Question) -> bool {
        let told = match row.kind {
            Kind::Identity => [&row.prompt, ""],
            Kind::Boundary => [&row.prompt, row.reply.as_str()],
        };
        let is_name = |word: &&str| word.len() > 2 && word.starts_with(|c: char| c.is_ascii_uppercase());
        let all = self.sentences.iter().flat_map(|(_, sentence)| words(sentence).skip(1));
        all.filter(is_name).any(|name| told.iter().any(|text| words(text).any(|word| word == name)))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric())
}

/// Takes wordings from every core in turn.
fn spread(mut cores: Vec<Core>, seed: u64) -> Vec<(bool, String)> {
    shuffle(&mut cores, seed, 0, CORES);
    for (index, core) in cores.iter_mut().enumerate() {
        shuffle(&mut core.wordings, seed, index as u64, WORDINGS);
    }
    let mut seen = HashSet::new();
    let longest = cores.iter().map(|core| core.wordings.len()).max().unwrap_or(0);
    let nth = |round: usize| {
        cores.iter().filter_map(move |core| Some((core.tells, core.wordings.get(round)?.clone())))
    };
    (0..longest).flat_map(nth).filter(|(_, wording)| seen.insert(wording.clone())).collect()
}

fn boundaries(language: Language, recipe: &Recipe) -> Vec<Drawn> {
    let groups = match language {
        Language::Chinese => chinese::boundaries(),
        Language::English => english::boundaries(),
    };
    // As `Recipe::names`, where a name has no capital letter or begins the sentence.
    let named = |subject: &str| {
        !subject.is_empty() && recipe.sentences.iter().any(|(_, sentence)| sentence.contains(subject))
    };
    let mut groups: Vec<Boundary> = groups.into_iter().filter(|group| !named(&group.subject)).collect();
    shuffle(&mut groups, recipe.seed, 0, BOUNDARIES);
    for (index, group) in groups.iter_mut().enumerate() {
        shuffle(&mut group.rows, recipe.seed, 1 + index as u64, BOUNDARIES);
    }
    let longest = groups.iter().map(|group| group.rows.len()).max().unwrap_or(0);
    let nth = |round: usize| {
        groups
            .iter()
            .filter_map(move |group| Some((group.tells, group.rows.get(round)?.asked(language, round))))
    };
    let mut seen = HashSet::new();
    let new = |row: &Drawn| seen.insert(row.question.prompt.clone()) && !recipe.names(&row.question);
    let drawn = (0..longest).flat_map(nth).map(|(tells, question)| Drawn { tells, question });
    drawn.filter(new).take(recipe.boundary).collect()
}

/// A question near it, and replies that fit.
#[derive(Clone)]
pub(super) struct Near {
    pub(super) prompt: String,
    pub(super) replies: Vec<String>,
}

impl Near {
    pub(super) fn new(prompt: impl Into<String>, reply: impl Into<String>) -> Self {
        Near { prompt: prompt.into(), replies: vec![reply.into()] }
    }

    fn asked(&self, language: Language, round: usize) -> Question {
        let reply = self.replies[round % self.replies.len()].clone();
        Question { kind: Kind::Boundary, language, before: None, prompt: self.prompt.clone(), reply }
    }
}

/// Questions of one kind.
pub(super) struct Boundary {
    /// Whom it is about; empty if no one in particular.
    pub(super) subject: String,
    /// As in [`Core`].
    pub(super) tells: bool,
    pub(super) rows: Vec<Near>,
}

impl Boundary {
    /// Wordings of one question and replies that fit all of them.
    pub(super) fn new<P: AsRef<str>, R: AsRef<str>>(
        prompts: impl IntoIterator<Item = P>,
        replies: &[R],
    ) -> Self {
        let replies: Vec<String> = replies.iter().map(|reply| reply.as_ref().to_owned()).collect();
        let near = |prompt: P| Near { prompt: prompt.as_ref().to_owned(), replies: replies.clone() };
        Boundary { subject: String::new(), tells: false, rows: prompts.into_iter().map(near).collect() }
    }

    pub(super) fn about(self, subject: &str) -> Self {
        Boundary { subject: subject.to_owned(), ..self }
    }
}

/// Every opening with every ending around a text.
pub(super) fn around(openings: &[&str], text: &str, endings: &[&str]) -> Wordings {
    let all = openings.iter().flat_map(|opening| endings.iter().map(move |ending| (opening, ending)));
    all.map(|(opening, ending)| format!("{opening}{text}{ending}")).collect()
}
