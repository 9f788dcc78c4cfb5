//! Cross-entropy over chunks of the vocabulary: logits never exist whole.
//!
//! For every token three numbers pass from chunk to chunk: m, the largest logit so far; s, the
//! sum of e^(logit - m); l, the target's logit. loss = m + ln s - l.
//! d logit[t,v] = w (e^(logit[t,v] - m) / s - [v = target]); zero for tokens without a target.

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Rows, math};

/// The target of a token that is not trained.
pub const UNTRAINED: u32 = u32::MAX;

/// Numbers of a token.
pub const STATE: usize = 3;

/// The state before the first chunk.
pub const START: [f32; STATE] = [f32::NEG_INFINITY, 0.0, 0.0];

/// The shapes that fit.
pub fn check_shapes(logits: Rows, targets: &[u32], state: Rows) -> Result<()> {
    let fits = targets.len() == logits.rows && (state.rows, state.columns) == (logits.rows, STATE);
    check(fits, "loss", || {
        format!(
            "logits {}x{}, {} targets, state {}x{}",
            logits.rows,
            logits.columns,
            targets.len(),
            state.rows,
            state.columns
        )
    })
}

/// The shapes that fit the gradient.
pub fn check_gradient(logits: Rows, targets: &[u32], state: Rows, out: Rows) -> Result<()> {
    check_shapes(logits, targets, state)?;
    check((out.rows, out.columns) == (logits.rows, logits.columns), "loss_gradient", || {
        format!("logits {}x{}, out {}x{}", logits.rows, logits.columns, out.rows, out.columns)
    })
}

/// One token, the logits from word `first` on.
#[inline(always)]
pub fn forward(logits: &[f32], first: usize, target: u32, state: &mut [f32]) {
    let top = math::max(logits);
    let top = if top > state[0] { top } else { state[0] };
    let mut lanes = [0.0f32; math::LANES];
    for logits in logits.chunks(math::LANES) {
        for (lane, logit) in lanes.iter_mut().zip(logits) {
            *lane += math::exp(logit - top);
        }
    }
    state[1] = state[1].mul_add(math::exp(state[0] - top), math::fold(lanes));
    state[0] = top;
    if let Some(logit) = (target as usize).checked_sub(first).and_then(|at| logits.get(at)) {
        state[2] = *logit;
    }
}

/// One token's gradient in place of its logits, once the state is whole.
#[inline(always)]
pub fn gradient(logits: &mut [f32], first: usize, target: u32, state: &[f32], weight: f32) {
    if target == UNTRAINED {
        logits.fill(0.0);
        return;
    }
    let (top, factor) = (state[0], weight / state[1]);
    for logit in logits.iter_mut() {
        *logit = math::exp(*logit - top) * factor;
    }
    if let Some(logit) = (target as usize).checked_sub(first).and_then(|at| logits.get_mut(at)) {
        *logit -= weight;
    }
}

/// The loss of a token from its state, in f64.
pub fn loss(state: &[f32]) -> f64 {
    f64::from(state[0]) + f64::from(state[1]).ln() - f64::from(state[2])
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (tokens, chunk, vocabulary) in [(1, 40, 100), (5, 64, 64), (70, 33, 99), (3, 4160, 8200)] {
        let mut bench = Bench::new(&make);
        let logits: Vec<f32> = numbers(1, tokens * vocabulary).iter().map(|x| x * 30.0).collect();
        let targets: Vec<u32> = (0..tokens as u32)
            .map(|t| if t % 3 == 2 { UNTRAINED } else { t * 7 % vocabulary as u32 })
            .collect();
        let mut states: Vec<f32> = (0..tokens).flat_map(|_| START).collect();
        let handle = bench.rows(tokens, STATE, &states);
        let parts: Vec<(usize, Vec<f32>)> = (0..vocabulary)
            .step_by(chunk)
            .map(|first| {
                let row = |logits: &[f32]| logits[first..vocabulary.min(first + chunk)].to_vec();
                (first, logits.chunks(vocabulary).flat_map(row).collect())
            })
            .collect();
        let width = |part: &[f32]| part.len() / tokens;
        let mut handles = Vec::new();
        for (first, part) in &parts {
            let rows = part.chunks(width(part)).zip(&targets).zip(states.chunks_mut(STATE));
            rows.for_each(|((logits, target), state)| forward(logits, *first, *target, state));
            let logits = bench.rows(tokens, width(part), part);
            bench.backend.loss(logits, *first, &targets, handle).unwrap();
            handles.push(logits);
        }
        assert_same_bits(&bench.read(handle), &states, "loss");
        for ((first, mut part), logits) in parts.into_iter().zip(handles) {
            let columns = width(&part);
            for (t, logits) in part.chunks_mut(columns).enumerate() {
                gradient(logits, first, targets[t], &states[t * STATE..][..STATE], 0.25);
            }
            // Elsewhere first: to take them in place of the logits, those are needed again.
            let values = bench.read(logits);
            let narrow = bench.output(tokens, columns).narrow();
            bench.backend.loss_gradient(logits, first, &targets, handle, 0.25, narrow).unwrap();
            assert_same_bits(&bench.read(narrow), &rounded_rows(&part), "loss_gradient, narrow");
            bench.backend.write(logits.buffer, &values).unwrap();
            bench.backend.loss_gradient(logits, first, &targets, handle, 0.25, logits).unwrap();
            assert_same_bits(&bench.read(logits), &part, "loss_gradient");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_that_of_the_whole_vocabulary() {
        let logits: Vec<f32> = numbers(1, 1000).iter().map(|x| x * 12.0).collect();
        let mut state = START;
        for first in (0..1000).step_by(130) {
            forward(&logits[first..1000.min(first + 130)], first, 777, &mut state);
        }
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        assert!((loss(&state) - (sum.ln() - f64::from(logits[777]))).abs() < 1e-5);
    }
}
