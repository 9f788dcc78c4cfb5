//! Products of many or few tokens with panels of 16 outputs, two panels side by side.
//!
//! few tokens: a pair of panels is decoded in registers and meets each token once (bound by memory)
//! many tokens: pairs are decoded into this thread's scratch, then meet all tokens, in AMX tiles
//! where there are any (bound by arithmetic)

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod job;
mod lanes;
pub(crate) use lanes::group;
#[cfg(target_arch = "x86_64")]
mod gradient_rows;
#[cfg(target_arch = "x86_64")]
mod tiled;
#[cfg(target_arch = "x86_64")]
pub(crate) use gradient_rows::GradientRows;

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Matrix, Product, Result, Rows, Weight, WeightFormat, gated, linear};

use crate::arena::Place;
use crate::isa::{Isa, for_isa};
use crate::narrow::{NarrowRows, narrow, widen};
use crate::{Cpu, panel, rows};
use job::{Activations, Job, Panel};
use lanes::channels;

/// Bytes of weights that a thread reads in one go when tokens are few: what is fetched ahead
/// beyond the end would be another thread's, so runs are long.
const RUN_BYTES: usize = 96 * 1024;
/// From so many tokens on a panel is decoded to memory first.
const MANY: usize = 9;
/// Tokens whose sums are kept at hand while parts of a pair of panels meet them.
const TOGETHER: usize = 48;
/// Columns that become rows together.
const TURNED: usize = 2 * PANEL;
/// Tokens for which it pays that threads decode the same weights, each for its own.
const PART: usize = 512;
/// From so many tokens on tiles are worth their set-up.
const TILED: usize = 5;

/// Bytes of scratch for the input, and for each thread.
pub(crate) fn scratch(tokens: usize, columns: usize) -> (usize, usize) {
    let columns = columns.next_multiple_of(UNIT);
    let wide = tokens * columns * 4;
    let pair = 2 * columns * PANEL;
    let decoded = (pair * 4).max(tile_pairs(usize::MAX / 2, columns / UNIT, 1) * pair * 2);
    (wide.max(Rows::narrow_bytes(tokens, columns)).next_multiple_of(64), decoded)
}

#[cfg(target_arch = "x86_64")]
use tiled::pairs_of_chunk as tile_pairs;

/// There are no tiles here: no pairs are decoded for them.
#[cfg(not(target_arch = "x86_64"))]
fn tile_pairs(_: usize, _: usize, _: usize) -> usize {
    1
}

pub(crate) fn forward(cpu: &mut Cpu, x: Rows, products: &[Product]) -> Result<()> {
    linear::check_shapes(x, products)?;
    for as_is in [true, false] {
        let jobs = products
            .iter()
            .filter(|product| (product.matrix.weight.format == WeightFormat::F32) == as_is)
            .map(|product| Job::plain(cpu, product))
            .collect::<Result<Vec<_>>>()?;
        if !jobs.is_empty() {
            run(cpu, Feed::Rows(x), &jobs, as_is)?;
        }
    }
    Ok(())
}

pub(crate) fn gated(
    cpu: &mut Cpu,
    x: Rows,
    gate: Matrix,
    up: Matrix,
    kept: Option<(Rows, Rows)>,
    out: Rows,
) -> Result<()> {
    gated::check_shapes(x, gate, up, kept, out)?;
    match kept {
        Some((first, second)) if gate.weight.format != up.weight.format => {
            forward(cpu, x, &[Product::new(gate, first), Product::new(up, second)])?;
            rows::gated(cpu, first, second, out)
        }
        _ => {
            let job = Job::gated(cpu, gate, up, kept, out)?;
            run(cpu, Feed::Rows(x), &[job], gate.weight.format == WeightFormat::F32)
        }
    }
}

/// dx[t, k] = sum_n dy[t, n] weight[n, k]
pub(crate) fn input_gradient(cpu: &mut Cpu, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()> {
    linear::check_input_gradient(dy, weight, dx)?;
    let job = Job::transposed(cpu, weight, dx, added)?;
    run(cpu, Feed::Rows(dy), &[job], weight.format == WeightFormat::F32)
}

/// The input's gradient, mixed with what a gated pair kept before it is ever stored.
pub(crate) fn gated_gradient(
    cpu: &mut Cpu,
    dy: Rows,
    down: &Weight,
    kept: (Rows, Rows),
    dgate: Rows,
    dup: Rows,
) -> Result<()> {
    gated::check_gradient(dy, down, kept, dgate, dup)?;
    let job = Job::gated_gradient(cpu, down, kept, [dgate, dup])?;
    run(cpu, Feed::Rows(dy), &[job], down.format == WeightFormat::F32)
}

/// dw[n, k] = sum_t dy[t, first + n] x[t, k]
pub(crate) fn weight_gradient(
    cpu: &mut Cpu,
    dy: Rows,
    x: Rows,
    exact: bool,
    first: usize,
    dw: Rows,
) -> Result<()> {
    linear::check_weight_gradient(dy, x, exact, first, dw)?;
    let job = Job::activations(Activations::new(cpu, x, exact)?, cpu.arena.rows("linear", dw)?);
    run(cpu, Feed::Columns(dy, first, dw.rows), &[job], exact)
}

/// What the weights are multiplied with.
#[derive(Clone, Copy)]
enum Feed {
    /// Tokens.
    Rows(Rows),
    /// Channels, over tokens: from a multiple of 32 on, so many.
    Columns(Rows, usize, usize),
}

impl Feed {
    /// Vectors, and how long they are.
    fn shape(self) -> (usize, usize) {
        match self {
            Feed::Rows(x) => (x.rows, x.columns),
            Feed::Columns(x, _, count) => (count, x.rows),
        }
    }
}

/// The input as the kernels take it.
#[derive(Clone, Copy)]
enum Input {
    /// For tiles.
    Tiles(NarrowRows),
    /// f32 `[tokens][units * 64]`, padded with zeros.
    Lanes(Place<f32>),
}

/// Rounds (unless `as_is`) and lays out the input, where it does not lie so already.
fn prepare(cpu: &mut Cpu, feed: Feed, as_is: bool, scratch: Place<u8>) -> Result<Input> {
    let (rows, columns) = feed.shape();
    let (isa, padded) = (cpu.isa, columns.next_multiple_of(UNIT));
    let tiled = isa == Isa::Amx && !as_is && rows >= TILED;
    let (tiles, lanes) = (NarrowRows::new(scratch, columns), scratch.cast::<f32>());
    match feed {
        Feed::Rows(x) if x.narrow => {
            let source = cpu.arena.narrow("linear", x)?;
            if tiled {
                return Ok(Input::Tiles(source));
            }
            cpu.for_rows(rows, columns, &|row| {
                // SAFETY: each row is written by one chunk; scratch was sized for all of them.
                unsafe { widen(isa, &mut source.row(row), lanes.slice_mut(row * padded, padded)) };
            });
        }
        Feed::Rows(x) => {
            let source = cpu.arena.rows("linear", x)?;
            cpu.for_rows(rows, columns, &|row| {
                // SAFETY: as above.
                unsafe {
                    let x = source.slice(row * columns, columns);
                    match tiled {
                        true => narrow(isa, x, &mut tiles.row(row)),
                        false => round(isa, x, as_is, lanes.slice_mut(row * padded, padded)),
                    }
                }
            });
        }
        Feed::Columns(x, start, _) => {
            let source = Activations::new(cpu, x, as_is)?;
            // Some of them share lines of the source, and tiles.
            cpu.for_rows(rows.div_ceil(TURNED), TURNED * columns, &|block| {
                #[cfg(target_arch = "x86_64")]
                if tiled {
                    // SAFETY: AVX-512 comes with AMX; as above.
                    let (low, high) = unsafe { (tiles.tiles_of(2 * block), tiles.tiles_of(2 * block + 1)) };
                    // SAFETY: as above.
                    unsafe { tiled::columns(&source, start / TURNED + block, low, high) };
                    return;
                }
                for first in (block * TURNED..rows.min((block + 1) * TURNED)).step_by(PANEL) {
                    let count = PANEL.min(rows - first);
                    // SAFETY: as above.
                    let out = unsafe { lanes.slice_mut(first * padded, count * padded) };
                    channels(isa, &source, start + first, count, out);
                }
            });
        }
    }
    Ok(if tiled { Input::Tiles(tiles) } else { Input::Lanes(lanes) })
}

fn run(cpu: &mut Cpu, feed: Feed, jobs: &[Job<'_>], as_is: bool) -> Result<()> {
    let ((tokens, inner), isa) = (feed.shape(), cpu.isa);
    let units = inner.div_ceil(UNIT);
    let scratch = cpu.scratch(scratch(tokens, inner), "linear")?;
    let input = prepare(cpu, feed, as_is, scratch.shared)?;
    // Pairs of panels that one chunk of work takes: long runs let memory be read ahead.
    let threads = cpu.pool.threads();
    // Threads that share the tokens: each then finds those it had before in its own cache.
    let parts = match input {
        Input::Tiles(_) => threads.min(tokens / PART).max(1),
        Input::Lanes(_) => 1,
    };
    let pairs = |job: &Job<'_>| match input {
        Input::Tiles(_) => tile_pairs(job.pairs(), units, threads.div_ceil(parts)),
        Input::Lanes(_) => {
            let rounds = (job.pairs() * units * 2 * job.format().unit_bytes()).div_ceil(threads * RUN_BYTES);
            job.pairs().div_ceil(threads * rounds)
        }
    };
    let count = |job: &Job<'_>| job.pairs().div_ceil(pairs(job));
    let chunks: usize = jobs.iter().map(count).sum();
    // Chunks of about the same length, so that no thread is left with the longest.
    cpu.pool.run(parts * chunks, &|chunk, thread| {
        let (part, mut chunk) = (chunk / chunks, chunk % chunks);
        let mut jobs = jobs.iter();
        let (job, count) = loop {
            let job = jobs.next().expect("a chunk belongs to a job");
            let count = count(job);
            if chunk < count {
                break (job, count);
            }
            chunk -= count;
        };
        let scratch = scratch.of_thread(thread);
        let range = chunk * job.pairs() / count..(chunk + 1) * job.pairs() / count;
        match input {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: AMX was found; this chunk's outputs are its own.
            Input::Tiles(x) => unsafe {
                tiled::chunk(job, range, units, tiled::part(tokens, part, parts), x.tiles(), scratch);
            },
            // Only AMX asks for tiles.
            #[cfg(not(target_arch = "x86_64"))]
            Input::Tiles(x) => unreachable!("part {part} of tiles at {:?} on a machine without", x.tiles()),
            Input::Lanes(x) => {
                // SAFETY: prepared above and not written any more.
                let x = unsafe { x.slice(0, tokens * units * UNIT) };
                for pair in range.clone() {
                    // SAFETY: this chunk's outputs are its own.
                    unsafe { pair_in_lanes(isa, job, pair, units, x, range.end - pair - 1, scratch) };
                }
            }
        }
    });
    Ok(())
}

/// A pair of panels for all tokens; `more` pairs after it are this thread's too.
///
/// # Safety
/// This thread alone writes the pair's outputs and `scratch`.
unsafe fn pair_in_lanes(
    isa: Isa,
    job: &Job<'_>,
    pair: usize,
    units: usize,
    x: &[f32],
    more: usize,
    scratch: Place<u8>,
) {
    let width = units * UNIT;
    let few = x.len() / width < MANY;
    let (mut format, mut ahead) = (job.format(), Ahead { step: job.step(), count: more });
    let mut bytes: Panels<'_> = [None; 2];
    for (i, (bytes, panel)) in bytes.iter_mut().zip(job.panels(pair)).enumerate() {
        *bytes = match panel {
            None => None,
            Some(Panel::Rows(format, kept)) if few || format == WeightFormat::F32 => Some(kept),
            Some(panel) => {
                // SAFETY: scratch holds a pair of f32 panels, and is this thread's.
                let decoded = unsafe { scratch.cast::<panel::Decoded>().slice_mut(i * units, units) };
                decode_panel(isa, &panel, decoded);
                (format, ahead) = (WeightFormat::F32, Ahead { step: 1, count: 0 });
                Some(decoded.as_flattened().as_flattened().as_bytes())
            }
        };
    }
    for (block, x) in x.chunks(TOGETHER * width).enumerate() {
        let (mut sums, tokens) = ([[[0.0; PANEL]; TOGETHER]; 2], x.len() / width);
        let [first, second] = &mut sums;
        let mut sums = [&mut first[..tokens], &mut second[..tokens]];
        product(isa, format, &bytes, ahead, units, x, &mut sums);
        job::finish(isa, job, pair, block * TOGETHER, sums.map(|sums| &*sums));
    }
}

/// A panel decoded to f32, `[inner][16]`, padded with zeros.
fn decode_panel(isa: Isa, panel: &Panel<'_>, out: &mut [panel::Decoded]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX-512 was found.
        Isa::Avx512 | Isa::Amx => unsafe { avx512::decode_panel(panel, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX2 was found.
        Isa::Avx2 => unsafe { avx2::decode_panel(panel, out) },
        _ => lanes::decode_panel(isa, panel, out),
    }
}

/// What this thread reads after a pair of panels: so many, each `step` panels after the one before.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // only AVX-512 fetches ahead
#[derive(Clone, Copy)]
struct Ahead {
    step: usize,
    count: usize,
}

/// The bytes of one panel or two.
type Panels<'a> = [Option<&'a [u8]>; 2];

/// Values as the bytes that they are.
trait AsBytes {
    fn as_bytes(&self) -> &[u8];
}

impl AsBytes for [f32] {
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: any f32 is four bytes.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self)) }
    }
}

/// For each of two panels the sums of some tokens.
type Sums<'a> = [&'a mut [[f32; PANEL]]; 2];

/// Adds one or two panels times the tokens of `x` to the sums.
fn product(
    isa: Isa,
    format: WeightFormat,
    panels: &Panels<'_>,
    ahead: Ahead,
    units: usize,
    x: &[f32],
    sums: &mut Sums<'_>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX-512 was found; the panels have `units` units and x as many per token.
        Isa::Avx512 | Isa::Amx => unsafe { avx512::product(format, panels, ahead, units, x, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX2 was found.
        Isa::Avx2 => unsafe { avx2::product(format, panels, units, x, sums) },
        _ => {
            let _ = ahead; // only some sets fetch ahead
            for (panel, sums) in panels.iter().flatten().zip(sums) {
                in_lanes(isa, format, panel, units, x, sums);
            }
        }
    }
}

for_isa! {
fn in_lanes(format: WeightFormat, panel: &[u8], units: usize, x: &[f32], sums: &mut [[f32; PANEL]]) {
    lanes::product::<lanes::Compiled>(format, panel, units, x, sums)
}
}

for_isa! {
/// A token's values as f32, rounded to bf16 unless the weight is f32, padded with zeros.
fn round(x: &[f32], as_is: bool, out: &mut [f32]) {
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
