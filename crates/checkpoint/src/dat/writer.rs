//! Writes a `.dat`: in the order and with the types of the file it came from, or freshly.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::atomic::{self, AtomicFile};
use crate::checkpoint::Format;
use crate::dat::stream::push_number;
use crate::dat::{DatEntry, DatLayout, Role, element};
use crate::error::Error;
use crate::file::SourceFile;
use crate::hugging_face::{config_out, text};
use crate::json;
use crate::names::TensorName;
use crate::sink::{self, Output, OutputTensor, Progress, Sink};
use crate::space;
use crate::tensor::{Encoding, WideScale};
use crate::values::CHUNK;

/// Starts a file. A tied model gets its head written out too: the origin's loader asks for it.
pub(crate) fn create(path: &Path, output: Output) -> Result<Box<dyn Sink>, Error> {
    sink::check_output(path, &output)?;
    let entries = plan(path, &output)?;
    let beside = Beside::new(path, &output)?;
    let (prefixes, offsets) = lay_out(&entries);
    let end = offsets.last().zip(entries.last()).map_or(0, |(offset, entry)| offset + entry.bytes);
    space::check(path, end.saturating_add(beside.bytes()))?;
    let file = AtomicFile::create(path)?;
    let mut places = vec![Places::default(); output.tensors.len()];
    let numbers: HashMap<TensorName, usize> =
        output.tensors.iter().enumerate().map(|(index, tensor)| (tensor.name, index)).collect();
    for ((planned, prefix), &offset) in entries.iter().zip(&prefixes).zip(&offsets) {
        file.write_at(offset - prefix.len() as u64, prefix)?;
        if let Some(source) = &planned.copied {
            copy(source, planned, &file, offset)?;
        }
        let (name, scales) = match planned.role {
            Role::Plain(name) | Role::Codes(name) => (name, false),
            Role::Scales(name) => (name, true),
            Role::Other => continue,
        };
        let home = match numbers.get(&name) {
            Some(number) => *number,
            // Only the head of a tied model is planned without being declared.
            None => numbers[&TensorName::Embedding],
        };
        places[home].add(offset, scales);
    }
    file.set_len(end.max(1))?;
    Ok(Box::new(DatSink { file, beside, places, progress: Progress::new(path, output.tensors) }))
}

/// The config and text files that belong beside the `.dat` and are not there yet.
struct Beside(Vec<(PathBuf, Vec<u8>)>);

impl Beside {
    /// Refuses a directory that holds another model's files: they would be read with this `.dat`.
    fn new(path: &Path, output: &Output) -> Result<Beside, Error> {
        let configs = config_out::files(path, Format::Dat, output)?;
        let mut missing = Vec::new();
        for (name, content) in configs.into_iter().chain(text::files(&output.text)) {
            let beside = path.with_file_name(&name);
            if !beside.exists() {
                missing.push((beside, content));
                continue;
            }
            let same = match name.ends_with(".json") {
                true => json::read(&beside)? == json::parse(&beside, &content)?,
                false => json::read_bytes(&beside)? == content,
            };
            if !same {
                let problem = format!("{name} beside it belongs to another model");
                let remedy = "write the .dat into a directory of its own";
                return Err(Error::request(path, "", problem, remedy));
            }
        }
        Ok(Beside(missing))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, content)| content.len() as u64).sum()
    }

    fn write(&self) -> Result<(), Error> {
        let mut files = self.0.iter();
        files.try_for_each(|(path, content)| atomic::write_file(path, content))
    }
}

/// An entry to be written.
#[derive(Debug, Clone)]
struct Planned {
    key: String,
    element: u64,
    dims: Vec<u64>,
    bytes: u64,
    role: Role,
    /// The file and offset it is copied from, for entries that are nothing to us.
    copied: Option<(PathBuf, u64)>,
}

/// Where the parts of a declared tensor go; twice for an embedding that is also the head.
#[derive(Debug, Clone, Default)]
struct Places {
    data: Vec<u64>,
    scales: Vec<u64>,
}

impl Places {
    fn add(&mut self, offset: u64, scales: bool) {
        match scales {
            true => self.scales.push(offset),
            false => self.data.push(offset),
        }
    }
}

fn plan(path: &Path, output: &Output) -> Result<Vec<Planned>, Error> {
    let mut entries = Vec::new();
    let mut planned = HashSet::new();
    if let Some(layout) = &output.dat {
        planned = plan_as_before(path, layout, &output.tensors, &mut entries)?;
    }
    for tensor in &output.tensors {
        if !planned.contains(&tensor.name) {
            entries.extend(fresh(path, tensor)?);
        }
    }
    let declared = |name: TensorName| output.tensors.iter().find(|tensor| tensor.name == name);
    if output.architecture.tied
        && declared(TensorName::Head).is_none()
        && let Some(embedding) = declared(TensorName::Embedding)
    {
        let head = OutputTensor { name: TensorName::Head, ..embedding.clone() };
        entries.extend(fresh(path, &head)?);
    }
    Ok(entries)
}

/// Keeps keys, types and order; a tensor whose encoding changed takes the place of its old entries.
/// Answers which tensors are planned.
fn plan_as_before(
    path: &Path,
    layout: &DatLayout,
    tensors: &[OutputTensor],
    entries: &mut Vec<Planned>,
) -> Result<HashSet<TensorName>, Error> {
    let encodings = stored_encodings(layout);
    let by_name: HashMap<TensorName, &OutputTensor> =
        tensors.iter().map(|tensor| (tensor.name, tensor)).collect();
    let mut planned = HashSet::new();
    for old in &layout.entries {
        let name = match old.role {
            Role::Plain(name) | Role::Codes(name) | Role::Scales(name) => name,
            Role::Other => {
                entries.push(as_before(old, Some((layout.path.clone(), old.offset))));
                continue;
            }
        };
        let Some(tensor) = by_name.get(&name) else {
            continue; // no longer part of the model
        };
        let first = planned.insert(name);
        if encodings.get(&name) == Some(&tensor.encoding) {
            entries.push(as_before(old, None));
        } else if first {
            entries.extend(fresh(path, tensor)?);
        }
    }
    Ok(planned)
}

fn stored_encodings(layout: &DatLayout) -> HashMap<TensorName, Encoding> {
    let mut encodings = HashMap::new();
    for entry in &layout.entries {
        let pair = match (entry.role, entry.element) {
            (Role::Plain(name), element::F16) => (name, Encoding::F16),
            (Role::Plain(name), element::BF16) => (name, Encoding::Bf16),
            (Role::Plain(name), _) => (name, Encoding::F32),
            (Role::Scales(name), element::F16) => (name, Encoding::E2m1(WideScale::F16)),
            (Role::Scales(name), element::F32) => (name, Encoding::E2m1(WideScale::F32)),
            (Role::Scales(name), _) => (name, Encoding::Nvfp4),
            _ => continue,
        };
        encodings.insert(pair.0, pair.1);
    }
    encodings
}

fn as_before(old: &DatEntry, copied: Option<(PathBuf, u64)>) -> Planned {
    Planned {
        key: old.key.clone(),
        element: old.element,
        dims: old.dims.clone(),
        bytes: old.bytes,
        role: old.role,
        copied,
    }
}

/// The entries the origin's own exporter would write.
fn fresh(path: &Path, tensor: &OutputTensor) -> Result<Vec<Planned>, Error> {
    let part = |ending: &str, element: u64, dims: Vec<usize>, role: Role| {
        let dims: Vec<u64> = dims.into_iter().map(|dim| dim as u64).collect();
        let width = element::bytes(element).unwrap_or(1);
        Planned {
            key: format!("{}{ending}", tensor.name),
            element,
            bytes: dims.iter().product::<u64>() * width,
            dims,
            role,
            copied: None,
        }
    };
    let (name, rows, columns) = (tensor.name, tensor.rows(), tensor.columns());
    let plain = |element: u64| vec![part("", element, tensor.shape.clone(), Role::Plain(name))];
    let pair = |scale: u64| {
        vec![
            part(".qdata", element::U8, vec![rows, columns / 2], Role::Codes(name)),
            part(".scale", scale, vec![rows, columns / 16], Role::Scales(name)),
        ]
    };
    match tensor.encoding {
        Encoding::F16 => Ok(plain(element::F16)),
        Encoding::F32 => Ok(plain(element::F32)),
        Encoding::Bf16 => Ok(plain(element::BF16)),
        Encoding::Nvfp4 => Ok(pair(element::E4M3)),
        Encoding::E2m1(WideScale::F16) => Ok(pair(element::F16)),
        Encoding::E2m1(WideScale::F32) => Ok(pair(element::F32)),
        other => Err(Error::request(
            path,
            name.to_string(),
            format!("{other} has no place in a .dat"),
            "choose nvfp4, f16, bf16 or f32 weights",
        )),
    }
}

/// The bytes before each entry's data and where that data begins. The first prefix also holds the
/// entry count.
fn lay_out(entries: &[Planned]) -> (Vec<Vec<u8>>, Vec<u64>) {
    let (mut prefixes, mut offsets) = (Vec::new(), Vec::new());
    let mut end = 0;
    for entry in entries {
        let mut prefix = Vec::new();
        if prefixes.is_empty() {
            push_number(&mut prefix, entries.len() as u64);
        }
        push_number(&mut prefix, entry.key.len() as u64);
        prefix.extend(entry.key.as_bytes());
        push_number(&mut prefix, entry.element);
        push_number(&mut prefix, entry.dims.len() as u64);
        for &dim in &entry.dims {
            push_number(&mut prefix, dim);
        }
        end += prefix.len() as u64;
        offsets.push(end);
        end += entry.bytes;
        prefixes.push(prefix);
    }
    (prefixes, offsets)
}

fn copy(source: &(PathBuf, u64), entry: &Planned, file: &AtomicFile, offset: u64) -> Result<(), Error> {
    let from = SourceFile::open(&source.0)?;
    let mut done = 0;
    let mut bytes = vec![0; CHUNK.min(usize::try_from(entry.bytes).unwrap_or(CHUNK))];
    while done < entry.bytes {
        let count = (entry.bytes - done).min(CHUNK as u64) as usize;
        from.read_at(source.1 + done, &mut bytes[..count])?;
        file.write_at(offset + done, &bytes[..count])?;
        done += count as u64;
    }
    Ok(())
}

struct DatSink {
    file: AtomicFile,
    beside: Beside,
    places: Vec<Places>,
    progress: Progress,
}

impl DatSink {
    fn write_data(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut places = self.places[tensor].data.iter();
        places.try_for_each(|place| self.file.write_at(place + offset, bytes))
    }

    fn write_scales(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut places = self.places[tensor].scales.iter();
        places.try_for_each(|place| self.file.write_at(place + offset, bytes))
    }

    /// Rows of codes with wide scales behind each row go to two entries.
    fn write_wide(&self, tensor: usize, row: usize, width: usize, bytes: &[u8]) -> Result<(), Error> {
        let columns = self.progress.tensor(tensor)?.columns();
        let scale_bytes = columns / 16 * width;
        for (index, bytes) in bytes.chunks(columns / 2 + scale_bytes).enumerate() {
            let row = (row + index) as u64;
            let (codes, scales) = bytes.split_at(columns / 2);
            self.write_data(tensor, row * codes.len() as u64, codes)?;
            self.write_scales(tensor, row * scale_bytes as u64, scales)?;
        }
        Ok(())
    }
}

impl Sink for DatSink {
    fn write_rows(&mut self, tensor: usize, first_row: usize, values: &[f32]) -> Result<(), Error> {
        let columns = self.progress.tensor(tensor)?.columns();
        let rows = self.progress.note(tensor, first_row, columns, values.len())?;
        let bytes = self.progress.encode(tensor, values)?;
        let row_bytes = self.progress.raw_row_bytes(tensor)?;
        self.write_data(tensor, rows.start as u64 * row_bytes as u64, &bytes)
    }

    fn write_nvfp4(
        &mut self,
        tensor: usize,
        first_row: usize,
        codes: &[u8],
        block_scales: &[u8],
    ) -> Result<(), Error> {
        let rows = self.progress.note_nvfp4(tensor, first_row, codes, block_scales)?;
        let columns = self.progress.tensor(tensor)?.columns() as u64;
        let row = rows.start as u64;
        self.write_data(tensor, row * (columns / 2), codes)?;
        self.write_scales(tensor, row * (columns / 16), block_scales)
    }

    fn write_raw(&mut self, tensor: usize, first_row: usize, bytes: &[u8]) -> Result<(), Error> {
        let row_bytes = self.progress.raw_row_bytes(tensor)?;
        let rows = self.progress.note(tensor, first_row, row_bytes, bytes.len())?;
        match self.progress.tensor(tensor)?.encoding {
            Encoding::E2m1(wide) => self.write_wide(tensor, rows.start, wide.bytes(), bytes),
            _ => self.write_data(tensor, rows.start as u64 * row_bytes as u64, bytes),
        }
    }

    fn set_global(&mut self, tensor: usize, global: f32) -> Result<(), Error> {
        self.progress.set_global(tensor, global)?;
        match global == 1.0 {
            true => Ok(()),
            false => Err(Error::request(
                self.file.path(),
                self.progress.tensor(tensor)?.name.to_string(),
                format!("a .dat has no tensor scale, and this one is {global}"),
                "quantise with a tensor scale of 1",
            )),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.progress.check_complete()?;
        self.beside.write()?;
        self.file.finish()
    }
}
