//! One file per command: its flags, what it does, what it prints.

pub(crate) mod perplexity;
pub(crate) mod plan;
