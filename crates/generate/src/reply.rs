//! ids -> prefill what the cache lacks -> sample, stream, feed until something ends the reply.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halfbyte_model::{Decoder, Wanted};
use halfbyte_ops::Backend;
use halfbyte_ops::best::Best;
use halfbyte_text::{StopMatcher, Stream, Tokenizer};

use crate::error::{Error, Result};
use crate::sampler::{self, Sampler};

/// Tokens of a prompt between two looks at the interrupt flag.
const STRIDE: usize = 512;

/// What ends a reply, besides the context.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Most tokens of a reply; `None` is until it ends by itself.
    pub max_tokens: Option<usize>,
    /// Tokens that end a turn: all of the model's own.
    pub end_ids: Vec<u32>,
    /// Further tokens that end a reply.
    pub stop_ids: Vec<u32>,
    /// Texts that end a reply and are not part of it.
    pub stop_strings: Vec<String>,
    /// `end_ids` are never chosen, so they cannot end a reply.
    pub ignore_end: bool,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn, or a stop id came.
    Stop,
    /// A stop string came.
    StopString,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The cache has no position left.
    ContextFull,
    /// Someone raised the interrupt flag.
    Interrupted,
}

impl Finish {
    /// As written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::StopString => "stop_string",
            Finish::MaxTokens => "max_tokens",
            Finish::ContextFull => "context_full",
            Finish::Interrupted => "interrupted",
        }
    }
}

/// What a turn took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Tokens of the prompt, with everything before it.
    pub prompt_tokens: usize,
    /// Those of them that had to be computed; the rest were in the cache.
    pub computed_tokens: usize,
    /// Tokens chosen, the one that ended the reply included.
    pub generated_tokens: usize,
    /// Until the prompt's logits were there.
    pub prefill: Duration,
    /// After that.
    pub decode: Duration,
    /// From the start of the turn to the first chosen token.
    pub first_token: Option<Duration>,
}

impl Timing {
    /// Prompt tokens computed in a second.
    pub fn prefill_speed(&self) -> f64 {
        self.computed_tokens as f64 / self.prefill.as_secs_f64().max(1e-9)
    }

    /// Tokens decoded in a second; the first comes from the prompt's own logits.
    pub fn decode_speed(&self) -> f64 {
        self.generated_tokens.saturating_sub(1) as f64 / self.decode.as_secs_f64().max(1e-9)
    }
}

/// A finished reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The text, without stop string and special tokens.
    pub text: String,
    /// The ids chosen, the one that ended the reply included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// What it took.
    pub timing: Timing,
}

/// What happens during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many of the prompt's new tokens are computed.
    Prefilled {
        /// Computed so far.
        done: usize,
        /// To be computed.
        total: usize,
    },
    /// The next piece of the reply; never half a character.
    Text(&'a str),
}

/// Answers `prompt`, which holds the whole conversation: what the cache already has is not computed.
pub fn reply<B: Backend>(
    decoder: &mut Decoder<B>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    sampler: &mut Sampler,
    limits: &Limits,
    interrupt: &AtomicBool,
    on: &mut dyn FnMut(Event<'_>),
) -> Result<Reply> {
    let mut scores = Scores::new(decoder, sampler, limits);
    let mut turn = Turn::new(tokenizer, prompt, limits)?;
    let mut finish = turn.prefill(decoder, &mut scores, interrupt, on)?;
    let finish = loop {
        if let Some(finish) = finish {
            break finish;
        }
        if interrupt.load(Ordering::Relaxed) {
            break Finish::Interrupted;
        }
        let Some(id) = scores.choose(sampler, decoder.tokens(), limits)? else {
            return Err(decoder.first_bad()?.into());
        };
        finish = turn.take(id, decoder.context() - decoder.tokens().len(), on)?;
        if finish.is_none() {
            scores.feed(decoder, &[id])?;
        }
    };
    Ok(turn.end(finish, on))
}

/// A reply on its way.
pub(crate) struct Turn<'a> {
    prompt: &'a [u32],
    limits: &'a Limits,
    shown: Shown<'a>,
    ids: Vec<u32>,
    timing: Timing,
    start: Instant,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, prompt: &'a [u32], limits: &'a Limits) -> Result<Turn<'a>> {
        let stops = StopMatcher::new(limits.stop_strings.clone())?;
        let shown = Shown { stream: Stream::new(tokenizer, true), stops, text: String::new() };
        let timing = Timing { prompt_tokens: prompt.len(), ..Timing::default() };
        Ok(Turn { prompt, limits, shown, ids: Vec::new(), timing, start: Instant::now() })
    }

    /// Computes the part of the prompt that the cache lacks; says if the reply ends here already.
    pub(crate) fn prefill<B: Backend>(
        &mut self,
        decoder: &mut Decoder<B>,
        scores: &mut Scores,
        interrupt: &AtomicBool,
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Finish>> {
        let (prompt, mut interrupted) = (self.prompt, false);
        check_prompt(decoder, prompt)?;
        let common = decoder.tokens().iter().zip(prompt).take_while(|(have, want)| have == want).count();
        // The last token is computed again even if it is there: its logits are not kept.
        let kept = common.min(prompt.len() - 1);
        decoder.keep(kept);
        for stride in prompt[kept..].chunks(STRIDE) {
            interrupted = interrupt.load(Ordering::Relaxed);
            if interrupted {
                break;
            }
            scores.feed(decoder, stride)?;
            self.timing.computed_tokens += stride.len();
            on(Event::Prefilled { done: self.timing.computed_tokens, total: prompt.len() - kept });
        }
        self.timing.prefill = self.start.elapsed();
        Ok(match interrupted {
            true => Some(Finish::Interrupted),
            false => self.limits.max_tokens.filter(|most| *most == 0).map(|_| Finish::MaxTokens),
        })
    }

    /// Takes the next id, where the cache has room for so many; says if it ends the reply.
    pub(crate) fn take(
        &mut self,
        id: u32,
        room: usize,
        on: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Finish>> {
        let Turn { limits, start, .. } = *self;
        self.timing.first_token.get_or_insert_with(|| start.elapsed());
        self.ids.push(id);
        if limits.stop_ids.contains(&id) || limits.end_ids.contains(&id) {
            return Ok(Some(Finish::Stop));
        }
        if self.shown.push(id, on)? {
            return Ok(Some(Finish::StopString));
        }
        if limits.max_tokens.is_some_and(|most| self.ids.len() >= most) {
            return Ok(Some(Finish::MaxTokens));
        }
        Ok((room == 0).then_some(Finish::ContextFull))
    }

    pub(crate) fn end(mut self, finish: Finish, on: &mut dyn FnMut(Event<'_>)) -> Reply {
        self.shown.finish(finish, on);
        self.timing.decode = self.start.elapsed() - self.timing.prefill;
        self.timing.generated_tokens = self.ids.len();
        Reply { text: self.shown.text, ids: self.ids, finish, timing: self.timing }
    }
}

/// Refuses a prompt that is empty or longer than the cache.
pub(crate) fn check_prompt<B: Backend>(decoder: &Decoder<B>, prompt: &[u32]) -> Result<()> {
    let (new, context) = (prompt.len(), decoder.context());
    match new {
        0 => Err(Error::EmptyPrompt),
        _ if new > context => Err(halfbyte_model::Error::TooLong { have: 0, new, context }.into()),
        _ => Ok(()),
    }
}

/// What the last token's successor is chosen from: all logits, or the best of them where they decide.
pub(crate) enum Scores {
    All(Vec<f32>),
    Best { best: Vec<Best>, finite: bool },
}

impl Scores {
    pub(crate) fn new<B: Backend>(decoder: &Decoder<B>, sampler: &Sampler, limits: &Limits) -> Scores {
        let deciding = sampler.deciding(decoder.architecture().vocab_size);
        match deciding.filter(|_| !limits.ignore_end) {
            Some(count) => Scores::Best { best: vec![Best::default(); count], finite: true },
            None => Scores::All(Vec::new()),
        }
    }

    pub(crate) fn feed<B: Backend>(&mut self, decoder: &mut Decoder<B>, ids: &[u32]) -> Result<()> {
        match self {
            Scores::All(logits) => {
                decoder.feed(ids, Wanted::Last, None, &mut |_, row| row.clone_into(logits))?;
            }
            Scores::Best { best, finite } => *finite = decoder.feed_for_best(ids, best)?,
        }
        Ok(())
    }

    /// Whether a choice looks at every logit.
    pub(crate) fn are_all(&self) -> bool {
        matches!(self, Scores::All(_))
    }

    /// One token to each of several lanes; all of these are of one kind.
    pub(crate) fn feed_lanes<B: Backend>(
        of: &mut [&mut Scores],
        decoder: &mut Decoder<B>,
        tokens: &[(usize, u32)],
    ) -> Result<()> {
        if let Some(Scores::Best { best, .. }) = of.first() {
            let mut highest = best.clone();
            decoder.feed_lanes_for_best(tokens, &mut highest, &mut |i, best, finite| {
                *of[i] = Scores::Best { best: best.to_vec(), finite };
            })?;
            return Ok(());
        }
        decoder.feed_lanes(tokens, &mut |i, row| {
            if let Scores::All(logits) = &mut *of[i] {
                row.clone_into(logits);
            }
        })?;
        Ok(())
    }

    /// The next id, after these tokens; none where the logits are no numbers.
    pub(crate) fn choose(
        &mut self,
        sampler: &mut Sampler,
        history: &[u32],
        limits: &Limits,
    ) -> Result<Option<u32>> {
        let logits = match self {
            Scores::Best { finite: false, .. } => return Ok(None),
            Scores::Best { best, .. } => return Ok(Some(sampler.sample_best(best))),
            Scores::All(logits) => logits,
        };
        if limits.ignore_end {
            for &id in &limits.end_ids {
                if let Some(logit) = logits.get_mut(id as usize).filter(|logit| logit.is_finite()) {
                    *logit = f32::MIN;
                }
            }
        }
        match sampler.sample(logits, history) {
            Ok(id) => Ok(Some(id)),
            Err(sampler::Error::NonFinite { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The reply as people see it.
struct Shown<'a> {
    stream: Stream<'a>,
    stops: StopMatcher,
    text: String,
}

impl Shown<'_> {
    fn show(&mut self, piece: &str, on: &mut dyn FnMut(Event<'_>)) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            on(Event::Text(piece));
        }
    }

    /// Says whether a stop string was reached.
    fn push(&mut self, id: u32, on: &mut dyn FnMut(Event<'_>)) -> Result<bool> {
        let piece = self.stream.push(id)?;
        let step = self.stops.push(&piece);
        self.show(&step.text, on);
        Ok(step.reached.is_some())
    }

    /// Shows what was held back, unless it is a stop string or follows one.
    fn finish(&mut self, finish: Finish, on: &mut dyn FnMut(Event<'_>)) {
        if finish == Finish::StopString {
            return;
        }
        let rest = self.stream.finish();
        let step = self.stops.push(&rest);
        let held = self.stops.finish();
        self.show(&(step.text + &held), on);
    }
}
