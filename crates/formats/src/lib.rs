//! bytes <-> numbers: E2M1, E4M3, bf16, f16, NVFP4, 8-bit blocks, GGML blocks, Philox, normal numbers, Hadamard transforms,
//! blocked scales, training state.
//!
//! ```text
//! f32 row -> nvfp4 | int8_block -> codes + block scales -> (blocked: 128x4) -> files, kernels
//! f32     -> e2m1, e4m3, bf16, f16 -> bits;   philox -> rounding -> stochastic codes
//! state: what training keeps between steps, and how a step moves it
//! ```
//!
//! This crate is the oracle: every kernel and every file is judged against it. It knows no path,
//! no model and no device. Slices of the wrong length are mistakes of the caller and panic;
//! every *value* (any bit pattern of any byte) has a defined result.

#![forbid(unsafe_code)]

pub mod bf16;
pub mod blocked;
pub mod e2m1;
pub mod e4m3;
pub mod f16;
pub mod ggml;
pub mod hadamard;
pub mod int8_block;
pub mod normal;
pub mod nvfp4;
pub mod philox;
pub mod rounding;
pub mod state;
