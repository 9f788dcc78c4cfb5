//! f16 (IEEE binary16): decoding is exact; encoding rounds to nearest, ties to even.
//!
//! Subnormals are kept, what rounds above 65504 becomes infinite, NaN keeps sign and upper payload
//! and is quiet. Both directions are selects without branches, so loops over them vectorise.

/// Nearest f16, ties to even.
#[inline(always)]
pub fn encode(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let a = bits & 0x7FFF_FFFF;
    // Exponent bias 127 becomes 15; 13 mantissa bits are rounded off. The carry may reach infinity.
    let normal = a.wrapping_sub(112 << 23).wrapping_add(0xFFF + (a >> 13 & 1)) >> 13;
    // 0.5 has steps of 2^-24, so the sum's low bits count subnormal steps, rounded to even.
    let subnormal = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7E00 | (a >> 13 & 0x3FF);
    let magnitude = if a > 0x7F80_0000 {
        nan
    } else if a >= 0x4780_0000 {
        0x7C00
    } else if a < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    (sign | magnitude) as u16
}

/// Exact value.
#[inline(always)]
pub fn decode(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let a = u32::from(bits & 0x7FFF) << 13;
    let normal = a + (112 << 23);
    let special = a + (224 << 23);
    // As if normal with exponent 2^-14, then the implied leading bit is taken off again.
    let subnormal = (f32::from_bits(a + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let magnitude = if a >= 0x0F80_0000 {
        special
    } else if a < 0x0080_0000 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_decoding_and_encoding() {
        for bits in 0..=u16::MAX {
            let quiet = if decode(bits).is_nan() { 0x200 } else { 0 };
            assert_eq!(encode(decode(bits)), bits | quiet, "{bits:#x}");
        }
    }

    #[test]
    fn values_follow_the_definition() {
        for bits in 0..0x7C00u16 {
            let (exponent, mantissa) = (i32::from(bits >> 10), f64::from(bits & 0x3FF));
            let value = if exponent == 0 {
                mantissa * 2f64.powi(-24)
            } else {
                (1024.0 + mantissa) * 2f64.powi(exponent - 25)
            };
            assert_eq!(f64::from(decode(bits)), value, "{bits:#x}");
            assert_eq!(f64::from(decode(bits | 0x8000)), -value);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_their_neighbours_do_not() {
        for bits in 0..0x7BFFu16 {
            let middle = (decode(bits) + decode(bits + 1)) / 2.0;
            assert_eq!(encode(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(encode(middle.next_down()), bits);
            assert_eq!(encode(middle.next_up()), bits + 1);
        }
    }

    #[test]
    fn overflow_is_infinite_and_every_nan_stays_nan() {
        assert_eq!(encode(65519.0), 0x7BFF);
        assert_eq!(encode(65520.0), 0x7C00);
        assert_eq!(encode(-1e30), 0xFC00);
        assert_eq!(encode(f32::INFINITY), 0x7C00);
        for payload in [0x7F80_0001, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF] {
            assert!(decode(encode(f32::from_bits(payload))).is_nan());
        }
        assert_eq!(encode(-0.0), 0x8000);
        assert_eq!(encode(f32::from_bits(1)), 0);
    }
}
