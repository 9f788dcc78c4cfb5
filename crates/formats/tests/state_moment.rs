//! What first moments in 4 and 8 bits promise: no bias, nothing lost in the mean, zero stays zero.

mod common;

use common::through;
use halfbyte_formats::philox;
use halfbyte_formats::state::BLOCK;
use halfbyte_formats::state::adamw::{Settings, Step};
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::moment::Moment;
use proptest::prelude::*;

fn bits(step: u64, element: u64) -> [u32; BLOCK] {
    Draws::new(1, step, 2, Purpose::Weight).block(element)
}

const NARROW: [Moment; 2] = [Moment::Four, Moment::Eight];

#[test]
fn the_mean_of_many_roundings_is_the_moment_at_every_magnitude() {
    for kind in NARROW {
        for exponent in [-45, -38, -20, -3, 0, 12] {
            let m: [f32; BLOCK] =
                std::array::from_fn(|i| ((i as f32 * 1.7).sin() + 0.01 * i as f32) * 2f32.powi(exponent));
            let amax = m.iter().fold(0f32, |a, m| a.max(m.abs()));
            let draws = 40_000;
            let mut sums = [0f64; BLOCK];
            for draw in 0..draws {
                let stored = through(kind, &m, &bits(draw, 0));
                sums.iter_mut().zip(stored).for_each(|(sum, m)| *sum += f64::from(m));
            }
            for (m, sum) in m.iter().zip(sums) {
                // A step of the grid is at most amax * 2.5 / 6; half of it bounds the deviation.
                let deviation = f64::from(amax) * 0.21 / (draws as f64).sqrt();
                let mean = sum / draws as f64;
                assert!((mean - f64::from(*m)).abs() < 5.0 * deviation, "{kind:?} 2^{exponent}: {m} {mean}");
            }
        }
    }
}

#[test]
fn a_moment_far_below_the_grid_does_not_vanish_in_the_mean() {
    for kind in NARROW {
        let mut m = [1e-5f32; BLOCK];
        m[0] = 1.0;
        let draws = 400_000u64;
        let mut sum = 0.0;
        for draw in 0..draws {
            sum += through(kind, &m, &bits(draw, 16))[1..].iter().map(|m| f64::from(*m)).sum::<f64>();
        }
        let share = sum / (15.0 * draws as f64 * 1e-5);
        // 4 bits: about 700 events in 6 million, 8 bits about 7700; five deviations.
        assert!((share - 1.0).abs() < 0.2, "{kind:?}: {share}");
    }
}

#[test]
fn an_average_in_four_bits_follows_the_one_in_f32() {
    let step = Step::new(&Settings::default(), 1e-3, 1);
    for kind in NARROW {
        let (mut narrow, mut wide) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (mut difference, mut size) = ([0f64; BLOCK], 0f64);
        let steps = 20_000;
        for t in 0..steps {
            let noise: [f32; BLOCK] = bits(t, 1 << 20).map(|b| (b as i32) as f32 / 2_147_483_648.0);
            let g = std::array::from_fn(|i| noise[i] + 0.2);
            step.first(&mut wide, &g);
            step.first(&mut narrow, &g);
            narrow = through(kind, &narrow, &bits(t, 0));
            for i in 0..BLOCK {
                difference[i] += f64::from(narrow[i] - wide[i]);
                size += f64::from(wide[i]);
            }
        }
        let bias = difference.iter().sum::<f64>() / size;
        println!("{kind:?}: the mean moment is off by {bias:.5} of itself after {steps} steps");
        assert!(bias.abs() < 0.01, "{kind:?}: {bias}");
    }
}

#[test]
fn zero_stays_zero_and_a_fading_moment_ends_there() {
    for kind in NARROW {
        assert_eq!(through(kind, &[0.0; BLOCK], &[0; BLOCK]), [0.0; BLOCK]);
        let mut m = [1.0; BLOCK];
        for t in 0..1000 {
            m = through(kind, &m.map(|m| 0.9 * m), &bits(t, 0));
        }
        assert!(m.iter().all(|m| m.abs() < 1e-20), "{kind:?}: {m:?}");
    }
}

proptest! {
    #[test]
    fn whatever_comes_in_finite_numbers_come_out(words in prop::collection::vec(any::<u32>(), 16), seed in any::<u64>()) {
        let m: [f32; BLOCK] = std::array::from_fn(|i| f32::from_bits(words[i]));
        let draw: [u32; BLOCK] = std::array::from_fn(|i| philox::random_bits(seed, 0, 0, i as u64));
        for kind in NARROW {
            prop_assert!(through(kind, &m, &draw).iter().all(|m| m.is_finite()));
        }
    }

    #[test]
    fn what_was_stored_is_stored_again_without_change(
        words in prop::collection::vec(-8.0f32..8.0, 16), exponent in -30i32..10, seed in any::<u64>(),
    ) {
        let m: [f32; BLOCK] = std::array::from_fn(|i| words[i] * 2f32.powi(exponent));
        let draw = |t| -> [u32; BLOCK] { std::array::from_fn(|i| philox::random_bits(seed, t, 0, i as u64)) };
        for kind in NARROW {
            let once = through(kind, &m, &draw(0));
            let twice = through(kind, &once, &draw(1));
            // The scale may be another one when the largest was rounded down; then the grid is finer.
            let finer = once.iter().fold(0f32, |a, m| a.max(m.abs())) < 0.99 * m.iter().fold(0f32, |a, m| a.max(m.abs()));
            prop_assert!(finer || once == twice, "{:?} {:?}", once, twice);
        }
    }
}
