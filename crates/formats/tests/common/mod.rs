//! What tests of the stored state have in common; each takes what it needs.
#![allow(dead_code)]

use halfbyte_formats::state::BLOCK;
use halfbyte_formats::state::moment::{self, Moment};

/// Stores a block and reads it again.
pub(crate) fn through(kind: Moment, m: &[f32; BLOCK], bits: &[u32; BLOCK]) -> [f32; BLOCK] {
    let mut scale = 0;
    match kind {
        Moment::Four => {
            let mut codes = [0; 8];
            moment::encode_four(m, bits, &mut codes, &mut scale);
            moment::decode_four(&codes, scale)
        }
        Moment::Eight => {
            let mut codes = [0; 16];
            moment::encode_eight(m, bits, &mut codes, &mut scale);
            moment::decode_eight(&codes, scale)
        }
        Moment::Float => *m,
    }
}

pub(crate) fn scaled(x: &[f32], factor: f32) -> Vec<f32> {
    x.iter().map(|x| x * factor).collect()
}

pub(crate) fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = x.len() as f64;
    x.sum::<f64>() / count
}
