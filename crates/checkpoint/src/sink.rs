//! Streaming writers: everything is declared first, so every offset is known; rows come in any order.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::checkpoint::{Checkpoint, Format};
use crate::coverage::Coverage;
use crate::dat::DatLayout;
use crate::error::Error;
use crate::names::{LayerTensor, TensorName};
use crate::tensor::{Encoding, Tensor};
use crate::text_files::TextFiles;
use crate::values::{self, CHUNK};
use crate::{dat, gguf, hugging_face};

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct OutputTensor {
    /// What it is.
    pub name: TensorName,
    /// `[out, in]` or `[n]`.
    pub shape: Vec<usize>,
    /// How it shall be stored.
    pub encoding: Encoding,
}

impl OutputTensor {
    /// Rows of a matrix; a vector is one row.
    pub fn rows(&self) -> usize {
        match self.shape[..] {
            [rows, _] => rows,
            _ => 1,
        }
    }

    /// Values in a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// All that a written model will contain, before the first value.
#[derive(Debug, Clone)]
pub struct Output {
    /// Shape and switches.
    pub architecture: Architecture,
    /// The tensors, in the order they shall lie in the file.
    pub tensors: Vec<OutputTensor>,
    /// Tokenizer, template and the original configuration, as far as known.
    pub text: TextFiles,
    /// Layout of the `.dat` this model came from: keys, order and types are kept.
    pub dat: Option<DatLayout>,
}

/// A model being written. Nothing is visible under its path before `finish`; dropped without
/// `finish`, it leaves what was there before.
pub trait Sink: Send {
    /// Encodes whole rows of a tensor stored as F32, F16, BF16 or Q8_0.
    fn write_rows(&mut self, tensor: usize, first_row: usize, values: &[f32]) -> Result<(), Error>;
    /// Writes rows of an NVFP4 tensor: codes low nibble first, E4M3 scales row by row.
    fn write_nvfp4(
        &mut self,
        tensor: usize,
        first_row: usize,
        codes: &[u8],
        block_scales: &[u8],
    ) -> Result<(), Error>;
    /// Writes whole rows already in the tensor's encoding (not NVFP4).
    fn write_raw(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), Error>;
    /// The f32 scale of an NVFP4 tensor: weight = code * block scale * global.
    fn set_global(&mut self, tensor: usize, global: f32) -> Result<(), Error>;
    /// Makes the model visible under its path. Every declared tensor must be complete.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// Starts writing a model at `path`: a directory for Hugging Face and ModelOpt, else a file.
pub fn create(path: &Path, format: Format, output: Output) -> Result<Box<dyn Sink>, Error> {
    match format {
        Format::HuggingFace | Format::ModelOpt => hugging_face::create(path, format, output),
        Format::Gguf => gguf::create(path, output),
        Format::Dat => dat::create(path, output),
    }
}

/// Copies a tensor into a sink that declared the same shape and encoding, byte for byte. Answers
/// false, and does nothing, when the encodings differ.
pub fn copy_tensor(
    source: &Checkpoint,
    from: &Tensor,
    sink: &mut dyn Sink,
    to: usize,
    declared: &OutputTensor,
) -> Result<bool, Error> {
    let nvfp4 = from.encoding.is_nvfp4() && declared.encoding.is_nvfp4();
    if from.shape != declared.shape || !(nvfp4 || from.encoding == declared.encoding) {
        return Ok(false);
    }
    let (rows, columns) = (from.rows(), from.columns());
    let row_bytes = from.encoding.row_bytes(columns).unwrap_or(1).max(1);
    let per_chunk = (CHUNK / row_bytes).max(1);
    for first in (0..rows).step_by(per_chunk) {
        let chunk = first..rows.min(first + per_chunk);
        let count = chunk.len();
        if nvfp4 {
            let (mut codes, mut scales) = (vec![0; count * columns / 2], vec![0; count * columns / 16]);
            source.read_nvfp4(from, chunk, &mut codes, &mut scales)?;
            sink.write_nvfp4(to, first, &codes, &scales)?;
        } else {
            let mut bytes = vec![0; count * row_bytes];
            source.read_raw(from, chunk, &mut bytes)?;
            sink.write_raw(to, first, &bytes)?;
        }
    }
    if nvfp4 {
        sink.set_global(to, source.nvfp4_global(from)?)?;
    }
    Ok(true)
}

/// Refuses declarations that no file could hold; every format's `create` calls it first.
pub(crate) fn check_output(path: &Path, output: &Output) -> Result<(), Error> {
    output.architecture.check(path)?;
    let mut seen = HashSet::new();
    for tensor in &output.tensors {
        let refuse = |problem: String| {
            let place = tensor.name.to_string();
            Err(Error::request(path, place, problem, "declare each tensor once, as it is"))
        };
        if !seen.insert(tensor.name) {
            return refuse("the tensor is declared twice".into());
        }
        let expected = output.architecture.shape(tensor.name);
        if tensor.shape != expected {
            return refuse(format!("declared as {:?}, it is {expected:?}", tensor.shape));
        }
        if tensor.encoding.row_bytes(tensor.columns()).is_none() {
            let (columns, encoding) = (tensor.columns(), tensor.encoding);
            return refuse(format!("rows of {columns} values cannot be stored as {encoding}"));
        }
    }
    let missing = output.architecture.tensor_names().into_iter().find(|name| !seen.contains(name));
    match missing {
        None => Ok(()),
        Some(name) => Err(Error::request(
            path,
            name.to_string(),
            "the model needs this tensor; it was not declared",
            "declare every tensor of the architecture",
        )),
    }
}

/// What every sink checks about a call, and what it remembers until `finish`.
pub(crate) struct Progress {
    path: PathBuf,
    tensors: Vec<OutputTensor>,
    written: Vec<Coverage>,
    globals: Vec<Option<f32>>,
}

impl Progress {
    pub(crate) fn new(path: &Path, tensors: Vec<OutputTensor>) -> Progress {
        Progress {
            path: path.to_path_buf(),
            written: vec![Coverage::default(); tensors.len()],
            globals: vec![None; tensors.len()],
            tensors,
        }
    }

    /// The declaration of tensor number `tensor`.
    pub(crate) fn tensor(&self, tensor: usize) -> Result<&OutputTensor, Error> {
        self.tensors.get(tensor).ok_or_else(|| {
            let problem = format!("tensor {tensor} was not declared");
            Error::request(&self.path, "", problem, "declare it before writing")
        })
    }

    fn refuse(&self, tensor: usize, problem: String) -> Error {
        let place = self.tensors.get(tensor).map(|tensor| tensor.name.to_string());
        Error::request(&self.path, place.unwrap_or_default(), problem, "")
    }

    /// Checks a run of `given` elements at `per_row` a row and notes its rows as written.
    pub(crate) fn note(
        &mut self,
        tensor: usize,
        first_row: usize,
        per_row: usize,
        given: usize,
    ) -> Result<Range<usize>, Error> {
        let rows = self.tensor(tensor)?.rows();
        let count = given.checked_div(per_row).unwrap_or(0);
        let end = first_row.checked_add(count).filter(|end| *end <= rows);
        match end {
            Some(end) if count * per_row == given => {
                self.written[tensor].add(first_row..end);
                Ok(first_row..end)
            }
            _ => Err(self.refuse(
                tensor,
                format!("{given} elements from row {first_row} are not whole rows of {rows}"),
            )),
        }
    }

    /// Encodes rows, or says that this encoding cannot be made from values.
    pub(crate) fn encode(&self, tensor: usize, values: &[f32]) -> Result<Vec<u8>, Error> {
        let encoding = self.tensor(tensor)?.encoding;
        let bytes = values::encode(encoding, values);
        bytes.ok_or_else(|| self.refuse(tensor, format!("values cannot be written as {encoding}")))
    }

    /// Bytes of a stored row; NVFP4 rows are in two places and have none.
    pub(crate) fn raw_row_bytes(&self, tensor: usize) -> Result<usize, Error> {
        let declared = self.tensor(tensor)?;
        let bytes = match declared.encoding {
            Encoding::Nvfp4 => None,
            encoding => encoding.row_bytes(declared.columns()),
        };
        bytes.ok_or_else(|| self.refuse(tensor, "NVFP4 rows are codes and scales apart".into()))
    }

    /// Checks a run of NVFP4 rows and notes them; `codes` and `block_scales` must agree.
    pub(crate) fn note_nvfp4(
        &mut self,
        tensor: usize,
        first_row: usize,
        codes: &[u8],
        block_scales: &[u8],
    ) -> Result<Range<usize>, Error> {
        let declared = self.tensor(tensor)?;
        let (encoding, columns) = (declared.encoding, declared.columns());
        if !encoding.is_nvfp4() {
            return Err(self.refuse(tensor, format!("declared as {encoding}, not as NVFP4")));
        }
        if codes.len() != block_scales.len() * 8 {
            let (codes, scales) = (codes.len(), block_scales.len());
            let problem = format!("{codes} bytes of codes do not fit {scales} block scales");
            return Err(self.refuse(tensor, problem));
        }
        let place = self.tensor(tensor)?.name.to_string();
        let first_block = first_row.saturating_mul(columns / 16);
        values::check_block_scales(&self.path, &place, first_block, block_scales)?;
        self.note(tensor, first_row, columns / 2, codes.len())
    }

    /// Keeps the tensor scale of an NVFP4 tensor.
    pub(crate) fn set_global(&mut self, tensor: usize, global: f32) -> Result<(), Error> {
        let declared = self.tensor(tensor)?;
        if !declared.encoding.is_nvfp4() {
            let problem = format!("{} has no tensor scale", declared.encoding);
            return Err(self.refuse(tensor, problem));
        }
        values::check_global(&self.path, &declared.name.to_string(), global)?;
        self.globals[tensor] = Some(global);
        Ok(())
    }

    /// Refuses tensor scales that differ within {q, k, v} or {gate, up}: servers run each group as
    /// one product and take the largest scale for all of it.
    pub(crate) fn check_shared_globals(&self) -> Result<(), Error> {
        let mut first: HashMap<(usize, bool), (TensorName, f32)> = HashMap::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let (TensorName::Layer(layer, part), Some(global)) = (tensor.name, self.globals[index]) else {
                continue;
            };
            let attention = match part {
                LayerTensor::Q | LayerTensor::K | LayerTensor::V => true,
                LayerTensor::Gate | LayerTensor::Up => false,
                _ => continue,
            };
            let known = first.entry((layer, attention)).or_insert((tensor.name, global));
            if known.1 != global {
                return Err(Error::request(
                    &self.path,
                    tensor.name.to_string(),
                    format!("its tensor scale is {global}, that of {} is {}", known.0, known.1),
                    "quantise q, k and v with one tensor scale, and gate and up with one",
                ));
            }
        }
        Ok(())
    }

    /// Refuses to finish while rows or tensor scales are missing.
    pub(crate) fn check_complete(&self) -> Result<(), Error> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if let Some(row) = self.written[index].missing(tensor.rows()) {
                return Err(self.refuse(index, format!("row {row} was never written")));
            }
            if tensor.encoding.is_nvfp4() && self.globals[index].is_none() {
                return Err(self.refuse(index, "its tensor scale was never set".into()));
            }
        }
        Ok(())
    }
}
