//! y[t,c] = g[c] * (x[t,c] * r[t]),  r[t] = 1 / sqrt(mean_c x[t,c]^2 + eps)
//! dx[t,c] += r (g dy)[t,c] - x[t,c] r^3 mean_c(g dy x),  dg[c] += sum_t dy[t,c] x[t,c] r[t]

use crate::error::{Result, check};
use crate::testing::{Bench, SUMMED, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Norm, Rows, Vector, math};

/// The shapes that fit.
pub fn check_shapes(x: Rows, gain: Vector, out: Rows) -> Result<()> {
    check(x.columns == gain.len && (out.rows, out.columns) == (x.rows, x.columns), "rms_norm", || {
        format!("x {}x{}, gain {}, out {}x{}", x.rows, x.columns, gain.len, out.rows, out.columns)
    })
}

/// 1 / sqrt(mean x^2 + eps)
#[inline(always)]
pub fn reciprocal_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (math::sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

/// One row.
#[inline(always)]
pub fn forward(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let r = reciprocal_rms(x, eps);
    for ((out, x), gain) in out.iter_mut().zip(x).zip(gain) {
        *out = scaled(*x, *gain, r);
    }
}

/// One value.
#[inline(always)]
pub fn scaled(x: f32, gain: f32, r: f32) -> f32 {
    gain * (x * r)
}

/// One row in place.
#[inline(always)]
pub fn forward_in_place(x: &mut [f32], gain: &[f32], eps: f32) {
    let r = reciprocal_rms(x, eps);
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = scaled(*x, *gain, r);
    }
}

/// One row's share of the input's gradient, added to `dx`; gives r.
#[inline(always)]
pub fn gradient(x: &[f32], gain: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) -> f32 {
    let r = reciprocal_rms(x, eps);
    let mut lanes = [0.0f32; math::LANES];
    let [(x16, x_rest), (gain16, gain_rest), (dy16, dy_rest)] =
        [x, gain, dy].map(|values| values.as_chunks::<{ math::LANES }>());
    for ((x, gain), dy) in x16.iter().zip(gain16).zip(dy16) {
        add_products(x, gain, dy, &mut lanes);
    }
    add_products(x_rest, gain_rest, dy_rest, &mut lanes);
    let mean = math::fold(lanes) / x.len() as f32 * r * r * r;
    for (((dx, x), gain), dy) in dx.iter_mut().zip(x).zip(gain).zip(dy) {
        *dx += (gain * dy).mul_add(r, -(x * mean));
    }
    r
}

#[inline(always)]
fn add_products(x: &[f32], gain: &[f32], dy: &[f32], lanes: &mut [f32; math::LANES]) {
    for (((lane, x), gain), dy) in lanes.iter_mut().zip(x).zip(gain).zip(dy) {
        *lane = (gain * dy).mul_add(*x, *lane);
    }
}

/// One row's share of the gain's gradient, added.
#[inline(always)]
pub fn gain_gradient(x: &[f32], r: f32, dy: &[f32], dgain: &mut [f32]) {
    for ((dgain, x), dy) in dgain.iter_mut().zip(x).zip(dy) {
        *dgain = dy.mul_add(x * r, *dgain);
    }
}

/// The shapes that fit the gradient.
pub fn check_gradient(x: Rows, gain: Vector, dy: Rows, dx: Rows, dgain: Vector) -> Result<()> {
    let same = |a: Rows| (a.rows, a.columns) == (x.rows, x.columns);
    check(
        same(dy) && same(dx) && gain.len == x.columns && dgain.len == x.columns,
        "rms_norm_gradient",
        || {
            format!(
                "x {}x{}, gain {}, dy {}x{}, dx {}x{}, dgain {}",
                x.rows, x.columns, gain.len, dy.rows, dy.columns, dx.rows, dx.columns, dgain.len
            )
        },
    )
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, columns) in [(1, 576), (5, 64), (3, 37), (200, 1024), (66, 2564)] {
        let mut bench = Bench::new(&make);
        let (x, gain) = (numbers(1, rows * columns), numbers(2, columns));
        let mut want = vec![0.0; x.len()];
        for (x, out) in x.chunks(columns).zip(want.chunks_mut(columns)) {
            forward(x, &gain, 1e-6, out);
        }
        let (x, gain) = (bench.rows(rows, columns, &x), bench.vector(&gain));
        let out = bench.output(rows, columns);
        bench.backend.rms_norm(x, gain, 1e-6, out).unwrap();
        assert_same_bits(&bench.read(out), &want, "rms_norm");
        let narrow = bench.output(rows, columns).narrow();
        bench.backend.rms_norm(x, gain, 1e-6, narrow).unwrap();
        assert_same_bits(&bench.read(narrow), &rounded_rows(&want), "rms_norm, narrow");
        if bench.backend.rounds_residual() {
            check_rounded(&mut bench, x, gain);
        }
        bench.backend.rms_norm(x, gain, 1e-6, x).unwrap();
        assert_same_bits(&bench.read(x), &want, "rms_norm in place");
    }
    for (rows, columns) in [(1, 576), (5, 64), (3, 37), (200, 1024), (270, 4100), (1090, 2564)] {
        for rounded in [false, true] {
            check_gradients(&make, rows, columns, rounded);
        }
    }
}

/// Of x made narrow: the norm of the rounded values, whether they are made so on the way or lie so.
fn check_rounded<B: Backend>(bench: &mut Bench<B>, x: Rows, gain: Vector) {
    let (rows, columns) = (x.rows, x.columns);
    let want_rounded = rounded_rows(&bench.read(x));
    let wide = bench.rows(rows, columns, &want_rounded);
    let normed = bench.output(rows, columns);
    bench.backend.rms_norm(wide, gain, 1e-6, normed).unwrap();
    let want = bench.read(normed);
    let (rounded, out) = (bench.output(rows, columns).narrow(), bench.output(rows, columns));
    bench.backend.norm(Norm { x, rounded: Some(rounded), gain, eps: 1e-6, out }).unwrap();
    assert_same_bits(&bench.read(rounded), &want_rounded, "what rms_norm rounds");
    assert_same_bits(&bench.read(out), &want, "rms_norm, rounded");
    let out = bench.output(rows, columns).narrow();
    bench.backend.rms_norm(rounded, gain, 1e-6, out).unwrap();
    assert_same_bits(&bench.read(out), &rounded_rows(&want), "rms_norm of narrow rows");
}

/// Gradients of a norm of narrow rows where `rounded`.
fn check_gradients<B: Backend>(make: &impl Fn(usize) -> B, rows: usize, columns: usize, rounded: bool) {
    let mut bench = Bench::new(make);
    if rounded && !bench.backend.rounds_residual() {
        return;
    }
    let (mut x, gain, dy) = (numbers(1, rows * columns), numbers(2, columns), numbers(3, rows * columns));
    if rounded {
        x = rounded_rows(&x);
    }
    let (mut dx, mut dgain) = (numbers(4, rows * columns), numbers(5, columns));
    let handles = (bench.rows(rows, columns, &dx), bench.vector(&dgain));
    let again = (bench.rows(rows, columns, &dx), bench.output(rows, columns).narrow(), bench.vector(&dgain));
    for ((x, dy), dx) in x.chunks(columns).zip(dy.chunks(columns)).zip(dx.chunks_mut(columns)) {
        let r = gradient(x, &gain, 1e-6, dy, dx);
        gain_gradient(x, r, dy, &mut dgain);
    }
    let (x, gain, dy) = (bench.rows(rows, columns, &x), bench.vector(&gain), bench.rows(rows, columns, &dy));
    let x = if rounded { bench.narrow(x) } else { x };
    bench.backend.rms_norm_gradient(x, gain, 1e-6, dy, handles.0, handles.1).unwrap();
    assert_same_bits(&bench.read(handles.0), &dx, "rms_norm_gradient");
    bench.assert_products(Rows::new(handles.1.buffer, 1, columns), &dgain, SUMMED, "gain's gradient");
    let both = [again.0, again.1];
    bench.backend.rms_norm_gradient_narrow(x, gain, 1e-6, dy, both, again.2).unwrap();
    assert_same_bits(&bench.read(again.0), &dx, "rms_norm_gradient, narrow too");
    assert_same_bits(&bench.read(again.1), &rounded_rows(&dx), "rms_norm_gradient, narrow");
    bench.assert_products(Rows::new(again.2.buffer, 1, columns), &dgain, SUMMED, "gain's gradient");
}
