//! What can go wrong around a run; every message names file or flag, place and remedy.

use std::path::{Path, PathBuf};

use crate::binding::Difference;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder that cannot be read, written or used.
    #[error(transparent)]
    File(#[from] halfbyte_checkpoint::Error),
    /// A setting that cannot be.
    #[error("{setting}\n{problem}\n{remedy}")]
    Setting {
        /// The flag or key as the person wrote it.
        setting: String,
        /// What is wrong with it, with the numbers.
        problem: String,
        /// What to write instead.
        remedy: String,
    },
    /// A run that began with another model, data, recipe or template.
    #[error("{}: this is another run\n{}\n{REMEDY}", .folder.display(), lines(.differences))]
    OtherRun {
        /// The run folder or the checkpoint.
        folder: PathBuf,
        /// What was, what is.
        differences: Vec<Difference>,
    },
}

const REMEDY: &str = "give what this run began with, or begin another run in another --out folder";

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn setting(
        setting: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Error::Setting { setting: setting.into(), problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn io(file: &Path, action: &str, source: std::io::Error) -> Self {
        Error::File(halfbyte_checkpoint::Error::io(file, action, source))
    }

    pub(crate) fn input(file: &Path, place: &str, problem: impl Into<String>, remedy: &str) -> Self {
        Error::File(halfbyte_checkpoint::Error::input(file, place, problem, remedy))
    }

    pub(crate) fn request(file: &Path, place: &str, problem: impl Into<String>, remedy: &str) -> Self {
        Error::File(halfbyte_checkpoint::Error::request(file, place, problem, remedy))
    }
}

fn lines(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(Difference::to_string).collect();
    lines.join("\n")
}
