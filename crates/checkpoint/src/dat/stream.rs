//! The stream of entries: every number is checked before it is believed.

use crate::dat::{DatEntry, Role, element, tensors};
use crate::error::Error;
use crate::file::SourceFile;

const MAX_KEY: u64 = 1024;
const MAX_RANK: u64 = 8;
const DAMAGED: &str = "the file is damaged, incomplete, or no TorchSharp state dictionary: copy it again";

/// Reads all entries; afterwards each lies in the file and together they fill it.
pub(crate) fn read_entries(file: &SourceFile) -> Result<Vec<DatEntry>, Error> {
    let mut stream = Stream { file, offset: 0, window: Vec::new(), window_start: 0 };
    let count = stream.number("entry count")?;
    // An entry takes at least four bytes, so a larger count is a lie.
    if count > file.len() / 4 {
        let problem = format!("{count} entries cannot be in {} bytes", file.len());
        return Err(Error::input(file.path(), "entry count", problem, DAMAGED));
    }
    let mut entries = Vec::new();
    for number in 0..count {
        entries.push(stream.entry(number)?);
    }
    match stream.offset == file.len() {
        true => Ok(entries),
        false => Err(Error::input(
            file.path(),
            format!("offset {}", stream.offset),
            format!("{} bytes follow the last entry", file.len() - stream.offset),
            DAMAGED,
        )),
    }
}

/// A position in the file, with a window of bytes around it: entries are far apart.
struct Stream<'a> {
    file: &'a SourceFile,
    offset: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl Stream<'_> {
    fn refuse(&self, place: &str, problem: String) -> Error {
        let place = format!("{place} (offset {})", self.offset);
        Error::input(self.file.path(), place, problem, DAMAGED)
    }

    fn byte(&mut self, place: &str) -> Result<u8, Error> {
        let held = self.offset.checked_sub(self.window_start);
        let held = held.and_then(|at| self.window.get(usize::try_from(at).ok()?));
        if let Some(byte) = held {
            self.offset += 1;
            return Ok(*byte);
        }
        let rest = self.file.len().saturating_sub(self.offset);
        if rest == 0 {
            return Err(self.refuse(place, "the file ends here".into()));
        }
        self.window.resize(rest.min(4096) as usize, 0);
        self.window_start = self.offset;
        self.file.read_at(self.offset, &mut self.window)?;
        self.offset += 1;
        Ok(self.window[0])
    }

    /// A LEB128 number below 2^63, in at most nine bytes.
    fn number(&mut self, place: &str) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = self.byte(place)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.refuse(place, "a number does not end within 63 bits".into()))
    }

    fn entry(&mut self, number: u64) -> Result<DatEntry, Error> {
        let place = format!("entry {number}");
        let key = self.key(&place)?;
        let place = format!("entry {number}, {key}");
        let element = self.number(&place)?;
        let Some(width) = element::bytes(element) else {
            return Err(self.refuse(&place, format!("{element} is not a known element type")));
        };
        let rank = self.number(&place)?;
        if rank > MAX_RANK {
            return Err(self.refuse(&place, format!("{rank} dimensions are too many")));
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(self.number(&place)?);
        }
        let elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let Some(bytes) = elements.and_then(|n| n.checked_mul(width)) else {
            return Err(self.refuse(&place, format!("the dimensions {dims:?} overflow")));
        };
        let rest = self.file.len() - self.offset;
        if bytes > rest {
            let problem = format!("{dims:?} takes {bytes} bytes, the file ends after {rest}");
            return Err(self.refuse(&place, problem));
        }
        let offset = self.offset;
        self.offset += bytes;
        Ok(DatEntry { role: Role::Other, key, element, dims, offset, bytes })
            .and_then(|entry| tensors::with_role(self.file, entry))
    }

    fn key(&mut self, place: &str) -> Result<String, Error> {
        let length = self.number(place)?;
        if length == 0 || length > MAX_KEY {
            let problem = format!("a key of {length} bytes is not between 1 and {MAX_KEY}");
            return Err(self.refuse(place, problem));
        }
        let mut bytes = Vec::new();
        for _ in 0..length {
            bytes.push(self.byte(place)?);
        }
        String::from_utf8(bytes).map_err(|_| self.refuse(place, "the key is not UTF-8".into()))
    }
}

/// Appends a LEB128 number.
pub(crate) fn push_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
