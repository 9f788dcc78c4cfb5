//! Writes a directory: safetensors of at most 5 GB each, config.json and the text files.

use std::fs::{File, OpenOptions};
use std::path::Path;

use serde_json::{Map, json};

use crate::atomic::{self, AtomicDirectory};
use crate::checkpoint::Format;
use crate::error::Error;
use crate::hugging_face::{config_out, text};
use crate::names::TensorName;
use crate::safetensors::{self, Declared, Dtype};
use crate::sink::{self, Output, OutputTensor, Progress, Sink};
use crate::space;
use crate::tensor::Encoding;

/// Largest shard, as transformers writes them.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Starts a directory.
pub(crate) fn create(path: &Path, format: Format, output: Output) -> Result<Box<dyn Sink>, Error> {
    create_sharded(path, format, output, SHARD_BYTES)
}

pub(crate) fn create_sharded(
    path: &Path,
    format: Format,
    output: Output,
    shard_bytes: u64,
) -> Result<Box<dyn Sink>, Error> {
    sink::check_output(path, &output)?;
    let quantised = output.tensors.iter().any(|tensor| tensor.encoding == Encoding::Nvfp4);
    if quantised && format == Format::HuggingFace {
        return Err(Error::request(
            path,
            "",
            "NVFP4 tensors make a ModelOpt directory, not a plain one",
            "ask for modelopt, or for bf16 weights",
        ));
    }
    let parts = parts(path, &output)?;
    let shards = split(&parts, shard_bytes);
    let mut small = config_out::files(path, format, &output)?;
    small.extend(text::files(&output.text));
    space::check(path, length(&parts, &shards, &small))?;
    let directory = AtomicDirectory::create(path, text::is_model_file)?;
    let (places, files) = lay_out(&directory, &parts, &shards)?;
    for (name, content) in small {
        directory.write_file(&name, &content)?;
    }
    Ok(Box::new(DirectorySink { directory, files, places, progress: Progress::new(path, output.tensors) }))
}

/// Where a part lies: number of the file, offset in it.
type Place = (usize, u64);

/// Where the parts of a declared tensor lie.
#[derive(Debug, Clone, Copy)]
enum Places {
    Plain(Place),
    Nvfp4 {
        codes: Place,
        scales: Place,
        global: Place,
    },
    /// A tied head is the embedding and is not written twice.
    Tied,
}

struct DirectorySink {
    directory: AtomicDirectory,
    files: Vec<File>,
    places: Vec<Places>,
    progress: Progress,
}

impl DirectorySink {
    fn write(&self, place: Place, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = atomic::write_all_at(&self.files[place.0], place.1 + offset, bytes);
        written.map_err(|error| Error::io(self.directory.path(), "write", error))
    }

    fn write_plain(&self, tensor: usize, row: usize, bytes: &[u8]) -> Result<(), Error> {
        let declared = self.progress.tensor(tensor)?;
        let row_bytes = declared.encoding.row_bytes(declared.columns()).unwrap_or(0);
        match self.places[tensor] {
            Places::Plain(place) => self.write(place, row as u64 * row_bytes as u64, bytes),
            _ => Ok(()),
        }
    }
}

impl Sink for DirectorySink {
    fn write_rows(&mut self, tensor: usize, first_row: usize, values: &[f32]) -> Result<(), Error> {
        let columns = self.progress.tensor(tensor)?.columns();
        let rows = self.progress.note(tensor, first_row, columns, values.len())?;
        let bytes = self.progress.encode(tensor, values)?;
        self.write_plain(tensor, rows.start, &bytes)
    }

    fn write_nvfp4(
        &mut self,
        tensor: usize,
        first_row: usize,
        codes: &[u8],
        block_scales: &[u8],
    ) -> Result<(), Error> {
        let rows = self.progress.note_nvfp4(tensor, first_row, codes, block_scales)?;
        let columns = self.progress.tensor(tensor)?.columns() as u64;
        let row = rows.start as u64;
        match self.places[tensor] {
            Places::Nvfp4 { codes: code_place, scales, .. } => {
                self.write(code_place, row * (columns / 2), codes)?;
                self.write(scales, row * (columns / 16), block_scales)
            }
            _ => Ok(()),
        }
    }

    fn write_raw(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), Error> {
        let row_bytes = self.progress.raw_row_bytes(tensor)?;
        let rows = self.progress.note(tensor, first_row, row_bytes, bytes.len())?;
        self.write_plain(tensor, rows.start, bytes)
    }

    fn set_global(&mut self, tensor: usize, value: f32) -> Result<(), Error> {
        self.progress.set_global(tensor, value)?;
        match self.places[tensor] {
            Places::Nvfp4 { global, .. } => self.write(global, 0, &value.to_le_bytes()),
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.progress.check_complete()?;
        self.progress.check_shared_globals()?;
        for file in &self.files {
            let synced = file.sync_all();
            synced.map_err(|error| Error::io(self.directory.path(), "write", error))?;
        }
        drop(self.files);
        self.directory.finish()
    }
}

/// The safetensors entries of each declared tensor; none for a tied head.
fn parts(path: &Path, output: &Output) -> Result<Vec<Vec<Declared>>, Error> {
    let tied = |tensor: &OutputTensor| tensor.name == TensorName::Head && output.architecture.tied;
    let parts = output.tensors.iter().map(|tensor| match tied(tensor) {
        true => Ok(Vec::new()),
        false => parts_of(path, tensor),
    });
    parts.collect()
}

fn parts_of(path: &Path, tensor: &OutputTensor) -> Result<Vec<Declared>, Error> {
    let name = tensor.name.to_string();
    let plain = |dtype: Dtype| vec![Declared { name: name.clone(), dtype, shape: tensor.shape.clone() }];
    match tensor.encoding {
        Encoding::F32 => Ok(plain(Dtype::F32)),
        Encoding::F16 => Ok(plain(Dtype::F16)),
        Encoding::Bf16 => Ok(plain(Dtype::Bf16)),
        Encoding::Nvfp4 if tensor.shape.len() == 2 => {
            let (rows, columns) = (tensor.rows(), tensor.columns());
            let part = |ending: &str, dtype: Dtype, shape: Vec<usize>| Declared {
                name: format!("{name}{ending}"),
                dtype,
                shape,
            };
            Ok(vec![
                part("", Dtype::U8, vec![rows, columns / 2]),
                part("_scale", Dtype::F8E4m3, vec![rows, columns / 16]),
                part("_scale_2", Dtype::F32, Vec::new()),
            ])
        }
        other => Err(Error::request(
            path,
            name,
            format!("{other} has no place in a safetensors directory"),
            "choose bf16, f16, f32 or nvfp4 weights",
        )),
    }
}

/// Numbers of the tensors in each shard; a tensor's parts stay together.
fn split(parts: &[Vec<Declared>], shard_bytes: u64) -> Vec<Vec<usize>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0;
    for (index, parts) in parts.iter().enumerate() {
        let bytes: u64 = parts.iter().map(Declared::bytes).sum();
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(index);
        }
    }
    shards
}

/// The safetensors entries of a shard, in order.
fn entries(parts: &[Vec<Declared>], shard: &[usize]) -> Vec<Declared> {
    shard.iter().flat_map(|&tensor| parts[tensor].iter().cloned()).collect()
}

/// Bytes of all files but the index of the shards, which is small.
fn length(parts: &[Vec<Declared>], shards: &[Vec<usize>], small: &[(String, Vec<u8>)]) -> u64 {
    let shards = shards.iter().map(|shard| safetensors::layout(&entries(parts, shard)).2);
    shards.chain(small.iter().map(|(_, content)| content.len() as u64)).sum()
}

/// Creates the files with their headers, and the index when there is more than one.
fn lay_out(
    directory: &AtomicDirectory,
    parts: &[Vec<Declared>],
    shards: &[Vec<usize>],
) -> Result<(Vec<Places>, Vec<File>), Error> {
    let mut places = vec![Places::Tied; parts.len()];
    let mut files = Vec::new();
    let mut map = Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_string(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let declared = entries(parts, shard);
        let (prefix, offsets, length) = safetensors::layout(&declared);
        files.push(create_file(directory, &name, &prefix, length)?);
        let mut offsets = offsets.into_iter().map(|offset| (number, offset));
        for &tensor in shard {
            places[tensor] = match parts[tensor].len() {
                0 => Places::Tied,
                1 => offsets.next().map_or(Places::Tied, Places::Plain),
                _ => match (offsets.next(), offsets.next(), offsets.next()) {
                    (Some(codes), Some(scales), Some(global)) => Places::Nvfp4 { codes, scales, global },
                    _ => Places::Tied,
                },
            };
        }
        map.extend(declared.into_iter().map(|part| (part.name, json!(name))));
    }
    if shards.len() > 1 {
        let total: u64 = parts.iter().flatten().map(Declared::bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        let (name, content) = text::json_file("model.safetensors.index.json", &index);
        directory.write_file(&name, &content)?;
    }
    Ok((places, files))
}

fn create_file(directory: &AtomicDirectory, name: &str, prefix: &[u8], length: u64) -> Result<File, Error> {
    let path = directory.temporary().join(name);
    let create = || {
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.set_len(length)?;
        atomic::write_all_at(&file, 0, prefix)?;
        Ok(file)
    };
    create().map_err(|error| Error::io(&directory.path().join(name), "write", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::Architecture;
    use crate::checkpoint::Checkpoint;
    use crate::text_files::TextFiles;

    #[test]
    fn large_models_are_split_and_read_back() {
        let config = json!({
            "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
        });
        let architecture = Architecture::from_config(Path::new("toy"), &config, None).unwrap();
        let declare = |name: TensorName| OutputTensor {
            name,
            shape: architecture.shape(name),
            encoding: match name {
                TensorName::Layer(0, tensor) if tensor.is_matrix() => Encoding::Nvfp4,
                _ => Encoding::F32,
            },
        };
        let tensors: Vec<_> = architecture.tensor_names().into_iter().map(declare).collect();
        let output = Output {
            architecture: architecture.clone(),
            tensors: tensors.clone(),
            text: TextFiles::default(),
            dat: None,
        };
        let name = format!("halfbyte-shards-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut sink = create_sharded(&path, Format::ModelOpt, output, 10_000).unwrap();
        for (index, tensor) in tensors.iter().enumerate() {
            let count = tensor.rows() * tensor.columns();
            if tensor.encoding == Encoding::Nvfp4 {
                sink.write_nvfp4(index, 0, &vec![index as u8; count / 2], &vec![56; count / 16]).unwrap();
                sink.set_global(index, 0.5).unwrap();
            } else {
                sink.write_rows(index, 0, &vec![index as f32; count]).unwrap();
            }
        }
        sink.finish().unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert!(path.join("model-00002-of-00007.safetensors").is_file());
        for (index, tensor) in tensors.iter().enumerate() {
            let found = checkpoint.find(tensor.name).unwrap();
            let mut values = vec![0.0; found.columns()];
            checkpoint.read_f32(found, 0..1, &mut values).unwrap();
            match found.encoding {
                Encoding::F32 => assert_eq!(values[0], index as f32),
                _ => assert_eq!(checkpoint.nvfp4_global(found).unwrap(), 0.5),
            }
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}
