//! One block of a weight that learns: its units, the split into code and remainder, the sticky scale.

use super::super::{BLOCK, Push, Tally, units};
use crate::e4m3;

/// The bytes of one block.
#[derive(Debug)]
pub struct Block<'a> {
    /// Sixteen E2M1 codes, the even index in the low nibble.
    pub codes: &'a mut [u8; BLOCK / 2],
    /// The E4M3 scale.
    pub scale: &'a mut u8,
    /// Sixteen remainders of BITS bits: 2 * BITS bytes.
    pub remainder: &'a mut [u8],
}

/// Stored weights: codes and remainders.
#[inline(always)]
pub fn decode_block<const BITS: u32>(
    codes: &[u8; BLOCK / 2],
    scale: u8,
    remainder: &[u8],
    tensor_scale: f32,
) -> [f32; BLOCK] {
    let k = join::<BITS>(&units::unpack(codes), &units::read::<BITS>(remainder));
    values::<BITS>(&k, scale, tensor_scale)
}

/// Weights of the forward pass: the codes alone, bit for bit `nvfp4::decode_row` but for the sign of zero.
#[inline(always)]
pub fn forward_block(codes: &[u8; BLOCK / 2], scale: u8, tensor_scale: f32) -> [f32; BLOCK] {
    let (unit, mut w) = (e4m3::decode(scale) / per_one::<8>() as f32, [0.0; BLOCK]);
    for (w, code) in w.iter_mut().zip(units::unpack(codes)) {
        *w = code_units::<8>(code) as f32 * unit * tensor_scale;
    }
    w
}

/// Remainders of `x` under codes and scale that a quantiser chose for it: those of the unit it lies in.
#[inline(always)]
pub fn import_block<const BITS: u32>(
    x: &[f32; BLOCK],
    codes: &[u8; BLOCK / 2],
    scale: u8,
    tensor_scale: f32,
    remainder: &mut [u8],
) {
    let inverse = per_one::<BITS>() as f32 / e4m3::decode(scale);
    let mut rest = [0; BLOCK];
    if inverse.is_finite() {
        let codes = units::unpack(codes);
        for i in 0..BLOCK {
            let t = units::hold(x[i] * (1.0 / tensor_scale) * inverse);
            let whole = t as i32;
            let beyond = t - whole as f32;
            // Between two units neighbours go to either side, so that nothing leans.
            let k = whole - i32::from(beyond < 0.0 || beyond == 0.0 && i % 2 == 1);
            rest[i] = (k - code_units::<BITS>(codes[i])).clamp(-per_one::<BITS>(), per_one::<BITS>() - 1);
        }
    }
    units::write::<BITS>(&rest, remainder);
}

/// Moves the weights, rounded by `bits`; see the module for the rules.
#[inline(always)]
pub fn update_block<const BITS: u32>(
    block: Block<'_>,
    tensor_scale: f32,
    push: &Push<'_>,
    bits: &[u32; BLOCK],
) -> Tally {
    let k = join::<BITS>(&units::unpack(block.codes), &units::read::<BITS>(block.remainder));
    let unit = e4m3::decode(*block.scale) / per_one::<BITS>() as f32 * tensor_scale;
    let mut new = push.whole_units(&k, unit, bits);
    for (new, k) in new.iter_mut().zip(&k) {
        *new += k;
    }
    let (scale, new, saturated) = if stays::<BITS>(farthest(&new)) {
        (*block.scale, new, 0)
    } else {
        match in_values::<BITS>(&k, *block.scale, tensor_scale, push, bits) {
            Ok(moved) => moved,
            Err(tally) => return tally,
        }
    };
    let kept = scale == *block.scale;
    if kept && new == k {
        return Tally { saturated, ..Tally::default() };
    }
    let (codes, rest) = split::<BITS>(&new);
    let packed = units::pack(&codes);
    let changed = units::nibbles_changed(block.codes, &packed);
    (*block.codes, *block.scale) = (packed, scale);
    units::write::<BITS>(&rest, block.remainder);
    Tally { changed, rescaled: u64::from(!kept), saturated, ..Tally::default() }
}

/// Whole units of the farthest weight's magnitude, which is half a unit more.
#[inline(always)]
fn farthest(k: &[i32; BLOCK]) -> i32 {
    units::fold(k.map(|k| k ^ (k >> 31)), i32::max)
}

/// Whether the scale stays under a block whose farthest is this: near six or four.
#[inline(always)]
fn stays<const BITS: u32>(farthest: i32) -> bool {
    let half = per_one::<BITS>() / 2;
    let near = |code: i32| ((2 * code - 1) * half..(2 * code + 1) * half).contains(&farthest);
    near(6) || near(4)
}

/// The scale and the whole units of a block whose scale may change, and how many were held; or what there is
/// to tell of a block that stays as it is.
#[inline(always)]
fn in_values<const BITS: u32>(
    k: &[i32; BLOCK],
    old: u8,
    tensor_scale: f32,
    push: &Push<'_>,
    bits: &[u32; BLOCK],
) -> Result<(u8, [i32; BLOCK], u64), Tally> {
    let mut w = values::<BITS>(k, old, tensor_scale);
    let delta = push.values(&w);
    if !units::any(&delta) {
        return Err(Tally::default());
    }
    for (w, delta) in w.iter_mut().zip(&delta) {
        *w += delta;
    }
    let largest = units::largest_bits(&w);
    if largest >= 0x7F80_0000 {
        return Err(Tally { refused: 1, ..Tally::default() });
    }
    let scale = next_scale(old, f32::from_bits(largest), tensor_scale);
    // Under the old scale only the update is rounded: what is stored is whole already.
    let (origin, moves, half) = if scale == old { (*k, delta, 0.0) } else { ([0; BLOCK], w, 0.5) };
    let (new, saturated) = advance::<BITS>(&origin, (&moves, half), scale, tensor_scale, bits);
    Ok((scale, new, saturated))
}

/// U: units in one block scale.
#[inline(always)]
const fn per_one<const BITS: u32>() -> i32 {
    1 << (BITS - 1)
}

/// Whole units of each weight.
#[inline(always)]
fn join<const BITS: u32>(codes: &[u32; BLOCK], rest: &[i32; BLOCK]) -> [i32; BLOCK] {
    let mut k = [0; BLOCK];
    for i in 0..BLOCK {
        k[i] = code_units::<BITS>(codes[i]) + rest[i];
    }
    k
}

/// Units of a code.
#[inline(always)]
fn code_units<const BITS: u32>(code: u32) -> i32 {
    let magnitude = units::halves(code) * (per_one::<BITS>() / 2);
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Nearest code and what remains.
#[inline(always)]
fn split<const BITS: u32>(k: &[i32; BLOCK]) -> ([u32; BLOCK], [i32; BLOCK]) {
    let unit = per_one::<BITS>();
    let (mut codes, mut rest) = ([0; BLOCK], [0; BLOCK]);
    for i in 0..BLOCK {
        let a = k[i] ^ (k[i] >> 31);
        // One comparison per midpoint; half a unit more than `a` is on none of them.
        let magnitude = u32::from(4 * a >= unit)
            + u32::from(4 * a >= 3 * unit)
            + u32::from(4 * a >= 5 * unit)
            + u32::from(4 * a >= 7 * unit)
            + u32::from(2 * a >= 5 * unit)
            + u32::from(2 * a >= 7 * unit)
            + u32::from(a >= 5 * unit);
        codes[i] = magnitude | if k[i] < 0 && magnitude > 0 { 8 } else { 0 };
        rest[i] = k[i] - code_units::<BITS>(codes[i]);
    }
    (codes, rest)
}

/// The weights that whole units stand for: ((k + 1/2) * s) * g, rounded once.
#[inline(always)]
fn values<const BITS: u32>(k: &[i32; BLOCK], scale: u8, tensor_scale: f32) -> [f32; BLOCK] {
    let unit = e4m3::decode(scale) / per_one::<BITS>() as f32;
    let mut w = [0.0; BLOCK];
    for (w, k) in w.iter_mut().zip(k) {
        *w = (*k as f32 + 0.5) * unit * tensor_scale;
    }
    w
}

/// The scale byte for a block whose largest magnitude is `amax`: the old one while it serves.
#[inline(always)]
fn next_scale(old: u8, amax: f32, tensor_scale: f32) -> u8 {
    let s = e4m3::decode(old).abs() * tensor_scale;
    let near = |code: f32| amax >= (code - 0.5) * s && amax <= (code + 0.5) * s;
    if near(6.0) || near(4.0) {
        return old;
    }
    let chosen = e4m3::encode((amax / 6.0 / tensor_scale).clamp(e4m3::MIN_NORMAL, e4m3::MAX));
    let serves = if amax > 6.5 * s { chosen > old & 0x7F } else { chosen < old & 0x7F };
    if serves { chosen } else { old }
}

/// origin + moves / unit - half in whole units, held in range; also how many were held.
#[inline(always)]
fn advance<const BITS: u32>(
    origin: &[i32; BLOCK],
    (moves, half): (&[f32; BLOCK], f32),
    scale: u8,
    tensor_scale: f32,
    bits: &[u32; BLOCK],
) -> ([i32; BLOCK], u64) {
    let (per_tensor, per_unit) = (1.0 / tensor_scale, per_one::<BITS>() as f32 / e4m3::decode(scale));
    let limit = 7 * per_one::<BITS>() - 1;
    let mut k = [0; BLOCK];
    let mut saturated = 0;
    for i in 0..BLOCK {
        let t = units::hold(moves[i] * per_tensor * per_unit - half);
        let wanted = origin[i] + units::stochastic(t, bits[i]);
        k[i] = wanted.clamp(!limit, limit);
        saturated += u32::from(k[i] != wanted);
    }
    (k, u64::from(saturated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_is_exact_nearest_and_odd<const BITS: u32>() {
        let unit = per_one::<BITS>();
        for k in -7 * unit..7 * unit {
            let ([code, mirrored, ..], [rest, mirrored_rest, ..]) =
                split::<BITS>(&std::array::from_fn(|i| if i == 0 { k } else { !k }));
            assert!((-unit..unit).contains(&rest), "{k}: {rest}");
            assert_eq!(join::<BITS>(&[code; BLOCK], &[rest; BLOCK])[0], k);
            assert_eq!(code_units::<BITS>(code), -code_units::<BITS>(mirrored));
            assert_eq!(rest, !mirrored_rest);
            // In half units, of which k has an odd number: there are no ties.
            let distance = |code: u32| (2 * k + 1 - 2 * code_units::<BITS>(code)).abs();
            assert!((0..16).all(|other| distance(other) >= distance(code)), "{k}");
        }
    }

    #[test]
    fn every_number_of_units_splits_into_its_nearest_code_and_back() {
        split_is_exact_nearest_and_odd::<8>();
        split_is_exact_nearest_and_odd::<4>();
    }

    #[test]
    fn the_scale_is_kept_while_the_largest_is_near_six_or_four() {
        let byte = e4m3::encode(2.0);
        for amax in [3.5, 4.0, 4.5, 5.5, 6.0, 6.5] {
            assert_eq!(next_scale(byte, 2.0 * amax, 1.0), byte);
        }
        for (amax, scale) in [(6.51, 2.25), (5.49, 1.875), (4.51, 1.5), (3.49, 1.125)] {
            assert_eq!(e4m3::decode(next_scale(byte, 2.0 * amax, 1.0)), scale, "{amax}");
        }
    }

    #[test]
    fn a_scale_just_chosen_is_kept() {
        for old in 0x09..0x7E {
            for amax in [0.01, 3.4, 4.6, 5.45, 6.55, 7.0, 50.0].map(|codes| codes * e4m3::decode(old)) {
                let chosen = next_scale(old, amax, 1.0);
                // Also when the largest moves by a hundredth.
                for moved in [0.99, 1.01] {
                    assert_eq!(next_scale(chosen, amax * moved, 1.0), chosen, "{old:#x} {amax} {moved}");
                }
            }
        }
    }

    #[test]
    fn scales_at_the_ends_stay() {
        assert_eq!(next_scale(0x08, 0.0, 1.0), 0x08);
        assert_eq!(next_scale(0x03, 1e-9, 1.0), 0x03);
        assert_eq!(next_scale(0x7E, 1e9, 1.0), 0x7E);
    }
}
