//! Ops that go row by row: the reference's own lines, compiled for the instruction set. Only the
//! norm that rounds its output is written by hand for AMX's set.

use halfbyte_ops::error::check;
#[cfg(target_arch = "x86_64")]
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Result, Rows, Vector, Weight, embed, gated, residual, rms_norm, rope};

use crate::isa::{Isa, for_isa};
use crate::narrow::{NarrowRow, Output, narrow};
use crate::{Cpu, panel};

for_isa! { fn norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) { rms_norm::forward(x, gain, eps, out) } }
for_isa! {
fn norm_narrow_in_lanes(x: &[f32], gain: &[f32], eps: f32, out: &mut NarrowRow) {
    let r = rms_norm::reciprocal_rms(x, eps);
    let mut line = [0.0; 32];
    for (i, (x, gain)) in x.chunks(32).zip(gain.chunks(32)).enumerate() {
        for ((line, x), gain) in line.iter_mut().zip(x).zip(gain) {
            *line = rms_norm::scaled(*x, *gain, r);
        }
        out.put(i * 32, &line[..x.len()]);
    }
}
}

fn norm_narrow(isa: Isa, x: &[f32], gain: &[f32], eps: f32, out: &mut NarrowRow) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx && x.len().is_multiple_of(UNIT) {
        // SAFETY: AMX was found, and conversion to bf16 with it.
        return unsafe { norm_narrow_in_registers(x, gain, eps, out) };
    }
    norm_narrow_in_lanes(isa, x, gain, eps, out);
}

/// Whole units, which need no padding.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn norm_narrow_in_registers(x: &[f32], gain: &[f32], eps: f32, out: &mut NarrowRow) {
    use std::arch::x86_64::{_mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps};
    let r = _mm512_set1_ps(rms_norm::reciprocal_rms(x, eps));
    let (x, gain) = (x.as_chunks::<PANEL>().0, gain.as_chunks::<PANEL>().0);
    for (i, (x, gain)) in x.iter().zip(gain).enumerate() {
        // SAFETY: 16 values each.
        let (x, gain) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(gain.as_ptr())) };
        out.put_register(i, _mm512_mul_ps(gain, _mm512_mul_ps(x, r)));
    }
}

for_isa! { fn norm_in_place(x: &mut [f32], gain: &[f32], eps: f32) { rms_norm::forward_in_place(x, gain, eps) } }
for_isa! { fn turn(x: &mut [f32], turns: &[f32]) { rope::forward_in_place(x, turns) } }
for_isa! { fn add_row(x: &[f32], out: &mut [f32]) { residual::forward(x, out) } }

pub(crate) fn embed(cpu: &mut Cpu, tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
    embed::check_shapes(tokens, table, out)?;
    let place = cpu.arena.place::<u8>("embed", table.buffer)?;
    // SAFETY: bounds checked; weights are not written while ops run.
    let memory = unsafe { place.slice(0, table.buffer.bytes) };
    let out_place = cpu.arena.rows("embed", out)?;
    let width = out.columns;
    cpu.for_rows(out.rows, width, &|row| {
        // SAFETY: each row is written by one chunk.
        let out = unsafe { out_place.slice_mut(row * width, width) };
        panel::read_row(table, memory, tokens[row] as usize, out);
    });
    Ok(())
}

pub(crate) fn rms_norm(cpu: &mut Cpu, x: Rows, gain: Vector, eps: f32, out: Rows) -> Result<()> {
    rms_norm::check_shapes(x, gain, out)?;
    let (from, to) = (cpu.arena.rows("rms_norm", x)?, cpu.arena.output("rms_norm", out)?);
    let gain = cpu.arena.vector("rms_norm", gain)?;
    let (isa, width, in_place) = (cpu.isa, x.columns, x.buffer == out.buffer);
    cpu.for_rows(x.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; x and out are the same rows or apart.
        unsafe {
            match to {
                Output::Narrow(out) => {
                    norm_narrow(isa, from.slice(row * width, width), gain, eps, &mut out.row(row))
                }
                Output::Wide(out, _) if in_place => {
                    norm_in_place(isa, out.slice_mut(row * width, width), gain, eps);
                }
                Output::Wide(out, _) => {
                    let x = from.slice(row * width, width);
                    norm(isa, x, gain, eps, out.slice_mut(row * width, width));
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn rope(cpu: &mut Cpu, x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
    rope::check_shapes(x, head_dim, turns)?;
    let (place, turns) = (cpu.arena.rows("rope", x)?, cpu.arena.rows("rope", turns)?);
    let (isa, width) = (cpu.isa, x.columns);
    cpu.for_rows(x.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; turns are only read.
        unsafe {
            let (x, turns) = (place.slice_mut(row * width, width), turns.slice(row * head_dim, head_dim));
            turn(isa, x, turns);
        }
    });
    Ok(())
}

pub(crate) fn clear(cpu: &mut Cpu, out: Rows) -> Result<()> {
    let to = cpu.arena.rows("clear", out)?;
    let width = out.columns;
    check(out.rows * width * 4 <= out.buffer.bytes, "clear", || {
        format!("{}x{} in {} bytes", out.rows, width, out.buffer.bytes)
    })?;
    // SAFETY: each row is written by one chunk; bounds checked.
    cpu.for_rows(out.rows, width, &|row| unsafe { to.slice_mut(row * width, width).fill(0.0) });
    Ok(())
}

pub(crate) fn add(cpu: &mut Cpu, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cpu.arena.rows("add", x)?, cpu.arena.rows("add", out)?);
    let (isa, width) = (cpu.isa, x.columns);
    cpu.for_rows(x.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; x is only read.
        unsafe {
            let (x, out) = (from.slice(row * width, width), to.slice_mut(row * width, width));
            add_row(isa, x, out);
        }
    });
    Ok(())
}

pub(crate) fn copy(cpu: &mut Cpu, x: Rows, out: Rows) -> Result<()> {
    residual::check_shapes(x, out)?;
    let (from, to) = (cpu.arena.rows("copy", x)?, cpu.arena.output("copy", out)?);
    let (isa, width) = (cpu.isa, x.columns);
    cpu.for_rows(x.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; x is only read.
        unsafe {
            let x = from.slice(row * width, width);
            match to {
                Output::Narrow(out) => narrow(isa, x, &mut out.row(row)),
                Output::Wide(out, _) => out.slice_mut(row * width, width).copy_from_slice(x),
            }
        }
    });
    Ok(())
}

for_isa! {
fn gate_row(gate: &[f32], up: &[f32], row: usize, out: &Output) {
    let mut line = [0.0; 32];
    for (i, (gate, up)) in gate.chunks(32).zip(up.chunks(32)).enumerate() {
        for ((line, gate), up) in line.iter_mut().zip(gate).zip(up) {
            *line = gated::forward(*gate, *up);
        }
        // SAFETY: the caller's row.
        unsafe { out.put(row, i * 32, &line[..gate.len()]) };
    }
}
}

/// The products of a gated pair whose formats differ, once they are there.
pub(crate) fn gated(cpu: &mut Cpu, gate: Rows, up: Rows, out: Rows) -> Result<()> {
    let (from, up) = (cpu.arena.rows("gated", gate)?, cpu.arena.rows("gated", up)?);
    let (isa, width, out) = (cpu.isa, gate.columns, cpu.arena.output("gated", out)?);
    cpu.for_rows(gate.rows, width, &|row| {
        // SAFETY: each row is written by one chunk; the products are only read.
        let (gate, up) = unsafe { (from.slice(row * width, width), up.slice(row * width, width)) };
        gate_row(isa, gate, up, row, &out);
    });
    Ok(())
}
