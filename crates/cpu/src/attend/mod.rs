//! Attention of 16 queries of one head at a time: all scores, their softmax, the weighted sum.
//!
//! scratch of a thread: scores f32 `[16][keys]`, probabilities bf16 `[16][keys]`,
//! queries bf16 `[16][width]`, sums f32 `[16][width]`, decoded keys bf16 `[64][width]`

#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod gradient;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::ops::Range;

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{KEYS, PANEL, WIDEST_HEAD};
use halfbyte_ops::{Cache, CacheFormat, Result, Rows, Sight, attend, math};

use crate::Cpu;
use crate::arena::Place;
use crate::isa::{Isa, for_isa};
use crate::keys::{Side, Tiles};
use crate::linear::group;
use crate::narrow::Output;
#[cfg(target_arch = "x86_64")]
use crate::square::SQUARE;

/// Queries of a chunk of work.
const QUERIES: usize = 16;

/// Between rows of scores: rows a power of two apart would push each other out of the cache.
const PADDING: usize = KEYS;

/// Bytes of scratch for each thread.
pub(crate) fn scratch(context: usize, head_dim: usize) -> usize {
    let keys = context.next_multiple_of(KEYS) + PADDING;
    let width = Cache::padded_head(head_dim);
    QUERIES * (keys * 6 + width * 2 + width.max(64) * 4) + 4 * width * PANEL * 2
}

/// One call, with its pointers.
struct Task<'a> {
    isa: Isa,
    tiles: Tiles,
    cache: &'a [u8],
    q: Place<f32>,
    out: Output,
    heads: usize,
    group: usize,
    head_dim: usize,
    sight: Sight,
}

/// A block of queries of one head.
struct Block {
    head: usize,
    first: usize,
    count: usize,
    /// Tiles of 32 keys that any of them sees.
    key_tiles: Range<usize>,
}

pub(crate) fn store(cpu: &mut Cpu, k: Rows, v: Rows, start: usize, cache: &Cache) -> Result<()> {
    attend::check_store(k, v, start, cache)?;
    let tiles = Tiles::new(cache);
    let place = cpu.arena.place::<u8>("store", cache.buffer)?;
    let sources = [(Side::Keys, cpu.arena.rows("store", k)?), (Side::Values, cpu.arena.rows("store", v)?)];
    let (isa, tokens, head_dim, kv_heads) = (cpu.isa, k.rows, cache.head_dim, cache.kv_heads);
    #[cfg(target_arch = "x86_64")]
    let in_squares = isa == Isa::Amx && cache.format == CacheFormat::Bf16 && head_dim.is_multiple_of(SQUARE);
    // A head's keys or values are one chunk, so no two threads write the same tile.
    let chunk = |chunk: usize, _| {
        let (side, source) = sources[chunk % 2];
        let head = chunk / 2;
        // SAFETY: heads and sides lie apart in the cache; the sources are not written meanwhile.
        let memory = unsafe { place.slice_mut(0, cache.buffer.bytes) };
        let mut t = 0;
        while t < tokens {
            #[cfg(target_arch = "x86_64")]
            if in_squares && (start + t).is_multiple_of(KEYS) && tokens - t >= KEYS {
                // SAFETY: AMX was found; 32 rows of this head.
                unsafe {
                    let x = source.pointer().add((t * kv_heads + head) * head_dim);
                    tiles.write_squares(memory, side, head, start + t, x, kv_heads * head_dim);
                }
                t += KEYS;
                continue;
            }
            // SAFETY: row t, head `head` of the source.
            let x = unsafe { source.slice((t * kv_heads + head) * head_dim, head_dim) };
            store_one(isa, &tiles, memory, side, head, start + t, x);
            t += 1;
        }
    };
    if tokens == 1 {
        (0..2 * kv_heads).for_each(|i| chunk(i, 0));
    } else {
        cpu.pool.run(2 * kv_heads, &chunk);
    }
    Ok(())
}

for_isa! {
fn store_one(tiles: &Tiles, memory: &mut [u8], side: Side, head: usize, position: usize, x: &[f32]) {
    tiles.write(memory, side, head, position, x)
}
}

pub(crate) fn forward(cpu: &mut Cpu, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
    attend::check_shapes(q, cache, sight, out)?;
    let heads = q.columns / cache.head_dim;
    let seen = sight.start + q.rows;
    let need = (0, scratch(seen, cache.head_dim));
    let scratch = cpu.scratch(need, "attend")?;
    let memory = cpu.arena.place::<u8>("attend", cache.buffer)?;
    let task = Task {
        isa: cpu.isa,
        tiles: Tiles::new(cache),
        // SAFETY: bounds checked; nobody writes the cache meanwhile (`&mut self`).
        cache: unsafe { memory.slice(0, cache.buffer.bytes) },
        q: cpu.arena.rows("attend", q)?,
        out: cpu.arena.output("attend", out)?,
        heads,
        group: heads / cache.kv_heads,
        head_dim: cache.head_dim,
        sight,
    };
    let blocks = q.rows.div_ceil(QUERIES);
    cpu.pool.run(blocks * heads, &|chunk, thread| {
        // The latest queries see most: they go first, so that no thread is left with them.
        let first = (blocks - 1 - chunk / heads) * QUERIES;
        let count = QUERIES.min(q.rows - first);
        let low = task.visible(first).start / KEYS;
        let high = (sight.start + first + count).div_ceil(KEYS);
        let block = Block { head: chunk % heads, first, count, key_tiles: low..high };
        // SAFETY: this block's outputs and this thread's scratch are its own.
        unsafe { task.block(&block, scratch.of_thread(thread)) };
    });
    Ok(())
}

impl Task<'_> {
    /// Keys that query `t` sees.
    fn visible(&self, t: usize) -> Range<usize> {
        let end = self.sight.start + t + 1;
        self.sight.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// # Safety
    /// This thread alone writes the block's outputs and `scratch`.
    unsafe fn block(&self, block: &Block, scratch: Place<u8>) {
        let keys = block.key_tiles.end * KEYS + PADDING;
        // SAFETY: `scratch` has room for these parts one after the other (see `scratch`).
        let (scores, rest) = unsafe {
            let scores = Place(scratch.0.cast::<f32>());
            (scores, scratch.0.add(QUERIES * keys * 4))
        };
        #[cfg(target_arch = "x86_64")]
        if self.isa == Isa::Amx && self.tiles.format != CacheFormat::F32 && block.count > 1 {
            // SAFETY: by the caller's promise; AMX is there.
            unsafe { tiled::block(self, block, scores, rest, keys) };
            return;
        }
        let _ = rest;
        for i in 0..block.count {
            let t = block.first + i;
            let at = (t * self.heads + block.head) * self.head_dim;
            // SAFETY: query t, and a row of scores of this thread.
            let (q, scores) = unsafe { (self.q.slice(at, self.head_dim), scores.slice_mut(0, keys)) };
            let mut out = [0.0; WIDEST_HEAD];
            let out = &mut out[..self.head_dim];
            query(self.isa, self, q, t, block.head, scores, out);
            // SAFETY: by the caller's promise.
            unsafe { self.out.put(t, block.head * self.head_dim, out) };
        }
    }

    /// One query in lanes; `sum` adds the group of 32 inner positions of a tile, from `first` on.
    #[inline(always)]
    fn query(&self, q: &[f32], t: usize, head: usize, p: &mut [f32], out: &mut [f32], sum: impl AddGroup) {
        let narrow = self.tiles.format != CacheFormat::F32;
        let mut query = [0.0f32; WIDEST_HEAD];
        let query = &mut query[..self.tiles.width];
        for (to, from) in query.iter_mut().zip(q) {
            *to = if narrow { bf16::round(*from) } else { *from };
        }
        let visible = self.visible(t);
        let tiles = visible.start / KEYS..visible.end.div_ceil(KEYS);
        let head = head / self.group;
        let (tile_bytes, keys) = (self.tiles.key_tile(), &self.cache[self.tiles.head(Side::Keys, head)..]);
        for tile in tiles.start * 2..tiles.end * 2 {
            let mut scores = [0.0f32; PANEL];
            let bytes = &keys[tile * tile_bytes..][..tile_bytes];
            for first in (0..self.tiles.width).step_by(32) {
                sum.add(&self.tiles, Side::Keys, bytes, first, &query[first..first + 32], &mut scores);
            }
            p[tile * PANEL..][..PANEL].copy_from_slice(&scores);
        }
        let span = tiles.start * KEYS..tiles.end * KEYS;
        let seen = visible.start - span.start..visible.end - span.start;
        let total = softmax(&mut p[span.clone()], seen, self.scale());
        if narrow {
            p[span].iter_mut().for_each(|p| *p = bf16::round(*p));
        }
        let values = &self.cache[self.tiles.head(Side::Values, head)..];
        for (channel, out) in out.chunks_mut(PANEL).enumerate() {
            let mut mixed = [0.0f32; PANEL];
            for tile in tiles.clone() {
                let bytes = &values[self.tiles.values_at(tile, channel)..][..self.tiles.value_tile()];
                sum.add(&self.tiles, Side::Values, bytes, 0, &p[tile * KEYS..][..KEYS], &mut mixed);
            }
            for (out, mixed) in out.iter_mut().zip(mixed) {
                *out = mixed * total;
            }
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// Scores to e^(score * scale - max), zero where not visible; gives 1 / sum. Whole tiles of keys.
#[inline(always)]
fn softmax(p: &mut [f32], visible: Range<usize>, scale: f32) -> f32 {
    // e^-inf is exactly zero.
    p[..visible.start].fill(f32::NEG_INFINITY);
    p[visible.end..].fill(f32::NEG_INFINITY);
    // Scaling keeps the order, so the largest may be scaled alone.
    let top = math::max(p) * scale;
    p.iter_mut().for_each(|p| *p = math::exp(*p * scale - top));
    1.0 / math::sum(p)
}

/// One query by the kernels of the set.
fn query(isa: Isa, task: &Task<'_>, q: &[f32], t: usize, head: usize, p: &mut [f32], out: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX-512 was found.
        Isa::Avx512 | Isa::Amx => unsafe { avx512::query(task, q, t, head, p, out) },
        _ => query_in_lanes(isa, task, q, t, head, p, out),
    }
}

for_isa! {
fn query_in_lanes(task: &Task<'_>, q: &[f32], t: usize, head: usize, p: &mut [f32], out: &mut [f32]) {
    task.query(q, t, head, p, out, InLanes)
}
}

/// How a group of 32 inner positions of a tile is added. A trait, since a function that is handed over is called through
/// one that has not the set's instructions.
trait AddGroup {
    fn add(&self, tiles: &Tiles, side: Side, tile: &[u8], first: usize, x: &[f32], sum: &mut [f32; PANEL]);
}

impl<F: Fn(&Tiles, Side, &[u8], usize, &[f32], &mut [f32; PANEL])> AddGroup for F {
    #[inline(always)]
    fn add(&self, tiles: &Tiles, side: Side, tile: &[u8], first: usize, x: &[f32], sum: &mut [f32; PANEL]) {
        self(tiles, side, tile, first, x, sum);
    }
}

/// Decoded first.
struct InLanes;

impl AddGroup for InLanes {
    #[inline(always)]
    fn add(&self, tiles: &Tiles, side: Side, tile: &[u8], first: usize, x: &[f32], sum: &mut [f32; PANEL]) {
        let mut decoded = [[0.0f32; PANEL]; 32];
        tiles.decode(side, tile, first, &mut decoded);
        group(x, &decoded, sum);
    }
}
