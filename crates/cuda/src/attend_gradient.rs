//! Gradients of attention: on tensor cores where values are rounded anyway, plainly where they are not.

use std::cmp::Reverse;

use halfbyte_ops::{Attention, Result, Rows, attend};

use crate::Cuda;
use crate::attend::{TILE, blocks_of};
use crate::launch::{DevicePtr, Grid, args};

const OP: &str = "attend_gradient";

/// Widest head on tensor cores.
const USUAL_HEAD: usize = 128;

/// Bytes of what is kept of a query for its keys; copies go 16 at a time.
const STATS: usize = 16;

/// Channels of a head as tensor cores take it.
fn width(head_dim: usize) -> usize {
    if head_dim <= 64 { 64 } else { USUAL_HEAD }
}

/// Bytes of scratch: what is kept of each query and, on tensor cores, q, dy, k and v rounded.
pub(crate) fn scratch(tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) -> usize {
    let rounded = if head_dim <= USUAL_HEAD { 2 * (heads + kv_heads) * width(head_dim) * 2 } else { 0 };
    tokens * (heads * STATS + rounded)
}

/// The pointers of a call.
struct Task {
    /// q, k, v and dy.
    inputs: [DevicePtr; 4],
    dq: DevicePtr,
    dk: DevicePtr,
    dv: DevicePtr,
    scratch: DevicePtr,
    heads: usize,
    kv_heads: usize,
}

impl Task {
    /// Whether rows lie as tensor cores fetch and store them: by pairs, from a multiple of 16 bytes on.
    fn aligned(&self, head_dim: usize) -> bool {
        let all = self.inputs.iter().chain([&self.dq, &self.dk, &self.dv]);
        head_dim.is_multiple_of(2) && all.into_iter().all(|place| place.0.is_multiple_of(16))
    }
}

pub(crate) fn run(
    cuda: &mut Cuda,
    of: &Attention<'_>,
    dout: Rows,
    dq: Rows,
    dk: Rows,
    dv: Rows,
) -> Result<()> {
    attend::check_gradient(of, dout, dq, dk, dv)?;
    let (heads, kv_heads) = (of.q.columns / of.head_dim, of.k.columns / of.head_dim);
    let task = Task {
        inputs: [cuda.rows(OP, of.q)?, cuda.rows(OP, of.k)?, cuda.rows(OP, of.v)?, cuda.rows(OP, dout)?],
        dq: cuda.rows(OP, dq)?,
        dk: cuda.rows(OP, dk)?,
        dv: cuda.rows(OP, dv)?,
        scratch: cuda.scratch(OP, scratch(of.q.rows, heads, kv_heads, of.head_dim))?,
        heads,
        kv_heads,
    };
    match of.head_dim {
        head_dim if of.exact || head_dim > USUAL_HEAD || !task.aligned(head_dim) => plain(cuda, of, &task),
        ..=64 => tiled(cuda, of, &task, "attend_gradient_queries_64", "attend_gradient_keys_64"),
        _ => tiled(cuda, of, &task, "attend_gradient_queries_128", "attend_gradient_keys_128"),
    }
}

fn scale(of: &Attention<'_>) -> f32 {
    1.0 / (of.head_dim as f32).sqrt()
}

fn tiled(
    cuda: &mut Cuda,
    of: &Attention<'_>,
    task: &Task,
    queries: &'static str,
    keys: &'static str,
) -> Result<()> {
    let (heads, kv_heads, width) = (task.heads, task.kv_heads, width(of.head_dim));
    let (query_rows, key_rows) = (of.q.rows * heads, of.q.rows * kv_heads);
    let stats = task.scratch;
    let q = stats.add(query_rows * STATS);
    let dy = q.add(query_rows * width * 2);
    let k = dy.add(query_rows * width * 2);
    let v = k.add(key_rows * width * 2);
    let [wide_q, wide_k, wide_v, wide_dy] = task.inputs;
    let grid = Grid::each((query_rows + key_rows) * 2 * width / 8, 256);
    let operands = args![wide_q, wide_dy, wide_k, wide_v, query_rows, key_rows, of.head_dim, width, q];
    cuda.launch("attend_gradient_round", grid, operands)?;

    // Early keys are seen by the most.
    let mut blocks = blocks_of(of.samples);
    let (count, mut list) = (blocks.len(), blocks.concat());
    blocks.sort_by_key(|[_, first, end]| Reverse(end - first));
    list.extend(blocks.concat());
    let of_queries = cuda.upload(OP, &list)?;
    let of_keys = of_queries.add(count * 3 * 4);
    let grid = |heads: usize, stage: usize| Grid {
        blocks: (heads as u32, count as u32, 1),
        threads: (256, 1, 1),
        shared: (2 * stage) as u32,
    };
    let stage = 2 * TILE * width * 2;
    let inputs = args![q, dy, k, v];
    let sizes = args![heads, kv_heads, of.head_dim, of.window.unwrap_or(0), scale(of)];
    let arguments = [inputs, args![of_queries], sizes, args![task.dq, stats]].concat();
    cuda.launch(queries, grid(heads, stage), &arguments)?;
    let arguments = [inputs, args![of_keys], sizes, args![task.dk, task.dv, stats]].concat();
    cuda.launch(keys, grid(kv_heads, stage + TILE * STATS), &arguments)
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
