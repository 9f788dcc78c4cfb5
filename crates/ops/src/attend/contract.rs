//! The contract of `attend`, its samples and its gradients.

use super::{forward, gradient, kept};
use crate::tensor::KEYS;
use crate::testing::{Bench, NARROWED, assert_same_bits, numbers, rounded_rows};
use crate::{Attention, Backend, Cache, CacheFormat, Sight};

/// What queries are multiplied by so that few keys have most of the weight.
const SHARP: f32 = 12.0;

/// Whole, in chunks, token by token, with and without a window.
pub(super) fn check<B: Backend>(make: impl Fn(usize) -> B) {
    for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
        for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 128), (2, 2, 40), (4, 1, 16)] {
            for window in [None, Some(19)] {
                check_case(&make, format, (heads, kv_heads, head_dim), window);
            }
        }
    }
    for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
        for (shape, window) in
            [((6, 2, 64), None), ((2, 1, 128), Some(19)), ((2, 2, 40), None), ((3, 1, 96), None)]
        {
            check_samples_case(&make, format, shape, window);
        }
    }
    for exact in [true, false] {
        for shape in [(6, 2, 64), (2, 1, 128), (2, 2, 40), (4, 1, 16), (3, 1, 96)] {
            for (tokens, window) in [(75, None), (75, Some(19)), (32, None), (1, None)] {
                check_gradients(&make, tokens, shape, window, exact);
            }
        }
    }
    check_long(&make);
    // Longer than any kernel takes at once.
    for (shape, window) in [((2, 1, 16), None), ((2, 1, 16), Some(50)), ((2, 1, 128), None)] {
        check_gradients(&make, 230, shape, window, false);
    }
}

/// A query over a long cache gives what it gives among others.
fn check_long<B: Backend>(make: &impl Fn(usize) -> B) {
    let (tokens, heads, head_dim, format) = (4200usize, 2, 64, CacheFormat::Bf16);
    let mut bench = Bench::new(make);
    let capacity = tokens.next_multiple_of(KEYS);
    let buffer = bench.buffer(Cache::bytes(format, 1, head_dim, capacity));
    let cache = Cache { buffer, format, kv_heads: 1, head_dim, capacity };
    let [k, v] = [1, 2].map(|seed| bench.rows(tokens, head_dim, &numbers(seed, tokens * head_dim)));
    bench.backend.store(k, v, 0, &cache).unwrap();
    let count = 16;
    let q: Vec<f32> = numbers(3, count * heads * head_dim).iter().map(|x| x * 8.0).collect();
    let q = bench.rows(count, heads * head_dim, &q);
    let [all, last] = [count, 1].map(|count| bench.output(count, heads * head_dim));
    let sight = |start| Sight { start, window: None };
    bench.backend.attend(q, &cache, sight(tokens - count), all).unwrap();
    bench.backend.attend(q.slice(count - 1, 1), &cache, sight(tokens - 1), last).unwrap();
    let want = bench.read(all);
    bench.assert_products(last, &want[(count - 1) * heads * head_dim..], NARROWED, "4200 positions");
}

fn check_gradients<B: Backend>(
    make: &impl Fn(usize) -> B,
    tokens: usize,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
    exact: bool,
) {
    let mut bench = Bench::new(make);
    let (wide, narrow) = (heads * head_dim, kv_heads * head_dim);
    // The more keys, the further the highest score so far may rise.
    let sharpness = if tokens > 200 { SHARP } else { 3.0 };
    let q: Vec<f32> = numbers(1, tokens * wide).iter().map(|x| x * sharpness).collect();
    let (k, v, dy) = (numbers(2, tokens * narrow), numbers(3, tokens * narrow), numbers(4, tokens * wide));
    // Two samples, which do not see each other.
    let samples = [0..tokens / 3, tokens / 3..tokens];
    let mut want = [const { Vec::new() }; 3];
    let (mut out, format) = (Vec::new(), if exact { CacheFormat::F32 } else { CacheFormat::Bf16 });
    for sample in &samples {
        let part = |x: &'_ [f32], width: usize| x[sample.start * width..sample.end * width].to_vec();
        let (q, k, v, dy) = (part(&q, wide), part(&k, narrow), part(&v, narrow), part(&dy, wide));
        let of_sample = gradient((&q, &k, &v, &dy), (heads, kv_heads, head_dim), window, exact);
        out.extend(reference(&q, &k, &v, (heads, kv_heads, head_dim), window, format));
        want.iter_mut().zip(of_sample).for_each(|(want, part)| want.extend(part));
    }
    let of = Attention {
        samples: &samples,
        q: bench.rows(tokens, wide, &q),
        k: bench.rows(tokens, narrow, &k),
        v: bench.rows(tokens, narrow, &v),
        head_dim,
        window,
        exact,
    };
    let dy = bench.rows(tokens, wide, &dy);
    let outs = [wide, narrow, narrow].map(|columns| bench.output(tokens, columns));
    // As it is where nothing is rounded.
    let out = bench.rows(tokens, wide, &out);
    let out = if exact { out } else { bench.narrow(out) };
    bench.backend.attend_gradient(&of, out, dy, outs[0], outs[1], outs[2]).unwrap();
    for ((out, want), name) in outs.into_iter().zip(&want).zip(["dq", "dk", "dv"]) {
        let what = format!("{name}, {tokens} tokens, heads {heads}/{kv_heads}x{head_dim}, window {window:?}");
        bench.assert_products(out, want, NARROWED, &what);
    }
    if exact || !bench.backend.narrow_heads(tokens, head_dim) {
        return;
    }
    // Narrow, they are what they are rounded to.
    let [q, k, v, dy] = [of.q, of.k, of.v, dy].map(|rows| bench.narrow(rows));
    let want = outs.map(|out| bench.read(out));
    let again = [wide, narrow, narrow].map(|columns| bench.output(tokens, columns).narrow());
    let of = Attention { q, k, v, ..of };
    bench.backend.attend_gradient(&of, out, dy, again[0], again[1], again[2]).unwrap();
    for (out, want) in again.iter().zip(&want) {
        assert_same_bits(&bench.read(*out), &rounded_rows(want), "narrow heads");
    }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    format: CacheFormat,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
) {
    let tokens = 75;
    let q: Vec<f32> = numbers(1, tokens * heads * head_dim).iter().map(|x| x * 3.0).collect();
    let k = numbers(2, tokens * kv_heads * head_dim);
    let v = numbers(3, tokens * kv_heads * head_dim);
    let want = reference(&q, &k, &v, (heads, kv_heads, head_dim), window, format);
    for chunk in [75, 20, 1] {
        let mut bench = Bench::new(make);
        let cache = Cache {
            buffer: bench.buffer(Cache::bytes(format, kv_heads, head_dim, 96)),
            format,
            kv_heads,
            head_dim,
            capacity: 96,
        };
        let q = bench.rows(tokens, heads * head_dim, &q);
        let k = bench.rows(tokens, kv_heads * head_dim, &k);
        let v = bench.rows(tokens, kv_heads * head_dim, &v);
        let out = bench.output(tokens, heads * head_dim);
        for start in (0..tokens).step_by(chunk) {
            let count = chunk.min(tokens - start);
            let b = &mut bench.backend;
            b.store(k.slice(start, count), v.slice(start, count), start, &cache).unwrap();
            let sight = Sight { start, window };
            b.attend(q.slice(start, count), &cache, sight, out.slice(start, count)).unwrap();
        }
        let what = format!("{} cache, heads {heads}/{kv_heads}x{head_dim}, chunks of {chunk}", format.name());
        bench.assert_products(out, &want, NARROWED, &what);
        let narrow = bench.output(tokens, heads * head_dim).narrow();
        bench.backend.attend(q, &cache, Sight { start: 0, window }, narrow).unwrap();
        bench.assert_products(narrow, &rounded_rows(&want), NARROWED, &what);
    }
}

/// Samples side by side, one of them longer than any kernel takes at once, and a token that is of none.
fn check_samples_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    format: CacheFormat,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
) {
    let (samples, tokens) = ([0..3, 3..20, 20..20, 21..161], 161);
    let (wide, narrow) = (heads * head_dim, kv_heads * head_dim);
    let q: Vec<f32> = numbers(1, tokens * wide).iter().map(|x| x * SHARP).collect();
    let (k, v) = (numbers(2, tokens * narrow), numbers(3, tokens * narrow));
    let mut bench = Bench::new(make);
    let buffer = bench.buffer(Cache::bytes(format, kv_heads, head_dim, 160));
    let cache = Cache { buffer, format, kv_heads, head_dim, capacity: 160 };
    let of = Attention {
        samples: &samples,
        q: bench.rows(tokens, wide, &q),
        k: bench.rows(tokens, narrow, &k),
        v: bench.rows(tokens, narrow, &v),
        head_dim,
        window,
        exact: format == CacheFormat::F32,
    };
    let out = bench.output(tokens, wide);
    bench.backend.attend_samples(&of, &cache, out).unwrap();
    for sample in &samples {
        let part = |x: &'_ [f32], width: usize| x[sample.start * width..sample.end * width].to_vec();
        let (q, k, v) = (part(&q, wide), part(&k, narrow), part(&v, narrow));
        let want = reference(&q, &k, &v, (heads, kv_heads, head_dim), window, format);
        let what = format!("{} samples, heads {heads}/{kv_heads}x{head_dim}", format.name());
        bench.assert_products(out.slice(sample.start, sample.len()), &want, NARROWED, &what);
    }
    if format == CacheFormat::Bf16 && bench.backend.narrow_heads(tokens, head_dim) {
        let want = bench.read(out);
        let [q, k, v] = [of.q, of.k, of.v].map(|rows| bench.narrow(rows));
        let of = Attention { q, k, v, ..of };
        bench.backend.attend_samples(&of, &cache, out).unwrap();
        assert_same_bits(&bench.read(out), &want, "narrow heads");
        let out = bench.output(tokens, wide).narrow();
        bench.backend.attend_samples(&of, &cache, out).unwrap();
        let (got, want) = (bench.read(out), rounded_rows(&want));
        for sample in &samples {
            let values = sample.start * wide..sample.end * wide;
            assert_same_bits(&got[values.clone()], &want[values], "narrow heads, and what they attend to");
        }
    }
}

fn reference(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    (heads, kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
    format: CacheFormat,
) -> Vec<f32> {
    let tokens = q.len() / (heads * head_dim);
    let head = |x: &[f32], h: usize| -> Vec<Vec<f32>> {
        let row = |t: usize| &x[(t * kv_heads + h) * head_dim..][..head_dim];
        (0..tokens).map(|t| kept(format, row(t))).collect()
    };
    let all: Vec<_> = (0..kv_heads).map(|h| (head(k, h), head(v, h))).collect();
    let mut out = Vec::new();
    for t in 0..tokens {
        for h in 0..heads {
            let (keys, values) = &all[h / (heads / kv_heads)];
            let low = window.map_or(0, |w| (t + 1).saturating_sub(w));
            let q = &q[(t * heads + h) * head_dim..][..head_dim];
            out.extend(forward(q, &keys[..=t], &values[..=t], low..t + 1, format));
        }
    }
    out
}
