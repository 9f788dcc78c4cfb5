//! Writing GGUF: declared tensors -> header and offsets -> rows in any order -> rename.

use std::path::Path;

use halfbyte_formats::ggml;

use super::header::DEFAULT_ALIGNMENT;
use super::heads::{file_row, to_file_order};
use super::metadata_out::{output_metadata, rope_divisors};
use super::names::{ROPE_FREQUENCIES, disk_name, scale_name};
use super::reordered;
use super::values::{write_string, write_value};
use crate::architecture::Architecture;
use crate::atomic::AtomicFile;
use crate::error::Error;
use crate::names::TensorName;
use crate::sink::{self, Output, OutputTensor, Progress, Sink};
use crate::space;
use crate::tensor::Encoding;
use crate::values;

const VERSION: u32 = 3;

/// A GGUF file being written.
pub(super) struct GgufSink {
    file: AtomicFile,
    targets: Vec<Target>,
    progress: Progress,
}

/// Where a declared tensor goes.
struct Target {
    /// Type in the file; vectors are always F32, the only one llama.cpp takes for all of them.
    stored: ggml::Type,
    vector: bool,
    /// `None` for the head of a tied model: its rows are taken and dropped.
    offset: Option<u64>,
    /// Where the f32 scale of an NVFP4 tensor goes.
    scale: Option<u64>,
    /// Width of a head, where rows go in llama's order.
    head_dim: Option<usize>,
    /// Bytes of a row in the file.
    row_bytes: usize,
}

impl GgufSink {
    pub(super) fn create(path: &Path, output: Output) -> Result<Self, Error> {
        sink::check_output(path, &output)?;
        let mut directory = Directory::default();
        let divisors = rope_divisors(&output.architecture);
        // The first tensor of the file, so at the start of the data.
        if let Some(divisors) = &divisors {
            directory.add(ROPE_FREQUENCIES, &[divisors.len()], ggml::Type::F32);
        }
        let mut targets = Vec::new();
        for tensor in &output.tensors {
            let stored = stored_type(path, tensor)?;
            targets.push(Target::new(&output.architecture, tensor, stored, &mut directory));
        }
        let header = header(path, &output, &directory)?;
        let data_start = header.len() as u64;
        for target in &mut targets {
            target.offset = target.offset.map(|offset| offset + data_start);
            target.scale = target.scale.map(|offset| offset + data_start);
        }
        let length = data_start + directory.bytes;
        space::check(path, length)?;
        let file = AtomicFile::create(path)?;
        file.set_len(length)?;
        file.write_at(0, &header)?;
        if let Some(bytes) = divisors.and_then(|list| values::encode(Encoding::F32, &list)) {
            file.write_at(data_start, &bytes)?;
        }
        let progress = Progress::new(path, output.tensors);
        Ok(GgufSink { file, targets, progress })
    }

    /// Puts stored rows where they belong.
    fn put(&self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), Error> {
        let target = &self.targets[tensor];
        let (Some(offset), row_bytes) = (target.offset, target.row_bytes) else {
            return Ok(());
        };
        let place = |row: usize| offset + (row * row_bytes) as u64;
        let whole_heads = |head_dim: usize| {
            first_row.is_multiple_of(head_dim) && bytes.len().is_multiple_of(head_dim * row_bytes)
        };
        match target.head_dim {
            None => self.file.write_at(place(first_row), bytes),
            // The values of a bias stand for the rows of its matrix.
            Some(head_dim) if target.vector => {
                let bytes = to_file_order(bytes, target.stored.block_bytes(), head_dim);
                self.file.write_at(offset, &bytes)
            }
            Some(head_dim) if whole_heads(head_dim) => {
                let bytes = to_file_order(bytes, row_bytes, head_dim);
                self.file.write_at(place(first_row), &bytes)
            }
            Some(head_dim) => {
                let mut rows = (first_row..).zip(bytes.chunks_exact(row_bytes));
                rows.try_for_each(|(row, bytes)| self.file.write_at(place(file_row(row, head_dim)), bytes))
            }
        }
    }
}

impl Sink for GgufSink {
    fn write_rows(&mut self, tensor: usize, first_row: usize, values: &[f32]) -> Result<(), Error> {
        let columns = self.progress.tensor(tensor)?.columns();
        let rows = self.progress.note(tensor, first_row, columns, values.len())?;
        let bytes = match self.targets[tensor].stored {
            ggml::Type::F32 => values::encode(Encoding::F32, values).unwrap_or_default(),
            _ => self.progress.encode(tensor, values)?,
        };
        match rows.is_empty() {
            true => Ok(()),
            false => self.put(tensor, rows.start, &bytes),
        }
    }

    fn write_nvfp4(
        &mut self,
        tensor: usize,
        first_row: usize,
        codes: &[u8],
        block_scales: &[u8],
    ) -> Result<(), Error> {
        let rows = self.progress.note_nvfp4(tensor, first_row, codes, block_scales)?;
        let mut bytes = vec![0; codes.len() / 32 * 36];
        ggml::nvfp4_from_rows(codes, block_scales, &mut bytes);
        self.put(tensor, rows.start, &bytes)
    }

    fn write_raw(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), Error> {
        let declared = self.progress.tensor(tensor)?;
        let (encoding, columns) = (declared.encoding, declared.columns());
        let row_bytes = encoding.row_bytes(columns).unwrap_or(0);
        if self.targets[tensor].vector && encoding != Encoding::F32 {
            let mut values = vec![0.0; bytes.len() / row_bytes * columns];
            let whole = &bytes[..bytes.len() / row_bytes * row_bytes];
            values::decode(encoding, columns, whole, &mut values);
            return self.write_rows(tensor, first_row, &values);
        }
        let rows = self.progress.note(tensor, first_row, row_bytes, bytes.len())?;
        match rows.is_empty() {
            true => Ok(()),
            false => self.put(tensor, rows.start, bytes),
        }
    }

    fn set_global(&mut self, tensor: usize, global: f32) -> Result<(), Error> {
        self.progress.set_global(tensor, global)?;
        match self.targets[tensor].scale {
            Some(offset) => self.file.write_at(offset, &global.to_le_bytes()),
            None => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.progress.check_complete()?;
        self.file.finish()
    }
}

/// The type a declared tensor has in the file, or why it can have none.
fn stored_type(path: &Path, tensor: &OutputTensor) -> Result<ggml::Type, Error> {
    let refuse =
        |problem: String, remedy: &str| Err(Error::request(path, disk_name(tensor.name), problem, remedy));
    let kind = match tensor.encoding {
        encoding if tensor.shape.len() == 1 => match encoding.is_nvfp4() {
            false => ggml::Type::F32,
            true => return refuse("a vector in NVFP4".to_string(), "store vectors as F32"),
        },
        Encoding::F32 => ggml::Type::F32,
        Encoding::F16 => ggml::Type::F16,
        Encoding::Bf16 => ggml::Type::Bf16,
        Encoding::Ggml(kind) => kind,
        Encoding::Nvfp4 => ggml::Type::Nvfp4,
        Encoding::E2m1(_) => {
            let problem = format!("GGUF has no {}", tensor.encoding);
            return refuse(problem, "write it as NVFP4, F16 or Q8_0");
        }
    };
    let columns = tensor.columns();
    if kind.bytes(columns).is_none() {
        let (name, block) = (kind.name(), kind.block());
        let problem = format!("rows of {columns} values do not fill {name} blocks of {block}");
        return refuse(problem, "store this tensor as Q8_0, F16 or BF16");
    }
    if kind == ggml::Type::Nvfp4 && tensor.name == TensorName::Embedding {
        let problem = "llama.cpp applies no tensor scale to an embedding, so NVFP4 would be wrong";
        return refuse(problem.to_string(), "store the embedding as Q8_0 or F16");
    }
    Ok(kind)
}

impl Target {
    /// Gives the tensor, and its scale, a place in the directory.
    fn new(
        architecture: &Architecture,
        tensor: &OutputTensor,
        stored: ggml::Type,
        directory: &mut Directory,
    ) -> Self {
        let nvfp4 = stored == ggml::Type::Nvfp4;
        // An NVFP4 head has its own scale, so it can never be the embedding.
        let tied = architecture.tied && tensor.name == TensorName::Head && !nvfp4;
        let mut add = |name: String, shape: &[usize], kind| directory.add(&name, shape, kind);
        let reordered = reordered(architecture.family, tensor.name);
        Target {
            stored,
            vector: tensor.shape.len() == 1,
            offset: (!tied).then(|| add(disk_name(tensor.name), &tensor.shape, stored)),
            scale: nvfp4.then(|| add(scale_name(tensor.name), &[1], ggml::Type::F32)),
            head_dim: reordered.then_some(architecture.head_dim),
            row_bytes: tensor.columns() / stored.block() * stored.block_bytes(),
        }
    }
}

/// The tensor directory under construction; offsets count from the start of the data.
#[derive(Default)]
struct Directory {
    entries: Vec<u8>,
    count: u64,
    bytes: u64,
}

impl Directory {
    fn add(&mut self, name: &str, shape: &[usize], kind: ggml::Type) -> u64 {
        let offset = self.bytes;
        write_string(&mut self.entries, name);
        self.entries.extend((shape.len() as u32).to_le_bytes());
        for dimension in shape.iter().rev() {
            self.entries.extend((*dimension as u64).to_le_bytes());
        }
        self.entries.extend(kind.id().to_le_bytes());
        self.entries.extend(offset.to_le_bytes());
        let values: usize = shape.iter().product();
        let bytes = (values / kind.block() * kind.block_bytes()) as u64;
        self.bytes += bytes.next_multiple_of(DEFAULT_ALIGNMENT);
        self.count += 1;
        offset
    }
}

/// Everything before the data, padded.
fn header(path: &Path, output: &Output, directory: &Directory) -> Result<Vec<u8>, Error> {
    let metadata = output_metadata(path, output)?;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(directory.count.to_le_bytes());
    bytes.extend((metadata.entries.len() as u64).to_le_bytes());
    for (key, value) in &metadata.entries {
        write_string(&mut bytes, key);
        write_value(&mut bytes, value);
    }
    bytes.extend(&directory.entries);
    bytes.resize(bytes.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
    Ok(bytes)
}
