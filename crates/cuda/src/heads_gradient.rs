//! Rotation and norm of queries and keys backwards, in one launch for the usual widths. See `ops::heads`.

use halfbyte_ops::{HeadsGradient, Result, Rows, heads};

use crate::Cuda;
use crate::launch::{DevicePtr, Grid, args};
use crate::row_gradients::{CHUNKS, add_chunks};

const OP: &str = "heads_gradient";

/// Heads that a block takes at a time.
const AT_ONCE: usize = 32;

/// Pointers of one kind.
struct Kind {
    raw: DevicePtr,
    gain: DevicePtr,
    dgain: DevicePtr,
    dy: DevicePtr,
    dx: DevicePtr,
}

fn kind(cuda: &Cuda, of: HeadsGradient) -> Result<Kind> {
    let (gain, dgain) = match of.norm {
        Some((gain, dgain)) => (cuda.vector(OP, gain)?, cuda.vector(OP, dgain)?),
        None => (DevicePtr::NULL, DevicePtr::NULL),
    };
    let [raw, dy, dx] = [of.raw, of.dy, of.dx].map(|rows| cuda.pointer(OP, rows.buffer));
    Ok(Kind { raw: raw?, gain, dgain, dy: dy?, dx: dx? })
}

pub(crate) fn run(
    cuda: &mut Cuda,
    queries: HeadsGradient,
    keys: HeadsGradient,
    eps: f32,
    turns: Rows,
) -> Result<()> {
    let width = turns.columns;
    let kernel = match width {
        64 => "heads_gradient_64",
        128 => "heads_gradient_128",
        _ => return heads::gradient_one_by_one(cuda, queries, keys, eps, turns),
    };
    heads::check_gradient(queries, keys, turns)?;
    let (q, k, turned) = (kind(cuda, queries)?, kind(cuda, keys)?, cuda.rows(OP, turns)?);
    let aligned = |of: &Kind| [of.raw, of.gain, of.dy, of.dx].iter().all(|at| at.0.is_multiple_of(16));
    if !(aligned(&q) && aligned(&k) && turned.0.is_multiple_of(16)) {
        return heads::gradient_one_by_one(cuda, queries, keys, eps, turns);
    }
    let parts = cuda.scratch(OP, (CHUNKS + 1) * width * 4)?;
    let heads = [queries, keys].map(|of| of.dy.columns / width);
    // One chunk more than fits evenly, where each kind has a last one that is not full.
    let chunk = (turns.rows * (heads[0] + heads[1])).div_ceil(CHUNKS).next_multiple_of(AT_ONCE);
    let blocks = heads.map(|heads| (turns.rows * heads).div_ceil(chunk));
    let arguments = |of: HeadsGradient, at: &Kind, heads: usize| {
        let narrow = [of.raw, of.dy, of.dx].map(|rows| rows.narrow);
        args![at.raw, narrow[0], at.gain, at.dy, narrow[1], at.dx, narrow[2], heads].to_vec()
    };
    let sizes = args![turned, turns.rows, eps, blocks[0], chunk, parts].to_vec();
    let arguments = [arguments(queries, &q, heads[0]), arguments(keys, &k, heads[1]), sizes].concat();
    cuda.launch(kernel, Grid::line(blocks[0] + blocks[1], 128), &arguments)?;
    if queries.norm.is_some() {
        add_chunks(cuda, parts, q.dgain, width, blocks[0])?;
    }
    if keys.norm.is_some() {
        add_chunks(cuda, parts.add(blocks[0] * width * 4), k.dgain, width, blocks[1])?;
    }
    Ok(())
}
