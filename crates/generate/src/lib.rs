//! Prefill, decode, sampling and sessions. Prints nothing, trains nothing.
#![forbid(unsafe_code)]

pub mod sampler;
