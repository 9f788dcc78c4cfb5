//! What `run` and `chat` share: flags -> a conversation, replies on their way to the screen, statistics.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use halfbyte_checkpoint::Checkpoint;
use halfbyte_generate::{
    Binding, Conversation, Event, Limits, OnFull, Reply, Sampler, SamplerSettings, Style, Timing,
};
use halfbyte_ops::Backend;
use halfbyte_plan::Plan;
use halfbyte_train::memory_size;
use serde_json::{Value, json};

use crate::device::{self, ComputeArgs, scales_name};
use crate::embedded::{self, ModelArg};
use crate::failure::{Code, Failure, Result};
use crate::language;
use crate::output::{Progress, grouped};
use crate::place::Place;
use crate::signals;

/// Prompts longer than this show their progress on a terminal.
const LONG_PROMPT: usize = 2048;

/// Flags of every command that talks.
#[derive(Args, Clone, Debug)]
pub(crate) struct TalkArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// The system message; empty for none [default: what the model's template says]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let the model think aloud, where its template knows thinking
    #[arg(long, conflicts_with = "no_think")]
    think: bool,
    /// Let the model answer at once, where its template knows thinking
    #[arg(long)]
    no_think: bool,
    /// Feed texts as they are, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Go on with the conversation in this file if it exists, and keep it there
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    /// At the end of the context: refuse, or drop the oldest turns after the system message
    /// (what stays is computed again)
    #[arg(long, value_enum, default_value = "refuse", value_name = "RULE")]
    on_full: OnFullArg,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnFullArg {
    Refuse,
    Shift,
}

/// How tokens are chosen and what ends a reply.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
struct SamplingArgs {
    /// 0 always takes the best token, so a reply can be repeated; 1 is the model's own distribution
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f32,
    /// Only so many best tokens; 0 is off
    #[arg(long, default_value_t = 0, value_name = "N")]
    top_k: usize,
    /// Only the best tokens that together have this probability; 1 is off
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Only tokens so many times as probable as the best; 0 is off
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f32,
    /// Divides the logits of tokens seen before; 1 is off
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repetition_penalty: f32,
    /// Subtracted once from tokens seen before
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtracted from tokens seen before, for each time
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// The penalties look at so many last tokens; 0 looks at all
    #[arg(long, default_value_t = 64, value_name = "N")]
    repeat_window: usize,
    /// No sequence of so many tokens comes twice; 0 is off
    #[arg(long, default_value_t = 0, value_name = "N")]
    no_repeat_ngram: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Most tokens of a reply [default: until it ends or the context is full]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// End the reply before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// End the reply at this token id; may be repeated
    #[arg(long, value_name = "ID")]
    stop_id: Vec<u32>,
    /// Never choose the tokens that end a turn
    #[arg(long)]
    ignore_eos: bool,
}

impl SamplingArgs {
    fn sampler(&self) -> Result<Sampler> {
        let settings = SamplerSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_window: self.repeat_window,
            no_repeat_ngram: self.no_repeat_ngram,
            seed: self.seed,
        };
        let flag = |error: halfbyte_generate::sampler::Error| {
            Failure::misuse(format!("--{}", error.to_string().replacen('_', "-", 1)))
        };
        Sampler::new(settings).map_err(flag)
    }

    fn limits(&self, end_ids: Vec<u32>) -> Limits {
        Limits {
            max_tokens: self.max_tokens,
            end_ids,
            stop_ids: self.stop_id.clone(),
            stop_strings: self.stop.clone(),
            ignore_end: self.ignore_eos,
        }
    }
}

/// A conversation and what it was made from.
pub(crate) struct Talk {
    pub(crate) conversation: Conversation<Box<dyn Backend>>,
    pub(crate) plan: Plan,
    pub(crate) place: Place,
    pub(crate) interrupt: Arc<AtomicBool>,
    binding: Binding,
    session: Option<PathBuf>,
}

impl Talk {
    /// Opens the model, and the session if there is one.
    pub(crate) fn open(args: &TalkArgs) -> Result<Talk> {
        let sampler = args.sampling.sampler()?;
        // Bad stop strings, tokenizers and templates are refused before the model is loaded.
        halfbyte_text::StopMatcher::new(args.sampling.stop.clone())?;
        let path = &args.model.model;
        let checkpoint = embedded::open(path)?;
        let tokenizer = language::tokenizer(&checkpoint)?;
        let style = style(args, &checkpoint, &tokenizer)?;
        let opened = device::loaded(checkpoint, path, &args.compute, 1)?;
        let checkpoint = &opened.checkpoint;
        let limits = args.sampling.limits(checkpoint.architecture.eos.clone());
        let binding = Binding {
            fingerprint: checkpoint.fingerprint(),
            weights: args.compute.weights.name().into(),
            scales: scales_name(args.compute.scales).into(),
            cache: args.compute.cache.name().into(),
            context: opened.plan.settings.context,
        };
        let mut conversation = Conversation::new(opened.decoder, tokenizer, style, sampler, limits);
        conversation.on_full = match args.on_full {
            OnFullArg::Refuse => OnFull::Refuse,
            OnFullArg::Shift => OnFull::Shift,
        };
        if let Some(path) = args.session.as_deref().filter(|path| path.exists()) {
            conversation.load(path, &binding)?;
        }
        if let Some(system) = &args.system {
            conversation.set_system(system);
        }
        let interrupt = signals::watch(&[signal_hook::consts::SIGINT])?;
        let (plan, place, session) = (opened.plan, opened.place, args.session.clone());
        Ok(Talk { conversation, plan, place, interrupt, binding, session })
    }

    /// "memory 161 MiB · planned 178 MiB", of the device that computes.
    pub(crate) fn memory_line(&self) -> String {
        let planned = memory_size(self.plan.peak_bytes() as u64);
        match self.place.held() {
            Some(held) => format!("memory {} · planned {planned}", memory_size(held)),
            None => format!("memory planned {planned}"),
        }
    }

    /// One turn; `show` gets the reply as it comes.
    pub(crate) fn say(&mut self, text: &str, show: &mut dyn FnMut(&str)) -> Result<Reply> {
        self.interrupt.store(false, Ordering::Relaxed);
        let mut progress = None;
        let mut seen = 0;
        let mut on = |event: Event<'_>| match event {
            Event::Prefilled { done, total } if total > LONG_PROMPT => {
                let line = progress.get_or_insert_with(|| Progress::new("reading the prompt", total as u64));
                line.add((done - seen) as u64);
                seen = done;
                if done == total {
                    progress = None; // takes the line away before the reply begins
                }
            }
            Event::Prefilled { .. } => {}
            Event::Text(piece) => show(piece),
        };
        Ok(self.conversation.say(text, &self.interrupt, &mut on)?)
    }

    /// Keeps the conversation in the file of `--session`, if there is one.
    pub(crate) fn keep(&mut self) -> Result<()> {
        match self.session.clone() {
            Some(path) => self.save(&path),
            None => Ok(()),
        }
    }

    pub(crate) fn save(&mut self, path: &Path) -> Result<()> {
        Ok(self.conversation.save(path, &self.binding)?)
    }

    pub(crate) fn load(&mut self, path: &Path) -> Result<()> {
        Ok(self.conversation.load(path, &self.binding)?)
    }
}

fn style(args: &TalkArgs, checkpoint: &Checkpoint, tokenizer: &halfbyte_text::Tokenizer) -> Result<Style> {
    if args.raw {
        return Ok(Style::Raw(language::start_token(checkpoint)));
    }
    let Some(template) = language::template(checkpoint, tokenizer)? else {
        return Err(Failure::new(
            Code::BadInput,
            format!(
                "{}\nthis model has no chat template: it continues texts, it does not answer\nuse --raw",
                checkpoint.path.display()
            ),
        ));
    };
    let mut extra = serde_json::Map::new();
    if args.think || args.no_think {
        extra.insert("enable_thinking".into(), args.think.into());
    }
    Ok(Style::Template(Box::new(template), extra))
}

/// Shows a piece of a reply at once.
pub(crate) fn show(piece: &str) {
    let mut out = stdout().lock();
    // A reader that went away is noticed when the line is finished; a reply is not worth a panic.
    let _ = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
}

/// Whether statistics are welcome unasked.
pub(crate) fn at_terminal() -> bool {
    stderr().is_terminal() && stdout().is_terminal()
}

/// "36 + 41 tokens · first after 0.09 s · …"
pub(crate) fn statistics(timing: &Timing, context: usize) -> String {
    let held = timing.prompt_tokens - timing.computed_tokens;
    let used = timing.prompt_tokens + timing.generated_tokens;
    format!(
        "prompt {} tokens ({} new, {:.0} tok/s) · reply {} tokens ({:.1} tok/s) · first after {:.2} s · context {} of {}{}",
        grouped(timing.prompt_tokens as u64),
        timing.computed_tokens,
        timing.prefill_speed(),
        timing.generated_tokens,
        timing.decode_speed(),
        timing.first_token.unwrap_or_default().as_secs_f64(),
        grouped(used as u64),
        grouped(context as u64),
        if held == 0 { "" } else { " · the rest was in the cache" },
    )
}

/// A turn for programs.
pub(crate) fn turn_json(prompt: &str, reply: &Reply) -> Value {
    let timing = &reply.timing;
    json!({
        "prompt": prompt,
        "reply": reply.text,
        "tokens": reply.ids,
        "finish": reply.finish.name(),
        "timings": {
            "prompt_tokens": timing.prompt_tokens,
            "computed_tokens": timing.computed_tokens,
            "generated_tokens": timing.generated_tokens,
            "prefill_s": timing.prefill.as_secs_f64(),
            "decode_s": timing.decode.as_secs_f64(),
            "first_token_s": timing.first_token.map(|time| time.as_secs_f64()),
            "prefill_tok_s": timing.prefill_speed(),
            "decode_tok_s": timing.decode_speed(),
        },
    })
}

impl From<halfbyte_generate::Error> for Failure {
    fn from(error: halfbyte_generate::Error) -> Failure {
        use halfbyte_generate::Error;
        match error {
            Error::Model(error) => error.into(),
            Error::Text(error) => error.into(),
            Error::File(error) => error.into(),
            error => Failure::misuse(error.to_string()),
        }
    }
}
