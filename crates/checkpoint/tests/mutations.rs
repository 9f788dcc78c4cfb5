//! Real headers with bytes changed, cut or repeated: any outcome but a crash, a hang or silence
//! about the file is allowed.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use common::*;
use halfbyte_checkpoint::{Checkpoint, Format};
use proptest::prelude::*;
use serde_json::Value;

/// One change to a file.
#[derive(Debug, Clone)]
enum Mutation {
    Set(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = 0usize..1 << 16;
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => at.clone().prop_map(Mutation::Cut),
        1 => (at.clone(), 1usize..64).prop_map(|(at, count)| Mutation::Remove(at, count)),
        1 => (at, 1usize..64).prop_map(|(at, count)| Mutation::Repeat(at, count)),
    ]
}

/// Most changes fall into the first `header` bytes, where they can do something.
fn apply(file: &[u8], header: usize, mutations: &[Mutation]) -> Vec<u8> {
    let mut file = file.to_vec();
    for mutation in mutations {
        let place = |at: &usize, len: usize| at % header.min(len).max(1);
        let len = file.len();
        match mutation {
            Mutation::Set(at, byte) if len > 0 => file[at % header.min(len)] = *byte,
            Mutation::Set(..) => {}
            Mutation::Cut(at) => file.truncate(place(at, len)),
            Mutation::Remove(at, count) => {
                let start = place(at, len).min(len);
                file.drain(start..len.min(start + count));
            }
            Mutation::Repeat(at, count) => {
                let start = place(at, len).min(len);
                let part = file[start..len.min(start + count)].to_vec();
                file.splice(start..start, part);
            }
        }
    }
    file
}

/// Opens and reads all of it; an error must name the file.
fn survive(path: &Path) {
    let read = || {
        let checkpoint = Checkpoint::open(path)?;
        for tensor in &checkpoint.tensors {
            read_all(&checkpoint, tensor)?;
        }
        Ok(())
    };
    let result: Result<(), halfbyte_checkpoint::Error> = read();
    if let Err(error) = result {
        let directory = path.display().to_string();
        let message = error.to_string();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(message.contains(&directory) || message.contains(name), "{message}");
        assert!(!error.problem.is_empty());
    }
}

/// A file: its name and content.
type Named = (String, Vec<u8>);

/// The files of a directory with one NVFP4 layer, and of a `.dat`, made by the crate itself. Once:
/// its writers bring every file to the disk, which takes longer than all of the reading here.
static MODELS: LazyLock<(Vec<Named>, Vec<u8>)> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let plain = scratch.join("plain");
    write_model(&plain, &llama_config(), &tensors(&llama_config()));
    let source = Checkpoint::open(&plain).unwrap();
    let (directory, dat) = (scratch.join("modelopt"), scratch.join("model.dat"));
    rewrite(&source, &directory, Format::ModelOpt, nvfp4_layers).unwrap();
    rewrite(&source, &dat, Format::Dat, nvfp4_layers).unwrap();
    let files = fs::read_dir(&directory).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    (files.collect(), fs::read(&dat).unwrap())
});

fn modelopt(scratch: &Scratch) -> PathBuf {
    let path = scratch.join("modelopt");
    fs::create_dir(&path).unwrap();
    for (name, content) in &MODELS.0 {
        fs::write(path.join(name), content).unwrap();
    }
    path
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn mutated_safetensors_never_crash(mutations in prop::collection::vec(mutation(), 1..6)) {
        let scratch = Scratch::new();
        let path = modelopt(&scratch);
        let file = fs::read(path.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        fs::write(path.join("model.safetensors"), apply(&file, header, &mutations)).unwrap();
        survive(&path);
    }

    #[test]
    fn mutated_configs_never_crash(mutations in prop::collection::vec(mutation(), 1..6)) {
        let scratch = Scratch::new();
        let path = modelopt(&scratch);
        let file = fs::read(path.join("config.json")).unwrap();
        fs::write(path.join("config.json"), apply(&file, file.len(), &mutations)).unwrap();
        survive(&path);
    }

    #[test]
    fn mutated_indexes_never_crash(mutations in prop::collection::vec(mutation(), 1..6)) {
        let scratch = Scratch::new();
        let path = modelopt(&scratch);
        fs::rename(path.join("model.safetensors"), path.join("one.safetensors")).unwrap();
        let map: serde_json::Map<String, Value> =
            names(&path.join("one.safetensors")).into_iter().map(|name| (name, "one.safetensors".into())).collect();
        let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        let index = index.to_string().into_bytes();
        let mutated = apply(&index, index.len(), &mutations);
        fs::write(path.join("model.safetensors.index.json"), mutated).unwrap();
        survive(&path);
    }

    #[test]
    fn mutated_dats_never_crash(mutations in prop::collection::vec(mutation(), 1..6)) {
        let scratch = Scratch::new();
        fs::write(scratch.join("config.json"), llama_config().to_string()).unwrap();
        let (path, file) = (scratch.join("model.dat"), &MODELS.1);
        fs::write(&path, apply(file, 64, &mutations)).unwrap();
        survive(&path);
        fs::write(&path, apply(file, file.len(), &mutations)).unwrap();
        survive(&path);
    }
}

/// The names in a safetensors header.
fn names(path: &Path) -> Vec<String> {
    let file = fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..end]).unwrap();
    let names = header.as_object().unwrap().keys();
    names.filter(|name| *name != "__metadata__").cloned().collect()
}
