//! y[t,c] += x[t,c], the plain copy, and zeros

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Rows};

/// The shapes that fit.
pub fn check_shapes(x: Rows, out: Rows) -> Result<()> {
    check((out.rows, out.columns) == (x.rows, x.columns), "add", || {
        format!("x {}x{}, out {}x{}", x.rows, x.columns, out.rows, out.columns)
    })
}

/// Any number of values.
#[inline(always)]
pub fn forward(x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += x;
    }
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, columns) in [(1, 576), (70, 1025)] {
        let mut bench = Bench::new(&make);
        let (x, y) = (numbers(1, rows * columns), numbers(2, rows * columns));
        let mut want = y.clone();
        forward(&x, &mut want);
        let (x, y) = (bench.rows(rows, columns, &x), bench.rows(rows, columns, &y));
        bench.backend.add(x, y).unwrap();
        assert_same_bits(&bench.read(y), &want, "add");
        let narrow = bench.output(x.rows, x.columns).narrow();
        bench.backend.copy(x, narrow).unwrap();
        let want = rounded_rows(&bench.read(x));
        assert_same_bits(&bench.read(narrow), &want, "narrow copy");
        bench.backend.copy(x, y).unwrap();
        assert_same_bits(&bench.read(y), &bench.read(x), "copy");
        bench.backend.clear(y.slice(0, 1)).unwrap();
        let mut want = bench.read(x);
        want[..columns].fill(0.0);
        assert_same_bits(&bench.read(y), &want, "clear");
    }
}
