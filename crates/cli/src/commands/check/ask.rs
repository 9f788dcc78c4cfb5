//! A model that is asked, and how far it is from another that is asked the same.
//!
//! Both are in memory at once: what waits between them is a few rows of logits, not a reply's worth.
//! The second is refused by its own plan if it does not fit beside the first.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use halfbyte_generate::divergence::{ROWS, divergences};
use halfbyte_generate::{Conversation, Limits, Sampler, SamplerSettings, Style};
use halfbyte_ops::Backend;
use halfbyte_text::Message;
use serde_json::{Map, Value};

use super::judge::{Distance, Said};
use super::spec::Group;
use crate::corpus;
use crate::device::{self, ComputeArgs};
use crate::failure::{Code, Failure, Result};
use crate::language;

/// A model in conversation, greedy.
pub(crate) struct Speaker {
    conversation: Conversation<Box<dyn Backend>>,
    name: String,
    /// The ids of the last phrasing's first prompt.
    first: Vec<u32>,
}

impl Speaker {
    pub(crate) fn open(path: &Path, compute: &ComputeArgs, think: Option<bool>) -> Result<Speaker> {
        let name = path.display().to_string();
        let opened = device::open(path, compute, ROWS)?;
        let tokenizer = language::tokenizer(&opened.checkpoint)?;
        let Some(template) = language::template(&opened.checkpoint, &tokenizer)? else {
            let text =
                format!("{name}\nthis model has no chat template: it continues texts, it does not answer");
            return Err(Failure::new(Code::BadInput, format!("{text}\ncheck a model that was made to talk")));
        };
        let extra: Map<String, Value> =
            think.map(|think| ("enable_thinking".to_owned(), think.into())).into_iter().collect();
        let style = Style::Template(Box::new(template.with_time(corpus::today())), extra);
        let limits = Limits { end_ids: opened.checkpoint.architecture.eos.clone(), ..Limits::default() };
        let greedy = SamplerSettings { temperature: 0.0, ..SamplerSettings::default() };
        let sampler = Sampler::new(greedy).map_err(|error| Failure::misuse(error.to_string()))?;
        let conversation = Conversation::new(opened.decoder, tokenizer, style, sampler, limits);
        Ok(Speaker { conversation, name, first: Vec::new() })
    }

    /// A conversation; `after` sees the speaker at the end of every reply, with the tokens of its prompt.
    fn converse(
        &mut self,
        group: &Group,
        turns: &[String],
        after: &mut dyn FnMut(&mut Speaker, usize) -> Result<()>,
    ) -> Result<Vec<Said>> {
        let system = group.system.iter().map(|text| Message::new("system", text));
        self.conversation.set_messages(system.collect());
        self.conversation.limits.max_tokens = Some(group.max_tokens);
        let never = AtomicBool::new(false);
        let mut said = Vec::new();
        for (index, prompt) in turns.iter().enumerate() {
            let reply = self.conversation.say(prompt, &never, &mut |_| ()).map_err(|error| {
                let failure = Failure::from(error);
                let place = format!("{}: group {:?}: {prompt:?}", self.name, group.name);
                Failure::new(failure.code, format!("{place}\n{}", failure.text))
            })?;
            let prompt_tokens = reply.timing.prompt_tokens;
            if index == 0 {
                self.first = self.conversation.decoder.tokens()[..prompt_tokens].to_vec();
            }
            after(self, prompt_tokens)?;
            let (finish, tokens) = (reply.finish, reply.ids.len());
            said.push(Said { prompt: prompt.clone(), reply: reply.text, finish, tokens });
        }
        Ok(said)
    }

    /// The reply to one prompt, in a conversation of its own.
    pub(crate) fn reply(&mut self, prompt: &str, max_tokens: usize) -> Result<Said> {
        self.conversation.set_messages(Vec::new());
        self.conversation.limits.max_tokens = Some(max_tokens);
        let reply = self.conversation.say(prompt, &AtomicBool::new(false), &mut |_| ())?;
        let (finish, tokens) = (reply.finish, reply.ids.len());
        Ok(Said { prompt: prompt.to_owned(), reply: reply.text, finish, tokens })
    }

    pub(crate) fn ask(&mut self, group: &Group, turns: &[String]) -> Result<Vec<Said>> {
        self.converse(group, turns, &mut |_, _| Ok(()))
    }

    /// Refuses a baseline whose tokens are not this model's.
    pub(crate) fn speaks_as(&self, baseline: &Speaker) -> Result<()> {
        let (a, b) = (&self.conversation, &baseline.conversation);
        let rows = [a, b].map(|one| one.decoder.architecture().vocab_size);
        let same = |id: usize| {
            let id = u32::try_from(id).unwrap_or(u32::MAX);
            a.tokenizer.token(id) == b.tokenizer.token(id)
        };
        match rows[0] == rows[1] && (0..rows[0]).all(same) {
            true => Ok(()),
            false => Err(self.other_than(baseline, "these two have different vocabularies")),
        }
    }

    fn other_than(&self, baseline: &Speaker, problem: &str) -> Failure {
        let remedy =
            "a KL divergence compares predictions of the same tokens: give the model it was trained from";
        Failure::new(Code::BadInput, format!("{} and {}\n{problem}\n{remedy}", self.name, baseline.name))
    }

    /// Lets the baseline have the conversation; both read each of its replies, and their predictions of
    /// every token of it are compared. `self` must have had the conversation already.
    pub(crate) fn distance(
        &mut self,
        baseline: &mut Speaker,
        group: &Group,
        turns: &[String],
    ) -> Result<Distance> {
        let mut all = Vec::new();
        let said = baseline.converse(group, turns, &mut |baseline, prompt_tokens| {
            if self.first != baseline.first {
                let problem = format!("their chat templates turn {:?} into different tokens", turns[0]);
                return Err(self.other_than(baseline, &problem));
            }
            // The last token of a reply is chosen, not read; the one before it predicts it.
            let tokens = baseline.conversation.decoder.tokens().to_vec();
            let (theirs, own) = (&mut baseline.conversation.decoder, &mut self.conversation.decoder);
            all.extend(divergences(theirs, own, &tokens, prompt_tokens - 1)?);
            Ok(())
        })?;
        Ok(Distance {
            mean: all.iter().sum::<f64>() / all.len().max(1) as f64,
            most: all.iter().copied().fold(0.0, f64::max),
            tokens: all.len(),
            replies: said.into_iter().map(|turn| turn.reply).collect(),
        })
    }
}
