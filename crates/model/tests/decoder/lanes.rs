//! Tokens of several conversations computed together have the bits that they have alone.

use halfbyte_cpu::{Cpu, Isa};
use halfbyte_model::{Decoder, Error};
use halfbyte_ops::CacheFormat;
use halfbyte_ops::best::Best;
use halfbyte_ops::testing::assert_same_bits;
use halfbyte_plan::WeightChoice;
use serde_json::json;

use crate::common::{Run, Toy, kernel_sets};

const CONTEXT: usize = 70;
/// Lengths of the lanes' beginnings: within a tile of keys, at its end and after it.
const BEGINNINGS: [usize; 5] = [1, 40, 31, 32, 33];
const STEPS: usize = 4;

fn toy() -> Toy {
    Toy::new(&json!({
        "model_type": "qwen3", "vocab_size": 97, "hidden_size": 96, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "use_sliding_window": true, "sliding_window": 20, "max_window_layers": 1,
    }))
}

fn run(isa: Isa, lanes: usize, chunk: usize) -> Run {
    Run { threads: 2, lanes, chunk, logit_rows: 3, ..Run::exact(isa, CONTEXT) }
}

/// What a lane reads.
fn tokens(lane: usize) -> Vec<u32> {
    (0..BEGINNINGS[lane] + STEPS).map(|i| ((i * i + 5 * i + 31 * lane) % 97) as u32).collect()
}

/// The logits of every step of a lane.
fn alone(decoder: &mut Decoder<Cpu>, lane: usize) -> Vec<Vec<f32>> {
    decoder.keep(0);
    let (beginning, steps) = (&tokens(lane)[..BEGINNINGS[lane]], &tokens(lane)[BEGINNINGS[lane]..]);
    decoder.last_logits(beginning).unwrap();
    steps.iter().map(|&id| decoder.last_logits(&[id]).unwrap()).collect()
}

#[test]
fn logits_of_lanes_are_those_of_each_alone() {
    let toy = toy();
    let cases = [
        (WeightChoice::Nvfp4, CacheFormat::Bf16),
        (WeightChoice::Bf16, CacheFormat::Int8),
        (WeightChoice::F32, CacheFormat::F32),
    ];
    for isa in kernel_sets() {
        for (weights, cache) in cases {
            // Fewer tokens at a time than there are lanes, and more.
            for chunk in [2, 16] {
                check(&toy, Run { weights, cache, ..run(isa, BEGINNINGS.len(), chunk) });
            }
        }
    }
}

fn check(toy: &Toy, run: Run) {
    let mut single = toy.open(Run { lanes: 1, ..run });
    let want: Vec<Vec<Vec<f32>>> = (0..BEGINNINGS.len()).map(|lane| alone(&mut single, lane)).collect();
    let mut decoder = toy.open(run);
    for (lane, length) in BEGINNINGS.into_iter().enumerate() {
        decoder.enter(lane);
        decoder.last_logits(&tokens(lane)[..length]).unwrap();
    }
    for step in 0..STEPS {
        // Not always all of them, nor in their order: lane 1 is a step behind at the end.
        let mut lanes: Vec<usize> = (0..BEGINNINGS.len()).rev().collect();
        lanes.retain(|&lane| lane != 1 || step != 2);
        let behind = |lane| step - usize::from(lane == 1 && step > 2);
        let next: Vec<(usize, u32)> =
            lanes.iter().map(|&lane| (lane, tokens(lane)[BEGINNINGS[lane] + behind(lane)])).collect();
        let mut seen = 0;
        let each = &mut |index: usize, logits: &[f32]| {
            let lane = lanes[index];
            let what = format!("lane {lane}, step {step}, {run:?}");
            assert_same_bits(logits, &want[lane][behind(lane)], &what);
            seen += 1;
        };
        decoder.feed_lanes(&next, each).unwrap();
        assert_eq!(seen, lanes.len());
    }
    for (lane, length) in BEGINNINGS.into_iter().enumerate() {
        decoder.enter(lane);
        let steps = STEPS - usize::from(lane == 1);
        assert_eq!(decoder.tokens(), &tokens(lane)[..length + steps]);
    }
}

#[test]
fn the_best_of_lanes_are_those_of_each_alone() {
    let toy = toy();
    let mut decoder = toy.open(run(Isa::detect(), 4, 16));
    let mut single = toy.open(run(Isa::detect(), 1, 16));
    let next: Vec<(usize, u32)> = (0..4).map(|lane| (lane, 10 + lane as u32)).collect();
    let mut seen = Vec::new();
    decoder
        .feed_lanes_for_best(&next, &mut [Best::default(); 5], &mut |index, best, finite| {
            assert!(finite);
            seen.push((index, best.to_vec()));
        })
        .unwrap();
    for (lane, id) in next {
        single.keep(0);
        let mut best = vec![Best::default(); 5];
        assert!(single.feed_for_best(&[id], &mut best).unwrap());
        assert_eq!(seen[lane], (lane, best));
    }
}

#[test]
fn a_full_lane_is_refused_and_the_others_stay() {
    let mut decoder = toy().open(run(Isa::detect(), 2, 16));
    decoder.last_logits(&[3; CONTEXT]).unwrap();
    let refused = decoder.feed_lanes(&[(1, 5), (0, 5)], &mut |_, _| ());
    assert!(matches!(refused, Err(Error::TooLong { have: CONTEXT, new: 1, context: CONTEXT })));
    assert_eq!(decoder.tokens().len(), CONTEXT);
    decoder.enter(1);
    assert!(decoder.tokens().is_empty());
}

#[test]
fn looking_for_a_bad_value_empties_its_lane_and_no_other() {
    let mut decoder = toy().open(run(Isa::detect(), 2, 16));
    for lane in [0, 1] {
        decoder.enter(lane);
        decoder.last_logits(&tokens(lane)[..1]).unwrap();
    }
    let want = toy().open(run(Isa::detect(), 1, 16)).last_logits(&tokens(0)[..2]).unwrap();
    assert!(matches!(decoder.first_bad().unwrap(), Error::NotFinite { .. }));
    assert!(decoder.tokens().is_empty());
    decoder.enter(0);
    assert_same_bits(&decoder.last_logits(&tokens(0)[1..2]).unwrap(), &want, "the other lane");
}
