//! Tensors learn, sixteen rows of a panel at a time: together in `avx512` where the state is one it knows,
//! otherwise a row is taken out of its panel, moved by the reference's own lines, compiled for the
//! instruction set, and put back.

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use halfbyte_formats::state::{Average, BLOCK, Tally, int8, second, weight};
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::update::{self, Kept, Moving, RowSecond, RowWeights, Step};
use halfbyte_ops::{Result, Rows, Vector, Weight, WeightFormat};

use crate::arena::Place;
use crate::isa::for_isa;
use crate::{Cpu, Isa, panel};

const OP: &str = "update";

for_isa! {
fn learn(weights: RowWeights<'_>, moments: &mut [u8], second: RowSecond<'_>, g: &[f32], first: u64, moving: &Moving<'_>) -> Tally {
    update::row(weights, moments, second, g, first, moving)
}
}
for_isa! { fn add_squares(g: &[f32], sums: &mut [f32]) -> f32 { second::add_squares(g, sums) } }
for_isa! {
fn follow_squares(v: &mut [f32], g: &[f32], average: Average) {
    second::follow_squares(v, g, average)
}
}
for_isa! {
fn learn_vector(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &Step) -> Tally {
    update::vector(w, m, v, g, step)
}
}

/// Bytes of scratch: the columns' profile and the sums of groups of rows; for each thread a row's gradient,
/// codes and scales.
pub(crate) fn scratch(rows: usize, columns: usize) -> (usize, usize) {
    let width = update::padded(columns);
    ((1 + rows.div_ceil(second::GROUP)) * width * 4, width * 4 + width * 4 + width / BLOCK)
}

/// One call, with its pointers.
struct Task<'a> {
    of: &'a Weight,
    memory: Place<u8>,
    gradient: Place<f32>,
    remainder: Place<u8>,
    moment: Place<u8>,
    /// Averages of the rows, or all second moments.
    second: Place<f32>,
    /// Roots of the columns' profile.
    profile: Place<f32>,
    first: usize,
    width: usize,
}

pub(crate) fn weight(
    cpu: &mut Cpu,
    of: &Weight,
    first: usize,
    gradient: Rows,
    kept: &Kept,
    step: &Step,
) -> Result<Tally> {
    update::check_shapes(of, first, gradient, kept, &step.recipe)?;
    let (rows, width, full) = (gradient.rows, update::padded(of.columns), step.recipe.full_second);
    let (isa, scratch) = (cpu.isa, cpu.scratch(scratch(rows, of.columns), OP)?);
    let profile = scratch.shared.cast::<f32>();
    let task = Task {
        of,
        memory: cpu.arena.place(OP, of.buffer)?,
        gradient: cpu.arena.rows(OP, gradient)?,
        remainder: cpu.arena.place(OP, kept.remainder)?,
        moment: cpu.arena.place(OP, kept.moment)?,
        second: cpu.arena.place(OP, kept.second)?,
        profile,
        first,
        width,
    };
    // SAFETY: behind the rows' averages lie the columns', and their sums; nobody else is at work yet.
    let (columns, total) =
        unsafe { (task.second.pointer().add(of.rows), task.second.pointer().add(of.rows + width)) };
    let (columns, total) = (Place(columns), Place(total));
    if !full {
        // SAFETY: as above.
        unsafe { second::profile(columns.slice(0, width), of.columns, profile.slice_mut(0, width)) };
    }
    let moving = Moving::new(step);
    let counts = [const { AtomicU64::new(0) }; 5];
    let groups = rows.div_ceil(second::GROUP);
    // SAFETY: scratch has a place for each group.
    let sums = Place(unsafe { profile.pointer().add(width) });
    cpu.pool.run(groups, &|group, thread| {
        let scratch = scratch.of_thread(thread);
        let mut tally = Tally::default();
        // SAFETY: a group has its own sums.
        let sums = unsafe { sums.slice_mut(group * width, if full { 0 } else { width }) };
        sums.fill(0.0);
        for first in (group * second::GROUP..rows.min((group + 1) * second::GROUP)).step_by(PANEL) {
            let rows = first..rows.min(first + PANEL);
            // SAFETY: a row is learnt by one thread; scratch is this thread's.
            unsafe {
                follow(isa, &task, rows.clone(), step, sums, scratch);
                tally.add(panel_rows(isa, &task, rows, (step, &moving), scratch));
            }
        }
        let parts = [tally.changed, tally.rescaled, tally.saturated, tally.refused, tally.squares];
        for (count, part) in counts.iter().zip(parts) {
            count.fetch_add(part, Ordering::Relaxed);
        }
    });
    if !full {
        cpu.for_stripes(groups, width, &|from, count| {
            // SAFETY: sums are only read; a stripe of averages and totals is written by one chunk.
            unsafe {
                let total = total.slice_mut(from, count);
                if first == 0 {
                    total.fill(0.0);
                }
                for group in 0..groups {
                    second::add_sums(total, sums.slice(group * width + from, count));
                }
                if first + rows == of.rows {
                    second::follow(columns.slice_mut(from, count), total, of.rows, step.average);
                }
            }
        });
    }
    let [changed, rescaled, saturated, refused, squares] = counts.map(AtomicU64::into_inner);
    Ok(Tally { changed, rescaled, saturated, refused, squares })
}

/// Lets the second moments of a panel's rows follow the gradient, which is near from then on; `sums` of the
/// columns grow by its squares.
///
/// # Safety
/// This thread alone touches the rows and `scratch`.
unsafe fn follow(
    isa: Isa,
    task: &Task<'_>,
    rows: Range<usize>,
    step: &Step,
    sums: &mut [f32],
    scratch: Place<u8>,
) {
    let columns = task.of.columns;
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 && rows.len() == PANEL && avx512::fits(task.of, &step.recipe) {
        // SAFETY: this machine has the set (`Cpu::new`); the rest is the caller's promise.
        unsafe {
            let squares = avx512::add_squares(&panel_of(task, rows.start, step), sums);
            let averages = task.second.slice_mut(task.first + rows.start, PANEL);
            second::follow(averages, &squares, columns, step.average);
        }
        return;
    }
    for index in rows {
        let number = task.first + index;
        // SAFETY: by the caller's promise.
        unsafe {
            let g = padded_row(task, index, columns, scratch);
            if step.recipe.full_second {
                follow_squares(isa, task.second.slice_mut(number * task.width, task.width), g, step.average);
            } else {
                let old = &mut task.second.slice_mut(number, 1)[0];
                *old = second::follow_one(*old, add_squares(isa, g, sums), columns, step.average);
            }
        }
    }
}

/// A row of the gradient in whole blocks: as it lies, or padded with zeros in the thread's scratch.
///
/// # Safety
/// The gradient is only read, and `scratch` is this thread's.
unsafe fn padded_row<'a>(task: &Task<'_>, index: usize, columns: usize, scratch: Place<u8>) -> &'a [f32] {
    // SAFETY: by the caller's promise.
    unsafe {
        let g = task.gradient.slice(index * columns, columns);
        if columns == task.width {
            return g;
        }
        let padded = scratch.cast::<f32>().slice_mut(0, task.width);
        padded[..columns].copy_from_slice(g);
        padded[columns..].fill(0.0);
        padded
    }
}

/// Rows of one panel learn.
///
/// # Safety
/// This thread alone touches the rows and `scratch`.
unsafe fn panel_rows(
    isa: Isa,
    task: &Task<'_>,
    rows: Range<usize>,
    (step, moving): (&Step, &Moving<'_>),
    scratch: Place<u8>,
) -> Tally {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 && rows.len() == PANEL && avx512::fits(task.of, &step.recipe) {
        // SAFETY: this machine has the set (`Cpu::new`); the rest is the caller's promise.
        return unsafe { avx512::learn(task.of.format, &panel_of(task, rows.start, step), moving) };
    }
    let mut tally = Tally::default();
    for index in rows {
        // SAFETY: by the caller's promise.
        tally.add(unsafe { row(isa, task, index, (step, moving), scratch) });
    }
    tally
}

/// A whole panel, from row `index` of the gradient on.
///
/// # Safety
/// The rows are there.
#[cfg(target_arch = "x86_64")]
unsafe fn panel_of(task: &Task<'_>, index: usize, step: &Step) -> avx512::Panel {
    let (of, width, number) = (task.of, task.width, task.first + index);
    // SAFETY: by the caller's promise.
    unsafe {
        let units = number / PANEL * (width / halfbyte_ops::tensor::UNIT);
        avx512::Panel {
            weights: task.memory.pointer().add(panel::HEADER + units * of.format.unit_bytes()),
            global: panel::scale(of, task.memory.slice(0, panel::HEADER)),
            gradient: task.gradient.pointer().add(index * width),
            remainders: task.remainder.pointer().add(step.recipe.remainder_bytes(of.format, number, width)),
            moments: task.moment.pointer().add(step.recipe.moment_bytes(number, width)),
            rows: *task.second.slice(number, PANEL).as_array().expect("sixteen rows"),
            profile: task.profile.pointer().cast_const(),
            first: (number * width) as u64,
            width,
        }
    }
}

/// # Safety
/// This thread alone touches the row and `scratch`.
unsafe fn row(
    isa: Isa,
    task: &Task<'_>,
    index: usize,
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
        let g = padded_row(task, index, columns, scratch);
        let rest = Place(scratch.pointer().add(width * 4));
        let codes = rest.slice_mut(0, width * 4);
        let scales = Place(rest.pointer().add(width * 4)).slice_mut(0, blocks);
        let remainders = task.remainder.slice_mut(number * remainder, remainder);
        let moments = task.moment.slice_mut(number * moment, moment);
        let second = match step.recipe.full_second {
            true => RowSecond::Full(task.second.slice(number * width, width)),
            false => RowSecond::Factored(task.second.slice(number, 1)[0], task.profile.slice(0, width)),
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

pub(crate) fn vector(cpu: &mut Cpu, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<Tally> {
    update::check_vector(of, gradient, kept)?;
    let place = |buffer| cpu.arena.place::<f32>("update_vector", buffer);
    let (w, m, v) = (place(of.buffer)?, place(kept.moment)?, place(kept.second)?);
    let g = cpu.arena.rows("update_vector", gradient)?;
    // SAFETY: four places that lie apart, exclusive by `&mut self`.
    unsafe {
        let (w, m, v) = (w.slice_mut(0, of.len), m.slice_mut(0, of.len), v.slice_mut(0, of.len));
        Ok(learn_vector(cpu.isa, w, m, v, g.slice(0, of.len), step))
    }
}
