//! Which safetensors files a directory means, and that index and files agree.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::Error;
use crate::file::SourceFile;
use crate::json;
use crate::safetensors::{self, Entry};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The opened files and every tensor in them with the number of its file.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) files: Vec<SourceFile>,
    pub(crate) entries: Vec<(usize, Entry)>,
}

/// Opens the one file, or all files of the index.
pub(crate) fn open(directory: &Path) -> Result<Stored, Error> {
    if directory.join(SINGLE).exists() {
        let file = SourceFile::open(&inside(directory, SINGLE, directory)?)?;
        let entries = safetensors::read_header(&file)?;
        return Ok(Stored {
            entries: entries.into_iter().map(|entry| (0, entry)).collect(),
            files: vec![file],
        });
    }
    let index = directory.join(INDEX);
    if !index.exists() {
        return Err(nothing_found(directory));
    }
    open_sharded(directory, &index)
}

fn nothing_found(directory: &Path) -> Error {
    let pickled = directory.join("pytorch_model.bin").exists()
        || directory.join("pytorch_model.bin.index.json").exists();
    let remedy = match pickled {
        true => {
            "pytorch_model.bin can run code when it is read, so halfbyte does not; save the \
                 model as safetensors"
        }
        false => "copy the .safetensors files of the model into it",
    };
    let problem = format!("the directory has neither {SINGLE} nor {INDEX}");
    Error::input(directory, "", problem, remedy)
}

fn open_sharded(directory: &Path, index_path: &Path) -> Result<Stored, Error> {
    let bytes = json::read_bytes(index_path)?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| json::invalid(index_path, &error))?;
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut stored = Stored { files: Vec::new(), entries: Vec::new() };
    for (tensor, name) in &index.weight_map.0 {
        if !numbers.contains_key(name.as_str()) {
            let path =
                inside(directory, name, index_path).map_err(|error| error.at(format!("tensor {tensor}")))?;
            numbers.insert(name, stored.files.len());
            stored.files.push(open_shard(index_path, tensor, name, &path)?);
        }
    }
    check_against_index(index_path, &index, &numbers, &mut stored)?;
    Ok(stored)
}

fn open_shard(index: &Path, tensor: &str, name: &str, path: &Path) -> Result<SourceFile, Error> {
    if path.exists() {
        return SourceFile::open(path);
    }
    Err(Error::input(
        index,
        format!("tensor {tensor}"),
        format!("the index places it in {name}, which is not there"),
        format!("copy {name} into the directory"),
    ))
}

fn check_against_index(
    index_path: &Path,
    index: &Index,
    numbers: &HashMap<&str, usize>,
    stored: &mut Stored,
) -> Result<(), Error> {
    let remedy = "index and files do not belong together: copy the whole model again";
    let promised: HashMap<&str, usize> = index
        .weight_map
        .0
        .iter()
        .filter_map(|(tensor, name)| Some((tensor.as_str(), *numbers.get(name.as_str())?)))
        .collect();
    for (number, file) in stored.files.iter().enumerate() {
        for entry in safetensors::read_header(file)? {
            let place = format!("tensor {}", entry.name);
            match promised.get(entry.name.as_str()) {
                Some(home) if *home == number => stored.entries.push((number, entry)),
                Some(home) => {
                    let other = stored.files[*home].path().display().to_string();
                    let problem = format!("it is in this file, but the index places it in {other}");
                    return Err(Error::input(file.path(), place, problem, remedy));
                }
                None => {
                    let problem = format!("the index {INDEX} does not name it");
                    return Err(Error::input(file.path(), place, problem, remedy));
                }
            }
        }
    }
    if stored.entries.len() != promised.len() {
        let found: std::collections::HashSet<&str> =
            stored.entries.iter().map(|(_, entry)| entry.name.as_str()).collect();
        let missing = index.weight_map.0.iter().find(|(tensor, _)| !found.contains(tensor.as_str()));
        if let Some((tensor, name)) = missing {
            let problem = format!("the index places it in {name}, but that file does not have it");
            return Err(Error::input(index_path, format!("tensor {tensor}"), problem, remedy));
        }
    }
    Ok(())
}

/// The path of a file in the directory. Names that leave it are refused, and so are links to
/// elsewhere, except into the `blobs` beside `snapshots` of a Hugging Face cache.
fn inside(directory: &Path, name: &str, said_by: &Path) -> Result<PathBuf, Error> {
    let refuse = |problem: String| {
        let remedy = "shards must be plain files in the model's own directory";
        Err(Error::input(said_by, format!("file name {name:?}"), problem, remedy))
    };
    let plain = !name.is_empty()
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', '\0'])
        && Path::new(name).components().count() == 1
        && Path::new(name).is_relative();
    if !plain {
        return refuse("the name leads out of the model's directory".into());
    }
    let path = directory.join(name);
    let (Ok(real), Ok(home)) = (path.canonicalize(), directory.canonicalize()) else {
        return Ok(path); // a missing file is reported with better words where it is opened
    };
    let in_cache = home.parent().is_some_and(|snapshots| {
        let blobs = snapshots.parent().map(|model| model.join("blobs"));
        snapshots.ends_with("snapshots") && blobs.is_some_and(|blobs| real.starts_with(blobs))
    });
    match real.starts_with(&home) || in_cache {
        true => Ok(path),
        false => refuse(format!("it is a link to {}, outside the directory", real.display())),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Tensor and file, in file order, with no tensor twice.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor names and file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut pairs = Vec::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if !seen.insert(tensor.clone()) {
                let message = format!("tensor {tensor} is mapped twice");
                return Err(serde::de::Error::custom(message));
            }
            pairs.push((tensor, file));
        }
        Ok(WeightMap(pairs))
    }
}
