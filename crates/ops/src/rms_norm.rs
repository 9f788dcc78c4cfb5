//! y[t,c] = g[c] * (x[t,c] * r[t]),  r[t] = 1 / sqrt(mean_c x[t,c]^2 + eps)

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Rows, Vector, math};

/// The shapes that fit.
pub fn check_shapes(x: Rows, gain: Vector, out: Rows) -> Result<()> {
    check(
        !x.narrow && x.columns == gain.len && (out.rows, out.columns) == (x.rows, x.columns),
        "rms_norm",
        || format!("x {}x{}, gain {}, out {}x{}", x.rows, x.columns, gain.len, out.rows, out.columns),
    )
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

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, columns) in [(1, 576), (5, 64), (3, 37), (200, 1024)] {
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
        bench.backend.rms_norm(x, gain, 1e-6, x).unwrap();
        assert_same_bits(&bench.read(x), &want, "rms_norm in place");
    }
}
