//! The origin's `.dat`: a TorchSharp state dictionary, with config.json beside it.
//!
//! LEB128 entry count; per entry LEB128 key length, key, LEB128 element type, LEB128 rank, LEB128
//! dimensions, data. No magic, no alignment, no end mark: only the length of the file shows that
//! all of it was read. Quantised matrices are two entries, `….qdata` and `….scale`, without a
//! tensor scale.

mod reader;
mod stream;
mod tensors;
mod writer;

use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::checkpoint::{Checkpoint, Format};
use crate::error::Error;
use crate::file::SourceFile;
use crate::hugging_face::text;
use crate::names::TensorName;

pub(crate) use writer::create;

/// Element types of the format.
pub(crate) mod element {
    pub(crate) const U8: u64 = 0;
    pub(crate) const I8: u64 = 1;
    pub(crate) const F16: u64 = 5;
    pub(crate) const F32: u64 = 6;
    pub(crate) const BOOL: u64 = 11;
    pub(crate) const BF16: u64 = 15;
    pub(crate) const E2M1_PAIR: u64 = 100;
    pub(crate) const E4M3: u64 = 101;

    /// Bytes of one element as stored; `None` for a type the format does not have.
    pub(crate) fn bytes(kind: u64) -> Option<u64> {
        match kind {
            U8 | I8 | BOOL | E2M1_PAIR | E4M3 => Some(1),
            2 | F16 | BF16 => Some(2),
            3 | F32 => Some(4),
            4 | 7 | 9 => Some(8),
            10 => Some(16),
            _ => None,
        }
    }
}

/// Keys, order and types of a `.dat`, so that what is unchanged is written back byte for byte.
#[derive(Debug, Clone)]
pub struct DatLayout {
    path: PathBuf,
    entries: Vec<DatEntry>,
}

/// One entry of the stream.
#[derive(Debug, Clone)]
pub(crate) struct DatEntry {
    pub(crate) key: String,
    pub(crate) element: u64,
    pub(crate) dims: Vec<u64>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) role: Role,
}

/// What an entry is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Plain(TensorName),
    Codes(TensorName),
    Scales(TensorName),
    /// Needless to the decoder, copied when the file is written back.
    Other,
}

/// Opens a `.dat` and the config.json beside it.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Error> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let config_path = directory.join("config.json");
    if !config_path.is_file() {
        return Err(Error::input(
            path,
            "",
            format!("a .dat says nothing about the model, and {} is missing", config_path.display()),
            "put the model's config.json and tokenizer.json beside the .dat",
        ));
    }
    let text = text::read(directory)?;
    let config = text.config.as_ref().unwrap_or(&serde_json::Value::Null);
    let generation = text.generation_config.as_ref();
    let architecture = Architecture::from_config(&config_path, config, generation)?;
    let file = SourceFile::open(path)?;
    let entries = stream::read_entries(&file)?;
    let (tensors, reader) = tensors::collect(file, &entries)?;
    let mut checkpoint =
        Checkpoint::assemble(Format::Dat, path, architecture, tensors, text, Box::new(reader))?;
    checkpoint.dat = Some(DatLayout { path: path.to_path_buf(), entries });
    // The origin stores the head beside the embedding and runs with it, whatever the config says.
    if !checkpoint.head_is_embedding()? {
        checkpoint.architecture.tied = false;
    }
    Ok(checkpoint)
}
