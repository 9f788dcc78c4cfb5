//! What was found in a data file, for the person whose file it is.

use std::path::PathBuf;

use super::source::Format;

/// Lines that are named; the rest are counted.
const NAMED: usize = 8;

/// Rows of one kind: how many, and where the first ones are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// How many.
    pub count: usize,
    /// Lines of the first ones.
    pub lines: Vec<usize>,
}

impl Places {
    pub(super) fn add(&mut self, line: usize) {
        self.count += 1;
        if self.lines.len() < NAMED {
            self.lines.push(line);
        }
    }
}

/// What one source holds.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceReport {
    /// Its file.
    pub path: PathBuf,
    /// How it is written.
    pub format: Format,
    /// How often each row comes in an epoch.
    pub weight: f64,
    /// Rows read; of plain text, documents.
    pub rows: usize,
    /// Samples made of them.
    pub samples: usize,
    /// Tokens of the samples.
    pub tokens: usize,
    /// Those that are trained.
    pub trained: usize,
    /// Rows equal to an earlier row of any source.
    pub duplicates: usize,
    /// Lines that name columns, with their text: not trained.
    pub headers: Vec<(usize, String)>,
    /// Rows without a reply to learn from, left out on request.
    pub empty: Places,
    /// Text rows that lost their end.
    pub truncated: Places,
    /// Conversations that lost later replies, with all after them.
    pub shortened: Places,
    /// Conversations of which no reply has a place: left out.
    pub dropped: Places,
    /// Rows whose replies the template ends with no token that ends a reply in chat.
    pub unended: Places,
    /// Text rows in which control tokens are written out; they become those tokens.
    pub controls: Places,
}

impl SourceReport {
    pub(super) fn new(path: PathBuf, format: Format, weight: f64) -> Self {
        SourceReport {
            path,
            format,
            weight,
            rows: 0,
            samples: 0,
            tokens: 0,
            trained: 0,
            duplicates: 0,
            headers: Vec::new(),
            empty: Places::default(),
            truncated: Places::default(),
            shortened: Places::default(),
            dropped: Places::default(),
            unended: Places::default(),
            controls: Places::default(),
        }
    }

    /// Share of the tokens that are trained.
    pub fn trained_share(&self) -> f64 {
        self.trained as f64 / self.tokens.max(1) as f64
    }
}
