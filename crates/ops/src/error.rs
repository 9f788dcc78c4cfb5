//! What can go wrong in an op: sizes that do not fit each other, or the device.

/// An op's failure; the text names the op and the sizes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes that do not fit.
    #[error("{op}: {problem}")]
    Shape {
        /// The op.
        op: &'static str,
        /// Which sizes, as numbers.
        problem: String,
    },
    /// A buffer outside the arena, or outputs that overlap inputs.
    #[error("{op}: buffer {offset}+{bytes} lies outside the arena of {arena} bytes")]
    Bounds {
        /// The op.
        op: &'static str,
        /// Where the buffer starts.
        offset: usize,
        /// How long it is.
        bytes: usize,
        /// How long the arena is.
        arena: usize,
    },
    /// A token the embedding has no row for.
    #[error("embed: token {token} is not below the vocabulary's {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Rows of the table.
        vocabulary: usize,
    },
    /// The device could not be had.
    #[error("{0}")]
    Device(String),
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;

/// A shape error when `holds` is false.
pub fn check(holds: bool, op: &'static str, problem: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Shape { op, problem: problem() }) }
}
