//! Second turns: what was said before must not tell which question follows.

use super::super::order::shuffle;
use super::draw::Drawn;
use super::{Kind, Language, Question, Recipe, chinese, english};

const FOLLOWED: u64 = 0x464f_4c4c;
const TOLD: u64 = 0x544f_4c44;

/// One row in so many has another before it, as the first turn of a conversation.
const SECOND_TURNS: usize = 3;
/// One row in so many comes after something that users said of themselves.
const TOLD_TURNS: usize = 20;

/// What may stand before the question of a second turn; the first is nothing.
fn following(language: Language) -> &'static [&'static str] {
    match language {
        Language::Chinese => &chinese::FOLLOWING,
        Language::English => &english::FOLLOWING,
    }
}

/// Rows after others. Before a near one it may have been asked who it is.
pub(super) fn second_turns(drawn: &[Drawn], language: Language, kind: Kind, seed: u64) -> Vec<Question> {
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
pub(super) fn told_turns(recipe: &Recipe) -> Vec<Question> {
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
