//! An opened model: its tensors, its text, and positioned reads of any rows from any thread.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::atomic;
use crate::dat::{self, DatLayout};
use crate::error::Error;
use crate::file::SourceFile;
use crate::fingerprint::{SAMPLES, fingerprint};
use crate::names::TensorName;
use crate::tensor::{Encoding, Tensor};
use crate::text_files::TextFiles;
use crate::{gguf, hugging_face, random};

/// The file formats a model comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A directory of safetensors with f32, f16 or bf16 values.
    HuggingFace,
    /// A directory of safetensors with NVFP4 matrices.
    ModelOpt,
    /// One GGUF file.
    Gguf,
    /// The origin's state dictionary, with config.json beside it.
    Dat,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::HuggingFace => "Hugging Face safetensors",
            Format::ModelOpt => "NVFP4 safetensors",
            Format::Gguf => "GGUF",
            Format::Dat => "TorchSharp .dat",
        })
    }
}

/// What each format's own file implements. Arguments were checked by `Checkpoint`.
pub(crate) trait Reader: Send + Sync {
    /// Decodes rows; `out` holds exactly them.
    fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error>;
    /// Codes and block scales of rows of a tensor for which `Encoding::is_nvfp4` holds.
    fn read_nvfp4(
        &self,
        tensor: &Tensor,
        rows: Range<usize>,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> Result<(), Error>;
    /// The f32 scale of such a tensor.
    fn nvfp4_global(&self, tensor: &Tensor) -> Result<f32, Error>;
    /// Stored bytes of rows, in our row order; never called for `Encoding::Nvfp4`.
    fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error>;
    /// The files behind it.
    fn files(&self) -> &[SourceFile];
    /// The same, to change how they are read.
    fn files_mut(&mut self) -> &mut [SourceFile];
}

/// An opened model.
pub struct Checkpoint {
    /// The format it was found in.
    pub format: Format,
    /// The version the file states, where the format has versions (GGUF).
    pub version: Option<u32>,
    /// The path it was opened by.
    pub path: PathBuf,
    /// Sizes and switches.
    pub architecture: Architecture,
    /// All tensors, sorted by name.
    pub tensors: Vec<Tensor>,
    /// Tokenizer, template, configuration.
    pub text: TextFiles,
    /// Keys and types of a `.dat`, to write it back as it was.
    pub dat: Option<DatLayout>,
    fingerprint: u64,
    reader: Box<dyn Reader>,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("format", &self.format)
            .field("path", &self.path)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a directory with config.json, a GGUF file (known by its magic), or a `.dat` with
    /// config.json beside it. Every declared tensor is checked to be there with its shape.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        atomic::recover(path)?;
        let metadata = std::fs::metadata(path).map_err(|error| Error::io(path, "open", error))?;
        if metadata.is_dir() {
            return hugging_face::open(path);
        }
        let mut magic = [0; 4];
        let file = SourceFile::open(path)?;
        if file.len() >= 4 {
            file.read_at(0, &mut magic)?;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension {
            _ if &magic == b"GGUF" => gguf::open(path),
            Some("gguf") => gguf::open(path),
            Some("dat") => dat::open(path),
            _ => Err(Error::input(
                path,
                "",
                "this is neither a model directory, nor GGUF, nor a .dat file",
                "give the directory that holds config.json and the .safetensors files, a .gguf, \
                 or a .dat with config.json beside it",
            )),
        }
    }

    /// Opens a GGUF file that is part of the program; `name` stands for it in messages.
    pub fn embedded(name: &Path, gguf: &'static [u8]) -> Result<Checkpoint, Error> {
        gguf::open_memory(name, gguf)
    }

    /// A model that no file has: the shapes of a config.json and random values, as families of this kind are born.
    /// Tokenizer and template are those beside the config, if there are any.
    pub fn random(config: &Path, seed: u64) -> Result<Checkpoint, Error> {
        random::open(config, seed)
    }

    /// From now on tensors are read past the page cache, where the file system can. For machines whose GPU shares the
    /// memory that the cache would take.
    pub fn read_directly(&mut self) -> Result<(), Error> {
        let files = self.reader.files_mut();
        files.iter_mut().try_for_each(SourceFile::use_direct_reads)
    }

    /// Puts the parts together; checks that the tensors are the architecture's, no more, no less.
    pub(crate) fn assemble(
        format: Format,
        path: &Path,
        architecture: Architecture,
        mut tensors: Vec<Tensor>,
        text: TextFiles,
        reader: Box<dyn Reader>,
    ) -> Result<Checkpoint, Error> {
        tensors.sort_by_key(|tensor| tensor.name);
        check_tensors(path, &architecture, &tensors)?;
        let fingerprint = fingerprint(&architecture, &tensors, reader.files())?;
        Ok(Checkpoint {
            fingerprint,
            format,
            version: None,
            path: path.to_path_buf(),
            architecture,
            tensors,
            text,
            dat: None,
            reader,
        })
    }

    /// The tensor called `name`.
    pub fn find(&self, name: TensorName) -> Option<&Tensor> {
        let found = self.tensors.binary_search_by_key(&name, |tensor| tensor.name);
        found.ok().map(|index| &self.tensors[index])
    }

    /// Decoded values of rows; `out` holds rows x columns of them.
    pub fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        self.check_rows(tensor, &rows, tensor.columns(), out.len(), "values")?;
        self.reader.read_f32(tensor, rows, out)
    }

    /// E2M1 codes, low nibble first, [rows, in/2], and block scales, [rows, in/16], as stored.
    pub fn read_nvfp4(
        &self,
        tensor: &Tensor,
        rows: Range<usize>,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> Result<(), Error> {
        self.check_nvfp4(tensor)?;
        let columns = tensor.columns();
        self.check_rows(tensor, &rows, columns / 2, codes.len(), "code bytes")?;
        self.check_rows(tensor, &rows, columns / 16, block_scales.len(), "scales")?;
        self.reader.read_nvfp4(tensor, rows, codes, block_scales)
    }

    /// The tensor's f32 scale: weight = code * block scale * this.
    pub fn nvfp4_global(&self, tensor: &Tensor) -> Result<f32, Error> {
        self.check_nvfp4(tensor)?;
        self.reader.nvfp4_global(tensor)
    }

    /// Stored bytes of rows, for every encoding but `Nvfp4`; `out` holds rows x
    /// `Encoding::row_bytes`.
    pub fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let row_bytes = match tensor.encoding {
            Encoding::Nvfp4 => None,
            encoding => encoding.row_bytes(tensor.columns()),
        };
        let Some(row_bytes) = row_bytes else {
            return Err(self.wrong_encoding(tensor, "has no single run of stored bytes"));
        };
        self.check_rows(tensor, &rows, row_bytes, out.len(), "bytes")?;
        self.reader.read_raw(tensor, rows, out)
    }

    /// Whether the model has no head of its own: none is stored, or it equals the embedding in
    /// rows spread over both.
    pub(crate) fn head_is_embedding(&self) -> Result<bool, Error> {
        let embedding = self.find(TensorName::Embedding);
        let (Some(head), Some(embedding)) = (self.find(TensorName::Head), embedding) else {
            return Ok(true);
        };
        let columns = head.columns();
        let (mut a, mut b) = (vec![0.0; columns], vec![0.0; columns]);
        let step = (head.rows() / SAMPLES as usize).max(1);
        for row in (0..head.rows()).step_by(step) {
            self.read_f32(head, row..row + 1, &mut a)?;
            self.read_f32(embedding, row..row + 1, &mut b)?;
            if a.iter().zip(&b).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a head that differs from the embedding while the config says they are one.
    pub(crate) fn check_tied_head(&self) -> Result<(), Error> {
        if !self.architecture.tied || self.head_is_embedding()? {
            return Ok(());
        }
        Err(Error::input(
            &self.path,
            TensorName::Head.to_string(),
            "tie_word_embeddings is true, but this tensor differs from the embedding",
            "set tie_word_embeddings to false in config.json, or remove the tensor",
        ))
    }

    /// Bytes of all files with tensors.
    pub fn file_bytes(&self) -> u64 {
        self.reader.files().iter().map(SourceFile::len).sum()
    }

    /// A number that differs between models: shapes, sizes and a few stored bytes of every file
    /// region. Cheap whatever the size of the model; not a proof of equality.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn check_nvfp4(&self, tensor: &Tensor) -> Result<(), Error> {
        match tensor.encoding.is_nvfp4() {
            true => Ok(()),
            false => Err(self.wrong_encoding(tensor, "is not NVFP4")),
        }
    }

    fn wrong_encoding(&self, tensor: &Tensor, what: &str) -> Error {
        let problem = format!("the tensor is stored as {}; it {what}", tensor.encoding);
        Error::request(&self.path, &tensor.disk_name, problem, "read its values with read_f32")
    }

    fn check_rows(
        &self,
        tensor: &Tensor,
        rows: &Range<usize>,
        per_row: usize,
        given: usize,
        unit: &str,
    ) -> Result<(), Error> {
        let inside = rows.start <= rows.end && rows.end <= tensor.rows();
        let fits = rows.len().checked_mul(per_row) == Some(given);
        if inside && fits {
            return Ok(());
        }
        let problem = format!(
            "rows {}..{} of {} with {per_row} {unit} each do not fill {given}",
            rows.start,
            rows.end,
            tensor.rows()
        );
        Err(Error::request(&self.path, &tensor.disk_name, problem, ""))
    }
}

/// Refuses a file whose tensors are not exactly those the architecture needs. A tied model may
/// carry its head as well: many exporters write it twice.
fn check_tensors(path: &Path, architecture: &Architecture, tensors: &[Tensor]) -> Result<(), Error> {
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Error::input(
            path,
            &pair[1].disk_name,
            format!("{} and {} are the same tensor", pair[0].disk_name, pair[1].disk_name),
            "the file was written wrongly; convert the model again",
        ));
    }
    let needed = architecture.tensor_names();
    for name in &needed {
        let present = tensors.binary_search_by_key(name, |tensor| tensor.name);
        if present.is_err() {
            return Err(missing(path, architecture, *name));
        }
    }
    for tensor in tensors {
        let extra_head = tensor.name == TensorName::Head && architecture.tied;
        if needed.binary_search(&tensor.name).is_err() && !extra_head {
            return Err(Error::input(
                path,
                &tensor.disk_name,
                format!("a {} model with this config has no such tensor", architecture.family.name()),
                "take config and tensors from the same model",
            ));
        }
        let expected = architecture.shape(tensor.name);
        if tensor.shape != expected {
            return Err(Error::input(
                path,
                &tensor.disk_name,
                format!("the shape is {:?}, the config asks for {expected:?}", tensor.shape),
                "take config and tensors from the same model",
            ));
        }
    }
    Ok(())
}

fn missing(path: &Path, architecture: &Architecture, name: TensorName) -> Error {
    let remedy = match name {
        TensorName::Head => {
            "the config says the head is not tied to the embedding; set tie_word_embeddings to \
             true if it is, or copy the missing tensor"
        }
        _ => "the copy is incomplete or belongs to another config; copy the whole model again",
    };
    let problem = format!("a {} model needs this tensor; no file has it", architecture.family.name());
    Error::input(path, name.to_string(), problem, remedy)
}
