//! The decoder on the CPU, from toy files to logits. One program: linking is what takes time.

mod accumulation;
mod common;
mod gradients;
mod lanes;
mod refusals;
mod same_bits;
mod training;
mod transformers;
