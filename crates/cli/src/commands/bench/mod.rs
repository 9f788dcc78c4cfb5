//! `halfbyte bench`: how fast a model reads a prompt and writes, against this machine's ceilings.

mod profile;
mod training;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use halfbyte_checkpoint::Architecture;
use halfbyte_ops::Backend;
use halfbyte_ops::best::Best;
use halfbyte_plan::{Group, Plan};
use halfbyte_train::memory_size;
use serde_json::json;

use crate::device::{self, AnyDecoder, ComputeArgs};
use crate::embedded;
use crate::failure::{Failure, Result};
use crate::output::{self, Progress, bytes, count};
use profile::Profile;

/// Memory read to find the ceiling: several times any last-level cache would be better, but
/// must leave a small machine alive.
const READ_BYTES: usize = 1 << 30;

/// Measure speed: prompt and reply, as a share of what the machine can do
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte bench SmolLM2-135M-Instruct.Q4_1.gguf
  halfbyte bench --random configs/qwen3-0.6b.json --repeat 3 --json
  halfbyte bench --random configs/qwen3-4b.json --train --batch 8 --seq 1024
  halfbyte bench --random configs/qwen3-4b.json --decode-at 512 --device cuda --profile

Ceilings are measured in the same run, between the timings: bytes read for a token against the
speed of reading memory, arithmetic of a prompt against the speed of the unit that does it.")]
pub(crate) struct BenchArgs {
    /// A model
    #[arg(value_name = "MODEL", default_value = embedded::NAME, conflicts_with = "random")]
    model: PathBuf,
    /// A config.json: random weights of that shape, no file needed
    #[arg(long, value_name = "config.json")]
    random: Option<PathBuf>,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_name = "N")]
    prompt_tokens: usize,
    /// Tokens of the reply
    #[arg(long, default_value_t = 128, value_name = "N")]
    decode_tokens: usize,
    /// Tokens in the cache when the reply begins
    #[arg(long, default_value_t = 16, value_name = "N")]
    decode_at: usize,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// Say where the time goes, kernel by kernel (GPU)
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    training: training::TrainingArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One round.
struct Round {
    prefill: f64,
    decode: f64,
    /// Of the tokens that nothing disturbed: a tenth were faster.
    decode_undisturbed: f64,
    /// Bytes a second that can be read.
    read: f64,
    /// Operations a second of products, where they can be measured.
    arithmetic: Option<f64>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if [args.repeat, args.prompt_tokens, args.decode_tokens, args.decode_at].contains(&0) {
        let flags = "--repeat, --prompt-tokens, --decode-tokens and --decode-at";
        return Err(Failure::misuse(format!("{flags} must be at least 1")));
    }
    if args.training.train {
        let (architecture, path) = match &args.random {
            None => (embedded::open(&args.model)?.architecture, &args.model),
            Some(config) => (Architecture::from_config_file(config)?, config),
        };
        return training::run(
            &args.training,
            &args.compute.place,
            (&architecture, path),
            args.repeat,
            (args.profile, args.json),
        );
    }
    let mut compute = args.compute.clone();
    let longest = args.prompt_tokens.max(args.decode_at + args.decode_tokens);
    compute.context = Some(compute.context.unwrap_or(longest.next_multiple_of(64)));
    let (mut decoder, plan, place, name) = match &args.random {
        None => {
            let opened = device::open(&args.model, &compute, 1)?;
            (opened.decoder, opened.plan, opened.place, args.model.display().to_string())
        }
        Some(config) => {
            let architecture = Architecture::from_config_file(config)?;
            let (decoder, plan, place) = device::random(&architecture, config, &compute)?;
            (decoder, plan, place, format!("{} with random weights", config.display()))
        }
    };
    profile::check(args.profile, &place)?;
    let progress = Progress::waiting("measuring");
    let mut reader = place.reader(READ_BYTES)?;
    let mut rounds = Vec::new();
    for round in 0..=args.repeat {
        let read = reader.pass()?;
        let prefill = prefill(&mut decoder, args.prompt_tokens)?;
        let arithmetic = place.arithmetic();
        let (decode, decode_undisturbed) = decode(&mut decoder, args.decode_at, args.decode_tokens)?;
        let measured = Round { prefill, decode, decode_undisturbed, read, arithmetic };
        // The first round warms caches and wakes the machine.
        if round > 0 {
            rounds.push(measured);
        }
    }
    let mut profiles = Vec::new();
    if args.profile {
        Profile::begin(&mut decoder.backend)?;
        prefill(&mut decoder, args.prompt_tokens)?;
        profiles.push(Profile::end("the prompt", &mut decoder.backend)?);
        decoder.keep(args.prompt_tokens - 1);
        let next = token(&decoder, args.prompt_tokens);
        decoder.feed_for_best(&[next], &mut [Best::default()])?;
        profiles.push(Profile::end("a token", &mut decoder.backend)?);
    }
    drop(progress);
    report(args, &decoder, &plan, &name, &rounds, &profiles, place.held());
    Ok(())
}

fn token(decoder: &AnyDecoder, index: usize) -> u32 {
    (index * 7919 % decoder.architecture().vocab_size) as u32
}

fn prefill(decoder: &mut AnyDecoder, count: usize) -> Result<f64> {
    let tokens: Vec<u32> = (0..count).map(|i| token(decoder, i)).collect();
    decoder.keep(0);
    let start = Instant::now();
    decoder.last_logits(&tokens)?;
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn decode(decoder: &mut AnyDecoder, at: usize, count: usize) -> Result<(f64, f64)> {
    let tokens: Vec<u32> = (0..at).map(|i| token(decoder, i)).collect();
    decoder.keep(0);
    decoder.last_logits(&tokens)?;
    let mut times = Vec::with_capacity(count);
    for i in 0..count {
        let next = token(decoder, at + i);
        let start = Instant::now();
        decoder.feed_for_best(&[next], &mut [Best::default()])?;
        times.push(start.elapsed().as_secs_f64());
    }
    let total: f64 = times.iter().sum();
    times.sort_by(f64::total_cmp);
    Ok((count as f64 / total, 1.0 / times[count / 10]))
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The same of what may not be there.
fn maybe(rounds: &[Round], of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
    rounds.iter().all(|round| of(round).is_some()).then(|| median(rounds, |round| of(round).unwrap_or(0.0)))
}

/// Bytes read to write one token: all weights but the embedding's unused rows, and the cache.
fn bytes_per_token(architecture: &Architecture, plan: &Plan, positions: usize) -> f64 {
    let weights = plan.group_bytes(Group::Weights) as f64;
    let table = plan.buffers[0].buffer.bytes as f64;
    let unread = if architecture.tied { 0.0 } else { table };
    let cache = plan.group_bytes(Group::Cache) as f64 * positions as f64 / plan.settings.context as f64;
    weights - unread + cache
}

/// Operations to read a prompt: matrices of the layers for every token, the head for one, and
/// attention over the triangle of seen keys.
fn operations(architecture: &Architecture, tokens: f64) -> f64 {
    let head = (architecture.vocab_size * architecture.hidden_size) as f64;
    let tables = if architecture.tied { 1.0 } else { 2.0 };
    let layers = architecture.parameters() as f64 - head * tables;
    let attention = 2.0 * tokens * tokens * (architecture.heads * architecture.head_dim) as f64;
    2.0 * layers * tokens + 2.0 * head + attention * architecture.layers as f64
}

fn report(
    args: &BenchArgs,
    decoder: &AnyDecoder,
    plan: &Plan,
    name: &str,
    rounds: &[Round],
    profiles: &[Profile],
    peak: Option<u64>,
) {
    let architecture = decoder.architecture();
    let (prefill, decode) = (median(rounds, |r| r.prefill), median(rounds, |r| r.decode));
    let read = median(rounds, |r| r.read);
    let arithmetic = maybe(rounds, |r| r.arithmetic);
    let per_token = bytes_per_token(architecture, plan, args.decode_at + args.decode_tokens / 2);
    let work = operations(architecture, args.prompt_tokens as f64) / args.prompt_tokens as f64;
    // Shares are taken within a round, because the machine's speed moves between rounds.
    let decode_share = median(rounds, |r| r.decode * per_token / r.read);
    let prefill_share = maybe(rounds, |r| r.arithmetic.map(|most| r.prefill * work / most));
    if args.json {
        output::json(&json!({
            "model": name,
            "kernels": decoder.backend.describe(),
            "weights": plan.settings.weights.name(),
            "prefill_tok_s": prefill,
            "decode_tok_s": decode,
            "decode_undisturbed_tok_s": median(rounds, |r| r.decode_undisturbed),
            "prefill_runs": rounds.iter().map(|r| r.prefill).collect::<Vec<_>>(),
            "decode_runs": rounds.iter().map(|r| r.decode).collect::<Vec<_>>(),
            "bytes_per_token": per_token,
            "operations_per_token": work,
            "read_bytes_s": read,
            "arithmetic_flop_s": arithmetic,
            "decode_percent_of_ceiling": 100.0 * decode_share,
            "prefill_percent_of_ceiling": prefill_share.map(|share| 100.0 * share),
            "planned_peak_bytes": plan.peak_bytes(),
            "measured_peak_bytes": peak,
            "profiles": profiles,
        }));
        return;
    }
    println!("{name} · {} · {} weights", decoder.backend.describe(), plan.settings.weights);
    println!(
        "prompt of {:<5} {:>8.0} tok/s   {}({} flop a token)",
        args.prompt_tokens,
        prefill,
        share(prefill_share, arithmetic, |most| format!("{} flop/s", count(most))),
        count(work as u64)
    );
    println!(
        "reply of  {:<5} {:>8.1} tok/s   {}({} a token)",
        args.decode_tokens,
        decode,
        share(Some(decode_share), Some(read), |most| format!("{}/s", bytes(most))),
        bytes(per_token as u64)
    );
    println!(
        "memory          {:>8} planned   {} measured, {} of it to measure the ceiling",
        memory_size(plan.peak_bytes() as u64),
        peak.map_or("not".into(), memory_size),
        memory_size(READ_BYTES as u64)
    );
    profiles.iter().for_each(Profile::print);
}

/// " 13% of 5.1 T flop/s "
fn share(share: Option<f64>, most: Option<f64>, name: impl Fn(u64) -> String) -> String {
    let both = share.zip(most);
    both.map_or(String::new(), |(share, most)| format!("{:>3.0}% of {} ", 100.0 * share, name(most as u64)))
}
