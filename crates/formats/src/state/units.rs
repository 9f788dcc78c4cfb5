//! Whole units: rounding a number of them up or down, and codes that are integers in disguise.
//!
//! round(t) = floor(t' + u),  t' = t to the nearest 2^-16,  u uniform in {0, ..., 2^16 - 1} / 2^16
//!
//! **Sixteen random bits are enough.** The mean is t', off by at most 2^-17 units, up as often as down
//! while t changes from step to step. Luck itself deviates by sqrt(t (1 - t)): for t = 10^-4 units
//! a thousand times as much. What is lost for good are updates that stay below 2^-17, which would
//! need 131,072 steps for one unit.
//!
//! A move of less than 64 units, as nearly all are, takes three instructions: its sum with 192 + u has units of 2^-16,
//! and what is whole of it is floor(t + u) + 192: of eight bits, the first of which is set.
//!
//! Written without libm, so that the loops which call it vectorise on every instruction set and give the same
//! bits on all.

use super::BLOCK;

/// 1.5 * 2^23: numbers near it have steps of one.
const SHIFT: f32 = 12_582_912.0;
const SHIFT_BITS: i32 = SHIFT.to_bits() as i32;

/// Far outside every range of units, and well inside what [`stochastic`] can take.
pub(super) const FAR: f32 = 1_048_576.0;

/// The bits of 192, to which luck is added.
pub const LUCK_BASE: u32 = 192f32.to_bits();

/// What is added to a move before [`settled`] takes its whole units: 192, and luck from the upper half of `bits`.
#[inline(always)]
pub(super) fn luck(bits: u32) -> f32 {
    f32::from_bits(LUCK_BASE | bits >> 16)
}

/// Whether a move, of which this is the sum with [`luck`], is less than 64 units: [`settled`] rounds it, and
/// [`stochastic`] any other.
#[inline(always)]
pub(super) fn near(sum: f32) -> bool {
    beyond_near(sum) == 0
}

/// [`near`] for all.
#[inline(always)]
pub(super) fn all_near(sums: &[f32; BLOCK]) -> bool {
    fold(sums.map(beyond_near), |a, b| a | b) == 0
}

/// Zero if the sign and the exponent are those of numbers from 128 to 256.
#[inline(always)]
fn beyond_near(sum: f32) -> u32 {
    (sum.to_bits() ^ LUCK_BASE) >> 23
}

/// Whole units of a near move from its sum with [`luck`]: what the seven upper bits of the mantissa say, of [128, 256).
#[inline(always)]
pub(super) fn settled(sum: f32) -> i32 {
    (sum.to_bits() >> 16 & 0x7F) as i32 - 64
}

/// The squares of sixteen numbers: of every fourth one in a row, then two and two of these sums.
#[inline(always)]
pub(super) fn squares(x: &[f32; BLOCK]) -> f32 {
    let mut sums = [0.0; 4];
    for x in x.as_chunks::<4>().0 {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = x.mul_add(*x, *sum);
        }
    }
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// `t` rounded down or up as the upper half of `bits` decides; |t| is at most `FAR`.
#[inline(always)]
pub(super) fn stochastic(t: f32, bits: u32) -> i32 {
    let shifted = t + SHIFT;
    // The difference is exact, and so is its product with a power of two.
    let part = nearest((t - (shifted - SHIFT)) * 65536.0);
    shifted.to_bits() as i32 - SHIFT_BITS + ((part + (bits >> 16) as i32) >> 16)
}

/// `t` rounded to nearest, ties to even; |t| is at most `FAR`.
#[inline(always)]
pub(super) fn nearest(t: f32) -> i32 {
    (t + SHIFT).to_bits() as i32 - SHIFT_BITS
}

/// `t` held within `FAR`; NaN becomes `-FAR`.
#[inline(always)]
pub(super) fn hold(t: f32) -> f32 {
    let t = if t > -FAR { t } else { -FAR };
    if t < FAR { t } else { FAR }
}

/// All sixteen joined into one, halves onto halves: a chain of maxima or sums would stay scalar.
///
/// They come through memory: otherwise what led to them would be computed in the pairs that are joined
/// last, not in whole registers.
#[inline(always)]
pub(super) fn fold<T: Copy>(x: [T; BLOCK], join: impl Fn(T, T) -> T) -> T {
    let x = std::hint::black_box(x);
    let eight: [T; 8] = std::array::from_fn(|i| join(x[i], x[i + 8]));
    let four: [T; 4] = std::array::from_fn(|i| join(eight[i], eight[i + 4]));
    join(join(four[0], four[2]), join(four[1], four[3]))
}

/// The bits of the largest magnitude: 0x7F80_0000 or more when a number is not finite.
#[inline(always)]
pub(super) fn largest_bits(x: &[f32; BLOCK]) -> u32 {
    fold(x.map(|x| x.to_bits() & 0x7FFF_FFFF), u32::max)
}

/// Whether a number is not zero.
#[inline(always)]
pub(super) fn any(x: &[f32; BLOCK]) -> bool {
    fold(x.map(f32::to_bits), |a, b| a | b) << 1 != 0
}

/// Smallest exponent byte e for which `amax` is at most 127 * 2^(e - 127); 1 to 248, the last for which
/// 127 * 2^(e - 127) is finite.
#[inline(always)]
pub(super) fn exponent_for(amax: f32) -> u8 {
    // The sum carries into the exponent just above mantissa 127 / 64.
    ((amax.to_bits() + 0x1_FFFF) >> 23).saturating_sub(6).clamp(1, 248) as u8
}

/// 2^(byte - 127) for bytes 1 to 248; the others count as the nearest of these.
#[inline(always)]
pub(super) fn power_of_two(byte: u8) -> f32 {
    f32::from_bits(u32::from(byte).clamp(1, 248) << 23)
}

/// 2^(127 - byte): exact for every E8M0 byte but 255, which is NaN and counts as 254.
#[inline(always)]
pub(super) fn inverse_power_of_two(byte: u8) -> f32 {
    f32::from_bits(((254 - u32::from(byte).min(254)) << 23).max(1 << 22))
}

/// Magnitude of an E2M1 code in halves, without a table: 0 1 2 3 4 6 8 12.
#[inline(always)]
pub(super) fn halves(code: u32) -> i32 {
    let m = code & 7;
    (m + u32::from(m >= 5) + u32::from(m >= 6) + 3 * u32::from(m >= 7)) as i32
}

/// Sixteen nibbles from eight bytes, the even index in the low one.
#[inline(always)]
pub(super) fn unpack(bytes: &[u8; BLOCK / 2]) -> [u32; BLOCK] {
    let packed = u64::from_le_bytes(*bytes);
    let mut nibbles = [0; BLOCK];
    for (half, out) in nibbles.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = (packed >> (32 * half)) as u32;
        for (i, nibble) in out.iter_mut().enumerate() {
            *nibble = word >> (4 * i) & 15;
        }
    }
    nibbles
}

/// The low nibbles of sixteen words in eight bytes.
#[inline(always)]
pub(super) fn pack(nibbles: &[u32; BLOCK]) -> [u8; BLOCK / 2] {
    let mut packed = 0;
    for (half, nibbles) in nibbles.as_chunks::<8>().0.iter().enumerate() {
        let placed: [u32; 8] = std::array::from_fn(|i| (nibbles[i] & 15) << (4 * i));
        let four: [u32; 4] = std::array::from_fn(|i| placed[i] | placed[i + 4]);
        packed |= u64::from(four[0] | four[2] | (four[1] | four[3])) << (32 * half);
    }
    packed.to_le_bytes()
}

/// The remainders of block `index` in their plane: 2 * BITS bytes.
#[inline(always)]
pub(super) fn part<const BITS: u32>(plane: &[u8], index: usize) -> &[u8] {
    let bytes = 2 * BITS as usize;
    &plane[index * bytes..(index + 1) * bytes]
}

/// [`part`], to be written.
#[inline(always)]
pub(super) fn part_mut<const BITS: u32>(plane: &mut [u8], index: usize) -> &mut [u8] {
    let bytes = 2 * BITS as usize;
    &mut plane[index * bytes..(index + 1) * bytes]
}

/// Sixteen signed remainders of 8, 4 or no bits.
#[inline(always)]
pub(super) fn read<const BITS: u32>(bytes: &[u8]) -> [i32; BLOCK] {
    let mut rest = [0; BLOCK];
    match BITS {
        8 => {
            let bytes: &[u8; BLOCK] = bytes.as_chunks().0.first().expect("sixteen bytes of remainders");
            for (rest, byte) in rest.iter_mut().zip(bytes) {
                *rest = i32::from(*byte as i8);
            }
        }
        4 => {
            let bytes = bytes.as_chunks().0.first().expect("eight bytes of remainders");
            for (rest, nibble) in rest.iter_mut().zip(unpack(bytes)) {
                *rest = (nibble as i32) << 28 >> 28;
            }
        }
        0 => {}
        _ => panic!("a remainder has 8, 4 or no bits"),
    }
    rest
}

/// The bytes of sixteen signed remainders.
#[inline(always)]
pub(super) fn write<const BITS: u32>(rest: &[i32; BLOCK], bytes: &mut [u8]) {
    match BITS {
        8 => {
            let bytes: &mut [u8; BLOCK] = bytes.as_chunks_mut().0.first_mut().expect("sixteen bytes");
            for (byte, rest) in bytes.iter_mut().zip(rest) {
                *byte = *rest as u8;
            }
        }
        4 => bytes.copy_from_slice(&pack(&rest.map(|rest| rest as u32))),
        0 => {}
        _ => panic!("a remainder has 8, 4 or no bits"),
    }
}

/// How many nibbles differ.
#[inline(always)]
pub(super) fn nibbles_changed(old: &[u8; BLOCK / 2], new: &[u8; BLOCK / 2]) -> u64 {
    let difference = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
    let pairs = difference | difference >> 1;
    u64::from(((pairs | pairs >> 2) & 0x1111_1111_1111_1111).count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2m1;

    #[test]
    fn whole_numbers_never_move() {
        for t in -2000..2000 {
            for bits in [0, 1 << 31, u32::MAX] {
                assert_eq!(stochastic(t as f32, bits), t);
                assert_eq!(nearest(t as f32), t);
            }
        }
        assert_eq!(stochastic(FAR, 0), FAR as i32);
        assert_eq!(stochastic(-FAR, 0), -(FAR as i32));
    }

    #[test]
    fn the_share_of_the_upper_neighbour_is_the_fraction() {
        let small = 2f32.powi(-16);
        for (t, floor, ups) in [
            (2.25, 2, 1 << 14),
            (-2.25, -3, 3 << 14),
            (0.5, 0, 1 << 15),
            (-0.5, -1, 1 << 15),
            (1.5, 1, 1 << 15),
            (1000.0 + 4.0 * small, 1000, 4),
            (small, 0, 1),
            (-small, -1, (1 << 16) - 1),
            // To the nearest 2^-16, either way.
            (0.3, 0, 19661),
            (0.7, 0, 45875),
            (1e-30, 0, 0),
            (-1e-30, -1, 1 << 16),
        ] {
            let rounded: Vec<i32> = (0..1u32 << 16).map(|u| stochastic(t, u << 16)).collect();
            assert_eq!(rounded.iter().filter(|up| **up == floor + 1).count(), ups, "{t}");
            assert!(rounded.iter().all(|near| [floor, floor + 1].contains(near)), "{t}");
        }
    }

    #[test]
    fn a_near_move_is_rounded_as_any_other() {
        for t in [0.0, 0.3, -0.7, 1.5, -2.25, 60.125, 1e-6, -1e-6, -63.0] {
            let mut mean = 0.0;
            for u in 0..1u32 << 16 {
                let sum = t + luck(u << 16);
                assert!(near(sum) && (settled(sum) - stochastic(t, u << 16)).abs() <= 1, "{t}");
                mean += f64::from(settled(sum)) / 65536.0;
            }
            assert!((mean - f64::from(t)).abs() < 1e-5, "{t}: {mean}");
        }
        for t in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 64.0, -65.0] {
            assert!(!near(t + luck(0)));
        }
    }

    #[test]
    fn powers_of_two_have_their_inverses() {
        for byte in 0..255u8 {
            let exact = 2f64.powi(127 - i32::from(byte));
            assert_eq!(f64::from(inverse_power_of_two(byte)), exact);
            assert_eq!(power_of_two(byte), crate::int8_block::decode_scale(byte.clamp(1, 248)));
        }
        for (amax, byte) in [(0.0, 1), (127.0, 127), (127.1, 128), (63.6, 127), (63.5, 126), (f32::MAX, 248)]
        {
            assert_eq!(exponent_for(amax), byte, "{amax}");
        }
    }

    #[test]
    fn far_numbers_and_nan_are_held() {
        assert_eq!(hold(f32::INFINITY), FAR);
        assert_eq!(hold(f32::NEG_INFINITY), -FAR);
        assert_eq!(hold(f32::NAN), -FAR);
        assert_eq!(hold(-3.5), -3.5);
    }

    #[test]
    fn codes_have_their_magnitudes_and_survive_packing() {
        let codes: [u32; BLOCK] = std::array::from_fn(|i| (7 * i as u32 + 3) & 15);
        assert_eq!(unpack(&pack(&codes)), codes);
        for code in 0..16 {
            assert_eq!(halves(code) as f32 / 2.0, e2m1::decode(code as u8).abs());
        }
        let mut other = codes;
        other[3] ^= 8;
        other[12] ^= 5;
        assert_eq!(nibbles_changed(&pack(&codes), &pack(&other)), 2);
    }
}
