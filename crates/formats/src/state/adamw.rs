//! AdamW with decoupled decay, element by element: the same lines for every way of storing.
//!
//! ```text
//! m <- beta1 m + (1 - beta1) g
//! delta = -lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps) - lr * decay * w
//! ```
//!
//! v comes from `second`, already moved by g and not yet corrected. w is the stored weight, not the
//! one of the forward pass. The first step has t = 1. With m, v and w in f32 this is
//! `torch.optim.AdamW`, except that the decay is added instead of multiplied: a rounding apart.

use super::{Average, BLOCK};

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
}

impl Default for Settings {
    fn default() -> Self {
        Settings { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.0 }
    }
}

/// The numbers of one step, computed once in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    average: Average,
    size: f32,
    per_root: f32,
    eps: f32,
    decay: f32,
}

impl Step {
    /// Step number `t`, from 1 on, at a learning rate.
    pub fn new(settings: &Settings, learning_rate: f64, t: u64) -> Self {
        let rest = |beta: f64| 1.0 - beta.powf(t.max(1) as f64);
        Step {
            average: Average::new(settings.beta1),
            size: (learning_rate / rest(settings.beta1)) as f32,
            per_root: (1.0 / rest(settings.beta2).sqrt()) as f32,
            eps: settings.eps as f32,
            decay: (learning_rate * settings.decay) as f32,
        }
    }

    /// Moves the first moments by the gradient.
    #[inline(always)]
    pub fn first(&self, m: &mut [f32; BLOCK], g: &[f32; BLOCK]) {
        for (m, g) in m.iter_mut().zip(g) {
            *m = self.average.of(*m, *g);
        }
    }

    /// What is added to the weights.
    #[inline(always)]
    pub fn delta(&self, m: &[f32; BLOCK], v: &[f32; BLOCK], w: &[f32; BLOCK]) -> [f32; BLOCK] {
        let mut delta = [0.0; BLOCK];
        for i in 0..BLOCK {
            let root = v[i].sqrt() * self.per_root + self.eps;
            delta[i] = -(self.size * (m[i] / root)) - self.decay * w[i];
        }
        delta
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
            let v = super::super::second::full(&mut v, &[g; BLOCK], Average::new(0.95));
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
}
