//! `halfbyte init`: a Hugging Face directory with random weights, for tests of size and speed.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use halfbyte_checkpoint::{Checkpoint, Encoding, Format, Output, OutputTensor, Sink, create};
use halfbyte_formats::nvfp4::Scales;
use serde_json::json;

use crate::coding::{Coding, Encoded};
use crate::failure::{Code, Failure, Result};
use crate::output::{self, Progress, bytes, count, duration};
use crate::rows::{read, runs};
use crate::summary;

/// Write a model with random weights from a config.json
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte init --config configs/qwen3-0.6b.json --out random-0.6b
  halfbyte init --config configs/llama-8gb.json --out big --seed 7

The weights are normal with standard deviation 0.02, norms are 1; the same seed gives the same model.
A tokenizer that lies beside the config is copied. `train --random` begins with such a model without writing it.")]
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
    let model = Checkpoint::random(&args.config, args.seed)?;
    let architecture = &model.architecture;
    let encoding = match args.dtype {
        Dtype::Bf16 => Encoding::Bf16,
        Dtype::F16 => Encoding::F16,
        Dtype::F32 => Encoding::F32,
    };
    let declare = |name| OutputTensor { name, shape: architecture.shape(name), encoding };
    let tensors: Vec<OutputTensor> = architecture.tensor_names().into_iter().map(declare).collect();
    let (architecture, text) = (architecture.clone(), model.text.clone());
    let output = Output { architecture, tensors: tensors.clone(), text, dat: None };
    let mut sink = create(&args.out, Format::HuggingFace, output)?;
    write_tensors(&model, encoding, &mut *sink)?;
    sink.finish()?;
    let parameters = summary::parameters(&model.architecture);
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

fn write_tensors(model: &Checkpoint, encoding: Encoding, sink: &mut dyn Sink) -> Result<()> {
    let coding = Coding { encoding, global: 1.0, scales: Scales::Nearest };
    let mut progress =
        Progress::new("writing", model.tensors.iter().map(|tensor| tensor.values() as u64).sum());
    for (number, tensor) in model.tensors.iter().enumerate() {
        for run in runs(tensor.rows(), tensor.columns()) {
            let values = read(model, tensor, run.clone())?;
            let Some(Encoded::Bytes(bytes)) = coding.encode(&values) else {
                return Err(Failure::new(Code::Failed, format!("no values in {encoding}")));
            };
            sink.write_raw(number, run.start, &bytes)?;
            progress.add(values.len() as u64);
        }
    }
    Ok(())
}
