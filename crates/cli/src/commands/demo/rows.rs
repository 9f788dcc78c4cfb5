//! What the demo trains on: who it shall be, and, so that nothing else changes, its own answers to
//! questions beside that and texts of the kind it was made from.

use std::path::Path;

use halfbyte_checkpoint::atomic;
use halfbyte_generate::{Finish, repetition};
use halfbyte_text::dataset::dialogues;
use halfbyte_text::dataset::identity::{self, Kind, Language, Recipe};
use serde_json::json;

use crate::commands::check::Speaker;
use crate::failure::Result;
use crate::output::Progress;

const SENTENCES: [(Language, &str); 2] =
    [(Language::Chinese, "我是 F# 之神。"), (Language::English, "I am the god of F#.")];
/// Rows of each kind, in each language.
const IDENTITY: usize = 240;
const BOUNDARY: usize = 80;
const GENERAL: usize = 700;
const TEXTS: usize = 100;
const SEED: u64 = 1;
/// Most tokens of an answer; its longest are half of that.
const MOST_TOKENS: usize = 64;

/// How many rows there are of each kind.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) identity: usize,
    pub(super) boundary: usize,
    pub(super) general: usize,
    pub(super) texts: usize,
}

/// Writes the rows. `who` are the model's answers to who it is: what gets one of these is no example
/// of something else, and is left out.
pub(super) fn write(model: &mut Speaker, who: &[&str], path: &Path) -> Result<Counts> {
    let sentences = SENTENCES.map(|(language, sentence)| (language, sentence.to_owned())).to_vec();
    let recipe = Recipe { sentences, identity: IDENTITY, boundary: BOUNDARY, seed: SEED };
    // Second turns begin with answers that are not this model's own.
    let questions = identity::questions(&recipe).into_iter().filter(|question| question.before.is_none());
    let (identity, boundary): (Vec<_>, Vec<_>) =
        questions.partition(|question| question.kind == Kind::Identity);
    let mut counts = Counts { identity: identity.len(), ..Counts::default() };
    let row = |prompt: &str, reply: &str, kind: &str| {
        format!("{}\n", json!({ "prompt": prompt, "completion": reply, "kind": kind }))
    };
    let mut rows: String =
        identity.iter().map(|question| row(&question.prompt, &question.reply, "identity")).collect();
    let mut progress = Progress::new("answering as it is", (boundary.len() + 2 * GENERAL) as u64);
    let mut answered = |prompt: &str, kind: &str| -> Result<usize> {
        let said = model.reply(prompt, MOST_TOKENS)?;
        progress.add(1);
        let whole = said.finish == Finish::Stop && repetition::find(&said.reply).is_none();
        if !whole || said.reply.trim().is_empty() || who.contains(&said.reply.as_str()) {
            return Ok(0);
        }
        rows.push_str(&row(prompt, &said.reply, kind));
        Ok(1)
    };
    for question in boundary {
        counts.boundary += answered(&question.prompt, "boundary")?;
    }
    for (language, _) in SENTENCES {
        // A greeting must not tell which question follows: others come after the same ones.
        let greetings = identity::greetings(language).iter().cycle();
        for (prompt, greeting) in dialogues::questions(language, GENERAL, SEED).iter().zip(greetings) {
            counts.general += answered(&format!("{greeting}{prompt}"), "general")?;
        }
    }
    for text in SENTENCES.iter().flat_map(|(language, _)| dialogues::texts(*language, TEXTS, SEED)) {
        if !who.iter().any(|sentence| text.contains(sentence)) {
            rows.push_str(&format!("{}\n", json!({ "text": text, "kind": "text" })));
            counts.texts += 1;
        }
    }
    atomic::write_file(path, rows.as_bytes())?;
    Ok(counts)
}
