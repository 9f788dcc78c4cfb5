//! Small JSON files: size and depth are capped, errors name the file and the place.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use crate::file::SourceFile;

/// Largest text file read whole; the largest published tokenizer is below 40 MB.
pub(crate) const MAX_TEXT: u64 = 256 << 20;

/// Reads a whole text file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let file = SourceFile::open(path)?;
    if file.len() > MAX_TEXT {
        let problem = format!("{} bytes is too long for a text file", file.len());
        let remedy = "take the file the model was published with";
        return Err(Error::input(path, "", problem, remedy));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Reads and parses a JSON file.
pub(crate) fn read(path: &Path) -> Result<Value, Error> {
    parse(path, &read_bytes(path)?)
}

/// Parses JSON; serde_json stops at 128 levels of nesting.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(|error| invalid(path, &error))
}

/// What serde_json found wrong, as our error.
pub(crate) fn invalid(path: &Path, error: &serde_json::Error) -> Error {
    let place = format!("line {} column {}", error.line(), error.column());
    let remedy = "the file is damaged: copy it again";
    Error::input(path, place, format!("this is not valid JSON: {error}"), remedy)
}

/// A value for a message, cut to a readable length.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
