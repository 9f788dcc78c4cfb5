//! What a run leaves: the model as a ModelOpt directory, with exactly the codes it was trained in
//! (as a plain one in f32, where nothing was quantised), and the report.

use std::path::Path;

use halfbyte_checkpoint::{Checkpoint, Encoding, Format, Output, OutputTensor, Sink, TensorName, create};
use halfbyte_model::training::Learnt;
use halfbyte_ops::tensor::BLOCK;
use halfbyte_ops::{Backend, Rows, Weight, WeightFormat};
use halfbyte_train::{Record, Report};

use super::TrainArgs;
use super::setup::AnyTraining;
use super::setup::Setup;
use crate::commands::convert::carry_text;
use crate::failure::{Code, Failure, Result};

/// Writes a trained model; all that is no weight comes from the model it began with.
pub(crate) fn model(model: &mut AnyTraining, began: &Checkpoint, path: &Path) -> Result<()> {
    let architecture = &began.architecture;
    let names = architecture.tensor_names();
    let encoding = |name: TensorName| match model.tensor(name) {
        Some(Learnt::Matrix(weight)) if weight.format == WeightFormat::Nvfp4 => Encoding::Nvfp4,
        // Eight bits times a power of two are exact in bf16.
        Some(Learnt::Matrix(weight)) if weight.format == WeightFormat::Int8 => Encoding::Bf16,
        _ => Encoding::F32,
    };
    let format = match model.tensor(TensorName::Embedding) {
        Some(Learnt::Matrix(table)) if table.format == WeightFormat::F32 => Format::HuggingFace,
        _ => Format::ModelOpt,
    };
    let tensor = |name: &TensorName| OutputTensor {
        name: *name,
        shape: architecture.shape(*name),
        encoding: encoding(*name),
    };
    let output = Output {
        architecture: architecture.clone(),
        tensors: names.iter().map(tensor).collect(),
        text: carry_text(began, format)?,
        dat: None,
    };
    let mut sink = create(path, format, output)?;
    for (index, name) in names.iter().enumerate() {
        match model.tensor(*name) {
            Some(Learnt::Matrix(weight)) => matrix(model, &weight, index, &mut *sink)?,
            Some(Learnt::Vector(vector)) => {
                let mut values = vec![0.0; vector.len];
                model.backend.read(Rows::new(vector.buffer, 1, vector.len), &mut values)?;
                sink.write_rows(index, 0, &values)?;
            }
            None => return Err(Failure::new(Code::Failed, format!("{name} is not on the device"))),
        }
    }
    sink.finish()?;
    Ok(())
}

fn matrix(model: &mut AnyTraining, weight: &Weight, index: usize, sink: &mut dyn Sink) -> Result<()> {
    let (columns, blocks) = (weight.columns, weight.columns.div_ceil(BLOCK));
    let (mut codes, mut scales) = (vec![0; blocks * BLOCK / 2], vec![0; blocks]);
    let mut values = vec![0.0; columns];
    for row in 0..weight.rows {
        if weight.format == WeightFormat::Nvfp4 {
            let global = model.backend.read_row(weight, row, &mut codes, &mut scales)?;
            if row == 0 {
                sink.set_global(index, global)?;
            }
            sink.write_nvfp4(index, row, &codes[..columns / 2], &scales)?;
        } else {
            model.read_values(weight, row, &mut values)?;
            sink.write_rows(index, row, &values)?;
        }
    }
    Ok(())
}

pub(super) fn report(args: &TrainArgs, setup: &Setup, records: Vec<Record>) -> Report {
    let a = &setup.checkpoint.architecture;
    let state = setup.adam.state_bytes() as f64 / a.parameters() as f64;
    let facts = [
        ("model", args.beginning().display().to_string()),
        ("parameters", a.parameters().to_string()),
        (
            "data",
            args.corpus
                .data
                .iter()
                .map(|source| source.path.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        ),
        ("kept between steps", format!("{state:.2} bytes a parameter, weights included")),
        ("batch", format!("{} sequences of {} tokens", args.batch, setup.length)),
        ("gradient", args.gradient.to_string()),
    ];
    Report {
        title: format!("Training of {}", args.beginning().display()),
        ending: format!("{} steps taken", records.len()),
        facts: facts.map(|(name, value)| (name.to_string(), value)).to_vec(),
        command: command(args),
        records,
        ..Report::default()
    }
}

/// What makes the same run again. One that went on is told by its settings: its own command would only go on.
fn command(args: &TrainArgs) -> String {
    let words: Vec<String> = match args.resume {
        true => {
            let settings = args.out.join("settings.toml").display().to_string();
            ["halfbyte", "train", "--config", &settings, "--out", "ANOTHER"].map(str::to_owned).to_vec()
        }
        false => std::env::args().collect(),
    };
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
