//! Attention: the gradients of queries, keys and values, for grouped heads, windows, and samples that
//! do not see each other, one of them longer than a tile of keys.

use std::ops::Range;
use std::sync::LazyLock;

use super::{EXACT, ROUNDED, dot, judge, narrow_numbers, slopes, wide};
use crate::testing::Bench;
use crate::{Attention, Backend, Cache, CacheFormat, Rows, Sight};

const SAMPLES: [Range<usize>; 3] = [0..1, 1..35, 35..40];
const TOKENS: usize = 40;

struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dy: Vec<f32>,
    /// The output and its slopes by q, k and v.
    want: [Vec<f64>; 4],
}

/// Differences take longer than the kernels, and are the same for all of them.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let shapes = [(4, 2, 6, None), (3, 3, 10, Some(7)), (6, 2, 8, Some(33)), (4, 1, 4, None)];
    shapes.map(|(heads, kv_heads, head_dim, window)| Case::new(heads, kv_heads, head_dim, window)).into()
});

pub(super) fn contract<B: Backend>(make: &impl Fn(usize) -> B) {
    for case in CASES.iter() {
        for (exact, allowed) in [(true, EXACT), (false, ROUNDED)] {
            case.forward_op(make, exact, allowed);
            case.gradient_op(make, exact, allowed);
        }
    }
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Case {
        let (width, narrow) = (TOKENS * heads * head_dim, TOKENS * kv_heads * head_dim);
        let sharp = |x: Vec<f32>| x.into_iter().map(|x| x * 2.0).collect::<Vec<f32>>();
        let (q, k) = (sharp(narrow_numbers(1, width)), sharp(narrow_numbers(2, narrow)));
        let (v, dy) = (narrow_numbers(3, narrow), narrow_numbers(4, width));
        let mut case =
            Case { heads, kv_heads, head_dim, window, q, k, v, dy, want: [const { Vec::new() }; 4] };
        let (q, k, v, dy) = (wide(&case.q), wide(&case.k), wide(&case.v), wide(&case.dy));
        case.want = [
            case.forward(&q, &k, &v),
            slopes(&case.q, |q| dot(&case.forward(q, &k, &v), &dy)),
            slopes(&case.k, |k| dot(&case.forward(&q, k, &v), &dy)),
            slopes(&case.v, |v| dot(&case.forward(&q, &k, v), &dy)),
        ];
        case
    }

    fn forward(&self, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
        let (d, group) = (self.head_dim, self.heads / self.kv_heads);
        let mut y = vec![0.0; q.len()];
        for sample in &SAMPLES {
            for (t, h) in sample.clone().flat_map(|t| (0..self.heads).map(move |h| (t, h))) {
                let low = self.window.map_or(sample.start, |w| sample.start.max((t + 1).saturating_sub(w)));
                let place = |j: usize| (j * self.kv_heads + h / group) * d;
                let at = (t * self.heads + h) * d;
                let score = |j: usize| (dot(&q[at..][..d], &k[place(j)..][..d]) / (d as f64).sqrt()).exp();
                let scores: Vec<f64> = (low..=t).map(score).collect();
                let total: f64 = scores.iter().sum();
                for (j, score) in (low..=t).zip(scores) {
                    for c in 0..d {
                        y[at + c] += score / total * v[place(j) + c];
                    }
                }
            }
        }
        y
    }

    fn rows<B: Backend>(&self, bench: &mut Bench<B>, x: &[f32]) -> Rows {
        bench.rows(TOKENS, x.len() / TOKENS, x)
    }

    fn forward_op<B: Backend>(&self, make: &impl Fn(usize) -> B, exact: bool, allowed: f64) {
        let mut bench = Bench::new(make);
        let format = if exact { CacheFormat::F32 } else { CacheFormat::Bf16 };
        let (kv_heads, head_dim, capacity) = (self.kv_heads, self.head_dim, 64);
        let buffer = bench.buffer(Cache::bytes(format, kv_heads, head_dim, capacity));
        let cache = Cache { buffer, format, kv_heads, head_dim, capacity };
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| self.rows(&mut bench, x));
        let out = bench.output(TOKENS, q.columns);
        for sample in SAMPLES {
            let part = |rows: Rows| rows.slice(sample.start, sample.len());
            bench.backend.store(part(k), part(v), 0, &cache).unwrap();
            let sight = Sight { start: 0, window: self.window };
            bench.backend.attend(part(q), &cache, sight, part(out)).unwrap();
        }
        judge(&bench.read(out), &self.want[0], allowed, &self.what("output", exact));
    }

    fn gradient_op<B: Backend>(&self, make: &impl Fn(usize) -> B, exact: bool, allowed: f64) {
        let mut bench = Bench::new(make);
        let [q, k, v, dy] = [&self.q, &self.k, &self.v, &self.dy].map(|x| self.rows(&mut bench, x));
        let of =
            Attention { samples: &SAMPLES, q, k, v, head_dim: self.head_dim, window: self.window, exact };
        let [dq, dk, dv] = [q, k, v].map(|rows| bench.output(TOKENS, rows.columns));
        let out: Vec<f32> = self.want[0].iter().map(|y| *y as f32).collect();
        let out = self.rows(&mut bench, &out);
        bench.backend.attend_gradient(&of, out, dy, dq, dk, dv).unwrap();
        for ((rows, want), name) in [dq, dk, dv].into_iter().zip(&self.want[1..]).zip(["dq", "dk", "dv"]) {
            judge(&bench.read(rows), want, allowed, &self.what(name, exact));
        }
    }

    fn what(&self, name: &str, exact: bool) -> String {
        let Case { heads, kv_heads, head_dim, window, .. } = self;
        format!("attend, {name}, heads {heads}/{kv_heads}x{head_dim}, window {window:?}, exact {exact}")
    }
}
