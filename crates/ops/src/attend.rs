//! Scores s[j] = dot(q', k[j]) / sqrt(d) for the visible keys j, p[j] = e^(s[j] - max s),
//! y[c] = dot_j(p', v[:,c]) / sum_j p[j]: the canonical dot again, keys in groups of 32 counted
//! from position 0. With a bf16 or int8 cache q' and p' are rounded to bf16, with an f32 cache
//! they are as they are. Masked keys have p = 0, which adds exactly nothing.
//!
//! A query's result depends on the keys it sees and on nothing else.
//!
//! Backward, with P = p / sum p, dP[j] = dot(dy', v[j]) and dS = P (dP - sum_j P dP) / sqrt(d):
//! dq = dot_j(dS', k[j]), dk[j] = dot_t(dS', q'), dv[j] = dot_t(P', dy'), where the inner dimension
//! of the last two runs over the tokens, padded to 32, of one query head after the other.

use halfbyte_formats::{bf16, int8_block};

use crate::dot::{dot, rounded};
use crate::error::{Result, check};
use crate::tensor::{KEYS, WIDEST_HEAD};
use crate::{Attention, Backend, Cache, CacheFormat, Rows, Sight, math};

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

/// Heads are even, as rope wants them: kernels keep keys in pairs.
fn cache_fits(cache: &Cache) -> bool {
    let bytes = Cache::bytes(cache.format, cache.kv_heads, cache.head_dim, cache.capacity);
    cache.capacity.is_multiple_of(KEYS)
        && cache.head_dim.is_multiple_of(2)
        && cache.head_dim <= WIDEST_HEAD
        && cache.buffer.bytes == bytes
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

fn shape(a: Rows) -> (usize, usize) {
    (a.rows, a.columns)
}

fn size(a: Rows) -> String {
    format!("{}x{}", a.rows, a.columns)
}

fn sizes(of: &Attention<'_>) -> String {
    format!("q {}, k {}, v {}, heads of {}", size(of.q), size(of.k), size(of.v), of.head_dim)
}

fn samples_fit(of: &Attention<'_>) -> bool {
    let (q, k) = (of.q, of.k);
    of.head_dim > 0
        && of.head_dim <= WIDEST_HEAD
        && k.columns > 0
        && k.columns.is_multiple_of(of.head_dim)
        && q.columns.is_multiple_of(k.columns)
        && q.rows == k.rows
        && shape(of.v) == shape(k)
        && [k, of.v].iter().all(|rows| rows.narrow == q.narrow)
        && !(q.narrow && of.exact)
        && of.window != Some(0)
        && of.samples.iter().all(|sample| sample.start <= sample.end && sample.end <= q.rows)
        && of.samples.windows(2).all(|pair| pair[0].end <= pair[1].start)
}

/// The shapes that fit attention of samples.
pub fn check_samples(of: &Attention<'_>, cache: &Cache, out: Rows) -> Result<()> {
    let (q, k) = (of.q, of.k);
    let longest = of.samples.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let fits = samples_fit(of)
        && shape(out) == shape(q)
        && k.columns == cache.kv_heads * cache.head_dim
        && of.head_dim == cache.head_dim
        && of.exact == (cache.format == CacheFormat::F32)
        && longest <= cache.capacity
        && cache_fits(cache);
    check(fits, "attend_samples", || {
        let Cache { capacity, kv_heads, head_dim, .. } = cache;
        let cache = format!("cache of {capacity} positions, {kv_heads} heads of {head_dim}");
        format!("{}, up to {longest} in a sample, out {}, {cache}", sizes(of), size(out))
    })
}

/// Attention of samples by the ops it is made of.
pub fn sample_by_sample(
    backend: &mut (impl Backend + ?Sized),
    of: &Attention<'_>,
    cache: &Cache,
    out: Rows,
) -> Result<()> {
    check_samples(of, cache, out)?;
    for sample in of.samples {
        let part = |rows: Rows| rows.slice(sample.start, sample.len());
        backend.store(part(of.k), part(of.v), 0, cache)?;
        backend.attend(part(of.q), cache, Sight { start: 0, window: of.window }, part(out))?;
    }
    Ok(())
}

/// The shapes that fit the gradient.
pub fn check_gradient(of: &Attention<'_>, out: Rows, dout: Rows, dq: Rows, dk: Rows, dv: Rows) -> Result<()> {
    let (q, k) = (of.q, of.k);
    let fits = samples_fit(of)
        && dout.narrow == q.narrow
        && [dq, dk].iter().all(|a| a.narrow == dv.narrow)
        && [out, dout, dq].iter().all(|a| shape(*a) == shape(q))
        && [dk, dv].iter().all(|a| shape(*a) == shape(k));
    check(fits, "attend_gradient", || {
        let gradients = [out, dout, dq, dk, dv].map(size).join(", ");
        format!("{}, out, dout, dq, dk and dv {gradients}", sizes(of))
    })
}

/// Probabilities and dS of one query: the last step of both is the same in every kernel.
///
/// `p` are scores before scaling and `dp` products of dy with values, whole tiles of keys; keys
/// out of sight come out as zero in both.
#[inline(always)]
pub fn soften(p: &mut [f32], dp: &mut [f32], visible: std::ops::Range<usize>, scale: f32) {
    p[..visible.start].fill(f32::NEG_INFINITY);
    p[visible.end..].fill(f32::NEG_INFINITY);
    let top = math::max(p) * scale;
    for p in p.iter_mut() {
        *p = math::exp(*p * scale - top);
    }
    let total = 1.0 / math::sum(p);
    let mut lanes = [0.0f32; math::LANES];
    for (p, dp) in p.chunks_mut(math::LANES).zip(dp.chunks(math::LANES)) {
        for (i, (p, dp)) in p.iter_mut().zip(dp).enumerate() {
            *p *= total;
            // Out of sight dp may hold anything finite: p is zero there.
            lanes[i] = p.mul_add(*dp, lanes[i]);
        }
    }
    let mean = math::fold(lanes);
    for (p, dp) in p.iter().zip(dp) {
        *dp = p * (*dp - mean) * scale;
    }
}

/// Gradients of q, k and v of one sample, `[t][heads][head_dim]`.
pub fn gradient(
    (q, k, v, dy): (&[f32], &[f32], &[f32], &[f32]),
    (heads, kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
    exact: bool,
) -> [Vec<f32>; 3] {
    let tokens = q.len() / (heads * head_dim);
    let padded = tokens.next_multiple_of(KEYS);
    let round = |x: &[f32]| if exact { x.to_vec() } else { rounded(x) };
    // Rows of a head, padded with zeros.
    let head = |x: &[f32], count: usize, h: usize| -> Vec<Vec<f32>> {
        let row = |t: usize| round(&x[(t * count + h) * head_dim..][..head_dim]);
        let zeros = || vec![0.0; head_dim];
        (0..padded).map(|t| if t < tokens { row(t) } else { zeros() }).collect()
    };
    let column = |rows: &[Vec<f32>], c: usize| rows.iter().map(|row| row[c]).collect::<Vec<f32>>();
    let [mut dq, mut dk, mut dv] = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]];
    let scale = 1.0 / (head_dim as f32).sqrt();
    for kv in 0..kv_heads {
        let (keys, values) = (head(k, kv_heads, kv), head(v, kv_heads, kv));
        let [mut all_p, mut all_ds, mut all_q, mut all_dy] = [const { Vec::new() }; 4];
        for h in kv * (heads / kv_heads)..(kv + 1) * (heads / kv_heads) {
            let (queries, dys) = (head(q, heads, h), head(dy, heads, h));
            for t in 0..padded {
                let (mut p, mut ds) = (vec![0.0; padded], vec![0.0; padded]);
                if t < tokens {
                    // The same whole tiles of keys that any kernel looks at.
                    let seen = (t + 1).next_multiple_of(KEYS);
                    for j in 0..seen {
                        (p[j], ds[j]) = (dot(&queries[t], &keys[j]), dot(&dys[t], &values[j]));
                    }
                    let low = window.map_or(0, |w| (t + 1).saturating_sub(w));
                    soften(&mut p[..seen], &mut ds[..seen], low..t + 1, scale);
                    (p, ds) = (round(&p), round(&ds));
                    for c in 0..head_dim {
                        dq[(t * heads + h) * head_dim + c] = dot(&ds, &column(&keys, c));
                    }
                }
                all_p.push(p);
                all_ds.push(ds);
            }
            all_q.extend(queries);
            all_dy.extend(dys);
        }
        for j in 0..tokens {
            let (p, ds) = (column(&all_p, j), column(&all_ds, j));
            for c in 0..head_dim {
                let at = (j * kv_heads + kv) * head_dim + c;
                dk[at] = dot(&ds, &column(&all_q, c));
                dv[at] = dot(&p, &column(&all_dy, c));
            }
        }
    }
    [dq, dk, dv]
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    contract::check(make);
}

mod contract;
