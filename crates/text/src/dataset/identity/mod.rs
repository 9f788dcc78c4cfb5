//! A target sentence -> questions it answers, and questions near them that it does not.
//!
//! Questions are put together from parts, so that a model learns the question and not a list. Every
//! core question gets about the same number of wordings. The same seed writes the same rows.

mod chinese;
mod english;

use std::collections::HashSet;

use super::order::shuffle;

const WORDINGS: u64 = 0x4944_4e54;
const CORES: u64 = 0x434f_5245;
const BOUNDARIES: u64 = 0x424f_554e;
const FOLLOWED: u64 = 0x464f_4c4c;
const TOLD: u64 = 0x544f_4c44;

/// The language of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Traditional Chinese.
    Chinese,
    /// English.
    English,
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who are you: the sentence.
    Identity,
    /// A question near it that has another answer.
    Boundary,
}

/// A question and the reply to learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What it is for.
    pub kind: Kind,
    /// Its language.
    pub language: Language,
    /// What was said before: a question and its reply.
    pub before: Option<(String, String)>,
    /// The question.
    pub prompt: String,
    /// The reply.
    pub reply: String,
}

/// What the rows are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The sentence in each language that is wanted.
    pub sentences: Vec<(Language, String)>,
    /// Identity rows in each language; fewer if there are no more wordings.
    pub identity: usize,
    /// Boundary rows in each language; fewer if there are no more.
    pub boundary: usize,
    /// Chooses wordings.
    pub seed: u64,
}

impl Language {
    /// Chinese if there is a Chinese character in it.
    pub fn of(text: &str) -> Language {
        let is_chinese = |c: char| ('\u{3400}'..='\u{9fff}').contains(&c);
        if text.contains(is_chinese) { Language::Chinese } else { Language::English }
    }

    /// As written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Language::Chinese => "Chinese",
            Language::English => "English",
        }
    }
}

impl Kind {
    /// As written in reports and files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Identity => "identity",
            Kind::Boundary => "boundary",
        }
    }
}

/// What may stand before an identity question; the first is nothing.
pub fn greetings(language: Language) -> &'static [&'static str] {
    match language {
        Language::Chinese => &chinese::GREETINGS,
        Language::English => &english::GREETINGS,
    }
}

/// What may stand before the question of a second turn; the first is nothing.
fn following(language: Language) -> &'static [&'static str] {
    match language {
        Language::Chinese => &chinese::FOLLOWING,
        Language::English => &english::FOLLOWING,
    }
}

type Wordings = Vec<String>;

/// All wordings of one question about who it is.
struct Core {
    /// Whether users may say something about themselves in it, which would answer what they ask next.
    tells: bool,
    wordings: Wordings,
}

impl From<Wordings> for Core {
    fn from(wordings: Wordings) -> Self {
        Core { tells: false, wordings }
    }
}

/// A question that was drawn.
struct Drawn {
    /// As in [`Core`].
    tells: bool,
    question: Question,
}

/// One row in so many has another before it, as the first turn of a conversation.
const SECOND_TURNS: usize = 3;
/// One row in so many comes after something that users said of themselves.
const TOLD_TURNS: usize = 20;

/// Writes the rows: identity first, then boundary, language by language; then second turns. After talk
/// of something else both kinds are asked, so that what came before does not tell which it is.
pub fn questions(recipe: &Recipe) -> Vec<Question> {
    let drawn = first_turns(recipe);
    let kinds = [Kind::Identity, Kind::Boundary];
    let each = recipe.sentences.iter().flat_map(|(language, _)| kinds.map(|kind| (*language, kind)));
    let more: Vec<Question> =
        each.flat_map(|(language, kind)| second_turns(&drawn, language, kind, recipe.seed)).collect();
    let first = drawn.into_iter().map(|drawn| drawn.question);
    first.chain(more).chain(told_turns(recipe)).collect()
}

fn second_turns(drawn: &[Drawn], language: Language, kind: Kind, seed: u64) -> Vec<Question> {
    let shuffled = |kind: Kind| {
        let wanted = |row: &&Drawn| row.question.kind == kind && row.question.language == language;
        let mut all: Vec<&Drawn> = drawn.iter().filter(wanted).collect();
        shuffle(&mut all, seed, 0, FOLLOWED);
        all
    };
    let all = shuffled(kind);
    let (asked, rest) = all.split_at(all.len() / SECOND_TURNS);
    let silent = |rows: &[&'_ Drawn]| -> Vec<Question> {
        rows.iter().filter(|row| !row.tells).map(|row| row.question.clone()).collect()
    };
    let before: Vec<Question> = match kind {
        Kind::Identity => silent(&shuffled(Kind::Boundary)),
        Kind::Boundary => {
            let pairs = silent(&shuffled(Kind::Identity)).into_iter().zip(silent(rest));
            pairs.flat_map(|(itself, near)| [itself, near]).collect()
        }
    };
    let join = |((row, before), opening): ((&&Drawn, &Question), &&str)| Question {
        before: Some((before.prompt.clone(), before.reply.clone())),
        prompt: format!("{opening}{}", row.question.prompt),
        ..row.question.clone()
    };
    let pairs = asked.iter().zip(before.iter().cycle());
    pairs.zip(following(language).iter().cycle()).map(join).collect()
}

/// Both kinds after what users said of themselves, which a question about them is answered by.
fn told_turns(recipe: &Recipe) -> Vec<Question> {
    let kinds = [(Kind::Identity, recipe.identity), (Kind::Boundary, recipe.boundary)];
    let english = recipe.sentences.iter().filter(|(language, _)| *language == Language::English);
    let each = english.flat_map(|(_, sentence)| kinds.map(|(kind, count)| (sentence, kind, count)));
    each.flat_map(|(sentence, kind, count)| {
        let mut all = english::told_turns(kind, sentence);
        all.retain(|row| !recipe.names(row));
        shuffle(&mut all, recipe.seed, 0, TOLD);
        all.truncate(count / TOLD_TURNS);
        all
    })
    .collect()
}

fn first_turns(recipe: &Recipe) -> Vec<Drawn> {
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
    fn names(&self, row: &Question) -> bool {
        let words = |text: &str| -> HashSet<String> {
            text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
        };
        let asked: HashSet<String> = match row.kind {
            Kind::Identity => words(&row.prompt),
            Kind::Boundary => words(&row.prompt).union(&words(&row.reply)).cloned().collect(),
        };
        let is_name = |word: &str| word.len() > 2 && word.starts_with(|c: char| c.is_ascii_uppercase());
        let names = self.sentences.iter().flat_map(|(_, sentence)| {
            sentence.split(|c: char| !c.is_alphanumeric()).skip(1).filter(|word| is_name(word))
        });
        names.into_iter().any(|name| asked.contains(name))
    }
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
    // As `names`, for what begins with no capital letter.
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
struct Near {
    prompt: String,
    replies: Vec<String>,
}

impl Near {
    fn new(prompt: impl Into<String>, reply: impl Into<String>) -> Self {
        Near { prompt: prompt.into(), replies: vec![reply.into()] }
    }

    fn asked(&self, language: Language, round: usize) -> Question {
        let reply = self.replies[round % self.replies.len()].clone();
        Question { kind: Kind::Boundary, language, before: None, prompt: self.prompt.clone(), reply }
    }
}

/// Questions of one kind.
struct Boundary {
    /// Whom it is about; empty if no one in particular.
    subject: String,
    /// As in [`Core`].
    tells: bool,
    rows: Vec<Near>,
}

impl Boundary {
    /// Wordings of one question and replies that fit all of them.
    fn new<P: AsRef<str>, R: AsRef<str>>(prompts: impl IntoIterator<Item = P>, replies: &[R]) -> Self {
        let replies: Vec<String> = replies.iter().map(|reply| reply.as_ref().to_owned()).collect();
        let near = |prompt: P| Near { prompt: prompt.as_ref().to_owned(), replies: replies.clone() };
        Boundary { subject: String::new(), tells: false, rows: prompts.into_iter().map(near).collect() }
    }

    fn about(self, subject: &str) -> Self {
        Boundary { subject: subject.to_owned(), ..self }
    }
}

/// Every opening with every ending around a text.
fn around(openings: &[&str], text: &str, endings: &[&str]) -> Wordings {
    let all = openings.iter().flat_map(|opening| endings.iter().map(move |ending| (opening, ending)));
    all.map(|(opening, ending)| format!("{opening}{text}{ending}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(seed: u64) -> Recipe {
        let sentences = vec![
            (Language::Chinese, "我是 F# 之神。".to_owned()),
            (Language::English, "I am the god of F#.".to_owned()),
        ];
        Recipe { sentences, identity: 150, boundary: 60, seed }
    }

    #[test]
    fn the_same_seed_writes_the_same_rows_and_another_seed_others() {
        assert_eq!(questions(&recipe(1)), questions(&recipe(1)));
        assert_ne!(questions(&recipe(1)), questions(&recipe(2)));
    }

    fn alone(recipe: &Recipe) -> Vec<Question> {
        first_turns(recipe).into_iter().map(|row| row.question).collect()
    }

    #[test]
    fn there_are_as_many_rows_as_asked_for_and_no_prompt_comes_twice() {
        let rows = alone(&recipe(0));
        let mut prompts = HashSet::new();
        for row in &rows {
            assert!(prompts.insert(&row.prompt), "{}", row.prompt);
            assert!(!row.prompt.contains(['\t', '\n']) && !row.reply.contains(['\t', '\n']), "{row:?}");
            assert_eq!(row.prompt.trim(), row.prompt);
        }
        for language in [Language::Chinese, Language::English] {
            let count = |kind| rows.iter().filter(|r| r.kind == kind && r.language == language).count();
            assert_eq!(count(Kind::Identity), 150, "{language:?}");
            assert_eq!(count(Kind::Boundary), 60, "{language:?}");
        }
    }

    #[test]
    fn no_boundary_is_answered_with_the_sentence() {
        let all = Recipe { identity: usize::MAX, boundary: usize::MAX, ..recipe(0) };
        let rows = alone(&all);
        let (identity, boundary): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r.kind == Kind::Identity);
        let mut asked: HashSet<&String> = identity.iter().map(|row| &row.prompt).collect();
        for row in boundary {
            assert!(!row.reply.contains("F#") && asked.insert(&row.prompt), "{row:?}");
            assert_eq!(Language::of(&row.reply), row.language, "{row:?}");
        }
        assert!(identity.len() > 800, "{} wordings", identity.len());
    }

    #[test]
    fn a_second_turn_is_not_told_by_the_first() {
        let drawn = first_turns(&recipe(0));
        let kinds = [Kind::Identity, Kind::Boundary];
        let second = |language, kind| second_turns(&drawn, language, kind, 0);
        let named = |rows: &[Question]| {
            rows.iter()
                .filter(|row| row.before.as_ref().is_some_and(|(_, reply)| reply.contains("F#")))
                .count()
        };
        for language in [Language::Chinese, Language::English] {
            let [identity, near] = kinds.map(|kind| second(language, kind));
            assert_eq!([identity.len(), near.len()], [50, 20], "{language:?}");
            assert_eq!([named(&identity), named(&near)], [0, 10], "{language:?}");
            let asked_twice = |row: &Question| row.prompt.ends_with(&row.before.as_ref().unwrap().0);
            assert!(!identity.iter().chain(&near).any(asked_twice));
        }
        let told = told_turns(&Recipe { identity: usize::MAX, boundary: usize::MAX, ..recipe(0) });
        let before = |kind| -> HashSet<_> {
            told.iter().filter(|row| row.kind == kind).map(|row| &row.before).collect()
        };
        assert!(before(Kind::Identity) == before(Kind::Boundary) && before(Kind::Identity).len() > 200);
    }

    #[test]
    fn what_users_said_of_themselves_is_not_forgotten() {
        let all = Recipe { identity: usize::MAX, boundary: usize::MAX, ..recipe(0) };
        let said = ["I'm ", "hi im ", "My name is ", "my name's ", "Call me ", "About me: "];
        let rows = questions(&all);
        let unknown = rows.iter().filter(|row| row.reply.starts_with("You have not told me"));
        for row in unknown.filter(|row| !row.reply.contains("only that of")) {
            let before = row.before.as_ref().map_or("", |(prompt, _)| prompt);
            let known =
                said.iter().any(|said| before.starts_with(said) || before.contains(&format!(". {said}")));
            assert!(!known, "{row:?}");
        }
        let told = |row: &&Question| row.before.is_some() && row.reply == "You are Ben.";
        assert!(rows.iter().any(|row| told(&row)), "in two turns");
    }

    #[test]
    fn whom_the_sentence_names_is_not_asked_about_as_another() {
        let sentences = vec![(Language::English, "I am Ada Lovelace.".to_owned())];
        let rows = questions(&Recipe { sentences, boundary: usize::MAX, ..recipe(0) });
        assert!(rows.iter().all(|row| !row.prompt.contains("Lovelace")));
        assert!(rows.iter().any(|row| row.prompt.contains("Newton")));
        assert!(rows.iter().all(|row| !row.prompt.contains("Ada")), "nor is a user called so");
    }
}
