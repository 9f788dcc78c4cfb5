//! Many prompts at once give the replies that each of them gets alone.

use std::sync::atomic::{AtomicBool, Ordering};

use halfbyte_generate::{Error, Finish, Limits, Reply, Sampler, replies, reply};
use halfbyte_ops::CacheFormat;

use crate::toy;

const CONTEXT: usize = 96;
/// One is so long that its reply fills the context; two are the same.
const PROMPTS: [&str; 11] = [
    "a",
    "hello",
    "hello",
    "what?",
    "a prompt of more than sixteen tokens, which is more than a chunk",
    "b",
    "c",
    "é你",
    "a",
    "",
    "z",
];

fn prompts() -> Vec<Vec<u32>> {
    let encode = |text: &&str| {
        let text = format!("<|im_start|>{text}<|im_end|>");
        toy::tokenizer().encode(&text).unwrap()
    };
    PROMPTS.iter().map(encode).collect()
}

/// Some replies end by themselves, after a few tokens or many.
fn limits(max_tokens: usize) -> Limits {
    Limits { stop_ids: vec![3], ..toy::limits(max_tokens) }
}

fn alone(sampler: &Sampler, limits: &Limits) -> Vec<Reply> {
    let never = AtomicBool::new(false);
    let (mut decoder, tokenizer) = (toy::decoder(CONTEXT, CacheFormat::Bf16, 1), toy::tokenizer());
    let answer = |(prompt, index): (&Vec<u32>, u64)| {
        let sampler = &mut sampler.stream(index);
        reply(&mut decoder, &tokenizer, prompt, sampler, limits, &never, &mut |_| ()).unwrap()
    };
    prompts().iter().zip(0..).map(answer).collect()
}

/// The replies, and the order in which they ended.
fn in_lanes(lanes: usize, sampler: &Sampler, limits: &Limits) -> (Vec<Reply>, Vec<usize>) {
    let never = AtomicBool::new(false);
    let mut decoder = toy::decoder_in_lanes(CONTEXT, lanes, CacheFormat::Bf16, 1);
    let mut ended = Vec::new();
    let on = &mut |index, _: &Reply| ended.push(index);
    let all = replies(&mut decoder, &toy::tokenizer(), &prompts(), sampler, limits, &never, on).unwrap();
    (all, ended)
}

fn same(got: &[Reply], want: &[Reply], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!((&got.ids, got.finish), (&want.ids, want.finish), "{what}: reply {index}");
        assert_eq!(got.text, want.text, "{what}: reply {index}");
    }
}

#[test]
fn replies_do_not_depend_on_the_number_of_lanes() {
    for (temperature, most) in [(0.0, 30), (3.0, 60), (1.0, 7)] {
        let (sampler, limits) = (toy::sampler(temperature), limits(most));
        let want = alone(&sampler, &limits);
        for lanes in [1, 3, 8, 20] {
            let (got, mut ended) = in_lanes(lanes, &sampler, &limits);
            same(&got, &want, &format!("{lanes} lanes, temperature {temperature}"));
            ended.sort_unstable();
            assert_eq!(ended, (0..PROMPTS.len()).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_reply_that_ends_early_leaves_its_lane_to_the_next() {
    let (sampler, limits) = (toy::sampler(3.0), limits(60));
    let (all, ended) = in_lanes(3, &sampler, &limits);
    let of = |finish| all.iter().filter(|reply| reply.finish == finish).count();
    assert!(of(Finish::Stop) > 0 && of(Finish::ContextFull) > 0 && of(Finish::MaxTokens) > 0, "{all:?}");
    assert!(!ended.is_sorted(), "{ended:?}");
}

#[test]
fn every_draw_is_of_its_own_prompt() {
    let (all, _) = in_lanes(4, &toy::sampler(3.0), &limits(20));
    assert_eq!(prompts()[1], prompts()[2]);
    assert_ne!(all[1].ids, all[2].ids);
}

#[test]
fn stop_strings_and_ignored_ends_hold_in_lanes() {
    let sampler = toy::sampler(3.0);
    let plain = alone(&sampler, &toy::limits(30));
    let stop: String = plain[1].text.chars().skip(2).take(2).collect();
    let limits = Limits { stop_strings: vec![stop.clone()], ..toy::limits(30) };
    let want = alone(&sampler, &limits);
    assert_eq!(want[1].finish, Finish::StopString);
    let (got, _) = in_lanes(3, &sampler, &limits);
    same(&got, &want, "a stop string");
    assert!(got.iter().all(|reply| !reply.text.contains(&stop)));
    let limits = Limits { ignore_end: true, ..toy::limits(30) };
    same(&in_lanes(3, &sampler, &limits).0, &alone(&sampler, &limits), "an ignored end");
    let limits = toy::limits(0);
    same(&in_lanes(3, &sampler, &limits).0, &alone(&sampler, &limits), "no tokens");
}

#[test]
fn an_interrupt_ends_all_and_keeps_what_was_said() {
    let (sampler, limits) = (toy::sampler(3.0), limits(40));
    let whole = in_lanes(5, &sampler, &limits).0;
    let interrupt = AtomicBool::new(false);
    let mut decoder = toy::decoder_in_lanes(CONTEXT, 5, CacheFormat::Bf16, 1);
    let mut first = None;
    let on = &mut |index, _: &Reply| {
        first.get_or_insert(index);
        interrupt.store(true, Ordering::Relaxed);
    };
    let got =
        replies(&mut decoder, &toy::tokenizer(), &prompts(), &sampler, &limits, &interrupt, on).unwrap();
    assert_eq!(got.len(), PROMPTS.len());
    let first = first.unwrap();
    assert_eq!(got[first].ids, whole[first].ids);
    for (index, (got, whole)) in got.iter().zip(&whole).enumerate() {
        assert!(whole.ids.starts_with(&got.ids), "reply {index}");
    }
    let interrupted = got.iter().filter(|reply| reply.finish == Finish::Interrupted);
    assert!(interrupted.clone().any(|reply| !reply.ids.is_empty()));
    assert!(interrupted.clone().any(|reply| reply.ids.is_empty()));
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let never = AtomicBool::new(false);
    let mut decoder = toy::decoder_in_lanes(CONTEXT, 2, CacheFormat::Bf16, 1);
    let mut ask = |prompts: &[Vec<u32>]| {
        let (sampler, limits) = (toy::sampler(0.0), toy::limits(4));
        replies(&mut decoder, &toy::tokenizer(), prompts, &sampler, &limits, &never, &mut |_, _| ())
    };
    assert!(matches!(ask(&[vec![1], vec![1; CONTEXT + 1]]), Err(Error::Model(_))));
    assert!(matches!(ask(&[vec![1], vec![]]), Err(Error::EmptyPrompt)));
    assert!(ask(&[]).unwrap().is_empty());
    let (sampler, limits) = (toy::sampler(1.0), toy::limits(4));
    let broken = replies(
        &mut toy::broken_decoder(),
        &toy::tokenizer(),
        &[vec![1]],
        &sampler,
        &limits,
        &never,
        &mut |_, _| (),
    );
    assert!(broken.unwrap_err().to_string().contains("layer 1, stage post_norm"));
    // The cache that was left behind is found again.
    assert_eq!(ask(&[vec![1, 2, 3]]).unwrap()[0].ids.len(), 4);
}
