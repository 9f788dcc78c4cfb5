//! Wide weights for comparison: f32, or bf16 rounded stochastically, and the codes that follow from them.
//!
//! The codes, which the forward pass uses and which are exported, are always those that `nvfp4` or
//! `int8_block` gives the stored weights, under the tensor scale of the import: a block that moves is
//! quantised anew, scale included, and one that does not keeps its bytes.
//!
//! bf16: the low 16 bits of the sum are cut off after 16 random bits were added to them, so the mean is
//! the sum. Numbers on the grid never move; a zero update changes no bit.

use super::draw::{Draws, each_moving_block};
use super::{BLOCK, Tally, int8, units, weight};
use crate::{bf16, e4m3, int8_block, nvfp4};

/// How wide weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Master {
    /// Sixteen bits, stochastic.
    Bf16,
    /// Thirty-two bits.
    Float,
}

impl Master {
    /// Bytes of `len` weights.
    pub const fn bytes(self, len: usize) -> usize {
        match self {
            Master::Bf16 => 2 * len,
            Master::Float => 4 * len,
        }
    }

    /// Keeps a row, to nearest; `x` becomes what is kept of it.
    ///
    /// # Panics
    /// When `kept` has another length.
    pub fn import_row(self, x: &mut [f32], kept: &mut [u8]) {
        assert_eq!(kept.len(), self.bytes(x.len()), "kept");
        match self {
            Master::Bf16 => {
                for (x, bytes) in x.iter_mut().zip(kept.as_chunks_mut().0) {
                    let code = bf16::encode(*x);
                    (*x, *bytes) = (bf16::decode(code), code.to_le_bytes());
                }
            }
            Master::Float => {
                for (x, bytes) in x.iter().zip(kept.as_chunks_mut().0) {
                    *bytes = x.to_le_bytes();
                }
            }
        }
    }

    /// Stored weights of block `index` of a row.
    #[inline(always)]
    pub fn decode_block(self, kept: &[u8], index: usize) -> [f32; BLOCK] {
        let mut w = [0.0; BLOCK];
        let part = &kept[self.bytes(index * BLOCK)..][..self.bytes(BLOCK)];
        match self {
            Master::Bf16 => {
                for (w, bytes) in w.iter_mut().zip(part.as_chunks().0) {
                    *w = bf16::decode(u16::from_le_bytes(*bytes));
                }
            }
            Master::Float => {
                for (w, bytes) in w.iter_mut().zip(part.as_chunks().0) {
                    *w = f32::from_le_bytes(*bytes);
                }
            }
        }
        w
    }

    /// w += delta for block `index` of a row that is exported in NVFP4; its codes follow.
    #[inline(always)]
    pub fn update_nvfp4(
        self,
        row: &mut weight::Row<'_>,
        index: usize,
        (tensor_scale, scales): (f32, nvfp4::Scales),
        delta: &[f32; BLOCK],
        bits: &[u32; BLOCK],
    ) -> Tally {
        if !units::any(delta) {
            return Tally::default();
        }
        let Some(w) = self.advance(row.remainders, index, delta, bits) else {
            return Tally { refused: 1, ..Tally::default() };
        };
        let (mut codes, mut scale) = ([0; BLOCK / 2], 0);
        nvfp4::encode_row(&w, tensor_scale, scales, &mut codes, std::slice::from_mut(&mut scale));
        let old = &mut row.codes.as_chunks_mut().0[index];
        let largest = 6.0 * e4m3::MAX * tensor_scale;
        let tally = Tally {
            changed: units::nibbles_changed(old, &codes),
            rescaled: u64::from(scale != row.scales[index]),
            saturated: w.iter().filter(|w| w.abs() > largest).count() as u64,
            ..Tally::default()
        };
        (*old, row.scales[index]) = (codes, scale);
        tally
    }

    /// w += delta for block `index` of a row that is exported in 8-bit blocks; its codes follow.
    #[inline(always)]
    pub fn update_int8(
        self,
        row: &mut int8::Row<'_>,
        index: usize,
        delta: &[f32; BLOCK],
        bits: &[u32; BLOCK],
    ) -> Tally {
        if !units::any(delta) {
            return Tally::default();
        }
        let Some(w) = self.advance(row.remainders, index, delta, bits) else {
            return Tally { refused: 1, ..Tally::default() };
        };
        let (mut codes, mut scale) = ([0; BLOCK], 0);
        int8_block::encode_row(&w, &mut codes, std::slice::from_mut(&mut scale));
        let old: &mut [i8; BLOCK] = &mut row.codes.as_chunks_mut().0[index];
        let changed = old.iter().zip(&codes).filter(|(old, new)| old != new).count() as u64;
        let tally = Tally { changed, rescaled: u64::from(scale != row.scales[index]), ..Tally::default() };
        (*old, row.scales[index]) = (codes, scale);
        tally
    }

    /// Moves block `index` of a row and gives it as it is stored then; nothing if it would not be finite.
    #[inline(always)]
    fn advance(
        self,
        kept: &mut [u8],
        index: usize,
        delta: &[f32; BLOCK],
        bits: &[u32; BLOCK],
    ) -> Option<[f32; BLOCK]> {
        let mut w = self.decode_block(kept, index);
        let part = &mut kept[self.bytes(index * BLOCK)..][..self.bytes(BLOCK)];
        match self {
            Master::Bf16 => {
                let mut codes = w.map(|w| (w.to_bits() >> 16) as u16);
                if update_bf16(&mut codes, delta, bits).refused > 0 {
                    return None;
                }
                w = codes.map(bf16::decode);
                for (bytes, code) in part.as_chunks_mut().0.iter_mut().zip(codes) {
                    *bytes = code.to_le_bytes();
                }
            }
            Master::Float => {
                if update_f32(&mut w, delta).refused > 0 {
                    return None;
                }
                for (bytes, w) in part.as_chunks_mut().0.iter_mut().zip(w) {
                    *bytes = w.to_le_bytes();
                }
            }
        }
        Some(w)
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

    /// Four blocks of growing size, kept and quantised.
    fn imported(kept_as: Master, scales: nvfp4::Scales) -> (Vec<u8>, Vec<u8>, Vec<u8>, f32) {
        let mut x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin() * (1.0 + i as f32)).collect();
        let tensor_scale = weight::tensor_scale(64.0, scales);
        let (mut codes, mut block_scales) = (vec![0; 32], vec![0; 4]);
        let mut kept = vec![0; kept_as.bytes(64)];
        kept_as.import_row(&mut x, &mut kept);
        nvfp4::encode_row(&x, tensor_scale, scales, &mut codes, &mut block_scales);
        (codes, block_scales, kept, tensor_scale)
    }

    #[test]
    fn codes_are_those_of_the_stored_weights_whatever_moves_them() {
        let all = [nvfp4::Scales::Nearest, nvfp4::Scales::FourOverSix, nvfp4::Scales::Search];
        for (kept_as, scales) in [Master::Bf16, Master::Float].into_iter().flat_map(|m| all.map(|s| (m, s))) {
            let (mut codes, mut block_scales, mut kept, tensor_scale) = imported(kept_as, scales);
            let mut changed = 0;
            for step in 0..20 {
                let draws = Draws::new(3, step, 1, Purpose::Weight);
                for index in 0..4 {
                    let delta = std::array::from_fn(|i| 0.05 * ((i + index) as f32 - 9.0) * 0.5);
                    let bits = draws.block(16 * index as u64);
                    let (codes, scales_of) = (&mut codes, &mut block_scales);
                    let mut row = weight::Row { codes, scales: scales_of, remainders: &mut kept };
                    changed +=
                        kept_as.update_nvfp4(&mut row, index, (tensor_scale, scales), &delta, &bits).changed;
                }
                let w: Vec<f32> = (0..4).flat_map(|index| kept_as.decode_block(&kept, index)).collect();
                let (mut fresh, mut fresh_scales) = (vec![0; 32], vec![0; 4]);
                nvfp4::encode_row(&w, tensor_scale, scales, &mut fresh, &mut fresh_scales);
                assert_eq!((&fresh, &fresh_scales), (&codes, &block_scales));
            }
            assert!(changed > 0);
        }
    }

    #[test]
    fn a_zero_update_changes_neither_master_nor_codes() {
        for kept_as in [Master::Bf16, Master::Float] {
            let before = imported(kept_as, nvfp4::Scales::Nearest);
            let (mut codes, mut scales, mut kept, tensor_scale) = before.clone();
            // Codes that no quantiser would give: they stay, too.
            codes.fill(0x35);
            let mut signed = vec![3; 64];
            for index in 0..4 {
                let (zeros, bits) = ([-0.0; BLOCK], [u32::MAX; BLOCK]);
                let mut row = weight::Row { codes: &mut codes, scales: &mut scales, remainders: &mut kept };
                let rule = (tensor_scale, nvfp4::Scales::Nearest);
                assert_eq!(kept_as.update_nvfp4(&mut row, index, rule, &zeros, &bits), Tally::default());
                let mut row = int8::Row { codes: &mut signed, scales: &mut scales, remainders: &mut kept };
                assert_eq!(kept_as.update_int8(&mut row, index, &zeros, &bits), Tally::default());
            }
            assert_eq!((codes, signed), (vec![0x35; 32], vec![3; 64]));
            assert_eq!((scales, kept), (before.1, before.2));
        }
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
