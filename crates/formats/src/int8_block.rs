//! 8-bit blocks for embedding and head: 16 values share a power of two.
//!
//! value = code * 2^(e - 127),  code in -127..=127,  e the E8M0 byte of the block
//!
//! e is the smallest exponent for which the largest magnitude still rounds (to even) to 127 or
//! less, so the largest code is at least 64 and quantising decoded values changes no byte. e is at
//! least 1: every decoded value is then a normal bf16 or zero, which tiles that flush subnormals
//! also read exactly. Zero blocks have e = 1. A block that holds a NaN or an infinity has e = 255
//! (E8M0's NaN) with zero codes and decodes to sixteen NaN. Negative zero becomes zero. A short
//! last block is padded with zeros.

/// Values that share one scale.
pub const BLOCK: usize = 16;

const NAN_SCALE: u8 = 255;

/// Quantises one row.
///
/// # Panics
/// When `codes` is not as long as `x`, or `scales` not `ceil(len / 16)`.
pub fn encode_row(x: &[f32], codes: &mut [i8], scales: &mut [u8]) {
    assert_eq!(codes.len(), x.len(), "codes");
    assert_eq!(scales.len(), x.len().div_ceil(BLOCK), "scales");
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    let (code_blocks, rest_codes) = codes.as_chunks_mut::<BLOCK>();
    for ((block, codes), scale) in blocks.iter().zip(code_blocks).zip(scales.iter_mut()) {
        (*codes, *scale) = encode_block(block);
    }
    if let ([_, ..], Some(scale)) = (rest, scales.last_mut()) {
        let mut padded = [0.0; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        let (codes, last) = encode_block(&padded);
        rest_codes.copy_from_slice(&codes[..rest.len()]);
        *scale = last;
    }
}

/// Values of one row.
///
/// # Panics
/// When `codes` is not as long as `out`, or `scales` not `ceil(len / 16)`.
pub fn decode_row(codes: &[i8], scales: &[u8], out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "codes");
    assert_eq!(scales.len(), out.len().div_ceil(BLOCK), "scales");
    for ((out, codes), scale) in out.chunks_mut(BLOCK).zip(codes.chunks(BLOCK)).zip(scales) {
        let scale = decode_scale(*scale);
        for (value, code) in out.iter_mut().zip(codes) {
            *value = f32::from(*code) * scale;
        }
    }
}

/// Exact value 2^(byte - 127) of an E8M0 byte; 255 is NaN.
#[inline]
pub fn decode_scale(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        NAN_SCALE => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

#[inline]
fn encode_block(x: &[f32; BLOCK]) -> ([i8; BLOCK], u8) {
    let mut largest = 0;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7FFF_FFFF);
    }
    if largest >= 0x7F80_0000 {
        return ([0; BLOCK], NAN_SCALE);
    }
    // The sum carries into the exponent from mantissa 127.5 / 64 on, where 127 is no longer enough.
    // At 249 a code of 64 would already be infinite: the largest numbers there are saturate instead.
    let exponent = ((largest + 0x1_0000) >> 23).saturating_sub(6).clamp(1, 248);
    let inverse = f32::from_bits((254 - exponent) << 23);
    let mut codes = [0; BLOCK];
    for (code, value) in codes.iter_mut().zip(x) {
        // 1.5 * 2^23 has steps of 1: the sum's low byte is the integer, rounded to even.
        *code = ((value * inverse).clamp(-127.0, 127.0) + 12_582_912.0).to_bits() as i8;
    }
    (codes, exponent as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(x: &[f32]) -> (Vec<i8>, Vec<u8>) {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0; x.len().div_ceil(BLOCK)]);
        encode_row(x, &mut codes, &mut scales);
        (codes, scales)
    }

    fn decode(codes: &[i8], scales: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; codes.len()];
        decode_row(codes, scales, &mut out);
        out
    }

    #[test]
    fn the_exponent_is_the_smallest_that_fits() {
        assert_eq!(encode(&[127.0]), (vec![127], vec![127]));
        assert_eq!(encode(&[-127.49]), (vec![-127], vec![127]));
        assert_eq!(encode(&[127.5]), (vec![64], vec![128]));
        assert_eq!(encode(&[1.0]), (vec![64], vec![121]));
        assert_eq!(encode(&[f32::MAX]), (vec![127], vec![248]));
    }

    #[test]
    fn zero_and_tiny_blocks_decode_to_zero() {
        for x in [0.0, -0.0, 1e-45, -5e-39] {
            assert_eq!(encode(&[x; 16]), (vec![0; 16], vec![1]));
        }
        assert_eq!(decode(&[0; 3], &[1]), [0.0; 3]);
    }

    #[test]
    fn nan_and_infinity_make_their_block_nan_and_no_other() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 40];
            x[17] = bad;
            let (codes, scales) = encode(&x);
            assert_eq!(scales, [121, 255, 121]);
            let y = decode(&codes, &scales);
            assert!(y[16..32].iter().all(|v| v.is_nan()));
            assert!(y[..16].iter().chain(&y[32..]).all(|v| *v == 1.0));
            assert_eq!(encode(&y), (codes, scales));
        }
    }

    #[test]
    fn ties_go_to_even_codes() {
        let (codes, _) = encode(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]);
        assert_eq!(codes, [127, 0, 2, 2, 0, -2, -2]);
    }

    #[test]
    fn every_scale_byte_has_its_power_of_two() {
        for byte in 0..255u8 {
            assert_eq!(f64::from(decode_scale(byte)), 2f64.powi(i32::from(byte) - 127));
        }
        assert!(decode_scale(255).is_nan());
    }

    proptest! {
        #[test]
        fn quantising_decoded_values_changes_no_byte(
            bits in prop::collection::vec(any::<u32>(), 0..50),
            exponent in 0u32..254,
        ) {
            // Half the cases mix all magnitudes, half stay within a few binades.
            let x: Vec<f32> = bits.iter().map(|b| match exponent % 2 {
                0 => f32::from_bits(*b),
                _ => f32::from_bits(b & 0x807F_FFFF | (exponent.saturating_sub(b >> 23 & 7)) << 23),
            }).collect();
            let (codes, scales) = encode(&x);
            let y = decode(&codes, &scales);
            for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
                let amax = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let finite = x.iter().all(|v| v.is_finite());
                for (x, y) in x.iter().zip(y) {
                    prop_assert!(!finite || (x - y).abs() <= amax / 127.0 + 1.2e-38);
                    prop_assert!(!finite || crate::bf16::round(*y) == *y);
                }
            }
            prop_assert_eq!(encode(&y), (codes, scales));
        }
    }
}
