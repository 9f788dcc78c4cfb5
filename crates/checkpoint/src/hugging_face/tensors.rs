//! Stored entries -> named tensors: plain floats, or NVFP4 put together from its parts.
//!
//! ModelOpt: `weight` U8 + `weight_scale` + `weight_scale_2`, weight = code * scale * scale_2.
//! compressed-tensors: `weight_packed` + `weight_scale` + `weight_global_scale`, which divides.
//! The key decides which; the numbers do not.

use std::collections::HashMap;

use crate::error::Error;
use crate::file::SourceFile;
use crate::hugging_face::reader::{Place, SafetensorsReader, Storage};
use crate::hugging_face::shards::Stored;
use crate::names::TensorName;
use crate::safetensors::{Dtype, Entry};
use crate::tensor::{Encoding, Tensor};
use crate::values;

/// Names all tensors and says where their parts lie.
pub(crate) fn collect(stored: Stored) -> Result<(Vec<Tensor>, SafetensorsReader), Error> {
    let parts = Parts::new(&stored);
    let (mut tensors, mut storages) = (Vec::new(), Vec::new());
    for (file, entry) in &stored.entries {
        let Some((tensor, storage)) = parts.tensor(*file, entry, storages.len())? else {
            continue;
        };
        tensors.push(tensor);
        storages.push(storage);
    }
    Ok((tensors, SafetensorsReader::new(stored.files, storages)))
}

/// All entries, to be found by name.
struct Parts<'a> {
    files: &'a [SourceFile],
    by_name: HashMap<&'a str, (usize, &'a Entry)>,
}

impl<'a> Parts<'a> {
    fn new(stored: &'a Stored) -> Self {
        let entries = stored.entries.iter();
        let by_name = entries.map(|(file, entry)| (entry.name.as_str(), (*file, entry)));
        Parts { files: &stored.files, by_name: by_name.collect() }
    }

    fn refuse(&self, file: usize, entry: &Entry, problem: String, remedy: &str) -> Error {
        let place = format!("tensor {}", entry.name);
        Error::input(self.files[file].path(), place, problem, remedy)
    }

    /// The tensor this entry is the main part of; `None` for side entries.
    fn tensor(&self, file: usize, entry: &Entry, slot: usize) -> Result<Option<(Tensor, Storage)>, Error> {
        if let Some(base) = entry.name.strip_suffix(".weight_packed") {
            return self.nvfp4(file, entry, base, slot, true).map(Some);
        }
        if let Some(name) = TensorName::from_hugging_face(&entry.name) {
            return match (entry.dtype, entry.name.strip_suffix(".weight")) {
                (Dtype::U8, Some(base)) => self.nvfp4(file, entry, base, slot, false).map(Some),
                _ => self.plain(file, entry, name, slot).map(Some),
            };
        }
        self.check_side(file, entry)?;
        Ok(None)
    }

    fn plain(
        &self,
        file: usize,
        entry: &Entry,
        name: TensorName,
        slot: usize,
    ) -> Result<(Tensor, Storage), Error> {
        let encoding = match entry.dtype {
            Dtype::F32 => Encoding::F32,
            Dtype::F16 => Encoding::F16,
            Dtype::Bf16 => Encoding::Bf16,
            other => {
                let problem = format!("weights stored as {} are not read", other.name());
                let remedy = "use the model in F32, F16, BF16 or NVFP4";
                return Err(self.refuse(file, entry, problem, remedy));
            }
        };
        let tensor = Tensor {
            name,
            disk_name: entry.name.clone(),
            shape: entry.shape.clone(),
            encoding,
            bytes: entry.bytes,
            slot,
        };
        let storage = Storage::Plain(Place { file, offset: entry.offset });
        Ok((tensor, storage))
    }

    fn nvfp4(
        &self,
        file: usize,
        entry: &Entry,
        base: &str,
        slot: usize,
        inverse: bool,
    ) -> Result<(Tensor, Storage), Error> {
        let broken = "the quantised file is broken: quantise the model again";
        let refuse = |problem: String| self.refuse(file, entry, problem, broken);
        let Some(name) = TensorName::from_hugging_face(&format!("{base}.weight")) else {
            return Err(refuse("no decoder of ours has this tensor".into()));
        };
        let ([rows, packed], Dtype::U8) = (&entry.shape[..], entry.dtype) else {
            let problem = format!("packed codes must be a U8 matrix, not {:?}", entry.shape);
            return Err(refuse(problem));
        };
        let (rows, packed) = (*rows, *packed);
        if !packed.is_multiple_of(8) {
            let columns = packed.saturating_mul(2);
            return Err(refuse(format!("{columns} columns are not a multiple of 16")));
        }
        let (scale_file, scale) = self.part(file, entry, &format!("{base}.weight_scale"))?;
        if scale.dtype != Dtype::F8E4m3 || scale.shape != [rows, packed / 8] {
            return Err(self.refuse(
                scale_file,
                scale,
                format!(
                    "block scales are {} {:?}, the codes ask for F8_E4M3 {:?}",
                    scale.dtype.name(),
                    scale.shape,
                    [rows, packed / 8]
                ),
                broken,
            ));
        }
        let key = match inverse {
            true => format!("{base}.weight_global_scale"),
            false => format!("{base}.weight_scale_2"),
        };
        let global = self.global(file, entry, &key, inverse)?;
        let tensor = Tensor {
            name,
            disk_name: entry.name.clone(),
            shape: vec![rows, packed * 2],
            encoding: Encoding::Nvfp4,
            bytes: entry.bytes + scale.bytes + 4,
            slot,
        };
        let storage = Storage::Nvfp4 {
            codes: Place { file, offset: entry.offset },
            scales: Place { file: scale_file, offset: scale.offset },
            scale_key: scale.name.clone(),
            global,
        };
        Ok((tensor, storage))
    }

    fn part(&self, file: usize, entry: &Entry, key: &str) -> Result<(usize, &'a Entry), Error> {
        self.by_name.get(key).copied().ok_or_else(|| {
            let problem = format!("packed 4-bit codes need {key}, which is missing");
            let remedy = "halfbyte reads NVFP4 by modelopt or compressed-tensors; copy the model \
                          again, or quantise it again";
            self.refuse(file, entry, problem, remedy)
        })
    }

    fn global(&self, file: usize, entry: &Entry, key: &str, inverse: bool) -> Result<f32, Error> {
        let (file, part) = self.part(file, entry, key)?;
        if part.dtype != Dtype::F32 || part.bytes != 4 {
            let problem = format!("the tensor scale must be one F32, not {:?}", part.shape);
            let remedy = "the quantised file is broken: quantise the model again";
            return Err(self.refuse(file, part, problem, remedy));
        }
        let mut bytes = [0; 4];
        self.files[file].read_at(part.offset, &mut bytes)?;
        let path = self.files[file].path();
        let stored = values::check_global(path, key, f32::from_le_bytes(bytes))?;
        match inverse {
            true => values::check_global(path, key, 1.0 / stored),
            false => Ok(stored),
        }
    }

    /// Side entries belong to a tensor or are known to be needless; anything else is refused,
    /// because ignoring a tensor changes what the model computes.
    fn check_side(&self, file: usize, entry: &Entry) -> Result<(), Error> {
        let name = entry.name.as_str();
        let has = |key: String| self.by_name.contains_key(key.as_str());
        let (base, last) = name.rsplit_once('.').unwrap_or(("", name));
        let known = match last {
            "weight_scale" => has(format!("{base}.weight")) || has(format!("{base}.weight_packed")),
            "weight_scale_2" => has(format!("{base}.weight")),
            "weight_global_scale" | "input_global_scale" => has(format!("{base}.weight_packed")),
            // Scales of activations and of an 8-bit cache: we compute both in wider formats.
            "input_scale" | "k_scale" | "v_scale" | "q_scale" => true,
            "inv_freq" => base.ends_with("rotary_emb"),
            _ => false,
        };
        if known {
            return Ok(());
        }
        let problem = match last {
            "pre_quant_scale" => "AWQ scales on activations are not supported",
            "absmax" | "quant_map" | "nested_absmax" => "bitsandbytes 4-bit is not supported",
            "qweight" | "qzeros" | "scales" | "g_idx" => "GPTQ and AWQ integers are not supported",
            _ => "no decoder of ours has this tensor",
        };
        let remedy = "use a qwen3, qwen2 or llama text model in F32, F16, BF16 or NVFP4";
        Err(self.refuse(file, entry, problem.to_string(), remedy))
    }
}
