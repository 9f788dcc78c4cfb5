//! Rotary positions: inv_i = theta^(-2i/d), stretched in one of four ways.
//!
//! linear: inv/factor.  llama3: by wavelength, between two bounds.  yarn: a ramp over the pairs and
//! a factor on cos and sin.  frequencies: GGUF's `rope_freqs`, which divide inv pair by pair.

use std::f64::consts::PI;
use std::path::Path;

use crate::error::Error;

/// Base and stretching of the rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// The ways of stretching rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by the same factor.
    Linear {
        /// Divides every frequency.
        factor: f64,
    },
    /// Long wavelengths by `factor`, short ones not, a blend between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// Wavelengths above original/low are stretched in full.
        low: f64,
        /// Wavelengths below original/high stay.
        high: f64,
        /// Context the model was first trained with.
        original: usize,
    },
    /// A ramp over the pairs, and a factor on cos and sin.
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Context the model was first trained with.
        original: usize,
        /// Rotations above which a pair stays.
        beta_fast: f64,
        /// Rotations below which a pair is stretched in full.
        beta_slow: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
    },
    /// A divisor for each pair.
    Frequencies(Vec<f32>),
}

impl Rope {
    /// The inverse frequency of each pair (head_dim / 2 of them) and the factor on cos and sin.
    pub fn inverse_frequencies(&self, head_dim: usize) -> (Vec<f64>, f32) {
        let pairs = head_dim / 2;
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / head_dim as f64);
        let mut inverse: Vec<f64> = (0..pairs).map(plain).collect();
        let mut magnitude = 1.0;
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => inverse.iter_mut().for_each(|inv| *inv /= factor),
            &RopeScaling::Llama3 { factor, low, high, original } => {
                for inv in &mut inverse {
                    *inv = llama3(*inv, factor, low, high, original as f64);
                }
            }
            &RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } => {
                let bound = |rotations: f64| {
                    head_dim as f64 * (original as f64 / (2.0 * PI * rotations)).ln()
                        / (2.0 * self.theta.ln())
                };
                let ends = (bound(beta_fast), bound(beta_slow));
                yarn(&mut inverse, factor, ends, truncate);
                magnitude = attention_factor as f32;
            }
            RopeScaling::Frequencies(divisors) => {
                for (inv, divisor) in inverse.iter_mut().zip(divisors) {
                    *inv /= f64::from(*divisor);
                }
            }
        }
        (inverse, magnitude)
    }

    /// Refuses numbers that give no frequencies.
    pub(crate) fn check(&self, file: &Path, head_dim: usize) -> Result<(), Error> {
        let positive = |place: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Error::input(
                file,
                place,
                format!("{value} is not a positive number"),
                "take the rope settings the model was published with",
            )),
        };
        positive("rope_theta", self.theta)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope factor", *factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                positive("rope factor", *factor)?;
                positive("low_freq_factor", *low)?;
                positive("high_freq_factor - low_freq_factor", high - low)?;
                positive("original_max_position_embeddings", *original as f64)
            }
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, .. } => {
                positive("rope factor", *factor)?;
                positive("original_max_position_embeddings", *original as f64)?;
                positive("beta_fast", *beta_fast)?;
                positive("beta_slow", *beta_slow)?;
                positive("rope_theta - 1", self.theta - 1.0)?;
                positive("attention_factor", *attention_factor)
            }
            RopeScaling::Frequencies(divisors) => {
                if divisors.len() != head_dim / 2 {
                    return Err(Error::input(
                        file,
                        "rope_freqs",
                        format!("{} divisors for {} pairs", divisors.len(), head_dim / 2),
                        "take the file the model was published with",
                    ));
                }
                divisors.iter().try_for_each(|divisor| positive("rope_freqs", f64::from(*divisor)))
            }
        }
    }
}

fn llama3(inv: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / inv;
    if wavelength > original / low {
        inv / factor
    } else if wavelength < original / high {
        inv
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        inv * ((1.0 - smooth) / factor + smooth)
    }
}

fn yarn(inverse: &mut [f64], factor: f64, ends: (f64, f64), truncate: bool) {
    let (low, high) = match truncate {
        true => (ends.0.floor(), ends.1.ceil()),
        false => ends,
    };
    // The clamp is to the last dimension, not the last pair; transformers does the same.
    let low = low.max(0.0);
    let mut high = high.min(2.0 * inverse.len() as f64 - 1.0);
    if low == high {
        high += 0.001;
    }
    for (i, inv) in inverse.iter_mut().enumerate() {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        *inv = *inv / factor * ramp + *inv * (1.0 - ramp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(scaling: RopeScaling) -> (Vec<f64>, f32) {
        let rope = Rope { theta: 10000.0, scaling };
        rope.inverse_frequencies(8)
    }

    #[test]
    fn plain_frequencies_fall_by_theta() {
        let (inverse, magnitude) = frequencies(RopeScaling::None);
        let expected = [1.0, 0.1, 0.01, 0.001];
        for (got, want) in inverse.iter().zip(expected) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
        assert_eq!(magnitude, 1.0);
    }

    #[test]
    fn llama3_keeps_short_and_divides_long_wavelengths() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 1024 };
        let (inverse, _) = frequencies(scaling);
        assert_eq!(inverse[0], 1.0); // wavelength 6.3 < 256
        assert!((inverse[3] - 0.001 / 8.0).abs() < 1e-15); // wavelength 6283 > 1024
        assert!(inverse[2] < 0.01 && inverse[2] > 0.01 / 8.0); // 628 lies between
    }

    #[test]
    fn yarn_ramps_from_kept_to_divided() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.1,
            truncate: true,
        };
        let (inverse, magnitude) = frequencies(scaling);
        assert_eq!(inverse[0], 1.0);
        assert!((inverse[3] - 0.001 / 4.0).abs() < 1e-12);
        assert_eq!(magnitude, 1.1);
    }
}
