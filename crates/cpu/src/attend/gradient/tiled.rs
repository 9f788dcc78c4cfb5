//! Gradients of attention in AMX tiles, 32 queries of one head at a time.
//!
//! Of a head of keys: S = Q K^T and dP = dY V^T a block of queries at a time, softened row by row,
//! then dQ = dS K. Every four blocks dK^T += Q^T dS and dV^T += dY^T P: transposed, because dS and P
//! then stand in pairs of rows, which costs less than turning them.
//!
//! Squares of 32 by 32 are what everything is counted in (`crate::square`).

use std::ops::Range;

use halfbyte_ops::Cache;

use super::softened::soften;
use super::{BLOCK, Sample};
use crate::arena::Place;
use crate::square::{self, Tile, pair, turn};
use crate::tiles::{Block, SIDE, Session};
use crate::vector;

/// Blocks of queries whose shares of dK and dV are added together.
pub(super) const TOGETHER: usize = 4;

/// What a thread keeps, in squares: `across` of them in a head, `along` in the tokens.
pub(super) struct Parts<'a> {
    pub(super) along: usize,
    across: usize,
    /// `[along][across]`, two tiles each: pairs of channels, by keys.
    keys: &'a mut [[Tile; 2]],
    values: &'a mut [[Tile; 2]],
    /// `[across][along]`, pairs of keys, by channels.
    channels: &'a mut [[Tile; 2]],
    /// `[along][across]`: channels by keys.
    dk: &'a mut [Block],
    dv: &'a mut [Block],
    /// Of a block of queries, `[2][across]`.
    q: &'a mut [Tile],
    dy: &'a mut [Tile],
    /// `[across][2][TOGETHER]`: channels by queries.
    q_turned: &'a mut [Tile],
    dy_turned: &'a mut [Tile],
    /// Of a block of queries, `[along]`.
    pub(super) scores: &'a mut [Block],
    pub(super) dp: &'a mut [Block],
    /// `[2][along]`: queries by keys.
    pub(super) ds: &'a mut [Tile],
    /// `[along][TOGETHER]`: pairs of queries, by keys.
    pub(super) p_pairs: &'a mut [[Tile; 2]],
    pub(super) ds_pairs: &'a mut [[Tile; 2]],
}

/// Bytes of scratch for each thread.
pub(super) fn scratch(tokens: usize, head_dim: usize) -> usize {
    let (along, across) = (tokens.div_ceil(BLOCK), Cache::padded_head(head_dim) / BLOCK);
    let tiles = 6 * along * across + 4 * across + 4 * across * TOGETHER + 2 * along + 4 * along * TOGETHER;
    64 + tiles * size_of::<Tile>() + (2 * along * across + 2 * along) * size_of::<Block>()
}

impl Parts<'_> {
    /// # Safety
    /// `memory` has room ([`scratch`]), and nobody else uses it.
    unsafe fn new(memory: Place<u8>, along: usize, across: usize) -> Self {
        let start = memory.pointer();
        // SAFETY: 64 bytes more than the parts were asked for.
        let mut next = unsafe { start.add(start.align_offset(64)) };
        /// # Safety
        /// As `new`; any bits are a value of `T`.
        unsafe fn take<'a, T>(next: &mut *mut u8, count: usize) -> &'a mut [T] {
            // SAFETY: by the caller's promise.
            unsafe {
                let part = std::slice::from_raw_parts_mut(next.cast::<T>(), count);
                *next = next.add(size_of_val(part));
                part
            }
        }
        // SAFETY: as `scratch` counts them; numbers take any bits.
        unsafe {
            let next = &mut next;
            Parts {
                along,
                across,
                keys: take(next, along * across),
                values: take(next, along * across),
                channels: take(next, along * across),
                dk: take(next, along * across),
                dv: take(next, along * across),
                q: take(next, 2 * across),
                dy: take(next, 2 * across),
                q_turned: take(next, 2 * across * TOGETHER),
                dy_turned: take(next, 2 * across * TOGETHER),
                scores: take(next, along),
                dp: take(next, along),
                ds: take(next, 2 * along),
                p_pairs: take(next, along * TOGETHER),
                ds_pairs: take(next, along * TOGETHER),
            }
        }
    }
}

/// One head of keys and values with all its queries.
///
/// # Safety
/// AMX is there; this thread alone writes the head's outputs and `scratch`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn head(task: &Sample, kv: usize, scratch: Place<u8>) {
    let (along, across) = (task.tokens.div_ceil(BLOCK), Cache::padded_head(task.head_dim) / BLOCK);
    let group_size = task.heads / task.kv_heads;
    // SAFETY: by the caller's promise.
    unsafe {
        let session = Session::new();
        let parts = &mut Parts::new(scratch, along, across);
        lay_out_keys(task, kv, parts);
        for head in kv * group_size..(kv + 1) * group_size {
            for first in (0..along).step_by(TOGETHER) {
                let blocks = first..along.min(first + TOGETHER);
                for block in blocks.clone() {
                    lay_out_queries(task, head, block, block - first, parts);
                    let seen = seen(task, block);
                    multiply(&session, seen.clone(), parts);
                    soften(task, block, block - first, seen.clone(), parts);
                    queries_back(&session, task, head, block, seen, parts);
                }
                keys_back(&session, task, blocks, parts);
            }
        }
        store(task, task.dk, kv, across, parts.dk);
        store(task, task.dv, kv, across, parts.dv);
    }
}

/// Blocks of keys that a block of queries sees.
fn seen(task: &Sample, block: usize) -> Range<usize> {
    let low = task.window.map_or(0, |window| (block * BLOCK + 1).saturating_sub(window));
    low / BLOCK..block + 1
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn lay_out_keys(task: &Sample, kv: usize, parts: &mut Parts<'_>) {
    let (along, across) = (parts.along, parts.across);
    let mut rows = [Tile::ZERO; 2];
    for block in 0..along {
        for c in 0..across {
            let at = block * across + c;
            // SAFETY: nobody writes keys and values.
            unsafe {
                gather(task, task.k, (task.kv_heads, kv), block, c, &mut rows);
                rows.iter().zip(&mut parts.keys[at]).for_each(|(rows, out)| turn(rows, out));
                pair([&rows[0], &rows[1]], &mut parts.channels[c * along + block]);
                gather(task, task.v, (task.kv_heads, kv), block, c, &mut rows);
                rows.iter().zip(&mut parts.values[at]).for_each(|(rows, out)| turn(rows, out));
            }
        }
    }
    parts.dk.fill_with(Block::default);
    parts.dv.fill_with(Block::default);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn lay_out_queries(task: &Sample, head: usize, block: usize, place: usize, parts: &mut Parts<'_>) {
    let across = parts.across;
    let [mut rows, mut pairs] = [[Tile::ZERO; 2]; 2];
    let sides =
        [(task.q, &mut parts.q, &mut parts.q_turned), (task.dout, &mut parts.dy, &mut parts.dy_turned)];
    for (source, tiles, turned) in sides {
        for c in 0..across {
            // SAFETY: nobody writes queries and dy.
            unsafe { gather(task, source, (task.heads, head), block, c, &mut rows) };
            [tiles[c], tiles[across + c]] = rows;
            pair([&rows[0], &rows[1]], &mut pairs);
            for (half, pairs) in pairs.iter().enumerate() {
                turn(pairs, &mut turned[(2 * c + half) * TOGETHER + place]);
            }
        }
    }
}

/// Square `c` of a block of tokens of a head.
///
/// # Safety
/// Nobody writes the source.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn gather(
    task: &Sample,
    source: Place<f32>,
    (heads, head): (usize, usize),
    block: usize,
    c: usize,
    out: &mut [Tile; 2],
) {
    let (width, first) = (task.head_dim, block * BLOCK);
    let x = source.pointer().wrapping_add((first * heads + head) * width + c * BLOCK);
    let (tokens, channels) = (task.tokens - first, width.saturating_sub(c * BLOCK));
    // SAFETY: so many tokens and channels exist.
    unsafe { square::of_values(x, heads * width, tokens, channels, out) };
}

/// Scores and dP of a block of queries.
///
/// # Safety
/// The parts are laid out.
unsafe fn multiply(session: &Session, seen: Range<usize>, parts: &mut Parts<'_>) {
    let across = parts.across;
    let second = across * size_of::<Tile>();
    for block in seen {
        let at = block * across..(block + 1) * across;
        let (keys, values) = (&parts.keys[at.clone()], &parts.values[at]);
        // SAFETY: `across` tiles twice, and as many times two.
        unsafe {
            let (q, dy) = (parts.q.as_ptr().cast(), parts.dy.as_ptr().cast());
            session.product_2x2(q, second, keys.as_ptr().cast(), across, &mut parts.scores[block]);
            session.product_2x2(dy, second, values.as_ptr().cast(), across, &mut parts.dp[block]);
        }
    }
}

/// dQ of a block of queries.
///
/// # Safety
/// dS is there; this thread alone writes the outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn queries_back(
    session: &Session,
    task: &Sample,
    head: usize,
    block: usize,
    seen: Range<usize>,
    parts: &mut Parts<'_>,
) {
    let second = parts.along * size_of::<Tile>();
    let mut sums = Block::default();
    for c in 0..parts.across {
        let keys = &parts.channels[c * parts.along..][seen.clone()];
        // SAFETY: as many tiles of dS twice; rows and channels that exist.
        unsafe {
            let ds = parts.ds[seen.start..].as_ptr().cast();
            session.product_2x2(ds, second, keys.as_ptr().cast(), seen.len(), &mut sums);
            for (r, sums) in
                sums.0.iter().flat_map(|pair| (0..SIDE).map(|r| [&pair[0][r], &pair[1][r]])).enumerate()
            {
                let t = block * BLOCK + r;
                if t < task.tokens {
                    put_row(task.dq, (t * task.heads + head) * task.head_dim, task.head_dim, c, sums);
                }
            }
        }
    }
}

/// Square `c` of a row of a head that begins at `at`.
///
/// # Safety
/// The row exists, and this thread alone writes it.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put_row(out: Place<f32>, at: usize, head_dim: usize, c: usize, values: [&[f32; SIDE]; 2]) {
    for (half, values) in values.into_iter().enumerate() {
        let first = c * BLOCK + half * SIDE;
        let count = head_dim.saturating_sub(first).min(SIDE);
        // SAFETY: `count` channels from `first` on exist.
        unsafe { out.slice_mut(at + first.min(head_dim), count) }.copy_from_slice(&values[..count]);
    }
}

/// dK^T and dV^T have the shares of these blocks of queries added.
///
/// # Safety
/// P and dS of these blocks are there.
unsafe fn keys_back(session: &Session, task: &Sample, blocks: Range<usize>, parts: &mut Parts<'_>) {
    let second = TOGETHER * size_of::<Tile>();
    for key in seen(task, blocks.start).start..blocks.end {
        // Queries stand at their key or after it, and within the window.
        let from = key.max(blocks.start);
        let to = blocks
            .clone()
            .rev()
            .find(|block| seen(task, *block).contains(&key))
            .map_or(from, |last| last + 1);
        if from >= to {
            continue;
        }
        let place = from - blocks.start;
        for c in 0..parts.across {
            let (at, turned) = (key * parts.across + c, 2 * c * TOGETHER + place);
            let pairs = key * TOGETHER + place;
            // SAFETY: `to - from` tiles of both, side by side.
            unsafe {
                let (q, ds) = (parts.q_turned[turned..].as_ptr(), parts.ds_pairs[pairs..].as_ptr());
                session.add_2x2(q.cast(), second, ds.cast(), to - from, &mut parts.dk[at]);
                let (dy, p) = (parts.dy_turned[turned..].as_ptr(), parts.p_pairs[pairs..].as_ptr());
                session.add_2x2(dy.cast(), second, p.cast(), to - from, &mut parts.dv[at]);
            }
        }
    }
}

/// Sums of channels by keys, turned to where they belong.
///
/// # Safety
/// This thread alone writes the head's outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store(task: &Sample, out: Place<f32>, kv: usize, across: usize, sums: &[Block]) {
    let [mut low, mut high] = [[[0.0f32; SIDE]; SIDE]; 2];
    for (index, block) in sums.iter().enumerate() {
        let (key, c) = (index / across * BLOCK, index % across);
        for side in 0..2 {
            for (half, turned) in [&mut low, &mut high].into_iter().enumerate() {
                let from = block.0[half][side].as_ptr();
                // SAFETY: 16 lines of 16 values each.
                unsafe { vector::transpose(from.cast(), turned.as_mut_ptr().cast()) };
            }
            for (t, rows) in (key + side * SIDE..task.tokens).zip(low.iter().zip(&high)) {
                let at = (t * task.kv_heads + kv) * task.head_dim;
                // SAFETY: a row of the head.
                unsafe { put_row(out, at, task.head_dim, c, rows.into()) };
            }
        }
    }
}
