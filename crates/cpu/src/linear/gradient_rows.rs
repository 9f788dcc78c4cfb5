//! Rows of a weight's gradient, made where and when they are wanted: dw[n, k] = sum_t dy[t, n] x[t, k]. The right
//! factor is laid out once, as tiles for all threads; a thread turns the columns of dy whose rows it makes.

use std::ops::Range;

use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Result, Rows};

use super::job::{Activations, Job};
use super::tiled::{self, pair_bytes, pairs_of_chunk};
use crate::Cpu;
use crate::arena::Place;
use crate::narrow::NarrowRows;
use crate::square::SQUARE;

/// Both factors.
pub(crate) struct GradientRows<'a> {
    dy: Activations<'a>,
    x: Activations<'a>,
    /// x as pairs of panels.
    tiles: Place<u8>,
    units: usize,
}

impl GradientRows<'_> {
    /// Bytes of the right factor, and of as much of the left one as so many rows take.
    pub(crate) fn scratch(tokens: usize, columns: usize, rows: usize) -> (usize, usize) {
        (columns.div_ceil(SQUARE) * pair_bytes(tokens.div_ceil(UNIT)), Rows::narrow_bytes(rows, tokens))
    }

    /// Lays x out in `place`. Shapes have been checked, and AMX is there.
    pub(crate) fn new(cpu: &mut Cpu, dy: Rows, x: Rows, place: Place<u8>) -> Result<Self> {
        let (dy, x) = (Activations::new(cpu, dy, false)?, Activations::new(cpu, x, false)?);
        let units = x.tokens.div_ceil(UNIT);
        let job = Job::activations(x, Place(std::ptr::null_mut()));
        cpu.pool.run(job.pairs(), &|pair, _| {
            // SAFETY: AVX-512 comes with AMX; a pair has its own place.
            unsafe {
                let out = Place(place.pointer().add(pair * pair_bytes(units)));
                tiled::decode_pairs(&job, pair..pair + 1, units, out);
            }
        });
        Ok(GradientRows { dy, x, tiles: place, units })
    }

    /// Makes rows, from a multiple of 32 on.
    ///
    /// # Safety
    /// `left` and `out` have room for them and are this thread's alone.
    pub(crate) unsafe fn make(&self, rows: Range<usize>, left: Place<u8>, out: Place<f32>) {
        let turned = NarrowRows::new(left, self.dy.tokens);
        for block in 0..rows.len().div_ceil(SQUARE) {
            // SAFETY: by the caller's promise; `new` asks for AMX.
            unsafe {
                let (low, high) = (turned.tiles_of(2 * block), turned.tiles_of(2 * block + 1));
                tiled::columns(&self.dy, rows.start / SQUARE + block, low, high);
            }
        }
        let job = Job::activations(self.x, out);
        let together = pairs_of_chunk(job.pairs(), self.units, 1);
        for first in (0..job.pairs()).step_by(together) {
            let pairs = first..job.pairs().min(first + together);
            // SAFETY: as above.
            unsafe {
                let tiles = Place(self.tiles.pointer().add(first * pair_bytes(self.units)));
                tiled::multiply(&job, pairs, self.units, rows.len(), turned.tiles(), tiles);
            }
        }
    }
}
