//! E2M1: sign, two exponent bits, one mantissa bit. Codes 0..7 are 0 .5 1 1.5 2 3 4 6; +8 is negative.
//!
//! There is no NaN and no infinity: large magnitudes saturate at 6 and NaN becomes zero with the
//! NaN's sign. Negative zero is code 8 and stays negative zero.

/// Magnitudes of codes 0 to 7.
pub const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Values of all sixteen codes.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Nearest code, ties to the even code, saturating at 6; NaN gives a signed zero.
#[inline]
pub fn encode(x: f32) -> u8 {
    encode_lane(x) as u8
}

/// `encode` on a 32-bit lane, so that loops over it vectorise without narrowing.
#[inline(always)]
pub(crate) fn encode_lane(x: f32) -> u32 {
    let a = x.abs();
    // One comparison per midpoint; `>=` where the upper neighbour is the even code.
    let magnitude = u32::from(a > 0.25)
        + u32::from(a >= 0.75)
        + u32::from(a > 1.25)
        + u32::from(a >= 1.75)
        + u32::from(a > 2.5)
        + u32::from(a >= 3.5)
        + u32::from(a > 5.0);
    magnitude | (x.to_bits() >> 28) & 8
}

/// Magnitude that `encode` gives to the non-negative `a`.
#[inline(always)]
pub(crate) fn round_magnitude(a: f32) -> f32 {
    // Adding 2^23 steps leaves a multiple of the step, rounded to even; even multiples are even codes.
    let shift = if a < 2.0 {
        4_194_304.0
    } else if a < 4.0 {
        8_388_608.0
    } else {
        16_777_216.0
    };
    let rounded = (a + shift) - shift;
    if rounded < 6.0 { rounded } else { 6.0 }
}

/// Value of the low four bits of `code`.
#[inline]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_decoding_and_encoding() {
        for code in 0..16 {
            assert_eq!(encode(decode(code)), code);
            assert_eq!(decode(code | 0xF0).to_bits(), decode(code).to_bits());
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let ties = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for (x, y) in ties {
            assert_eq!(decode(encode(x)), y, "{x}");
            assert_eq!(decode(encode(-x)), -y, "-{x}");
            // One step to either side of the tie there is no tie.
            assert!(decode(encode(f32::next_up(x))) >= y && decode(encode(f32::next_down(x))) <= y);
        }
    }

    #[test]
    fn large_magnitudes_saturate_and_nan_is_a_signed_zero() {
        assert_eq!(encode(f32::INFINITY), 7);
        assert_eq!(encode(-1e30), 15);
        assert_eq!(encode(f32::NAN.copysign(1.0)), 0);
        assert_eq!(encode(f32::NAN.copysign(-1.0)), 8);
        assert_eq!(encode(-0.0), 8);
        assert_eq!(encode(-1e-30), 8);
    }

    #[test]
    fn no_other_code_is_nearer_than_the_chosen_one() {
        for step in 0..8192 {
            let a = step as f32 / 1024.0;
            let chosen = decode(encode(a));
            assert_eq!(chosen, round_magnitude(a), "{a}");
            for other in MAGNITUDES {
                assert!((a - chosen).abs() <= (a - other).abs(), "{a}");
            }
        }
        assert_eq!(round_magnitude(f32::MAX), 6.0);
    }
}
