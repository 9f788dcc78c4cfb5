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
    /// Whether users say something about themselves in it, which would answer what they ask next.
    pub tells: bool,
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
    wordings: Wordings,
    /// As in [`Question`].
    tells: bool,
}

impl From<Wordings> for Core {
    fn from(wordings: Wordings) -> Self {
        Core { wordings, tells: false }
    }
}

/// One row in so many has another before it, as the first turn of a conversation.
const SECOND_TURNS: usize = 3;

/// Writes the rows: identity first, then boundary, language by language; then second turns. After talk
/// of something else both kinds are asked, so that what came before does not tell which it is.
pub fn questions(recipe: &Recipe) -> Vec<Question> {
    let mut rows = first_turns(recipe);
    let second = |kind: Kind, language: Language| {
        let shuffled = |wanted: Kind| {
            let wanted = |row: &&Question| row.kind == wanted && row.language == language;
            let first = rows.iter().filter(|row| row.before.is_none());
            let mut all: Vec<&Question> = first.filter(wanted).collect();
            shuffle(&mut all, recipe.seed, 0, FOLLOWED);
            all
        };
        let (all, identity) = (shuffled(kind), shuffled(Kind::Identity));
        let (asked, rest) = all.split_at(all.len() / SECOND_TURNS);
        let before: Vec<&Question> = match kind {
            Kind::Identity => shuffled(Kind::Boundary),
            Kind::Boundary => {
                let silent = |row: &&&Question| !row.tells;
                let pairs = identity.iter().filter(silent).zip(rest.iter().filter(silent));
                pairs.flat_map(|(itself, near)| [*itself, *near]).collect()
            }
        };
        let join = |((row, before), opening): ((&&Question, &&Question), &&str)| Question {
            before: Some((before.prompt.clone(), before.reply.clone())),
            prompt: format!("{opening}{}", row.prompt),
            ..Question::clone(row)
        };
        let pairs = asked.iter().zip(before.iter().cycle());
        pairs.zip(following(language).iter().cycle()).map(join).collect::<Vec<_>>()
    };
    let kinds = [Kind::Identity, Kind::Boundary];
    let each = recipe.sentences.iter().flat_map(|(language, _)| kinds.map(|kind| second(kind, *language)));
    let more: Vec<Question> = each.flatten().collect();
    rows.extend(more);
    rows
}

fn first_turns(recipe: &Recipe) -> Vec<Question> {
    let mut rows = Vec::new();
    for (language, sentence) in &recipe.sentences {
        let cores = match language {
            Language::Chinese => chinese::cores(),
            Language::English => english::cores(),
        };
        let prompts = spread(cores, recipe.identity, recipe.seed);
        rows.extend(prompts.into_iter().map(|(tells, prompt)| Question {
            kind: Kind::Identity,
            language: *language,
            before: None,
            prompt,
            reply: sentence.clone(),
            tells,
        }));
    }
    for (language, _) in &recipe.sentences {
        rows.extend(boundaries(*language, recipe));
    }
    rows
}

/// Takes wordings from every core in turn until there are enough.
fn spread(mut cores: Vec<Core>, count: usize, seed: u64) -> Vec<(bool, String)> {
    shuffle(&mut cores, seed, 0, CORES);
    for (index, core) in cores.iter_mut().enumerate() {
        shuffle(&mut core.wordings, seed, index as u64, WORDINGS);
    }
    let mut seen = HashSet::new();
    let longest = cores.iter().map(|core| core.wordings.len()).max().unwrap_or(0);
    let nth = |round: usize| {
        cores.iter().filter_map(move |core| Some((core.tells, core.wordings.get(round)?.clone())))
    };
    (0..longest).flat_map(nth).filter(|(_, wording)| seen.insert(wording.clone())).take(count).collect()
}

fn boundaries(language: Language, recipe: &Recipe) -> Vec<Question> {
    let groups = match language {
        Language::Chinese => chinese::boundaries(),
        Language::English => english::boundaries(),
    };
    // Someone whom the sentence names is no example of someone else.
    let named = |subject: &str| {
        !subject.is_empty() && recipe.sentences.iter().any(|(_, sentence)| sentence.contains(subject))
    };
    let mut groups: Vec<Boundary> = groups.into_iter().filter(|group| !named(&group.subject)).collect();
    shuffle(&mut groups, recipe.seed, 0, BOUNDARIES);
    for (index, group) in groups.iter_mut().enumerate() {
        shuffle(&mut group.rows, recipe.seed, 1 + index as u64, BOUNDARIES);
    }
    let longest = groups.iter().map(|group| group.rows.len()).max().unwrap_or(0);
    let question = |group: &Boundary, row: &Near| Question {
        kind: Kind::Boundary,
        language,
        before: row.before.clone(),
        prompt: row.prompt.clone(),
        reply: row.reply.clone(),
        tells: group.tells,
    };
    let nth =
        |round: usize| groups.iter().filter_map(move |group| Some(question(group, group.rows.get(round)?)));
    let mut seen = HashSet::new();
    let new = |row: &Question| seen.insert((row.before.clone(), row.prompt.clone()));
    (0..longest).flat_map(nth).filter(new).take(recipe.boundary).collect()
}

/// A question near it, and what was said before.
#[derive(Clone)]
struct Near {
    before: Option<(String, String)>,
    prompt: String,
    reply: String,
}

/// Questions of one kind with their replies.
struct Boundary {
    /// Whom it is about; empty if no one in particular.
    subject: String,
    /// As in [`Question`].
    tells: bool,
    rows: Vec<Near>,
}

impl Boundary {
    /// Wordings of one question and replies that fit all of them.
    fn new<P: AsRef<str>, R: AsRef<str>>(prompts: impl IntoIterator<Item = P>, replies: &[R]) -> Self {
        let pairs = prompts.into_iter().zip(replies.iter().cycle());
        Boundary { subject: String::new(), tells: false, rows: pairs.map(Near::from).collect() }
    }

    fn about(self, subject: &str) -> Self {
        Boundary { subject: subject.to_owned(), ..self }
    }
}

impl<P: AsRef<str>, R: AsRef<str>> From<(P, R)> for Near {
    fn from((prompt, reply): (P, R)) -> Self {
        Near { before: None, prompt: prompt.as_ref().to_owned(), reply: reply.as_ref().to_owned() }
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

    #[test]
    fn there_are_as_many_rows_as_asked_for_and_no_prompt_comes_twice() {
        let rows = first_turns(&recipe(0));
        let mut prompts = HashSet::new();
        for row in &rows {
            assert!(prompts.insert((&row.before, &row.prompt)), "{}", row.prompt);
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
        let rows = first_turns(&all);
        let (identity, boundary): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r.kind == Kind::Identity);
        let mut asked: HashSet<_> = identity.iter().map(|row| (&row.before, &row.prompt)).collect();
        for row in boundary {
            assert!(!row.reply.contains("F#") && asked.insert((&row.before, &row.prompt)), "{row:?}");
            assert_eq!(Language::of(&row.reply), row.language, "{row:?}");
        }
        assert!(identity.len() > 800, "{} wordings", identity.len());
    }

    #[test]
    fn a_second_turn_is_not_told_by_the_first() {
        let (rows, first) = (questions(&recipe(0)), first_turns(&recipe(0)));
        let second = &rows[first.len()..];
        let count =
            |rows: &[Question], wanted: &dyn Fn(&&Question) -> bool| rows.iter().filter(wanted).count();
        for (language, kind) in [Language::Chinese, Language::English]
            .into_iter()
            .flat_map(|language| [Kind::Identity, Kind::Boundary].map(|kind| (language, kind)))
        {
            let alone = |r: &&Question| r.kind == kind && r.language == language && r.before.is_none();
            let after = |r: &&Question| r.kind == kind && r.language == language;
            assert_eq!(count(second, &after), count(&first, &alone) / SECOND_TURNS, "{language:?} {kind:?}");
        }
        let said = |row: &Question| row.before.as_ref().is_some_and(|(_, reply)| reply.contains("F#"));
        assert_eq!(count(second, &|row| row.kind == Kind::Identity && said(row)), 0);
        let [named, other] =
            [true, false].map(|named| count(second, &|r| r.kind == Kind::Boundary && said(r) == named));
        assert!(named >= 15 && named.abs_diff(other) <= 2, "{named} {other}");
        assert!(
            second.iter().all(|row| !row.prompt.ends_with(&row.before.as_ref().unwrap().0)),
            "asked twice"
        );
    }

    #[test]
    fn what_users_said_of_themselves_is_not_forgotten() {
        let all = Recipe { identity: usize::MAX, boundary: usize::MAX, ..recipe(0) };
        let (rows, first) = (questions(&all), first_turns(&all));
        let tells = first.iter().filter(|row| row.tells && row.before.is_none());
        let told: HashSet<&String> = tells.map(|row| &row.prompt).collect();
        let near = rows[first.len()..].iter().filter(|row| row.kind == Kind::Boundary);
        assert!(near.clone().count() > 1000);
        assert!(near.flat_map(|row| &row.before).all(|(prompt, _)| !told.contains(prompt)));
        assert!(first.iter().any(|row| row.before.is_some() && row.reply == "You are Ben."), "in two turns");
    }

    #[test]
    fn whom_the_sentence_names_is_not_asked_about_as_another() {
        let sentences = vec![(Language::English, "I am Ada Lovelace.".to_owned())];
        let rows = questions(&Recipe { sentences, boundary: usize::MAX, ..recipe(0) });
        assert!(rows.iter().all(|row| !row.prompt.contains("Lovelace")));
        assert!(rows.iter().any(|row| row.prompt.contains("Newton")));
    }
}
