//! A packed sequence is its samples side by side, each as if it were alone.

use halfbyte_text::dataset::{Order, Sample};
use halfbyte_text::packing::{Packing, Sequence, UNTRAINED};

use crate::dataset::Files;

fn sample(first: u32, count: u32, trained: std::ops::Range<usize>) -> Sample {
    Sample { source: 0, line: 1, hash: 0, tokens: (first..first + count).collect(), trained: vec![trained] }
}

#[test]
fn targets_are_the_next_trained_tokens_and_positions_begin_anew() {
    let samples = [sample(10, 4, 0..4), sample(20, 5, 2..4)];
    let packing = Packing::first_fit(&samples, &[0, 1], 7);
    assert_eq!(packing.len(), 1);
    let sequence = packing.sequence(0, &samples).unwrap();
    let none = UNTRAINED;
    assert_eq!(
        sequence,
        Sequence {
            tokens: vec![10, 11, 12, 20, 21, 22, 0],
            targets: vec![11, 12, 13, none, 22, 23, none],
            segment_start: vec![0, 0, 0, 3, 3, 3, 6],
            samples: vec![(0, 0), (1, 3)],
            used: 6,
        }
    );
    assert_eq!(sequence.positions(), [0, 1, 2, 0, 1, 2, 0]);
    assert!(packing.sequence(1, &samples).is_none());
}

#[test]
fn packed_samples_are_what_they_are_apart() {
    let files = Files::new("packed");
    let rows: String = (0..500).map(|i| format!("q {i}\t{}\n", "a b ".repeat(1 + i * 7 % 12))).collect();
    let source = files.write("a.tsv", rows);
    let data = files.read(&[source], 96, false).unwrap();
    let all: Vec<usize> = (0..data.samples.len()).collect();
    let order = Order { seed: 1, epoch: 0 }.arrange(&data, &all);
    let packed = Packing::first_fit(&data.samples, &order, 96);
    let apart = Packing::apart(&order, 96);
    let mut seen = Vec::new();
    let mut positions = 0;
    for index in 0..packed.len() {
        let sequence = packed.sequence(index, &data.samples).unwrap();
        assert_eq!(
            (sequence.tokens.len(), sequence.targets.len(), sequence.segment_start.len()),
            (96, 96, 96)
        );
        positions += sequence.used;
        for &(sample, begin) in &sequence.samples {
            let place = order.iter().position(|&other| other == sample).unwrap();
            let alone = apart.sequence(place, &data.samples).unwrap();
            let range = begin..begin + alone.used;
            assert_eq!(sequence.tokens[range.clone()], alone.tokens[..alone.used]);
            assert_eq!(sequence.targets[range.clone()], alone.targets[..alone.used]);
            assert!(sequence.segment_start[range].iter().all(|&start| start as usize == begin));
            seen.push(sample);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, all);
    // First fit leaves little empty.
    assert!(positions * 10 > packed.len() * 96 * 9, "{positions} of {}", packed.len() * 96);
}

#[test]
fn every_order_packs_the_same_way_again() {
    let samples: Vec<Sample> =
        (0..300).map(|i| sample(i, 2 + i * 13 % 50, 1..2 + (i * 13 % 50) as usize)).collect();
    let order: Vec<usize> = (0..300).rev().collect();
    let packing = Packing::first_fit(&samples, &order, 64);
    assert_eq!(packing, Packing::first_fit(&samples, &order, 64));
    assert!(!packing.is_empty());
}
