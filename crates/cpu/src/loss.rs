//! Cross-entropy over chunks of the vocabulary: the reference's own lines, compiled for the instruction set. What is made
//! of logits and rounded is written by hand for AMX's set.

use halfbyte_ops::loss::{self, STATE};
#[cfg(target_arch = "x86_64")]
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Result, Rows};

use crate::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
use crate::isa::for_isa;
use crate::narrow::{NarrowRow, Output, narrow};
#[cfg(target_arch = "x86_64")]
use crate::vector;

const OP: &str = "loss";

for_isa! { fn forward_row(logits: &[f32], first: usize, target: u32, state: &mut [f32]) { loss::forward(logits, first, target, state) } }
for_isa! {
fn exponentials_in_place(logits: &mut [f32], first: usize, target: u32, state: &mut [f32], sums: &mut [f32]) {
    loss::exponentials(logits, first, target, state, sums)
}
}
for_isa! {
fn gradient_in_place(logits: &mut [f32], first: usize, target: u32, state: &[f32], weight: f32) {
    loss::gradient(logits, first, target, state, weight)
}
}
for_isa! {
fn input_gradient_row(target: u32, state: &[f32], weight: f32, of_target: &[f32], dx: &mut [f32]) {
    loss::input_gradient(target, state, weight, of_target, dx)
}
}

/// Whether a row is rounded in registers: whole units, which need no padding.
#[cfg(target_arch = "x86_64")]
fn fits(isa: Isa, logits: &[f32]) -> bool {
    isa == Isa::Amx && logits.len().is_multiple_of(UNIT)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn exponentials_in_registers(
    logits: &[f32],
    first: usize,
    target: u32,
    state: &mut [f32],
    sums: &mut [f32],
    out: &mut NarrowRow,
) {
    use std::arch::x86_64::*;
    let top = loss::begin(logits, first, target, state);
    let mut lanes = _mm512_setzero_ps();
    for (i, logits) in logits.as_chunks::<PANEL>().0.iter().enumerate() {
        // SAFETY: 16 values.
        let logits = unsafe { _mm512_loadu_ps(logits.as_ptr()) };
        let e = vector::exp_to_one(_mm512_sub_ps(logits, _mm512_set1_ps(top)));
        lanes = _mm512_add_ps(lanes, e);
        out.put_register(i, e);
    }
    let mut sum = [0.0; PANEL];
    // SAFETY: 16 values.
    unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), lanes) };
    loss::end(top, sum, state, sums);
}

/// The target is logit `at`, if there is such a one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn gradient_in_registers(logits: &[f32], at: usize, state: &[f32], weight: f32, out: &mut NarrowRow) {
    use std::arch::x86_64::*;
    let (top, factor) = (_mm512_set1_ps(state[0]), _mm512_set1_ps(weight / state[1]));
    for (i, logits) in logits.as_chunks::<PANEL>().0.iter().enumerate() {
        // SAFETY: 16 values.
        let logits = unsafe { _mm512_loadu_ps(logits.as_ptr()) };
        let e = _mm512_mul_ps(vector::exp_to_one(_mm512_sub_ps(logits, top)), factor);
        let target = 1u16.checked_shl((at.wrapping_sub(i * PANEL)).min(PANEL) as u32).unwrap_or(0);
        out.put_register(i, _mm512_mask_sub_ps(e, target, e, _mm512_set1_ps(weight)));
    }
}

pub(crate) fn forward(cpu: &mut Cpu, logits: Rows, first: usize, targets: &[u32], state: Rows) -> Result<()> {
    loss::check_shapes(logits, targets, state)?;
    let (place, state) = (cpu.arena.rows(OP, logits)?, cpu.arena.rows(OP, state)?);
    let (isa, width) = (cpu.isa, logits.columns);
    cpu.for_rows(logits.rows, width, &|row| {
        // SAFETY: each token's state is written by one chunk.
        unsafe {
            let state = state.slice_mut(row * STATE, STATE);
            forward_row(isa, place.slice(row * width, width), first, targets[row], state);
        }
    });
    Ok(())
}

pub(crate) fn exponentials(
    cpu: &mut Cpu,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
    out: Rows,
    sums: Rows,
) -> Result<()> {
    loss::check_exponentials(logits, targets, state, out, sums)?;
    let (state, sums_place) = (cpu.arena.rows(OP, state)?, cpu.arena.rows(OP, sums)?);
    let (isa, columns) = (cpu.isa, sums.columns);
    instead_of(cpu, logits, out, |row, logits, out| {
        // SAFETY: each token's state and sums are written by one chunk.
        let (state, sums) =
            unsafe { (state.slice_mut(row * STATE, STATE), sums_place.slice_mut(row * columns, columns)) };
        match out {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AMX was found, and conversion to bf16 with it.
            Some(out) if fits(isa, logits) => unsafe {
                exponentials_in_registers(logits, first, targets[row], state, sums, out);
            },
            out => {
                exponentials_in_place(isa, logits, first, targets[row], state, sums);
                out.into_iter().for_each(|out| narrow(isa, logits, out));
            }
        }
    })
}

pub(crate) fn gradient(
    cpu: &mut Cpu,
    logits: Rows,
    first: usize,
    targets: &[u32],
    state: Rows,
    weight: f32,
    out: Rows,
) -> Result<()> {
    loss::check_gradient(logits, targets, state, out)?;
    let (isa, state) = (cpu.isa, cpu.arena.rows(OP, state)?);
    instead_of(cpu, logits, out, |row, logits, out| {
        // SAFETY: states are only read.
        let (target, state) = (targets[row], unsafe { state.slice(row * STATE, STATE) });
        match out {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AMX was found, and conversion to bf16 with it.
            Some(out) if fits(isa, logits) && target != loss::UNTRAINED => unsafe {
                gradient_in_registers(logits, (target as usize).wrapping_sub(first), state, weight, out);
            },
            out => {
                gradient_in_place(isa, logits, first, target, state, weight);
                out.into_iter().for_each(|out| narrow(isa, logits, out));
            }
        }
    })
}

/// Rows of `out` made of logits by `work`: in their place, or in the narrow row that it is given.
fn instead_of(
    cpu: &mut Cpu,
    logits: Rows,
    out: Rows,
    work: impl Fn(usize, &mut [f32], Option<&mut NarrowRow>) + Sync,
) -> Result<()> {
    let (place, to) = (cpu.arena.rows(OP, logits)?, cpu.arena.output(OP, out)?);
    let (width, in_place) = (logits.columns, logits.buffer == out.buffer);
    cpu.for_rows(logits.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; logits and out are the same rows or apart.
        unsafe {
            let logits = place.slice_mut(row * width, width);
            match to {
                Output::Narrow(out) => work(row, logits, Some(&mut out.row(row))),
                Output::Wide(out, _) => {
                    work(row, logits, None);
                    if !in_place {
                        out.slice_mut(row * width, width).copy_from_slice(logits);
                    }
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn input_gradient(
    cpu: &mut Cpu,
    targets: &[u32],
    state: Rows,
    weight: f32,
    of_targets: Rows,
    dx: Rows,
) -> Result<()> {
    loss::check_input_gradient(targets, state, of_targets, dx)?;
    let (state, of_targets) = (cpu.arena.rows(OP, state)?, cpu.arena.rows(OP, of_targets)?);
    let (isa, width, to) = (cpu.isa, dx.columns, cpu.arena.rows(OP, dx)?);
    cpu.for_rows(dx.rows, width, &|row| {
        // SAFETY: each row of dx is written by one chunk; the others are only read.
        unsafe {
            let (state, of_target) = (state.slice(row * STATE, STATE), of_targets.slice(row * width, width));
            input_gradient_row(isa, targets[row], state, weight, of_target, to.slice_mut(row * width, width));
        }
    });
    Ok(())
}
