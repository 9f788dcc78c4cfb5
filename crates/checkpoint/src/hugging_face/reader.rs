//! Rows out of safetensors files.

use std::ops::Range;

use halfbyte_formats::nvfp4;

use crate::checkpoint::Reader;
use crate::error::Error;
use crate::file::SourceFile;
use crate::tensor::{Encoding, Tensor};
use crate::values::{self, CHUNK};

/// Where a run of bytes begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) offset: u64,
}

/// Where a tensor's parts lie.
#[derive(Debug)]
pub(crate) enum Storage {
    Plain(Place),
    Nvfp4 { codes: Place, scales: Place, scale_key: String, global: f32 },
}

/// Reads the tensors of a directory.
#[derive(Debug)]
pub(crate) struct SafetensorsReader {
    files: Vec<SourceFile>,
    storages: Vec<Storage>,
}

impl SafetensorsReader {
    pub(crate) fn new(files: Vec<SourceFile>, storages: Vec<Storage>) -> Self {
        SafetensorsReader { files, storages }
    }

    /// Fills `out` with the rows from `first` of a part whose rows have `row_bytes`.
    fn read_part(&self, part: Place, first: usize, row_bytes: usize, out: &mut [u8]) -> Result<(), Error> {
        // Inside the file: the header was checked against its length, the rows against the shape.
        let offset = part.offset + first as u64 * row_bytes as u64;
        self.files[part.file].read_at(offset, out)
    }

    fn wrong_kind(&self, tensor: &Tensor) -> Error {
        let path = self.files.first().map(SourceFile::path).unwrap_or("".as_ref());
        let problem = format!("the tensor is stored as {}", tensor.encoding);
        Error::request(path, &tensor.disk_name, problem, "open the model again")
    }
}

impl Reader for SafetensorsReader {
    fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        let columns = tensor.columns();
        if tensor.encoding == Encoding::Nvfp4 {
            return read_nvfp4_values(self, tensor, rows, out);
        }
        let row_bytes = tensor.encoding.row_bytes(columns).unwrap_or(0);
        let mut bytes = vec![0; (rows.len() * row_bytes).min(CHUNK.max(row_bytes))];
        let per_chunk = (CHUNK / row_bytes.max(1)).max(1);
        for (index, out) in out.chunks_mut(per_chunk * columns).enumerate() {
            let count = out.len() / columns;
            let first = rows.start + index * per_chunk;
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
        let Some(Storage::Nvfp4 { codes: code_place, scales, scale_key, .. }) =
            self.storages.get(tensor.slot)
        else {
            return Err(self.wrong_kind(tensor));
        };
        let columns = tensor.columns();
        self.read_part(*code_place, rows.start, columns / 2, codes)?;
        self.read_part(*scales, rows.start, columns / 16, block_scales)?;
        let path = self.files[scales.file].path();
        values::check_block_scales(path, scale_key, rows.start * (columns / 16), block_scales)
    }

    fn nvfp4_global(&self, tensor: &Tensor) -> Result<f32, Error> {
        match self.storages.get(tensor.slot) {
            Some(Storage::Nvfp4 { global, .. }) => Ok(*global),
            _ => Err(self.wrong_kind(tensor)),
        }
    }

    fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let Some(Storage::Plain(place)) = self.storages.get(tensor.slot) else {
            return Err(self.wrong_kind(tensor));
        };
        let row_bytes = tensor.encoding.row_bytes(tensor.columns()).unwrap_or(0);
        self.read_part(*place, rows.start, row_bytes, out)
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn files_mut(&mut self) -> &mut [SourceFile] {
        &mut self.files
    }
}

/// Decodes rows of an NVFP4 tensor through `read_nvfp4`, a chunk at a time.
pub(crate) fn read_nvfp4_values(
    reader: &dyn Reader,
    tensor: &Tensor,
    rows: Range<usize>,
    out: &mut [f32],
) -> Result<(), Error> {
    let columns = tensor.columns();
    let global = reader.nvfp4_global(tensor)?;
    let per_chunk = (CHUNK / columns).max(1);
    let mut codes = vec![0; per_chunk.min(rows.len()) * columns / 2];
    let mut scales = vec![0; per_chunk.min(rows.len()) * columns / 16];
    for (index, out) in out.chunks_mut(per_chunk * columns).enumerate() {
        let first = rows.start + index * per_chunk;
        let count = out.len() / columns;
        let codes = &mut codes[..count * columns / 2];
        let scales = &mut scales[..count * columns / 16];
        reader.read_nvfp4(tensor, first..first + count, codes, scales)?;
        // Rows are whole blocks, so one call decodes them all.
        nvfp4::decode_row(codes, scales, global, out);
    }
    Ok(())
}
