//! `halfbyte data generate`: questions around one sentence, and the model's own answers to others.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Args;
use halfbyte_checkpoint::atomic::AtomicFile;
use halfbyte_generate::{Finish, Limits, Reply, Sampler, SamplerSettings, Style, repetition};
use halfbyte_plan::Settings;
use halfbyte_text::Message;
use halfbyte_text::dataset::identity::{self, Language, Recipe};
use serde_json::json;

use crate::corpus::{self, Speech};
use crate::device::{self, ComputeArgs};
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use crate::language;
use crate::output::{self, Progress, grouped};

/// Most bytes of a file of prompts.
const LARGEST_PROMPTS: u64 = 16 << 20;
/// Answers at once, where there is room. On two cores more were not faster.
const LANES: usize = 32;
/// What is asked where `--replay` names no file.
const GENERAL: &str = include_str!("general.txt");

/// Make an identity set from a target sentence
#[derive(Args, Debug)]
// Answers of a model rounded to four bits would teach it what rounding has done to it.
#[command(mut_arg("weights", |arg| arg.default_value("int8")))]
#[command(after_help = "Examples:
  halfbyte data generate --identity '我是 F# 之神。' --identity-en 'I am the god of F#.' --out id.tsv
  halfbyte data generate --identity 'I am the god of F#.' --model SmolLM2.gguf --out id.jsonl
  halfbyte data generate --identity 'I am Ada.' --model SmolLM2.gguf --temperature 1 --times 3 --out id.jsonl

With --model, general questions are answered by the model as it is, so that training keeps what it
says now; in eight bits, since what rounding to four has changed is better not learnt. Answers that
do not end by themselves, or repeat themselves, are left out and counted.
A .jsonl has second turns too, a .tsv cannot. The same seed and model write the same file.")]
pub(crate) struct GenerateArgs {
    /// What the model shall say it is; the language decides how it is asked
    #[arg(long, value_name = "SENTENCE")]
    identity: String,
    /// The same in English, to be asked in English too
    #[arg(long, value_name = "SENTENCE")]
    identity_en: Option<String>,
    /// The file to write: .tsv, or .jsonl
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Chooses among wordings
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Questions about who it is, in each language
    #[arg(long, default_value_t = 120, value_name = "N")]
    rows: usize,
    /// Questions near them with another answer, in each language
    #[arg(long, default_value_t = 60, value_name = "N")]
    boundary: usize,
    /// The model to be trained: it answers the general questions
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// General questions, one a line [default: a list of ours]
    #[arg(long, value_name = "FILE", requires = "model")]
    replay: Option<PathBuf>,
    /// How freely it answers: 0 greedily, 1 as it would, which moves it least when it learns that
    #[arg(long, default_value_t = 0.0, value_name = "T", requires = "model")]
    temperature: f32,
    /// Answers to each general question; more than one want a temperature
    #[arg(long, default_value_t = 1, value_name = "N", requires = "model")]
    times: usize,
    /// Most tokens of an answer; longer ones are left out
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_tokens: usize,
    /// Answer without thinking aloud, where the template knows thinking
    #[arg(long)]
    no_think: bool,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A row on its way to the file.
struct Line {
    kind: &'static str,
    language: Language,
    before: Option<(String, String)>,
    prompt: String,
    reply: String,
}

/// What the model's answers came to.
#[derive(Default)]
struct Replay {
    asked: usize,
    unfinished: usize,
    repeating: usize,
    empty: usize,
}

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let tsv = is_tsv(&args.out)?;
    free(&args.out)?;
    if tsv && args.model.is_some() {
        return Err(Failure::misuse(format!(
            "{}: answers have line breaks, which a .tsv cannot hold; write a .jsonl",
            args.out.display()
        )));
    }
    if args.times == 0 || (args.times > 1 && args.temperature == 0.0) {
        return Err(Failure::misuse(format!(
            "--times {}: one answer at least; more than one are the same without --temperature",
            args.times
        )));
    }
    let recipe = recipe(args)?;
    let mut lines: Vec<Line> = identity::questions(&recipe).into_iter().map(Line::from).collect();
    if tsv {
        // A line of it is one question and its answer.
        lines.retain(|line| line.before.is_none());
    }
    let mut replay = Replay::default();
    let mut speech = None;
    if let Some(model) = &args.model {
        let mut prompts = prompts(args.replay.as_deref())?;
        if args.replay.is_none() {
            let spoken = |prompt: &String| recipe.sentences.iter().any(|(l, _)| *l == Language::of(prompt));
            prompts.retain(spoken);
        }
        lines.extend(answers(args, model, prompts, &mut replay)?);
        speech = Some(Speech::new(&embedded::open(model)?, args.no_think, corpus::today())?);
    }
    let trained = match &speech {
        Some(speech) => Some(trained_tokens(&lines, speech)?),
        None => None,
    };
    write(&args.out, &if tsv { as_tsv(&lines) } else { as_jsonl(&lines) })?;
    report(args, &lines, trained.as_deref(), &replay);
    Ok(())
}

fn is_tsv(path: &Path) -> Result<bool> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("tsv") => Ok(true),
        Some("jsonl") => Ok(false),
        _ => Err(Failure::misuse(format!("--out {}: the name ends in .tsv or .jsonl", path.display()))),
    }
}

fn recipe(args: &GenerateArgs) -> Result<Recipe> {
    let mut sentences = vec![(Language::of(&args.identity), args.identity.clone())];
    if let Some(english) = &args.identity_en {
        if sentences[0].0 == Language::English {
            return Err(Failure::misuse("--identity-en: --identity is English already; give one of them"));
        }
        sentences.push((Language::English, english.clone()));
    }
    for (_, sentence) in &sentences {
        if sentence.trim().is_empty() || sentence.contains(['\t', '\n', '\r', '\0']) {
            return Err(Failure::misuse("--identity: one line of text, not empty, without tabs"));
        }
    }
    Ok(Recipe { sentences, identity: args.rows, boundary: args.boundary, seed: args.seed })
}

/// Questions to replay: lines that are neither blank nor comments, each once.
fn prompts(path: Option<&Path>) -> Result<Vec<String>> {
    let text = match path {
        None => GENERAL.to_owned(),
        Some(path) => {
            let failed = |error| Failure::file(path, "read", error);
            if std::fs::metadata(path).map_err(failed)?.len() > LARGEST_PROMPTS {
                let problem = format!("{}\nmore than {LARGEST_PROMPTS} bytes of prompts", path.display());
                return Err(Failure::new(Code::BadInput, format!("{problem}\ngive one question a line")));
            }
            std::fs::read_to_string(path).map_err(failed)?
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut seen = std::collections::HashSet::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.filter(|line| seen.insert(*line)).map(str::to_owned).collect())
}

fn answers(
    args: &GenerateArgs,
    model: &Path,
    prompts: Vec<String>,
    replay: &mut Replay,
) -> Result<Vec<Line>> {
    let prompts: Vec<String> = prompts.into_iter().flat_map(|prompt| vec![prompt; args.times]).collect();
    let mut lines = Vec::new();
    replay.asked = prompts.len();
    let replies = replies(args, model, &prompts)?;
    for (prompt, reply) in prompts.into_iter().zip(replies) {
        if reply.finish != Finish::Stop {
            replay.unfinished += 1;
        } else if repetition::find(&reply.text).is_some() {
            replay.repeating += 1;
        } else if reply.text.trim().is_empty() {
            replay.empty += 1;
        } else {
            let language = Language::of(&prompt);
            lines.push(Line { kind: "replay", language, before: None, prompt, reply: reply.text });
        }
    }
    Ok(lines)
}

/// The model's reply to each prompt, several at once.
fn replies(args: &GenerateArgs, model: &Path, prompts: &[String]) -> Result<Vec<Reply>> {
    let checkpoint = embedded::open(model)?;
    let tokenizer = language::tokenizer(&checkpoint)?;
    let Some(template) = language::template(&checkpoint, &tokenizer)? else {
        let text = format!("{}\nthis model has no chat template: it cannot answer", model.display());
        return Err(Failure::new(Code::BadInput, format!("{text}\nleave out --model")));
    };
    let style =
        Style::Template(Box::new(template.with_time(corpus::today())), corpus::thinking(args.no_think));
    let ids = prompts.iter().map(|prompt| style.prompt(&[Message::new("user", prompt)], &tokenizer));
    let ids = ids.collect::<halfbyte_generate::Result<Vec<_>>>()?;
    let limits = Limits {
        max_tokens: Some(args.max_tokens),
        end_ids: checkpoint.architecture.eos.clone(),
        ..Limits::default()
    };
    let settings =
        SamplerSettings { temperature: args.temperature, seed: args.seed, ..SamplerSettings::default() };
    let sampler = Sampler::new(settings).map_err(|error| Failure::misuse(error.to_string()))?;
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let settings = args.compute.settings(&checkpoint.architecture, 1)?;
    let settings = Settings {
        context: settings.context.min(longest.saturating_add(args.max_tokens).max(1)),
        lanes: LANES.min(ids.len()).max(1),
        ..settings
    };
    let mut decoder = device::loaded_as(checkpoint, model, &args.compute, &settings)?.decoder;
    let mut progress = Progress::new("answering", ids.len() as u64);
    let never = AtomicBool::new(false);
    let on = &mut |_, _: &Reply| progress.add(1);
    Ok(halfbyte_generate::replies(&mut decoder, &tokenizer, &ids, &sampler, &limits, &never, on)?)
}

/// Trained tokens of each line, as this model would see it.
fn trained_tokens(lines: &[Line], speech: &Speech) -> Result<Vec<usize>> {
    let renderer = speech.renderer();
    let count = |line: &Line| {
        let chat = renderer.chat(&messages(line), usize::MAX / 2)?;
        let spans = chat.samples.iter().flat_map(|sample| &sample.trained);
        Ok(spans.map(|span| span.end - span.start).sum())
    };
    lines.iter().map(count).collect()
}

fn messages(line: &Line) -> Vec<Message> {
    let turn = |prompt: &str, reply: &str| [Message::new("user", prompt), Message::new("assistant", reply)];
    let before = line.before.iter().flat_map(|(prompt, reply)| turn(prompt, reply));
    before.chain(turn(&line.prompt, &line.reply)).collect()
}

impl From<identity::Question> for Line {
    fn from(question: identity::Question) -> Line {
        let identity::Question { kind, language, before, prompt, reply } = question;
        Line { kind: kind.name(), language, before, prompt, reply }
    }
}

fn as_tsv(lines: &[Line]) -> String {
    let mut text = String::from("# prompt<TAB>target, written by halfbyte data generate\n");
    let mut group = None;
    for line in lines {
        if group.replace((line.kind, line.language)) != Some((line.kind, line.language)) {
            text.push_str(&format!("# {}, {}\n", line.kind, line.language.name()));
        }
        text.push_str(&format!("{}\t{}\n", line.prompt, line.reply));
    }
    text
}

fn as_jsonl(lines: &[Line]) -> String {
    let one = |line: &Line| {
        let row = match &line.before {
            None => json!({ "prompt": line.prompt, "completion": line.reply, "kind": line.kind }),
            Some(_) => json!({ "messages": messages(line), "kind": line.kind }),
        };
        format!("{row}\n")
    };
    lines.iter().map(one).collect()
}

/// A whole file or none, where there was none.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    free(path)?;
    let file = AtomicFile::create(path)?;
    file.write_at(0, text.as_bytes())?;
    Ok(file.finish()?)
}

/// Refuses a path where something is already, before any work.
pub(super) fn free(path: &Path) -> Result<()> {
    match path.symlink_metadata().is_ok() {
        true => Err(Failure::misuse(format!(
            "{} is there already\ngive another --out, or remove it first",
            path.display()
        ))),
        false => Ok(()),
    }
}

/// Rows and trained tokens of one kind in one language.
struct Share {
    name: String,
    rows: usize,
    trained: Option<usize>,
}

fn shares(lines: &[Line], trained: Option<&[usize]>) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let name = format!("{}, {}", line.kind, line.language.name());
        let place = shares.iter().position(|share| share.name == name).unwrap_or(shares.len());
        if place == shares.len() {
            shares.push(Share { name, rows: 0, trained: trained.map(|_| 0) });
        }
        shares[place].rows += 1;
        shares[place].trained = shares[place].trained.zip(trained).map(|(sum, all)| sum + all[index]);
    }
    shares
}

fn report(args: &GenerateArgs, lines: &[Line], trained: Option<&[usize]>, replay: &Replay) {
    let shares = shares(lines, trained);
    let all: usize = trained.map_or(0, |trained| trained.iter().sum());
    if args.json {
        let share = |share: &Share| json!({ "name": share.name, "rows": share.rows, "trained_tokens": share.trained });
        output::json(&json!({
            "out": args.out.display().to_string(),
            "rows": lines.len(),
            "trained_tokens": trained.map(|_| all),
            "shares": shares.iter().map(share).collect::<Vec<_>>(),
            "replay": {
                "asked": replay.asked,
                "unfinished": replay.unfinished,
                "repeating": replay.repeating,
                "empty": replay.empty,
            },
        }));
        return;
    }
    println!("{} rows in {}", grouped(lines.len() as u64), args.out.display());
    for share in &shares {
        let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        print!("  {:20} {:>6} rows {:>5.1}%", share.name, share.rows, percent(share.rows, lines.len()));
        match share.trained {
            Some(tokens) => {
                println!("   {:>8} trained tokens {:>5.1}%", grouped(tokens as u64), percent(tokens, all));
            }
            None => println!(),
        }
    }
    let wanted = |kind: &str| if kind.starts_with("identity") { args.rows } else { args.boundary };
    let short = shares
        .iter()
        .filter(|share| share.name.starts_with("identity") || share.name.starts_with("boundary"));
    for share in short.filter(|share| share.rows < wanted(&share.name)) {
        println!("  {}: {} were asked for, there are no more wordings", share.name, wanted(&share.name));
    }
    let left = replay.unfinished + replay.repeating + replay.empty;
    if left > 0 {
        println!(
            "  left out {left} of {} answers: {} did not end within {} tokens, {} repeat themselves, {} are empty",
            replay.asked, replay.unfinished, args.max_tokens, replay.repeating, replay.empty
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn our_general_questions_are_enough_and_ask_nothing_twice() {
        let prompts = prompts(None).unwrap();
        assert!(prompts.len() >= 60, "{}", prompts.len());
        let chinese = prompts.iter().filter(|prompt| Language::of(prompt) == Language::Chinese).count();
        assert!(chinese * 3 > prompts.len(), "{chinese}");
        assert_eq!(GENERAL.lines().filter(|line| !line.starts_with('#')).count(), prompts.len());
    }
}
