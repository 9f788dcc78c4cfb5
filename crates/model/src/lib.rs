//! The decoder: tokens -> embed -> block x L (cache) -> norm -> head -> logits
//!
//! Sees only `trait Backend`; names no device, no path, no family. `training` goes the same way
//! and back, block by block in mirrored order.
#![forbid(unsafe_code)]

mod angles;
mod block;
pub mod decoder;
pub mod error;
pub mod fill;
mod layer;
pub mod load;
pub mod training;
pub mod watch;

pub use decoder::{Decoder, Wanted};
pub use error::{Error, Result};
pub use training::{Batch, Learner, Training};
pub use watch::{FirstBad, Watch};
