//! y[t,c] = silu(gate[t,c]) * up[t,c],  silu(x) = x / (1 + e^-x)

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{Backend, Rows, math};

/// The shapes that fit.
pub fn check_shapes(gate: Rows, up: Rows, out: Rows) -> Result<()> {
    let same = |a: Rows| (a.rows, a.columns) == (gate.rows, gate.columns);
    check(same(up) && same(out), "swiglu", || {
        format!(
            "gate {}x{}, up {}x{}, out {}x{}",
            gate.rows, gate.columns, up.rows, up.columns, out.rows, out.columns
        )
    })
}

/// Any number of values, into `gate`.
#[inline(always)]
pub fn forward_in_place(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = math::silu(*gate) * up;
    }
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, columns) in [(1, 1536), (7, 33), (90, 4864)] {
        let mut bench = Bench::new(&make);
        let gate: Vec<f32> = numbers(1, rows * columns).iter().map(|x| x * 20.0).collect();
        let up = numbers(2, rows * columns);
        let mut want = gate.clone();
        forward_in_place(&mut want, &up);
        let (gate, up) = (bench.rows(rows, columns, &gate), bench.rows(rows, columns, &up));
        let out = bench.output(rows, columns);
        bench.backend.swiglu(gate, up, out).unwrap();
        assert_same_bits(&bench.read(out), &want, "swiglu");
        bench.backend.swiglu(gate, up, gate).unwrap();
        assert_same_bits(&bench.read(gate), &want, "swiglu in place");
    }
}
