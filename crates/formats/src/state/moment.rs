//! First moments in 4 or 8 bits: rounded stochastically at every step, so that nothing vanishes in the mean.
//!
//! ```text
//! four:  m = c * s,  c an E2M1 code,  s = 2^(e - 48) * (1 + f / 4) of one byte e:6 f:2
//! eight: m = c * 2^(e - 127),  c in -127..=127,  e an E8M0 byte
//! ```
//!
//! **Why this scale.** Gradients move over orders of magnitude during a run and between the blocks of
//! one tensor, so a tensor scale fixed at import would clip or lose them, and one recomputed at every
//! step would take a second pass over the tensor and tie every block to all others. E4M3 alone spans
//! 18 binades. Six exponent bits span 64, from 3.5e-15 to 5.7e4 (so |m| up to 3.4e5), and a block
//! needs no other number. Two mantissa bits, always rounded up so that nothing is clipped, make
//! the grid at most a quarter coarser than the ideal scale, 10% on average (E8M0: twice, 44%).
//!
//! **Never to nearest**: 0.9 m would round back to m and the moment would run away. With stochastic
//! rounding the mean is m, down to 1e-7 of the scale: a number far below the grid is rarely a large one.
//!
//! A block of zeros has scale byte 0 and zero codes. Every byte decodes to a finite number. What is
//! not finite should have stopped the step; here NaN becomes zero, and infinities and what
//! lies beyond the largest scale saturate.

use super::{BLOCK, units};

/// How first moments are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// E2M1 codes with a scale byte of six exponent bits: the default.
    Four,
    /// Integers of eight bits with a power of two.
    Eight,
    /// f32.
    Float,
}

impl Moment {
    /// Bytes of one block, scale included.
    pub const fn block_bytes(self) -> usize {
        match self {
            Moment::Four => BLOCK / 2 + 1,
            Moment::Eight => BLOCK + 1,
            Moment::Float => 4 * BLOCK,
        }
    }

    /// Bytes per parameter: 0.5625, 1.0625 or 4.
    pub const fn bytes_per_parameter(self) -> f64 {
        self.block_bytes() as f64 / BLOCK as f64
    }
}

// Exponent bias 127 becomes 48, in quarters of a binade.
const SHIFT: u32 = (127 - 48) << 2;

/// Value of a scale byte of the 4-bit form.
#[inline(always)]
pub fn decode_scale(byte: u8) -> f32 {
    f32::from_bits((u32::from(byte) + SHIFT) << 21)
}

/// The smallest scale byte under which `amax` is at most 6, or the largest byte.
#[inline(always)]
fn encode_scale(amax: f32) -> u8 {
    let quarters = ((amax / 6.0).to_bits() + 0x1F_FFFF) >> 21;
    quarters.clamp(SHIFT, SHIFT + 255).wrapping_sub(SHIFT) as u8
}

/// Moments of one 4-bit block.
#[inline(always)]
pub fn decode_four(codes: &[u8; BLOCK / 2], scale: u8) -> [f32; BLOCK] {
    let half = decode_scale(scale) * 0.5;
    signed_halves(codes).map(|halves| halves * half)
}

/// Moments of one 4-bit block, moved by the gradient: c * (beta s) + g, the sum rounded once.
#[inline(always)]
pub fn follow_four(codes: &[u8; BLOCK / 2], scale: u8, g: &[f32; BLOCK], keep: f32) -> [f32; BLOCK] {
    let half = keep * decode_scale(scale) * 0.5;
    let mut m = signed_halves(codes);
    for (m, g) in m.iter_mut().zip(g) {
        *m = m.mul_add(half, *g);
    }
    m
}

/// Codes of one 4-bit block, in halves; zero has no sign.
#[inline(always)]
fn signed_halves(codes: &[u8; BLOCK / 2]) -> [f32; BLOCK] {
    let mut c = [0.0; BLOCK];
    for (c, code) in c.iter_mut().zip(units::unpack(codes)) {
        let magnitude = units::halves(code);
        *c = if code & 8 == 0 { magnitude } else { -magnitude } as f32;
    }
    c
}

/// Rounds one block to 4 bits as `bits` decide.
#[inline(always)]
pub fn encode_four(m: &[f32; BLOCK], bits: &[u32; BLOCK], codes: &mut [u8; BLOCK / 2], scale: &mut u8) {
    *scale = encode_scale(finite_amax(m));
    let inverse = 1.0 / decode_scale(*scale);
    let mut rounded = [0; BLOCK];
    for i in 0..BLOCK {
        rounded[i] = stochastic_code(m[i] * inverse, bits[i]);
    }
    *codes = units::pack(&rounded);
}

/// Moments of one 8-bit block.
#[inline(always)]
pub fn decode_eight(codes: &[i8; BLOCK], scale: u8) -> [f32; BLOCK] {
    let unit = units::power_of_two(scale);
    let mut m = [0.0; BLOCK];
    for (m, code) in m.iter_mut().zip(codes) {
        *m = f32::from(*code) * unit;
    }
    m
}

/// Rounds one block to 8 bits as `bits` decide.
#[inline(always)]
pub fn encode_eight(m: &[f32; BLOCK], bits: &[u32; BLOCK], codes: &mut [i8; BLOCK], scale: &mut u8) {
    let amax = finite_amax(m);
    *scale = if amax > 0.0 { units::exponent_for(amax) } else { 0 };
    let inverse = units::inverse_power_of_two(*scale);
    for i in 0..BLOCK {
        let x = if m[i].is_nan() { 0.0 } else { m[i] };
        codes[i] = units::stochastic(units::hold(x * inverse), bits[i]).clamp(-127, 127) as i8;
    }
}

/// Largest magnitude, the largest finite number at most; NaN counts as zero.
#[inline(always)]
fn finite_amax(m: &[f32; BLOCK]) -> f32 {
    let largest = units::largest_bits(m);
    if largest < 0x7F80_0000 { f32::from_bits(largest) } else { amax_without_nan(m) }
}

#[cold]
fn amax_without_nan(m: &[f32; BLOCK]) -> f32 {
    m.iter().fold(0.0f32, |amax, m| amax.max(m.abs())).min(f32::MAX)
}

/// E2M1 code of `x`, rounded down or up as the upper 22 of `bits` decide; larger than 6 is 6, NaN is zero.
///
/// From 1 on a code is the top of an f32: what lies below its one mantissa bit is the fraction of the
/// step, 22 bits, and random bits added there carry as often as that fraction says. Below 1 the step is
/// that of [1, 2), so there the number is moved into it.
#[inline(always)]
fn stochastic_code(x: f32, bits: u32) -> u32 {
    const SIX: u32 = 6f32.to_bits();
    const ONE: u32 = 1f32.to_bits();
    // Magnitudes in order are their bits in order: comparisons of integers stay in whole registers.
    let a = x.to_bits() & 0x7FFF_FFFF;
    let a = if a > f32::INFINITY.to_bits() { 0 } else { a.min(SIX) };
    let moved = (f32::from_bits(a) + 1.0).to_bits();
    let (a, first) = if a < ONE { (moved, 254) } else { (a, 252) };
    (((a + (bits >> 10)) >> 22) - first) | x.to_bits() >> 28 & 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2m1;

    #[test]
    fn scale_bytes_ascend_and_are_found_again() {
        assert_eq!(f64::from(decode_scale(0)), 2f64.powi(-48));
        assert_eq!(decode_scale(255), 1.75 * 32768.0);
        for byte in 1..=255u8 {
            assert!(decode_scale(byte) > decode_scale(byte - 1));
            assert_eq!(encode_scale(6.0 * decode_scale(byte)), byte);
            assert_eq!(encode_scale(6.001 * decode_scale(byte - 1)), byte);
        }
        for (amax, byte) in [(0.0, 0), (1e-45, 0), (1e30, 255), (f32::MAX, 255)] {
            assert_eq!(encode_scale(amax), byte);
        }
    }

    #[test]
    fn codes_are_neighbours_and_the_upper_ones_share_is_the_fraction() {
        for (x, lower, share) in [
            (0.125, 0, 0.25),
            (0.75, 1, 0.5),
            (1.0 - 0.25, 1, 0.5),
            (1.25, 2, 0.5),
            (1.875, 3, 0.75),
            (2.25, 4, 0.25),
            (3.5, 5, 0.5),
            (5.5, 6, 0.75),
            (1e-4, 0, 2e-4),
        ] {
            for sign in [0, 8] {
                let signed = if sign == 0 { x } else { -x };
                let codes = (0..1u32 << 22).map(|u| stochastic_code(signed, u << 10));
                let mut ups = 0;
                for code in codes {
                    assert!([lower | sign, (lower + 1) | sign].contains(&code), "{signed}: {code}");
                    ups += u32::from(code == (lower + 1) | sign);
                }
                assert!((f64::from(ups) / 2f64.powi(22) - share).abs() < 2f64.powi(-22), "{signed}: {ups}");
            }
        }
    }

    #[test]
    fn the_grid_stays_and_what_lies_outside_is_the_largest_or_zero() {
        for bits in [0, 1 << 31, u32::MAX] {
            for code in 0..16 {
                assert_eq!(stochastic_code(e2m1::decode(code), bits), u32::from(code));
            }
            for (x, code) in [(7.0, 7), (6.000_000_5, 7), (f32::INFINITY, 7), (-1e30, 15), (1e-45, 0)] {
                assert_eq!(stochastic_code(x, bits), code, "{x}");
            }
            assert_eq!(stochastic_code(f32::NAN, bits) & 7, 0);
        }
    }

    #[test]
    fn zeros_are_bytes_of_zero() {
        let (mut four, mut eight, mut scales) = ([1; BLOCK / 2], [1; BLOCK], [1; 2]);
        encode_four(&[0.0; BLOCK], &[u32::MAX; BLOCK], &mut four, &mut scales[0]);
        encode_eight(&[0.0; BLOCK], &[u32::MAX; BLOCK], &mut eight, &mut scales[1]);
        assert_eq!((four, eight, scales), ([0; BLOCK / 2], [0; BLOCK], [0; 2]));
    }

    #[test]
    fn no_byte_decodes_to_something_that_is_not_finite() {
        for scale in 0..=255 {
            assert!(decode_four(&[0x7F; 8], scale).iter().all(|m| m.is_finite()));
            assert!(decode_eight(&[127; 16], scale).iter().all(|m| m.is_finite()));
        }
    }
}
