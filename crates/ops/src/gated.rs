//! y[t,c] = silu(g[t,c]) * u[t,c],  silu(x) = x / (1 + e^-x),  g = x gate, u = x up as in `linear`
//! dg = dy u silu'(g), du = dy silu(g), where dy is the gradient of the input of the next product

use crate::error::{Result, check};
use crate::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Matrix, Norm, Product, Rows, Weight, WeightFormat, linear, math};

/// The shapes that fit.
pub fn check_shapes(x: Rows, gate: Matrix, up: Matrix, kept: Option<(Rows, Rows)>, out: Rows) -> Result<()> {
    let wide = |rows: Rows| Rows { narrow: false, ..rows };
    let (first, second) = kept.unwrap_or((out, out));
    linear::check_shapes(x, &[Product::new(gate, wide(first)), Product::new(up, wide(second))])?;
    // Products are rounded where they are mixed before they are stored: not those of different formats.
    let apart = kept.is_some_and(|(first, second)| !first.narrow && !second.narrow);
    check(
        out.rows == x.rows
            && out.columns == gate.weight.rows
            && kept.is_none_or(|(first, second)| first.narrow == second.narrow)
            && (apart || gate.weight.format == up.weight.format),
        "gated",
        || {
            format!(
                "{} gate and {} up, products {}, out {}x{}",
                gate.weight.format.name(),
                up.weight.format.name(),
                if apart { "kept" } else { "not kept in f32" },
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
pub fn check_gradient(dy: Rows, down: &Weight, kept: (Rows, Rows), dgate: Rows, dup: Rows) -> Result<()> {
    linear::check_input_gradient(dy, down, Rows { narrow: false, ..kept.0 })?;
    let shape = |a: Rows| (a.rows, a.columns);
    let fits = [kept.1, dgate, dup].into_iter().all(|other| shape(other) == shape(kept.0))
        && kept.0.narrow == kept.1.narrow;
    check(fits, "gated_gradient", || {
        format!(
            "gate {:?}, up {:?}, dgate {:?}, dup {:?}",
            shape(kept.0),
            shape(kept.1),
            shape(dgate),
            shape(dup)
        )
    })
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    for (first, second) in [(Nvfp4, Nvfp4), (F32, F32), (Int8, Int8), (Nvfp4, Bf16), (F32, Nvfp4)] {
        for (tokens, outputs, inputs) in [(1, 96, 64), (3, 33, 160), (16, 40, 128), (70, 112, 200)] {
            check_case(&make, (first, second), true, (tokens, outputs, inputs));
        }
    }
    for format in [Nvfp4, Bf16] {
        for (tokens, outputs, inputs) in [(1, 96, 64), (5, 33, 160), (70, 200, 328), (270, 130, 72)] {
            check_case(&make, (format, format), false, (tokens, outputs, inputs));
        }
    }
    for format in [Nvfp4, F32, Int8] {
        for (tokens, outputs, inner) in [(1, 64, 96), (7, 40, 33), (150, 200, 272), (270, 72, 290)] {
            check_gradients(&make, format, (tokens, outputs, inner));
        }
    }
}

fn check_gradients<B: Backend>(
    make: &impl Fn(usize) -> B,
    format: WeightFormat,
    (tokens, outputs, inner): (usize, usize, usize),
) {
    let mut bench = Bench::new(make);
    let (down, held, scale) = bench.weight(format, outputs, inner, &numbers(4, outputs * inner));
    let gate: Vec<f32> = numbers(1, tokens * inner).iter().map(|x| x * 20.0).collect();
    let (up, dy) = (numbers(2, tokens * inner), numbers(3, tokens * outputs));
    let mixed = linear::input_gradient(&dy, &held, inner, scale, format);
    let dy = bench.rows(tokens, outputs, &dy);
    for narrow in [false, true] {
        let rounded = |x: &[f32]| if narrow { rounded_rows(x) } else { x.to_vec() };
        let (gate, up) = (rounded(&gate), rounded(&up));
        let all = gate.iter().zip(&up).zip(&mixed).map(|((g, u), dy)| gradient(*g, *u, *dy));
        let (dgate, dup): (Vec<f32>, Vec<f32>) = all.unzip();
        let what = format!("gradients, {} {tokens}x{outputs}x{inner}, narrow {narrow}", format.name());
        let kept = [&gate, &up].map(|x| {
            let wide = bench.rows(tokens, inner, x);
            let kept = bench.output(tokens, inner).narrow();
            bench.backend.copy(wide, kept).unwrap();
            if narrow { kept } else { wide }
        });
        let elsewhere = [1, 2].map(|_| bench.output(tokens, inner).narrow());
        for outs in [elsewhere, kept] {
            bench.backend.gated_gradient(dy, &down, (kept[0], kept[1]), outs[0], outs[1]).unwrap();
            for (out, want) in outs.into_iter().zip([&dgate, &dup]) {
                let want = if out.narrow { rounded_rows(want) } else { want.clone() };
                bench.assert_products(out, &want, SUMMED, &what);
            }
        }
    }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    formats: (WeightFormat, WeightFormat),
    biased: bool,
    (tokens, outputs, inputs): (usize, usize, usize),
) {
    let mut bench = Bench::new(make);
    let x: Vec<f32> = numbers(1, tokens * inputs).iter().map(|x| x * 4.0).collect();
    let mut side = |format, seed| {
        let (values, bias) = (numbers(seed, outputs * inputs), numbers(seed + 1, outputs));
        let (weight, held, scale) = bench.weight(format, outputs, inputs, &values);
        let bias = biased.then_some(bias.as_slice());
        let products = linear::forward(&x, &held, inputs, scale, bias, format);
        (Matrix { weight, bias: bias.map(|bias| bench.vector(bias)) }, products)
    };
    let ((gate, g), (up, u)) = (side(formats.0, 2), side(formats.1, 4));
    let want: Vec<f32> = g.iter().zip(&u).map(|(g, u)| forward(*g, *u)).collect();
    let what = format!("{} and {} {tokens}x{outputs}x{inputs}", formats.0.name(), formats.1.name());
    let x = bench.rows(tokens, inputs, &x);
    let (out, kept) =
        (bench.output(tokens, outputs), (bench.output(tokens, outputs), bench.output(tokens, outputs)));
    bench.backend.gated(x, gate, up, Some(kept), out).unwrap();
    bench.assert_products(kept.0, &g, SUMMED, &what);
    bench.assert_products(kept.1, &u, SUMMED, &what);
    bench.assert_products(out, &want, SUMMED, &what);
    if formats.0 == formats.1 {
        let narrow = bench.output(tokens, outputs).narrow();
        bench.backend.gated(x, gate, up, None, narrow).unwrap();
        bench.assert_products(narrow, &rounded_rows(&want), SUMMED, &what);
        check_next(&mut bench, narrow, &rounded_rows(&want), &what);
        // What is kept is rounded, what is made of it was not.
        let kept = [1, 2].map(|_| bench.output(tokens, outputs).narrow());
        bench.backend.gated(x, gate, up, Some((kept[0], kept[1])), narrow).unwrap();
        for (kept, want) in kept.into_iter().zip([&g, &u]) {
            bench.assert_products(kept, &rounded_rows(want), SUMMED, &what);
        }
        bench.assert_products(narrow, &rounded_rows(&want), SUMMED, &what);
        check_next(&mut bench, narrow, &rounded_rows(&want), &what);
        let gain = bench.vector(&numbers(6, inputs));
        let normed = bench.output(tokens, inputs);
        let normed = if formats.0 == WeightFormat::F32 { normed } else { normed.narrow() };
        let norm = Norm { x, rounded: None, gain, eps: 1e-6, out: normed };
        bench.backend.normed_gated(norm, gate, up, None, narrow).unwrap();
        let got = bench.read(narrow);
        bench.backend.rms_norm(x, gain, 1e-6, normed).unwrap();
        bench.backend.gated(normed, gate, up, None, narrow).unwrap();
        assert_same_bits(&got, &bench.read(narrow), &format!("{what}, with its norm"));
    } else {
        assert!(bench.backend.gated(x, gate, up, None, out).is_err(), "{what}: nowhere to keep products");
    }
}

/// The product that takes what was mixed: there is nothing behind the last column.
fn check_next<B: Backend>(bench: &mut Bench<B>, mixed: Rows, values: &[f32], what: &str) {
    let format = WeightFormat::Bf16;
    let (weight, held, scale) = bench.weight(format, 16, mixed.columns, &numbers(7, 16 * mixed.columns));
    let want = linear::forward(values, &held, mixed.columns, scale, None, format);
    let out = bench.output(mixed.rows, 16);
    bench.backend.linear(mixed, &[Product::new(Matrix { weight, bias: None }, out)]).unwrap();
    bench.assert_products(out, &want, NARROWED, &format!("{what}, and the next product"));
}
