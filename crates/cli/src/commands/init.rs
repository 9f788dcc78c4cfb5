//! `halfbyte init`: a Hugging Face directory with random weights, for tests of size and speed.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use clap::{Args, ValueEnum};
use halfbyte_checkpoint::{
    Architecture, Encoding, Format, LayerTensor, Output, OutputTensor, Sink, TensorName, TextFiles, create,
};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::philox::Stream;
use serde_json::json;

use crate::coding::{Coding, Encoded};
use crate::failure::{Code, Failure, Result};
use crate::output::{self, Progress, bytes, count, duration};
use crate::rows::{each_run, runs};
use crate::summary;

/// Spread of matrices and biases, as families of this kind are born.
const STANDARD_DEVIATION: f32 = 0.02;

/// Write a model with random weights from a config.json
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte init --config configs/qwen3-0.6b.json --out random-0.6b
  halfbyte init --config configs/llama-8gb.json --out big --seed 7

The weights are normal with standard deviation 0.02, norms are 1; the same seed gives the same model.")]
pub(crate) struct InitArgs {
    /// A config.json of a qwen3, qwen2 or llama model
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The directory to write; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Which random weights
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// The type of the values
    #[arg(long, value_enum, default_value = "bf16", value_name = "TYPE")]
    dtype: Dtype,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    Bf16,
    F16,
    F32,
}

pub(crate) fn run(args: &InitArgs) -> Result<()> {
    let start = Instant::now();
    if args.out.exists() {
        let problem = format!("{}\nthis exists already\nchoose another path", args.out.display());
        return Err(Failure::misuse(problem));
    }
    let architecture = Architecture::from_config_file(&args.config)?;
    let encoding = match args.dtype {
        Dtype::Bf16 => Encoding::Bf16,
        Dtype::F16 => Encoding::F16,
        Dtype::F32 => Encoding::F32,
    };
    let declare = |name| OutputTensor { name, shape: architecture.shape(name), encoding };
    let tensors: Vec<OutputTensor> = architecture.tensor_names().into_iter().map(declare).collect();
    let text = TextFiles { config: Some(read_json(&args.config)?), ..TextFiles::default() };
    let output = Output { architecture: architecture.clone(), tensors: tensors.clone(), text, dat: None };
    let mut sink = create(&args.out, Format::HuggingFace, output)?;
    write_tensors(&tensors, args.seed, &mut *sink)?;
    sink.finish()?;
    let parameters = summary::parameters(&architecture);
    let written: u64 = tensors.iter().filter_map(stored_bytes).sum();
    match args.json {
        true => output::json(&json!({
            "path": args.out.display().to_string(),
            "parameters": parameters,
            "bytes": written,
            "seed": args.seed,
            "seconds": start.elapsed().as_secs_f64(),
        })),
        false => println!(
            "wrote {} · {} parameters · {} · {}",
            args.out.display(),
            count(parameters),
            bytes(written),
            duration(start.elapsed())
        ),
    }
    Ok(())
}

fn stored_bytes(tensor: &OutputTensor) -> Option<u64> {
    let row = tensor.encoding.row_bytes(tensor.columns())?;
    Some(row as u64 * tensor.rows() as u64)
}

fn read_json(path: &Path) -> Result<serde_json::Value> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, "read", error))?;
    serde_json::from_str(&text).map_err(|error| {
        let problem = format!("{}\nthis is not JSON: {error}\ncheck the file", path.display());
        Failure::new(Code::BadInput, problem)
    })
}

fn write_tensors(tensors: &[OutputTensor], seed: u64, sink: &mut dyn Sink) -> Result<()> {
    let values: u64 = tensors.iter().map(|tensor| (tensor.rows() * tensor.columns()) as u64).sum();
    let shared = Mutex::new((sink, Progress::new("writing", values)));
    for (number, tensor) in tensors.iter().enumerate() {
        let stream = Stream::new(seed, 0, number as u64);
        each_run(&runs(tensor.rows(), tensor.columns()), |run| {
            let elements = run.start * tensor.columns()..run.end * tensor.columns();
            let values = match is_norm(tensor.name) {
                true => vec![1.0; elements.len()],
                false => normal(stream, elements),
            };
            let coding = Coding { encoding: tensor.encoding, global: 1.0, scales: Scales::Nearest };
            let Some(Encoded::Bytes(bytes)) = coding.encode(&values) else {
                return Err(Failure::new(Code::Failed, format!("no values in {}", tensor.encoding)));
            };
            let mut shared = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            shared.0.write_raw(number, run.start, &bytes)?;
            shared.1.add(values.len() as u64);
            Ok(())
        })?;
    }
    Ok(())
}

fn is_norm(name: TensorName) -> bool {
    use LayerTensor::{InputNorm, KNorm, PostNorm, QNorm};
    match name {
        TensorName::FinalNorm => true,
        TensorName::Layer(_, part) => matches!(part, InputNorm | PostNorm | QNorm | KNorm),
        TensorName::Embedding | TensorName::Head => false,
    }
}

/// Normal values of a run of elements: two from each pair of random words (Box and Muller).
fn normal(stream: Stream, elements: Range<usize>) -> Vec<f32> {
    let first = elements.start / 4;
    let quads = first..elements.end.div_ceil(4);
    let mut values = Vec::with_capacity(quads.len() * 4);
    for quad in quads {
        let [a, b, c, d] = stream.quad(quad as u64);
        values.extend(pair(a, b));
        values.extend(pair(c, d));
    }
    values.truncate(elements.end - first * 4);
    values.drain(..elements.start - first * 4);
    values
}

fn pair(a: u32, b: u32) -> [f32; 2] {
    const STEP: f32 = 1.0 / (1 << 24) as f32;
    // From (0, 1]: the logarithm of zero is no number.
    let radius = (-2.0 * (((a >> 8) + 1) as f32 * STEP).ln()).sqrt() * STANDARD_DEVIATION;
    let (sin, cos) = ((b >> 8) as f32 * STEP * std::f32::consts::TAU).sin_cos();
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_depend_on_how_they_are_cut() {
        let stream = Stream::new(3, 0, 1);
        let whole = normal(stream, 0..37);
        assert_eq!(whole.len(), 37);
        assert_eq!(normal(stream, 5..22), whole[5..22]);
        assert_eq!(normal(stream, 36..37), whole[36..]);
    }

    #[test]
    fn mean_and_spread_are_those_asked_for() {
        let values = normal(Stream::new(0, 0, 0), 0..100_000);
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
        let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 1e5;
        // Five standard deviations of each estimate.
        assert!(mean.abs() < 5.0 * 0.02 / 316.0, "{mean}");
        assert!((square.sqrt() / 0.02 - 1.0).abs() < 5.0 / 447.0, "{square}");
    }
}
