//! No cache, whole prompt, token by token, three times each: nine ways, one result.

use halfbyte_cpu::Cpu;
use halfbyte_model::Decoder;
use halfbyte_ops::CacheFormat;

use crate::toy;

fn prompt() -> Vec<u32> {
    (0..75u32).map(|i| i * 37 % 256).collect()
}

const STEPS: usize = 40;

fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, x) in logits.iter().enumerate() {
        if *x > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// A way to get the next token's logits.
type Next<'a> = &'a dyn Fn(&mut Decoder<Cpu>, &[u32]) -> Vec<f32>;

/// Logits of every step of a greedy continuation.
fn continuation(decoder: &mut Decoder<Cpu>, next: Next<'_>) -> Vec<Vec<u32>> {
    decoder.keep(0);
    let mut ids = prompt();
    (0..STEPS)
        .map(|_| {
            let logits = next(decoder, &ids);
            ids.push(best(&logits));
            toy::bits(&logits)
        })
        .collect()
}

fn without_cache(decoder: &mut Decoder<Cpu>, ids: &[u32]) -> Vec<f32> {
    decoder.keep(0);
    decoder.last_logits(ids).unwrap()
}

fn whole(decoder: &mut Decoder<Cpu>, ids: &[u32]) -> Vec<f32> {
    let have = decoder.tokens().len();
    decoder.last_logits(&ids[have..]).unwrap()
}

fn token_by_token(decoder: &mut Decoder<Cpu>, ids: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for position in decoder.tokens().len()..ids.len() {
        logits = decoder.last_logits(&ids[position..=position]).unwrap();
    }
    logits
}

#[test]
fn nine_ways_to_the_same_bits() {
    for cache in [CacheFormat::Bf16, CacheFormat::F32, CacheFormat::Int8] {
        let mut decoder = toy::decoder(256, cache, 5);
        let expected = continuation(&mut decoder, &whole);
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]), "the toy says something");
        for round in 0..3 {
            assert_eq!(continuation(&mut decoder, &without_cache), expected, "no cache, round {round}");
            assert_eq!(continuation(&mut decoder, &whole), expected, "whole prompt, round {round}");
            assert_eq!(continuation(&mut decoder, &token_by_token), expected, "one by one, round {round}");
        }
    }
}

#[test]
fn a_prompt_may_be_cut_anywhere() {
    let mut decoder = toy::decoder(256, CacheFormat::Bf16, 5);
    let ids = prompt();
    let expected = toy::bits(&without_cache(&mut decoder, &ids));
    for cut in 1..ids.len() {
        decoder.keep(0);
        decoder.last_logits(&ids[..cut]).unwrap();
        assert_eq!(toy::bits(&decoder.last_logits(&ids[cut..]).unwrap()), expected, "cut at {cut}");
    }
}
