//! A watch for jumps of the loss: median and spread of the last steps, which one jump cannot move.

use std::collections::VecDeque;
use std::fmt;

/// Steps that are remembered.
const WINDOW: usize = 64;
/// Steps before anything is said.
const ENOUGH: usize = 16;
/// A jump is so many usual spreads above the median.
const LIMIT: f64 = 8.0;
/// The spread of a normal distribution is this times its median absolute deviation.
const SPREAD_PER_DEVIATION: f64 = 1.4826;
/// The least spread that is believed, as a share of the median: a loss may stand still for a while.
const LEAST_SPREAD: f64 = 0.01;

/// Watches one run.
#[derive(Clone, Debug, Default)]
pub struct SpikeWatch {
    recent: VecDeque<f64>,
}

/// A jump of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spike {
    /// When.
    pub step: u64,
    /// The loss then.
    pub loss: f64,
    /// Median of the steps before.
    pub median: f64,
    /// How far above, in usual spreads; infinite for a loss that is no number.
    pub spreads: f64,
}

impl SpikeWatch {
    /// Takes the loss of a step; says so if it jumped.
    pub fn observe(&mut self, step: u64, loss: f64) -> Option<Spike> {
        let judged = (self.recent.len() >= ENOUGH || !loss.is_finite()).then(|| self.judge(step, loss));
        if loss.is_finite() {
            // Jumps too: a loss that stays up is the new usual after half a window.
            self.recent.push_back(loss);
            if self.recent.len() > WINDOW {
                self.recent.pop_front();
            }
        }
        judged.filter(|spike| spike.spreads > LIMIT)
    }

    fn judge(&self, step: u64, loss: f64) -> Spike {
        let values: Vec<f64> = self.recent.iter().copied().collect();
        let median = median(values.clone()).unwrap_or(f64::NAN);
        let deviations = values.iter().map(|value| (value - median).abs()).collect();
        let spread = self::median(deviations).unwrap_or(0.0) * SPREAD_PER_DEVIATION;
        let spread = spread.max(median.abs() * LEAST_SPREAD).max(f64::MIN_POSITIVE);
        let spreads = if loss.is_finite() { (loss - median) / spread } else { f64::INFINITY };
        Spike { step, loss, median, spreads }
    }
}

/// The middle value; the lower of the two middle ones. `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

impl fmt::Display for Spike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spike { step, loss, median, spreads } = self;
        if !loss.is_finite() {
            return write!(f, "step {step}: the loss is not a number");
        }
        let above = loss - median;
        write!(f, "step {step}: loss {loss:.3}, {above:.3} above the median of the steps before ")?;
        write!(f, "({median:.3}), {spreads:.0} times their usual spread")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfbyte_formats::philox::random_bits;

    /// A falling loss with noise of about 5%.
    fn loss(step: u64) -> f64 {
        let noise = (0..4).map(|i| f64::from(random_bits(1, step, 0, i)) / f64::from(u32::MAX) - 0.5);
        (2.0 + 3.0 * (-(step as f64) / 200.0).exp()) * (1.0 + 0.08 * noise.sum::<f64>())
    }

    #[test]
    fn a_falling_noisy_loss_is_no_spike() {
        let mut watch = SpikeWatch::default();
        let spikes = (1..=2000).filter_map(|step| watch.observe(step, loss(step))).count();
        assert_eq!(spikes, 0);
    }

    #[test]
    fn a_jump_is_told_with_step_and_size() {
        let mut watch = SpikeWatch::default();
        assert!((1..=500).all(|step| watch.observe(step, 2.0 + 0.1 * (step % 3) as f64).is_none()));
        let spike = watch.observe(501, 9.0).unwrap();
        assert_eq!((spike.step, spike.loss, spike.median), (501, 9.0, 2.1));
        assert_eq!(
            spike.to_string(),
            "step 501: loss 9.000, 6.900 above the median of the steps before (2.100), \
             47 times their usual spread"
        );
        // One jump does not hide the next one.
        assert!(watch.observe(502, 2.0).is_none());
        assert!(watch.observe(503, 9.0).is_some());
    }

    #[test]
    fn a_loss_that_stays_up_becomes_usual() {
        let mut watch = SpikeWatch::default();
        (1..=100).for_each(|step| assert!(watch.observe(step, 2.0).is_none()));
        let told = (101..=300).filter_map(|step| watch.observe(step, 5.0)).count();
        // Until more than half of the window is new.
        assert_eq!(told, 33);
    }

    #[test]
    fn what_is_no_number_is_always_told_and_not_remembered() {
        let mut watch = SpikeWatch::default();
        assert_eq!(watch.observe(1, f64::NAN).unwrap().to_string(), "step 1: the loss is not a number");
        (2..=40).for_each(|step| assert!(watch.observe(step, 2.0).is_none()));
        assert!(watch.observe(41, f64::INFINITY).is_some());
        assert!(watch.observe(42, 2.0).is_none());
    }
}
