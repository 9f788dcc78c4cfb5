//! `halfbyte run`: a prompt, its reply, and follow-ups in the same conversation.

use std::io::Read;

use clap::Args;
use halfbyte_generate::{Finish, Reply};
use serde_json::{Value, json};

use crate::failure::{Code, Failure, Result};
use crate::output;
use crate::talk::{self, Talk, TalkArgs};

/// Answer a prompt
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte run SmolLM2.gguf --prompt 'Why is the sky blue?'
  cat notes.txt | halfbyte run Qwen3-4B --prompt - --system 'Summarise.' --max-tokens 200 --stats

Only the reply goes to standard output. Replies are greedy unless --temperature says otherwise.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// What to say; - reads it from standard input
    #[arg(long, value_name = "TEXT|-")]
    prompt: String,
    /// What to say next, in the same conversation; may be repeated
    #[arg(long, value_name = "TEXT")]
    followup: Vec<String>,
    /// How many turns; the last follow-up is repeated [default: one for each text]
    #[arg(long, value_name = "N")]
    turns: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say on standard error what each turn took; always said at a terminal
    #[arg(long)]
    stats: bool,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let prompts = prompts(args)?;
    let mut talk = Talk::open(&args.talk)?;
    let mut turns = Vec::new();
    let mut interrupted = None;
    for prompt in prompts {
        let reply = if args.json { talk.say(&prompt, &mut |_| ())? } else { aloud(&mut talk, &prompt)? };
        if !args.json && (args.stats || talk::at_terminal()) {
            eprintln!("{}", talk::statistics(&reply.timing, talk.conversation.decoder.context()));
        }
        if reply.finish == Finish::Interrupted {
            interrupted = Some(reply.ids.len());
        }
        turns.push(talk::turn_json(&prompt, &reply));
        if interrupted.is_some() {
            break;
        }
    }
    talk.keep()?;
    if args.json {
        output::json(&report(&talk, turns));
    } else if args.stats {
        eprintln!("{}", talk.memory_line());
    }
    match interrupted {
        None => Ok(()),
        Some(count) => Err(Failure::new(Code::Interrupted, format!("interrupted after {count} tokens"))),
    }
}

/// Everything to say, in order.
fn prompts(args: &RunArgs) -> Result<Vec<String>> {
    let first = match args.prompt.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| {
                Failure::new(Code::BadInput, format!("standard input\ncannot be read as text: {error}"))
            })?;
            // Shells and editors end a text with a line end that nobody meant to say.
            text.strip_suffix('\n').unwrap_or(&text).to_owned()
        }
        text => text.to_owned(),
    };
    let turns = args.turns.unwrap_or(1 + args.followup.len());
    if turns == 0 || (turns > 1 && args.followup.is_empty()) {
        return Err(Failure::misuse(format!(
            "--turns {turns}: the first turn says --prompt, each later one a --followup; give one"
        )));
    }
    let later = args.followup.iter().chain(args.followup.last().into_iter().cycle()).cloned();
    Ok(std::iter::once(first).chain(later).take(turns).collect())
}

fn aloud(talk: &mut Talk, prompt: &str) -> Result<Reply> {
    let result = talk.say(prompt, &mut talk::show);
    if let Ok(reply) = &result
        && !reply.text.ends_with('\n')
    {
        println!();
    }
    result
}

/// The last turn's fields on top, all turns below.
fn report(talk: &Talk, turns: Vec<Value>) -> Value {
    let mut report = turns.last().cloned().unwrap_or_default();
    report["turns"] = turns.into();
    report["memory"] = json!({
        "planned_peak_bytes": talk.plan.peak_bytes(),
        "measured_peak_bytes": talk.place.held(),
    });
    report["cached_tokens"] = talk.conversation.decoder.tokens().len().into();
    report["context"] = talk.conversation.decoder.context().into();
    report["dropped_messages"] = talk.conversation.dropped().into();
    report
}
