//! Queries and keys on their way from their products to attention: every head gets its norm, where the model has one,
//! and is turned; keys and values go into the cache. `rms_norm`, `rope` and `store`, one after the other; a device may do
//! all at once.

use crate::error::{Result, check};
use crate::tensor::CacheFormat;
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{Backend, Cache, Rows, Sight, Vector, attend, rms_norm, rope};

/// Heads of one kind. `out` may be `raw`, and is without a norm.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// As the product gave them, `[t, heads * head_dim]`.
    pub raw: Rows,
    /// The gain of the norm.
    pub norm: Option<Vector>,
    /// Where they go.
    pub out: Rows,
}

/// Where the turned keys are kept, with their values: see [`Backend::store`].
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// As wide as the keys.
    pub values: Rows,
    /// Position of the first.
    pub start: usize,
    /// The layer's.
    pub cache: &'a Cache,
}

/// Queries, keys and values that attention follows upon: what [`Backend::heads`] takes.
#[derive(Clone, Copy, Debug)]
pub struct Fresh<'a> {
    /// Of the new tokens.
    pub queries: Heads,
    /// Of the new tokens.
    pub keys: Heads,
    /// Of their norms.
    pub eps: f32,
    /// Of their positions, `[t, head_dim]`.
    pub turns: Rows,
    /// Their values, and where all is kept.
    pub keep: Keep<'a>,
}

/// The shapes that fit. The width of a head is that of `turns`.
pub fn check_shapes(queries: Heads, keys: Heads, turns: Rows, keep: Option<Keep<'_>>) -> Result<()> {
    for Heads { raw, norm, out } in [queries, keys] {
        rope::check_shapes(out, turns.columns, turns)?;
        match norm {
            Some(gain) => {
                rms_norm::check_shapes(raw.reshape(turns.columns), gain, out.reshape(turns.columns))?;
            }
            None => check(raw.buffer == out.buffer, "heads", || "heads without a norm stay in place".into())?,
        }
    }
    let Some(Keep { values, start, cache }) = keep else { return Ok(()) };
    check(cache.head_dim == turns.columns, "heads", || {
        format!("a cache of heads of {}, turns of {}", cache.head_dim, turns.columns)
    })?;
    attend::check_store(keys.out, values, start, cache)
}

/// By the ops it is made of.
pub fn one_by_one(
    backend: &mut (impl Backend + ?Sized),
    queries: Heads,
    keys: Heads,
    eps: f32,
    turns: Rows,
    keep: Option<Keep<'_>>,
) -> Result<()> {
    check_shapes(queries, keys, turns, keep)?;
    for Heads { raw, norm, out } in [queries, keys] {
        if let Some(gain) = norm {
            backend.rms_norm(raw.reshape(turns.columns), gain, eps, out.reshape(turns.columns))?;
        }
        backend.rope(out, turns.columns, turns)?;
    }
    keep.map_or(Ok(()), |Keep { values, start, cache }| backend.store(keys.out, values, start, cache))
}

/// By the two ops it is made of.
pub fn then_attend(
    backend: &mut (impl Backend + ?Sized),
    of: Fresh<'_>,
    window: Option<usize>,
    out: Rows,
) -> Result<()> {
    backend.heads(of.queries, of.keys, of.eps, of.turns, Some(of.keep))?;
    backend.attend(of.queries.out, of.keep.cache, Sight { start: of.keep.start, window }, out)
}

/// Positions of the cache under test.
const CAPACITY: usize = 32;

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (rows, counts, head_dim) in [(1, [32, 8], 128), (7, [9, 3], 64), (3, [2, 2], 6), (5, [4, 1], 96)] {
        for normed in [false, true] {
            for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
                check_case(&make, rows, counts, head_dim, normed, format);
            }
        }
    }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    rows: usize,
    counts: [usize; 2],
    head_dim: usize,
    normed: bool,
    format: CacheFormat,
) {
    let mut bench = Bench::new(make);
    let (gain, turns) = (numbers(2, head_dim), numbers(3, rows * head_dim));
    let mut wants = Vec::new();
    let [queries, keys] = counts.map(|count| {
        let x = numbers(1, rows * count * head_dim);
        let mut want = x.clone();
        if normed {
            want.chunks_mut(head_dim).for_each(|head| rms_norm::forward_in_place(head, &gain, 1e-6));
        }
        for (x, turns) in want.chunks_mut(count * head_dim).zip(turns.chunks(head_dim)) {
            rope::forward_in_place(x, turns);
        }
        wants.push(want);
        let raw = bench.rows(rows, count * head_dim, &x);
        let norm = normed.then(|| bench.vector(&gain));
        Heads { raw, norm, out: if normed { bench.output(rows, count * head_dim) } else { raw } }
    });
    let width = counts[1] * head_dim;
    let values = bench.rows(rows, width, &numbers(4, rows * width));
    // One cache by this op, one by `store`: the same bytes.
    let bytes = Cache::bytes(format, counts[1], head_dim, CAPACITY);
    let caches = [(); 2].map(|()| {
        let buffer = bench.buffer(bytes);
        bench.backend.write_bytes(buffer, &vec![0; bytes]).unwrap();
        Cache { buffer, format, kv_heads: counts[1], head_dim, capacity: CAPACITY }
    });
    let turns = bench.rows(rows, head_dim, &turns);
    let keep = Keep { values, start: 2, cache: &caches[0] };
    bench.backend.heads(queries, keys, 1e-6, turns, Some(keep)).unwrap();
    for (heads, want) in [queries, keys].iter().zip(&wants) {
        assert_same_bits(&bench.read(heads.out), want, "heads");
    }
    bench.backend.store(keys.out, values, 2, &caches[1]).unwrap();
    let [kept, stored] = caches.map(|cache| {
        let mut all = vec![0; bytes];
        bench.backend.read_bytes(cache.buffer, &mut all).unwrap();
        all
    });
    assert!(kept == stored, "heads of {head_dim}, a cache of {}", format.name());

    // With attention behind it, from the same raw values: the same again.
    let out = [(); 2].map(|()| bench.output(rows, counts[0] * head_dim));
    bench.backend.attend(queries.out, &caches[0], Sight { start: 2, window: None }, out[0]).unwrap();
    bench.backend.write_bytes(caches[1].buffer, &vec![0; bytes]).unwrap();
    let [queries, keys] = [queries, keys].map(|heads| {
        let raw = numbers(1, rows * heads.raw.columns);
        bench.backend.write(heads.raw.buffer, &raw).unwrap();
        heads
    });
    let keep = Keep { values, start: 2, cache: &caches[1] };
    bench.backend.heads_attend(Fresh { queries, keys, eps: 1e-6, turns, keep }, None, out[1]).unwrap();
    let [want, got] = out.map(|out| bench.read(out));
    assert_same_bits(&got, &want, "attention behind heads");
    let mut all = vec![0; bytes];
    bench.backend.read_bytes(caches[1].buffer, &mut all).unwrap();
    assert!(all == stored, "attention behind heads of {head_dim}, a cache of {}", format.name());
}
