//! Entries -> named tensors: plain ones, and pairs of codes and scales.

use std::collections::{HashMap, HashSet};

use crate::dat::reader::{DatReader, Slot};
use crate::dat::{DatEntry, Role, element};
use crate::error::Error;
use crate::file::SourceFile;
use crate::names::TensorName;
use crate::tensor::{Encoding, Tensor, WideScale};

const BROKEN: &str = "the quantised file is broken: quantise the model again";

/// Says what an entry is by its key; refuses keys that would change what the model computes.
pub(crate) fn with_role(file: &SourceFile, mut entry: DatEntry) -> Result<DatEntry, Error> {
    let quantised = |ending: &str| {
        let base = entry.key.strip_suffix(ending)?;
        let base = base.strip_suffix(".weight").unwrap_or(base);
        TensorName::from_hugging_face(&format!("{base}.weight"))
    };
    let plain = TensorName::from_hugging_face(&entry.key);
    entry.role = match (plain, quantised(".qdata"), quantised(".scale")) {
        (Some(name), _, _) => Role::Plain(name),
        (_, Some(name), _) => Role::Codes(name),
        (_, _, Some(name)) => Role::Scales(name),
        _ if entry.key.ends_with("rotary_emb.inv_freq") => Role::Other,
        _ => {
            let problem = match entry.key.ends_with(".absmax") || entry.key.ends_with(".quant_map") {
                true => "NF4 .dat files are not supported",
                false => "no decoder of ours has this tensor",
            };
            let remedy = "use a qwen3, qwen2 or llama model in NVFP4, F16, BF16 or F32";
            let place = format!("entry {} (offset {})", entry.key, entry.offset);
            return Err(Error::input(file.path(), place, problem, remedy));
        }
    };
    Ok(entry)
}

/// Puts the tensors together.
pub(crate) fn collect(file: SourceFile, entries: &[DatEntry]) -> Result<(Vec<Tensor>, DatReader), Error> {
    let scales = scales_by_name(&file, entries)?;
    let (mut tensors, mut slots) = (Vec::new(), Vec::new());
    for entry in entries {
        let (tensor, slot) = match entry.role {
            Role::Plain(name) => plain(&file, entry, name, slots.len())?,
            Role::Codes(name) => {
                let Some(scale) = scales.get(&name) else {
                    let problem = "the codes have no .scale entry".to_string();
                    return Err(refuse(&file, entry, problem));
                };
                quantised(&file, entry, scale, name, slots.len())?
            }
            Role::Scales(_) | Role::Other => continue,
        };
        tensors.push(tensor);
        slots.push(slot);
    }
    Ok((tensors, DatReader::new(file, slots)))
}

fn refuse(file: &SourceFile, entry: &DatEntry, problem: String) -> Error {
    let place = format!("entry {} (offset {})", entry.key, entry.offset);
    Error::input(file.path(), place, problem, BROKEN)
}

/// The scale entries; each must be alone and have codes.
fn scales_by_name<'a>(
    file: &SourceFile,
    entries: &'a [DatEntry],
) -> Result<HashMap<TensorName, &'a DatEntry>, Error> {
    let coded = |entry: &DatEntry| match entry.role {
        Role::Codes(name) => Some(name),
        _ => None,
    };
    let coded: HashSet<TensorName> = entries.iter().filter_map(coded).collect();
    let mut scales = HashMap::new();
    for entry in entries {
        let Role::Scales(name) = entry.role else {
            continue;
        };
        if scales.insert(name, entry).is_some() {
            return Err(refuse(file, entry, "the scales occur twice".into()));
        }
        if !coded.contains(&name) {
            return Err(refuse(file, entry, "the scales have no .qdata entry".into()));
        }
    }
    Ok(scales)
}

/// Dimensions as sizes. They fit: the data lies in the file.
fn sizes(dims: &[u64]) -> Vec<usize> {
    dims.iter().map(|&dim| dim as usize).collect()
}

fn plain(
    file: &SourceFile,
    entry: &DatEntry,
    name: TensorName,
    slot: usize,
) -> Result<(Tensor, Slot), Error> {
    let encoding = match entry.element {
        element::F16 => Encoding::F16,
        element::F32 => Encoding::F32,
        element::BF16 => Encoding::Bf16,
        other => {
            let problem = format!("element type {other} cannot hold weights");
            return Err(refuse(file, entry, problem));
        }
    };
    let tensor = Tensor {
        name,
        disk_name: entry.key.clone(),
        shape: sizes(&entry.dims),
        encoding,
        bytes: entry.bytes,
        slot,
    };
    Ok((tensor, Slot::plain(entry)))
}

fn quantised(
    file: &SourceFile,
    entry: &DatEntry,
    scale: &DatEntry,
    name: TensorName,
    slot: usize,
) -> Result<(Tensor, Slot), Error> {
    let one_byte = [element::U8, element::I8, element::BOOL, element::E2M1_PAIR];
    let (&[rows, packed], true) = (&entry.dims[..], one_byte.contains(&entry.element)) else {
        let (kind, dims) = (entry.element, &entry.dims);
        return Err(refuse(file, entry, format!("codes of type {kind} and shape {dims:?}")));
    };
    if !packed.is_multiple_of(8) {
        let columns = packed.saturating_mul(2);
        return Err(refuse(file, entry, format!("{columns} columns are not a multiple of 16")));
    }
    if scale.dims != [rows, packed / 8] {
        let (given, wanted) = (&scale.dims, [rows, packed / 8]);
        return Err(refuse(file, scale, format!("scales are {given:?}, the codes ask for {wanted:?}")));
    }
    let encoding = match scale.element {
        element::U8 | element::E4M3 => Encoding::Nvfp4,
        element::F16 => Encoding::E2m1(WideScale::F16),
        element::F32 => Encoding::E2m1(WideScale::F32),
        other => {
            return Err(refuse(file, scale, format!("element type {other} cannot hold scales")));
        }
    };
    let tensor = Tensor {
        name,
        disk_name: entry.key.clone(),
        shape: sizes(&[rows, packed * 2]),
        encoding,
        bytes: entry.bytes + scale.bytes,
        slot,
    };
    Ok((tensor, Slot::quantised(entry, scale)))
}
