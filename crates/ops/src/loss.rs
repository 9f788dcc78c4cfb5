//! Cross-entropy over chunks of the vocabulary: logits never exist whole.
//!
//! For every token three numbers pass from chunk to chunk: m, the largest logit so far; s, the
//! sum of e^(logit - m); l, the target's logit. loss = m + ln s - l.
//! d logit[t,v] = w (e^(logit[t,v] - m) / s - [v = target]); zero for tokens without a target.
//!
//! With logit = x head, the gradient of x needs no second pass over the vocabulary:
//! dx[t] = w (sum_v e^(logit[t,v] - m) head[v] / s - head[target]). Its sum grows chunk by chunk,
//! and is multiplied by e^(m before - m) where m rises, as s is.

use crate::error::{Result, check};
use crate::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Rows, WeightFormat, math};

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

/// The shapes that fit the exponentials.
pub fn check_exponentials(logits: Rows, targets: &[u32], state: Rows, out: Rows, sums: Rows) -> Result<()> {
    check_gradient(logits, targets, state, out)?;
    check(sums.rows == logits.rows, "loss_exponentials", || {
        format!("{} tokens, sums of {}", logits.rows, sums.rows)
    })
}

/// The shapes that fit the gradient of the head's input.
pub fn check_input_gradient(targets: &[u32], state: Rows, of_targets: Rows, dx: Rows) -> Result<()> {
    check_shapes(dx, targets, state)?;
    check((of_targets.rows, of_targets.columns) == (dx.rows, dx.columns), "loss_input_gradient", || {
        format!("of targets {}x{}, dx {}x{}", of_targets.rows, of_targets.columns, dx.rows, dx.columns)
    })
}

/// One token, the logits from word `first` on.
#[inline(always)]
pub fn forward(logits: &[f32], first: usize, target: u32, state: &mut [f32]) {
    let top = begin(logits, first, target, state);
    let mut lanes = [0.0f32; math::LANES];
    for logits in logits.chunks(math::LANES) {
        for (lane, logit) in lanes.iter_mut().zip(logits) {
            *lane += math::exp(logit - top);
        }
    }
    end(top, lanes, state, &mut []);
}

/// The same with e^(logit - m) in place of the logits; the sums so far become those of the new m.
#[inline(always)]
pub fn exponentials(logits: &mut [f32], first: usize, target: u32, state: &mut [f32], sums: &mut [f32]) {
    let top = begin(logits, first, target, state);
    let mut lanes = [0.0f32; math::LANES];
    for logits in logits.chunks_mut(math::LANES) {
        for (lane, logit) in lanes.iter_mut().zip(logits) {
            *logit = math::exp(*logit - top);
            *lane += *logit;
        }
    }
    end(top, lanes, state, sums);
}

/// Takes the target's logit, if it is among these; gives the new m.
#[inline(always)]
pub fn begin(logits: &[f32], first: usize, target: u32, state: &mut [f32]) -> f32 {
    if let Some(logit) = (target as usize).checked_sub(first).and_then(|at| logits.get(at)) {
        state[2] = *logit;
    }
    let top = math::max(logits);
    if top > state[0] { top } else { state[0] }
}

/// Takes the new m and the lanes of the chunk's sum.
#[inline(always)]
pub fn end(top: f32, lanes: [f32; math::LANES], state: &mut [f32], sums: &mut [f32]) {
    let factor = math::exp(state[0] - top);
    // Before the first chunk there are no sums.
    if top > state[0] && state[0] > f32::NEG_INFINITY {
        for sum in sums {
            *sum *= factor;
        }
    }
    state[1] = state[1].mul_add(factor, math::fold(lanes));
    state[0] = top;
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

/// The gradient of one token's input to the head in place of its sums, once they and the state are whole.
#[inline(always)]
pub fn input_gradient(target: u32, state: &[f32], weight: f32, of_target: &[f32], dx: &mut [f32]) {
    if target == UNTRAINED {
        dx.fill(0.0);
        return;
    }
    let factor = weight / state[1];
    for (dx, of_target) in dx.iter_mut().zip(of_target) {
        *dx = dx.mul_add(factor, -(weight * of_target));
    }
}

/// The loss of a token from its state, in f64.
pub fn loss(state: &[f32]) -> f64 {
    f64::from(state[0]) + f64::from(state[1]).ln() - f64::from(state[2])
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (tokens, chunk, vocabulary) in
        [(1, 40, 100), (5, 64, 64), (70, 33, 99), (3, 4160, 8200), (2, 8300, 8300)]
    {
        let logits: Vec<f32> = numbers(1, tokens * vocabulary).iter().map(|x| x * 30.0).collect();
        let (chunks, targets) = (chunks_of(&logits, vocabulary, chunk), targets_of(tokens, vocabulary));
        let state = forward_of(&make, &targets, &chunks);
        gradient_of(&make, &targets, &chunks, &state);
    }
    // The largest logit rises at every chunk: so little that all count, or so much that nothing before does.
    for (tokens, chunk, vocabulary, rise) in [(7, 1, 9, 2.0), (33, 16, 80, 2.0), (5, 48, 200, 40.0)] {
        for size in [1.0, 20.0, 1e4] {
            let logits = numbers(2, tokens * vocabulary).into_iter().enumerate();
            let risen = |(i, x)| (x + rise * (i % vocabulary / chunk) as f32) * size;
            let chunks = chunks_of(&logits.map(risen).collect::<Vec<f32>>(), vocabulary, chunk);
            input_gradient_of(&make, &targets_of(tokens, vocabulary), &chunks);
        }
    }
}

/// Channels of the head's input.
const COLUMNS: usize = 37;

/// The first word of a part of the vocabulary, and the logits of all tokens.
type Chunk = (usize, Vec<f32>);

fn chunks_of(logits: &[f32], vocabulary: usize, chunk: usize) -> Vec<Chunk> {
    let part = |first: usize| {
        let row = |logits: &[f32]| logits[first..vocabulary.min(first + chunk)].to_vec();
        (first, logits.chunks(vocabulary).flat_map(row).collect())
    };
    (0..vocabulary).step_by(chunk).map(part).collect()
}

fn targets_of(tokens: usize, vocabulary: usize) -> Vec<u32> {
    let target = |t: usize| if t % 3 == 2 { UNTRAINED } else { (t * 7 % vocabulary) as u32 };
    (0..tokens).map(target).collect()
}

/// Both ways there have the references' bits; gives the state in the end.
fn forward_of<B: Backend>(make: &impl Fn(usize) -> B, targets: &[u32], chunks: &[Chunk]) -> Vec<f32> {
    let (mut bench, tokens) = (Bench::new(make), targets.len());
    let mut states = START.repeat(tokens);
    let handles = [0, 1, 2].map(|_| bench.rows(tokens, STATE, &states));
    for (first, logits) in chunks {
        // Before the first chunk there is nothing.
        let before =
            if *first == 0 { vec![f32::NAN; tokens * COLUMNS] } else { numbers(3, tokens * COLUMNS) };
        let (mut want, mut sums, columns) = (logits.clone(), before.clone(), logits.len() / tokens);
        for (t, logits) in want.chunks_mut(columns).enumerate() {
            let (state, sums) = (&mut states[t * STATE..][..STATE], &mut sums[t * COLUMNS..][..COLUMNS]);
            let mut alone = state.to_vec();
            forward(logits, *first, targets[t], &mut alone);
            exponentials(logits, *first, targets[t], state, sums);
            assert_same_bits(&alone, state, "the reference's two ways");
        }
        let rows = bench.rows(tokens, columns, logits);
        bench.backend.loss(rows, *first, targets, handles[0]).unwrap();
        assert_same_bits(&bench.read(handles[0]), &states, "loss");
        let narrow = bench.output(tokens, columns).narrow();
        for (out, state) in [(narrow, handles[1]), (rows, handles[2])] {
            bench.backend.write(rows.buffer, logits).unwrap();
            let to = bench.rows(tokens, COLUMNS, &before);
            bench.backend.loss_exponentials(rows, *first, targets, state, out, to).unwrap();
            assert_same_bits(&bench.read(state), &states, "loss_exponentials, state");
            assert_same_bits(&bench.read(to), &sums, "loss_exponentials, sums");
        }
        assert_same_bits(&bench.read(narrow), &rounded_rows(&want), "loss_exponentials, narrow");
        assert_same_bits(&bench.read(rows), &want, "loss_exponentials");
    }
    states
}

/// Gradients by logits have the reference's bits.
fn gradient_of<B: Backend>(make: &impl Fn(usize) -> B, targets: &[u32], chunks: &[Chunk], states: &[f32]) {
    let (mut bench, tokens) = (Bench::new(make), targets.len());
    let state = bench.rows(tokens, STATE, states);
    for (first, logits) in chunks {
        let (mut want, columns) = (logits.clone(), logits.len() / tokens);
        for (t, logits) in want.chunks_mut(columns).enumerate() {
            gradient(logits, *first, targets[t], &states[t * STATE..][..STATE], 0.25);
        }
        let (rows, narrow) = (bench.output(tokens, columns), bench.output(tokens, columns).narrow());
        for out in [narrow, rows] {
            bench.backend.write(rows.buffer, logits).unwrap();
            bench.backend.loss_gradient(rows, *first, targets, state, 0.25, out).unwrap();
        }
        assert_same_bits(&bench.read(narrow), &rounded_rows(&want), "loss_gradient, narrow");
        assert_same_bits(&bench.read(rows), &want, "loss_gradient");
    }
}

/// The gradient of the head's input from its rows summed up on the way there is that from the gradients by logits.
fn input_gradient_of<B: Backend>(make: &impl Fn(usize) -> B, targets: &[u32], chunks: &[Chunk]) {
    let (mut bench, tokens) = (Bench::new(make), targets.len());
    for (format, allowed) in [(WeightFormat::F32, SUMMED), (WeightFormat::Bf16, NARROWED)] {
        let state = bench.rows(tokens, STATE, &START.repeat(tokens));
        let (dx, of_logits) = (bench.output(tokens, COLUMNS), bench.output(tokens, COLUMNS));
        let mut head = Vec::new();
        let mut parts = Vec::new();
        for (first, logits) in chunks {
            let columns = logits.len() / tokens;
            let (weight, held, _) =
                bench.weight(format, columns, COLUMNS, &numbers(*first as u32, columns * COLUMNS));
            head.extend(held);
            let (rows, out) = (bench.rows(tokens, columns, logits), bench.output(tokens, columns));
            let out = if format == WeightFormat::F32 { out } else { out.narrow() };
            bench.backend.loss_exponentials(rows, *first, targets, state, out, dx).unwrap();
            bench.backend.linear_input_gradient(out, &weight, dx, *first > 0).unwrap();
            parts.push((weight, rows, out));
        }
        for ((first, logits), (weight, rows, out)) in chunks.iter().zip(parts) {
            bench.backend.write(rows.buffer, logits).unwrap();
            bench.backend.loss_gradient(rows, *first, targets, state, 0.25, out).unwrap();
            bench.backend.linear_input_gradient(out, &weight, of_logits, *first > 0).unwrap();
        }
        // The row of a token without a target is not looked at.
        let row = |target: &u32| {
            head.get(*target as usize * COLUMNS..).map_or(&[f32::NAN; COLUMNS][..], |row| &row[..COLUMNS])
        };
        let rows: Vec<f32> = targets.iter().flat_map(row).copied().collect();
        let (states, mut want) = (bench.read(state), bench.read(dx));
        for (t, dx) in want.chunks_mut(COLUMNS).enumerate() {
            let of_target = &rows[t * COLUMNS..][..COLUMNS];
            input_gradient(targets[t], &states[t * STATE..][..STATE], 0.25, of_target, dx);
        }
        let of_targets = bench.rows(tokens, COLUMNS, &rows);
        bench.backend.loss_input_gradient(targets, state, 0.25, of_targets, dx).unwrap();
        let got = bench.read(dx);
        assert_same_bits(&got, &want, "loss_input_gradient");
        // Rows of the head are below one, so this is what its rounding may come to.
        for (i, (got, other)) in got.iter().zip(bench.read(of_logits)).enumerate() {
            let off = (got - other).abs() / 0.25;
            assert!(
                off <= allowed,
                "loss_input_gradient: {i} is {got:e}, from gradients by logits {other:e}: {off:.1e}"
            );
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
