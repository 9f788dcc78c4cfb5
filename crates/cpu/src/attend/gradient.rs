//! Gradients of attention, 32 queries of one head at a time: here in lanes, `tiled` in AMX tiles.
//!
//! scratch of a thread, all f32, with T tokens padded to 32 and heads padded to `width`:
//! keys and values as panels of 16 keys `[T / 16][width][16]`, keys as panels of 16 channels
//! `[width / 16][T][16]`; of the block its queries and dy, row by row `[32][width]` and as panels
//! of channels `[width / 16][32][16]`, and P and dS, row by row `[32][T]` and column by column
//! `[T][32]`.

#[cfg(target_arch = "x86_64")]
mod softened;
#[cfg(target_arch = "x86_64")]
mod tiled;

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{KEYS, PANEL};
use halfbyte_ops::{Attention, Cache, Result, Rows, attend};

use crate::Cpu;
use crate::arena::Place;
use crate::isa::for_isa;
use crate::linear::group;

/// Queries of a block: a group of the inner dimension.
const BLOCK: usize = 32;

/// Bytes of scratch for each thread.
pub(crate) fn scratch(tokens: usize, head_dim: usize) -> usize {
    let (padded, width) = (tokens.next_multiple_of(KEYS), Cache::padded_head(head_dim));
    let lanes = 4 * (3 * padded * width + 4 * BLOCK * width + 4 * BLOCK * padded);
    #[cfg(target_arch = "x86_64")]
    let lanes = lanes.max(tiled::scratch(tokens, head_dim));
    lanes
}

/// One call, with its pointers.
#[derive(Clone, Copy)]
struct Task {
    q: Place<f32>,
    k: Place<f32>,
    v: Place<f32>,
    dout: Place<f32>,
    dq: Place<f32>,
    dk: Place<f32>,
    dv: Place<f32>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    exact: bool,
}

pub(crate) fn run(cpu: &mut Cpu, of: &Attention, dout: Rows, dq: Rows, dk: Rows, dv: Rows) -> Result<()> {
    const OP: &str = "attend_gradient";
    let rows = |rows: Rows| cpu.arena.rows(OP, rows);
    let task = Task {
        q: rows(of.q)?,
        k: rows(of.k)?,
        v: rows(of.v)?,
        dout: rows(dout)?,
        dq: rows(dq)?,
        dk: rows(dk)?,
        dv: rows(dv)?,
        heads: of.q.columns / of.head_dim,
        kv_heads: of.k.columns / of.head_dim,
        head_dim: of.head_dim,
        window: of.window,
        exact: of.exact,
    };
    let longest = of.samples.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let scratch = cpu.scratch((0, scratch(longest, of.head_dim)), OP)?;
    let isa = cpu.isa;
    cpu.pool.run(of.samples.len() * task.kv_heads, &|chunk, thread| {
        // A sample's head of keys has outputs of its own, and so have its queries.
        let (sample, kv) = (task.of(&of.samples[chunk / task.kv_heads]), chunk % task.kv_heads);
        let scratch = scratch.of_thread(thread);
        #[cfg(target_arch = "x86_64")]
        if isa == crate::Isa::Amx && !task.exact {
            // SAFETY: AMX was found; scratch was sized for it and is this thread's.
            unsafe { tiled::head(&sample, kv, scratch) };
            return;
        }
        head(isa, &sample, kv, scratch.cast());
    });
    Ok(())
}

/// One sample of it.
struct Sample {
    task: Task,
    tokens: usize,
}

impl std::ops::Deref for Sample {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.task
    }
}

impl Task {
    /// The same with the places where a sample's rows begin.
    fn of(&self, rows: &std::ops::Range<usize>) -> Sample {
        let (wide, narrow) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        // SAFETY: `attend::check_gradient` saw that the rows exist.
        let at = |place: Place<f32>, width: usize| Place(unsafe { place.pointer().add(rows.start * width) });
        let task = Task {
            q: at(self.q, wide),
            k: at(self.k, narrow),
            v: at(self.v, narrow),
            dout: at(self.dout, wide),
            dq: at(self.dq, wide),
            dk: at(self.dk, narrow),
            dv: at(self.dv, narrow),
            ..*self
        };
        Sample { task, tokens: rows.len() }
    }
}

/// Gives out scratch.
struct Parts {
    next: Place<f32>,
}

impl Parts {
    /// # Safety
    /// There is room, and nobody else uses it.
    unsafe fn take<'a>(&mut self, count: usize) -> &'a mut [f32] {
        // SAFETY: by the caller's promise.
        unsafe {
            let part = self.next.slice_mut(0, count);
            self.next = Place(self.next.pointer().add(count));
            part
        }
    }
}

/// Rows as panels of 16 lanes: of rows (`[rows / 16][width][16]`), or of columns.
#[inline(always)]
fn panels_of_rows(rows: &[f32], width: usize, out: &mut [f32]) {
    for (r, row) in rows.chunks_exact(width).enumerate() {
        let panel = &mut out[r / PANEL * PANEL * width..][..PANEL * width];
        for (c, x) in row.iter().enumerate() {
            panel[c * PANEL + r % PANEL] = *x;
        }
    }
}

#[inline(always)]
fn panels_of_columns(rows: &[f32], width: usize, out: &mut [f32]) {
    let count = rows.len() / width;
    for (r, row) in rows.chunks_exact(width).enumerate() {
        for (c, x) in row.chunks_exact(PANEL).enumerate() {
            out[(c * count + r) * PANEL..][..PANEL].copy_from_slice(x);
        }
    }
}

/// out[p] = the canonical sum of x with panel p, for all panels.
#[inline(always)]
fn product(x: &[f32], panels: &[f32], out: &mut [f32]) {
    for (panel, out) in panels.chunks_exact(x.len() * PANEL).zip(out.as_chunks_mut::<PANEL>().0) {
        *out = [0.0; PANEL];
        let lines = panel.as_chunks::<PANEL>().0;
        for (x, lines) in x.chunks_exact(BLOCK).zip(lines.chunks_exact(BLOCK)) {
            group(x, lines, out);
        }
    }
}

impl Sample {
    /// Rows `first..` of a head into `[count][width]`, rounded, padded with zeros.
    ///
    /// # Safety
    /// Nobody writes the source.
    #[inline(always)]
    unsafe fn gather(&self, x: Place<f32>, heads: usize, head: usize, first: usize, out: &mut [f32]) {
        let width = Cache::padded_head(self.head_dim);
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            if first + r < self.tokens {
                // SAFETY: a row of the head; by the caller's promise.
                let x = unsafe { x.slice(((first + r) * heads + head) * self.head_dim, self.head_dim) };
                for (out, x) in out.iter_mut().zip(x) {
                    *out = self.round(*x);
                }
            }
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    #[inline(always)]
    fn round(&self, x: f32) -> f32 {
        if self.exact { x } else { bf16::round(x) }
    }
}

for_isa! {
/// One head of keys and values with all its queries.
fn head(task: &Sample, kv: usize, scratch: Place<f32>) {
    let (padded, width) = (task.tokens.next_multiple_of(KEYS), Cache::padded_head(task.head_dim));
    let (group_size, head_dim) = (task.heads / task.kv_heads, task.head_dim);
    let scale = task.scale();
    let mut parts = Parts { next: scratch };
    // SAFETY: `scratch` was sized for these; they are this thread's. The sums' panels are taken
    // from the outputs of this head, which no other thread touches.
    unsafe {
        let (keys, values) = (parts.take(padded * width), parts.take(padded * width));
        let channels = parts.take(padded * width);
        let (q_rows, dy_rows) = (parts.take(BLOCK * width), parts.take(BLOCK * width));
        let (q_panels, dy_panels) = (parts.take(BLOCK * width), parts.take(BLOCK * width));
        let (p, ds) = (parts.take(BLOCK * padded), parts.take(BLOCK * padded));
        let (p_columns, ds_columns) = (parts.take(BLOCK * padded), parts.take(BLOCK * padded));
        for first in (0..padded).step_by(BLOCK) {
            task.gather(task.k, task.kv_heads, kv, first, q_rows);
            panels_of_rows(q_rows, width, &mut keys[first * width..][..BLOCK * width]);
            for (r, row) in q_rows.chunks_exact(width).enumerate() {
                for (c, x) in row.chunks_exact(PANEL).enumerate() {
                    channels[(c * padded + first + r) * PANEL..][..PANEL].copy_from_slice(x);
                }
            }
            task.gather(task.v, task.kv_heads, kv, first, q_rows);
            panels_of_rows(q_rows, width, &mut values[first * width..][..BLOCK * width]);
        }
        for j in 0..task.tokens {
            let at = (j * task.kv_heads + kv) * head_dim;
            task.dk.slice_mut(at, head_dim).fill(0.0);
            task.dv.slice_mut(at, head_dim).fill(0.0);
        }
        for head in kv * group_size..(kv + 1) * group_size {
            for first in (0..task.tokens).step_by(BLOCK) {
                let seen = first + BLOCK;
                task.gather(task.q, task.heads, head, first, q_rows);
                task.gather(task.dout, task.heads, head, first, dy_rows);
                panels_of_columns(q_rows, width, q_panels);
                panels_of_columns(dy_rows, width, dy_panels);
                for t in 0..BLOCK {
                    let (p, ds) = (&mut p[t * seen..][..seen], &mut ds[t * seen..][..seen]);
                    if first + t < task.tokens {
                        product(&q_rows[t * width..][..width], &keys[..seen * width], p);
                        product(&dy_rows[t * width..][..width], &values[..seen * width], ds);
                        let end = first + t + 1;
                        let low = task.window.map_or(0, |window| end.saturating_sub(window));
                        attend::soften(p, ds, low..end, scale);
                    } else {
                        p.fill(0.0);
                        ds.fill(0.0);
                    }
                    for j in 0..seen {
                        (p[j], ds[j]) = (task.round(p[j]), task.round(ds[j]));
                        (p_columns[j * BLOCK + t], ds_columns[j * BLOCK + t]) = (p[j], ds[j]);
                    }
                    if first + t < task.tokens {
                        let at = ((first + t) * task.heads + head) * head_dim;
                        let out = task.dq.slice_mut(at, head_dim);
                        for (c, out) in out.chunks_mut(PANEL).enumerate() {
                            let mut sum = [0.0; PANEL];
                            let lines = channels[c * padded * PANEL..][..seen * PANEL].as_chunks::<PANEL>().0;
                            for (x, lines) in ds.chunks_exact(BLOCK).zip(lines.chunks_exact(BLOCK)) {
                                group(x, lines, &mut sum);
                            }
                            out.copy_from_slice(&sum[..out.len()]);
                        }
                    }
                }
                for j in 0..seen.min(task.tokens) {
                    let at = (j * task.kv_heads + kv) * head_dim;
                    let (dk, dv) = (task.dk.slice_mut(at, head_dim), task.dv.slice_mut(at, head_dim));
                    add_group(&ds_columns[j * BLOCK..][..BLOCK], q_panels, dk);
                    add_group(&p_columns[j * BLOCK..][..BLOCK], dy_panels, dv);
                }
            }
        }
    }
}
}

/// out += the canonical sum of one group with panels of 16 channels.
#[inline(always)]
fn add_group(x: &[f32], panels: &[f32], out: &mut [f32]) {
    for (panel, out) in panels.chunks_exact(BLOCK * PANEL).zip(out.chunks_mut(PANEL)) {
        let mut sum = [0.0; PANEL];
        sum[..out.len()].copy_from_slice(out);
        group(x, panel.as_chunks::<PANEL>().0, &mut sum);
        out.copy_from_slice(&sum[..out.len()]);
    }
}
