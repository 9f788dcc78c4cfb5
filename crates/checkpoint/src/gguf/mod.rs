//! GGUF: header -> metadata -> `Architecture`; tensors by name, llama's row order undone; and back.

mod cursor;
mod header;
mod heads;
mod metadata;
mod metadata_out;
mod names;
mod parts;
mod read;
mod values;
mod write;

use std::collections::HashMap;
use std::path::Path;

use halfbyte_formats::ggml;

use crate::architecture::{Architecture, Family};
use crate::checkpoint::{Checkpoint, Format};
use crate::error::Error;
use crate::file::SourceFile;
use crate::names::{LayerTensor, TensorName};
use crate::sink::{Output, Sink};
use crate::tensor::{Encoding, Tensor};
use crate::text_files::{GgufMetadata, TextFiles};
use header::{Header, TensorInfo, shown};
use names::Role;
use read::{GgufReader, Slot};

/// Opens a GGUF file, with all its parts where it is one of several.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Error> {
    assemble(path, parts::open_parts(path)?)
}

/// Opens a GGUF file that is part of the program.
pub(crate) fn open_memory(name: &Path, bytes: &'static [u8]) -> Result<Checkpoint, Error> {
    let file = SourceFile::memory(name, bytes);
    let header = header::read_header(&file)?;
    assemble(name, vec![(file, header)])
}

fn assemble(path: &Path, parts: Vec<(SourceFile, Header)>) -> Result<Checkpoint, Error> {
    let mut found = Found::default();
    let mut files = Vec::new();
    let (mut version, mut metadata) = (None, None);
    for (file, header) in parts {
        // The first part has the whole model's metadata.
        metadata.get_or_insert(header.metadata);
        version.get_or_insert(header.version);
        for info in &header.tensors {
            found.add(&file, files.len(), info)?;
        }
        files.push(file);
    }
    let metadata = metadata.unwrap_or_default();
    metadata::check_vocabulary(path, &metadata)?;
    let architecture = metadata::architecture(path, &metadata, &found)?;
    found.undo_row_order(path, &architecture)?;
    found.apply_scales(path)?;
    let text = text_files(metadata);
    let reader = Box::new(GgufReader { files, slots: found.slots });
    let tensors = found.tensors;
    let mut checkpoint = Checkpoint::assemble(Format::Gguf, path, architecture, tensors, text, reader)?;
    checkpoint.version = version;
    Ok(checkpoint)
}

/// The metadata alone; also of files that hold nothing but a vocabulary.
pub fn read_metadata(path: &Path) -> Result<GgufMetadata, Error> {
    let metadata = header::read_header(&SourceFile::open(path)?)?.metadata;
    metadata::check_vocabulary(path, &metadata)?;
    Ok(metadata)
}

/// Starts writing a GGUF file.
pub(crate) fn create(path: &Path, output: Output) -> Result<Box<dyn Sink>, Error> {
    Ok(Box::new(write::GgufSink::create(path, output)?))
}

fn text_files(metadata: GgufMetadata) -> TextFiles {
    let template = metadata.get("tokenizer.chat_template");
    TextFiles {
        chat_template: template.and_then(|value| value.as_str()).map(str::to_string),
        gguf: Some(metadata),
        ..TextFiles::default()
    }
}

/// Tensors as the directory lists them.
#[derive(Default)]
struct Found {
    tensors: Vec<Tensor>,
    slots: Vec<Slot>,
    scales: HashMap<TensorName, (String, f32)>,
    rope_frequencies: Option<Vec<f32>>,
}

impl Found {
    fn has(&self, name: TensorName) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }

    fn add(&mut self, file: &SourceFile, part: usize, info: &TensorInfo) -> Result<(), Error> {
        let refuse = |problem: &str, remedy: &str| {
            let place = format!("tensor {}", shown(&info.name));
            Err(Error::input(file.path(), place, problem, remedy))
        };
        match names::role(&info.name) {
            None => refuse(
                "no dense qwen2, qwen3 or llama decoder has such a tensor",
                "use a model of one of these; mixtures of experts are not read",
            ),
            Some(Role::InputScale) => Ok(()),
            Some(Role::RopeFrequencies) => {
                self.rope_frequencies = Some(small_f32(file, info)?);
                Ok(())
            }
            Some(Role::Scale(name)) => match small_f32(file, info)?[..] {
                [scale] if scale.is_finite() && scale > 0.0 => {
                    self.scales.insert(name, (info.name.clone(), scale));
                    Ok(())
                }
                ref other => refuse(
                    &format!("the scale of a tensor is one positive number, not {other:?}"),
                    "the file was written wrongly; convert the model again",
                ),
            },
            Some(Role::Weight(name)) => self.add_weight(file, part, info, name),
        }
    }

    fn add_weight(
        &mut self,
        file: &SourceFile,
        part: usize,
        info: &TensorInfo,
        name: TensorName,
    ) -> Result<(), Error> {
        let shape: Vec<usize> = info.dimensions.iter().rev().copied().collect();
        if shape.len() > 2 {
            let place = format!("tensor {}", shown(&info.name));
            let problem = format!("{} dimensions; our decoders have 1 or 2", shape.len());
            let remedy = "use a dense qwen2, qwen3 or llama model";
            return Err(Error::input(file.path(), place, problem, remedy));
        }
        self.tensors.push(Tensor {
            name,
            disk_name: info.name.clone(),
            shape,
            encoding: encoding(info.kind),
            bytes: info.bytes,
            slot: self.slots.len(),
        });
        self.slots.push(Slot {
            file: part,
            offset: info.offset,
            kind: info.kind,
            head_dim: None,
            global: 1.0,
        });
        Ok(())
    }

    /// Marks the tensors whose rows lie in llama's order; their shapes are checked first, because
    /// reading goes head by head.
    fn undo_row_order(&mut self, path: &Path, architecture: &Architecture) -> Result<(), Error> {
        for tensor in &self.tensors {
            if !reordered(architecture.family, tensor.name) {
                continue;
            }
            let slot = &mut self.slots[tensor.slot];
            slot.head_dim = Some(architecture.head_dim);
            let expected = architecture.shape(tensor.name);
            let blocks = tensor.shape.len() == 1 && slot.kind.block() > 1;
            if tensor.shape != expected || blocks {
                let problem = format!(
                    "{:?} as {}, the metadata asks for {expected:?}, a bias without blocks",
                    tensor.shape, tensor.encoding
                );
                let place = format!("tensor {}", tensor.disk_name);
                return Err(Error::input(path, place, problem, "convert the model again"));
            }
        }
        Ok(())
    }

    /// Gives every NVFP4 tensor its scale.
    fn apply_scales(&mut self, path: &Path) -> Result<(), Error> {
        for tensor in &mut self.tensors {
            let nvfp4 = tensor.encoding.is_nvfp4();
            if let Some((_, scale)) = nvfp4.then(|| self.scales.remove(&tensor.name)).flatten() {
                self.slots[tensor.slot].global = scale;
                tensor.bytes += 4;
            }
        }
        match self.scales.values().find(|(_, scale)| *scale != 1.0) {
            None => Ok(()),
            Some((name, scale)) => {
                let problem = format!("a scale of {scale} without an NVFP4 tensor to scale");
                let remedy = "the file was written wrongly; convert the model again";
                Err(Error::input(path, format!("tensor {name}"), problem, remedy))
            }
        }
    }
}

/// Whether GGUF stores the rows of this tensor in llama's order.
fn reordered(family: Family, name: TensorName) -> bool {
    use LayerTensor::{K, KBias, Q, QBias};
    let rotary = matches!(name, TensorName::Layer(_, Q | K | QBias | KBias));
    family == Family::Llama && rotary
}

fn encoding(kind: ggml::Type) -> Encoding {
    match kind {
        ggml::Type::F32 => Encoding::F32,
        ggml::Type::F16 => Encoding::F16,
        ggml::Type::Bf16 => Encoding::Bf16,
        other => Encoding::Ggml(other),
    }
}

/// A short vector of F32 that is needed at once.
fn small_f32(file: &SourceFile, info: &TensorInfo) -> Result<Vec<f32>, Error> {
    const MOST_BYTES: u64 = 1 << 16;
    if info.kind != ggml::Type::F32 || info.bytes > MOST_BYTES || info.dimensions.len() != 1 {
        let place = format!("tensor {}", shown(&info.name));
        let problem = format!("{} {:?} where a short F32 vector belongs", info.kind.name(), info.dimensions);
        let remedy = "the file was written wrongly; convert the model again";
        return Err(Error::input(file.path(), place, problem, remedy));
    }
    let mut bytes = vec![0; info.bytes as usize];
    file.read_at(info.offset, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect())
}
