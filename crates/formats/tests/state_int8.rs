//! What the 8-bit blocks of embedding and head promise while they learn.

mod common;

use common::{mean, scaled};
use halfbyte_formats::int8_block;
use halfbyte_formats::philox;
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::int8::{self, Remainder, Row};
use halfbyte_formats::state::{BLOCK, Push, Tally};
use proptest::prelude::*;

const WIDTHS: [Remainder; 3] = [Remainder::Byte, Remainder::Nibble, Remainder::None];

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    codes: Vec<i8>,
    scales: Vec<u8>,
    remainders: Vec<u8>,
    width: Remainder,
}

impl Stored {
    fn zero(len: usize, width: Remainder) -> Self {
        let remainders = vec![0; width.bytes(len)];
        Stored { codes: vec![0; len], scales: vec![1; len / BLOCK], remainders, width }
    }

    fn import(x: &[f32], width: Remainder) -> Self {
        let mut stored = Stored::zero(x.len(), width);
        int8::import_row(x, width, stored.row());
        stored
    }

    fn row(&mut self) -> Row<'_> {
        Row { codes: &mut self.codes, scales: &mut self.scales, remainders: &mut self.remainders }
    }

    fn update(&mut self, delta: &[f32], seed: u64, step: u64) -> Tally {
        let width = self.width;
        int8::update_row(self.row(), width, delta, &Draws::new(seed, step, 0, Purpose::Weight), 0)
    }

    fn decode(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.codes.len()];
        int8::decode_row(&self.codes, &self.scales, &self.remainders, self.width, &mut out);
        out
    }

    fn unit(&self, element: usize) -> f32 {
        int8_block::decode_scale(self.scales[element / BLOCK]) / (1 << self.width.bits()) as f32
    }
}

/// Uniform in (-1, 1).
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let draw = |i| (philox::random_bits(seed, 0, 0, i) as i32) as f32 / 2_147_483_648.0;
    (0..len as u64).map(draw).collect()
}

#[test]
fn an_imported_row_has_the_codes_of_the_format_and_is_within_half_a_unit() {
    let x = scaled(&noise(1, 8192), 0.05);
    for width in WIDTHS {
        let stored = Stored::import(&x, width);
        let mut plain = Stored::zero(x.len(), width);
        int8_block::encode_row(&x, &mut plain.codes, &mut plain.scales);
        assert_eq!((&stored.codes, &stored.scales), (&plain.codes, &plain.scales));
        for (i, (x, w)) in x.iter().zip(stored.decode()).enumerate() {
            // Just below half a code the remainder would be one too large for its bits.
            let rest = (x / (stored.unit(i) * (1 << width.bits()) as f32)).rem_euclid(1.0);
            let edge = width != Remainder::None && (0.46..0.5).contains(&rest);
            assert!((x - w).abs() <= stored.unit(i) * if edge { 1.01 } else { 0.501 }, "{width:?} {x} {w}");
        }
    }
}

#[test]
fn a_constant_tiny_update_moves_the_stored_weight_by_its_sum() {
    let x = scaled(&noise(2, 16384), 0.05);
    for width in WIDTHS {
        let mut stored = Stored::import(&x, width);
        let start = stored.decode();
        let unit = mean((0..x.len()).map(|i| f64::from(stored.unit(i)))) as f32;
        let (delta, steps) = (vec![unit / 50.0; x.len()], 2000);
        for step in 0..steps {
            stored.update(&delta, 3, step);
        }
        let moved = mean(stored.decode().iter().zip(&start).map(|(w, x)| f64::from(w - x)));
        let share = moved / (f64::from(delta[0]) * steps as f64);
        assert!((share - 1.0).abs() < 5.0 * (50.0 / steps as f64 / x.len() as f64).sqrt() + 1e-3, "{share}");
        println!("{width:?}, 1/50 unit, {steps} steps: moved {share:.4} of the update");
    }
}

#[test]
fn a_growing_and_shrinking_block_changes_its_exponent_and_keeps_its_mean() {
    for width in WIDTHS {
        let x: Vec<f32> =
            (0..65536).map(|i| if i % 16 == 0 { 100.0 } else { 3.3 * (i % 16) as f32 }).collect();
        let mut stored = Stored::import(&x, width);
        let start = stored.decode();
        let only_first =
            |d: f32| -> Vec<f32> { (0..x.len()).map(|i| if i % 16 == 0 { d } else { 0.0 }).collect() };
        assert_eq!(stored.update(&only_first(30.0), 4, 0).rescaled, 4096);
        assert!(stored.scales.iter().all(|byte| *byte == 128));
        for place in 0..16 {
            let places = |w: &[f32]| mean((0..4096).map(|block| f64::from(w[16 * block + place])));
            let grown = places(&start) + if place == 0 { 30.0 } else { 0.0 };
            let unit = f64::from(stored.unit(0));
            assert!((places(&stored.decode()) - grown).abs() < unit * 5.0 * 0.5 / 64.0, "{place}");
        }
        // 100 is 50 codes of 2: kept. 60 is 30: lowered, exactly.
        assert_eq!(stored.update(&only_first(-30.0), 4, 1).rescaled, 0);
        let kept = stored.decode();
        assert_eq!(stored.update(&only_first(-40.0), 4, 2).rescaled, 4096);
        let lowered = stored.decode();
        assert!((0..x.len()).filter(|i| i % 16 != 0).all(|i| lowered[i] == kept[i]));
    }
}

#[test]
fn a_row_of_zeros_can_learn() {
    for width in WIDTHS {
        let mut stored = Stored::import(&[0.0; 16], width);
        stored.update(&[1e-5; 16], 5, 0);
        assert!(stored.decode().iter().all(|w| (*w - 1e-5).abs() < 2e-7), "{:?}", stored.decode());
    }
}

#[test]
fn of_a_block_of_zeros_in_a_silent_row_only_what_has_a_gradient_moves() {
    // So large a step over so small a root that it is infinitely many of the units that zeros have.
    let mut along = [0.0; BLOCK];
    along[3] = 1e-8;
    let push = Push { along: &along, size: -1e-3, times: 1e8, decay: 0.0 };
    for moved in [true, false] {
        let (mut codes, mut scale, mut remainder) = ([0i8; BLOCK], 1, [0; BLOCK / 2]);
        let push = Push { along: if moved { &along } else { &[0.0; BLOCK] }, ..push };
        let block = int8::Block { codes: &mut codes, scale: &mut scale, remainder: &mut remainder };
        let tally = int8::update_block::<4>(block, &push, &[0x1234_5678; BLOCK]);
        assert_eq!((tally.refused, tally.rescaled), (0, u64::from(moved)));
        assert!((0..BLOCK).all(|i| (codes[i] != 0) == (moved && i == 3)), "{codes:?}");
        assert_eq!(scale == 1 && remainder == [0; BLOCK / 2], !moved);
    }
}

#[test]
fn what_is_not_finite_is_refused_and_changes_nothing() {
    for width in WIDTHS {
        let mut stored = Stored::import(&noise(6, 32), width);
        stored.scales[1] = 255;
        let before = stored.clone();
        let mut delta = [0.0; 32];
        delta[..16].fill(f32::NAN);
        delta[16..].fill(1.0);
        assert_eq!(stored.update(&delta, 0, 0), Tally { refused: 2, ..Tally::default() });
        assert_eq!(stored, before);
    }
}

#[test]
fn a_row_in_pieces_has_the_bytes_of_the_whole() {
    let (x, delta) = (noise(7, 256), scaled(&noise(8, 256), 0.003));
    let draws = Draws::new(1, 2, 3, Purpose::Weight);
    for width in WIDTHS {
        let mut whole = Stored::import(&x, width);
        let mut pieces = whole.clone();
        let tally = int8::update_row(whole.row(), width, &delta, &draws, 512);
        let mut sum = Tally::default();
        for (from, to) in [(96, 256), (0, 16), (16, 96)] {
            let row = Row {
                codes: &mut pieces.codes[from..to],
                scales: &mut pieces.scales[from / BLOCK..to / BLOCK],
                remainders: &mut pieces.remainders[width.bytes(from)..width.bytes(to)],
            };
            sum.add(int8::update_row(row, width, &delta[from..to], &draws, 512 + from as u64));
        }
        assert_eq!((&whole, tally), (&pieces, sum));
    }
}

proptest! {
    #[test]
    fn a_zero_update_changes_no_byte_of_any_block(
        bytes in prop::collection::vec(any::<u8>(), 33), seed in any::<u64>(),
    ) {
        for width in WIDTHS {
            let mut stored = Stored::zero(16, width);
            stored.codes.iter_mut().zip(&bytes).for_each(|(code, byte)| *code = *byte as i8);
            stored.scales[0] = bytes[16];
            stored.remainders.copy_from_slice(&bytes[17..17 + width.bytes(16)]);
            let before = stored.clone();
            prop_assert_eq!(stored.update(&[-0.0; 16], seed, 1), Tally::default());
            prop_assert_eq!(&stored, &before);
        }
    }

    #[test]
    fn after_any_updates_a_zero_update_changes_nothing_and_weights_are_within_a_unit(
        seed in any::<u64>(), magnitude in -4i32..14, steps in 1u64..20,
    ) {
        for width in WIDTHS {
            let mut stored = Stored::import(&noise(seed, 64), width);
            for step in 0..steps {
                let before = stored.decode();
                let delta = scaled(&noise(seed ^ (step + 1), 64), 2f32.powi(-magnitude));
                let tally = stored.update(&delta, seed, step);
                prop_assert_eq!((tally.saturated, tally.refused), (0, 0));
                for (i, w) in stored.decode().into_iter().enumerate() {
                    let sum = before[i] + delta[i];
                    prop_assert!((w - sum).abs() <= stored.unit(i) * 1.001 + sum.abs() * 1e-6);
                }
            }
            let before = stored.clone();
            let mut delta = [0.0; 64];
            stored.update(&delta, seed, steps);
            prop_assert_eq!(&stored, &before);
            delta[3] = stored.unit(3);
            stored.update(&delta, seed, steps);
            prop_assert_eq!(&stored.codes[16..], &before.codes[16..]);
            if stored.scales == before.scales {
                let (new, old) = (stored.decode(), before.decode());
                prop_assert!((0..64).all(|i| i == 3 || new[i] == old[i]));
            }
        }
    }
}
