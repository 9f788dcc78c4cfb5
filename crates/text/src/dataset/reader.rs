//! A data file, row by row.

use std::path::Path;

use super::lines::Lines;
use super::plain::Plain;
use super::source::Format;
use super::{Content, Row, jsonl, tsv};
use crate::error::Error;

/// Reads one data file.
pub struct Reader {
    lines: Lines,
    format: Format,
    plain: Plain,
    rows: usize,
}

/// What comes out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A row.
    Row(Row),
    /// Names of columns: reported, not trained.
    Header {
        /// Line of the file.
        line: usize,
        /// The line.
        text: String,
    },
}

impl Reader {
    /// Opens a file; the ending of its name says how it is written.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let format = Format::of(path)?;
        Ok(Reader { lines: Lines::open(path)?, format, plain: Plain::default(), rows: 0 })
    }

    /// The file as errors name it.
    pub fn file(&self) -> &str {
        self.lines.file()
    }

    /// How the file is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.lines.offset()
    }

    /// The next row or header; `None` at the end.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        if self.format == Format::Text {
            return Ok(self.plain.next(&mut self.lines)?.map(Item::Row));
        }
        while let Some((line, text)) = self.lines.next()? {
            let parsed = match self.format {
                Format::Tsv => tsv::parse(&text, self.rows == 0),
                _ => jsonl::parse(&text).map(|content| content.map(tsv::Parsed::Content)),
            };
            match parsed.map_err(|fault| self.lines.fault(line, fault))? {
                None => {}
                Some(tsv::Parsed::Header) => return Ok(Some(Item::Header { line, text })),
                Some(tsv::Parsed::Content(content)) => {
                    self.rows += 1;
                    return Ok(Some(Item::Row(Row { line, content })));
                }
            }
        }
        Ok(None)
    }
}

impl Content {
    /// Hash of what it says.
    pub(super) fn hash(&self) -> u64 {
        match self {
            Content::Chat(messages) => {
                super::content_hash(messages.iter().flat_map(|m| [m.role.as_str(), m.content.as_str()]))
            }
            Content::Text(text) | Content::Piece { text, .. } => super::content_hash([text.as_str()]),
        }
    }
}
