//! A file, line by line: bounded, UTF-8, without byte order mark and line ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::error::Error;

/// Most bytes of a line. Longer ones are a wrong file, not a row.
const LONGEST_LINE: usize = 16 << 20;

/// What is wrong with a line, and what to do; the file and the line come from [`Lines`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl Fault {
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Fault { problem: problem.into(), remedy: remedy.into() }
    }

    pub(super) fn at(self, file: &str, line: usize) -> Error {
        Error::Row { file: file.to_owned(), line, problem: self.problem, remedy: self.remedy }
    }
}

/// Reads a file's lines.
pub(super) struct Lines {
    input: Box<dyn BufRead>,
    file: String,
    number: usize,
    /// Bytes before the next line.
    offset: u64,
    longest: usize,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let failed = |error: std::io::Error| cannot_read(&file, &error);
        let opened = File::open(path).map_err(failed)?;
        // A directory opens, and fails only when it is read.
        if opened.metadata().map_err(failed)?.is_dir() {
            return Err(Error::file(&file, "data", "this is a directory", "Name the files in it."));
        }
        Ok(Self::new(Box::new(BufReader::with_capacity(1 << 16, opened)), file))
    }

    fn new(input: Box<dyn BufRead>, file: String) -> Self {
        Lines { input, file, number: 0, offset: 0, longest: LONGEST_LINE }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The error of a fault in this line.
    pub(super) fn fault(&self, line: usize, fault: Fault) -> Error {
        fault.at(&self.file, line)
    }

    /// The next line with its number, from 1.
    pub(super) fn next(&mut self) -> Result<Option<(usize, String)>, Error> {
        let mut bytes = Vec::new();
        let mut bounded = (&mut self.input).take(self.longest as u64 + 1);
        let count = bounded.read_until(b'\n', &mut bytes).map_err(|error| cannot_read(&self.file, &error))?;
        if count == 0 {
            return Ok(None);
        }
        self.number += 1;
        if count > self.longest {
            let problem = format!("the line has more than {} bytes", self.longest);
            let remedy = "is this a data file? a .txt may be longer, with line breaks";
            return Err(self.fault(self.number, Fault::new(problem, remedy)));
        }
        let start = self.offset;
        self.offset += count as u64;
        let line = self.decode(bytes, start)?;
        Ok(Some((self.number, line)))
    }

    fn decode(&self, mut bytes: Vec<u8>, start: u64) -> Result<String, Error> {
        if self.number == 1 && (bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])) {
            let fault = Fault::new("the file is UTF-16", "save it as UTF-8");
            return Err(self.fault(1, fault));
        }
        if bytes.ends_with(b"\n") {
            bytes.pop();
            if bytes.ends_with(b"\r") {
                bytes.pop();
            }
        }
        let mark: &[u8] = b"\xef\xbb\xbf";
        let skipped = if self.number == 1 && bytes.starts_with(mark) { mark.len() } else { 0 };
        bytes.drain(..skipped);
        let place = |at: usize| start + (skipped + at) as u64;
        if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
            let problem = format!("a zero byte at byte {} of the file", place(at));
            return Err(self.fault(self.number, Fault::new(problem, "is this a text file?")));
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = place(error.utf8_error().valid_up_to());
            let problem = format!("not UTF-8 at byte {at} of the file");
            self.fault(self.number, Fault::new(problem, "save the file as UTF-8"))
        })
    }
}

fn cannot_read(file: &str, error: &std::io::Error) -> Error {
    let remedy = "Check the name and the permissions.";
    Error::file(file, "data", format!("cannot be read: {error}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &'static [u8], longest: usize) -> Lines {
        Lines { longest, ..Lines::new(Box::new(bytes), "a.tsv".into()) }
    }

    fn all(mut lines: Lines) -> Result<Vec<String>, Error> {
        std::iter::from_fn(|| lines.next().transpose()).map(|line| line.map(|(_, text)| text)).collect()
    }

    #[test]
    fn byte_order_mark_and_line_ends_are_not_text() {
        let read = all(lines(b"\xef\xbb\xbfa\r\n\r\nb\n\xef\xbb\xbfc", 100)).unwrap();
        assert_eq!(read, ["a", "", "b", "\u{feff}c"]);
        assert_eq!(all(lines(b"", 100)).unwrap(), [""; 0]);
    }

    #[test]
    fn broken_bytes_are_named_by_line_and_byte() {
        for (bytes, says) in [
            (&b"ok\nab\xff\n"[..], "a.tsv line 2: not UTF-8 at byte 5"),
            (b"\xef\xbb\xbfab\xe8\xaa\n", "line 1: not UTF-8 at byte 5"),
            (b"a\n\0b\n", "line 2: a zero byte at byte 2"),
            (b"\xff\xfea\0\n\0", "line 1: the file is UTF-16"),
        ] {
            let error = all(lines(bytes, 100)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_is_held() {
        let endless = BufReader::new(std::io::repeat(b'a'));
        let mut lines = Lines { longest: 1000, ..Lines::new(Box::new(endless), "a.tsv".into()) };
        let error = lines.next().unwrap_err().to_string();
        assert!(error.contains("line 1: the line has more than 1000 bytes"), "{error}");
        assert_eq!(all(self::lines(b"abc\nabc", 4)).unwrap(), ["abc", "abc"]);
    }
}
