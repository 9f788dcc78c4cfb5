//! What the stored weight promises: no update no change, true drift, no wall, exact imports, any chunking.

mod common;

use common::{mean, scaled};
use halfbyte_formats::nvfp4::{self, Scales};
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::weight::{self, Remainder, Row};
use halfbyte_formats::state::{BLOCK, Tally};
use halfbyte_formats::{e4m3, philox};
use proptest::prelude::*;

const ALL: [Scales; 3] = [Scales::Nearest, Scales::FourOverSix, Scales::Search];
const WIDTHS: [Remainder; 2] = [Remainder::Byte, Remainder::Nibble];

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    codes: Vec<u8>,
    scales: Vec<u8>,
    remainders: Vec<u8>,
    tensor_scale: f32,
    width: Remainder,
}

impl Stored {
    fn zero(len: usize, tensor_scale: f32, width: Remainder) -> Self {
        Stored {
            codes: vec![0; len / 2],
            scales: vec![0x08; len / BLOCK],
            remainders: vec![0; width.bytes(len)],
            tensor_scale,
            width,
        }
    }

    fn import(x: &[f32], scales: Scales, width: Remainder) -> Self {
        let mut stored = Stored::zero(x.len(), weight::tensor_scale(nvfp4::amax(x), scales), width);
        weight::import_row(x, stored.tensor_scale, scales, width, stored.row());
        stored
    }

    fn row(&mut self) -> Row<'_> {
        Row { codes: &mut self.codes, scales: &mut self.scales, remainders: &mut self.remainders }
    }

    fn update(&mut self, delta: &[f32], seed: u64, step: u64) -> Tally {
        let (width, scale) = (self.width, self.tensor_scale);
        weight::update_row(self.row(), width, scale, delta, &Draws::new(seed, step, 0, Purpose::Weight), 0)
    }

    fn decode(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.scales.len() * BLOCK];
        weight::decode_row(
            &self.codes,
            &self.scales,
            &self.remainders,
            self.width,
            self.tensor_scale,
            &mut out,
        );
        out
    }

    fn forward(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.scales.len() * BLOCK];
        nvfp4::decode_row(&self.codes, &self.scales, self.tensor_scale, &mut out);
        out
    }

    /// Size of one unit in the block of each element.
    fn unit(&self, element: usize) -> f32 {
        let scale = e4m3::decode(self.scales[element / BLOCK]) * self.tensor_scale;
        scale / (1 << (self.width.bits() - 1)) as f32
    }
}

fn uniform(seed: u64, element: u64) -> f64 {
    (f64::from(philox::random_bits(seed, 0, 0, element)) + 0.5) / 4_294_967_296.0
}

fn gaussian(seed: u64, len: usize) -> Vec<f32> {
    let draw = |i: u64| {
        let radius = (-2.0 * uniform(seed, 2 * i).ln()).sqrt();
        (radius * (std::f64::consts::TAU * uniform(seed, 2 * i + 1)).cos()) as f32
    };
    (0..len as u64).map(draw).collect()
}

#[test]
fn an_imported_weight_is_within_half_a_unit_and_its_plane_is_the_quantisers() {
    let x = scaled(&gaussian(1, 16384), 0.02);
    for scales in ALL {
        for width in WIDTHS {
            let stored = Stored::import(&x, scales, width);
            let mut plane = Stored::zero(x.len(), stored.tensor_scale, width);
            nvfp4::encode_row(&x, stored.tensor_scale, scales, &mut plane.codes, &mut plane.scales);
            assert_eq!((&stored.codes, &stored.scales), (&plane.codes, &plane.scales));
            for (i, (x, w)) in x.iter().zip(stored.decode()).enumerate() {
                let (error, unit) = ((x - w).abs(), stored.unit(i));
                let s = e4m3::decode(stored.scales[i / BLOCK]) * stored.tensor_scale;
                // Just below 5 s the remainder would be one too large for its bits; from 7 s on it ends.
                let edge = (x.abs() / s - 5.0).abs() < 0.07 || x.abs() / s > 6.9;
                let beyond = (x.abs() - 7.0 * s).max(0.0);
                assert!(
                    error <= unit * if edge { 1.02 } else { 0.51 } + beyond,
                    "{scales:?} {width:?} {x} {w}"
                );
            }
        }
    }
}

#[test]
fn head_room_moves_only_the_scales() {
    let x = scaled(&gaussian(2, 16384), 0.02);
    let stored = Stored::import(&x, Scales::Nearest, Remainder::Byte);
    let g = nvfp4::tensor_scale(nvfp4::amax(&x), Scales::Nearest);
    let mut plain = Stored::zero(x.len(), g, Remainder::Byte);
    nvfp4::encode_row(&x, g, Scales::Nearest, &mut plain.codes, &mut plain.scales);
    assert_eq!(stored.tensor_scale, 4.0 * g);
    assert_eq!(stored.codes, plain.codes);
    assert!(stored.scales.iter().zip(&plain.scales).all(|(a, b)| *a + 16 == *b));
}

#[test]
fn room_is_made_without_changing_a_value_or_not_at_all() {
    let x = scaled(&gaussian(3, 1024), 0.02);
    let g = nvfp4::tensor_scale(nvfp4::amax(&x), Scales::Nearest);
    let mut stored = Stored::zero(x.len(), g, Remainder::Nibble);
    nvfp4::encode_row(&x, g, Scales::Nearest, &mut stored.codes, &mut stored.scales);
    let before = stored.clone();
    assert!(weight::make_room(&mut stored.scales, &mut stored.tensor_scale, 2));
    assert_eq!(stored.tensor_scale, 4.0 * g);
    assert_eq!(stored.decode(), before.decode());
    stored.scales[5] = 0x09;
    let before = stored.clone();
    assert!(!weight::make_room(&mut stored.scales, &mut stored.tensor_scale, 2));
    assert_eq!(stored, before);
}

#[test]
fn an_nvfp4_tensor_is_its_own_import_half_a_unit_apart() {
    for width in WIDTHS {
        let mut stored = Stored::zero(256, 0.37, width);
        stored.codes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37) as u8);
        stored.scales.iter_mut().enumerate().for_each(|(i, byte)| *byte = 8 * i as u8 + 5);
        for (i, (w, code)) in stored.decode().iter().zip(stored.forward()).enumerate() {
            assert!(((w - code) / stored.unit(i) - 0.5).abs() < 1e-4, "{w} {code}");
        }
        let before = stored.clone();
        assert_eq!(stored.update(&[0.0; 256], 0, 0), Tally::default());
        assert_eq!(stored, before);
    }
}

#[test]
fn the_forward_pass_sees_the_plane_alone() {
    let stored = Stored::import(&gaussian(4, 256), Scales::Nearest, Remainder::Byte);
    for (i, value) in stored.forward().into_iter().enumerate() {
        let block = stored.codes.as_chunks().0[i / BLOCK];
        assert_eq!(
            weight::forward_block(&block, stored.scales[i / BLOCK], stored.tensor_scale)[i % BLOCK],
            value
        );
    }
}

#[test]
fn a_constant_tiny_update_moves_the_stored_weight_by_its_sum() {
    let x = scaled(&gaussian(5, 16384), 0.02);
    for (width, divisor, steps) in
        [(Remainder::Byte, 50.0, 4000), (Remainder::Nibble, 50.0, 2000), (Remainder::Byte, 1e4, 4000)]
    {
        let mut stored = Stored::import(&x, Scales::Nearest, width);
        let start = stored.decode();
        let unit = mean((0..x.len()).map(|i| f64::from(stored.unit(i)))) as f32;
        let delta = vec![unit / divisor; x.len()];
        for step in 0..steps {
            stored.update(&delta, 6, step);
        }
        let moved = mean(stored.decode().iter().zip(&start).map(|(w, x)| f64::from(w - x)));
        let share = moved / (f64::from(delta[0]) * steps as f64);
        // Deviation of a mean of 16384 sums of `steps` draws with variance at most share / divisor.
        let deviation = (divisor as f64 / steps as f64 / x.len() as f64).sqrt();
        assert!((share - 1.0).abs() < 5.0 * deviation + 1e-3, "{width:?} 1/{divisor}: {share}");
        println!("{width:?}, 1/{divisor} unit, {steps} steps: moved {share:.4} of the update");
    }
}

#[test]
fn there_is_no_wall_at_five_scales() {
    for width in WIDTHS {
        for sign in [1.0, -1.0] {
            // One weight of each block goes from 4 to 6; another at 6 holds the scale.
            let x: Vec<f32> = (0..4096).map(|i| [6.0, 4.0 * sign, 1.0, 0.0][i % 4]).collect();
            let mut stored = Stored::zero(x.len(), 1.0 / 32.0, width);
            weight::import_row(&x, 1.0 / 32.0, Scales::Nearest, width, stored.row());
            let delta: Vec<f32> = (0..4096).map(|i| [0.0, sign / 500.0, 0.0, 0.0][i % 4]).collect();
            for step in 0..1000 {
                stored.update(&delta, 7, step);
            }
            let ends: Vec<f32> = stored.decode().iter().skip(1).step_by(4).map(|w| w * sign).collect();
            let average = mean(ends.iter().map(|w| f64::from(*w)));
            // What is a code at first lies half a unit beside it.
            let half = 0.5 / f64::from(1 << (width.bits() - 1));
            assert!((average - 6.0).abs() < 0.08 + half, "{width:?} {sign}: {average}");
            // A nibble's own noise after a thousand steps is half a scale.
            let across = ends.iter().filter(|w| **w > 5.0).count() as f64 / ends.len() as f64;
            assert!(
                across > if width == Remainder::Byte { 0.999 } else { 0.95 },
                "{width:?} {sign}: {across}"
            );
        }
    }
}

#[test]
fn a_change_of_scale_keeps_the_mean() {
    for width in WIDTHS {
        let x: Vec<f32> =
            (0..65536).map(|i| if i % 16 == 0 { 6.0 } else { 0.37 + 0.21 * (i % 16) as f32 }).collect();
        let mut stored = Stored::zero(x.len(), 1.0 / 32.0, width);
        weight::import_row(&x, 1.0 / 32.0, Scales::Nearest, width, stored.row());
        let start = stored.decode();
        let delta: Vec<f32> = (0..x.len()).map(|i| if i % 16 == 0 { 2.0 } else { 0.0 }).collect();
        let tally = stored.update(&delta, 8, 0);
        assert_eq!(tally.rescaled, 4096);
        assert!(stored.scales.iter().all(|byte| e4m3::decode(*byte) == 44.0));
        for place in 1..16 {
            let places = |w: &[f32]| mean((0..4096).map(|block| f64::from(w[16 * block + place])));
            let unit = f64::from(stored.unit(0));
            assert!((places(&stored.decode()) - places(&start)).abs() < unit * 5.0 * 0.5 / 64.0, "{place}");
        }
    }
}

#[test]
fn what_outgrows_the_tensor_scale_saturates_and_is_counted() {
    for width in WIDTHS {
        let mut stored = Stored::import(&[1.0; 16], Scales::Nearest, width);
        let limit = 7.0 * 448.0 * stored.tensor_scale;
        let mut counted = 0;
        for step in 0..100 {
            let tally = stored.update(&[0.1; 16], 9, step);
            counted += tally.saturated;
        }
        assert!(counted > 0);
        assert_eq!(stored.scales, [0x7E]);
        assert!((4.5..4.7).contains(&limit), "{limit}");
        assert!(stored.decode().iter().all(|w| *w < limit && *w > 0.98 * limit));
        // And it comes back.
        stored.update(&[-2.0; 16], 9, 100);
        assert!(stored.decode().iter().all(|w| (*w - (limit - 2.0)).abs() < 0.1));
    }
}

#[test]
fn what_is_not_finite_is_refused_and_changes_nothing() {
    for width in WIDTHS {
        let mut stored = Stored::import(&gaussian(10, 48), Scales::Nearest, width);
        let before = stored.clone();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut delta = [0.0; 48];
            delta[20] = bad;
            assert_eq!(stored.update(&delta, 0, 0), Tally { refused: 1, ..Tally::default() });
            assert_eq!(stored, before);
        }
        stored.scales[1] = e4m3::NAN;
        let before = stored.clone();
        let tally = stored.update(&[1.0; 48], 0, 0);
        assert_eq!(tally.refused, 1);
        assert_eq!(stored.codes[8..16], before.codes[8..16]);
        assert_eq!(stored.scales[1], e4m3::NAN);
    }
}

#[test]
fn a_row_in_pieces_has_the_bytes_of_the_whole() {
    let x = scaled(&gaussian(11, 1024), 0.02);
    let draws = Draws::new(3, 5, 7, Purpose::Weight);
    for width in WIDTHS {
        let mut whole = Stored::import(&x, Scales::Nearest, width);
        let mut pieces = whole.clone();
        let delta = scaled(&gaussian(12, 1024), 1e-4);
        let g = whole.tensor_scale;
        let tally = weight::update_row(whole.row(), width, g, &delta, &draws, 4096);
        let mut sum = Tally::default();
        for (from, to) in [(640, 1024), (0, 16), (16, 640)] {
            let row = Row {
                codes: &mut pieces.codes[from / 2..to / 2],
                scales: &mut pieces.scales[from / BLOCK..to / BLOCK],
                remainders: &mut pieces.remainders[width.bytes(from)..width.bytes(to)],
            };
            sum.add(weight::update_row(row, width, g, &delta[from..to], &draws, 4096 + from as u64));
        }
        assert_eq!(whole, pieces);
        assert_eq!(tally, sum);
        assert!(tally.changed > 0);
    }
}

#[test]
fn bytes_per_parameter_are_those_of_the_design() {
    use halfbyte_formats::state::{int8, moment::Moment};
    const DEFAULT: f64 = Remainder::Byte.bytes_per_parameter() + Moment::Four.bytes_per_parameter();
    const LEAN: f64 = Remainder::Nibble.bytes_per_parameter() + Moment::Four.bytes_per_parameter();
    assert_eq!((DEFAULT, LEAN), (2.125, 1.625));
    assert_eq!(int8::Remainder::Nibble.bytes_per_parameter() + Moment::Four.bytes_per_parameter(), DEFAULT);
    assert_eq!(int8::Remainder::None.bytes_per_parameter() + Moment::Four.bytes_per_parameter(), LEAN);
}

proptest! {
    #[test]
    fn a_zero_update_changes_no_byte_of_any_block(
        bytes in prop::collection::vec(any::<u8>(), 25),
        tensor_scale in prop::sample::select(vec![1.0f32, 1e-5, 3e-30, 7e20]),
        seed in any::<u64>(),
    ) {
        for width in WIDTHS {
            let mut stored = Stored::zero(16, tensor_scale, width);
            stored.codes.copy_from_slice(&bytes[..8]);
            stored.scales[0] = bytes[8];
            stored.remainders.copy_from_slice(&bytes[9..9 + width.bytes(16)]);
            let before = stored.clone();
            for zero in [0.0, -0.0] {
                prop_assert_eq!(stored.update(&[zero; 16], seed, 1), Tally::default());
                prop_assert_eq!(&stored, &before);
            }
        }
    }

    #[test]
    fn elements_without_an_update_keep_their_bytes_while_the_scale_is_kept(
        seed in any::<u64>(), magnitude in -3i32..12, steps in 1u64..40,
    ) {
        for width in WIDTHS {
            for scales in ALL {
                let x = gaussian(seed, 64);
                let mut stored = Stored::import(&x, scales, width);
                for step in 0..steps {
                    let noise = scaled(&gaussian(seed ^ (step + 1), 64), 2f32.powi(-magnitude));
                    stored.update(&noise, seed, step);
                }
                let before = stored.clone();
                prop_assert_eq!(stored.update(&[0.0; 64], seed, steps), Tally::default());
                prop_assert_eq!(&stored, &before);
                let mut delta = [0.0; 64];
                delta[3] = stored.unit(3) * 1.5;
                let tally = stored.update(&delta, seed, steps);
                let mut expected = before.decode();
                let moved = stored.decode();
                if stored.scales == before.scales {
                    let error = (moved[3] - expected[3] - delta[3]).abs();
                    prop_assert!(tally.saturated == 1 || error <= stored.unit(3) * 0.51);
                    expected[3] = moved[3];
                    prop_assert_eq!(moved, expected);
                } else {
                    prop_assert_eq!(&moved[16..], &expected[16..]);
                }
            }
        }
    }

    #[test]
    fn after_any_update_every_weight_is_within_a_unit_of_its_sum(
        seed in any::<u64>(), magnitude in -3i32..12,
    ) {
        for width in WIDTHS {
            let mut stored = Stored::import(&gaussian(seed, 64), Scales::Nearest, width);
            for step in 0..8 {
                let before = stored.decode();
                let delta = scaled(&gaussian(seed ^ (step + 1), 64), 2f32.powi(-magnitude));
                let tally = stored.update(&delta, seed, step);
                if tally.saturated == 0 {
                    for (i, w) in stored.decode().into_iter().enumerate() {
                        let sum = before[i] + delta[i];
                        prop_assert!((w - sum).abs() <= stored.unit(i) * 1.001 + sum.abs() * 1e-6);
                    }
                }
            }
        }
    }
}
