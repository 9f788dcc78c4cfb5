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
use crate::{Cpu, Isa, panel, strips};

const OP: &str = "update";

/// Rows that a thread takes at a time.
const AT_ONCE: usize = 64;

for_isa! {
fn learn(weights: RowWeights<'_>, moments: &mut [u8], second: RowSecond<'_>, g: &[f32], first: u64, moving: &Moving<'_>) -> Tally {
    update::row(weights, moments, second, g, first, moving)
}
}
for_isa! {
fn profile(averages: &[f32], columns: usize, inverses: &mut [f32]) {
    second::profile(averages, columns, inverses)
}
}
for_isa! { fn add_squares(g: &[f32], sums: &mut [f32]) { second::add_squares(g, sums) } }
for_isa! { fn add_sums(total: &mut [f32], part: &[f32]) { second::add_sums(total, part) } }
for_isa! {
fn follow_sums(averages: &mut [f32], sums: &[f32], count: usize, average: Average) {
    second::follow(averages, sums, count, average)
}
}
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

/// Bytes of scratch: the columns' profile and the sums of the panels that are looked at; for each thread a row's gradient,
/// codes and scales, or a panel's gradient, turned.
pub(crate) fn scratch(rows: usize, columns: usize) -> (usize, usize) {
    let (width, panels) = (update::padded(columns), rows.div_ceil(second::GROUP * second::APART));
    (((1 + panels) * width * 4).next_multiple_of(64), PANEL * width * 4)
}

/// Where the gradients of some rows lie, panel by panel.
#[derive(Clone, Copy)]
pub(crate) enum Gradient {
    /// Row after row.
    Rows(Place<f32>),
    /// Column after column, of sixteen rows side by side; where there are tiles.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Turned(Place<f32>),
}

impl Gradient {
    /// Those of the rows from `row` on, the first of a panel.
    ///
    /// # Safety
    /// They are there.
    unsafe fn from(self, row: usize, columns: usize) -> Gradient {
        // SAFETY: by the caller's promise.
        let on = |place: Place<f32>| Place(unsafe { place.pointer().add(row * columns) });
        match self {
            Gradient::Rows(place) => Gradient::Rows(on(place)),
            Gradient::Turned(place) => Gradient::Turned(on(place)),
        }
    }

    /// Copies a row of a panel.
    ///
    /// # Safety
    /// It is there, and only read.
    unsafe fn copy_row(self, row: usize, out: &mut [f32]) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Gradient::Rows(place) => out.copy_from_slice(place.slice(row * out.len(), out.len())),
                Gradient::Turned(place) => {
                    let columns = place.slice(0, out.len() * PANEL).as_chunks::<PANEL>().0;
                    for (out, column) in out.iter_mut().zip(columns) {
                        *out = column[row];
                    }
                }
            }
        }
    }
}

/// Rows of a weight that learn, with their pointers. Rows are counted from the first of them.
pub(crate) struct Task<'a> {
    isa: Isa,
    of: &'a Weight,
    step: &'a Step,
    moving: Moving<'a>,
    memory: Place<u8>,
    remainder: Place<u8>,
    moment: Place<u8>,
    /// Averages of the rows, or all second moments.
    second: Place<f32>,
    /// Inverse roots of the columns' profile.
    profile: Place<f32>,
    /// Sums of the columns' squares, of one panel that is looked at after the other.
    sums: Place<f32>,
    first: usize,
    rows: usize,
    width: usize,
    counts: [AtomicU64; 5],
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
    let (rows, columns) = (gradient.rows, of.columns);
    let scratch = cpu.scratch(scratch(rows, columns), OP)?;
    let gradient = cpu.arena.rows(OP, gradient)?;
    let task = Task::new(cpu, (of, first, rows), kept, step, scratch.shared)?;
    cpu.pool.run(rows.div_ceil(AT_ONCE), &|part, thread| {
        let first = part * AT_ONCE;
        // SAFETY: a row is learnt by one thread, whose scratch this is; the gradient is only read.
        unsafe {
            let gradient = Place(gradient.pointer().add(first * columns));
            task.learn(first..rows.min(first + AT_ONCE), Gradient::Rows(gradient), scratch.of_thread(thread));
        }
    });
    Ok(task.end(cpu))
}

impl<'a> Task<'a> {
    /// So many rows from `first` on; `place` has room for what they share. Shapes have been checked.
    pub(crate) fn new(
        cpu: &Cpu,
        (of, first, rows): (&'a Weight, usize, usize),
        kept: &Kept,
        step: &'a Step,
        place: Place<u8>,
    ) -> Result<Task<'a>> {
        let (width, profile) = (update::padded(of.columns), place.cast::<f32>());
        // SAFETY: `scratch` counts a profile, then sums.
        let sums = Place(unsafe { profile.pointer().add(width) });
        let task = Task {
            isa: cpu.isa,
            of,
            step,
            moving: Moving::new(step),
            memory: cpu.arena.place(OP, of.buffer)?,
            remainder: cpu.arena.place(OP, kept.remainder)?,
            moment: cpu.arena.place(OP, kept.moment)?,
            second: cpu.arena.place(OP, kept.second)?,
            profile,
            sums,
            first,
            rows,
            width,
            counts: [const { AtomicU64::new(0) }; 5],
        };
        if !step.recipe.full_second {
            // SAFETY: nobody else is at work yet.
            unsafe {
                let columns = task.columns().0.slice(0, width);
                self::profile(cpu.isa, columns, of.columns, profile.slice_mut(0, width));
            }
        }
        Ok(task)
    }

    /// The columns' averages, and their sums of this step: behind the averages of the rows.
    fn columns(&self) -> (Place<f32>, Place<f32>) {
        // SAFETY: `update::check_shapes` has counted them.
        let behind = |rows| Place(unsafe { self.second.pointer().add(rows) });
        let rows = self.of.rows * second::tiles(self.of.columns);
        (behind(rows), behind(rows + self.width))
    }

    /// Rows learn, from the first of a panel on. Their gradients lie together from `gradient` on.
    ///
    /// # Safety
    /// Every row is learnt once, this one by this thread alone, whose scratch that is. Nobody writes the gradient; where it is
    /// turned, AVX-512 is there.
    pub(crate) unsafe fn learn(&self, rows: Range<usize>, gradient: Gradient, scratch: Place<u8>) {
        let mut tally = Tally::default();
        for first in rows.clone().step_by(PANEL) {
            let panel = first..rows.end.min(first + PANEL);
            // SAFETY: by the caller's promise.
            unsafe {
                let gradient = gradient.from(first - rows.start, self.of.columns);
                self.follow(panel.clone(), gradient, scratch);
                tally.add(self.panel_rows(panel, gradient, scratch));
            }
        }
        let parts = [tally.changed, tally.rescaled, tally.saturated, tally.refused, tally.squares];
        for (count, part) in self.counts.iter().zip(parts) {
            count.fetch_add(part, Ordering::Relaxed);
        }
    }

    /// All rows have learnt: the columns' sums grow, and behind the last rows of all their averages follow.
    pub(crate) fn end(self, cpu: &mut Cpu) -> Tally {
        let (width, first, rows, step) = (self.width, self.first, self.of.rows, self.step);
        if !step.recipe.full_second {
            let (columns, total) = self.columns();
            let looked_at = second::rows_looked_at(0..rows, step.step);
            let panels = second::rows_looked_at(first..first + self.rows, step.step).div_ceil(PANEL);
            cpu.for_stripes(panels.max(1), width, &|from, count| {
                // SAFETY: a stripe of averages, totals and sums is touched by one chunk.
                unsafe {
                    let total = total.slice_mut(from, count);
                    if first == 0 {
                        total.fill(0.0);
                    }
                    for panel in (0..panels).step_by(second::TOGETHER) {
                        let together = self.sums.slice_mut(panel * width + from, count);
                        for next in panel + 1..panels.min(panel + second::TOGETHER) {
                            add_sums(self.isa, together, self.sums.slice(next * width + from, count));
                        }
                        add_sums(self.isa, total, together);
                    }
                    if first + self.rows == rows {
                        follow_sums(self.isa, columns.slice_mut(from, count), total, looked_at, step.average);
                    }
                }
            });
        }
        let [changed, rescaled, saturated, refused, squares] = self.counts.map(AtomicU64::into_inner);
        Tally { changed, rescaled, saturated, refused, squares }
    }

    /// Lets full second moments of a panel's rows follow the gradient; of factored ones, if the panel is looked at, sums the
    /// columns' squares.
    ///
    /// # Safety
    /// As `learn`.
    unsafe fn follow(&self, rows: Range<usize>, gradient: Gradient, scratch: Place<u8>) {
        let (isa, step) = (self.isa, self.step);
        if step.recipe.full_second {
            for (at, index) in rows.enumerate() {
                // SAFETY: by the caller's promise.
                unsafe {
                    let g = self.padded_row(gradient, at, scratch);
                    let second = self.second.slice_mut((self.first + index) * self.width, self.width);
                    follow_squares(isa, second, g, step.average);
                }
            }
            return;
        }
        let (first, panel) = (self.first / PANEL, (self.first + rows.start) / PANEL);
        if !second::looked_at(panel, step.step) {
            return;
        }
        let before = (panel - first) / second::APART;
        // SAFETY: a panel's sums, which only who learns it touches; the rest by the caller's promise.
        unsafe {
            let sums = self.sums.slice_mut(before * self.width, self.width);
            sums.fill(0.0);
            #[cfg(target_arch = "x86_64")]
            if let Gradient::Turned(gradient) = gradient
                && self.whole(&rows)
            {
                return avx512::add_squares(gradient.pointer(), sums);
            }
            for at in 0..rows.len() {
                add_squares(isa, self.padded_row(gradient, at, scratch), sums);
            }
        }
    }

    /// Whether the rows are a whole panel in whole blocks.
    #[cfg(target_arch = "x86_64")]
    fn whole(&self, rows: &Range<usize>) -> bool {
        rows.len() == PANEL && self.of.columns == self.width
    }

    /// Whether the rows of a panel learn together.
    #[cfg(target_arch = "x86_64")]
    fn together(&self, rows: &Range<usize>) -> bool {
        self.isa >= Isa::Avx512 && self.whole(rows) && strips::fits(self.of, &self.step.recipe)
    }

    /// A row of a panel's gradient in whole blocks: as it lies, or turned back and padded with zeros in the thread's scratch.
    ///
    /// # Safety
    /// The gradient is only read, and `scratch` is this thread's.
    unsafe fn padded_row<'g>(&self, gradient: Gradient, at: usize, scratch: Place<u8>) -> &'g [f32] {
        let columns = self.of.columns;
        // SAFETY: by the caller's promise.
        unsafe {
            if let Gradient::Rows(rows) = gradient
                && columns == self.width
            {
                return rows.slice(at * columns, columns);
            }
            let padded = scratch.cast::<f32>().slice_mut(0, self.width);
            gradient.copy_row(at, &mut padded[..columns]);
            padded[columns..].fill(0.0);
            padded
        }
    }

    /// Rows of one panel learn.
    ///
    /// # Safety
    /// As `learn`.
    unsafe fn panel_rows(&self, rows: Range<usize>, gradient: Gradient, scratch: Place<u8>) -> Tally {
        #[cfg(target_arch = "x86_64")]
        if self.together(&rows) {
            // SAFETY: this machine has the set (`Cpu::new`); the rest is the caller's promise.
            unsafe {
                let (turned, gradient) = match gradient {
                    Gradient::Rows(rows) => {
                        let turned = scratch.cast::<f32>();
                        avx512::turn(rows.pointer(), self.width, turned.pointer());
                        (turned, rows)
                    }
                    Gradient::Turned(turned) => (turned, turned),
                };
                let next = Place(gradient.pointer().wrapping_add(PANEL * self.width));
                let panel = self.panel(rows.start, turned, next);
                return avx512::learn(self.isa, self.of.format, &panel, &self.moving);
            }
        }
        let mut tally = Tally::default();
        for (at, index) in rows.enumerate() {
            // SAFETY: by the caller's promise.
            tally.add(unsafe { self.row(index, self.padded_row(gradient, at, scratch), scratch) });
        }
        tally
    }

    /// A whole panel from row `index` on.
    ///
    /// # Safety
    /// The rows are there.
    #[cfg(target_arch = "x86_64")]
    unsafe fn panel(&self, index: usize, gradient: Place<f32>, next: Place<f32>) -> avx512::Panel {
        let (of, width, number, recipe) = (self.of, self.width, self.first + index, &self.step.recipe);
        // SAFETY: by the caller's promise.
        unsafe {
            let units = number / PANEL * (width / halfbyte_ops::tensor::UNIT);
            avx512::Panel {
                weights: self.memory.pointer().add(panel::HEADER + units * of.format.unit_bytes()),
                global: panel::scale(of, self.memory.slice(0, panel::HEADER)),
                gradient: gradient.pointer().cast_const(),
                next_gradient: next.pointer().cast_const(),
                remainders: self.remainder.pointer().add(recipe.remainder_bytes(of.format, number, width)),
                moments: self.moment.pointer().add(recipe.moment_bytes(number, width)),
                averages: self.second.pointer().add(number * second::tiles(width)),
                profile: self.profile.pointer().cast_const(),
                first: (number * width) as u64,
                width,
            }
        }
    }

    /// One row, whose gradient is whole blocks: its remainders and moments out of their panel and back, if they lie in one.
    ///
    /// # Safety
    /// As `learn`.
    unsafe fn row(&self, index: usize, g: &[f32], scratch: Place<u8>) -> Tally {
        let (of, recipe) = (self.of, &self.step.recipe);
        let (number, lane) = (self.first + index, (self.first + index) % PANEL);
        let remainder = recipe.remainder_bytes(of.format, 1, of.columns);
        let moment = recipe.moment_bytes(1, of.columns);
        // SAFETY: a row, or its panel, which only this thread touches.
        let of_rows = |place: Place<u8>, bytes: usize, first: usize, count: usize| unsafe {
            place.slice_mut(first * bytes, count * bytes)
        };
        if !strips::laid(of, recipe, number - lane) {
            let remainders = of_rows(self.remainder, remainder, number, 1);
            let moments = of_rows(self.moment, moment, number, 1);
            // SAFETY: by the caller's promise.
            return unsafe { self.row_in_one_piece(index, (remainders, moments), g, scratch) };
        }
        // SAFETY: behind what a row needs, as `scratch` counts.
        let [remainders, moments] = [(9, remainder), (10, moment)]
            .map(|(at, bytes)| unsafe { scratch.slice_mut(at * self.width, bytes) });
        let (rests, [codes, scales]) = (strips::remainder(of, recipe), strips::moment());
        let rest_panel = of_rows(self.remainder, remainder, number - lane, PANEL);
        let moment_panel = of_rows(self.moment, moment, number - lane, PANEL);
        rests.take(rest_panel, lane, remainders);
        let (code_bytes, scale_bytes) = moments.split_at_mut(self.width / 2);
        codes.take(moment_panel, lane, code_bytes);
        scales.take(moment_panel, lane, scale_bytes);
        // SAFETY: by the caller's promise.
        let tally = unsafe { self.row_in_one_piece(index, (remainders, moments), g, scratch) };
        rests.put(rest_panel, lane, remainders);
        let (code_bytes, scale_bytes) = moments.split_at(self.width / 2);
        codes.put(moment_panel, lane, code_bytes);
        scales.put(moment_panel, lane, scale_bytes);
        tally
    }

    /// The same with its remainders and moments as they are in a row.
    ///
    /// # Safety
    /// As `learn`.
    unsafe fn row_in_one_piece(
        &self,
        index: usize,
        (remainders, moments): (&mut [u8], &mut [u8]),
        g: &[f32],
        scratch: Place<u8>,
    ) -> Tally {
        let (isa, of, width, columns) = (self.isa, self.of, self.width, self.of.columns);
        let (number, blocks, recipe) = (self.first + index, width / BLOCK, &self.step.recipe);
        // SAFETY: parts of this row, and of this thread's scratch.
        unsafe {
            let memory = self.memory.slice(0, of.buffer.bytes);
            let rest = Place(scratch.pointer().add(width * 4));
            let codes = rest.slice_mut(0, width * 4);
            let scales = Place(rest.pointer().add(width * 4)).slice_mut(0, blocks);
            let second = match recipe.full_second {
                true => RowSecond::Full(self.second.slice(number * width, width)),
                false => RowSecond::Factored(
                    self.second.slice_mut(number * second::tiles(columns), second::tiles(columns)),
                    columns,
                    self.profile.slice(0, width),
                ),
            };
            let first = (number * width) as u64;
            match of.format {
                WeightFormat::Nvfp4 => {
                    let codes = &mut codes[..width / 2];
                    panel::take_row(of, memory, number, codes, scales);
                    let global = panel::scale(of, memory);
                    let weights = RowWeights::Nvfp4(weight::Row { codes, scales, remainders }, global);
                    let tally = learn(isa, weights, moments, second, g, first, &self.moving);
                    panel::put_row(of, self.memory, number, codes, scales);
                    tally
                }
                WeightFormat::Int8 => {
                    let codes = &mut codes[..width];
                    panel::take_row(of, memory, number, codes, scales);
                    let signed = Place(codes.as_mut_ptr().cast::<i8>()).slice_mut(0, width);
                    let weights = RowWeights::Int8(int8::Row { codes: signed, scales, remainders });
                    let tally = learn(isa, weights, moments, second, g, first, &self.moving);
                    panel::put_row(of, self.memory, number, codes, scales);
                    tally
                }
                WeightFormat::F32 | WeightFormat::Bf16 => {
                    let values = rest.cast::<f32>().slice_mut(0, width);
                    values.fill(0.0);
                    panel::read_row(of, memory, number, &mut values[..columns]);
                    let tally = learn(isa, RowWeights::F32(values), moments, second, g, first, &self.moving);
                    panel::put_row(of, self.memory, number, rest.slice(0, columns * 4), &[]);
                    tally
                }
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
