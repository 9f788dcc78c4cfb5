//! Rows of GGUF tensors: positioned reads, our row order, decoding.

use std::ops::Range;

use halfbyte_formats::ggml;

use super::heads::file_row;
use crate::checkpoint::Reader;
use crate::error::Error;
use crate::file::SourceFile;
use crate::tensor::Tensor;

/// Stored bytes held while decoding.
const CHUNK: usize = 1 << 20;

/// The parts of a model and where its tensors lie in them.
pub(super) struct GgufReader {
    pub(super) files: Vec<SourceFile>,
    pub(super) slots: Vec<Slot>,
}

/// One tensor on disk.
pub(super) struct Slot {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) kind: ggml::Type,
    /// Width of a head, where the rows of each head lie in llama's order.
    pub(super) head_dim: Option<usize>,
    /// Scale of the whole tensor; 1 for all but NVFP4.
    pub(super) global: f32,
}

impl GgufReader {
    fn slot(&self, tensor: &Tensor) -> &Slot {
        &self.slots[tensor.slot]
    }

    fn row_bytes(&self, tensor: &Tensor) -> usize {
        let kind = self.slot(tensor).kind;
        tensor.columns() / kind.block() * kind.block_bytes()
    }

    /// Rows decoded at once: whole heads where rows are reordered, so that none is read twice.
    fn rows_at_once(&self, tensor: &Tensor) -> usize {
        let rows = (CHUNK / self.row_bytes(tensor)).max(1);
        match self.slot(tensor).head_dim {
            Some(head_dim) => rows.next_multiple_of(head_dim),
            None => rows,
        }
    }

    /// Calls `each` with stored bytes of successive rows and how many rows were done before.
    fn for_chunks(
        &self,
        tensor: &Tensor,
        rows: Range<usize>,
        mut each: impl FnMut(&[u8], Range<usize>),
    ) -> Result<(), Error> {
        let (row_bytes, step) = (self.row_bytes(tensor), self.rows_at_once(tensor));
        let mut buffer = vec![0; step.min(rows.len()) * row_bytes];
        for start in rows.clone().step_by(step) {
            let end = rows.end.min(start + step);
            let bytes = &mut buffer[..(end - start) * row_bytes];
            self.read_raw(tensor, start..end, bytes)?;
            each(bytes, start - rows.start..end - rows.start);
        }
        Ok(())
    }

    /// Our rows of a tensor whose heads are reordered, head by head; `item` bytes per row.
    fn gather(
        &self,
        slot: &Slot,
        rows: Range<usize>,
        item: usize,
        head_dim: usize,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut head = vec![0; head_dim * item];
        let mut row = rows.start;
        while row < rows.end {
            let first = row / head_dim * head_dim;
            let offset = slot.offset + (first * item) as u64;
            self.files[slot.file].read_at(offset, &mut head)?;
            let end = rows.end.min(first + head_dim);
            for row in row..end {
                let (to, from) = ((row - rows.start) * item, (file_row(row, head_dim) - first) * item);
                out[to..to + item].copy_from_slice(&head[from..from + item]);
            }
            row = end;
        }
        Ok(())
    }
}

impl Reader for GgufReader {
    fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        let (slot, columns) = (self.slot(tensor), tensor.columns());
        self.for_chunks(tensor, rows, |bytes, done| {
            let values = &mut out[done.start * columns..done.end * columns];
            ggml::decode_row(slot.kind, bytes, values);
            if slot.global != 1.0 {
                values.iter_mut().for_each(|value| *value *= slot.global);
            }
        })
    }

    fn read_nvfp4(
        &self,
        tensor: &Tensor,
        rows: Range<usize>,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> Result<(), Error> {
        let columns = tensor.columns();
        self.for_chunks(tensor, rows, |bytes, done| {
            let codes = &mut codes[done.start * columns / 2..done.end * columns / 2];
            let scales = &mut block_scales[done.start * columns / 16..done.end * columns / 16];
            ggml::nvfp4_to_rows(bytes, codes, scales);
        })
    }

    fn nvfp4_global(&self, tensor: &Tensor) -> Result<f32, Error> {
        Ok(self.slot(tensor).global)
    }

    fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let (slot, row_bytes) = (self.slot(tensor), self.row_bytes(tensor));
        match slot.head_dim {
            None => {
                let offset = slot.offset + (rows.start * row_bytes) as u64;
                self.files[slot.file].read_at(offset, out)
            }
            // The values of a bias stand for the rows of its matrix.
            Some(head_dim) if tensor.shape.len() == 1 => {
                let values = 0..tensor.columns() * rows.len();
                self.gather(slot, values, slot.kind.block_bytes(), head_dim, out)
            }
            Some(head_dim) => self.gather(slot, rows, row_bytes, head_dim, out),
        }
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn files_mut(&mut self) -> &mut [SourceFile] {
        &mut self.files
    }
}
