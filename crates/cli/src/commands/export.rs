//! `halfbyte export`: the model of a run, or of one of its checkpoints, in any format that `convert`
//! writes.
//!
//! checkpoint -> the codes as they were trained -> a ModelOpt directory beside OUT -> convert -> OUT

use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_checkpoint::Checkpoint;
use halfbyte_train::{RunFolder, Snapshot};

use super::convert::{self, ConvertArgs, Target};
use super::train::{self, TrainArgs};
use crate::failure::{Code, Failure, Result};

/// Write the model of a training run in any format, without training again
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte export run SmolLM2-mine.gguf --to gguf
  halfbyte export run/checkpoints/000400 step-400 --to hf

A run gives its newest whole checkpoint. Weights stay as they were trained wherever the format has
that type: hf gets bf16 values of the NVFP4 codes, a .dat its own single scales. What is no weight (configuration, tokenizer, template) comes
from the model that the run began with, which its settings.toml names.")]
pub(crate) struct ExportArgs {
    /// The folder of a run, or one of its checkpoints
    #[arg(value_name = "RUN|CHECKPOINT")]
    run: PathBuf,
    /// The directory (hf, modelopt) or file (gguf, dat) to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Target,
    /// Where the model is now that the run began with [default: where it was]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExportArgs) -> Result<()> {
    let (folder, snapshot) = find(&args.run)?;
    let mut settings = train::settings_of(&folder)?;
    if let Some(model) = &args.model {
        settings.begin_with(model.clone());
    }
    let began = open(&settings, &snapshot)?;
    let between = Between::beside(&args.output);
    let trained = between.model(&args.output);
    let conversion =
        ConvertArgs::keeping(trained.clone(), args.output.clone(), args.to, args.force, args.json);
    convert::check_output_path(&conversion)?;
    let mut model = train::restore(&settings, &began, &snapshot)?;
    std::fs::create_dir(&between.0).map_err(|error| Failure::file(&between.0, "create", error))?;
    train::write_model(&mut model, &began, &trained)?;
    drop(model);
    convert::run(&conversion)
}

/// The folder of a run, and its newest checkpoint or the one that was named.
fn find(path: &Path) -> Result<(PathBuf, Snapshot)> {
    if path.join("manifest.json").is_file() {
        let real = path.canonicalize().map_err(|error| Failure::file(path, "read", error))?;
        let Some(folder) = real.parent().and_then(Path::parent) else {
            return Err(lost(path, "this checkpoint is in no run"));
        };
        return Ok((folder.to_path_buf(), Snapshot::open(&real)?));
    }
    let found = RunFolder::checkpoints(path)?.newest()?;
    for passed in &found.passed {
        eprintln!("note: passed over {}: {}", passed.path.display(), passed.reason);
    }
    match found.newest {
        Some(snapshot) => Ok((path.to_path_buf(), snapshot)),
        None => Err(lost(path, "no checkpoint of this run is whole")),
    }
}

fn lost(path: &Path, problem: &str) -> Failure {
    let remedy = "give the folder of a run, or one of its checkpoints where the run wrote it";
    Failure::new(Code::BadInput, format!("{}\n{problem}\n{remedy}", path.display()))
}

/// The model that the run began with: it, and no other.
fn open(settings: &TrainArgs, snapshot: &Snapshot) -> Result<Checkpoint> {
    let began = settings.open().map_err(|failure| {
        let remedy = "the run began with this model: say where it is now with --model";
        Failure::new(failure.code, format!("{}\n{remedy}", failure.text))
    })?;
    let was = snapshot.manifest().progress.binding.model.get("fingerprint");
    let is = format!("{:016x}", began.fingerprint());
    match was == Some(&is) {
        true => Ok(began),
        false => {
            let problem = format!(
                "{}\nthis is not the model that the run began with: its fingerprint is {is}, it was {}\n\
                 give that one with --model",
                settings.beginning().display(),
                was.map_or("not written down", String::as_str)
            );
            Err(Failure::new(Code::BadInput, problem))
        }
    }
}

/// A directory on the way, which goes away however the export ends.
struct Between(PathBuf);

impl Between {
    fn beside(output: &Path) -> Between {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        Between(output.with_file_name(format!(".{name}.{}.export", std::process::id())))
    }

    /// Named as the result is: some formats keep the name.
    fn model(&self, output: &Path) -> PathBuf {
        self.0.join(output.file_stem().unwrap_or_default())
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        // What cannot be removed is named by its ending; the export stands.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
