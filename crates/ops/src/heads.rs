//! Queries and keys on their way from their products to attention: every head gets its norm, where the model has one,
//! and is turned; keys and values go into the cache. `rms_norm`, `rope` and `store`, one after the other; a device may do
//! all at once. On the way back `rope_gradient` and `rms_norm_gradient` likewise.

use crate::error::{Result, check};
use crate::tensor::CacheFormat;
use crate::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Cache, Rows, Sight, Vector, attend, rms_norm, rope};

/// Heads of one kind. `out` may be `raw`, and is without a norm, unless it is narrow; then `raw` may be narrow too.
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
            None => check(raw.buffer == out.buffer || out.narrow, "heads", || {
                "heads without a norm stay in place, or become narrow".into()
            })?,
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

/// Heads of one kind on their way back.
#[derive(Clone, Copy, Debug)]
pub struct HeadsGradient {
    /// As the product gave them, `[t, heads * head_dim]`. May be narrow where [`Backend::narrow_heads`].
    pub raw: Rows,
    /// The gain of the norm, and its gradient.
    pub norm: Option<(Vector, Vector)>,
    /// The gradient of the turned heads, which may be narrow as `raw` may. Nothing is certain of it afterwards.
    pub dy: Rows,
    /// Where a gradient may lie before it is made narrow; the other kind may use it too.
    pub between: Rows,
    /// The gradient of `raw`. May be narrow, or `dy` where there is no norm.
    pub dx: Rows,
}

/// The shapes that fit the way back.
pub fn check_gradient(queries: HeadsGradient, keys: HeadsGradient, turns: Rows) -> Result<()> {
    for HeadsGradient { raw, norm, dy, between, dx } in [queries, keys] {
        rope::check_shapes(dy, turns.columns, turns)?;
        let same = |a: Rows| (a.rows, a.columns) == (dy.rows, dy.columns);
        let apart = norm.is_none() || dx.buffer != dy.buffer;
        let fits = same(raw) && same(dx) && apart && between.buffer.bytes >= dy.buffer.bytes;
        check(fits, "heads_gradient", || {
            format!(
                "raw {}x{}, dy {}x{}, dx {}x{}{}, {} bytes between",
                raw.rows,
                raw.columns,
                dy.rows,
                dy.columns,
                dx.rows,
                dx.columns,
                if apart { "" } else { " in the place of dy" },
                between.buffer.bytes
            )
        })?;
        if let Some((gain, dgain)) = norm {
            let apart = |x: Rows| x.reshape(turns.columns);
            rms_norm::check_gradient(apart(raw), gain, apart(dy), apart(dy), dgain)?;
        }
    }
    Ok(())
}

/// The way back by the ops it is made of.
pub fn gradient_one_by_one(
    backend: &mut (impl Backend + ?Sized),
    queries: HeadsGradient,
    keys: HeadsGradient,
    eps: f32,
    turns: Rows,
) -> Result<()> {
    check_gradient(queries, keys, turns)?;
    for HeadsGradient { raw, norm, dy, between, dx } in [queries, keys] {
        backend.rope_gradient(dy, turns.columns, turns)?;
        let mut from = dy;
        if let Some((gain, dgain)) = norm {
            from = if dx.narrow { Rows::new(between.buffer, dy.rows, dy.columns) } else { dx };
            backend.clear(from)?;
            let apart = |x: Rows| x.reshape(turns.columns);
            backend.rms_norm_gradient(apart(raw), gain, eps, apart(dy), apart(from), dgain)?;
        }
        if dx.buffer != from.buffer {
            backend.copy(from, dx)?;
        }
    }
    Ok(())
}

/// Positions of the cache under test.
const CAPACITY: usize = 96;

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    let cases = [
        (1, [32, 8], 128),
        (7, [9, 3], 64),
        (3, [2, 2], 6),
        (5, [4, 1], 96),
        (17, [3, 1], 64),
        (70, [8, 2], 128),
    ];
    for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
        check_far(&make, [8, 2], 128, format, None);
        check_far(&make, [10, 1], 32, format, Some(100));
    }
    for (rows, counts, head_dim) in cases {
        for normed in [false, true] {
            for format in [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8] {
                check_case(&make, rows, counts, head_dim, normed, format);
            }
            for narrow in [Narrow::Nothing, Narrow::Result, Narrow::All] {
                check_way_back(&make, rows, counts, head_dim, normed, narrow);
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
    let turned = |mut x: Vec<f32>| {
        if normed {
            x.chunks_mut(head_dim).for_each(|head| rms_norm::forward_in_place(head, &gain, 1e-6));
        }
        let width = x.len() / rows;
        for (x, turns) in x.chunks_mut(width).zip(turns.chunks(head_dim)) {
            rope::forward_in_place(x, turns);
        }
        x
    };
    let mut wants = Vec::new();
    let [queries, keys] = counts.map(|count| {
        let x = numbers(1, rows * count * head_dim);
        wants.push(turned(x.clone()));
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
    let given_turns = bench.rows(rows, head_dim, &turns);
    let keep = Keep { values, start: 2, cache: &caches[0] };
    bench.backend.heads(queries, keys, 1e-6, given_turns, Some(keep)).unwrap();
    for (heads, want) in [queries, keys].iter().zip(&wants) {
        assert_same_bits(&bench.read(heads.out), want, "heads");
    }
    if bench.backend.narrow_heads(rows, head_dim) {
        for narrow_raw in [false, true] {
            let [queries, keys] = [queries, keys].map(|heads| {
                let raw = bench.rows(rows, heads.raw.columns, &numbers(1, rows * heads.raw.columns));
                let raw = if narrow_raw { bench.narrow(raw) } else { raw };
                Heads { raw, out: bench.output(rows, heads.raw.columns).narrow(), ..heads }
            });
            let wants = [queries, keys].map(|heads| rounded_rows(&turned(bench.read(heads.raw))));
            bench.backend.heads(queries, keys, 1e-6, given_turns, None).unwrap();
            for (heads, want) in [queries, keys].iter().zip(&wants) {
                assert_same_bits(&bench.read(heads.out), want, "narrow heads");
            }
        }
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
    let fresh = Fresh { queries, keys, eps: 1e-6, turns: given_turns, keep };
    bench.backend.heads_attend(fresh, None, out[1]).unwrap();
    let want = bench.read(out[0]);
    bench.assert_products(out[1], &want, attended(format), "attention behind heads");
    let mut all = vec![0; bytes];
    bench.backend.read_bytes(caches[1].buffer, &mut all).unwrap();
    assert!(all == stored, "attention behind heads of {head_dim}, a cache of {}", format.name());
}

/// What attention may be off by, of a backend that sums in an order of its own: weights are rounded where keys are.
fn attended(format: CacheFormat) -> f32 {
    if format == CacheFormat::F32 { SUMMED } else { NARROWED }
}

/// One token behind many others: the same as heads and attention one by one.
fn check_far<B: Backend>(
    make: &impl Fn(usize) -> B,
    counts: [usize; 2],
    head_dim: usize,
    format: CacheFormat,
    window: Option<usize>,
) {
    const START: usize = 300;
    let mut bench = Bench::new(make);
    let width = counts[1] * head_dim;
    let bytes = Cache::bytes(format, counts[1], head_dim, START + 20);
    let buffer = bench.buffer(bytes);
    bench.backend.write_bytes(buffer, &vec![0; bytes]).unwrap();
    let cache = Cache { buffer, format, kv_heads: counts[1], head_dim, capacity: START + 20 };
    let [older_keys, older_values] =
        [5, 6].map(|seed| bench.rows(START, width, &numbers(seed, START * width)));
    bench.backend.store(older_keys, older_values, 0, &cache).unwrap();
    let gain = bench.vector(&numbers(2, head_dim));
    let [queries, keys] = counts.map(|count| {
        let raw = bench.rows(1, count * head_dim, &numbers(1, count * head_dim));
        Heads { raw, norm: Some(gain), out: bench.output(1, count * head_dim) }
    });
    let values = bench.rows(1, width, &numbers(4, width));
    let turns = bench.rows(1, head_dim, &numbers(3, head_dim));
    let out = [(); 2].map(|()| bench.output(1, counts[0] * head_dim));
    let fresh = Fresh { queries, keys, eps: 1e-6, turns, keep: Keep { values, start: START, cache: &cache } };
    then_attend(&mut bench.backend, fresh, window, out[0]).unwrap();
    bench.backend.heads_attend(fresh, window, out[1]).unwrap();
    let want = bench.read(out[0]);
    bench.assert_products(out[1], &want, attended(format), "attention behind heads and many keys");
}

/// What is narrow on a way back.
#[derive(Clone, Copy, PartialEq)]
enum Narrow {
    Nothing,
    Result,
    All,
}

fn check_way_back<B: Backend>(
    make: &impl Fn(usize) -> B,
    rows: usize,
    counts: [usize; 2],
    head_dim: usize,
    normed: bool,
    narrow: Narrow,
) {
    let mut bench = Bench::new(make);
    if narrow == Narrow::All && !bench.backend.narrow_heads(rows, head_dim) {
        return;
    }
    let (gain, turns) = (numbers(2, head_dim), numbers(3, rows * head_dim));
    let between = bench.output(rows, counts[0].max(counts[1]) * head_dim);
    let mut wants = Vec::new();
    let [queries, keys] = counts.map(|count| {
        let columns = count * head_dim;
        let given = [1, 4].map(|seed| bench.rows(rows, columns, &numbers(seed, rows * columns)));
        let [raw, before] = if narrow == Narrow::All { given.map(|rows| bench.narrow(rows)) } else { given };
        let (x, mut dy) = (bench.read(raw), bench.read(before));
        for (dy, turns) in dy.chunks_mut(columns).zip(turns.chunks(head_dim)) {
            rope::gradient_in_place(dy, turns);
        }
        let mut dgain = numbers(5, head_dim);
        let norm = normed.then(|| (bench.vector(&gain), bench.vector(&dgain)));
        if normed {
            let mut dx = vec![0.0; dy.len()];
            let heads = x.chunks(head_dim).zip(dy.chunks(head_dim)).zip(dx.chunks_mut(head_dim));
            for ((x, dy), dx) in heads {
                let r = rms_norm::gradient(x, &gain, 1e-6, dy, dx);
                rms_norm::gain_gradient(x, r, dy, &mut dgain);
            }
            dy = dx;
        }
        wants.push((if narrow == Narrow::Nothing { dy } else { rounded_rows(&dy) }, dgain));
        let dx = match (narrow, normed) {
            (Narrow::Nothing, true) => bench.output(rows, columns),
            (Narrow::Nothing, false) => before,
            _ => bench.output(rows, columns).narrow(),
        };
        HeadsGradient { raw, norm, dy: before, between, dx }
    });
    let turns = bench.rows(rows, head_dim, &turns);
    bench.backend.heads_gradient(queries, keys, 1e-6, turns).unwrap();
    for (of, (dx, dgain)) in [queries, keys].iter().zip(&wants) {
        assert_same_bits(&bench.read(of.dx), dx, "heads_gradient");
        if let Some((_, place)) = of.norm {
            bench.assert_products(Rows::new(place.buffer, 1, head_dim), dgain, SUMMED, "gains of heads");
        }
    }
}
