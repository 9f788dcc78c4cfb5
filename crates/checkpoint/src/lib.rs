//! Files <-> named tensors with encodings: Hugging Face directories, GGUF, the origin's `.dat`.
//!
//! path -> `Checkpoint::open` -> architecture, tensors, text; rows are read on demand from any
//! thread. `Output` -> `create` -> `Sink`; rows come in any order, and only `finish` makes the
//! model visible. No arithmetic on values beyond decoding and encoding, no device.
#![forbid(unsafe_code)]

pub mod architecture;
pub mod atomic;
pub mod checkpoint;
mod config;
mod coverage;
pub mod dat;
pub mod error;
mod file;
mod fingerprint;
pub mod gguf;
mod hugging_face;
mod json;
pub mod names;
mod random;
pub mod rope;
mod safetensors;
pub mod sink;
mod space;
pub mod tensor;
pub mod text_files;
mod values;

pub use architecture::{Architecture, Family};
pub use checkpoint::{Checkpoint, Format};
pub use dat::DatLayout;
pub use error::{Error, ErrorKind};
pub use names::{LayerTensor, TensorName};
pub use rope::{Rope, RopeScaling};
pub use sink::{Output, OutputTensor, Sink, copy_tensor, create};
pub use tensor::{Encoding, Tensor, WideScale};
pub use text_files::{GgufArray, GgufMetadata, GgufValue, TextFiles};
