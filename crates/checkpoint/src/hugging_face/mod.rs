//! Hugging Face directories: config.json, text files, one or more safetensors.
//!
//! shards (which file) -> tensors (which encoding) -> reader (which bytes); writer goes back.

pub(crate) mod config_out;
mod reader;
mod shards;
mod tensors;
pub(crate) mod text;
mod writer;

use std::path::Path;

use crate::architecture::Architecture;
use crate::checkpoint::{Checkpoint, Format};
use crate::error::Error;
use crate::tensor::Encoding;

pub(crate) use reader::read_nvfp4_values;
pub(crate) use writer::create;

/// Opens a directory.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Error> {
    let config_path = path.join("config.json");
    if !config_path.is_file() {
        return Err(Error::input(
            path,
            "",
            "the directory has no config.json",
            "give the directory that holds config.json and the .safetensors files",
        ));
    }
    let text = text::read(path)?;
    let config = text.config.as_ref().unwrap_or(&serde_json::Value::Null);
    let generation = text.generation_config.as_ref();
    let architecture = Architecture::from_config(&config_path, config, generation)?;
    let stored = shards::open(path)?;
    let (tensors, reader) = tensors::collect(stored)?;
    let quantised = tensors.iter().any(|tensor| tensor.encoding == Encoding::Nvfp4);
    let format = match quantised {
        true => Format::ModelOpt,
        false => Format::HuggingFace,
    };
    let checkpoint = Checkpoint::assemble(format, path, architecture, tensors, text, Box::new(reader))?;
    checkpoint.check_tied_head()?;
    Ok(checkpoint)
}
