//! Rows out of a `.dat`.

use std::ops::Range;

use halfbyte_formats::f16;

use crate::checkpoint::Reader;
use crate::dat::DatEntry;
use crate::error::Error;
use crate::file::SourceFile;
use crate::hugging_face::read_nvfp4_values;
use crate::tensor::{Encoding, Tensor, WideScale};
use crate::values::{self, CHUNK};

/// Where a tensor's parts lie.
#[derive(Debug)]
pub(crate) struct Slot {
    data: u64,
    /// Offset and key of the scales of a quantised tensor.
    scales: Option<(u64, String)>,
}

impl Slot {
    pub(crate) fn plain(entry: &DatEntry) -> Slot {
        Slot { data: entry.offset, scales: None }
    }

    pub(crate) fn quantised(codes: &DatEntry, scales: &DatEntry) -> Slot {
        Slot { data: codes.offset, scales: Some((scales.offset, scales.key.clone())) }
    }
}

/// Reads the tensors of one file.
#[derive(Debug)]
pub(crate) struct DatReader {
    file: [SourceFile; 1],
    slots: Vec<Slot>,
}

impl DatReader {
    pub(crate) fn new(file: SourceFile, slots: Vec<Slot>) -> Self {
        DatReader { file: [file], slots }
    }

    fn slot(&self, tensor: &Tensor) -> Result<&Slot, Error> {
        self.slots.get(tensor.slot).ok_or_else(|| {
            let problem = "the tensor belongs to another checkpoint";
            Error::request(self.file[0].path(), &tensor.disk_name, problem, "")
        })
    }

    /// Codes and scales of rows, each as stored.
    fn read_parts(
        &self,
        tensor: &Tensor,
        first: usize,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), Error> {
        let slot = self.slot(tensor)?;
        let Some((scale_offset, key)) = &slot.scales else {
            let problem = format!("the tensor is stored as {}", tensor.encoding);
            let path = self.file[0].path();
            return Err(Error::request(path, &tensor.disk_name, problem, ""));
        };
        let (columns, first_row) = (tensor.columns(), first as u64);
        let width = match tensor.encoding {
            Encoding::E2m1(wide) => wide.bytes(),
            _ => 1,
        };
        let blocks = columns / 16;
        let file = &self.file[0];
        file.read_at(slot.data + first_row * (columns as u64 / 2), codes)?;
        file.read_at(scale_offset + first_row * (blocks * width) as u64, scales)?;
        match tensor.encoding {
            Encoding::E2m1(wide) => check_wide(file, key, wide, first * blocks, scales),
            _ => values::check_block_scales(file.path(), key, first * blocks, scales),
        }
    }
}

/// Wide scales must be finite and not negative.
fn check_wide(
    file: &SourceFile,
    key: &str,
    wide: WideScale,
    first: usize,
    scales: &[u8],
) -> Result<(), Error> {
    for (index, bytes) in scales.chunks_exact(wide.bytes()).enumerate() {
        let value = match *bytes {
            [a, b] => f16::decode(u16::from_le_bytes([a, b])),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => continue,
        };
        if !(value.is_finite() && value >= 0.0) {
            return Err(Error::input(
                file.path(),
                format!("entry {key}, block {}", first + index),
                format!("the block scale is {value}"),
                "the quantised file is broken: quantise the model again",
            ));
        }
    }
    Ok(())
}

impl Reader for DatReader {
    fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        if tensor.encoding == Encoding::Nvfp4 {
            return read_nvfp4_values(self, tensor, rows, out);
        }
        let columns = tensor.columns();
        let row_bytes = tensor.encoding.row_bytes(columns).unwrap_or(0);
        let per_chunk = (CHUNK / row_bytes.max(1)).max(1);
        let mut bytes = vec![0; per_chunk.min(rows.len()) * row_bytes];
        for (index, out) in out.chunks_mut(per_chunk * columns).enumerate() {
            let first = rows.start + index * per_chunk;
            let count = out.len() / columns;
            let bytes = &mut bytes[..count * row_bytes];
            self.read_raw(tensor, first..first + count, bytes)?;
            values::decode(tensor.encoding, columns, bytes, out);
        }
        Ok(())
    }

    fn read_nvfp4(
        &self,
        tensor: &Tensor,
        rows: Range<usize>,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> Result<(), Error> {
        self.read_parts(tensor, rows.start, codes, block_scales)
    }

    fn nvfp4_global(&self, _tensor: &Tensor) -> Result<f32, Error> {
        Ok(1.0) // the format has one level of scales
    }

    fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let columns = tensor.columns();
        let row_bytes = tensor.encoding.row_bytes(columns).unwrap_or(0);
        let Encoding::E2m1(wide) = tensor.encoding else {
            let offset = self.slot(tensor)?.data + rows.start as u64 * row_bytes as u64;
            return self.file[0].read_at(offset, out);
        };
        let mut codes = vec![0; rows.len() * columns / 2];
        let mut scales = vec![0; rows.len() * columns / 16 * wide.bytes()];
        self.read_parts(tensor, rows.start, &mut codes, &mut scales)?;
        let parts = codes.chunks(columns / 2).zip(scales.chunks(columns / 16 * wide.bytes()));
        for (out, (codes, scales)) in out.chunks_mut(row_bytes).zip(parts) {
            let (code_part, scale_part) = out.split_at_mut(codes.len());
            code_part.copy_from_slice(codes);
            scale_part.copy_from_slice(scales);
        }
        Ok(())
    }

    fn files(&self) -> &[SourceFile] {
        &self.file
    }

    fn files_mut(&mut self) -> &mut [SourceFile] {
        &mut self.file
    }
}
