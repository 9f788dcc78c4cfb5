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
    /// A batch that does not fit what was planned, or from which nothing can be learnt.
    #[error(
        "a batch of {tokens} tokens with {targets} targets, {trained} of them trained, samples of up \
         to {longest}; planned were {most} tokens in samples of up to {context}; take fewer or shorter samples, with a \
         target in at least one"
    )]
    Batch {
        /// Tokens.
        tokens: usize,
        /// Targets.
        targets: usize,
        /// Targets that count.
        trained: usize,
        /// Longest sample.
        longest: usize,
        /// Tokens planned.
        most: usize,
        /// Longest sample planned.
        context: usize,
    },
    /// Chunks of the vocabulary that the table cannot be cut into.
    #[error("the table cannot be cut into chunks of {words} words: take a multiple of 16, and not NVFP4")]
    Vocabulary {
        /// Words of a chunk.
        words: usize,
    },
    /// The loss of a step.
    #[error("the loss is not finite; nothing was learnt from this step: try a smaller learning rate")]
    LossNotFinite,
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
