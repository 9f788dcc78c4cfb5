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
    decode_block::<4>(codes, scale, &[0; BLOCK / 2], tensor_scale)
}

/// Remainders, to nearest, of `x` under codes and scale that a quantiser chose for it.
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
            let along = if codes[i] & 8 == 0 { t } else { -t };
            let magnitude = units::halves(codes[i]) * (per_one::<BITS>() / 2);
            rest[i] = (units::nearest(along) - magnitude).clamp(-per_one::<BITS>(), per_one::<BITS>() - 1);
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
    let old_codes = units::unpack(block.codes);
    let old_rest = units::read::<BITS>(block.remainder);
    let k = join::<BITS>(&old_codes, &old_rest);
    let unit = e4m3::decode(*block.scale) / per_one::<BITS>() as f32 * tensor_scale;
    let positions = push.positions::<16>(&k, unit);
    let (scale, new, saturated) = if stays::<BITS>(units::farthest(&positions)) {
        (*block.scale, units::settle::<16>(&positions, bits), 0)
    } else {
        match in_values::<BITS>(&k, *block.scale, tensor_scale, push, bits) {
            Ok(moved) => moved,
            Err(tally) => return tally,
        }
    };
    let kept = scale == *block.scale;
    let (mut codes, mut rest) = split::<BITS>(&new);
    for i in 0..BLOCK {
        let stays = kept && new[i] == k[i];
        codes[i] = if stays { old_codes[i] } else { codes[i] };
        rest[i] = if stays { old_rest[i] } else { rest[i] };
    }
    let packed = units::pack(&codes);
    let changed = units::nibbles_changed(block.codes, &packed);
    (*block.codes, *block.scale) = (packed, scale);
    units::write::<BITS>(&rest, block.remainder);
    Tally { changed, rescaled: u64::from(!kept), saturated, ..Tally::default() }
}

/// Whether the scale stays under a block whose farthest position is this: near six or four.
#[inline(always)]
fn stays<const BITS: u32>(farthest: i32) -> bool {
    let half = per_one::<BITS>() << 15;
    let near = |code: i32| (farthest - 2 * code * half).abs() <= half;
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
    let (origin, moves) = if scale == old { (*k, delta) } else { ([0; BLOCK], w) };
    let (new, saturated) = advance::<BITS>(&origin, &moves, scale, tensor_scale, bits);
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
        let along = units::halves(codes[i]) * (per_one::<BITS>() / 2) + rest[i];
        k[i] = if codes[i] & 8 == 0 { along } else { -along };
    }
    k
}

/// Nearest code and what remains along its sign.
#[inline(always)]
fn split<const BITS: u32>(k: &[i32; BLOCK]) -> ([u32; BLOCK], [i32; BLOCK]) {
    let unit = per_one::<BITS>();
    let (mut codes, mut rest) = ([0; BLOCK], [0; BLOCK]);
    for i in 0..BLOCK {
        let a = k[i].abs();
        // One comparison per midpoint; `>=` where the upper neighbour takes the tie.
        let magnitude = u32::from(4 * a > unit)
            + u32::from(4 * a >= 3 * unit)
            + u32::from(4 * a > 5 * unit)
            + u32::from(4 * a >= 7 * unit)
            + u32::from(2 * a > 5 * unit)
            + u32::from(2 * a >= 7 * unit)
            + u32::from(a >= 5 * unit);
        let along = a - units::halves(magnitude) * (unit / 2);
        let negative = k[i] < 0;
        codes[i] = magnitude | if negative && magnitude > 0 { 8 } else { 0 };
        rest[i] = if negative && magnitude == 0 { -along } else { along };
    }
    (codes, rest)
}

/// The weights that whole units stand for: (k * s) * g, rounded once.
#[inline(always)]
fn values<const BITS: u32>(k: &[i32; BLOCK], scale: u8, tensor_scale: f32) -> [f32; BLOCK] {
    let unit = e4m3::decode(scale) / per_one::<BITS>() as f32;
    let mut w = [0.0; BLOCK];
    for (w, k) in w.iter_mut().zip(k) {
        *w = *k as f32 * unit * tensor_scale;
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

/// origin + moves / unit in whole units, held in range; also how many were held.
#[inline(always)]
fn advance<const BITS: u32>(
    origin: &[i32; BLOCK],
    moves: &[f32; BLOCK],
    scale: u8,
    tensor_scale: f32,
    bits: &[u32; BLOCK],
) -> ([i32; BLOCK], u64) {
    let (per_tensor, per_unit) = (1.0 / tensor_scale, per_one::<BITS>() as f32 / e4m3::decode(scale));
    let limit = 7 * per_one::<BITS>() - 1;
    let mut k = [0; BLOCK];
    let mut saturated = 0;
    for i in 0..BLOCK {
        let t = units::hold(moves[i] * per_tensor * per_unit);
        let wanted = origin[i] + units::stochastic(t, bits[i]);
        k[i] = wanted.clamp(-limit, limit);
        saturated += u32::from(k[i] != wanted);
    }
    (k, u64::from(saturated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_is_exact_nearest_and_odd<const BITS: u32>() {
        let unit = per_one::<BITS>();
        for k in -(7 * unit - 1)..=7 * unit - 1 {
            let ([code, mirrored, ..], [rest, mirrored_rest, ..]) =
                split::<BITS>(&std::array::from_fn(|i| if i == 0 { k } else { -k }));
            let magnitude = |code| units::halves(code) * unit / 2;
            assert!((-unit..unit).contains(&rest), "{k}: {rest}");
            assert_eq!(join::<BITS>(&[code; BLOCK], &[rest; BLOCK])[0], k);
            assert_eq!(magnitude(code), magnitude(mirrored));
            assert_eq!(join::<BITS>(&[mirrored; BLOCK], &[mirrored_rest; BLOCK])[0], -k);
            assert!(
                (0..8).all(|other| (k.abs() - magnitude(other)).abs() >= (k.abs() - magnitude(code)).abs())
            );
        }
        assert_eq!(split::<BITS>(&[5 * unit; BLOCK]).0[0], 7);
        assert_eq!(split::<BITS>(&[-5 * unit; BLOCK]).0[0], 15);
    }

    #[test]
    fn every_number_of_units_splits_into_its_nearest_code_and_back() {
        split_is_exact_nearest_and_odd::<8>();
        split_is_exact_nearest_and_odd::<4>();
    }

    #[test]
    fn ties_go_to_the_even_code_except_at_five() {
        for (k, code) in [(2, 0), (6, 2), (10, 2), (14, 4), (20, 4), (28, 6), (40, 7)] {
            assert_eq!(split::<4>(&[k; BLOCK]).0[0], code, "{k} / 8");
            assert_eq!(split::<8>(&[16 * k; BLOCK]).0[0], code, "{k} / 8");
        }
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
