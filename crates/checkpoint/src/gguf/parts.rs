//! A model split over several GGUF files: `name-00001-of-00003.gguf` and its siblings.

use std::path::{Path, PathBuf};

use super::header::{Header, read_header};
use crate::error::Error;
use crate::file::SourceFile;

/// Splits beyond this are not read; each keeps a file open.
const MAX_PARTS: u64 = 1024;

/// Opens the file, and all other parts where it is one of several; in their order.
pub(super) fn open_parts(path: &Path) -> Result<Vec<(SourceFile, Header)>, Error> {
    let file = SourceFile::open(path)?;
    let header = read_header(&file)?;
    let count = number(&header, "split.count").unwrap_or(1);
    if count <= 1 {
        return Ok(vec![(file, header)]);
    }
    let mut parts = Vec::new();
    for path in part_paths(path, count)? {
        let file = SourceFile::open(&path)
            .map_err(|error| error.at(format!("part {} of {count}", parts.len() + 1)))?;
        let header = read_header(&file)?;
        let place = (number(&header, "split.no"), number(&header, "split.count"));
        if place != (Some(parts.len() as u64), Some(count)) {
            let problem = format!("this is not part {} of {count}", parts.len() + 1);
            let remedy = "put all parts of one model, unrenamed, in one directory";
            return Err(Error::input(&path, "metadata split.no", problem, remedy));
        }
        parts.push((file, header));
    }
    check_tensor_count(path, &parts)?;
    Ok(parts)
}

fn number(header: &Header, key: &str) -> Option<u64> {
    header.metadata.get(key)?.as_u64()
}

/// The names of all parts, from the name of one.
fn part_paths(path: &Path, count: u64) -> Result<Vec<PathBuf>, Error> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf"));
    let stem = stem.and_then(|stem| stem.rsplit_once('-'));
    let ours = stem.filter(|(_, part)| part.len() == 5 && part.parse::<u64>().is_ok());
    match ours {
        Some((stem, _)) if count <= MAX_PARTS => Ok((1..=count)
            .map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf")))
            .collect()),
        _ => {
            let problem = format!(
                "this is one of {count} parts, but its name does not say which (NAME-00001-of-{count:05}.gguf)"
            );
            let remedy = "give the parts their original names, or merge them with llama-gguf-split --merge";
            Err(Error::input(path, "metadata split.count", problem, remedy))
        }
    }
}

fn check_tensor_count(path: &Path, parts: &[(SourceFile, Header)]) -> Result<(), Error> {
    let found: u64 = parts.iter().map(|(_, header)| header.tensors.len() as u64).sum();
    let promised = number(&parts[0].1, "split.tensors.count").unwrap_or(found);
    if promised == found {
        return Ok(());
    }
    let problem = format!("{promised} tensors are promised, the parts hold {found}");
    let remedy = "put all parts of one model in one directory";
    Err(Error::input(path, "metadata split.tensors.count", problem, remedy))
}
