//! The kernel in plain Rust over 16 lanes: scalar, NEON and AVX2 by the compiler's hand, but for AVX2's decoding. And what
//! any kernel without tiles takes: panels and turned activations in f32.

use halfbyte_ops::WeightFormat;
use halfbyte_ops::dot::GROUP;
use halfbyte_ops::tensor::{BLOCK, PANEL, UNIT};

use super::job::{Activations, Panel};
use crate::isa::for_isa;
use crate::panel;

/// How 16 positions of a unit are decoded.
pub(super) trait Decode {
    fn block(format: WeightFormat, unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]);

    /// Columns become lines.
    #[inline(always)]
    fn turn(lines: &[[f32; PANEL]; PANEL], out: &mut [[f32; PANEL]; PANEL]) {
        *out = turned(lines);
    }
}

/// By the compiler's hand.
pub(super) struct Compiled;

impl Decode for Compiled {
    #[inline(always)]
    fn block(format: WeightFormat, unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
        panel::decode_block(format, unit, block, out);
    }
}

/// A whole unit.
#[inline(always)]
fn unit_of<D: Decode>(format: WeightFormat, unit: &[u8], out: &mut panel::Decoded) {
    for (block, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        D::block(format, unit, block, out);
    }
}

/// sums[t] += panel times token t, for the tokens of `x` (`[t][units * 64]`).
#[inline(always)]
pub(super) fn product<D: Decode>(
    format: WeightFormat,
    panel: &[u8],
    units: usize,
    x: &[f32],
    sums: &mut [[f32; PANEL]],
) {
    let mut decoded: panel::Decoded = [[0.0; PANEL]; UNIT];
    for (unit, bytes) in panel.chunks_exact(format.unit_bytes()).take(units).enumerate() {
        // Values that lie as floats do are taken where they are.
        let weights = match floats(format, bytes) {
            Some(weights) => weights,
            None => {
                unit_of::<D>(format, bytes, &mut decoded);
                &decoded
            }
        };
        let place = unit * UNIT;
        for (x, sums) in x.chunks(2 * units * UNIT).zip(sums.chunks_mut(2)) {
            for group in (0..UNIT).step_by(GROUP) {
                let (weights, at) = (&weights[group..group + GROUP], place + group);
                match sums {
                    [first, second] if x.len() > units * UNIT => {
                        let other = &x[units * UNIT + at..][..GROUP];
                        self::groups([&x[at..][..GROUP], other], weights, [first, second]);
                    }
                    [first, ..] => self::group(&x[at..][..GROUP], weights, first),
                    [] => {}
                }
            }
        }
    }
}

/// A unit of values as they lie in memory.
#[inline(always)]
fn floats(format: WeightFormat, bytes: &[u8]) -> Option<&panel::Decoded> {
    if format != WeightFormat::F32 {
        return None;
    }
    // SAFETY: any bits are floats.
    let (before, units, _) = unsafe { bytes.align_to::<panel::Decoded>() };
    if before.is_empty() { units.first() } else { None }
}

/// sum[lane] += the canonical sum of one group of 32.
#[inline(always)]
pub(crate) fn group(x: &[f32], weights: &[[f32; PANEL]], sum: &mut [f32; PANEL]) {
    groups([x], weights, [sum]);
}

/// The same for some tokens at once: a chain of sums waits for itself, so there are more of them.
#[inline(always)]
fn groups<const T: usize>(x: [&[f32]; T], weights: &[[f32; PANEL]], sums: [&mut [f32; PANEL]; T]) {
    let [mut even, mut odd] = [[[0.0f32; PANEL]; T]; 2];
    for (k, w) in weights.as_chunks::<2>().0.iter().enumerate() {
        for t in 0..T {
            let (first, second) = (x[t][2 * k], x[t][2 * k + 1]);
            for lane in 0..PANEL {
                even[t][lane] = first.mul_add(w[0][lane], even[t][lane]);
                odd[t][lane] = second.mul_add(w[1][lane], odd[t][lane]);
            }
        }
    }
    for (t, sum) in sums.into_iter().enumerate() {
        for lane in 0..PANEL {
            sum[lane] += even[t][lane] + odd[t][lane];
        }
    }
}

/// Columns become lines.
#[inline(always)]
fn turned(lines: &[[f32; PANEL]; PANEL]) -> [[f32; PANEL]; PANEL] {
    let mut out = [[0.0; PANEL]; PANEL];
    for (i, out) in out.iter_mut().enumerate() {
        for (out, line) in out.iter_mut().zip(lines) {
            *out = line[i];
        }
    }
    out
}

for_isa! {
pub(super) fn decode_panel(panel: &Panel<'_>, out: &mut [panel::Decoded]) {
    decode::<Compiled>(panel, out)
}
}

/// A panel decoded to f32, `[inner][16]`, padded with zeros.
#[inline(always)]
pub(super) fn decode<D: Decode>(panel: &Panel<'_>, out: &mut [panel::Decoded]) {
    match panel {
        Panel::Rows(format, kept) => {
            for (out, unit) in out.iter_mut().zip(kept.chunks_exact(format.unit_bytes())) {
                unit_of::<D>(*format, unit, out);
            }
        }
        Panel::Columns(weight, first) => {
            let (unit, block) = (first / UNIT, first % UNIT / BLOCK);
            let unit_bytes = weight.format.unit_bytes();
            let mut decoded = [[0.0; PANEL]; BLOCK];
            for (index, out) in out.as_flattened_mut().as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
                match weight.panel(index) {
                    Some(kept) => {
                        let unit = &kept[unit * unit_bytes..][..unit_bytes];
                        D::block(weight.format, unit, block, &mut decoded);
                        D::turn(&decoded, out);
                    }
                    None => *out = [[0.0; PANEL]; PANEL],
                }
            }
        }
        Panel::Channels(x, first) => {
            let count = PANEL.min(x.channels - first);
            for (token, out) in out.as_flattened_mut().iter_mut().enumerate() {
                *out = [0.0; PANEL];
                if token < x.tokens {
                    x.read(token, *first, &mut out[..count]);
                }
            }
        }
    }
}

for_isa! {
/// Channels `first..` of all tokens, each padded with zeros: what was a column is a row.
pub(super) fn channels(x: &Activations<'_>, first: usize, count: usize, out: &mut [f32]) {
    let padded = out.len() / count;
    for first_token in (0..padded).step_by(PANEL) {
        let mut lines = [[0.0; PANEL]; PANEL];
        for (token, line) in (first_token..x.tokens).zip(&mut lines) {
            x.read(token, first, &mut line[..count]);
        }
        for (row, x) in out.chunks_exact_mut(padded).zip(turned(&lines)) {
            row[first_token..][..PANEL].copy_from_slice(&x);
        }
    }
}
}
