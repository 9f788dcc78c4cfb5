//! Ops that go row by row: rms_norm, rope, embed, loss. (What `add` passes on is its gradient.)

use super::{EXACT, dot, judge, slopes, wide};
use crate::testing::{Bench, numbers};
use crate::{Backend, Rows, WeightFormat, loss};

pub(super) fn contract<B: Backend>(make: &impl Fn(usize) -> B) {
    for (rows, columns) in [(1, 40), (5, 37), (70, 3)] {
        rms_norm(make, rows, columns);
    }
    for (rows, heads, head_dim) in [(1, 3, 6), (17, 2, 10)] {
        rope(make, rows, heads, head_dim);
    }
    embed(make);
    for (tokens, vocabulary, chunk) in [(1, 19, 19), (9, 50, 16)] {
        cross_entropy(make, tokens, vocabulary, chunk);
    }
}

fn rms_norm<B: Backend>(make: &impl Fn(usize) -> B, rows: usize, columns: usize) {
    let eps = 1e-3f32;
    let forward = |x: &[f64], gain: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| {
            let root = (dot(x, x) / columns as f64 + f64::from(eps)).sqrt();
            x.iter().zip(gain).map(|(x, gain)| gain * x / root).collect::<Vec<f64>>()
        };
        x.chunks(columns).flat_map(row).collect()
    };
    let what = format!("rms_norm {rows}x{columns}");
    let (x, gain, dy) = (numbers(1, rows * columns), numbers(2, columns), numbers(3, rows * columns));
    let weights = wide(&dy);
    let mut bench = Bench::new(make);
    let handles = (bench.rows(rows, columns, &x), bench.vector(&gain), bench.rows(rows, columns, &dy));
    let out = bench.output(rows, columns);
    bench.backend.rms_norm(handles.0, handles.1, eps, out).unwrap();
    judge(&bench.read(out), &forward(&wide(&x), &wide(&gain)), EXACT, &what);
    let (dx, dgain) = (bench.rows(rows, columns, &vec![0.0; x.len()]), bench.vector(&vec![0.0; columns]));
    bench.backend.rms_norm_gradient(handles.0, handles.1, eps, handles.2, dx, dgain).unwrap();
    let by_x = slopes(&x, |x| dot(&forward(x, &wide(&gain)), &weights));
    judge(&bench.read(dx), &by_x, EXACT, &format!("{what}, input"));
    let by_gain = slopes(&gain, |gain| dot(&forward(&wide(&x), gain), &weights));
    judge(&bench.read(Rows::new(dgain.buffer, 1, columns)), &by_gain, EXACT, &format!("{what}, gain"));
}

fn rope<B: Backend>(make: &impl Fn(usize) -> B, rows: usize, heads: usize, head_dim: usize) {
    let (half, columns) = (head_dim / 2, heads * head_dim);
    let angles: Vec<f64> = numbers(2, rows * half).iter().map(|x| f64::from(*x) * 3.0).collect();
    let forward = |x: &[f64]| -> Vec<f64> {
        let mut y = x.to_vec();
        for (i, pair) in (0..x.len()).filter(|i| i % head_dim < half).map(|i| (i, i + half)) {
            let angle = angles[i / columns * half + i % head_dim];
            y[i] = x[i] * angle.cos() - x[pair] * angle.sin();
            y[pair] = x[pair] * angle.cos() + x[i] * angle.sin();
        }
        y
    };
    let turn = |angles: &[f64]| -> Vec<f32> {
        let cosines = angles.iter().map(|a| a.cos() as f32);
        cosines.chain(angles.iter().map(|a| a.sin() as f32)).collect()
    };
    let turns: Vec<f32> = angles.chunks(half).flat_map(turn).collect();
    let (x, dy) = (numbers(1, rows * columns), numbers(3, rows * columns));
    let mut bench = Bench::new(make);
    let turns = bench.rows(rows, head_dim, &turns);
    let (y, dx) = (bench.rows(rows, columns, &x), bench.rows(rows, columns, &dy));
    bench.backend.rope(y, head_dim, turns).unwrap();
    judge(&bench.read(y), &forward(&wide(&x)), EXACT, "rope");
    bench.backend.rope_gradient(dx, head_dim, turns).unwrap();
    judge(&bench.read(dx), &slopes(&x, |x| dot(&forward(x), &wide(&dy))), EXACT, "rope, input");
}

/// Rows 7.. of a table, with tokens before, inside and twice.
fn embed<B: Backend>(make: &impl Fn(usize) -> B) {
    let (vocabulary, columns, first, rows) = (29, 21, 7, 16);
    let tokens = [3u32, 22, 7, 9, 22, 28, 7];
    let forward = |table: &[f64]| -> Vec<f64> {
        tokens.iter().flat_map(|t| table[*t as usize * columns..][..columns].to_vec()).collect()
    };
    let (table, dy) = (numbers(1, vocabulary * columns), numbers(2, tokens.len() * columns));
    let mut bench = Bench::new(make);
    let weight = bench.weight(WeightFormat::F32, vocabulary, columns, &table).0;
    let out = bench.output(tokens.len(), columns);
    bench.backend.embed(&tokens, &weight, out).unwrap();
    judge(&bench.read(out), &forward(&wide(&table)), EXACT, "embed");
    let dy_rows = bench.rows(tokens.len(), columns, &dy);
    let part = bench.rows(rows, columns, &vec![0.0; rows * columns]);
    bench.backend.embed_gradient(&tokens, first, dy_rows, part).unwrap();
    let by_table = slopes(&table, |table| dot(&forward(table), &wide(&dy)));
    judge(&bench.read(part), &by_table[first * columns..][..rows * columns], EXACT, "embed, table");
}

fn cross_entropy<B: Backend>(make: &impl Fn(usize) -> B, tokens: usize, vocabulary: usize, chunk: usize) {
    let logits: Vec<f32> = numbers(1, tokens * vocabulary).iter().map(|x| x * 6.0).collect();
    let masked = |t: usize| t % 3 == 1;
    let target = |t: usize| if masked(t) { loss::UNTRAINED } else { (t * 11 % vocabulary) as u32 };
    let targets: Vec<u32> = (0..tokens).map(target).collect();
    let trained = (0..tokens).filter(|t| !masked(*t)).count() as f64;
    let mean = |logits: &[f64]| -> f64 {
        let rows = logits.chunks(vocabulary).zip(&targets).filter(|(_, target)| **target != loss::UNTRAINED);
        let of_row = |(row, target): (&[f64], &u32)| {
            row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*target as usize]
        };
        rows.map(of_row).sum::<f64>() / trained
    };
    // A head whose product is the logits, for the gradient of its input.
    let columns = 21;
    let head = numbers(2, vocabulary * columns);
    let mut bench = Bench::new(make);
    let weight = bench.weight(WeightFormat::F32, vocabulary, columns, &head).0;
    let dx = bench.output(tokens, columns);
    let state = bench.rows(tokens, loss::STATE, &loss::START.repeat(tokens));
    let mut parts = Vec::new();
    for first in (0..vocabulary).step_by(chunk) {
        let width = chunk.min(vocabulary - first);
        let values: Vec<f32> =
            logits.chunks(vocabulary).flat_map(|row| &row[first..first + width]).copied().collect();
        let rows = bench.rows(tokens, width, &values);
        let out = bench.output(tokens, width);
        bench.backend.loss_exponentials(rows, first, &targets, state, out, dx).unwrap();
        let chunk = weight.slice(first, width).unwrap();
        bench.backend.linear_input_gradient(out, &chunk, dx, first > 0).unwrap();
        bench.backend.write(rows.buffer, &values).unwrap();
        parts.push((first, rows));
    }
    let states = bench.read(state);
    let of_token = states.chunks(loss::STATE).map(loss::loss).enumerate().filter(|(t, _)| !masked(*t));
    let got = of_token.map(|(_, loss)| loss).sum::<f64>() / trained;
    judge(&[got as f32], &[mean(&wide(&logits))], EXACT, "loss");
    let by_logits = slopes(&logits, mean);
    let of_targets = bench.output(tokens, columns);
    for (t, target) in targets.iter().enumerate().filter(|(t, _)| !masked(*t)) {
        bench.backend.embed(&[*target], &weight, of_targets.slice(t, 1)).unwrap();
    }
    let weight = (1.0 / trained) as f32;
    bench.backend.loss_input_gradient(&targets, state, weight, of_targets, dx).unwrap();
    let by_x = by_logits.chunks(vocabulary).flat_map(|of_token| {
        let column = |c| (0..vocabulary).map(|v| of_token[v] * f64::from(head[v * columns + c])).sum::<f64>();
        (0..columns).map(column).collect::<Vec<f64>>()
    });
    judge(&bench.read(dx), &by_x.collect::<Vec<f64>>(), EXACT, "loss, the head's input");
    for (first, rows) in parts {
        bench.backend.loss_gradient(rows, first, &targets, state, weight, rows).unwrap();
        let columns = by_logits.chunks(vocabulary).flat_map(|row| &row[first..first + rows.columns]);
        judge(&bench.read(rows), &columns.copied().collect::<Vec<f64>>(), EXACT, "loss, logits");
    }
}
