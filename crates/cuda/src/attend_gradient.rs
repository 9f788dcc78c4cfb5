//! Gradients of attention: on tensor cores where values are rounded anyway, plainly where they are not.

use halfbyte_ops::{Attention, Result, Rows, attend};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};

const OP: &str = "attend_gradient";

/// Queries or keys of a tile.
const TILE: usize = 64;

/// Numbers of a query that its keys want.
const STATS: usize = 3;

/// Bytes of scratch: top, sum and mean of each query.
pub(crate) fn scratch(tokens: usize, heads: usize) -> usize {
    tokens * heads * STATS * 4
}

/// The pointers of a call.
struct Task {
    inputs: [DevicePtr; 4],
    dq: DevicePtr,
    dk: DevicePtr,
    dv: DevicePtr,
    stats: DevicePtr,
    heads: usize,
    kv_heads: usize,
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
        stats: cuda.scratch(OP, scratch(of.q.rows, heads))?,
        heads,
        kv_heads,
    };
    match (of.exact, of.head_dim) {
        (false, ..=64) => tiled(cuda, of, &task, "attend_gradient_queries_64", "attend_gradient_keys_64", 64),
        (false, ..=128) => {
            tiled(cuda, of, &task, "attend_gradient_queries_128", "attend_gradient_keys_128", 128)
        }
        _ => plain(cuda, of, &task),
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
    width: usize,
) -> Result<()> {
    // Of each tile: its sample's first row, the row after the sample's last, its own first row.
    let tiles: Vec<u32> = of
        .samples
        .iter()
        .flat_map(|sample| {
            let starts = sample.clone().step_by(TILE);
            starts.flat_map(|start| [sample.start as u32, sample.end as u32, start as u32])
        })
        .collect();
    let (count, list) = (tiles.len() as u32 / 3, cuda.upload(OP, &tiles)?);
    let [q, k, v, dy] = task.inputs;
    let (heads, kv_heads, window) = (task.heads, task.kv_heads, of.window.unwrap_or(0));
    let operands = args![q, k, v, dy, list, heads, kv_heads, of.head_dim, window, scale(of)];
    let grid = |heads: usize| Grid {
        blocks: (count, heads as u32, 1),
        threads: (128, 1, 1),
        shared: (4 * TILE * width * 2) as u32,
    };
    cuda.launch(queries, grid(heads), &[operands, args![task.dq, task.stats]].concat())?;
    cuda.launch(keys, grid(kv_heads), &[operands, args![task.dk, task.dv, task.stats]].concat())
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
    cuda.launch("attend_gradient_queries", queries, &[operands, args![task.dq, task.stats]].concat())?;
    let results = args![task.dk, task.dv, task.stats];
    cuda.launch("attend_gradient_keys", grid(kv_heads, 0), &[operands, results].concat())
}
