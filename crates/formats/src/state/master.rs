//! Wide weights for comparison: f32, or bf16 rounded stochastically. The forward pass quantises them.
//!
//! bf16: the low 16 bits of the sum are cut off after 16 random bits were added to them, so the mean is
//! the sum. Numbers on the grid never move; a zero update changes no bit.

use super::draw::{Draws, each_moving_block};
use super::{BLOCK, Tally, units};

/// How wide weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Master {
    /// Sixteen bits, stochastic.
    Bf16,
    /// Thirty-two bits.
    Float,
}

impl Master {
    /// Bytes per parameter.
    pub const fn bytes_per_parameter(self) -> f64 {
        match self {
            Master::Bf16 => 2.0,
            Master::Float => 4.0,
        }
    }
}

/// w += delta in bf16, rounded by `bits`. A block that would not be finite is left alone and counted.
#[inline(always)]
pub fn update_bf16(w: &mut [u16; BLOCK], delta: &[f32; BLOCK], bits: &[u32; BLOCK]) -> Tally {
    let mut sums = [0.0; BLOCK];
    let mut new = [0; BLOCK];
    for i in 0..BLOCK {
        sums[i] = f32::from_bits(u32::from(w[i]) << 16) + delta[i];
        new[i] = (sums[i].to_bits().wrapping_add(bits[i] >> 16) >> 16) as u16;
        // Adding zero turns a stored negative zero into zero.
        new[i] = if delta[i] == 0.0 { w[i] } else { new[i] };
    }
    if units::largest_bits(&sums) >= 0x7F7F_0000 {
        return Tally { refused: 1, ..Tally::default() };
    }
    let changed = w.iter().zip(&new).filter(|(old, new)| old != new).count() as u64;
    *w = new;
    Tally { changed, ..Tally::default() }
}

/// [`update_bf16`] for a row of whole blocks; `first` is the index of its first element in the tensor.
///
/// # Panics
/// When the row is no whole number of blocks, `delta` has another length, or `first` begins no block.
pub fn update_bf16_row(w: &mut [u16], delta: &[f32], draws: &Draws, first: u64) -> Tally {
    assert_eq!(w.len(), delta.len(), "delta");
    let blocks = w.as_chunks_mut().0;
    each_moving_block(draws, first, delta, |index, delta, bits| update_bf16(&mut blocks[index], delta, bits))
}

/// w += delta in f32. A block that would not be finite is left alone and counted.
#[inline(always)]
pub fn update_f32(w: &mut [f32; BLOCK], delta: &[f32; BLOCK]) -> Tally {
    let mut new = *w;
    for (new, delta) in new.iter_mut().zip(delta) {
        *new = if *delta == 0.0 { *new } else { *new + delta };
    }
    if units::largest_bits(&new) >= 0x7F80_0000 {
        return Tally { refused: 1, ..Tally::default() };
    }
    let changed = w.iter().zip(&new).filter(|(old, new)| old.to_bits() != new.to_bits()).count() as u64;
    *w = new;
    Tally { changed, ..Tally::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::draw::Purpose;

    #[test]
    fn a_zero_update_changes_no_bit_of_any_finite_number() {
        for high in 0..=u16::MAX {
            if high & 0x7F80 == 0x7F80 {
                continue;
            }
            let mut w = [high; BLOCK];
            update_bf16(&mut w, &[0.0; BLOCK], &[u32::MAX; BLOCK]);
            assert_eq!(w, [high; BLOCK]);
            let mut w = [f32::from_bits(u32::from(high) << 16); BLOCK];
            let old = w.map(f32::to_bits);
            update_f32(&mut w, &[-0.0; BLOCK]);
            assert_eq!(w.map(f32::to_bits), old);
        }
    }

    #[test]
    fn a_tiny_update_moves_bf16_by_its_sum_in_the_mean() {
        let mut w = [crate::bf16::encode(1.5); 4096];
        let unit = 2f32.powi(-7);
        for step in 0..500 {
            update_bf16_row(&mut w, &[unit / 50.0; 4096], &Draws::new(1, step, 0, Purpose::Weight), 0);
        }
        let moved = w.iter().map(|w| f64::from(crate::bf16::decode(*w)) - 1.5).sum::<f64>() / 4096.0;
        // 500 draws of variance p (1 - p) on 4096 elements: the mean's deviation is 0.05 units, 0.5%.
        assert!((moved / (10.0 * f64::from(unit)) - 1.0).abs() < 0.02, "{moved}");
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        let mut w = [0x3F80; BLOCK];
        assert_eq!(update_bf16(&mut w, &[f32::NAN; BLOCK], &[0; BLOCK]).refused, 1);
        assert_eq!(w, [0x3F80; BLOCK]);
        let mut w = [1.0; BLOCK];
        assert_eq!(update_f32(&mut w, &[f32::INFINITY; BLOCK]).refused, 1);
        assert_eq!(w, [1.0; BLOCK]);
    }
}
