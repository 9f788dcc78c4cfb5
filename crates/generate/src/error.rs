//! What can go wrong between a message and its reply.

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// From the decoder: too many tokens, a number that is not finite, the device.
    #[error(transparent)]
    Model(#[from] halfbyte_model::Error),
    /// From the tokenizer, the template or a stop string.
    #[error(transparent)]
    Text(#[from] halfbyte_text::Error),
    /// A sampling setting outside its range, or no token left to choose.
    #[error(transparent)]
    Sampler(#[from] crate::sampler::Error),
    /// A session file that cannot be read, written or used.
    #[error(transparent)]
    File(#[from] halfbyte_checkpoint::Error),
    /// There is nothing to answer.
    #[error("the prompt has no tokens; give a prompt that is not empty")]
    EmptyPrompt,
    /// `retry` and `undo` need a turn.
    #[error("there is no turn yet")]
    NoTurn,
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;
