//! Messages -> token ids and the spans that are trained, by the template that chat renders with.
//!
//! For each reply the template is asked twice: for the prompt that chat would feed before it
//! (`messages[..i]` with the generation prompt) and for the conversation with the reply. What the
//! second has beyond the first is the reply, up to and with the last token that ends a turn; what the
//! template writes after that token is the next prompt's business and is not trained.
//!
//! **Tokens.** The prompt's ids are always those of the prompt text alone, because that is what chat
//! feeds. The reply's ids are what the whole text has after them. Where the whole text does not begin
//! with the prompt's ids (a token would straddle the edge, as with a reply that begins with a line
//! break after a prompt that ends with one), the reply is tokenised by itself.
//!
//! **Several replies** share one sample as long as each prompt goes on from the sample, text and ids.
//! A template that writes an old reply differently from a new one (Qwen3 drops old thoughts) gives one
//! sample for each reply instead, so that every reply is learned after the prompt chat would feed.

use serde_json::{Map, Value};
use std::ops::Range;

use crate::chat_template::{ChatTemplate, Message};
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// What turns rows into ids for one model.
pub struct Renderer<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's template, with its time fixed (`with_time`): a date must not change between rows.
    pub template: Option<&'a ChatTemplate>,
    /// Further variables of the template, such as `enable_thinking`; the same as in chat.
    pub extra: Map<String, Value>,
    /// Tokens that end a reply in chat.
    pub end_ids: Vec<u32>,
    /// The token a plain text starts with, for models that were trained so.
    pub start: Option<u32>,
    /// The token after a plain text; see [`document_end`].
    pub document_end: Option<u32>,
}

/// Ids and the ranges of them that are trained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The ids.
    pub tokens: Vec<u32>,
    /// Trained ranges, in order.
    pub trained: Vec<Range<usize>>,
}

/// A conversation as samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// One or more, each with a trained reply; none if the row has no reply.
    pub samples: Vec<Rendered>,
    /// Replies that end past the limit and are left out whole.
    pub too_long: usize,
    /// Replies that the template does not end with a token that ends a reply in chat.
    pub unended: usize,
}

/// One reply after its prompt.
struct Turn {
    prompt: String,
    whole: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    /// One past the last trained token.
    end: usize,
    ended: bool,
}

impl Renderer<'_> {
    /// The samples of a conversation; a reply whose last token has no place within `most` positions
    /// before it is left out with its end, never without.
    pub fn chat(&self, messages: &[Message], most: usize) -> Result<Chat, Error> {
        let mut chat = Chat::default();
        let mut text = String::new();
        let mut full = false;
        for (index, message) in messages.iter().enumerate() {
            if message.role != "assistant" || message.content.trim().is_empty() {
                continue;
            }
            let turn = if full { None } else { self.turn(messages, index, most)? };
            // Prompts only grow: once one is too long, no later reply has a place.
            full |= turn.is_none();
            let Some(turn) = turn.filter(|turn| turn.end <= most + 1) else {
                chat.too_long += 1;
                continue;
            };
            chat.unended += usize::from(!turn.ended);
            let span = turn.prompt_ids.len()..turn.end;
            let goes_on = |sample: &&mut Rendered| {
                turn.prompt.starts_with(&text) && turn.prompt_ids.starts_with(&sample.tokens)
            };
            match chat.samples.last_mut().filter(goes_on) {
                Some(sample) => {
                    sample.tokens = turn.ids;
                    sample.trained.push(span);
                }
                None => chat.samples.push(Rendered { tokens: turn.ids, trained: vec![span] }),
            }
            text = turn.whole;
        }
        Ok(chat)
    }

    /// The ids that chat feeds before the next reply to these messages.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        self.tokenizer.encode(&self.template()?.render(messages, true, &self.extra)?)
    }

    /// A text: all of it is trained, and the end of the document after it.
    pub fn text(&self, text: &str) -> Result<Rendered, Error> {
        let mut tokens = self.text_start();
        tokens.extend(self.tokenizer.encode(text)?);
        tokens.extend(self.document_end);
        let all = 0..tokens.len();
        Ok(Rendered { tokens, trained: vec![all] })
    }

    /// The ids before a text.
    pub(super) fn text_start(&self) -> Vec<u32> {
        self.start.into_iter().collect()
    }

    fn template(&self) -> Result<&ChatTemplate, Error> {
        self.template.ok_or_else(|| {
            let reason = "this model has no chat template; train it on text rows or plain text";
            Error::Refused(reason.into())
        })
    }

    /// The reply at `index`; `None` if its prompt alone is past the limit.
    fn turn(&self, messages: &[Message], index: usize, most: usize) -> Result<Option<Turn>, Error> {
        if index == 0 {
            return Err(Error::Refused("it begins with a reply; something must be said before it".into()));
        }
        let template = self.template()?;
        let prompt = template.render(&messages[..index], true, &self.extra)?;
        let prompt_ids = self.tokenizer.encode(&prompt)?;
        if prompt_ids.len() > most {
            return Ok(None);
        }
        let whole = template.render(&messages[..=index], false, &self.extra)?;
        let Some(reply) = whole.strip_prefix(prompt.as_str()) else {
            let reason = "it writes the reply differently from its own prompt for one, so chat would \
                never feed what is trained (thoughts in the reply with thinking turned off?)";
            return Err(Error::Refused(reason.into()));
        };
        let mut ids = self.tokenizer.encode(&whole)?;
        if !ids.starts_with(&prompt_ids) {
            ids = [prompt_ids.clone(), self.tokenizer.encode(reply)?].concat();
        }
        let first = prompt_ids.len();
        let last = ids[first..].iter().rposition(|id| self.end_ids.contains(id));
        let end = last.map_or(ids.len(), |at| first + at + 1);
        Ok(Some(Turn { prompt, whole, prompt_ids, ids, end, ended: last.is_some() }))
    }
}

/// The token that ends a document: the customary one if the vocabulary has it, else the model's last
/// end token.
pub fn document_end(tokenizer: &Tokenizer, end_ids: &[u32]) -> Option<u32> {
    let customary = ["<|endoftext|>", "<|end_of_text|>", "</s>"];
    let special = |token: &&str| tokenizer.id(token).filter(|&id| tokenizer.is_special(id));
    customary.iter().find_map(special).or(end_ids.last().copied())
}
