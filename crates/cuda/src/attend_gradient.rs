//! Gradients of attention: on tensor cores where values are rounded anyway, plainly where they are not.

use std::cmp::Reverse;

use halfbyte_ops::{Attention, Result, Rows, attend};

use crate::Cuda;
use crate::attend::{BLOCK, TILE, blocks_of, by_warpgroups};
use crate::launch::{DevicePtr, Grid, args};

const OP: &str = "attend_gradient";

/// Widest head on tensor cores.
const USUAL_HEAD: usize = 128;

/// Bytes of what is kept of a query for its keys; copies go 16 at a time.
const STATS: usize = 16;

/// Blocks that are at work together on a large device, and the bytes that one leaves there where it shares its keys.
const LARGEST_BLOCKS: usize = 128;
const SHARE: usize = 2 * BLOCK * USUAL_HEAD * 4;

/// How many blocks share the query heads that see the same keys: several where blocks are few. Warpgroups do so.
fn shares(key_blocks: usize, heads: usize, kv_heads: usize) -> usize {
    let group = heads / kv_heads;
    let fits =
        |count: &usize| group.is_multiple_of(*count) && key_blocks * kv_heads * count <= LARGEST_BLOCKS;
    (1..=group).rev().find(fits).unwrap_or(1)
}

/// Channels of a head as tensor cores take it.
fn width(head_dim: usize) -> usize {
    if head_dim <= 64 { 64 } else { USUAL_HEAD }
}

/// Bytes of scratch for rows: what is kept of each query and, on tensor cores, q, dy, k and v rounded.
fn rows_scratch(tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) -> usize {
    let rounded = if head_dim <= USUAL_HEAD { 2 * (heads + kv_heads) * width(head_dim) * 2 } else { 0 };
    tokens * (heads * STATS + rounded)
}

/// Bytes of scratch, what blocks leave there included.
pub(crate) fn scratch(tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) -> usize {
    let by_warpgroups = (TILE + 1..=USUAL_HEAD).contains(&head_dim);
    let shared = by_warpgroups && shares(tokens.div_ceil(BLOCK), heads, kv_heads) > 1;
    let left = if shared { LARGEST_BLOCKS * SHARE } else { 0 };
    rows_scratch(tokens, heads, kv_heads, head_dim) + left
}

/// The pointers of a call.
struct Task {
    /// q, k, v and dy, all of them narrow or none.
    inputs: [DevicePtr; 4],
    narrow: bool,
    /// What attention gave, and whether that is narrow.
    out: (DevicePtr, bool),
    dq: DevicePtr,
    dk: DevicePtr,
    dv: DevicePtr,
    /// Whether all three are to be, on tensor cores.
    narrow_results: bool,
    scratch: DevicePtr,
    heads: usize,
    kv_heads: usize,
}

impl Task {
    /// Whether rows lie as tensor cores fetch and store them: by pairs, from a multiple of 16 bytes on.
    fn aligned(&self, head_dim: usize) -> bool {
        let all = self.inputs.iter().chain([&self.out.0, &self.dq, &self.dk, &self.dv]);
        head_dim.is_multiple_of(2) && all.into_iter().all(|place| place.0.is_multiple_of(16))
    }
}

pub(crate) fn run(
    cuda: &mut Cuda,
    of: &Attention<'_>,
    out: Rows,
    dout: Rows,
    dq: Rows,
    dk: Rows,
    dv: Rows,
) -> Result<()> {
    attend::check_gradient(of, out, dout, dq, dk, dv)?;
    let (heads, kv_heads) = (of.q.columns / of.head_dim, of.k.columns / of.head_dim);
    let plain_alone = of.exact || !matches!(of.head_dim, 64 | 128);
    let place = |rows: Rows| match plain_alone {
        true => cuda.rows(OP, rows),
        false => cuda.pointer(OP, rows.buffer),
    };
    let task = Task {
        inputs: [place(of.q)?, place(of.k)?, place(of.v)?, place(dout)?],
        narrow: of.q.narrow,
        out: (cuda.pointer(OP, out.buffer)?, out.narrow),
        dq: place(dq)?,
        dk: place(dk)?,
        dv: place(dv)?,
        narrow_results: dv.narrow,
        scratch: cuda.scratch(
            OP,
            match of.q.narrow {
                // They are taken as they are.
                true => of.q.rows * heads * STATS,
                false => rows_scratch(of.q.rows, heads, kv_heads, of.head_dim),
            },
        )?,
        heads,
        kv_heads,
    };
    match of.head_dim {
        head_dim if of.exact || head_dim > USUAL_HEAD || !task.aligned(head_dim) => {
            [of.q, dv].iter().try_for_each(|rows| cuda.rows(OP, *rows).map(|_| ()))?;
            plain(cuda, of, &task)
        }
        head_dim => {
            let way = if by_warpgroups(cuda, head_dim) {
                let [queries, keys] = ["attend_gradient_queries_warpgroup", "attend_gradient_keys_warpgroup"];
                Way { queries, keys, rows: TILE, threads: 128, tiles: [7, 10], stages: 3, shares: true }
            } else {
                let [queries, keys] = match head_dim {
                    ..=64 => ["attend_gradient_queries_64", "attend_gradient_keys_64"],
                    _ => ["attend_gradient_queries_128", "attend_gradient_keys_128"],
                };
                Way { queries, keys, rows: BLOCK, threads: 256, tiles: [4, 4], stages: 2, shares: false }
            };
            tiled(cuda, of, &task, &way)
        }
    }
}

/// Kernels on tensor cores, and what their blocks have.
struct Way {
    queries: &'static str,
    keys: &'static str,
    /// Rows and threads of a block of queries; one of keys has 128 rows and 256 threads.
    rows: usize,
    threads: u32,
    /// In shared memory: tiles of a block of queries, and of keys; and how often a query's numbers are there.
    tiles: [usize; 2],
    stages: usize,
    /// Whether blocks may share their keys.
    shares: bool,
}

fn scale(of: &Attention<'_>) -> f32 {
    1.0 / (of.head_dim as f32).sqrt()
}

fn tiled(cuda: &mut Cuda, of: &Attention<'_>, task: &Task, way: &Way) -> Result<()> {
    let (heads, kv_heads, width) = (task.heads, task.kv_heads, width(of.head_dim));
    let (query_rows, key_rows) = (of.q.rows * heads, of.q.rows * kv_heads);
    let stats = task.scratch;
    let q = stats.add(query_rows * STATS);
    let dy = q.add(query_rows * width * 2);
    let k = dy.add(query_rows * width * 2);
    let v = k.add(key_rows * width * 2);
    let [given_q, given_k, given_v, given_dy] = task.inputs;
    let inputs = match task.narrow {
        true => args![given_q, given_dy, given_k, given_v],
        false => {
            let grid = Grid::each((query_rows + key_rows) * 2 * width / 8, 256);
            let inputs = args![given_q, given_dy, given_k, given_v];
            let sizes = args![query_rows, key_rows, of.head_dim, width, q];
            cuda.launch("attend_gradient_round", grid, &[inputs, sizes].concat())?;
            args![q, dy, k, v]
        }
    };

    let query_blocks = blocks_of(of.samples, way.rows);
    // Early keys are seen by the most.
    let mut key_blocks = blocks_of(of.samples, BLOCK);
    key_blocks.sort_by_key(|[_, first, end]| Reverse(end - first));
    let list = cuda.upload(OP, &[query_blocks.concat(), key_blocks.concat()].concat())?;
    let key_list = list.add(query_blocks.len() * 3 * 4);
    let [shared, key_shared] = way.tiles.map(|tiles| tiles * TILE * width * 2);
    let key_shared = (key_shared + way.stages * TILE * STATS) as u32;
    let key_grid = |shares: usize| Grid {
        blocks: (kv_heads as u32, key_blocks.len() as u32, shares as u32),
        threads: (256, 1, 1),
        shared: key_shared,
    };
    let query_grid = Grid {
        blocks: (heads as u32, query_blocks.len() as u32, 1),
        threads: (way.threads, 1, 1),
        shared: shared as u32,
    };
    let sizes = args![heads, kv_heads, of.head_dim, of.window.unwrap_or(0), scale(of)];
    let arguments =
        [inputs, args![list], sizes, args![task.out.0, task.out.1, task.dq, task.narrow_results, stats]]
            .concat();
    cuda.launch(way.queries, query_grid, &arguments)?;
    let (arguments, count) = (
        [inputs, args![key_list], sizes, args![task.dk, task.dv, task.narrow_results, stats]].concat(),
        key_blocks.len(),
    );
    if !way.shares {
        return cuda.launch(way.keys, key_grid(1), &arguments);
    }
    // No more shares than `scratch` has room for, if there are rows of no sample.
    let shares = shares(count.max(of.q.rows.div_ceil(BLOCK)), heads, kv_heads);
    let (keys, rows) = (count * kv_heads, rows_scratch(of.q.rows, heads, kv_heads, of.head_dim));
    let (parts, tickets) = if shares > 1 {
        (cuda.scratch(OP, rows + keys * shares * SHARE)?.add(rows), cuda.tickets(OP, keys)?)
    } else {
        (DevicePtr::NULL, DevicePtr::NULL)
    };
    let arguments = [&arguments[..], args![parts, tickets]].concat();
    cuda.launch(way.keys, key_grid(shares), &arguments)
}

fn plain(cuda: &mut Cuda, of: &Attention<'_>, task: &Task) -> Result<()> {
    // A token's sample; rows of no sample end at 0.
    let (mut first, mut end) = (vec![0u32; of.q.rows], vec![0u32; of.q.rows]);
    for sample in of.samples {
        first[sample.clone()].fill(sample.start as u32);
        end[sample.clone()].fill(sample.end as u32);
    }
    let longest = of.samples.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let most_keys = of.window.map_or(longest, |window| window.min(longest));
    let (first, end) = (cuda.upload(OP, &first)?, cuda.upload(OP, &end)?);
    let [q, k, v, dy] = task.inputs;
    let (heads, kv_heads, window) = (task.heads, task.kv_heads, of.window.unwrap_or(0));
    let operands = args![q, k, v, dy, first, end, heads, kv_heads, of.head_dim, window, of.exact, scale(of)];
    let grid = |heads: usize, shared: usize| Grid {
        blocks: (of.q.rows as u32, heads as u32, 1),
        threads: (128, 1, 1),
        shared: shared as u32,
    };
    // A query, its dy, and two numbers for each key.
    let queries = grid(heads, (2 * of.head_dim + 2 * most_keys) * 4);
    cuda.launch("attend_gradient_queries", queries, &[operands, args![task.dq, task.scratch]].concat())?;
    let results = args![task.dk, task.dv, task.scratch];
    cuda.launch("attend_gradient_keys", grid(kv_heads, 0), &[operands, results].concat())
}
