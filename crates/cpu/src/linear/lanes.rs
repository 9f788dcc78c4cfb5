//! The kernel in plain Rust over 16 lanes: scalar, NEON and AVX2 by the compiler's hand.

use halfbyte_ops::WeightFormat;
use halfbyte_ops::dot::GROUP;
use halfbyte_ops::tensor::{PANEL, UNIT};

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
