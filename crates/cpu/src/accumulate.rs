//! Stored gradients: the reference's own lines, compiled for the instruction set, a row at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use halfbyte_formats::state::draw::Draws;
use halfbyte_ops::accumulate::{self, PARTS, Share, Storage, Stored};
use halfbyte_ops::update::padded;
use halfbyte_ops::{Result, Rows, Tally};

use crate::Cpu;
use crate::isa::for_isa;

const OP: &str = "accumulate";

for_isa! {
fn add_row(storage: Storage, stored: &mut [u8], g: &[f32], first: u64, draws: &Draws, fresh: bool) -> u64 {
    accumulate::row(storage, stored, g, first, draws, fresh)
}
}
for_isa! {
fn read_row(storage: Storage, stored: &[u8], factor: f32, out: &mut [f32]) {
    accumulate::decode(storage, stored, factor, out)
}
}
for_isa! {
fn square_row(storage: Storage, stored: &[u8], columns: usize) -> f64 {
    accumulate::squares(storage, stored, columns)
}
}

pub(crate) fn add(cpu: &mut Cpu, gradient: Rows, first: usize, to: &Stored, share: &Share) -> Result<Tally> {
    accumulate::check_shapes(to, first, gradient)?;
    let (g, stored) = (cpu.arena.rows(OP, gradient)?, cpu.arena.place::<u8>(OP, to.buffer)?);
    let (isa, columns, bytes) = (cpu.isa, to.columns, to.storage.bytes(1, to.columns));
    let (draws, lost) = (share.draws(), AtomicU64::new(0));
    cpu.for_rows(gradient.rows, columns, &|index| {
        let number = first + index;
        // SAFETY: each stored row is written by one chunk; the gradient is only read.
        let (g, stored) =
            unsafe { (g.slice(index * columns, columns), stored.slice_mut(number * bytes, bytes)) };
        let element = (number * padded(columns)) as u64;
        let of_row = add_row(isa, to.storage, stored, g, element, &draws, share.fresh);
        lost.fetch_add(of_row, Ordering::Relaxed);
    });
    Ok(Tally { refused: lost.into_inner(), ..Tally::default() })
}

pub(crate) fn read(cpu: &mut Cpu, from: &Stored, first: usize, factor: f32, out: Rows) -> Result<()> {
    accumulate::check_shapes(from, first, out)?;
    let (to, stored) = (cpu.arena.rows(OP, out)?, cpu.arena.place::<u8>(OP, from.buffer)?);
    let (isa, columns, bytes) = (cpu.isa, from.columns, from.storage.bytes(1, from.columns));
    cpu.for_rows(out.rows, columns, &|index| {
        // SAFETY: each row is written by one chunk; what is stored is only read.
        let (stored, out) =
            unsafe { (stored.slice((first + index) * bytes, bytes), to.slice_mut(index * columns, columns)) };
        read_row(isa, from.storage, stored, factor, out);
    });
    Ok(())
}

pub(crate) fn squares(cpu: &mut Cpu, of: &Stored) -> Result<f64> {
    accumulate::check_shapes(of, 0, Rows::new(of.buffer, of.rows, of.columns))?;
    let stored = cpu.arena.place::<u8>(OP, of.buffer)?;
    let (isa, bytes) = (cpu.isa, of.storage.bytes(1, of.columns));
    let sums = [const { AtomicU64::new(0) }; PARTS];
    cpu.pool.run(PARTS, &|part, _| {
        let mut sum = 0.0f64;
        for row in accumulate::part(of.rows, part) {
            // SAFETY: what is stored is only read.
            sum += square_row(isa, of.storage, unsafe { stored.slice(row * bytes, bytes) }, of.columns);
        }
        sums[part].store(sum.to_bits(), Ordering::Relaxed);
    });
    Ok(sums.iter().map(|sum| f64::from_bits(sum.load(Ordering::Relaxed))).sum())
}
