//! Half-split rotation of every head: with x1 = x[..d/2], x2 = x[d/2..],
//! y1 = x1 cos - x2 sin,  y2 = x2 cos + x1 sin.
//! `turns[t, ..]` holds d/2 cosines, then d/2 sines, of token t's position.

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{Backend, Rows};

/// The shapes that fit.
pub fn check_shapes(x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
    let fits = head_dim.is_multiple_of(2)
        && head_dim > 0
        && x.columns.is_multiple_of(head_dim)
        && turns.columns == head_dim
        && turns.rows == x.rows;
    check(fits, "rope", || {
        format!("x {}x{}, heads of {head_dim}, turns {}x{}", x.rows, x.columns, turns.rows, turns.columns)
    })
}

/// All heads of one token.
#[inline(always)]
pub fn forward_in_place(x: &mut [f32], turns: &[f32]) {
    let half = turns.len() / 2;
    let (cos, sin) = turns.split_at(half);
    for head in x.chunks_exact_mut(turns.len()) {
        let (x1, x2) = head.split_at_mut(half);
        for (((x1, x2), cos), sin) in x1.iter_mut().zip(x2).zip(cos).zip(sin) {
            let (a, b) = (*x1, *x2);
            *x1 = a.mul_add(*cos, -(b * sin));
            *x2 = b.mul_add(*cos, a * sin);
        }
    }
}

/// The gradient of all heads of one token: turned back.
#[inline(always)]
pub fn gradient_in_place(dy: &mut [f32], turns: &[f32]) {
    let half = turns.len() / 2;
    let (cos, sin) = turns.split_at(half);
    for head in dy.chunks_exact_mut(turns.len()) {
        let (d1, d2) = head.split_at_mut(half);
        for (((d1, d2), cos), sin) in d1.iter_mut().zip(d2).zip(cos).zip(sin) {
            let (a, b) = (*d1, *d2);
            *d1 = a.mul_add(*cos, b * sin);
            *d2 = b.mul_add(*cos, -(a * sin));
        }
    }
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, heads, head_dim) in [(1, 9, 64), (33, 4, 128), (3, 2, 6)] {
        let mut bench = Bench::new(&make);
        let (x, turns) = (numbers(1, rows * heads * head_dim), numbers(2, rows * head_dim));
        let mut want = x.clone();
        for (x, turns) in want.chunks_mut(heads * head_dim).zip(turns.chunks(head_dim)) {
            forward_in_place(x, turns);
        }
        let x = bench.rows(rows, heads * head_dim, &x);
        let back = turns.clone();
        let turns = bench.rows(rows, head_dim, &turns);
        bench.backend.rope(x, head_dim, turns).unwrap();
        assert_same_bits(&bench.read(x), &want, "rope");
        for (x, turns) in want.chunks_mut(heads * head_dim).zip(back.chunks(head_dim)) {
            gradient_in_place(x, turns);
        }
        bench.backend.rope_gradient(x, head_dim, turns).unwrap();
        assert_same_bits(&bench.read(x), &want, "rope_gradient");
    }
}
