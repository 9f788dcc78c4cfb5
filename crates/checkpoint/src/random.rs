//! A model from no file at all: norms are one, everything else is normal, and the seed decides it.

use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::thread;

use halfbyte_formats::normal::normal;
use halfbyte_formats::philox::Stream;

use crate::architecture::Architecture;
use crate::checkpoint::{Checkpoint, Format, Reader};
use crate::error::Error;
use crate::file::SourceFile;
use crate::hugging_face::text;
use crate::json;
use crate::names::{LayerTensor, TensorName};
use crate::tensor::{Encoding, Tensor};

/// Spread of matrices and biases, as families of this kind are born.
const STANDARD_DEVIATION: f32 = 0.02;
/// Fewer values are not worth a thread.
const SHARE: usize = 1 << 16;

pub(crate) fn open(config: &Path, seed: u64) -> Result<Checkpoint, Error> {
    let mut text = text::read(config.parent().unwrap_or(Path::new("")))?;
    // The config that was named, whatever its name.
    let content = text.config.insert(json::read(config)?);
    let architecture = Architecture::from_config(config, content, text.generation_config.as_ref())?;
    let tensor = |(slot, name): (usize, TensorName)| {
        let shape = architecture.shape(name);
        let bytes = shape.iter().product::<usize>() as u64 * 4;
        Tensor { name, disk_name: name.to_string(), shape, encoding: Encoding::F32, bytes, slot }
    };
    let tensors = architecture.tensor_names().into_iter().enumerate().map(tensor).collect();
    let reader = Box::new(Random { seed });
    Checkpoint::assemble(Format::HuggingFace, config, architecture, tensors, text, reader)
}

struct Random {
    seed: u64,
}

impl Reader for Random {
    fn read_f32(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), Error> {
        if is_norm(tensor.name) {
            out.fill(1.0);
            return Ok(());
        }
        let stream = Stream::new(self.seed, 0, tensor.slot as u64);
        let fill = |first: usize, out: &mut [f32]| {
            let values = normal(stream, first..first + out.len(), STANDARD_DEVIATION);
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
        };
        let first = rows.start * tensor.columns();
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let share = out.len().div_ceil(threads).max(SHARE);
        thread::scope(|scope| {
            for (index, out) in out.chunks_mut(share).enumerate() {
                scope.spawn(move || fill(first + index * share, out));
            }
        });
        Ok(())
    }

    fn read_nvfp4(&self, tensor: &Tensor, _: Range<usize>, _: &mut [u8], _: &mut [u8]) -> Result<(), Error> {
        Err(only_values(tensor))
    }

    fn nvfp4_global(&self, tensor: &Tensor) -> Result<f32, Error> {
        Err(only_values(tensor))
    }

    fn read_raw(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let mut values = vec![0.0; rows.len() * tensor.columns()];
        self.read_f32(tensor, rows, &mut values)?;
        for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
            *out = value.to_le_bytes();
        }
        Ok(())
    }

    fn files(&self) -> &[SourceFile] {
        &[]
    }

    fn files_mut(&mut self) -> &mut [SourceFile] {
        &mut []
    }
}

fn only_values(tensor: &Tensor) -> Error {
    let problem = "random values are not stored in NVFP4";
    Error::request(Path::new("random"), &tensor.disk_name, problem, "read its values with read_f32")
}

fn is_norm(name: TensorName) -> bool {
    use LayerTensor::{InputNorm, KNorm, PostNorm, QNorm};
    match name {
        TensorName::FinalNorm => true,
        TensorName::Layer(_, part) => matches!(part, InputNorm | PostNorm | QNorm | KNorm),
        TensorName::Embedding | TensorName::Head => false,
    }
}
