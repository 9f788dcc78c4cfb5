//! `halfbyte convert`: a model from one format into another, streamed, checked after writing.
//!
//! flags -> choose (encodings) and carry (text) -> stream (values) -> verify (read back) -> report

mod carry;
mod choose;
mod report;
mod stream;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use halfbyte_checkpoint::{Checkpoint, Format, Output, OutputTensor, TensorName, create};
use halfbyte_formats::nvfp4::Scales;

use crate::device::parse_scales;
use crate::embedded;
use crate::failure::{Code, Failure, Result};
use choose::{Choice, Weights};
use stream::{Job, Stream};

pub(crate) use carry::text as carry_text;
pub(crate) use choose::Target;
pub(crate) use verify::has_tokenizer;

/// Write a model in another format or with other weights
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte convert Qwen3-0.6B qwen3-nvfp4 --to modelopt --scales search
  halfbyte convert SmolLM2-135M-Instruct.Q4_1.gguf smol --to hf

Without --weights, hf gets bf16 and the others NVFP4 in the layer matrices; a .dat written as .dat
keeps what it has. Patterns of --keep are Hugging Face names with * for any run of characters.")]
pub(crate) struct ConvertArgs {
    /// The model to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The directory (hf, modelopt) or file (gguf, dat) to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Target,
    /// How weights are stored
    #[arg(long, value_enum, value_name = "FORMAT")]
    weights: Option<Weights>,
    /// How NVFP4 block scales are chosen: nearest, four-over-six, search
    #[arg(long, default_value = "nearest", value_name = "RULE", value_parser = parse_scales)]
    scales: Scales,
    /// Leave tensors whose name matches unquantised; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Quantise the output head too (a .dat has that anyway, unless the head is the embedding)
    #[arg(long)]
    head: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ConvertArgs {
    /// A conversion that leaves every tensor as it is, wherever the target has that type.
    pub(crate) fn keeping(input: PathBuf, output: PathBuf, to: Target, force: bool, json: bool) -> Self {
        let (weights, keep, scales, head) = (Some(Weights::Keep), Vec::new(), Scales::Nearest, false);
        ConvertArgs { input, output, to, weights, scales, keep, head, force, json }
    }
}

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let start = Instant::now();
    let source = embedded::open(&args.input)?;
    let both_dat = args.to == Target::Dat && source.format == Format::Dat;
    let weights = args.weights.or(both_dat.then_some(Weights::Keep));
    let choice = Choice::new(args.to, weights, args.keep.clone(), args.head)?;
    check_output_path(args)?;
    let jobs = jobs(&source, &choice)?;
    let format = args.to.format();
    let output = Output {
        architecture: source.architecture.clone(),
        tensors: jobs.iter().map(|job| job.declared.clone()).collect(),
        text: carry::text(&source, format)?,
        dat: source.dat.clone(),
    };
    let mut sink = create(&args.output, format, output)?;
    let stream = Stream { source: &source, format, scales: args.scales, jobs: &jobs };
    let results = stream.run(&mut *sink)?;
    sink.finish()?;
    let written = Checkpoint::open(&args.output)?;
    let checked = verify::verify(&source, &written, &jobs, &results)?;
    let report = report::Report {
        source: &source,
        written: &written,
        jobs: &jobs,
        results: &results,
        checked,
        time: start.elapsed(),
    };
    match args.json {
        true => crate::output::json(&report.json()),
        false => print!("{}", report.text()),
    }
    Ok(())
}

/// Nothing is overwritten by accident, and what is written can be opened again.
pub(crate) fn check_output_path(args: &ConvertArgs) -> Result<()> {
    let out = &args.output;
    let refuse =
        |problem: &str, remedy: &str| Err(Failure::misuse(format!("{}\n{problem}\n{remedy}", out.display())));
    if args.to == Target::Dat && out.extension().is_none_or(|extension| extension != "dat") {
        return refuse("a .dat is known by its ending alone", "give a name that ends in .dat");
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let problem = format!("the directory {} does not exist", parent.display());
        return refuse(&problem, "make it first");
    }
    if !out.exists() {
        return Ok(());
    }
    let real = |path: &Path| path.canonicalize().ok();
    match () {
        _ if real(out) == real(&args.input) => refuse("this is the model itself", "write to another path"),
        _ if args.force => Ok(()),
        _ => refuse("this exists already", "choose another path, or replace it with --force"),
    }
}

/// What to write, in the order of the forward pass.
fn jobs<'a>(source: &'a Checkpoint, choice: &Choice) -> Result<Vec<Job<'a>>> {
    let architecture = &source.architecture;
    let mut names = architecture.tensor_names();
    if let Some(pattern) = choice.useless_pattern(&names) {
        let problem = format!(
            "--keep {pattern}\nno tensor has such a name\nnames are listed by: halfbyte inspect {} --tensors",
            source.path.display()
        );
        return Err(Failure::misuse(problem));
    }
    if architecture.tied {
        match choice.target {
            // A .dat has the head beside the embedding; an unchanged one goes over as it is.
            Target::Dat if choice.head || source.find(TensorName::Head).is_some() => {
                names.push(TensorName::Head)
            }
            _ if choice.head => {
                return Err(Failure::misuse(
                    "--head\nthe head of this model is its embedding\nleave --head out",
                ));
            }
            _ => {}
        }
    }
    let job = |name: TensorName| {
        let tied = || source.find(TensorName::Embedding).filter(|_| name == TensorName::Head);
        let Some(tensor) = source.find(name).or_else(tied) else {
            return Err(Failure::new(
                Code::BadInput,
                format!("{}: tensor {name} is missing", source.path.display()),
            ));
        };
        let encoding = match (name, architecture.tied && !choice.head) {
            // A tied head is the embedding, so it is stored as the embedding is.
            (TensorName::Head, true) => {
                choice.encoding(TensorName::Embedding, tensor.columns(), tensor.encoding)
            }
            _ => choice.encoding(name, tensor.columns(), tensor.encoding),
        };
        let declared = OutputTensor { name, shape: tensor.shape.clone(), encoding };
        Ok(Job { declared, source: tensor })
    };
    let jobs: Vec<Job<'_>> = names.into_iter().map(job).collect::<Result<_>>()?;
    let quantised = jobs.iter().any(|job| job.declared.encoding.is_nvfp4());
    match choice.target == Target::Modelopt && !quantised {
        true => {
            Err(Failure::misuse("--to modelopt\nno tensor would be NVFP4\nuse --to hf, or --weights nvfp4"))
        }
        false => Ok(jobs),
    }
}
