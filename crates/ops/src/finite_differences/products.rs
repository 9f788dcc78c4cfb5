//! Products: the gradients of their input, weight and bias, in every format; and the gated pair.

use super::{EXACT, dot, judge, narrow_numbers, slopes, wide};
use crate::testing::{Bench, numbers};
use crate::{Backend, Matrix, Product, Rows, WeightFormat};

pub(super) fn contract<B: Backend>(make: &impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    for format in [F32, Bf16, Int8, Nvfp4] {
        for (tokens, outputs, inputs) in [(1, 7, 19), (5, 17, 33), (37, 9, 5)] {
            linear(make, format, tokens, (outputs, inputs));
        }
    }
    for (rows, columns) in [(1, 50), (7, 33)] {
        gated(make, rows, columns);
    }
}

fn linear<B: Backend>(
    make: &impl Fn(usize) -> B,
    format: WeightFormat,
    tokens: usize,
    (outputs, inputs): (usize, usize),
) {
    let what = format!("{} linear {tokens}x{outputs}x{inputs}", format.name());
    let (x, dy) = (narrow_numbers(1, tokens * inputs), narrow_numbers(2, tokens * outputs));
    let bias = numbers(3, outputs);
    let mut bench = Bench::new(make);
    let (weight, held, scale) = bench.weight(format, outputs, inputs, &numbers(4, outputs * inputs));
    // What the weight stands for; the gradient of a code's value passes straight through to it.
    let held: Vec<f32> = held.iter().map(|w| w * scale).collect();
    let forward = |x: &[f64], w: &[f64], bias: &[f64]| -> Vec<f64> {
        let row =
            |x: &[f64]| w.chunks(inputs).zip(bias).map(|(w, bias)| dot(x, w) + bias).collect::<Vec<f64>>();
        x.chunks(inputs).flat_map(row).collect()
    };
    let (x64, w64, bias64, weights) = (wide(&x), wide(&held), wide(&bias), wide(&dy));
    let (x_rows, dy_rows) = (bench.rows(tokens, inputs, &x), bench.rows(tokens, outputs, &dy));
    let matrix = Matrix { weight, bias: Some(bench.vector(&bias)) };
    let out = bench.output(tokens, outputs);
    bench.backend.linear(x_rows, &[Product::new(matrix, out)]).unwrap();
    judge(&bench.read(out), &forward(&x64, &w64, &bias64), EXACT, &what);
    let dx = bench.output(tokens, inputs);
    bench.backend.linear_input_gradient(dy_rows, &weight, dx, false).unwrap();
    let by_x = slopes(&x, |x| dot(&forward(x, &w64, &bias64), &weights));
    judge(&bench.read(dx), &by_x, EXACT, &format!("{what}, input"));
    let dw = bench.output(outputs, inputs);
    let by_weight = slopes(&held, |w| dot(&forward(&x64, w, &bias64), &weights));
    for exact in [format == WeightFormat::F32, true] {
        bench.backend.linear_weight_gradient(dy_rows, x_rows, exact, 0, dw).unwrap();
        judge(&bench.read(dw), &by_weight, EXACT, &format!("{what}, weight"));
    }
    let db = bench.vector(&vec![0.0; outputs]);
    bench.backend.bias_gradient(dy_rows, db).unwrap();
    let by_bias = slopes(&bias, |bias| dot(&forward(&x64, &w64, bias), &weights));
    judge(&bench.read(Rows::new(db.buffer, 1, outputs)), &by_bias, EXACT, &format!("{what}, bias"));
}

/// Gate and up, mixed and taken through the next product.
fn gated<B: Backend>(make: &impl Fn(usize) -> B, rows: usize, inner: usize) {
    let outputs = 24;
    let gate: Vec<f32> = numbers(1, rows * inner).iter().map(|x| x * 5.0).collect();
    let (up, dy) = (numbers(2, rows * inner), numbers(3, rows * outputs));
    let mut bench = Bench::new(make);
    let (down, held, _) = bench.weight(WeightFormat::F32, outputs, inner, &numbers(4, outputs * inner));
    let weights = wide(&held);
    let value = |gate: &[f64], up: &[f64]| -> f64 {
        let mixed: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        let rows = mixed.chunks(inner).zip(dy.chunks(outputs));
        let product = |x: &[f64], o: usize| dot(x, &weights[o * inner..][..inner]);
        rows.flat_map(|(x, dy)| dy.iter().enumerate().map(move |(o, dy)| f64::from(*dy) * product(x, o)))
            .sum()
    };
    let dys = bench.rows(rows, outputs, &dy);
    let [gates, ups] = [&gate, &up].map(|x| bench.rows(rows, inner, x));
    bench.backend.gated_gradient(dys, &down, (gates, ups), gates, ups).unwrap();
    judge(&bench.read(gates), &slopes(&gate, |gate| value(gate, &wide(&up))), EXACT, "gated, gate");
    judge(&bench.read(ups), &slopes(&up, |up| value(&wide(&gate), up)), EXACT, "gated, up");
}
