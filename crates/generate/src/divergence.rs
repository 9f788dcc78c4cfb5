//! How far a model's next-token distributions are from a baseline's, on the same text.
//!
//! D(p || q) = sum_i p_i (ln p_i - ln q_i),  p the baseline's, q the model's

use halfbyte_model::{Decoder, Wanted};
use halfbyte_ops::Backend;

use crate::error::Result;

/// Positions computed together: so many rows of the baseline's logits wait for the model's.
pub const ROWS: usize = 16;

/// The divergence at every position of `tokens` from `first` on. Both decoders compute what their
/// caches lack, and hold all of `tokens` afterwards.
pub fn divergences<B: Backend>(
    baseline: &mut Decoder<B>,
    model: &mut Decoder<B>,
    tokens: &[u32],
    first: usize,
) -> Result<Vec<f64>> {
    read_to(baseline, tokens, first)?;
    read_to(model, tokens, first)?;
    let mut all = Vec::new();
    let mut kept = Vec::new();
    for part in tokens[first..].chunks(ROWS) {
        kept.clear();
        baseline.feed(part, Wanted::All, None, &mut |_, logits| kept.push(logits.to_vec()))?;
        let before = all.len();
        model
            .feed(part, Wanted::All, None, &mut |index, logits| all.push(divergence(&kept[index], logits)))?;
        if all[before..].iter().any(|kl| !kl.is_finite()) {
            let finite = kept.iter().flatten().all(|logit| logit.is_finite());
            return Err(if finite { model } else { baseline }.first_bad()?.into());
        }
    }
    Ok(all)
}

/// Leaves the first `count` of `tokens` in the cache, and nothing else.
fn read_to<B: Backend>(decoder: &mut Decoder<B>, tokens: &[u32], count: usize) -> Result<()> {
    let have = decoder.tokens().iter().zip(&tokens[..count]).take_while(|(a, b)| a == b).count();
    decoder.keep(have);
    decoder.feed(&tokens[have..count], Wanted::Last, None, &mut |_, _| ())?;
    Ok(())
}

/// D(p || q) of two rows of logits.
fn divergence(baseline: &[f32], model: &[f32]) -> f64 {
    let (p, q) = (Normalized::new(baseline), Normalized::new(model));
    let term = |(&a, &b): (&f32, &f32)| {
        let ln_p = p.ln(a);
        ln_p.exp() * (ln_p - q.ln(b))
    };
    // Rounding can take a sum of nothing below zero; max would hide a NaN.
    let sum: f64 = baseline.iter().zip(model).map(term).sum();
    if sum < 0.0 { 0.0 } else { sum }
}

/// What to subtract from a logit to get ln of its probability.
struct Normalized(f64);

impl Normalized {
    fn new(logits: &[f32]) -> Self {
        let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        Normalized(top + logits.iter().map(|&x| (f64::from(x) - top).exp()).sum::<f64>().ln())
    }

    fn ln(&self, logit: f32) -> f64 {
        f64::from(logit) - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_is_the_sum_of_its_definition() {
        let (p, q) = ([0.5f64, 0.25, 0.25], [0.25f64, 0.5, 0.25]);
        // Adding a number to all logits changes no probability.
        let logits = |all: [f64; 3], more: f64| all.map(|x| (x.ln() + more) as f32);
        let expected = 0.25 * std::f64::consts::LN_2;
        assert!((divergence(&logits(p, 3.0), &logits(q, -40.0)) - expected).abs() < 1e-5);
        assert_eq!(divergence(&logits(p, 1.0), &logits(p, 1.0)), 0.0);
        assert!(divergence(&[1.0, f32::NAN], &[1.0, 2.0]).is_nan());
        assert!(divergence(&[1.0, 2.0], &[1.0, f32::NAN]).is_nan());
    }
}
