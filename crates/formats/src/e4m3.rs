//! E4M3FN: sign, four exponent bits (bias 7), three mantissa bits; UE4M3 is the same with sign 0.
//!
//! Exponent 0 holds multiples of 2^-9, the largest value is 448 (0x7E), 0x7F and 0xFF are NaN and
//! there is no infinity: everything above 448, infinities too, saturates.

/// Largest value, byte 0x7E.
pub const MAX: f32 = 448.0;
/// Smallest normal value 2^-6, byte 0x08.
pub const MIN_NORMAL: f32 = 0.015625;
/// Smallest positive value 2^-9, byte 0x01.
pub const MIN_POSITIVE: f32 = 0.001953125;
/// The positive NaN.
pub const NAN: u8 = 0x7F;

const VALUES: [f32; 256] = values();

/// Nearest value, ties to even, saturating at 448. NaN keeps its sign.
#[inline]
pub fn encode(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let a = x.abs();
    if a.is_nan() {
        return sign | NAN;
    }
    let a = if a < MAX { a } else { MAX };
    let magnitude = if a < MIN_NORMAL {
        // 2^14 has steps of 2^-9, so the sum's low bits count them, rounded to even.
        (a + 16384.0).to_bits() - 16384.0f32.to_bits()
    } else {
        let bits = a.to_bits();
        // Exponent bias 127 becomes 7; 20 mantissa bits are rounded off.
        ((bits + 0x7_FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | magnitude as u8
}

/// Exact value of `byte`.
#[inline]
pub fn decode(byte: u8) -> f32 {
    VALUES[usize::from(byte)]
}

const fn values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut byte = 0u32;
    while byte < 256 {
        let (exponent, mantissa) = (byte >> 3 & 15, byte & 7);
        let magnitude = if byte & 0x7F == 0x7F {
            f32::NAN
        } else if exponent == 0 {
            mantissa as f32 * MIN_POSITIVE
        } else {
            f32::from_bits((exponent + 120) << 23 | mantissa << 20)
        };
        values[byte as usize] = if byte < 128 { magnitude } else { -magnitude };
        byte += 1;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_decoding_and_encoding() {
        for byte in 0..=255u8 {
            assert_eq!(encode(decode(byte)), byte, "{byte:#x}");
        }
    }

    #[test]
    fn landmarks_have_their_values() {
        assert_eq!(decode(0x7E), 448.0);
        assert_eq!(decode(0x08), MIN_NORMAL);
        assert_eq!(decode(0x01), MIN_POSITIVE);
        assert_eq!(decode(0x38), 1.0);
        assert_eq!(decode(0xB8), -1.0);
        assert!(decode(0x7F).is_nan() && decode(0xFF).is_nan());
        assert!(decode(0x80).is_sign_negative());
    }

    #[test]
    fn midpoints_go_to_the_even_byte_and_their_neighbours_do_not() {
        for byte in 0..0x7Eu8 {
            let middle = (decode(byte) + decode(byte + 1)) / 2.0;
            assert_eq!(encode(middle), byte + (byte & 1), "{byte:#x}");
            assert_eq!(encode(middle.next_down()), byte);
            assert_eq!(encode(middle.next_up()), byte + 1);
            assert_eq!(encode(-middle), 0x80 | (byte + (byte & 1)));
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_nan_stays_nan() {
        for x in [448.1, 464.0, 1e30, f32::INFINITY] {
            assert_eq!(encode(x), 0x7E);
            assert_eq!(encode(-x), 0xFE);
        }
        assert_eq!(encode(f32::NAN.copysign(1.0)), 0x7F);
        assert_eq!(encode(f32::NAN.copysign(-1.0)), 0xFF);
        assert_eq!(encode(f32::from_bits(1)), 0);
        assert_eq!(encode(-0.0), 0x80);
    }
}
