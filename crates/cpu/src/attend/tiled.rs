//! A block of queries in AMX tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use halfbyte_ops::tensor::{KEYS, PANEL, WIDEST_HEAD};
use halfbyte_ops::{CacheFormat, math};

use super::{Block, QUERIES, Task};
use crate::arena::Place;
use crate::isa::for_isa;
use crate::keys::{Side, Tiles};
use crate::tiles::{BYTES, Session};
use crate::vector;

/// Tiles of keys, or of channels, computed side by side.
const SIDE_BY_SIDE: usize = 4;

/// The block in tiles; `rest` is the scratch after the scores.
///
/// # Safety
/// AMX is there; this thread alone writes the outputs and the scratch.
pub(super) unsafe fn block(task: &Task<'_>, block: &Block, scores: Place<f32>, rest: *mut u8, keys: usize) {
    let width = task.tiles.width;
    // SAFETY: the parts of scratch, one after the other (see `super::scratch`).
    let (probabilities, queries, sums, decoded) = unsafe {
        let queries = rest.add(QUERIES * keys * 2);
        let sums = queries.add(QUERIES * width * 2);
        let decoded = sums.add(QUERIES * width.max(64) * 4);
        (Place(rest.cast::<u16>()), Place(queries.cast::<u16>()), Place(sums.cast::<f32>()), Place(decoded))
    };
    // SAFETY: AMX is there by the caller's promise; the parts are this thread's.
    unsafe {
        gather(task, block, queries.slice_mut(0, QUERIES * width));
        let session = Session::new();
        score(task, block, &session, queries, scores, keys, decoded);
        let totals = soften(task, block, scores, probabilities, keys);
        mix(task, block, &session, probabilities, keys, scores.cast(), sums);
        finish(task.isa, task, block, &totals, sums);
    }
}

/// The block's queries in bf16, padded with zeros.
///
/// # Safety
/// AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn gather(task: &Task<'_>, block: &Block, queries: &mut [u16]) {
    for (i, row) in queries.chunks_exact_mut(task.tiles.width).enumerate() {
        let at = ((block.first + i) * task.heads + block.head) * task.head_dim;
        let there = if i < block.count { task.head_dim } else { 0 };
        for (first, line) in (0..).step_by(PANEL).zip(row.as_chunks_mut::<PANEL>().0) {
            let some = (1u32 << there.saturating_sub(first).min(PANEL)).wrapping_sub(1) as u16;
            // SAFETY: of the query of this head, which nobody writes; a line of 16.
            unsafe {
                let q = _mm512_maskz_loadu_ps(some, task.q.pointer().wrapping_add(at + first));
                _mm256_storeu_si256(line.as_mut_ptr().cast(), vector::narrow(q));
            }
        }
    }
}

/// Scores of 16 queries for all key tiles of the block.
///
/// # Safety
/// As `block`.
unsafe fn score(
    task: &Task<'_>,
    block: &Block,
    session: &Session,
    queries: Place<u16>,
    scores: Place<f32>,
    keys: usize,
    decoded: Place<u8>,
) {
    let width = task.tiles.width;
    let all = &task.cache[task.tiles.head(Side::Keys, block.head / task.group)..];
    let tile_bytes = task.tiles.key_tile();
    let (mut tile, end) = (block.key_tiles.start * 2, block.key_tiles.end * 2);
    while tile < end {
        let count = if end - tile >= SIDE_BY_SIDE { SIDE_BY_SIDE } else { 1 };
        let bytes = &all[tile * tile_bytes..][..count * tile_bytes];
        let b = if task.tiles.format == CacheFormat::Bf16 {
            bytes.as_ptr()
        } else {
            for (i, bytes) in bytes.chunks_exact(tile_bytes).enumerate() {
                // SAFETY: four tiles of keys fit.
                let out = unsafe { decoded.slice_mut(i * width * PANEL * 2, width * PANEL * 2) };
                decode_tile(task.isa, &task.tiles, Side::Keys, bytes, out);
            }
            decoded.pointer()
        };
        // SAFETY: 16 queries of `width`, as many groups of keys, 16 scores of each row.
        unsafe {
            let (q, out) = (queries.pointer(), scores.pointer().add(tile * PANEL));
            let (step, groups) = (width * PANEL * 2, width / 32);
            if count == SIDE_BY_SIDE {
                session.product_1x4(q, width * 2, b, step, BYTES, groups, out, keys * 4);
            } else {
                session.product_1x1(q, width * 2, b, BYTES, groups, out, keys * 4);
            }
        }
        tile += count;
    }
}

/// Probabilities from scores; gives 1 / sum of each row.
///
/// # Safety
/// As `block`.
unsafe fn soften(
    task: &Task<'_>,
    block: &Block,
    scores: Place<f32>,
    probabilities: Place<u16>,
    keys: usize,
) -> [f32; QUERIES] {
    let mut totals = [0.0f32; QUERIES];
    let (start, count) = (block.key_tiles.start * KEYS, block.key_tiles.len() * KEYS);
    for (i, total) in totals.iter_mut().enumerate() {
        // SAFETY: row i of scores and probabilities.
        let (p, narrow) = unsafe {
            (scores.slice_mut(i * keys + start, count), probabilities.slice_mut(i * keys + start, count))
        };
        if i < block.count {
            let visible = task.visible(block.first + i);
            let seen = visible.start - start..visible.end - start;
            // SAFETY: AVX-512 comes with AMX.
            *total = unsafe { softmax(p, seen, task.scale(), narrow) };
        } else {
            narrow.fill(0);
        }
    }
    totals
}

/// Weighted sums of values, `[16][width]`. `decoded` may use the rows of scores, which are done with.
///
/// # Safety
/// As `block`.
unsafe fn mix(
    task: &Task<'_>,
    block: &Block,
    session: &Session,
    probabilities: Place<u16>,
    keys: usize,
    decoded: Place<u8>,
    sums: Place<f32>,
) {
    let values = &task.cache[task.tiles.head(Side::Values, block.head / task.group)..];
    let channels = task.head_dim.div_ceil(PANEL);
    let (key_tiles, step) = (block.key_tiles.len(), task.tiles.values_at(1, 0));
    let out_stride = task.tiles.width.max(64) * 4;
    let mut channel = 0;
    while channel < channels {
        let narrow = task.tiles.format == CacheFormat::Bf16;
        let count = if narrow && channels - channel >= SIDE_BY_SIDE { SIDE_BY_SIDE } else { 1 };
        let first = task.tiles.values_at(block.key_tiles.start, channel);
        let last = first + (key_tiles - 1) * step + count * task.tiles.value_tile();
        let bytes = &values[first..last];
        // SAFETY: tiles of one channel lie `step` apart, of neighbours one tile; 16 rows of sums.
        unsafe {
            let p = probabilities.pointer().add(block.key_tiles.start * KEYS);
            let out = sums.pointer().add(channel * PANEL);
            if count == SIDE_BY_SIDE {
                session.product_1x4(p, keys * 2, bytes.as_ptr(), BYTES, step, key_tiles, out, out_stride);
            } else if narrow {
                session.product_1x1(p, keys * 2, bytes.as_ptr(), step, key_tiles, out, out_stride);
            } else {
                for tile in 0..key_tiles {
                    let bytes = &bytes[tile * step..][..task.tiles.value_tile()];
                    let out = decoded.slice_mut(tile * BYTES, BYTES);
                    decode_tile(task.isa, &task.tiles, Side::Values, bytes, out);
                }
                session.product_1x1(p, keys * 2, decoded.pointer(), BYTES, key_tiles, out, out_stride);
            }
        }
        channel += count;
    }
}

for_isa! {
/// Divides the sums and puts them where they belong: outputs that this thread alone writes.
fn finish(task: &Task<'_>, block: &Block, totals: &[f32; QUERIES], sums: Place<f32>) {
    let stride = task.tiles.width.max(64);
    let mut out = [0.0; WIDEST_HEAD];
    for (i, total) in totals.iter().enumerate().take(block.count) {
        // SAFETY: row i of the sums.
        let sums = unsafe { sums.slice(i * stride, task.head_dim) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum * total;
        }
        // SAFETY: this block's outputs.
        unsafe { task.out.put(block.first + i, block.head * task.head_dim, &out[..task.head_dim]) };
    }
}
}

/// `super::softmax` with probabilities in bf16: they are what the values are multiplied with.
///
/// # Safety
/// AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn softmax(p: &mut [f32], visible: Range<usize>, scale: f32, narrow: &mut [u16]) -> f32 {
    // Lines that nothing is seen of weigh nothing.
    let seen = visible.start / PANEL..visible.end.div_ceil(PANEL);
    p[seen.start * PANEL..visible.start].fill(f32::NEG_INFINITY);
    p[visible.end..seen.end * PANEL].fill(f32::NEG_INFINITY);
    let (lines, narrow) = (&p.as_chunks::<PANEL>().0[seen.clone()], narrow.as_chunks_mut::<PANEL>().0);
    narrow[..seen.start].fill([0; PANEL]);
    narrow[seen.end..].fill([0; PANEL]);
    // SAFETY: whole lines of 16, as many narrow.
    unsafe {
        let load = |line: &[f32; PANEL]| _mm512_loadu_ps(line.as_ptr());
        let (pairs, last) = lines.as_chunks::<2>();
        let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
        for pair in pairs {
            // In this order a NaN is passed over.
            tops = [_mm512_max_ps(load(&pair[0]), tops[0]), _mm512_max_ps(load(&pair[1]), tops[1])];
        }
        for last in last {
            tops[0] = _mm512_max_ps(load(last), tops[0]);
        }
        let top = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(tops[0], tops[1])) * scale);
        let scale = _mm512_set1_ps(scale);
        let mut sums = _mm512_setzero_ps();
        for (line, narrow) in lines.iter().zip(&mut narrow[seen]) {
            // Not above zero, and e^-87 is not subnormal.
            let e = vector::exp_to_one(_mm512_sub_ps(_mm512_mul_ps(load(line), scale), top));
            sums = _mm512_add_ps(sums, e);
            _mm256_storeu_si256(narrow.as_mut_ptr().cast(), vector::narrow_normal(e));
        }
        let mut lanes = [0.0; PANEL];
        _mm512_storeu_ps(lanes.as_mut_ptr(), sums);
        1.0 / math::fold(lanes)
    }
}

for_isa! {
/// A tile of the cache as pairs of bf16, which hold its values exactly.
fn decode_tile(tiles: &Tiles, side: Side, bytes: &[u8], out: &mut [u8]) {
    let mut values = [[0.0f32; PANEL]; 32];
    for (group, out) in out.chunks_exact_mut(32 * PANEL * 2).enumerate() {
        tiles.decode(side, bytes, group * 32, &mut values);
        for (row, pair) in out.as_chunks_mut::<64>().0.iter_mut().zip(values.chunks_exact(2)) {
            for (lane, out) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let (low, high) = (pair[0][lane].to_bits() >> 16, pair[1][lane].to_bits() & 0xffff_0000);
                *out = (low | high).to_le_bytes();
            }
        }
    }
}
}
