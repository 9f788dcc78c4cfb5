//! How a command ends badly: an exit code and a text that says what to change.

use std::fmt;

/// Exit codes; the README lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Failed = 1,
    Misuse = 2,
    WouldNotFit = 3,
    BadInput = 4,
    CheckFailed = 5,
    Interrupted = 130,
}

/// A failure on its way to the person.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

/// Shorthand.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    /// The command line asks for something that cannot be.
    pub(crate) fn misuse(text: impl Into<String>) -> Failure {
        Failure::new(Code::Misuse, text)
    }

    /// A file could not be read or written.
    pub(crate) fn file(path: &std::path::Path, action: &str, error: std::io::Error) -> Failure {
        halfbyte_checkpoint::Error::io(path, action, error).into()
    }
}

impl fmt::Display for Failure {
    /// The first line stands alone; what follows is indented under it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.text.trim_end().replace('\n', "\n       "))
    }
}

impl From<halfbyte_checkpoint::Error> for Failure {
    fn from(error: halfbyte_checkpoint::Error) -> Failure {
        use halfbyte_checkpoint::ErrorKind;
        let code = match error.kind {
            ErrorKind::Input => Code::BadInput,
            ErrorKind::Io => match error.source.as_ref().map(std::io::Error::kind) {
                Some(std::io::ErrorKind::NotFound) => Code::BadInput,
                _ => Code::Failed,
            },
            ErrorKind::Space => Code::WouldNotFit,
            ErrorKind::Request => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<halfbyte_text::Error> for Failure {
    fn from(error: halfbyte_text::Error) -> Failure {
        Failure::new(Code::BadInput, error.to_string())
    }
}

impl From<halfbyte_ops::Error> for Failure {
    fn from(error: halfbyte_ops::Error) -> Failure {
        Failure::new(Code::Failed, error.to_string())
    }
}

impl From<halfbyte_model::Error> for Failure {
    fn from(error: halfbyte_model::Error) -> Failure {
        match error {
            halfbyte_model::Error::File(error) => error.into(),
            halfbyte_model::Error::TooLong { .. } => Failure::misuse(error.to_string()),
            error => Failure::new(Code::Failed, error.to_string()),
        }
    }
}

impl From<halfbyte_train::Error> for Failure {
    fn from(error: halfbyte_train::Error) -> Failure {
        match error {
            halfbyte_train::Error::File(error) => error.into(),
            error => Failure::misuse(error.to_string()),
        }
    }
}
