//! Products of many or few tokens with panels of 16 outputs.
//!
//! few tokens: a panel is decoded in registers and meets each token once (bound by memory)
//! many tokens: two panels are decoded into this thread's scratch, then meet all tokens, in
//! AMX tiles where there are any (bound by arithmetic)

#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
pub(crate) use lanes::group;
#[cfg(target_arch = "x86_64")]
mod tiled;

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Product, Result, Rows, WeightFormat, linear};

use crate::arena::Place;
use crate::isa::{Isa, for_isa};
use crate::{Cpu, panel};

/// Outputs of one chunk of work.
const CHUNK: usize = 2 * PANEL;
/// Bytes of weights that a thread reads in one go when tokens are few: what is fetched ahead
/// beyond the end would be another thread's, so runs are long.
const RUN_BYTES: usize = 96 * 1024;
/// From so many tokens on a panel is decoded to memory first.
const MANY: usize = 9;
/// From so many tokens on tiles are worth their set-up.
const TILED: usize = 5;
/// Tokens are padded to this for tiles.
pub(crate) const TILE_ROWS: usize = 32;

/// Bytes of scratch for the input, and for each thread.
pub(crate) fn scratch(tokens: usize, columns: usize) -> (usize, usize) {
    let columns = columns.next_multiple_of(UNIT);
    let wide = tokens * columns * 4;
    let narrow = tokens.next_multiple_of(TILE_ROWS) * tile_stride(columns) * 2;
    (
        wide.max(narrow).next_multiple_of(64),
        columns * CHUNK * 2 * tile_pairs(usize::MAX / 2, columns / UNIT, 1),
    )
}

#[cfg(target_arch = "x86_64")]
use tiled::pairs_of_chunk as tile_pairs;

/// There are no tiles here: no pairs are decoded for them.
#[cfg(not(target_arch = "x86_64"))]
fn tile_pairs(_: usize, _: usize, _: usize) -> usize {
    1
}

/// Values from one token to the next in the tiles' input. Not a power of two: rows that lie a
/// power of two apart push each other out of the first-level cache.
fn tile_stride(columns: usize) -> usize {
    columns + 32
}

/// One product with its pointers.
struct Job<'a> {
    format: WeightFormat,
    scale: f32,
    panels: &'a [u8],
    outputs: usize,
    bias: Option<&'a [f32]>,
    out: Place<f32>,
}

impl Job<'_> {
    /// Writes the sums of one token's panel.
    ///
    /// # Safety
    /// No other thread writes these outputs.
    unsafe fn finish(&self, token: usize, panel: usize, sums: &[f32; PANEL]) {
        let first = panel * PANEL;
        let count = PANEL.min(self.outputs - first);
        // SAFETY: `first + count <= outputs`; by the caller's promise nobody else writes.
        let out = unsafe { self.out.slice_mut(token * self.outputs + first, count) };
        match self.bias {
            Some(bias) => {
                for ((out, sum), bias) in out.iter_mut().zip(sums).zip(&bias[first..]) {
                    *out = sum * self.scale + bias;
                }
            }
            None => {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum * self.scale;
                }
            }
        }
    }
}

pub(crate) fn forward(cpu: &mut Cpu, x: Rows, products: &[Product]) -> Result<()> {
    linear::check_shapes(x, products)?;
    let wide = |product: &&Product| product.weight.format == WeightFormat::F32;
    for as_is in [true, false] {
        let jobs = products
            .iter()
            .filter(|product| wide(product) == as_is)
            .map(|product| job(cpu, product))
            .collect::<Result<Vec<_>>>()?;
        if !jobs.is_empty() {
            run(cpu, x, &jobs, as_is)?;
        }
    }
    Ok(())
}

fn job<'a>(cpu: &Cpu, product: &Product) -> Result<Job<'a>> {
    let weight = &product.weight;
    let place = cpu.arena.place::<u8>("linear", weight.buffer)?;
    // SAFETY: bounds checked; weights are not written while ops run (`&mut self`).
    let memory: &'a [u8] = unsafe { place.slice(0, weight.buffer.bytes) };
    Ok(Job {
        format: weight.format,
        scale: panel::scale(weight, memory),
        panels: &memory[panel::HEADER..],
        outputs: weight.rows,
        bias: product.bias.map(|bias| cpu.arena.vector("linear", bias)).transpose()?,
        out: cpu.arena.rows("linear", product.out)?,
    })
}

fn run(cpu: &mut Cpu, x: Rows, jobs: &[Job<'_>], as_is: bool) -> Result<()> {
    let (tokens, columns) = (x.rows, x.columns);
    let units = columns.div_ceil(UNIT);
    let isa = cpu.isa;
    let tiled = isa == Isa::Amx && !as_is && tokens >= TILED;
    let input = cpu.scratch(scratch(tokens, columns), "linear")?;
    let source = cpu.arena.rows("linear", x)?;
    if tiled {
        let rows = tokens.next_multiple_of(TILE_ROWS);
        cpu.for_rows(rows, columns, &|row| {
            let first = row * tile_stride(units * UNIT);
            // SAFETY: each row is written by one chunk; scratch was sized for all of them.
            let out = unsafe { input.shared.cast::<u16>().slice_mut(first, units * UNIT) };
            if row < tokens {
                // SAFETY: row of the input, which nobody writes.
                narrow(isa, unsafe { source.slice(row * columns, columns) }, out);
            } else {
                out.fill(0);
            }
        });
    } else {
        cpu.for_rows(tokens, columns, &|row| {
            // SAFETY: as above.
            let out = unsafe { input.shared.cast::<f32>().slice_mut(row * units * UNIT, units * UNIT) };
            // SAFETY: as above.
            let x = unsafe { source.slice(row * columns, columns) };
            widen(isa, x, as_is, out);
        });
    }
    // Pairs of panels that one chunk of work takes: long runs let memory be read ahead.
    let threads = cpu.pool.threads();
    let pairs = |job: &Job<'_>| match tiled {
        true => tile_pairs(job.outputs.div_ceil(CHUNK), units, threads),
        false => {
            let all = job.outputs.div_ceil(CHUNK);
            let rounds = (all * 2 * units * job.format.unit_bytes()).div_ceil(threads * RUN_BYTES);
            all.div_ceil(threads * rounds)
        }
    };
    let count = |job: &Job<'_>| job.outputs.div_ceil(CHUNK).div_ceil(pairs(job));
    let chunks: usize = jobs.iter().map(count).sum();
    cpu.pool.run(chunks, &|mut chunk, thread| {
        let mut jobs = jobs.iter();
        let job = loop {
            let job = jobs.next().expect("a chunk belongs to a job");
            if chunk < count(job) {
                break job;
            }
            chunk -= count(job);
        };
        let scratch = input.of_thread(thread);
        let range = chunk * pairs(job)..job.outputs.div_ceil(CHUNK).min((chunk + 1) * pairs(job));
        #[cfg(target_arch = "x86_64")]
        if tiled {
            // SAFETY: AMX was found; the input was prepared above; this chunk's outputs are its own.
            unsafe { tiled::chunk(job, range, units, tokens, input.shared.cast().pointer(), scratch) };
            return;
        }
        // SAFETY: prepared above and not written any more.
        let x = unsafe { input.shared.cast::<f32>().slice(0, tokens * units * UNIT) };
        for pair in range.clone() {
            let ahead = (range.end - pair - 1) * 2 * units * job.format.unit_bytes();
            // SAFETY: this chunk's outputs are its own.
            unsafe { lanes_of_chunk(isa, job, pair, units, x, ahead, scratch) };
        }
    });
    Ok(())
}

/// # Safety
/// This thread alone writes the chunk's outputs and `scratch`.
unsafe fn lanes_of_chunk(
    isa: Isa,
    job: &Job<'_>,
    chunk: usize,
    units: usize,
    x: &[f32],
    ahead: usize,
    scratch: Place<u8>,
) {
    let bytes = units * job.format.unit_bytes();
    let count = (job.outputs.div_ceil(PANEL) - 2 * chunk).min(2);
    let panel = |p: usize| &job.panels[(2 * chunk + p) * bytes..][..bytes];
    let width = units * UNIT;
    if x.len() / width < MANY || job.format == WeightFormat::F32 {
        let panels = [panel(0), panel(count - 1)];
        // SAFETY: by the caller's promise.
        unsafe { lanes_of_panels(isa, job, job.format, 2 * chunk, &panels[..count], ahead, x, units) };
        return;
    }
    for p in 0..count {
        // SAFETY: scratch holds two bf16 panels, which is one of f32.
        let decoded = unsafe { scratch.cast::<panel::Decoded>().slice_mut(0, units) };
        decode_panel(isa, job.format, panel(p), decoded);
        // SAFETY: just written by this thread.
        let decoded = unsafe { scratch.slice(0, units * WeightFormat::F32.unit_bytes()) };
        // SAFETY: by the caller's promise.
        unsafe { lanes_of_panels(isa, job, WeightFormat::F32, 2 * chunk + p, &[decoded], 0, x, units) };
    }
}

/// `ahead` bytes of weights after these panels are this thread's next.
///
/// # Safety
/// This thread alone writes the panels' outputs.
#[allow(clippy::too_many_arguments)] // weights, tokens, and where they go
unsafe fn lanes_of_panels(
    isa: Isa,
    job: &Job<'_>,
    format: WeightFormat,
    first: usize,
    panels: &[&[u8]],
    ahead: usize,
    x: &[f32],
    units: usize,
) {
    let width = units * UNIT;
    for (block, x) in x.chunks(4 * width).enumerate() {
        let mut sums = [[[0.0; PANEL]; 4]; 2];
        product(isa, format, panels, ahead, units, x, &mut sums);
        for (p, sums) in sums.iter().enumerate().take(panels.len()) {
            for (t, sums) in sums.iter().enumerate().take(x.len() / width) {
                // SAFETY: by the caller's promise.
                unsafe { job.finish(block * 4 + t, first + p, sums) };
            }
        }
    }
}

/// Sums of one or two panels for up to four tokens.
fn product(
    isa: Isa,
    format: WeightFormat,
    panels: &[&[u8]],
    ahead: usize,
    units: usize,
    x: &[f32],
    sums: &mut [[[f32; PANEL]; 4]; 2],
) {
    let _ = ahead; // only some sets fetch ahead
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX-512 was found; the panels have `units` units and x as many per token.
        Isa::Avx512 | Isa::Amx => unsafe { avx512::product(format, panels, ahead, units, x, sums) },
        _ => {
            for (panel, sums) in panels.iter().zip(sums) {
                in_lanes(isa, format, panel, units, x, sums);
            }
        }
    }
}

for_isa! {
/// A panel decoded to f32.
fn decode_panel(format: WeightFormat, encoded: &[u8], out: &mut [panel::Decoded]) {
    for (out, unit) in out.iter_mut().zip(encoded.chunks_exact(format.unit_bytes())) {
        panel::decode(format, unit, out);
    }
}
}

for_isa! {
fn in_lanes(format: WeightFormat, panel: &[u8], units: usize, x: &[f32], sums: &mut [[f32; PANEL]]) {
    lanes::product(format, panel, units, x, sums)
}
}

for_isa! {
/// A token's values as f32, rounded to bf16 unless the weight is f32, padded with zeros.
fn widen(x: &[f32], as_is: bool, out: &mut [f32]) {
    let (values, padding) = out.split_at_mut(x.len());
    if as_is {
        values.copy_from_slice(x);
    } else {
        for (out, x) in values.iter_mut().zip(x) {
            *out = bf16::round(*x);
        }
    }
    padding.fill(0.0);
}
}

for_isa! {
/// A token's values as bf16, padded with zeros.
fn narrow(x: &[f32], out: &mut [u16]) {
    let (values, padding) = out.split_at_mut(x.len());
    for (out, x) in values.iter_mut().zip(x) {
        *out = bf16::encode(*x);
    }
    padding.fill(0);
}
}
