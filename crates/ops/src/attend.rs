//! Scores s[j] = dot(q', k[j]) / sqrt(d) for the visible keys j, p[j] = e^(s[j] - max s),
//! y[c] = dot_j(p', v[:,c]) / sum_j p[j]: the canonical dot again, keys in groups of 32 counted
//! from position 0. With a bf16 or int8 cache q' and p' are rounded to bf16, with an f32 cache
//! they are as they are. Masked keys have p = 0, which adds exactly nothing.
//!
//! A query's result depends on the keys it sees and on nothing else.

use halfbyte_formats::{bf16, int8_block};

use crate::dot::{dot, rounded};
use crate::error::{Result, check};
use crate::tensor::{KEYS, WIDEST_HEAD};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Cache, CacheFormat, Rows, Sight, math};

/// The shapes that fit.
pub fn check_shapes(q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
    let kv = cache.kv_heads * cache.head_dim;
    let fits = kv > 0
        && q.columns.is_multiple_of(kv)
        && (q.rows, q.columns) == (out.rows, out.columns)
        && sight.start + q.rows <= cache.capacity
        && sight.window != Some(0)
        && cache_fits(cache);
    check(fits, "attend", || {
        format!(
            "q {}x{} at {}, cache of {} positions, {} heads of {}, out {}x{}",
            q.rows,
            q.columns,
            sight.start,
            cache.capacity,
            cache.kv_heads,
            cache.head_dim,
            out.rows,
            out.columns
        )
    })
}

/// The shapes that fit a store.
pub fn check_store(keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()> {
    let width = cache.kv_heads * cache.head_dim;
    let fits = keys.columns == width
        && values.columns == width
        && keys.rows == values.rows
        && start + keys.rows <= cache.capacity
        && cache_fits(cache);
    check(fits, "store", || {
        format!(
            "keys {}x{}, values {}x{} at {start}, cache of {} positions, {} heads of {}",
            keys.rows,
            keys.columns,
            values.rows,
            values.columns,
            cache.capacity,
            cache.kv_heads,
            cache.head_dim
        )
    })
}

fn cache_fits(cache: &Cache) -> bool {
    let bytes = Cache::bytes(cache.format, cache.kv_heads, cache.head_dim, cache.capacity);
    cache.capacity.is_multiple_of(KEYS) && cache.head_dim <= WIDEST_HEAD && cache.buffer.bytes == bytes
}

/// A key or value of one head as the cache keeps it.
pub fn kept(format: CacheFormat, x: &[f32]) -> Vec<f32> {
    match format {
        CacheFormat::F32 => x.to_vec(),
        CacheFormat::Bf16 => rounded(x),
        CacheFormat::Int8 => {
            let (mut codes, mut scales) = (vec![0; x.len()], vec![0; x.len().div_ceil(16)]);
            let mut out = vec![0.0; x.len()];
            int8_block::encode_row(x, &mut codes, &mut scales);
            int8_block::decode_row(&codes, &scales, &mut out);
            out
        }
    }
}

/// One query of one head over keys and values `[positions][head_dim]` as kept.
pub fn forward(
    q: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    visible: std::ops::Range<usize>,
    format: CacheFormat,
) -> Vec<f32> {
    let narrow = format != CacheFormat::F32;
    let q = if narrow { rounded(q) } else { q.to_vec() };
    let scale = 1.0 / (q.len() as f32).sqrt();
    let mut p: Vec<f32> = keys.iter().map(|k| dot(&q, k) * scale).collect();
    let top = math::max(&p[visible.clone()]);
    for (j, p) in p.iter_mut().enumerate() {
        *p = if visible.contains(&j) { math::exp(*p - top) } else { 0.0 };
    }
    let total = 1.0 / math::sum(&p);
    if narrow {
        p.iter_mut().for_each(|p| *p = bf16::round(*p));
    }
    (0..q.len()).map(|c| dot(&p, &values.iter().map(|v| v[c]).collect::<Vec<_>>()) * total).collect()
}

/// What every backend must give: whole, in chunks, token by token, with and without a window.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
        for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 128), (2, 2, 40), (4, 1, 16)] {
            for window in [None, Some(19)] {
                check_case(&make, format, (heads, kv_heads, head_dim), window);
            }
        }
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
        assert_same_bits(&bench.read(out), &want, &what);
        let narrow = bench.output(tokens, heads * head_dim).narrow();
        bench.backend.attend(q, &cache, Sight { start: 0, window }, narrow).unwrap();
        assert_same_bits(&bench.read(narrow), &rounded_rows(&want), &what);
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
