//! Flags that name training data, and a model's own way to turn it into tokens.

use clap::Args;
use halfbyte_checkpoint::Checkpoint;
use halfbyte_text::dataset::{Dataset, Renderer, Settings, Source, document_end};
use halfbyte_text::{ChatTemplate, Message, Tokenizer};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::date::Date;
use crate::failure::{Failure, Result};
use crate::language;
use crate::output::Progress;

/// Positions of a sequence where nobody asked for another number.
const DEFAULT_LENGTH: usize = 1024;

/// Flags of every command that reads training data.
#[derive(Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct CorpusArgs {
    /// Data: .tsv (prompt, tab, target), .jsonl (messages, prompt/completion, instruction/output, text)
    /// or .txt; FILE:2 gives every row twice an epoch, FILE:0.5 half of them
    #[arg(long, value_name = "FILE[:WEIGHT]", required = true, num_args = 1..)]
    #[serde(serialize_with = "crate::config::list")]
    pub(crate) data: Vec<Source>,
    /// Tokens of a sequence; text is cut there, a reply that ends later is left out
    /// [default: the model's own limit, at most 1024]
    #[arg(long, value_name = "T")]
    pub(crate) seq: Option<usize>,
    /// Leave out rows without a reply to learn from, instead of refusing them
    #[arg(long)]
    pub(crate) skip_empty: bool,
    /// Train for `chat --no-think`: prompts end where the model has to answer at once
    #[arg(long)]
    pub(crate) no_think: bool,
}

impl CorpusArgs {
    /// Tokens of a sequence, checked.
    pub(crate) fn length(&self, most: usize) -> Result<usize> {
        length(self.seq, most)
    }

    /// Reads the data as this model sees it.
    pub(crate) fn read(&self, speech: &Speech, most: usize) -> Result<Dataset> {
        let settings = Settings { length: self.length(most)?, skip_empty: self.skip_empty };
        let size = |source: &Source| std::fs::metadata(&source.path).map_or(0, |file| file.len());
        let mut progress = Progress::new("reading", self.data.iter().map(size).sum());
        Ok(Dataset::read(&self.data, &speech.renderer(), &settings, &mut |bytes| progress.add(bytes))?)
    }
}

/// Tokens of a sequence of a model that takes `most`, checked.
pub(crate) fn length(asked: Option<usize>, most: usize) -> Result<usize> {
    let length = asked.unwrap_or(most.min(DEFAULT_LENGTH));
    match (2..=most).contains(&length) {
        true => Ok(length),
        false => Err(Failure::misuse(format!("--seq {length}: this model takes 2 to {most} tokens"))),
    }
}

/// A model's tokenizer, template and the tokens that end things.
pub(crate) struct Speech {
    pub(crate) tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    extra: Map<String, Value>,
    end_ids: Vec<u32>,
    start: Option<u32>,
    document_end: Option<u32>,
}

impl Speech {
    /// As the model has them; a template that asks for the date gets this one (Unix seconds).
    pub(crate) fn new(checkpoint: &Checkpoint, no_think: bool, time: u64) -> Result<Speech> {
        let tokenizer = language::tokenizer(checkpoint)?;
        let template = language::template(checkpoint, &tokenizer)?.map(|template| template.with_time(time));
        let end_ids = checkpoint.architecture.eos.clone();
        Ok(Speech {
            template,
            extra: thinking(no_think),
            start: language::start_token(checkpoint),
            document_end: document_end(&tokenizer, &end_ids),
            tokenizer,
            end_ids,
        })
    }

    /// Tells chat templates apart; empty where there is none.
    pub(crate) fn fingerprint(&self) -> String {
        self.template.as_ref().map(|template| format!("{:016x}", template.fingerprint())).unwrap_or_default()
    }

    /// What the model is fed before it answers a prompt, or goes on with it where it has no template.
    pub(crate) fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        if self.template.is_some() {
            return Ok(self.renderer().prompt(&[Message::new("user", text)])?);
        }
        let mut ids: Vec<u32> = self.start.into_iter().collect();
        ids.extend(self.tokenizer.encode(text)?);
        Ok(ids)
    }

    /// Whether this token ends a reply.
    pub(crate) fn ends(&self, id: u32) -> bool {
        self.end_ids.contains(&id)
    }

    pub(crate) fn renderer(&self) -> Renderer<'_> {
        Renderer {
            tokenizer: &self.tokenizer,
            template: self.template.as_ref(),
            extra: self.extra.clone(),
            end_ids: self.end_ids.clone(),
            start: self.start,
            document_end: self.document_end,
        }
    }
}

/// The template's variables for `--no-think`.
pub(crate) fn thinking(no_think: bool) -> Map<String, Value> {
    let set = no_think.then(|| ("enable_thinking".to_owned(), Value::Bool(false)));
    set.into_iter().collect()
}

/// The beginning of this day (UTC), so that all rows of a run see one date.
pub(crate) fn today() -> u64 {
    Date::today().seconds()
}
