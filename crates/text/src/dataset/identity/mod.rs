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

/// All wordings of one question.
type Core = Vec<String>;

/// One row in so many has another before it, as the first turn of a conversation.
const SECOND_TURNS: usize = 3;

/// Writes the rows: identity first, then boundary, language by language; then second turns. After talk
/// of something else both kinds are asked, so that what came before does not tell which it is.
pub fn questions(recipe: &Recipe) -> Vec<Question> {
    let mut rows = first_turns(recipe);
    let second = |kind: Kind, language: Language| {
        let shuffled = |wanted: Kind| {
            let wanted = |row: &&Question| row.kind == wanted && row.language == language;
            let mut all: Vec<&Question> = rows.iter().filter(wanted).collect();
            shuffle(&mut all, recipe.seed, 0, FOLLOWED);
            all
        };
        let (all, identity) = (shuffled(kind), shuffled(Kind::Identity));
        let (asked, rest) = all.split_at(all.len() / SECOND_TURNS);
        let before: Vec<&Question> = match kind {
            Kind::Identity => shuffled(Kind::Boundary),
            Kind::Boundary => identity.iter().zip(rest).flat_map(|(itself, near)| [*itself, *near]).collect(),
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
        rows.extend(prompts.into_iter().map(|prompt| Question {
            kind: Kind::Identity,
            language: *language,
            before: None,
            prompt,
            reply: sentence.clone(),
        }));
    }
    for (language, _) in &recipe.sentences {
        rows.extend(boundaries(*language, recipe));
    }
    rows
}

/// Takes wordings from every core in turn until there are enough.
fn spread(mut cores: Vec<Core>, count: usize, seed: u64) -> Vec<String> {
    shuffle(&mut cores, seed, 0, CORES);
    for (index, wordings) in cores.iter_mut().enumerate() {
        shuffle(wordings, seed, index as u64, WORDINGS);
    }
    let mut seen = HashSet::new();
    let longest = cores.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|round| cores.iter().filter_map(move |core| core.get(round)));
    in_turn.filter(|wording| seen.insert(wording.as_str())).take(count).cloned().collect()
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
        shuffle(&mut group.prompts, recipe.seed, 1 + index as u64, BOUNDARIES);
    }
    let longest = groups.iter().map(|group| group.prompts.len()).max().unwrap_or(0);
    let question = |round: usize, group: &Boundary| {
        let reply = group.replies.get(round % group.replies.len().max(1))?;
        let prompt = group.prompts.get(round)?;
        Some(Question {
            kind: Kind::Boundary,
            language,
            before: None,
            prompt: prompt.clone(),
            reply: reply.clone(),
        })
    };
    let in_turn =
        (0..longest).flat_map(|round| groups.iter().filter_map(move |group| question(round, group)));
    in_turn.take(recipe.boundary).collect()
}

/// Wordings of one question and replies that fit all of them.
struct Boundary {
    /// Whom it is about; empty if no one in particular.
    subject: String,
    prompts: Vec<String>,
    replies: Vec<String>,
}

impl Boundary {
    fn new(prompts: &[&str], replies: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Boundary { subject: String::new(), prompts: owned(prompts), replies: owned(replies) }
    }
}

/// Every opening with every ending around a text.
fn around(openings: &[&str], text: &str, endings: &[&str]) -> Core {
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
        let rows = first_turns(&all);
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
        let rows = questions(&recipe(0));
        let second: Vec<&Question> = rows.iter().filter(|row| row.before.is_some()).collect();
        for language in [Language::Chinese, Language::English] {
            let count = |kind| second.iter().filter(|r| r.kind == kind && r.language == language).count();
            assert_eq!((count(Kind::Identity), count(Kind::Boundary)), (50, 20), "{language:?}");
        }
        let after = |named: bool, kind: Kind| {
            let before =
                |row: &&&Question| row.before.as_ref().is_some_and(|(_, reply)| reply.contains("F#"));
            second.iter().filter(|row| before(row) == named && row.kind == kind).count()
        };
        assert_eq!([after(true, Kind::Identity), after(false, Kind::Identity)], [0, 100]);
        assert_eq!([after(true, Kind::Boundary), after(false, Kind::Boundary)], [20, 20]);
        assert!(
            second.iter().all(|row| !row.prompt.ends_with(&row.before.as_ref().unwrap().0)),
            "asked twice"
        );
    }

    #[test]
    fn whom_the_sentence_names_is_not_asked_about_as_another() {
        let sentences = vec![(Language::English, "I am Ada Lovelace.".to_owned())];
        let rows = questions(&Recipe { sentences, boundary: usize::MAX, ..recipe(0) });
        assert!(rows.iter().all(|row| !row.prompt.contains("Lovelace")));
        assert!(rows.iter().any(|row| row.prompt.contains("Newton")));
    }
}
