//! The one definition of a product in the decoder.
//!
//! sum = 0; for each group of 32 positions: even and odd positions are two chains of fused
//! multiply-adds from zero; sum += even + odd. The last group may be short (missing = zero).
//! Every kernel gives these bits: the AMX instruction TDPBF16PS computes just this for a tile.
//! (Values below 1e-38 are the exception: the tiles flush them to zero.)

use halfbyte_formats::bf16;

/// Positions of a group.
pub const GROUP: usize = 32;

/// The canonical sum of x[k] * w[k].
pub fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut total = 0.0f32;
    for (x, w) in x.chunks(GROUP).zip(w.chunks(GROUP)) {
        let (mut even, mut odd) = (0.0f32, 0.0f32);
        for (x, w) in x.chunks(2).zip(w.chunks(2)) {
            even = x[0].mul_add(w[0], even);
            if x.len() == 2 {
                odd = x[1].mul_add(w[1], odd);
            }
        }
        total += even + odd;
    }
    total
}

/// Values as a product with a narrow weight sees them: rounded to bf16.
pub fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| bf16::round(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_groups_equal_zero_padding() {
        let x: Vec<f32> = (0..45).map(|i| (i as f32 * 0.37).sin()).collect();
        let w: Vec<f32> = (0..45).map(|i| (i as f32 * 0.11).cos()).collect();
        let pad = |v: &[f32]| [v, &[0.0; 19]].concat();
        assert_eq!(dot(&x, &w).to_bits(), dot(&pad(&x), &pad(&w)).to_bits());
    }
}
