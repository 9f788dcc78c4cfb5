//! Data files -> rows -> token ids with the tokens that are trained -> an order that can be repeated.
//!
//! ```text
//! .tsv .jsonl .txt ─ Reader ─> Row ─ Renderer ─> Sample ─ Split, Order ─> packing ─> Sequence
//!                               the model's own template          Feed: epoch after epoch, resumable
//! ```
//! Nothing here depends on threads, on hashing seeds or on the clock: the same files, template and
//! seed give the same sequences.

pub mod dialogues;
mod feed;
mod hash;
pub mod identity;
mod jsonl;
mod lines;
mod order;
mod plain;
mod read;
mod reader;
mod render;
mod report;
mod source;
mod tsv;

pub use feed::{Feed, FeedSettings, Position};
pub(crate) use hash::content_hash;
pub use order::{HeldOut, Order, Split, split};
pub use read::{Dataset, Settings};
pub use reader::{Item, Reader};
pub use render::{Chat, Rendered, Renderer, document_end};
pub use report::{Places, SourceReport};
pub use source::{Format, Source};

use std::ops::Range;

use crate::chat_template::Message;

/// One row of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Line of the file, from 1.
    pub line: usize,
    /// What stands there.
    pub content: Content,
}

/// What a row holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A conversation; its replies are trained.
    Chat(Vec<Message>),
    /// A text of its own; all of it is trained.
    Text(String),
    /// A piece of a longer document; all of it is trained.
    Piece {
        /// The text.
        text: String,
        /// Whether a document begins here.
        begins: bool,
        /// Whether a document ends here.
        ends: bool,
    },
}

/// Token ids that belong together, and which of them are trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of its source.
    pub source: usize,
    /// Line of its row.
    pub line: usize,
    /// Hash of what its row says: equal rows are equal here, whatever their file.
    pub hash: u64,
    /// The ids.
    pub tokens: Vec<u32>,
    /// Ranges of `tokens` that are trained: in order, apart, never empty.
    pub trained: Vec<Range<usize>>,
}

impl Sample {
    /// Positions it takes in a sequence: all tokens before the last trained one, which is predicted
    /// and needs no position of its own.
    pub fn positions(&self) -> usize {
        self.trained.last().map_or(0, |range| range.end.saturating_sub(1))
    }

    /// Tokens that are trained; a first token has nothing before it and is not.
    pub fn targets(&self) -> usize {
        self.trained.iter().map(|range| range.end.saturating_sub(range.start.max(1))).sum()
    }
}
