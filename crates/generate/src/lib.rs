//! Prefill, decode, sampling, conversations and sessions. Prints nothing, trains nothing.
//!
//! ```text
//! messages -> template -> transcript -> ids -> prefill (only what the cache lacks)
//!                                               -> sample -> stream -> stop strings -> text
//!                                               ^___________feed____________|
//! ```
//! What a token is computed with does not change its bits, so a conversation gives the same logits
//! whether its cache was filled at once, token by token, in earlier turns, or read from a file.
#![forbid(unsafe_code)]

pub mod conversation;
pub mod divergence;
pub mod error;
pub mod repetition;
mod replies;
pub mod reply;
pub mod sampler;
pub mod session;
mod session_file;
mod transcript;

pub use conversation::{Conversation, OnFull, Style};
pub use error::{Error, Result};
pub use replies::replies;
pub use reply::{Event, Finish, Limits, Reply, Timing, reply};
pub use sampler::{Sampler, SamplerSettings};
pub use session::Binding;
