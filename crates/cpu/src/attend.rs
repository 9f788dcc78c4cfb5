//! Attention of 16 queries of one head at a time: all scores, their softmax, the weighted sum.
//!
//! scratch of a thread: scores f32 `[16][keys]`, probabilities bf16 `[16][keys]`,
//! queries bf16 `[16][width]`, one tile of sums, one decoded key or value tile

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{KEYS, PANEL, WIDEST_HEAD};
use halfbyte_ops::{Cache, CacheFormat, Result, Rows, Sight, attend, math};

use crate::Cpu;
use crate::arena::Place;
use crate::isa::Isa;
use crate::keys::{Side, Tiles};
use crate::linear::group;

/// Queries of a chunk of work.
const QUERIES: usize = 16;

/// Bytes of scratch for each thread.
pub(crate) fn scratch(context: usize, head_dim: usize) -> usize {
    let keys = context.next_multiple_of(KEYS);
    let width = Cache::padded_head(head_dim);
    QUERIES * (keys * 6 + width * 4) + 1024 + width * PANEL * 2
}

/// One call, with its pointers.
struct Task<'a> {
    isa: Isa,
    tiles: Tiles,
    cache: &'a [u8],
    q: Place<f32>,
    out: Place<f32>,
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
    key_tiles: std::ops::Range<usize>,
}

pub(crate) fn store(cpu: &mut Cpu, k: Rows, v: Rows, start: usize, cache: &Cache) -> Result<()> {
    attend::check_store(k, v, start, cache)?;
    let tiles = Tiles::new(cache);
    let place = cpu.arena.place::<u8>("store", cache.buffer)?;
    let sources = [(Side::Keys, cpu.arena.rows("store", k)?), (Side::Values, cpu.arena.rows("store", v)?)];
    let (tokens, head_dim, kv_heads) = (k.rows, cache.head_dim, cache.kv_heads);
    // A head's keys or values are one chunk, so no two threads write the same tile.
    let chunk = |chunk: usize, _| {
        let (side, source) = sources[chunk % 2];
        let head = chunk / 2;
        // SAFETY: heads and sides lie apart in the cache; the sources are not written meanwhile.
        let memory = unsafe { place.slice_mut(0, cache.buffer.bytes) };
        for t in 0..tokens {
            // SAFETY: row t, head `head` of the source.
            let x = unsafe { source.slice((t * kv_heads + head) * head_dim, head_dim) };
            tiles.write(memory, side, head, start + t, x);
        }
    };
    if tokens == 1 {
        (0..2 * kv_heads).for_each(|i| chunk(i, 0));
    } else {
        cpu.pool.run(2 * kv_heads, &chunk);
    }
    Ok(())
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
        out: cpu.arena.rows("attend", out)?,
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
    fn visible(&self, t: usize) -> std::ops::Range<usize> {
        let end = self.sight.start + t + 1;
        self.sight.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// # Safety
    /// This thread alone writes the block's outputs and `scratch`.
    unsafe fn block(&self, block: &Block, scratch: Place<u8>) {
        let keys = block.key_tiles.end * KEYS;
        // SAFETY: `scratch` has room for these parts one after the other (see `scratch`).
        let (scores, rest) = unsafe {
            let scores = Place(scratch.0.cast::<f32>());
            (scores, scratch.0.add(QUERIES * keys * 4))
        };
        #[cfg(target_arch = "x86_64")]
        if self.isa == Isa::Amx && self.tiles.format != CacheFormat::F32 && block.count > 1 {
            // SAFETY: by the caller's promise; AMX is there.
            unsafe { self.block_tiled(block, scores, rest, keys) };
            return;
        }
        let _ = rest;
        let narrow = self.tiles.format != CacheFormat::F32;
        for i in 0..block.count {
            let t = block.first + i;
            let at = (t * self.heads + block.head) * self.head_dim;
            // SAFETY: query t, its output, and a row of scores, all of this thread.
            let (q, out, scores) = unsafe {
                (
                    self.q.slice(at, self.head_dim),
                    self.out.slice_mut(at, self.head_dim),
                    scores.slice_mut(0, keys),
                )
            };
            self.isa.run(|| self.query(q, t, block, narrow, scores, out));
        }
    }

    /// One query in lanes.
    #[inline(always)]
    fn query(&self, q: &[f32], t: usize, block: &Block, narrow: bool, p: &mut [f32], out: &mut [f32]) {
        let mut query = [0.0f32; WIDEST_HEAD];
        let query = &mut query[..self.tiles.width];
        for (to, from) in query.iter_mut().zip(q) {
            *to = if narrow { bf16::round(*from) } else { *from };
        }
        let visible = self.visible(t);
        let tiles = visible.start / KEYS..visible.end.div_ceil(KEYS);
        let mut decoded = [[0.0f32; PANEL]; 32];
        let head = block.head / self.group;
        let (tile_bytes, keys) = (self.tiles.key_tile(), &self.cache[self.tiles.head(Side::Keys, head)..]);
        for tile in tiles.start * 2..tiles.end * 2 {
            let mut sum = [0.0f32; PANEL];
            let bytes = &keys[tile * tile_bytes..][..tile_bytes];
            for first in (0..self.tiles.width).step_by(32) {
                self.tiles.decode(Side::Keys, bytes, first, &mut decoded);
                group(&query[first..first + 32], &decoded, &mut sum);
            }
            p[tile * PANEL..][..PANEL].copy_from_slice(&sum);
        }
        let span = tiles.start * KEYS..tiles.end * KEYS;
        let total =
            softmax(&mut p[span.clone()], visible.start - span.start..visible.end - span.start, self.scale());
        if narrow {
            p[span].iter_mut().for_each(|p| *p = bf16::round(*p));
        }
        let values = &self.cache[self.tiles.head(Side::Values, head)..];
        for (channel, out) in out.chunks_mut(PANEL).enumerate() {
            let mut sum = [0.0f32; PANEL];
            for tile in tiles.clone() {
                let bytes = &values[self.tiles.values_at(tile, channel)..][..self.tiles.value_tile()];
                self.tiles.decode(Side::Values, bytes, 0, &mut decoded);
                group(&p[tile * KEYS..][..KEYS], &decoded, &mut sum);
            }
            for (out, sum) in out.iter_mut().zip(sum) {
                *out = sum * total;
            }
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// Scores to e^(score * scale - max), zero where not visible; gives 1 / sum.
#[inline(always)]
fn softmax(p: &mut [f32], visible: std::ops::Range<usize>, scale: f32) -> f32 {
    p[..visible.start].fill(0.0);
    p[visible.end..].fill(0.0);
    let seen = &mut p[visible.clone()];
    seen.iter_mut().for_each(|p| *p *= scale);
    let top = math::max(seen);
    seen.iter_mut().for_each(|p| *p = math::exp(*p - top));
    1.0 / math::sum(p)
}

#[cfg(target_arch = "x86_64")]
impl Task<'_> {
    /// The block in AMX tiles.
    ///
    /// # Safety
    /// AMX is there; this thread alone writes the outputs, `scores` and what follows.
    unsafe fn block_tiled(&self, block: &Block, scores: Place<f32>, rest: *mut u8, keys: usize) {
        use crate::tiles::{BYTES, SIDE, Session};
        let width = self.tiles.width;
        // SAFETY: the parts of scratch, one after the other.
        let (probabilities, queries, sums, tile_scratch) = unsafe {
            let queries = rest.add(QUERIES * keys * 2);
            let sums = queries.add(QUERIES * width * 2);
            (
                Place(rest.cast::<u16>()),
                Place(queries.cast::<u16>()),
                Place(sums.cast::<f32>()),
                Place(sums.add(BYTES)),
            )
        };
        // SAFETY: 16 padded queries.
        self.gather(block, unsafe { queries.slice_mut(0, QUERIES * width) });
        let head = block.head / self.group;
        // SAFETY: AMX is there by the caller's promise.
        let session = unsafe { Session::new() };
        let all = &self.cache[self.tiles.head(Side::Keys, head)..];
        let tile_bytes = self.tiles.key_tile();
        for tile in block.key_tiles.start * 2..block.key_tiles.end * 2 {
            let bytes = &all[tile * tile_bytes..][..tile_bytes];
            let b = self.tile(Side::Keys, bytes, width, tile_scratch);
            // SAFETY: 16 queries of `width`, as many groups of keys, 16 scores of each row.
            unsafe {
                let out = scores.0.add(tile * PANEL);
                session.product(queries.0, width * 2, b, BYTES, width / 32, out, keys * 4);
            }
        }
        let mut totals = [0.0f32; QUERIES];
        for (i, total) in totals.iter_mut().enumerate() {
            // SAFETY: row i of scores and probabilities.
            let (p, narrow) =
                unsafe { (scores.slice_mut(i * keys, keys), probabilities.slice_mut(i * keys, keys)) };
            let span = block.key_tiles.start * KEYS..keys;
            let (p, narrow) = (&mut p[span.clone()], &mut narrow[span.clone()]);
            if i < block.count {
                let visible = self.visible(block.first + i);
                let visible = visible.start - span.start..visible.end - span.start;
                *total = self.isa.run(|| {
                    let total = softmax(p, visible, self.scale());
                    for (narrow, p) in narrow.iter_mut().zip(p.iter()) {
                        *narrow = bf16::encode(*p);
                    }
                    total
                });
            } else {
                narrow.fill(0);
            }
        }
        let values = &self.cache[self.tiles.head(Side::Values, head)..];
        let key_tiles = block.key_tiles.len();
        for channel in 0..self.head_dim.div_ceil(PANEL) {
            let first = self.tiles.values_at(block.key_tiles.start, channel);
            let step = self.tiles.values_at(1, 0);
            // SAFETY: as above; the tiles of one channel lie `step` apart.
            unsafe {
                let p = probabilities.0.add(block.key_tiles.start * KEYS);
                if self.tiles.format == CacheFormat::Bf16 {
                    let last = first + (key_tiles - 1) * step + self.tiles.value_tile();
                    let b = values[first..last].as_ptr();
                    session.product(p, keys * 2, b, step, key_tiles, sums.0, 64);
                } else {
                    // Decoded into the rows of scores, which are used up by now.
                    let decoded = Place(scores.0.cast::<u8>());
                    for tile in 0..key_tiles {
                        let bytes = &values[first + tile * step..][..self.tiles.value_tile()];
                        self.tile(Side::Values, bytes, KEYS, Place(decoded.0.add(tile * BYTES)));
                    }
                    session.product(p, keys * 2, decoded.0, BYTES, key_tiles, sums.0, 64);
                }
                self.finish(block, channel, &totals, sums.slice(0, SIDE * SIDE));
            }
        }
    }

    /// A tile as bf16 pairs: where it lies, or decoded into `scratch`.
    fn tile(&self, side: Side, bytes: &[u8], inner: usize, scratch: Place<u8>) -> *const u8 {
        if self.tiles.format == CacheFormat::Bf16 {
            return bytes.as_ptr();
        }
        self.isa.run(|| {
            let mut values = [[0.0f32; PANEL]; 32];
            for first in (0..inner).step_by(32) {
                self.tiles.decode(side, bytes, first, &mut values);
                // SAFETY: one tile for every 32 inner positions, of this thread.
                let out = unsafe { scratch.slice_mut(first * PANEL * 2, 32 * PANEL * 2) };
                let (rows, _) = out.as_chunks_mut::<64>();
                for (row, pair) in rows.iter_mut().zip(values.chunks_exact(2)) {
                    for (lane, out) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        // Exact in bf16: the upper half is all there is.
                        let (low, high) =
                            (pair[0][lane].to_bits() >> 16, pair[1][lane].to_bits() & 0xffff_0000);
                        *out = (low | high).to_le_bytes();
                    }
                }
            }
        });
        scratch.0
    }

    fn gather(&self, block: &Block, queries: &mut [u16]) {
        for (i, row) in queries.chunks_exact_mut(self.tiles.width).enumerate() {
            row.fill(0);
            if i < block.count {
                let at = ((block.first + i) * self.heads + block.head) * self.head_dim;
                // SAFETY: the query of this head; nobody writes queries.
                let q = unsafe { self.q.slice(at, self.head_dim) };
                for (to, from) in row.iter_mut().zip(q) {
                    *to = bf16::encode(*from);
                }
            }
        }
    }

    /// # Safety
    /// This thread alone writes the block's outputs.
    unsafe fn finish(&self, block: &Block, channel: usize, totals: &[f32; QUERIES], sums: &[f32]) {
        let first = channel * PANEL;
        let count = PANEL.min(self.head_dim - first);
        for i in 0..block.count {
            let at = ((block.first + i) * self.heads + block.head) * self.head_dim + first;
            // SAFETY: by the caller's promise.
            let out = unsafe { self.out.slice_mut(at, count) };
            for (out, sum) in out.iter_mut().zip(&sums[i * PANEL..]) {
                *out = sum * totals[i];
            }
        }
    }
}
