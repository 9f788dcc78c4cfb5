//! NVIDIA's library of matrix products, if one is found at run time: `sys` declares the calls we make,
//! `result` turns their answers into values, `product` owns what they hand out.

mod places;
mod product;
mod result;
mod sys;

pub use places::usual_places;
pub(crate) use product::{CublasLt, Operand, Product, Results, Values};
