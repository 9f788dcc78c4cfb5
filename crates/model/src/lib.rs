//! The decoder: tokens -> embed -> block x L (cache) -> norm -> head -> logits
//!
//! Sees only `trait Backend`; names no device, no path, no family. Forward now; the backward
//! pass will stand beside it, block by block in mirrored order.
#![forbid(unsafe_code)]

mod block;
pub mod decoder;
pub mod error;
pub mod fill;
mod layer;
pub mod load;
pub mod watch;

pub use decoder::{Decoder, Wanted};
pub use error::{Error, Result};
pub use watch::{FirstBad, Watch};
