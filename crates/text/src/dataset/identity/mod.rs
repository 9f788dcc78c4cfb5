//! A target sentence -> questions it answers, and questions near them that it does not.
//!
//! Questions are put together from parts, so that a model learns the question and not a list. Every
//! core question gets about the same number of wordings. The same seed writes the same rows.

mod chinese;
mod draw;
mod english;
mod turns;

use draw::{Boundary, Core, Near, Wordings, around, first_turns};
use turns::{second_turns, told_turns};

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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

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
