//! magic, version, counts -> metadata -> tensor directory -> data: the header of a GGUF file,
//! checked so that every tensor lies in the file, alone.

use std::collections::HashSet;

use halfbyte_formats::ggml;

use super::cursor::Cursor;
use super::values::read_value;
use crate::error::Error;
use crate::file::SourceFile;
use crate::text_files::GgufMetadata;

/// Alignment of tensor data when the file does not state one; ours always is this.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Names are shorter than this in ggml, with its closing zero.
pub(super) const MAX_NAME: usize = 64;
const MAX_DIMENSIONS: u32 = 4;
/// More than any model has; small things in great number take more memory than their bytes.
const MAX_TENSORS: u64 = 1 << 18;
const MAX_ENTRIES: u64 = 1 << 16;
/// Bytes of the shortest possible metadata entry and directory entry.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
const LEAST_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;
const REWRITE: &str = "the file was written wrongly; convert the model again";

/// What a file says it holds.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: GgufMetadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// One tensor of the directory.
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// Innermost first, as in the file.
    pub(super) dimensions: Vec<usize>,
    pub(super) kind: ggml::Type,
    /// From the start of the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Reads and checks the whole header.
pub(super) fn read_header(file: &SourceFile) -> Result<Header, Error> {
    let mut cursor = Cursor::new(file);
    let version = read_version(&mut cursor)?;
    let tensor_count = cursor.u64()?;
    let entry_count = cursor.u64()?;
    cursor.check_count("tensors", tensor_count, LEAST_TENSOR)?;
    cursor.check_count("metadata entries", entry_count, LEAST_ENTRY)?;
    if tensor_count > MAX_TENSORS || entry_count > MAX_ENTRIES {
        let problem = format!("{tensor_count} tensors and {entry_count} metadata entries");
        let remedy = format!("a model has at most {MAX_TENSORS} and {MAX_ENTRIES} of them");
        return Err(cursor.error(problem, &remedy));
    }
    let metadata = read_metadata(&mut cursor, entry_count)?;
    let alignment = alignment(file, &metadata)?;
    let mut tensors = read_directory(&mut cursor, tensor_count)?;
    let data_start = cursor.offset().next_multiple_of(alignment);
    place_tensors(file, &mut tensors, data_start, alignment)?;
    Ok(Header { version, metadata, tensors })
}

/// Magic, then a version that is read here.
fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let magic: [u8; 4] = cursor.take()?;
    if &magic != b"GGUF" {
        let problem = format!("the file begins with \"{}\", not \"GGUF\"", magic.escape_ascii());
        return Err(cursor.error(problem, "give a GGUF file of version 2 or 3"));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => Ok(version),
        _ if version & 0xFFFF == 0 => {
            let remedy = "convert it on, or for, a little-endian machine";
            Err(cursor.error("the file is big-endian", remedy))
        }
        other => {
            let problem = format!("GGUF version {other}; versions 2 and 3 are read");
            Err(cursor.error(problem, "convert the model again with current tools"))
        }
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<GgufMetadata, Error> {
    let mut metadata = GgufMetadata::default();
    let mut seen = HashSet::new();
    for number in 0..count {
        cursor.place = format!("metadata entry {number}");
        let key = cursor.string()?;
        cursor.place = format!("metadata {}", shown(&key));
        if !seen.insert(key.clone()) {
            return Err(cursor.error("this key occurs twice", REWRITE));
        }
        let value = read_value(cursor)?;
        metadata.entries.push((key, value));
    }
    Ok(metadata)
}

fn alignment(file: &SourceFile, metadata: &GgufMetadata) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let usable = |n: &u64| n.is_power_of_two() && *n <= MAX_ALIGNMENT;
    value.as_u64().filter(usable).ok_or_else(|| {
        let place = format!("metadata {KEY}");
        let problem = format!("{value:?} is not a power of two up to {MAX_ALIGNMENT}");
        Error::input(file.path(), place, problem, REWRITE)
    })
}

/// The directory with offsets as stored, from the start of the data.
fn read_directory(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    for number in 0..count {
        cursor.place = format!("tensor {number}");
        let name = cursor.string()?;
        cursor.place = format!("tensor {}", shown(&name));
        if name.len() >= MAX_NAME {
            let problem = format!("the name has {} bytes, {MAX_NAME} are too many", name.len());
            return Err(cursor.error(problem, REWRITE));
        }
        if !seen.insert(name.clone()) {
            return Err(cursor.error("this tensor occurs twice", REWRITE));
        }
        let (dimensions, values) = read_dimensions(cursor)?;
        let kind = read_type(cursor)?;
        let offset = cursor.u64()?;
        let whole_rows = dimensions[0].is_multiple_of(kind.block());
        let bytes = whole_rows.then(|| kind.bytes(values)).flatten();
        let Some(bytes) = bytes else {
            let (row, name, block) = (dimensions[0], kind.name(), kind.block());
            let problem = format!("rows of {row} values do not fill {name} blocks of {block}");
            return Err(cursor.error(problem, REWRITE));
        };
        let bytes = bytes as u64;
        tensors.push(TensorInfo { name, dimensions, kind, offset, bytes });
    }
    Ok(tensors)
}

/// Dimensions, innermost first, and their product.
fn read_dimensions(cursor: &mut Cursor<'_>) -> Result<(Vec<usize>, usize), Error> {
    let count = cursor.u32()?;
    if count == 0 || count > MAX_DIMENSIONS {
        let problem = format!("{count} dimensions; a tensor has 1 to {MAX_DIMENSIONS}");
        return Err(cursor.error(problem, REWRITE));
    }
    let mut dimensions = Vec::new();
    let mut values = Some(1usize);
    for _ in 0..count {
        let dimension = cursor.u64()?;
        if dimension == 0 {
            return Err(cursor.error("a dimension is zero", REWRITE));
        }
        let dimension = usize::try_from(dimension).unwrap_or(usize::MAX);
        values = values.and_then(|values| values.checked_mul(dimension));
        dimensions.push(dimension);
    }
    // Half the range, so that bytes and padding cannot overflow either.
    let values = values.filter(|values| *values <= usize::MAX >> 8);
    match values {
        Some(values) => Ok((dimensions, values)),
        None => {
            let problem = format!("the dimensions {dimensions:?} multiply beyond any file");
            Err(cursor.error(problem, REWRITE))
        }
    }
}

fn read_type(cursor: &mut Cursor<'_>) -> Result<ggml::Type, Error> {
    let id = cursor.u32()?;
    ggml::Type::from_id(id).ok_or_else(|| {
        let name = other_type(id).map_or(String::new(), |name| format!(" ({name})"));
        let known: Vec<_> = ggml::Type::ALL.iter().map(|kind| kind.name()).collect();
        let remedy = format!("use a file quantised as one of {}", known.join(", "));
        cursor.error(format!("tensor type {id}{name} is not read"), &remedy)
    })
}

/// Types of other programs that are not decoded here, so that messages can name them.
fn other_type(id: u32) -> Option<&'static str> {
    Some(match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

/// Turns offsets into places in the file and refuses tensors outside it or over one another.
fn place_tensors(
    file: &SourceFile,
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
) -> Result<(), Error> {
    for tensor in tensors.iter_mut() {
        let refuse = |problem: String, remedy: &str| {
            let place = format!("tensor {}", shown(&tensor.name));
            Err(Error::input(file.path(), place, problem, remedy))
        };
        let offset = tensor.offset;
        if !offset.is_multiple_of(alignment) {
            let problem = format!("its offset {offset} is not a multiple of {alignment}");
            return refuse(problem, REWRITE);
        }
        let start = offset.checked_add(data_start);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        let (Some(start), Some(_)) = (start, end.filter(|end| *end <= file.len())) else {
            let (bytes, length) = (tensor.bytes, file.len());
            let problem = format!(
                "the header promises {bytes} bytes at offset {offset} after {data_start}, the file has {length}"
            );
            return refuse(problem, "the copy is incomplete: copy this file again");
        };
        tensor.offset = start;
    }
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    match order.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        None => Ok(()),
        Some(pair) => {
            let place = format!("tensor {}", shown(&pair[1].name));
            let problem = format!("it lies over the bytes of {}", shown(&pair[0].name));
            Err(Error::input(file.path(), place, problem, REWRITE))
        }
    }
}

/// A name from the file, safe and short enough for a terminal.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(MAX_NAME).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", short.escape_debug())
}
