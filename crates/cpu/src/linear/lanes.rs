//! The kernel in plain Rust over 16 lanes: scalar, NEON and AVX2 by the compiler's hand. And what
//! any kernel without tiles takes: panels and turned activations in f32.

use halfbyte_ops::WeightFormat;
use halfbyte_ops::dot::GROUP;
use halfbyte_ops::tensor::{PANEL, UNIT};

use super::job::{Activations, Panel};
use crate::isa::for_isa;
use crate::panel;

/// sums[t] = panel times token t, for the tokens of `x` (`[t][units * 64]`).
#[inline(always)]
pub(super) fn product(
    format: WeightFormat,
    panel: &[u8],
    units: usize,
    x: &[f32],
    sums: &mut [[f32; PANEL]],
) {
    let mut weights: panel::Decoded = [[0.0; PANEL]; UNIT];
    for (unit, bytes) in panel.chunks_exact(format.unit_bytes()).take(units).enumerate() {
        panel::decode(format, bytes, &mut weights);
        for (x, sums) in x.chunks_exact(units * UNIT).zip(sums.iter_mut()) {
            let x = &x[unit * UNIT..][..UNIT];
            for (x, weights) in x.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP)) {
                group(x, weights, sums);
            }
        }
    }
}

/// sum[lane] += the canonical sum of one group of 32.
#[inline(always)]
pub(crate) fn group(x: &[f32], weights: &[[f32; PANEL]], sum: &mut [f32; PANEL]) {
    let (mut even, mut odd) = ([0.0f32; PANEL], [0.0f32; PANEL]);
    for (x, w) in x.chunks_exact(2).zip(weights.chunks_exact(2)) {
        for lane in 0..PANEL {
            even[lane] = x[0].mul_add(w[0][lane], even[lane]);
            odd[lane] = x[1].mul_add(w[1][lane], odd[lane]);
        }
    }
    for lane in 0..PANEL {
        sum[lane] += even[lane] + odd[lane];
    }
}

for_isa! {
/// A panel decoded to f32, `[inner][16]`, padded with zeros.
pub(super) fn decode_panel(panel: &Panel<'_>, out: &mut [panel::Decoded]) {
    match panel {
        Panel::Rows(format, kept) => {
            for (out, unit) in out.iter_mut().zip(kept.chunks_exact(format.unit_bytes())) {
                panel::decode(*format, unit, out);
            }
        }
        Panel::Columns(weight, first) => {
            let (unit, position) = (first / UNIT, first % UNIT);
            let unit_bytes = weight.format.unit_bytes();
            let mut decoded: panel::Decoded = [[0.0; PANEL]; UNIT];
            for (index, out) in out.as_flattened_mut().chunks_exact_mut(PANEL).enumerate() {
                match weight.panel(index) {
                    Some(kept) => {
                        panel::decode(weight.format, &kept[unit * unit_bytes..][..unit_bytes], &mut decoded);
                        for (lane, out) in out.iter_mut().enumerate() {
                            for (k, out) in out.iter_mut().enumerate() {
                                *out = decoded[position + k][lane];
                            }
                        }
                    }
                    None => out.fill([0.0; PANEL]),
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
}

for_isa! {
/// Channels `first..` of all tokens, each padded with zeros: what was a column is a row.
pub(super) fn channels(x: &Activations<'_>, first: usize, count: usize, out: &mut [f32]) {
    out.fill(0.0);
    let (padded, mut line) = (out.len() / count, [0.0; PANEL]);
    for token in 0..x.tokens {
        x.read(token, first, &mut line[..count]);
        for (row, x) in out.chunks_exact_mut(padded).zip(line) {
            row[token] = x;
        }
    }
}
}
