//! Norm and rotation of queries and keys, and what goes into the cache, in one launch for the usual widths. See
//! `ops::heads`.

use halfbyte_ops::{Heads, Keep, Result, Rows, heads};

use crate::Cuda;
use crate::attend::code;
use crate::launch::{DevicePtr, Grid, args};

/// Threads of a block: one for each 16th of a head. Small ones, so that few heads keep many multiprocessors busy.
const THREADS: u32 = 64;

/// Tokens from which on a head is taken by four threads instead of sixteen.
pub(crate) const MANY: usize = 16;

pub(crate) fn forward(
    cuda: &mut Cuda,
    queries: Heads,
    keys: Heads,
    eps: f32,
    turns: Rows,
    keep: Option<Keep<'_>>,
) -> Result<()> {
    let head_dim = turns.columns;
    let many = turns.rows >= MANY;
    let kernel = match head_dim {
        64 if many => "heads_many_64",
        64 => "heads_64",
        128 if many => "heads_many_128",
        128 => "heads_128",
        _ => return heads::one_by_one(cuda, queries, keys, eps, turns, keep),
    };
    heads::check_shapes(queries, keys, turns, keep)?;
    let count = |of: Heads| of.out.columns / head_dim;
    let gain = |of: Heads| of.norm.map_or(Ok(DevicePtr::NULL), |gain| cuda.vector("heads", gain));
    // Where there are few, only f32 is read and written.
    let place = |rows: Rows| match many {
        true => cuda.pointer("heads", rows.buffer),
        false => cuda.rows("heads", rows),
    };
    let (values, cache, format, start, capacity) = match keep {
        Some(Keep { values, start, cache }) => {
            let place = cuda.pointer("heads", cache.buffer)?;
            (cuda.rows("heads", values)?, place, code(cache.format), start, cache.capacity)
        }
        None => (DevicePtr::NULL, DevicePtr::NULL, 0, 0, 0),
    };
    let arguments = args![
        place(queries.raw)?,
        gain(queries)?,
        place(queries.out)?,
        count(queries),
        place(keys.raw)?,
        gain(keys)?,
        place(keys.out)?,
        count(keys),
        cuda.rows("heads", turns)?,
        turns.rows,
        eps,
        values,
        cache,
        format,
        start,
        capacity
    ];
    let kinds = if keep.is_some() { 2 } else { 1 };
    let all = turns.rows * (count(queries) + kinds * count(keys));
    if many {
        let arguments =
            [arguments, args![queries.raw.narrow, queries.out.narrow, keys.raw.narrow, keys.out.narrow]]
                .concat();
        cuda.launch(kernel, Grid::each(all * 4, 128), &arguments)?;
    } else {
        cuda.launch(kernel, Grid::each(all * 16, THREADS), arguments)?;
    }
    Ok(())
}
