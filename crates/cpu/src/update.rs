//! Tensors learn, sixteen rows of a panel at a time: a row is taken out of its panel, moved by the
//! reference's own lines, compiled for the instruction set, and put back.

use std::sync::atomic::{AtomicU64, Ordering};

use halfbyte_formats::state::{Average, BLOCK, Tally, int8, second, weight};
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::update::{self, Kept, Moving, RowSecond, RowWeights, Second, Step};
use halfbyte_ops::{Result, Rows, Vector, Weight, WeightFormat};

use crate::arena::Place;
use crate::isa::for_isa;
use crate::{Cpu, STRIPE, panel};

const OP: &str = "update";

for_isa! {
fn learn(weights: RowWeights<'_>, moments: &mut [u8], second: RowSecond<'_>, g: &[f32], first: u64, moving: &Moving<'_>) -> Tally {
    update::row(weights, moments, second, g, first, moving)
}
}
for_isa! { fn squares(g: &[f32]) -> f32 { second::sum_of_squares(g) } }
for_isa! {
fn add_squares(g: &[f32], sums: &mut [f32]) {
    for (sum, g) in sums.iter_mut().zip(g) {
        *sum += g * g;
    }
}
}
for_isa! {
fn follow_squares(v: &mut [f32], g: &[f32], average: Average) {
    second::follow_squares(v, g, average)
}
}
for_isa! {
fn learn_vector(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &Step) {
    update::vector(w, m, v, g, step)
}
}

/// Bytes of scratch for each thread: a row's gradient, codes and scales.
pub(crate) fn scratch(columns: usize) -> usize {
    let width = update::padded(columns);
    width * 4 + width * 4 + width / BLOCK
}

/// One call, with its pointers.
struct Task<'a> {
    of: &'a Weight,
    memory: Place<u8>,
    gradient: Place<f32>,
    remainder: Place<u8>,
    moment: Place<u8>,
    rows: Place<f32>,
    columns: Place<f32>,
    first: usize,
    width: usize,
}

pub(crate) fn weight(
    cpu: &mut Cpu,
    of: &Weight,
    first: usize,
    gradient: Rows,
    kept: &Kept,
    kind: Second,
    step: &Step,
) -> Result<Tally> {
    update::check_shapes(of, first, gradient, kept, kind, &step.recipe)?;
    let second = cpu.arena.place::<f32>(OP, kept.second)?;
    let task = Task {
        of,
        memory: cpu.arena.place(OP, of.buffer)?,
        gradient: cpu.arena.rows(OP, gradient)?,
        remainder: cpu.arena.place(OP, kept.remainder)?,
        moment: cpu.arena.place(OP, kept.moment)?,
        rows: second,
        // SAFETY: the columns' averages follow the rows'; only factored moments have them.
        columns: Place(unsafe { second.pointer().add(if kind == Second::Factored { of.rows } else { 0 }) }),
        first,
        width: update::padded(of.columns),
    };
    let (isa, scratch) = (cpu.isa, cpu.scratch((0, scratch(of.columns)), OP)?);
    let mean = follow(cpu, &task, gradient, kind, step.average);
    let moving = Moving::new(step);
    let counts = [const { AtomicU64::new(0) }; 4];
    cpu.pool.run(gradient.rows.div_ceil(PANEL), &|chunk, thread| {
        let mut tally = Tally::default();
        for index in chunk * PANEL..gradient.rows.min((chunk + 1) * PANEL) {
            // SAFETY: a row is learnt by one thread; scratch is this thread's.
            tally.add(unsafe {
                row(isa, &task, index, kind, mean, (step, &moving), scratch.of_thread(thread))
            });
        }
        let parts = [tally.changed, tally.rescaled, tally.saturated, tally.refused];
        for (count, part) in counts.iter().zip(parts) {
            count.fetch_add(part, Ordering::Relaxed);
        }
    });
    let [changed, rescaled, saturated, refused] = counts.map(AtomicU64::into_inner);
    Ok(Tally { changed, rescaled, saturated, refused })
}

/// Lets the second moments follow the gradient; gives the mean of the rows'.
fn follow(cpu: &mut Cpu, task: &Task<'_>, gradient: Rows, kind: Second, average: Average) -> f32 {
    let (isa, columns, rows) = (cpu.isa, gradient.columns, gradient.rows);
    if kind == Second::Full {
        cpu.for_rows(rows, columns, &|index| {
            // SAFETY: each row is written by one chunk; the gradient is only read.
            unsafe {
                let v = task.rows.slice_mut((task.first + index) * task.width, columns);
                follow_squares(isa, v, task.gradient.slice(index * columns, columns), average);
            }
        });
        return 0.0;
    }
    let whole = columns == task.width;
    cpu.for_rows(rows, columns, &|index| {
        // SAFETY: each row's average is written by one chunk; the gradient is only read.
        unsafe {
            let g = task.gradient.slice(index * columns, columns);
            let sum = match whole {
                true => squares(isa, g),
                false => padded_squares(g),
            };
            let old = &mut task.rows.slice_mut(task.first + index, 1)[0];
            *old = second::follow_one(*old, sum, columns, average);
        }
    });
    if kind == Second::PerRow {
        return 0.0;
    }
    cpu.for_stripes(rows, columns, &|first, count| {
        let mut sums = [0.0; STRIPE];
        for index in 0..rows {
            // SAFETY: the gradient is only read.
            let g = unsafe { task.gradient.slice(index * columns + first, count) };
            add_squares(isa, g, &mut sums);
        }
        // SAFETY: a stripe is written by one chunk.
        let averages = unsafe { task.columns.slice_mut(first, count) };
        second::follow(averages, &sums[..count], rows, average);
    });
    // SAFETY: written above.
    second::mean(unsafe { task.rows.slice(0, task.of.rows) })
}

/// The squares of a row that is no whole number of blocks, as of one padded with zeros.
fn padded_squares(g: &[f32]) -> f32 {
    let (whole, rest) = g.as_chunks::<BLOCK>();
    let mut last = [0.0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    let mut lanes = [0.0f32; BLOCK];
    for block in whole.iter().chain([&last]) {
        for i in 0..BLOCK {
            lanes[i] += block[i] * block[i];
        }
    }
    halfbyte_ops::math::fold(lanes)
}

/// # Safety
/// This thread alone touches the row and `scratch`.
unsafe fn row(
    isa: crate::Isa,
    task: &Task<'_>,
    index: usize,
    kind: Second,
    mean: f32,
    (step, moving): (&Step, &Moving<'_>),
    scratch: Place<u8>,
) -> Tally {
    let (of, width, columns) = (task.of, task.width, task.of.columns);
    let (number, blocks) = (task.first + index, width / BLOCK);
    let remainder = step.recipe.remainder_bytes(of.format, 1, columns);
    let moment = step.recipe.moment_bytes(1, columns);
    // SAFETY: parts of this row, and of this thread's scratch.
    unsafe {
        let memory = task.memory.slice(0, of.buffer.bytes);
        let g = scratch.cast::<f32>().slice_mut(0, width);
        g[..columns].copy_from_slice(task.gradient.slice(index * columns, columns));
        g[columns..].fill(0.0);
        let rest = Place(scratch.pointer().add(width * 4));
        let codes = rest.slice_mut(0, width * 4);
        let scales = Place(rest.pointer().add(width * 4)).slice_mut(0, blocks);
        let remainders = task.remainder.slice_mut(number * remainder, remainder);
        let moments = task.moment.slice_mut(number * moment, moment);
        let second = match kind {
            Second::Factored => {
                let factor = second::row_factor(task.rows.slice(number, 1)[0], mean);
                RowSecond::Factored(factor, task.columns.slice(0, width))
            }
            Second::PerRow => RowSecond::PerRow(task.rows.slice(number, 1)[0]),
            Second::Full => RowSecond::Full(task.rows.slice(number * width, width)),
        };
        let first = (number * width) as u64;
        match of.format {
            WeightFormat::Nvfp4 => {
                let codes = &mut codes[..width / 2];
                panel::take_row(of, memory, number, codes, scales);
                let global = panel::scale(of, memory);
                let weights = RowWeights::Nvfp4(weight::Row { codes, scales, remainders }, global);
                let tally = learn(isa, weights, moments, second, g, first, moving);
                panel::put_row(of, task.memory, number, codes, scales);
                tally
            }
            WeightFormat::Int8 => {
                let codes = &mut codes[..width];
                panel::take_row(of, memory, number, codes, scales);
                let signed = Place(codes.as_mut_ptr().cast::<i8>()).slice_mut(0, width);
                let weights = RowWeights::Int8(int8::Row { codes: signed, scales, remainders });
                let tally = learn(isa, weights, moments, second, g, first, moving);
                panel::put_row(of, task.memory, number, codes, scales);
                tally
            }
            WeightFormat::F32 | WeightFormat::Bf16 => {
                let values = rest.cast::<f32>().slice_mut(0, width);
                values.fill(0.0);
                panel::read_row(of, memory, number, &mut values[..columns]);
                let tally = learn(isa, RowWeights::F32(values), moments, second, g, first, moving);
                panel::put_values(of, task.memory, number, &values[..columns]);
                tally
            }
        }
    }
}

pub(crate) fn vector(cpu: &mut Cpu, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
    update::check_vector(of, gradient, kept)?;
    let place = |buffer| cpu.arena.place::<f32>("update_vector", buffer);
    let (w, m, v) = (place(of.buffer)?, place(kept.moment)?, place(kept.second)?);
    let g = cpu.arena.rows("update_vector", gradient)?;
    // SAFETY: four places that lie apart, exclusive by `&mut self`.
    unsafe {
        let (w, m, v) = (w.slice_mut(0, of.len), m.slice_mut(0, of.len), v.slice_mut(0, of.len));
        learn_vector(cpu.isa, w, m, v, g.slice(0, of.len), step);
    }
    Ok(())
}
