//! The CPU as a backend: one arena, a pool of threads, kernels for the instruction set found.
//!
//! Every kernel gives the bits that `halfbyte_ops` defines, whatever the instruction set, the
//! number of threads and the number of tokens computed together.

mod accumulate;
mod arena;
mod attend;
mod isa;
mod keys;
#[cfg(target_arch = "x86_64")]
mod learn;
mod linear;
mod loss;
pub mod measure;
mod narrow;
mod panel;
mod pool;
mod row_gradients;
mod rows;
#[cfg(target_arch = "x86_64")]
mod square;
mod strips;
mod system;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod update;
#[cfg(target_arch = "x86_64")]
mod vector;

use std::time::Instant;

use halfbyte_ops::accumulate::{Share, Stored};
use halfbyte_ops::error::check;
use halfbyte_ops::learn::{Factors, in_parts};
use halfbyte_ops::panels::Panels;
use halfbyte_ops::update::{Kept, Step};
use halfbyte_ops::{
    Attention, Backend, Buffer, Cache, Error, Matrix, Product, Result, Rows, Sight, Tallies, Tally, Vector,
    Weight, WeightRows,
};

pub use isa::Isa;

use arena::{Arena, Place};
use pool::Pool;

/// Values below which an op stays on the calling thread: waking others costs more.
const SMALL: usize = 16 * 1024;

/// The backend.
pub struct Cpu {
    arena: Arena,
    scratch: Buffer,
    pool: Pool,
    isa: Isa,
    tallies: Tallies,
}

/// What a run asks of the scratch buffer.
#[derive(Clone, Copy, Debug)]
pub struct ScratchNeed {
    /// Tokens computed together.
    pub tokens: usize,
    /// Widest input of a product.
    pub columns: usize,
    /// Positions of the cache.
    pub context: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Threads.
    pub threads: usize,
}

impl ScratchNeed {
    /// Bytes of scratch that every op of such a run finds enough.
    pub fn bytes(&self) -> usize {
        let (shared, each) = linear::scratch(self.tokens, self.columns);
        let products = shared + each.next_multiple_of(64) * self.threads;
        let attention = attend::scratch(self.context, self.head_dim).next_multiple_of(64) * self.threads;
        products.max(attention)
    }
}

/// What a training step asks of the scratch buffer besides [`ScratchNeed`].
#[derive(Clone, Copy, Debug)]
pub struct TrainingNeed {
    /// Tokens of a batch.
    pub tokens: usize,
    /// Longest sample.
    pub longest: usize,
    /// Widest side of a matrix (of the vocabulary: of a chunk).
    pub widest: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Threads.
    pub threads: usize,
}

impl TrainingNeed {
    /// Bytes of scratch that every op of such a step finds enough.
    pub fn bytes(&self) -> usize {
        let (tokens, widest) = (self.tokens, self.widest);
        let attention = attend::scratch(self.longest, self.head_dim)
            .max(attend::gradient::scratch(self.longest, self.head_dim));
        let needs = [
            linear::scratch(tokens, widest),
            linear::scratch(widest, tokens),
            (0, attention),
            update::scratch(widest, widest),
            #[cfg(target_arch = "x86_64")]
            learn::scratch(tokens, widest),
        ];
        let bytes = needs.map(|(shared, each)| shared + each.next_multiple_of(64) * self.threads);
        bytes.into_iter().max().unwrap_or(0)
    }
}

/// Scratch of one op: a part for all, then a part for each thread.
#[derive(Clone, Copy)]
struct Scratch {
    shared: Place<u8>,
    threads: Place<u8>,
    each: usize,
}

impl Scratch {
    fn of_thread(&self, thread: usize) -> Place<u8> {
        // SAFETY: `Cpu::scratch` made sure that every thread's part lies inside the buffer.
        Place(unsafe { self.threads.0.add(thread * self.each) })
    }
}

impl Cpu {
    /// An arena of `bytes` with `scratch` inside it. Refuses a set this machine lacks.
    pub fn new(isa: Isa, threads: usize, bytes: usize, scratch: Buffer) -> Result<Cpu> {
        isa.check()?;
        let pool = Pool::new(threads.max(1))
            .map_err(|error| Error::Device(format!("no thread could be started: {error}")))?;
        let arena = Arena::new(bytes)?;
        arena.place::<u8>("scratch", scratch)?;
        Ok(Cpu { arena, scratch, pool, isa, tallies: Tallies::default() })
    }

    /// Keeps what a call did until it is asked for.
    fn counted(&mut self, call: impl FnOnce(&mut Cpu) -> Result<Tally>) -> Result<()> {
        let start = Instant::now();
        let tally = call(self)?;
        self.tallies.push(tally, start.elapsed());
        Ok(())
    }

    fn scratch(&self, (shared, each): (usize, usize), op: &'static str) -> Result<Scratch> {
        let each = each.next_multiple_of(64);
        let need = shared + each * self.pool.threads();
        check(need <= self.scratch.bytes, op, || {
            format!("needs {need} bytes of scratch, planned were {}", self.scratch.bytes)
        })?;
        let start = self.arena.place::<u8>(op, self.scratch)?;
        Ok(Scratch {
            shared: start,
            // SAFETY: checked above.
            threads: Place(unsafe { start.0.add(shared) }),
            each,
        })
    }

    /// Calls `work` for every row, on all threads where the rows are worth it.
    fn for_rows(&mut self, rows: usize, columns: usize, work: &(dyn Fn(usize) + Sync)) {
        let together = (SMALL / columns.max(1)).max(1);
        if rows <= together {
            (0..rows).for_each(work);
            return;
        }
        let chunk = together.min(rows.div_ceil(self.pool.threads()));
        self.pool.run(rows.div_ceil(chunk), &|index, _| {
            (index * chunk..rows.min((index + 1) * chunk)).for_each(work);
        });
    }
}

/// Columns that one chunk of a sum over rows takes.
const STRIPE: usize = 64;

impl Cpu {
    /// Calls `work(first, count)` for stripes of columns, or once for few values: sums over rows, which then run in order.
    fn for_stripes(&mut self, rows: usize, columns: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        if rows * columns <= SMALL {
            return work(0, columns);
        }
        self.for_rows(columns.div_ceil(STRIPE), rows * STRIPE, &|stripe| {
            work(stripe * STRIPE, STRIPE.min(columns - stripe * STRIPE));
        });
    }
}

impl Backend for Cpu {
    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("{}, {threads} thread{}", self.isa, if threads == 1 { "" } else { "s" })
    }

    fn write(&mut self, to: Buffer, values: &[f32]) -> Result<()> {
        check(values.len() * 4 <= to.bytes, "write", || {
            format!("{} values into {} bytes", values.len(), to.bytes)
        })?;
        // SAFETY: bounds checked here and in `place`; exclusive by `&mut self`.
        unsafe { self.arena.place::<f32>("write", to)?.slice_mut(0, values.len()) }.copy_from_slice(values);
        Ok(())
    }

    fn read(&mut self, from: Rows, values: &mut [f32]) -> Result<()> {
        check(values.len() == from.rows * from.columns, "read", || {
            format!("{} values from {}x{}", values.len(), from.rows, from.columns)
        })?;
        if from.narrow {
            let rows = self.arena.narrow("read", from)?;
            for (index, values) in values.chunks_exact_mut(from.columns).enumerate() {
                // SAFETY: a row of these; nobody else uses it (`&mut self`).
                narrow::widen(self.isa, &mut unsafe { rows.row(index) }, values);
            }
        } else {
            // SAFETY: as in `write`.
            values.copy_from_slice(unsafe { self.arena.rows("read", from)?.slice(0, values.len()) });
        }
        Ok(())
    }

    fn read_bytes(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<()> {
        check(bytes.len() <= from.bytes, "read_bytes", || format!("{} from {}", bytes.len(), from.bytes))?;
        // SAFETY: as in `write`.
        bytes.copy_from_slice(unsafe { self.arena.place::<u8>("read_bytes", from)?.slice(0, bytes.len()) });
        Ok(())
    }

    fn write_bytes(&mut self, to: Buffer, bytes: &[u8]) -> Result<()> {
        check(bytes.len() <= to.bytes, "write_bytes", || format!("{} into {}", bytes.len(), to.bytes))?;
        // SAFETY: as in `write`.
        unsafe { self.arena.place::<u8>("write_bytes", to)?.slice_mut(0, bytes.len()) }
            .copy_from_slice(bytes);
        Ok(())
    }

    fn read_panels(&mut self, from: &Panels<'_>, bytes: &mut [u8]) -> Result<()> {
        let place = self.arena.place::<u8>("read_panels", from.place(bytes.len())?)?;
        // SAFETY: as in `write`.
        strips::read(from, unsafe { place.slice(0, bytes.len()) }, bytes);
        Ok(())
    }

    fn write_panels(&mut self, to: &Panels<'_>, bytes: &[u8]) -> Result<()> {
        let place = self.arena.place::<u8>("write_panels", to.place(bytes.len())?)?;
        // SAFETY: as in `write`.
        strips::write(to, unsafe { place.slice_mut(0, bytes.len()) }, bytes);
        Ok(())
    }

    fn write_weight(&mut self, to: &Weight, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        check(to.buffer.bytes == to.format.bytes(to.rows, to.columns), "write_weight", || {
            format!("{} bytes for {}x{}", to.buffer.bytes, to.rows, to.columns)
        })?;
        let place = self.arena.place::<u8>("write_weight", to.buffer)?;
        // SAFETY: bounds checked; exclusive by `&mut self`.
        panel::write(to, unsafe { place.slice_mut(0, to.buffer.bytes) }, first_row, rows)
    }

    fn read_row(&mut self, from: &Weight, row: usize, codes: &mut [u8], scales: &mut [u8]) -> Result<f32> {
        from.check_row(row, codes.len(), scales.len())?;
        let place = self.arena.place::<u8>("read_row", from.buffer)?;
        // SAFETY: bounds checked; exclusive by `&mut self`.
        let memory = unsafe { place.slice(0, from.buffer.bytes) };
        panel::take_row(from, memory, row, codes, scales);
        Ok(panel::scale(from, memory))
    }

    fn embed(&mut self, tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
        rows::embed(self, tokens, table, out)
    }

    fn embed_gradient(&mut self, tokens: &[u32], first: usize, dy: Rows, dtable: Rows) -> Result<()> {
        row_gradients::embed_gradient(self, tokens, first, dy, dtable)
    }

    fn rms_norm(&mut self, x: Rows, gain: Vector, eps: f32, out: Rows) -> Result<()> {
        rows::rms_norm(self, x, gain, eps, out)
    }

    fn rms_norm_gradient(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        dx: Rows,
        dgain: Vector,
    ) -> Result<()> {
        row_gradients::rms_norm_gradient(self, x, gain, eps, dy, dx, dgain)
    }

    fn linear(&mut self, x: Rows, products: &[Product]) -> Result<()> {
        linear::forward(self, x, products)
    }

    fn linear_input_gradient(&mut self, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()> {
        linear::input_gradient(self, dy, weight, dx, added)
    }

    fn linear_weight_gradient(
        &mut self,
        dy: Rows,
        x: Rows,
        exact: bool,
        first: usize,
        dw: Rows,
    ) -> Result<()> {
        linear::weight_gradient(self, dy, x, exact, first, dw)
    }

    fn bias_gradient(&mut self, dy: Rows, db: Vector) -> Result<()> {
        row_gradients::bias_gradient(self, dy, db)
    }

    fn rope_gradient(&mut self, dx: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        row_gradients::rope_gradient(self, dx, head_dim, turns)
    }

    fn rope(&mut self, x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        rows::rope(self, x, head_dim, turns)
    }

    fn store(&mut self, keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()> {
        attend::store(self, keys, values, start, cache)
    }

    fn attend(&mut self, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
        attend::forward(self, q, cache, sight, out)
    }

    fn attend_gradient(
        &mut self,
        of: &Attention<'_>,
        out: Rows,
        dout: Rows,
        dq: Rows,
        dk: Rows,
        dv: Rows,
    ) -> Result<()> {
        halfbyte_ops::attend::check_gradient(of, out, dout, dq, dk, dv)?;
        attend::gradient::run(self, of, dout, dq, dk, dv)
    }

    fn copy(&mut self, x: Rows, out: Rows) -> Result<()> {
        rows::copy(self, x, out)
    }

    fn clear(&mut self, out: Rows) -> Result<()> {
        rows::clear(self, out)
    }

    fn add(&mut self, x: Rows, out: Rows) -> Result<()> {
        rows::add(self, x, out)
    }

    fn gated(
        &mut self,
        x: Rows,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        linear::gated(self, x, gate, up, kept, out)
    }

    fn gated_gradient(
        &mut self,
        dy: Rows,
        down: &Weight,
        kept: (Rows, Rows),
        dgate: Rows,
        dup: Rows,
    ) -> Result<()> {
        linear::gated_gradient(self, dy, down, kept, dgate, dup)
    }

    fn loss(&mut self, logits: Rows, first: usize, targets: &[u32], state: Rows) -> Result<()> {
        loss::forward(self, logits, first, targets, state)
    }

    fn loss_exponentials(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        out: Rows,
        sums: Rows,
    ) -> Result<()> {
        loss::exponentials(self, logits, first, targets, state, out, sums)
    }

    fn loss_input_gradient(
        &mut self,
        targets: &[u32],
        state: Rows,
        weight: f32,
        of_targets: Rows,
        dx: Rows,
    ) -> Result<()> {
        loss::input_gradient(self, targets, state, weight, of_targets, dx)
    }

    fn loss_gradient(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        weight: f32,
        out: Rows,
    ) -> Result<()> {
        loss::gradient(self, logits, first, targets, state, weight, out)
    }

    fn accumulate(&mut self, gradient: Rows, first: usize, to: &Stored, share: &Share) -> Result<()> {
        self.counted(|cpu| accumulate::add(cpu, gradient, first, to, share))
    }

    fn accumulated(&mut self, from: &Stored, first: usize, factor: f32, out: Rows) -> Result<()> {
        accumulate::read(self, from, first, factor, out)
    }

    fn accumulated_squares(&mut self, of: &Stored) -> Result<f64> {
        accumulate::squares(self, of)
    }

    fn update(&mut self, of: &Weight, first: usize, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
        self.counted(|cpu| update::weight(cpu, of, first, gradient, kept, step))
    }

    fn learn(
        &mut self,
        of: &Weight,
        from: &Factors<'_>,
        kept: &Kept,
        step: &Step,
        room: Buffer,
    ) -> Result<usize> {
        #[cfg(target_arch = "x86_64")]
        if learn::fits(self, from) {
            let (tally, time) = learn::weight(self, of, from, kept, step)?;
            self.tallies.push(tally, time);
            return Ok(1);
        }
        in_parts(self, of, from, kept, step, room)
    }

    fn update_vector(&mut self, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
        self.counted(|cpu| update::vector(cpu, of, gradient, kept, step))
    }

    fn tallies(&mut self) -> Result<Tallies> {
        Ok(std::mem::take(&mut self.tallies))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a contract on every set this machine has, with one and with three threads.
    fn every_backend(contract: impl Fn(&dyn Fn(usize) -> Cpu)) {
        for isa in Isa::ALL {
            if !isa.available() {
                eprintln!("skipped: this machine has no {isa}");
                continue;
            }
            for threads in [1, 3] {
                contract(&|bytes| {
                    let scratch = Buffer { offset: bytes, bytes: 8 << 20 };
                    Cpu::new(isa, threads, bytes + scratch.bytes, scratch).unwrap()
                });
            }
        }
    }

    macro_rules! contracts {
        ($($op:ident),*) => {$(
            #[test]
            fn $op() {
                every_backend(|make| halfbyte_ops::$op::contract(make));
            }
        )*};
    }

    contracts!(
        best,
        rms_norm,
        gated,
        residual,
        rope,
        heads,
        embed,
        linear,
        attend,
        loss,
        accumulate,
        again,
        update,
        learn,
        finite_differences
    );

    #[test]
    fn a_set_that_is_not_there_is_refused_by_name() {
        let missing = if cfg!(target_arch = "aarch64") { Isa::Amx } else { Isa::Neon };
        let error = Cpu::new(missing, 1, 64, Buffer::default()).err().unwrap();
        assert!(error.to_string().contains(missing.name()));
    }
}
