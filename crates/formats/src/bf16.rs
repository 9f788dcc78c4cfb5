//! bf16: the upper half of an f32. Decoding is exact; encoding rounds to nearest, ties to even.
//!
//! Subnormals are kept, overflow goes to infinity, NaN keeps sign and upper payload and is quiet.

/// Nearest bf16, ties to even.
#[inline(always)]
pub fn encode(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16;
    // The carry of a NaN's payload could reach infinity or zero, so a NaN is cut, not rounded.
    let quiet = (bits >> 16) as u16 | 0x40;
    if x.is_nan() { quiet } else { rounded }
}

/// Exact value.
#[inline(always)]
pub fn decode(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to the precision of bf16.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    decode(encode(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_decoding_and_encoding() {
        for bits in 0..=u16::MAX {
            let quiet = if decode(bits).is_nan() { 0x40 } else { 0 };
            assert_eq!(encode(decode(bits)), bits | quiet);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_their_neighbours_do_not() {
        for bits in (0..0x7F80u16).step_by(7) {
            let middle = f32::from_bits(u32::from(bits) << 16 | 0x8000);
            assert_eq!(encode(middle), bits + (bits & 1));
            assert_eq!(encode(middle.next_down()), bits);
            assert_eq!(encode(middle.next_up()), bits + 1);
            assert_eq!(encode(-middle), 0x8000 | (bits + (bits & 1)));
        }
    }

    #[test]
    fn overflow_is_infinite_and_every_nan_stays_nan() {
        assert_eq!(encode(f32::MAX), 0x7F80);
        assert_eq!(encode(f32::NEG_INFINITY), 0xFF80);
        for payload in [0x7F80_0001, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF] {
            assert!(round(f32::from_bits(payload)).is_nan());
        }
        assert_eq!(encode(-0.0), 0x8000);
    }
}
