//! A gradient kept until a step knows all of it.

use halfbyte_formats::state::BLOCK;
use halfbyte_ops::accumulate::{self, PARTS, Share, Storage, Stored};
use halfbyte_ops::{Result, Rows};

use crate::Cuda;
use crate::launch::{Grid, args};

const OP: &str = "accumulate";

fn number(storage: Storage) -> u32 {
    match storage {
        Storage::Four => 0,
        Storage::Float => 1,
    }
}

/// A thread for each block of 16.
fn grid(rows: usize, columns: usize) -> Grid {
    Grid::each(rows * columns.div_ceil(BLOCK), 128)
}

pub(crate) fn add(cuda: &mut Cuda, gradient: Rows, first: usize, to: &Stored, share: &Share) -> Result<()> {
    accumulate::check_shapes(to, first, gradient)?;
    let (stored, g) = (cuda.pointer(OP, to.buffer)?, cuda.rows(OP, gradient)?);
    let (rows, columns) = (gradient.rows, gradient.columns);
    let ([key0, key1], storage) = (share.draws().key(), number(to.storage));
    cuda.counted(|cuda, counts| {
        let arguments = args![stored, g, storage, first, rows, columns, share.fresh, key0, key1, counts];
        cuda.launch("accumulate_add", grid(rows, columns), arguments)
    })
}

pub(crate) fn read(cuda: &mut Cuda, from: &Stored, first: usize, factor: f32, out: Rows) -> Result<()> {
    accumulate::check_shapes(from, first, out)?;
    let stored = cuda.pointer(OP, from.buffer)?.add(from.storage.bytes(first, from.columns));
    let (rows, columns, y) = (out.rows, out.columns, cuda.rows(OP, out)?);
    let arguments = args![stored, y, number(from.storage), rows, columns, factor];
    cuda.launch("accumulate_read", grid(rows, columns), arguments)
}

pub(crate) fn squares(cuda: &mut Cuda, of: &Stored) -> Result<f64> {
    accumulate::check_shapes(of, 0, Rows::new(of.buffer, of.rows, of.columns))?;
    let (stored, parts) = (cuda.pointer(OP, of.buffer)?, cuda.counters(PARTS)?);
    let each = accumulate::part(of.rows, 0).len();
    let arguments = args![stored, parts, number(of.storage), of.rows, of.columns, each];
    cuda.launch("accumulate_parts", Grid::line(PARTS, 256), arguments)?;
    Ok(cuda.read_counters(PARTS)?.into_iter().map(f64::from_bits).sum())
}
