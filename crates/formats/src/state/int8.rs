//! Embedding and head while they learn: the 8-bit blocks of `int8_block`, a remainder, a sticky power of two.
//!
//! ```text
//! w = 2^(e - 127) * (c + r / 2^n),   c in -127..=127,  r in -2^(n-1)..2^(n-1)-1,  n = 8, 4 or 0
//! ```
//!
//! Codes and exponents are what the forward pass uses and what is exported; the remainder only
//! accumulates. k = c * 2^n + r is a whole number of units; an update moves it by delta / unit,
//! rounded stochastically, and k splits into the nearest code and what remains, ties upwards. The
//! split is unique, so an unmoved k keeps its bytes. With n = 0 there is no remainder: the code itself
//! is rounded stochastically.
//!
//! **How many bits.** Units of a nibble (the block's largest / 768 to / 2032) are no coarser than those of
//! the byte beside an NVFP4 plane (/ 704 to / 832); units without a remainder (/ 48 to / 127) than those
//! of the nibble there (/ 44 to / 52). So n = 4 belongs to the default recipe and n = 0 to the lean one,
//! at the bytes per parameter that the matrices have.
//!
//! **The exponent is sticky**: it stays, and no value is computed, while the block's farthest, in whole units, is at
//! least 48 codes and no more than the last code and its remainder can hold. Otherwise the largest, not rounded yet, raises
//! or lowers it by the same rule; the new one is the smallest, at least 1, under which the largest is at most 127.
//! After a change the largest is 63.5 or more, so a change is not undone by the next step.
//! Lowering is exact; raising rounds all sixteen stochastically, at once with the update. Only what
//! lies beyond 127 * 2^121 saturates.
//!
//! **Edges**: a block whose exponent is 255 (NaN), or whose update is not finite, is left alone and
//! counted.

use super::draw::{Draws, each_moving_block};
use super::{BLOCK, Push, Tally, units};
use crate::int8_block;

/// Fewest units that the largest weight of a block should have: 48 codes.
#[inline(always)]
pub const fn least<const BITS: u32>() -> i32 {
    48 << BITS
}

/// Most units that a weight can have: the last code with the largest remainder.
#[inline(always)]
pub const fn limit<const BITS: u32>() -> i32 {
    (127 << BITS) + if BITS > 0 { half::<BITS>() - 1 } else { 0 }
}

/// Width of the remainder beside an 8-bit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remainder {
    /// Eight bits.
    Byte,
    /// Four bits: the default.
    Nibble,
    /// None; the code is rounded stochastically: lean.
    None,
}

impl Remainder {
    /// n, for the const parameter of the block functions.
    pub const fn bits(self) -> u32 {
        match self {
            Remainder::Byte => 8,
            Remainder::Nibble => 4,
            Remainder::None => 0,
        }
    }

    /// Bytes of the remainders of `len` weights, a multiple of 16.
    pub const fn bytes(self, len: usize) -> usize {
        len * self.bits() as usize / 8
    }

    /// Bytes of one block: codes, exponent and remainders.
    pub const fn block_bytes(self) -> usize {
        BLOCK + 1 + self.bytes(BLOCK)
    }

    /// Bytes per parameter: 2.0625, 1.5625 or 1.0625.
    pub const fn bytes_per_parameter(self) -> f64 {
        self.block_bytes() as f64 / BLOCK as f64
    }
}

/// The planes of one row, or of any run of whole blocks.
#[derive(Debug)]
pub struct Row<'a> {
    /// Codes of eight bits.
    pub codes: &'a mut [i8],
    /// One E8M0 exponent for each block.
    pub scales: &'a mut [u8],
    /// Remainders: a byte each, two a byte, or empty.
    pub remainders: &'a mut [u8],
}

/// The bytes of one block.
#[derive(Debug)]
pub struct Block<'a> {
    /// Sixteen codes.
    pub codes: &'a mut [i8; BLOCK],
    /// The E8M0 exponent.
    pub scale: &'a mut u8,
    /// Sixteen remainders of BITS bits: 2 * BITS bytes.
    pub remainder: &'a mut [u8],
}

/// Quantises one row: codes and exponents by `int8_block`, remainders to nearest.
///
/// # Panics
/// When the row is no whole number of blocks, or a plane has another length.
pub fn import_row(x: &[f32], remainder: Remainder, row: Row<'_>) {
    check(x.len(), row.codes.len(), row.scales.len(), row.remainders.len(), remainder.bits());
    int8_block::encode_row(x, row.codes, row.scales);
    match remainder {
        Remainder::Byte => import_blocks::<8>(x, row),
        Remainder::Nibble => import_blocks::<4>(x, row),
        Remainder::None => {}
    }
}

/// Stored weights of one row.
///
/// # Panics
/// When the row is no whole number of blocks, or a plane has another length.
pub fn decode_row(codes: &[i8], scales: &[u8], remainders: &[u8], remainder: Remainder, out: &mut [f32]) {
    match remainder {
        Remainder::Byte => decode_blocks::<8>(codes, scales, remainders, out),
        Remainder::Nibble => decode_blocks::<4>(codes, scales, remainders, out),
        Remainder::None => decode_blocks::<0>(codes, scales, remainders, out),
    }
}

/// w += delta for one row; `first` is the index of its first element in the tensor.
///
/// # Panics
/// When the row is no whole number of blocks, a plane has another length, or `first` begins no block.
pub fn update_row(row: Row<'_>, remainder: Remainder, delta: &[f32], draws: &Draws, first: u64) -> Tally {
    match remainder {
        Remainder::Byte => update_blocks::<8>(row, delta, draws, first),
        Remainder::Nibble => update_blocks::<4>(row, delta, draws, first),
        Remainder::None => update_blocks::<0>(row, delta, draws, first),
    }
}

/// Stored weights of one block.
#[inline(always)]
pub fn decode_block<const BITS: u32>(codes: &[i8; BLOCK], scale: u8, remainder: &[u8]) -> [f32; BLOCK] {
    values::<BITS>(&join::<BITS>(codes, &units::read::<BITS>(remainder)), scale)
}

/// Moves the weights, rounded by `bits`; see the module for the rules.
#[inline(always)]
pub fn update_block<const BITS: u32>(block: Block<'_>, push: &Push<'_>, bits: &[u32; BLOCK]) -> Tally {
    let k = join::<BITS>(block.codes, &units::read::<BITS>(block.remainder));
    let unit = int8_block::decode_scale(*block.scale) / (1 << BITS) as f32;
    let mut new = push.whole_units(&k, unit, bits);
    for (new, k) in new.iter_mut().zip(&k) {
        *new += k;
    }
    let stays = (least::<BITS>()..=limit::<BITS>()).contains(&units::fold(new.map(i32::abs), i32::max));
    let (scale, new, saturated) = if stays {
        (*block.scale, new, 0)
    } else {
        match in_values::<BITS>(&k, *block.scale, push, bits) {
            Ok(moved) => moved,
            Err(tally) => return tally,
        }
    };
    let (mut rest, mut changed) = ([0; BLOCK], 0);
    for i in 0..BLOCK {
        let code = (new[i] + half::<BITS>()) >> BITS;
        rest[i] = new[i] - (code << BITS);
        changed += u32::from(code != i32::from(block.codes[i]));
        block.codes[i] = code as i8;
    }
    let rescaled = u64::from(scale != *block.scale);
    *block.scale = scale;
    units::write::<BITS>(&rest, block.remainder);
    Tally { changed: u64::from(changed), rescaled, saturated, ..Tally::default() }
}

/// The exponent and the whole units of a block whose exponent may change, and how many were held; or what
/// there is to tell of a block that stays as it is.
#[inline(always)]
fn in_values<const BITS: u32>(
    k: &[i32; BLOCK],
    old: u8,
    push: &Push<'_>,
    bits: &[u32; BLOCK],
) -> Result<(u8, [i32; BLOCK], u64), Tally> {
    let mut w = values::<BITS>(k, old);
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
    let scale = next_scale::<BITS>(old, f32::from_bits(largest));
    // Under the old scale only the update is rounded: what is stored is whole already.
    let (origin, moves) = if scale == old { (*k, delta) } else { ([0; BLOCK], w) };
    let (per_code, limit) = (units::inverse_power_of_two(scale), limit::<BITS>());
    let (mut new, mut saturated) = ([0; BLOCK], 0);
    for i in 0..BLOCK {
        let t = units::hold(moves[i] * per_code * (1 << BITS) as f32);
        let wanted = origin[i] + units::stochastic(t, bits[i]);
        new[i] = wanted.clamp(-limit, limit);
        saturated += u32::from(new[i] != wanted);
    }
    Ok((scale, new, u64::from(saturated)))
}

/// Half a code in units; nothing without a remainder.
#[inline(always)]
const fn half<const BITS: u32>() -> i32 {
    (1 << BITS) >> 1
}

#[inline(always)]
fn join<const BITS: u32>(codes: &[i8; BLOCK], rest: &[i32; BLOCK]) -> [i32; BLOCK] {
    let mut k = [0; BLOCK];
    for i in 0..BLOCK {
        k[i] = (i32::from(codes[i]) << BITS) + rest[i];
    }
    k
}

#[inline(always)]
fn values<const BITS: u32>(k: &[i32; BLOCK], scale: u8) -> [f32; BLOCK] {
    let code = int8_block::decode_scale(scale);
    let mut w = [0.0; BLOCK];
    for (w, k) in w.iter_mut().zip(k) {
        *w = *k as f32 / (1 << BITS) as f32 * code;
    }
    w
}

/// The exponent for a block whose largest magnitude is `amax`: the old one while it serves.
#[inline(always)]
fn next_scale<const BITS: u32>(old: u8, amax: f32) -> u8 {
    let code = int8_block::decode_scale(old);
    let chosen = units::exponent_for(amax);
    let codes = |units: i32| units as f32 / (1 << BITS) as f32 * code;
    let leaves =
        (amax > codes(limit::<BITS>()) && chosen > old) || (amax < codes(least::<BITS>()) && chosen < old);
    if leaves { chosen } else { old }
}

#[inline(always)]
fn check(len: usize, codes: usize, scales: usize, remainders: usize, bits: u32) {
    assert_eq!(len % BLOCK, 0, "a row is whole blocks");
    assert_eq!(codes, len, "codes");
    assert_eq!(scales, len / BLOCK, "scales");
    assert_eq!(remainders, len * bits as usize / 8, "remainders");
}

fn import_blocks<const BITS: u32>(x: &[f32], row: Row<'_>) {
    let planes = row.codes.as_chunks::<BLOCK>().0.iter().zip(row.scales.iter());
    let remainders = row.remainders.chunks_exact_mut(2 * BITS as usize);
    for ((x, (codes, scale)), remainder) in x.as_chunks::<BLOCK>().0.iter().zip(planes).zip(remainders) {
        let per_code = if *scale == 255 { 0.0 } else { units::inverse_power_of_two(*scale) };
        let mut rest = [0; BLOCK];
        for i in 0..BLOCK {
            let k = units::nearest(units::hold(x[i] * per_code * (1 << BITS) as f32));
            rest[i] = (k - (i32::from(codes[i]) << BITS)).clamp(-half::<BITS>(), half::<BITS>() - 1);
        }
        if *scale == 255 {
            rest = [0; BLOCK];
        }
        units::write::<BITS>(&rest, remainder);
    }
}

#[inline(always)]
fn decode_blocks<const BITS: u32>(codes: &[i8], scales: &[u8], remainders: &[u8], out: &mut [f32]) {
    check(out.len(), codes.len(), scales.len(), remainders.len(), BITS);
    let planes = codes.as_chunks().0.iter().zip(scales);
    for (i, (out, (codes, scale))) in out.as_chunks_mut().0.iter_mut().zip(planes).enumerate() {
        *out = decode_block::<BITS>(codes, *scale, units::part::<BITS>(remainders, i));
    }
}

#[inline(always)]
fn update_blocks<const BITS: u32>(row: Row<'_>, delta: &[f32], draws: &Draws, first: u64) -> Tally {
    check(delta.len(), row.codes.len(), row.scales.len(), row.remainders.len(), BITS);
    let codes = row.codes.as_chunks_mut().0;
    each_moving_block(draws, first, delta, |index, delta, bits| {
        let remainder = units::part_mut::<BITS>(row.remainders, index);
        let block = Block { codes: &mut codes[index], scale: &mut row.scales[index], remainder };
        update_block::<BITS>(block, &Push::by(delta), bits)
    })
}
