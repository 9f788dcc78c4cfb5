//! Messages and the decoder that answers them. The cache follows the conversation, whatever happens to it.

use std::sync::atomic::AtomicBool;

use halfbyte_model::Decoder;
use halfbyte_ops::Backend;
use halfbyte_text::{ChatTemplate, Message, Tokenizer};

use crate::error::{Error, Result};
use crate::reply::{Event, Finish, Limits, Reply, reply};
use crate::sampler::Sampler;
use crate::transcript::Transcript;

/// How messages become a prompt.
pub enum Style {
    /// By the model's own template, with further variables such as `enable_thinking`.
    Template(Box<ChatTemplate>, serde_json::Map<String, serde_json::Value>),
    /// Texts one after the other, as they are, after this start token.
    Raw(Option<u32>),
}

impl Style {
    /// The prompt for these messages, where no reply was given before.
    pub fn prompt(&self, messages: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let (rendering, start) = self.render(messages)?;
        Transcript::default().encode(&rendering, start, tokenizer)
    }

    /// The text of a prompt, and the token before it.
    fn render(&self, messages: &[Message]) -> Result<(String, Option<u32>)> {
        Ok(match self {
            Style::Template(template, extra) => (template.render(messages, true, extra)?, None),
            Style::Raw(start) => (messages.iter().map(|m| m.content.as_str()).collect(), *start),
        })
    }
}

/// What happens when the conversation outgrows the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFull {
    /// It is refused, with the numbers.
    #[default]
    Refuse,
    /// The oldest turns after the system message go until the rest leaves room for a reply. All that
    /// stays is computed again: every key carries the position it had.
    Shift,
}

/// A conversation on a device.
pub struct Conversation<B: Backend> {
    /// The model; its cache holds what was said last.
    pub decoder: Decoder<B>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Chooses tokens; goes on drawing over all turns.
    pub sampler: Sampler,
    /// What ends replies.
    pub limits: Limits,
    /// What happens at the end of the context.
    pub on_full: OnFull,
    style: Style,
    messages: Vec<Message>,
    pub(crate) transcript: Transcript,
    dropped: usize,
}

impl<B: Backend> Conversation<B> {
    /// An empty conversation.
    pub fn new(
        decoder: Decoder<B>,
        tokenizer: Tokenizer,
        style: Style,
        sampler: Sampler,
        limits: Limits,
    ) -> Self {
        Conversation {
            decoder,
            tokenizer,
            sampler,
            limits,
            on_full: OnFull::default(),
            style,
            messages: Vec::new(),
            transcript: Transcript::default(),
            dropped: 0,
        }
    }

    /// What was said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Messages that `OnFull::Shift` has let go.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Forgets everything but the system message. The cache stays: a common beginning is found again.
    pub fn reset(&mut self) {
        self.messages.truncate(self.first_turn());
        self.dropped = 0;
    }

    /// Replaces the system message; an empty one removes it.
    pub fn set_system(&mut self, text: &str) {
        self.messages.drain(..self.first_turn());
        if !text.is_empty() {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Takes over messages from elsewhere.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.dropped = 0;
    }

    /// Says something and takes the reply. If there is none, the conversation is as before.
    pub fn say(
        &mut self,
        text: &str,
        interrupt: &AtomicBool,
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<Reply> {
        let before = (self.messages.clone(), self.dropped);
        self.messages.push(Message::new("user", text));
        let result = self.answer(interrupt, on);
        let nothing = |reply: &Reply| reply.finish == Finish::Interrupted && reply.text.is_empty();
        match &result {
            Ok(reply) if !nothing(reply) => self.messages.push(Message::new("assistant", &reply.text)),
            _ => (self.messages, self.dropped) = before,
        }
        result
    }

    /// Takes back the last turn; gives what the user had said.
    pub fn undo(&mut self) -> Result<String> {
        let last = self.messages.iter().rposition(|message| message.role == "user").ok_or(Error::NoTurn)?;
        let text = self.messages[last].content.clone();
        self.messages.truncate(last);
        Ok(text)
    }

    fn answer(&mut self, interrupt: &AtomicBool, on: &mut dyn FnMut(Event<'_>)) -> Result<Reply> {
        let (rendering, ids) = self.prompt()?;
        let reply =
            reply(&mut self.decoder, &self.tokenizer, &ids, &mut self.sampler, &self.limits, interrupt, on)?;
        self.transcript.set(rendering, ids);
        match reply.finish {
            // The ids hold more than the text shows.
            Finish::StopString => {}
            Finish::Stop => self.transcript.add(&reply.text, &reply.ids[..reply.ids.len() - 1]),
            _ => self.transcript.add(&reply.text, &reply.ids),
        }
        Ok(reply)
    }

    /// The prompt for the messages, after letting old ones go if that was asked for.
    fn prompt(&mut self) -> Result<(String, Vec<u32>)> {
        loop {
            let (rendering, ids) = self.render()?;
            let room = self.decoder.context().saturating_sub(ids.len());
            if self.on_full == OnFull::Refuse || room >= self.reserve() || !self.drop_oldest() {
                return Ok((rendering, ids));
            }
        }
    }

    /// Positions that a shift leaves for the reply: what was asked for, at most a quarter of all.
    fn reserve(&self) -> usize {
        self.limits.max_tokens.unwrap_or(usize::MAX).min(self.decoder.context() / 4)
    }

    fn render(&self) -> Result<(String, Vec<u32>)> {
        let (rendering, start) = self.style.render(&self.messages)?;
        let ids = self.transcript.encode(&rendering, start, &self.tokenizer)?;
        Ok((rendering, ids))
    }

    /// Removes the oldest turn, never the last; says whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let first = self.first_turn();
        let mut later = self.messages.iter().enumerate().skip(first + 1);
        let Some((next, _)) = later.find(|(_, message)| message.role == "user") else {
            return false;
        };
        self.messages.drain(first..next);
        self.dropped += next - first;
        true
    }

    /// Index of the first message that is not the system's.
    fn first_turn(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == "system"))
    }
}
