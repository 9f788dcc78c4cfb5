//! One error for everything a file can do wrong: it names file, place, problem and remedy.

use std::fmt;
use std::io;
use std::path::Path;

/// What went wrong in which file, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    /// What sort of failure this is; decides the exit code of the program.
    pub kind: ErrorKind,
    /// The file or directory as the user named it.
    pub file: String,
    /// Where in the file: a tensor, a key, a byte offset. Empty when the whole file is meant.
    pub place: String,
    /// What is wrong there, with the numbers.
    pub problem: String,
    /// What to change.
    pub remedy: String,
    /// The operating system's own error, where there is one.
    #[source]
    pub source: Option<io::Error>,
}

/// The sorts of failure a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The file's content is wrong, or of a sort halfbyte does not read.
    Input,
    /// The operating system refused to open, read or write.
    Io,
    /// The disk has no room for what would be written.
    Space,
    /// The caller asked for something that cannot be: a wrong length, a missing declaration.
    Request,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if !self.place.is_empty() {
            write!(f, ": {}", self.place)?;
        }
        write!(f, "\n{}", self.problem)?;
        if !self.remedy.is_empty() {
            write!(f, "\n{}", self.remedy)?;
        }
        Ok(())
    }
}

impl Error {
    /// The content of `file` is wrong at `place`.
    pub fn input(
        file: &Path,
        place: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Error {
            kind: ErrorKind::Input,
            file: file.display().to_string(),
            place: place.into(),
            problem: problem.into(),
            remedy: remedy.into(),
            source: None,
        }
    }

    /// The operating system refused `action` ("open", "read", …) on `file`.
    pub fn io(file: &Path, action: &str, source: io::Error) -> Self {
        let remedy = match source.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check who may read and write there",
            io::ErrorKind::IsADirectory => "name a file in it",
            io::ErrorKind::InvalidData => "save it as UTF-8 text",
            io::ErrorKind::StorageFull => "free space on that disk, or write elsewhere",
            _ => "check the disk and try again",
        };
        Error {
            kind: ErrorKind::Io,
            file: file.display().to_string(),
            place: String::new(),
            problem: format!("cannot {action}: {source}"),
            remedy: remedy.to_string(),
            source: Some(source),
        }
    }

    /// The disk has no room for `file`.
    pub fn space(file: &Path, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error { kind: ErrorKind::Space, ..Error::input(file, "", problem, remedy) }
    }

    /// The caller asked for something that cannot be done with `file`.
    pub fn request(
        file: &Path,
        place: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Error { kind: ErrorKind::Request, ..Error::input(file, place, problem, remedy) }
    }

    /// The same error, at a place (a tensor, a key) known only to the caller.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        self.place = match self.place.is_empty() {
            true => place,
            false => format!("{place}: {}", self.place),
        };
        self
    }
}
