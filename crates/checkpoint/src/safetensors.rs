//! The safetensors container: u64 header length, JSON header, data without holes or overlaps.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::file::SourceFile;
use crate::json as text;

/// Longest header accepted, as in the original library.
const MAX_HEADER: u64 = 100_000_000;
const DAMAGED: &str = "the file is damaged or was written wrongly: copy or convert it again";

/// Element types of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the format
pub(crate) enum Dtype {
    Bool,
    U8,
    I8,
    F8E4m3,
    F8E5m2,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

impl Dtype {
    const ALL: [(Dtype, &'static str, u64); 15] = [
        (Dtype::Bool, "BOOL", 1),
        (Dtype::U8, "U8", 1),
        (Dtype::I8, "I8", 1),
        (Dtype::F8E4m3, "F8_E4M3", 1),
        (Dtype::F8E5m2, "F8_E5M2", 1),
        (Dtype::I16, "I16", 2),
        (Dtype::U16, "U16", 2),
        (Dtype::F16, "F16", 2),
        (Dtype::Bf16, "BF16", 2),
        (Dtype::I32, "I32", 4),
        (Dtype::U32, "U32", 4),
        (Dtype::F32, "F32", 4),
        (Dtype::F64, "F64", 8),
        (Dtype::I64, "I64", 8),
        (Dtype::U64, "U64", 8),
    ];

    fn row(self) -> (Dtype, &'static str, u64) {
        let mut rows = Dtype::ALL.into_iter();
        rows.find(|row| row.0 == self).unwrap_or(Dtype::ALL[0])
    }

    /// The name in the header.
    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub(crate) fn bytes(self) -> u64 {
        self.row().2
    }

    fn from_name(name: &str) -> Option<Dtype> {
        let mut rows = Dtype::ALL.into_iter();
        rows.find_map(|row| (row.1 == name).then_some(row.0))
    }
}

/// One tensor of a file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Reads and checks the header; afterwards every entry lies in the file and none overlaps another.
pub(crate) fn read_header(file: &SourceFile) -> Result<Vec<Entry>, Error> {
    let refuse = |place: &str, problem: String| Error::input(file.path(), place, problem, DAMAGED);
    if file.len() < 8 {
        let problem = format!("{} bytes are too short for a safetensors file", file.len());
        return Err(refuse("header length", problem));
    }
    let mut length = [0; 8];
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        let problem = format!("{length} bytes is more than the {MAX_HEADER} allowed");
        return Err(refuse("header length", problem));
    }
    let rest = file.len() - 8;
    if length > rest {
        let problem = format!("the header promises {length} bytes, the file has {rest} more");
        return Err(refuse("header length", problem));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(8, &mut bytes)?;
    let header: Header =
        serde_json::from_slice(&bytes).map_err(|error| text::invalid(file.path(), &error))?;
    let mut entries = Vec::with_capacity(header.0.len());
    let end = header.0.iter().map(|(_, info)| info.data_offsets[1]).max();
    let expected = end.unwrap_or(0).saturating_add(8 + length);
    for (name, info) in header.0 {
        entries.push(entry(file, name, info, 8 + length, expected)?);
    }
    check_layout(file, &mut entries, 8 + length)?;
    Ok(entries)
}

/// One entry, checked; the data begins at `start` and the whole file should have `expected` bytes.
fn entry(file: &SourceFile, name: String, info: Info, start: u64, expected: u64) -> Result<Entry, Error> {
    let refuse = |problem: String| {
        let place = format!("tensor {name}");
        Err(Error::input(file.path(), place, problem, DAMAGED))
    };
    let Some(dtype) = Dtype::from_name(&info.dtype) else {
        return refuse(format!("{:?} is not a known element type", info.dtype));
    };
    let [begin, end] = info.data_offsets;
    let room = file.len() - start;
    if end < begin {
        return refuse(format!("its data ends at {end}, before it begins at {begin}"));
    }
    if end > room {
        return Err(Error::input(
            file.path(),
            format!("tensor {name}"),
            format!("the header promises data up to byte {end}, the file has {room} bytes of data"),
            format!("the copy is incomplete: copy this file again (expected {expected} bytes)"),
        ));
    }
    let elements = info.shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let Some(bytes) = elements.and_then(|n| n.checked_mul(dtype.bytes())) else {
        return refuse(format!("the shape {:?} overflows", info.shape));
    };
    if bytes != end - begin {
        let (given, shape) = (end - begin, &info.shape);
        let kind = dtype.name();
        return refuse(format!("{shape:?} of {kind} takes {bytes} bytes, it has {given}"));
    }
    if bytes == 0 {
        return refuse(format!("the shape {:?} holds nothing", info.shape));
    }
    let shape = info.shape.iter().map(|&dim| usize::try_from(dim));
    let Ok(shape) = shape.collect() else {
        return refuse(format!("the shape {:?} is too large", info.shape));
    };
    Ok(Entry { name, dtype, shape, offset: start + begin, bytes })
}

/// The data is exactly the tensors, one after the other.
fn check_layout(file: &SourceFile, entries: &mut [Entry], start: u64) -> Result<(), Error> {
    entries.sort_by_key(|entry| entry.offset);
    let mut end = start;
    for entry in entries.iter() {
        if entry.offset != end {
            let relation = match entry.offset < end {
                true => "overlaps the tensor before it",
                false => "leaves a hole before it",
            };
            let problem = format!("its data at byte {} {relation} (byte {end})", entry.offset);
            let place = format!("tensor {}", entry.name);
            return Err(Error::input(file.path(), place, problem, DAMAGED));
        }
        end += entry.bytes;
    }
    match end == file.len() {
        true => Ok(()),
        false => Err(Error::input(
            file.path(),
            format!("offset {end}"),
            format!("{} bytes follow the last tensor", file.len() - end),
            DAMAGED,
        )),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Names and what is said about them, in file order, with no name twice.
struct Header(Vec<(String, Info)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(serde::de::Error::custom(format!("the key {name:?} occurs twice")));
            }
            match name.as_str() {
                "__metadata__" => {
                    // Strings only: anything deeper is not the format and could nest without end.
                    map.next_value::<std::collections::HashMap<String, String>>()?;
                }
                _ => entries.push((name, map.next_value()?)),
            }
        }
        Ok(Header(entries))
    }
}

/// A tensor to be put into a file.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Declared {
    /// Bytes of its data.
    pub(crate) fn bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&dim| dim as u64).product();
        elements * self.dtype.bytes()
    }
}

/// The bytes before the data (length, header, padding), where each tensor's data lies in the file,
/// and the length of the whole file.
pub(crate) fn layout(tensors: &[Declared]) -> (Vec<u8>, Vec<u64>, u64) {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes();
        offsets.push(begin);
        let info = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        header.insert(tensor.name.clone(), info);
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut prefix = (json.len() as u64).to_le_bytes().to_vec();
    prefix.append(&mut json);
    let start = prefix.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += start);
    (prefix, offsets, start + end)
}
