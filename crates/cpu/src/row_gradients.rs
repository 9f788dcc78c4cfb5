//! Gradients that go row by row, or column by column where rows are summed: the reference's own
//! lines, compiled for the instruction set.

#[cfg(target_arch = "x86_64")]
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Result, Rows, Vector, embed, linear, residual, rms_norm, rope};

use crate::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::arena::Place;
use crate::isa::for_isa;

for_isa! {
fn norm_gradient(x: &[f32], gain: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) -> f32 {
    rms_norm::gradient(x, gain, eps, dy, dx)
}
}
for_isa! { fn gain_part(x: &[f32], r: f32, dy: &[f32], dgain: &mut [f32]) { rms_norm::gain_gradient(x, r, dy, dgain) } }
for_isa! { fn bias_part(dy: &[f32], db: &mut [f32]) { linear::bias_gradient(dy, db) } }
for_isa! { fn turn_back(dy: &mut [f32], turns: &[f32]) { rope::gradient_in_place(dy, turns) } }
for_isa! { fn add_part(dy: &[f32], out: &mut [f32]) { residual::forward(dy, out) } }

pub(crate) fn rms_norm_gradient(
    cpu: &mut Cpu,
    x: Rows,
    gain: Vector,
    eps: f32,
    dy: Rows,
    dx: Rows,
    dgain: Vector,
) -> Result<()> {
    const OP: &str = "rms_norm_gradient";
    rms_norm::check_gradient(x, gain, dy, dx, dgain)?;
    let (x_place, dy_place, dx) = (cpu.arena.rows(OP, x)?, cpu.arena.rows(OP, dy)?, cpu.arena.rows(OP, dx)?);
    let (gain, dgain) = (cpu.arena.vector(OP, gain)?, cpu.arena.place::<f32>(OP, dgain.buffer)?);
    let (isa, width, rows) = (cpu.isa, x.columns, x.rows);
    let reciprocals = cpu.scratch((rows * 4, 0), OP)?.shared.cast::<f32>();
    cpu.for_rows(rows, width, &|row| {
        // SAFETY: each row of dx, and its reciprocal, is written by one chunk; the others are only read.
        unsafe {
            let (x, dy) = (x_place.slice(row * width, width), dy_place.slice(row * width, width));
            reciprocals.slice_mut(row, 1)[0] =
                norm_gradient(isa, x, gain, eps, dy, dx.slice_mut(row * width, width));
        }
    });
    cpu.for_stripes(rows, width, &|first, count| {
        for row in 0..rows {
            let at = row * width + first;
            // SAFETY: a stripe of dgain is written by one chunk; the others are only read.
            unsafe {
                let (x, dy) = (x_place.slice(at, count), dy_place.slice(at, count));
                gain_part(isa, x, reciprocals.slice(row, 1)[0], dy, dgain.slice_mut(first, count));
            }
        }
    });
    Ok(())
}

pub(crate) fn bias_gradient(cpu: &mut Cpu, dy: Rows, db: Vector) -> Result<()> {
    residual::check_shapes(Rows { rows: 1, ..dy }, Rows::new(db.buffer, 1, db.len))?;
    let (dy_place, db) =
        (cpu.arena.rows("bias_gradient", dy)?, cpu.arena.place::<f32>("bias_gradient", db.buffer)?);
    let (isa, width) = (cpu.isa, dy.columns);
    cpu.for_stripes(dy.rows, width, &|first, count| {
        for row in 0..dy.rows {
            // SAFETY: a stripe is written by one chunk.
            unsafe {
                let dy = dy_place.slice(row * width + first, count);
                bias_part(isa, dy, db.slice_mut(first, count));
            }
        }
    });
    Ok(())
}

pub(crate) fn rope_gradient(cpu: &mut Cpu, dx: Rows, head_dim: usize, turns: Rows) -> Result<()> {
    rope::check_shapes(dx, head_dim, turns)?;
    let (place, turns) = (cpu.arena.rows("rope_gradient", dx)?, cpu.arena.rows("rope_gradient", turns)?);
    let (isa, width) = (cpu.isa, dx.columns);
    cpu.for_rows(dx.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; turns are only read.
        unsafe {
            let (dx, turns) = (place.slice_mut(row * width, width), turns.slice(row * head_dim, head_dim));
            turn_back(isa, dx, turns);
        }
    });
    Ok(())
}

pub(crate) fn embed_gradient(
    cpu: &mut Cpu,
    tokens: &[u32],
    first: usize,
    dy: Rows,
    dtable: Rows,
) -> Result<()> {
    embed::check_gradient(tokens, dy, dtable)?;
    let (source, table) = (cpu.arena.rows("embed_gradient", dy)?, cpu.arena.rows("embed_gradient", dtable)?);
    let (isa, width) = (cpu.isa, dy.columns);
    cpu.for_stripes(tokens.len(), width, &|column, count| {
        for (t, row) in rows_of(tokens, first, dtable.rows) {
            // SAFETY: a stripe is written by one chunk.
            unsafe {
                let dy = source.slice(t * width + column, count);
                add_part(isa, dy, table.slice_mut(row * width + column, count));
            }
        }
    });
    Ok(())
}

/// The tokens among rows `first..` of a table, each with its row counted from there.
fn rows_of(tokens: &[u32], first: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let row = move |token: &u32| (*token as usize).wrapping_sub(first);
    tokens.iter().map(row).enumerate().filter(move |(_, row)| *row < rows)
}

/// What `embed_gradient` adds to some rows, which are turned: sixteen side by side, column after column.
///
/// # Safety
/// The rows are this thread's alone; dy has a row for each token.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn add_embedded(
    tokens: &[u32],
    first: usize,
    dy: Place<f32>,
    (rows, width): (usize, usize),
    to: Place<f32>,
) {
    for (t, row) in rows_of(tokens, first, rows) {
        // SAFETY: by the caller's promise.
        let (dy, panel) =
            unsafe { (dy.slice(t * width, width), to.slice_mut(row / PANEL * PANEL * width, PANEL * width)) };
        for (column, dy) in panel.as_chunks_mut::<PANEL>().0.iter_mut().zip(dy) {
            column[row % PANEL] += dy;
        }
    }
}
