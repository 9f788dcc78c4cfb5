//! y[t,c] = silu(g[t,c]) * u[t,c],  silu(x) = x / (1 + e^-x),  g = x gate, u = x up as in `linear`

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Matrix, Product, Rows, WeightFormat, linear, math};

/// The shapes that fit.
pub fn check_shapes(x: Rows, gate: Matrix, up: Matrix, kept: Option<(Rows, Rows)>, out: Rows) -> Result<()> {
    let wide = Rows::new(out.buffer, out.rows, out.columns);
    let (first, second) = kept.unwrap_or((wide, wide));
    linear::check_shapes(x, &[Product::new(gate, first), Product::new(up, second)])?;
    check(
        out.rows == x.rows
            && out.columns == gate.weight.rows
            && (kept.is_some() || gate.weight.format == up.weight.format),
        "gated",
        || {
            format!(
                "{} gate and {} up, products {}, out {}x{}",
                gate.weight.format.name(),
                up.weight.format.name(),
                if kept.is_some() { "kept" } else { "not kept" },
                out.rows,
                out.columns
            )
        },
    )
}

/// One value.
#[inline(always)]
pub fn forward(gate: f32, up: f32) -> f32 {
    math::silu(gate) * up
}

/// Gradients of gate and up: silu'(g) = e (1 + g (1 - e)) with e = 1 / (1 + e^-g)
#[inline(always)]
pub fn gradient(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    let e = 1.0 / (1.0 + math::exp(-gate));
    (dy * up * (e * gate.mul_add(1.0 - e, 1.0)), dy * (gate * e))
}

/// The shapes that fit the gradient.
pub fn check_gradient(gate: Rows, up: Rows, dy: Rows) -> Result<()> {
    let same = |a: Rows| (a.rows, a.columns) == (gate.rows, gate.columns);
    check(same(up) && same(dy), "gated_gradient", || {
        format!(
            "gate {}x{}, up {}x{}, dy {}x{}",
            gate.rows, gate.columns, up.rows, up.columns, dy.rows, dy.columns
        )
    })
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    for (first, second) in [(Nvfp4, Nvfp4), (F32, F32), (Int8, Int8), (Nvfp4, Bf16), (F32, Nvfp4)] {
        for (tokens, outputs, inputs) in [(1, 96, 64), (3, 33, 160), (16, 40, 128), (70, 112, 200)] {
            check_case(&make, (first, second), (tokens, outputs, inputs));
        }
    }
    for (rows, columns) in [(1, 1536), (7, 33), (90, 4864)] {
        let mut bench = Bench::new(&make);
        let gate: Vec<f32> = numbers(1, rows * columns).iter().map(|x| x * 20.0).collect();
        let (up, dy) = (numbers(2, rows * columns), numbers(3, rows * columns));
        let want = |which: usize| -> Vec<f32> {
            let all = gate.iter().zip(&up).zip(&dy).map(|((g, u), dy)| gradient(*g, *u, *dy));
            all.map(|(dg, du)| if which == 0 { dg } else { du }).collect()
        };
        let handles = [&gate, &up, &dy].map(|x| bench.rows(rows, columns, x));
        bench.backend.gated_gradient(handles[0], handles[1], handles[2]).unwrap();
        assert_same_bits(&bench.read(handles[0]), &want(0), "gate's gradient");
        assert_same_bits(&bench.read(handles[1]), &want(1), "up's gradient");
    }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    formats: (WeightFormat, WeightFormat),
    (tokens, outputs, inputs): (usize, usize, usize),
) {
    let mut bench = Bench::new(make);
    let x: Vec<f32> = numbers(1, tokens * inputs).iter().map(|x| x * 4.0).collect();
    let mut side = |format, seed| {
        let (values, bias) = (numbers(seed, outputs * inputs), numbers(seed + 1, outputs));
        let (weight, held, scale) = bench.weight(format, outputs, inputs, &values);
        let products = linear::forward(&x, &held, inputs, scale, Some(&bias), format);
        (Matrix { weight, bias: Some(bench.vector(&bias)) }, products)
    };
    let ((gate, g), (up, u)) = (side(formats.0, 2), side(formats.1, 4));
    let want: Vec<f32> = g.iter().zip(&u).map(|(g, u)| forward(*g, *u)).collect();
    let what = format!("{} and {} {tokens}x{outputs}x{inputs}", formats.0.name(), formats.1.name());
    let x = bench.rows(tokens, inputs, &x);
    let (out, kept) =
        (bench.output(tokens, outputs), (bench.output(tokens, outputs), bench.output(tokens, outputs)));
    bench.backend.gated(x, gate, up, Some(kept), out).unwrap();
    assert_same_bits(&bench.read(kept.0), &g, &what);
    assert_same_bits(&bench.read(kept.1), &u, &what);
    assert_same_bits(&bench.read(out), &want, &what);
    if formats.0 == formats.1 {
        let narrow = bench.output(tokens, outputs).narrow();
        bench.backend.gated(x, gate, up, None, narrow).unwrap();
        assert_same_bits(&bench.read(narrow), &rounded_rows(&want), &what);
    } else {
        assert!(bench.backend.gated(x, gate, up, None, out).is_err(), "{what}: nowhere to keep products");
    }
}
