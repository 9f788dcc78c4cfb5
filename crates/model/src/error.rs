//! What can go wrong between tokens and logits.

use halfbyte_plan::Stage;

/// A decoder's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// From the device.
    #[error(transparent)]
    Op(#[from] halfbyte_ops::Error),
    /// From the model's file.
    #[error(transparent)]
    File(#[from] halfbyte_checkpoint::Error),
    /// The plan lacks a buffer: it was made for another architecture.
    #[error("the plan has no buffer for {0}")]
    Unplanned(String),
    /// More tokens than the cache holds.
    #[error(
        "{have} tokens are in the cache and {new} more were given, the context holds {context}; \
         shorten the input, raise --context, or let old turns go with --on-full shift"
    )]
    TooLong {
        /// Tokens in the cache.
        have: usize,
        /// Tokens given.
        new: usize,
        /// Positions of the cache.
        context: usize,
    },
    /// A number that is not finite.
    #[error(
        "a value is not finite; first bad value: {}stage {}, position {position}; \
         the weights are damaged or too coarse: check them with `halfbyte inspect --stats`",
        .layer.map(|l| format!("layer {l}, ")).unwrap_or_default(),
        .stage.name()
    )]
    NotFinite {
        /// Layer, if the stage has one.
        layer: Option<usize>,
        /// The first bad stage.
        stage: Stage,
        /// The token's position.
        position: usize,
    },
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;
