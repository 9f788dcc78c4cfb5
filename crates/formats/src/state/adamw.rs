//! AdamW with decoupled decay, element by element: the same lines for every way of storing.
//!
//! ```text
//! m <- beta1 m + g
//! u = (1 - beta1) m / (1 - beta1^t) * (1 / (sqrt(v) / sqrt(1 - beta2^t) + eps)), held within -clip..clip
//! delta = -lr * u - lr * decay * w
//! ```
//!
//! **m is a sum, not a mean**: a gradient goes in as it is, and 1 - beta1 is part of how far a step goes. A factored v
//! holds u within one, too, as `second` says. Of its root a row's part is part of how far that row goes ([`OfRow`]), so that
//! an element is multiplied by its column's only.
//!
//! The clip bounds what one step can do to an element before its neighbours are known: gradients are used
//! up as they arrive, so their common norm comes too late. sqrt(v) comes from `second`, not yet corrected: a full v
//! moved by g already, a factored one as the step before left it, which is corrected as of then. w is the stored weight,
//! not the one of the forward pass. The first step has t = 1. With m, v and w in f32 this is
//! `torch.optim.AdamW`, except that the decay is added instead of multiplied and the root inverted before it is: a
//! rounding apart.

use super::{BLOCK, Push, SQUARES_PER_ONE};

/// Elements of a block whose squares are counted.
pub const COUNTED: usize = 4;

/// Most that a block adds to `Tally::squares`; what is not finite counts as much.
pub const MOST_SQUARES: f32 = 16_777_216.0;

/// What a group of tensors is trained with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How fast the first moment forgets.
    pub beta1: f64,
    /// How fast the second moment forgets.
    pub beta2: f64,
    /// Added to the root of v.
    pub eps: f64,
    /// Decoupled decay, times the learning rate.
    pub decay: f64,
    /// Most that an element moves in one step, in learning rates, decay apart; infinite is no limit.
    pub clip: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.0, clip: f64::INFINITY }
    }
}

/// What the elements of a row have in common, where v is factored: one over the row's root, by which all of them move, and
/// the most that m over the column's root may be. Where v is full, nothing: one, and the limit that all have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfRow {
    /// One over the root, corrected, and eps.
    pub inverse: f32,
    /// The step's limit, times that root.
    pub limit: f32,
}

/// The numbers of one step, computed once in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// beta1.
    pub keep: f32,
    /// lr (1 - beta1) / (1 - beta1^t).
    pub size: f32,
    /// 1 / sqrt(1 - beta2^t).
    pub per_root: f32,
    /// The same of the step before, if there was one.
    pub per_old_root: f32,
    /// Added to the root of v.
    pub eps: f32,
    /// lr * decay.
    pub decay: f32,
    /// The most that m over the root of v may be: clip (1 - beta1^t) / (1 - beta1).
    pub limit: f32,
    /// The same where v is factored: a clip of one at most.
    pub factored_limit: f32,
    /// What a square of m over the root of v counts in `Tally::squares`, as one of [`COUNTED`] in a block.
    pub per_square: f32,
}

impl Step {
    /// Step number `t`, from 1 on, at a learning rate.
    pub fn new(settings: &Settings, learning_rate: f64, t: u64) -> Self {
        let until = |beta: f64, t: u64| 1.0 - beta.powf(t.max(1) as f64);
        // What makes a mean of the sum.
        let mean = (1.0 - settings.beta1) / until(settings.beta1, t);
        let all = (BLOCK / COUNTED) as f64 * f64::from(SQUARES_PER_ONE);
        Step {
            keep: settings.beta1 as f32,
            size: (learning_rate * mean) as f32,
            per_root: (1.0 / until(settings.beta2, t).sqrt()) as f32,
            per_old_root: (1.0 / until(settings.beta2, t.saturating_sub(1)).sqrt()) as f32,
            eps: settings.eps as f32,
            decay: (learning_rate * settings.decay) as f32,
            limit: (settings.clip / mean) as f32,
            factored_limit: (settings.clip.min(1.0) / mean) as f32,
            per_square: (all * mean.powi(2)) as f32,
        }
    }

    /// Moves the first moments by the gradient.
    #[inline(always)]
    pub fn first(&self, m: &mut [f32; BLOCK], g: &[f32; BLOCK]) {
        for (m, g) in m.iter_mut().zip(g) {
            *m = self.keep.mul_add(*m, *g);
        }
    }

    /// u, but for what makes a mean of m and what the row has in common, held within `limit`; `inverses` are one over roots:
    /// of a full v corrected already and with eps in them, of a factored one those of the columns' profile.
    #[inline(always)]
    pub fn ratio(m: &[f32; BLOCK], inverses: &[f32; BLOCK], limit: f32) -> [f32; BLOCK] {
        let mut ratio = [0.0; BLOCK];
        for i in 0..BLOCK {
            let free = m[i] * inverses[i];
            let low = if free < -limit { -limit } else { free };
            ratio[i] = if low > limit { limit } else { low };
        }
        ratio
    }

    /// One over the root of a full v, corrected, and eps.
    #[inline(always)]
    pub fn inverse(&self, root: f32) -> f32 {
        1.0 / (root * self.per_root + self.eps)
    }

    /// Of a row whose factored v has this root, as the step before left it, and not yet corrected.
    #[inline(always)]
    pub fn of_row(&self, root: f32) -> OfRow {
        let corrected = root * self.per_old_root + self.eps;
        OfRow { inverse: 1.0 / corrected, limit: self.factored_limit * corrected }
    }

    /// Of a row whose v is full.
    #[inline(always)]
    pub fn of_full_row(&self) -> OfRow {
        OfRow { inverse: 1.0, limit: self.limit }
    }

    /// What moves the weights of a row, from [`Step::ratio`].
    #[inline(always)]
    pub fn push<'a>(&self, ratio: &'a [f32; BLOCK], row: &OfRow) -> Push<'a> {
        Push { along: ratio, size: -self.size, times: row.inverse, decay: self.decay }
    }

    /// What is added to the weights; `roots` are not corrected yet.
    #[inline(always)]
    pub fn delta(&self, m: &[f32; BLOCK], roots: &[f32; BLOCK], w: &[f32; BLOCK]) -> [f32; BLOCK] {
        let (row, inverses) = (self.of_full_row(), roots.map(|root| self.inverse(root)));
        self.push(&Step::ratio(m, &inverses, row.limit), &row).values(w)
    }

    /// The squares of a block's u, for `Tally::squares`: the first four stand for all.
    #[inline(always)]
    pub fn squares(&self, ratio: &[f32; BLOCK], row: &OfRow) -> u64 {
        let squares: [f32; COUNTED] = std::array::from_fn(|i| ratio[i] * ratio[i]);
        let sum = ((squares[0] + squares[2]) + (squares[1] + squares[3])) * self.per_square;
        let sum = sum * row.inverse * row.inverse;
        u64::from((if sum < MOST_SQUARES { sum } else { MOST_SQUARES }) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_of_any_gradient_is_the_learning_rate() {
        let step = Step::new(&Settings::default(), 1e-3, 1);
        for g in [1e-4f32, 1.0, -300.0] {
            let (mut m, mut v) = ([0.0; BLOCK], [0.0; BLOCK]);
            let v = super::super::second::full(&mut v, &[g; BLOCK], super::super::Average::new(0.95));
            step.first(&mut m, &[g; BLOCK]);
            let delta = step.delta(&m, &v, &[0.0; BLOCK])[0];
            assert!((delta + 1e-3 * g.signum()).abs() < 2e-7, "{g}: {delta}");
        }
    }

    #[test]
    fn a_zero_gradient_without_decay_moves_nothing() {
        let step = Step::new(&Settings::default(), 1e-3, 5);
        let mut m = [0.0; BLOCK];
        step.first(&mut m, &[0.0; BLOCK]);
        let delta = step.delta(&m, &[super::super::second::FLOOR; BLOCK], &[1.0; BLOCK]);
        assert!(delta.iter().all(|d| *d == 0.0));
    }

    #[test]
    fn no_element_moves_by_more_than_the_clip() {
        let settings = Settings { clip: 0.5, ..Settings::default() };
        let (clipped, free) = (Step::new(&settings, 1e-3, 3), Step::new(&Settings::default(), 1e-3, 3));
        let m: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 - 7.5) * 0.1);
        let (w, roots) = ([0.0; BLOCK], [0.1; BLOCK]);
        let (held, moved) = (clipped.delta(&m, &roots, &w), free.delta(&m, &roots, &w));
        assert!(moved.iter().any(|d| d.abs() > 0.5e-3) && moved.iter().any(|d| d.abs() < 0.5e-3));
        for (held, moved) in held.into_iter().zip(moved) {
            assert!(held.abs() <= 0.5e-3 * 1.000_001, "{held}");
            assert!(
                held == moved || moved.abs() >= 0.5e-3 && held.signum() == moved.signum(),
                "{held} {moved}"
            );
        }
        assert!(Step::ratio(&[f32::NAN; BLOCK], &roots, 1.0)[0].is_nan());
    }

    #[test]
    fn four_squares_stand_for_those_of_the_move_in_learning_rates() {
        let step = Step::new(&Settings::default(), 1e-3, 2);
        let m: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 % 4.0 * 0.7).sin());
        let ratio = Step::ratio(&m, &[step.inverse(0.3); BLOCK], step.limit);
        let delta = step.delta(&m, &[0.3; BLOCK], &[0.0; BLOCK]);
        let wanted: f64 = delta.iter().map(|d| (f64::from(*d) / 1e-3).powi(2)).sum();
        let got = step.squares(&ratio, &step.of_full_row()) as f64 / f64::from(SQUARES_PER_ONE);
        assert!((got / wanted - 1.0).abs() < 1e-5, "{got} {wanted}");
        assert_eq!(step.squares(&[f32::NAN; BLOCK], &step.of_row(1.0)), MOST_SQUARES as u64);
        assert_eq!(step.squares(&[f32::INFINITY; BLOCK], &step.of_row(1.0)), MOST_SQUARES as u64);
    }
}
