//! Rows of a weight's gradient, made where and when they are wanted, and turned as the optimizer takes them:
//! dw[n, k] = sum_t dy[t, n] x[t, k], sixteen n side by side for one k after the other. x is turned once, for all threads;
//! a thread lays out the columns of dy whose rows it makes.

use std::ops::Range;

use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::{Result, Rows};

use super::job::{Activations, Job};
use super::tiled::{self, pair_bytes};
use crate::Cpu;
use crate::arena::Place;
use crate::narrow::NarrowRows;
use crate::square::SQUARE;

/// Both factors.
pub(crate) struct GradientRows<'a> {
    dy: Activations<'a>,
    /// What were columns of x.
    turned: NarrowRows,
    columns: usize,
    units: usize,
}

impl GradientRows<'_> {
    /// Bytes of x, and of as much of dy as so many rows take.
    pub(crate) fn scratch(tokens: usize, columns: usize, rows: usize) -> (usize, usize) {
        (Rows::narrow_bytes(columns, tokens), rows.div_ceil(SQUARE) * pair_bytes(tokens.div_ceil(UNIT)))
    }

    /// Turns x into `place`. Shapes have been checked, and AMX is there.
    pub(crate) fn new(cpu: &mut Cpu, dy: Rows, x: Rows, place: Place<u8>) -> Result<Self> {
        let (columns, units, turned) = (x.columns, x.rows.div_ceil(UNIT), NarrowRows::new(place, x.rows));
        let (dy, x) = (Activations::new(cpu, dy, false)?, Activations::new(cpu, x, false)?);
        cpu.pool.run(columns.div_ceil(SQUARE), &|block, _| {
            // SAFETY: AVX-512 comes with AMX; a block has its own tiles.
            unsafe {
                let (low, high) = (turned.tiles_of(2 * block), turned.tiles_of(2 * block + 1));
                tiled::columns(&x, block, low, high);
            }
        });
        Ok(GradientRows { dy, turned, columns, units })
    }

    /// Makes rows, from a multiple of 32 on.
    ///
    /// # Safety
    /// `dy` has room for its columns, `out` for the rows, and they are this thread's alone.
    pub(crate) unsafe fn make(&self, rows: Range<usize>, dy: Place<u8>, out: Place<f32>) {
        let job = Job::turned(self.dy, rows.start / PANEL, self.columns, out);
        let pairs = rows.start / SQUARE..rows.end.div_ceil(SQUARE);
        // SAFETY: by the caller's promise; `new` asks for AMX.
        unsafe { tiled::chunk(&job, pairs, self.units, 0..self.columns, self.turned.tiles(), dy) };
    }
}
