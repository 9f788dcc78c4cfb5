//! Ceilings, measured: how fast this machine reads memory and multiplies tiles.

use std::time::Instant;

use crate::arena::Arena;
use crate::isa::{Isa, for_isa};
use crate::pool::Pool;
use halfbyte_ops::{Buffer, Error, Result};

const CHUNK: usize = 1 << 20;

/// Reads memory with all threads; best of a few rounds, because other work only slows it.
pub struct Reader {
    arena: Arena,
    bytes: usize,
    pool: Pool,
    isa: Isa,
}

impl Reader {
    /// `bytes` should be several times the last-level cache.
    pub fn new(isa: Isa, threads: usize, bytes: usize) -> Result<Reader> {
        isa.check()?;
        let bytes = bytes / CHUNK * CHUNK;
        let arena = Arena::new(bytes)?;
        let mut pool = Pool::new(threads).map_err(|error| Error::Device(error.to_string()))?;
        let place = arena.place::<u64>("measure", Buffer { offset: 0, bytes })?;
        pool.run(bytes / CHUNK, &|chunk, _| {
            // SAFETY: chunks lie apart.
            unsafe { place.slice_mut(chunk * CHUNK / 8, CHUNK / 8) }.fill(1);
        });
        Ok(Reader { arena, bytes, pool, isa })
    }

    /// Bytes per second of one pass over all of it.
    pub fn pass(&mut self) -> Result<f64> {
        let buffer = Buffer { offset: 0, bytes: self.bytes };
        let place = self.arena.place::<u64>("measure", buffer)?;
        let isa = self.isa;
        let start = Instant::now();
        self.pool.run(self.bytes / CHUNK, &|chunk, _| {
            // SAFETY: only read.
            let words = unsafe { place.slice(chunk * CHUNK / 8, CHUNK / 8) };
            std::hint::black_box(total(isa, words));
        });
        Ok(self.bytes as f64 / start.elapsed().as_secs_f64())
    }
}

for_isa! {
fn total(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}
}

/// Floating-point operations per second of the unit that computes many tokens: bf16 tiles from
/// the first-level cache where there are any, else fused multiply-adds in registers.
pub fn arithmetic(isa: Isa, threads: usize) -> Result<f64> {
    isa.check()?;
    let mut pool = Pool::new(threads).map_err(|error| Error::Device(error.to_string()))?;
    let start = Instant::now();
    let rounds = 8 * threads;
    let work = |_: usize, _: usize| one_round(isa);
    pool.run(rounds, &work);
    let per_round = operations(isa);
    Ok(rounds as f64 * per_round / start.elapsed().as_secs_f64())
}

const TILE_STEPS: usize = 200_000;
const LANE_STEPS: usize = 2_000_000;
/// Chains of sums enough that none is waited for.
const LANES: usize = 128;

fn operations(isa: Isa) -> f64 {
    match isa {
        Isa::Amx => TILE_STEPS as f64 * 4.0 * 16.0 * 16.0 * 32.0 * 2.0,
        _ => LANE_STEPS as f64 * LANES as f64 * 2.0,
    }
}

fn one_round(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx {
        // SAFETY: AMX is there: `isa` came from `available`.
        unsafe { crate::tiles::Session::new().spin(TILE_STEPS) };
        return;
    }
    lanes(isa);
}

for_isa! {
fn lanes() {
    // One row of lanes: of rows of them the compiler would keep none in registers.
    let (mut sums, factor) = ([0.0f32; LANES], std::hint::black_box(0.999f32));
    for _ in 0..LANE_STEPS {
        for sum in &mut sums {
            *sum = sum.mul_add(factor, factor);
        }
    }
    std::hint::black_box(sums);
}
}
