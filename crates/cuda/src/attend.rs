//! Keys and values into the cache, and attention over it. See `ops::attend`, `kernels/cache.cuh`.

use std::cmp::Reverse;
use std::ops::Range;

use halfbyte_ops::tensor::{KEYS, WIDEST_HEAD};
use halfbyte_ops::{Attention, Buffer, Cache, CacheFormat, Fresh, Heads, Result, Rows, Sight, attend, heads};

use crate::chain::{Kind, Stage};
use crate::heads::MANY;
use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, Device};

/// Widest head, as stored, of the kernels that are not `plain`.
const USUAL_HEAD: usize = 128;
/// Queries of a block on tensor cores (of warpgroups see [`of_warpgroups`]), and keys of a tile.
pub(crate) const BLOCK: usize = 128;
pub(crate) const TILE: usize = 64;
/// Most queries whose keys are split among blocks; keys of a split, and query heads of a block.
const FEW: usize = 8;
const SPLIT: usize = 64;
const HEADS: usize = 8;

pub(crate) fn store(cuda: &mut Cuda, keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()> {
    attend::check_store(keys, values, start, cache)?;
    let (k, v) = (cuda.rows("store", keys)?, cuda.rows("store", values)?);
    let to = cuda.pointer("store", cache.buffer)?;
    let eights = keys.rows * cache.kv_heads * Cache::padded_head(cache.head_dim) / 8;
    let grid = Grid { blocks: (eights.div_ceil(128) as u32, 2, 1), ..Grid::line(1, 128) };
    let Cache { kv_heads, head_dim, capacity, .. } = *cache;
    let format = code(cache.format);
    cuda.launch("store", grid, args![k, v, keys.rows, start, to, format, kv_heads, head_dim, capacity])
}

/// Bytes of scratch for few queries over a context.
pub(crate) fn scratch(queries: usize, heads: usize, head_dim: usize, context: usize) -> usize {
    queries.min(FEW) * heads * context.div_ceil(SPLIT) * (head_dim + 2) * 4
}

/// Bytes of scratch for the keys and values of all samples at once.
pub(crate) fn samples_scratch(tokens: usize, kv_heads: usize, head_dim: usize) -> usize {
    Cache::bytes(CacheFormat::Bf16, kv_heads, head_dim, tokens.next_multiple_of(KEYS))
}

/// Whether products of warpgroups make this (`kernels/warpgroup.cuh`): for heads that are not narrow, and whole eights.
pub(crate) fn by_warpgroups(cuda: &Cuda, head_dim: usize) -> bool {
    let fits = (TILE + 1..=USUAL_HEAD).contains(&head_dim) && head_dim.is_multiple_of(8);
    fits && cuda.device.properties.capability == (9, 0)
}

/// The query heads of a block of two warpgroups, and the queries of each: two heads that share their keys, or 128 queries
/// of one where such heads are odd in number.
fn of_warpgroups(heads: usize, kv_heads: usize) -> (usize, usize) {
    if (heads / kv_heads).is_multiple_of(2) { (2, BLOCK / 2) } else { (1, BLOCK) }
}

/// Samples in blocks of so many rows: a sample's first row, the block's, and the row after the sample's last; those
/// that see the most first, so that the last ones end together.
pub(crate) fn blocks_of(samples: &[Range<usize>], rows: usize) -> Vec<[u32; 3]> {
    let of_sample = |sample: &Range<usize>| {
        let (start, end) = (sample.start as u32, sample.end as u32);
        (start..end).step_by(rows).map(move |first| [start, first, end])
    };
    let mut blocks: Vec<[u32; 3]> = samples.iter().flat_map(of_sample).collect();
    blocks.sort_by_key(|[start, first, _]| Reverse(first - start));
    blocks
}

/// An attention's pointers and sizes, for whichever kernels fit.
struct Task {
    q: DevicePtr,
    /// Only on tensor cores.
    narrow_q: bool,
    cache: DevicePtr,
    /// Keys and values as narrow rows, instead of those in the cache; only on tensor cores.
    rows: Option<[DevicePtr; 2]>,
    out: DevicePtr,
    queries: usize,
    heads: usize,
    start: usize,
    /// Zero stands for none: the op takes none that is empty.
    window: usize,
    narrow: bool,
    /// Of [`blocks_of`], on the device, and how many; none where all queries are one sample.
    blocks: Option<(DevicePtr, usize)>,
}

/// Whether tensor cores take this: heads that are not too wide, rounded keys, rows that are read and written by pairs.
fn fits_tiles(cache: &Cache, q: DevicePtr, out: DevicePtr) -> bool {
    usual(cache) && cache.format != CacheFormat::F32 && q.0.is_multiple_of(8) && out.0.is_multiple_of(8)
}

fn usual(cache: &Cache) -> bool {
    Cache::padded_head(cache.head_dim) <= USUAL_HEAD
}

impl Task {
    fn of(cuda: &Cuda, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<Task> {
        Ok(Task {
            q: cuda.rows("attend", q)?,
            narrow_q: false,
            cache: cuda.pointer("attend", cache.buffer)?,
            rows: None,
            out: cuda.pointer("attend", out.buffer)?,
            queries: q.rows,
            heads: q.columns / cache.head_dim,
            start: sight.start,
            window: sight.window.unwrap_or(0),
            narrow: out.narrow,
            blocks: None,
        })
    }
}

pub(crate) fn forward(cuda: &mut Cuda, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
    attend::check_shapes(q, cache, sight, out)?;
    let task = Task::of(cuda, q, cache, sight, out)?;
    if usual(cache) && q.rows <= FEW {
        few(cuda, &task, cache)
    } else if fits_tiles(cache, task.q, task.out) {
        tiled(cuda, &task, cache)
    } else {
        plain(cuda, &task, cache)
    }
}

impl Device {
    /// Tokens from which on heads may be narrow: where the library makes what goes into them and comes back, and where
    /// tensor cores take them as they lie.
    pub fn narrow_heads_from(&self, head_dim: usize) -> Option<usize> {
        let from = self.library.as_ref()?.from.max(MANY);
        matches!(head_dim, 64 | 128).then_some(from)
    }
}

/// All samples in one launch: as they are where they are narrow, else the scratch is a cache that has room for them, side
/// by side.
pub(crate) fn samples(cuda: &mut Cuda, of: &Attention<'_>, cache: &Cache, out: Rows) -> Result<()> {
    attend::check_samples(of, cache, out)?;
    let (q, to) = (cuda.pointer("attend", of.q.buffer)?, cuda.pointer("attend", out.buffer)?);
    if !fits_tiles(cache, q, to)
        || of.q.narrow && (cache.format != CacheFormat::Bf16 || !of.head_dim.is_multiple_of(64))
    {
        return attend::sample_by_sample(cuda, of, cache, out);
    }
    let heads = of.q.columns / cache.head_dim;
    let blocks = blocks_of(of.samples, Way::of(cuda, q, cache, heads).queries);
    let list = cuda.upload("attend", &blocks.concat())?;
    let task = Task {
        q,
        narrow_q: of.q.narrow,
        cache: DevicePtr::NULL,
        rows: None,
        out: to,
        queries: of.q.rows,
        heads,
        start: 0,
        window: of.window.unwrap_or(0),
        narrow: out.narrow,
        blocks: Some((list, blocks.len())),
    };
    if of.q.narrow {
        let [k, v] = [of.k, of.v].map(|rows| cuda.pointer("attend", rows.buffer));
        return tiled(cuda, &Task { rows: Some([k?, v?]), ..task }, cache);
    }
    let capacity = of.q.rows.next_multiple_of(KEYS);
    let bytes = Cache::bytes(cache.format, cache.kv_heads, cache.head_dim, capacity);
    let all = Cache { buffer: Buffer { bytes, ..cuda.scratch }, capacity, ..*cache };
    let place = cuda.scratch("attend", bytes)?;
    store(cuda, of.k, of.v, 0, &all)?;
    tiled(cuda, &Task { cache: place, ..task }, &all)
}

/// Queries, keys and values straight from their products: of one token, a stage of its chain. See
/// `kernels/attend_one.cuh`.
pub(crate) fn fresh(cuda: &mut Cuda, of: Fresh<'_>, window: Option<usize>, out: Rows) -> Result<()> {
    let Fresh { queries, keys, eps, turns, keep } = of;
    let Cache { kv_heads, head_dim, capacity, format, .. } = *keep.cache;
    let kernel = match format {
        CacheFormat::F32 => "chain_f32",
        CacheFormat::Bf16 => "chain_bf16",
        CacheFormat::Int8 => "chain_int8",
    };
    let query =
        OneQuery { heads: queries.out.columns / head_dim, cache: *keep.cache, window: window.unwrap_or(0) };
    // Weights, the newest key and value, queries, and values or the shares of splits.
    let narrow = HEADS * USUAL_HEAD * query.value() + query.values();
    let work = HEADS * SPLIT * 4 + 2 * USUAL_HEAD * 4 + narrow;
    let takes = turns.rows == 1 && head_dim.is_multiple_of(32) && head_dim <= USUAL_HEAD;
    let placed = query.placed(cuda, keep.start).filter(|_| takes && cuda.chain_takes(work));
    let Some(placed) = placed else { return heads::then_attend(cuda, of, window, out) };
    let sight = Sight { start: keep.start, window };
    heads::check_shapes(queries, keys, turns, Some(keep))?;
    attend::check_shapes(queries.out, keep.cache, sight, out)?;
    let task = Task::of(cuda, queries.raw, keep.cache, sight, out)?;
    let gain = |of: Heads| of.norm.map_or(Ok(DevicePtr::NULL), |gain| cuda.vector("attend", gain));
    let places = vec![
        task.q,
        gain(queries)?,
        cuda.rows("attend", keys.raw)?,
        gain(keys)?,
        cuda.rows("attend", keep.values)?,
        cuda.rows("attend", turns)?,
        task.cache,
        cuda.scratch("attend", query.sums(keep.start))?,
        cuda.tickets("attend", query.groups())?,
        task.out,
    ];
    let sizes = [kv_heads, head_dim, capacity, task.window].map(|size| size as u32);
    let first = [code(format), task.heads as u32, eps.to_bits()];
    let numbers = [&first[..], &sizes, &[u32::from(task.narrow)], &placed].concat();
    let (name, kind, kernel, query) = ("attend_one", Kind::Attend, Some(kernel), Some(query));
    cuda.put_down(Stage { name, kind, query, kernel, numbers, places, work })
}

/// Attention of one query as a stage of a chain.
#[derive(Clone, Copy)]
pub(crate) struct OneQuery {
    heads: usize,
    cache: Cache,
    /// Zero stands for none.
    window: usize,
}

impl OneQuery {
    /// The first of its stage's words that the position decides.
    pub(crate) const PLACED: usize = 9;

    /// Those words, see `AttendStage` in `kernels/stage.cuh`; none where it cannot be a stage.
    pub(crate) fn placed(&self, cuda: &Cuda, start: usize) -> Option<[u32; 5]> {
        let splits = Splits::of(start, 1, self.window);
        let room = HEADS * splits.count * 4 <= self.values() && self.sums(start) <= cuda.scratch.bytes;
        let tasks = splits.count * self.groups();
        let placed = [start, splits.first, splits.count, tasks, tasks / cuda.chain_blocks()];
        (room && start < self.cache.capacity).then(|| placed.map(|number| number as u32))
    }

    /// Bytes of a key's or a value's number where blocks work with it.
    fn value(&self) -> usize {
        if self.cache.format == CacheFormat::F32 { 4 } else { 2 }
    }

    /// Bytes of a split's values, whose rows are 32 bytes longer; the shares of splits take their place.
    fn values(&self) -> usize {
        SPLIT * (Cache::padded_head(self.cache.head_dim) * self.value() + 32)
    }

    /// Bytes of scratch for the sums of splits.
    fn sums(&self, start: usize) -> usize {
        self.heads * Splits::of(start, 1, self.window).count * (self.cache.head_dim + 2) * 4
    }

    /// How many groups of heads there are that a block takes at once: all of a group share their keys.
    fn groups(&self) -> usize {
        self.cache.kv_heads * (self.heads / self.cache.kv_heads).div_ceil(HEADS)
    }
}

/// Keys in pieces that are counted from position 0.
struct Splits {
    first: usize,
    count: usize,
}

impl Splits {
    /// Those that queries from `start` on see; a window of zero stands for none.
    fn of(start: usize, queries: usize, window: usize) -> Splits {
        let lowest = if window == 0 { 0 } else { (start + 1).saturating_sub(window) };
        let first = lowest / SPLIT;
        Splits { first, count: (start + queries).div_ceil(SPLIT) - first }
    }
}

/// Keys split among blocks.
fn few(cuda: &mut Cuda, task: &Task, cache: &Cache) -> Result<()> {
    let Cache { kv_heads, head_dim, capacity, .. } = *cache;
    let Task { queries, heads, start, window, .. } = *task;
    let Splits { first, count: splits } = Splits::of(start, queries, window);
    let sums = cuda.scratch("attend", queries * heads * splits * (head_dim + 2) * 4)?;
    let kernel = match cache.format {
        CacheFormat::F32 => "attend_split_f32",
        CacheFormat::Bf16 => "attend_split_bf16",
        CacheFormat::Int8 => "attend_split_int8",
    };
    let (sets, width) = ((heads / kv_heads).div_ceil(HEADS), Cache::padded_head(head_dim));
    let grid = Grid {
        blocks: (splits as u32, (kv_heads * sets) as u32, queries as u32),
        threads: (128, 1, 1),
        // Queries, weights, and the parts of the sums.
        shared: ((HEADS * width + HEADS * SPLIT + 8 * HEADS * width) * 4) as u32,
    };
    // As many as a warp has shares of at the end.
    let alone = splits <= SPLIT;
    let tickets = if alone { cuda.tickets("attend", queries * kv_heads * sets)? } else { DevicePtr::NULL };
    let (out, narrow) = (task.out, task.narrow);
    let arguments = args![
        task.q, task.cache, kv_heads, head_dim, capacity, start, window, sums, heads, first, tickets, out,
        narrow
    ];
    cuda.launch(kernel, grid, arguments)?;
    if alone {
        return Ok(());
    }
    let grid = Grid {
        blocks: (queries as u32, heads as u32, 1),
        threads: (512, 1, 1),
        shared: ((32 + 512 + splits) * 4) as u32,
    };
    cuda.launch("attend_join", grid, args![sums, splits, heads, head_dim, out, narrow])
}

/// A kernel on tensor cores, and what its blocks have.
struct Way {
    kernel: &'static str,
    threads: u32,
    heads: usize,
    queries: usize,
    shared: usize,
}

impl Way {
    fn of(cuda: &Cuda, q: DevicePtr, cache: &Cache, heads: usize) -> Way {
        // Keys and values, twice.
        let tiles = |channels: usize| 4 * TILE * channels * 2;
        let bf16 = cache.format == CacheFormat::Bf16;
        if bf16 && by_warpgroups(cuda, cache.head_dim) && q.0.is_multiple_of(16) {
            let (heads, queries) = of_warpgroups(heads, cache.kv_heads);
            let shared = tiles(128) + BLOCK * 128 * 2;
            return Way { kernel: "attend_warpgroup", threads: 256, heads, queries, shared };
        }
        let (kernel, channels) = match (bf16, cache.head_dim <= 64) {
            (false, true) => ("attend_int8_64", 64),
            (false, false) => ("attend_int8_128", 128),
            (true, true) => ("attend_bf16_64", 64),
            (true, false) => ("attend_bf16_128", 128),
        };
        Way { kernel, threads: 128, heads: 1, queries: BLOCK, shared: tiles(channels) }
    }
}

/// Tiles on tensor cores.
fn tiled(cuda: &mut Cuda, task: &Task, cache: &Cache) -> Result<()> {
    let Cache { kv_heads, head_dim, capacity, format, .. } = *cache;
    let Task { queries, heads, start, window, .. } = *task;
    // Where keys and values lie, how far heads are from each other, and positions.
    let (keys, values, of_head, of_position) = match task.rows {
        Some([keys, values]) => (keys, values, head_dim, kv_heads * head_dim),
        None => {
            let (width, bytes) =
                (Cache::padded_head(head_dim), Cache::bytes(format, kv_heads, head_dim, capacity));
            (task.cache, task.cache.add(bytes / 2), capacity * width, width)
        }
    };
    let way = Way::of(cuda, task.q, cache, heads);
    let (list, blocks) = task.blocks.unwrap_or((DevicePtr::NULL, queries.div_ceil(way.queries)));
    let grid = Grid {
        blocks: ((heads / way.heads) as u32, blocks as u32, 1),
        threads: (way.threads, 1, 1),
        shared: way.shared as u32,
    };
    cuda.launch(
        way.kernel,
        grid,
        args![
            task.q,
            task.narrow_q,
            keys,
            values,
            kv_heads,
            head_dim,
            of_head,
            of_position,
            queries,
            start,
            window,
            task.out,
            task.narrow,
            heads,
            list
        ],
    )
}

/// A block for each query and head.
fn plain(cuda: &mut Cuda, task: &Task, cache: &Cache) -> Result<()> {
    let Cache { kv_heads, head_dim, capacity, .. } = *cache;
    let Task { queries, heads, start, window, .. } = *task;
    let grid = Grid {
        blocks: (queries as u32, heads as u32, 1),
        threads: (128, 1, 1),
        shared: ((5 * WIDEST_HEAD + 8) * 4) as u32,
    };
    let format = code(cache.format);
    cuda.launch(
        "attend",
        grid,
        args![
            task.q,
            task.cache,
            format,
            kv_heads,
            head_dim,
            capacity,
            start,
            window,
            task.out,
            task.narrow,
            heads
        ],
    )
}

/// The number that kernels know a format by.
pub(crate) fn code(format: CacheFormat) -> u32 {
    match format {
        CacheFormat::F32 => 0,
        CacheFormat::Bf16 => 1,
        CacheFormat::Int8 => 2,
    }
}
