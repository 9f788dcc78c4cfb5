//! Reading a GGUF header byte by byte from a file nobody has checked: every length is compared
//! with what the file still holds before anything is allocated.

use crate::error::Error;
use crate::file::SourceFile;

/// Headers of real models have a few megabytes, nearly all of it vocabulary.
const MAX_HEADER: u64 = 1 << 28;
/// Bytes fetched at once.
const CHUNK: u64 = 1 << 18;
const CUT: &str = "the copy is incomplete or not a model: copy this file again";

/// A place in the header of a file.
pub(super) struct Cursor<'a> {
    file: &'a SourceFile,
    buffer: Vec<u8>,
    /// Offset in the file of the first byte of `buffer`.
    start: u64,
    /// Next byte in `buffer`.
    at: usize,
    /// What is being read, for messages.
    pub(super) place: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a SourceFile) -> Self {
        Cursor { file, buffer: Vec::new(), start: 0, at: 0, place: "header".to_string() }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Bytes a header may still have.
    pub(super) fn remaining(&self) -> u64 {
        self.file.len().min(MAX_HEADER) - self.offset()
    }

    /// An error at the place being read.
    pub(super) fn error(&self, problem: impl Into<String>, remedy: &str) -> Error {
        let place = format!("{} (offset {})", self.place, self.offset());
        Error::input(self.file.path(), place, problem, remedy)
    }

    /// Refuses a count of things that cannot all lie in the rest of the header.
    pub(super) fn check_count(&self, what: &str, count: u64, least_bytes: u64) -> Result<(), Error> {
        let needed = count.checked_mul(least_bytes);
        if needed.is_some_and(|needed| needed <= self.remaining()) {
            return Ok(());
        }
        let rest = self.remaining();
        let problem = format!("{count} {what} are promised, but only {rest} bytes follow");
        Err(self.error(problem, CUT))
    }

    /// The next `N` bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.check_count("bytes", N as u64, 1)?;
        if self.buffer.len() - self.at < N {
            let offset = self.offset();
            let mut buffer = vec![0; (self.file.len() - offset).min(CHUNK) as usize];
            self.file.read_at(offset, &mut buffer)?;
            (self.buffer, self.start, self.at) = (buffer, offset, 0);
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer[self.at..self.at + N]);
        self.at += N;
        Ok(bytes)
    }

    /// The next `length` bytes, which `check_count` has seen.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Error> {
        self.check_count("bytes", length, 1)?;
        let mut bytes = vec![0; length as usize];
        let held = (self.buffer.len() - self.at).min(bytes.len());
        bytes[..held].copy_from_slice(&self.buffer[self.at..self.at + held]);
        self.at += held;
        if held < bytes.len() {
            let offset = self.offset();
            self.file.read_at(offset, &mut bytes[held..])?;
            (self.buffer, self.start, self.at) = (Vec::new(), offset + length - held as u64, 0);
        }
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A string: u64 length, then that many bytes of UTF-8.
    pub(super) fn string(&mut self) -> Result<String, Error> {
        let length = self.u64()?;
        self.check_count("bytes of text", length, 1)?;
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes).map_err(|_| {
            let remedy = "the file was written wrongly; convert the model again";
            self.error("this text is not UTF-8", remedy)
        })
    }
}
