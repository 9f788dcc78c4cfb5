//! Four-bit indices into a fixed, uneven table: IQ4_NL, IQ4_XS.

use super::{field, half};

/// The table of both types.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// f16 d, 16 nibble bytes; y = d T[q].
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    spread(field(block, 2), half(block, 0), out);
}

/// f16 d, u16 high scale bits, low scale nibbles[4], codes[128]; y = d (ls - 32) T[q].
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    let high = u16::from_le_bytes(*field(block, 2));
    let low = field::<4, 136>(block, 4);
    let codes = field::<128, 136>(block, 8).as_chunks::<16>().0;
    for (i, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = i32::from((low[i / 2] >> (4 * (i % 2))) & 15);
        let high = i32::from((high >> (2 * i)) & 3);
        spread(&codes[i], scale * ((low | (high << 4)) - 32) as f32, values);
    }
}

/// Low nibble of byte j is value j, high nibble value j + 16.
#[inline(always)]
fn spread(codes: &[u8; 16], scale: f32, out: &mut [f32; 32]) {
    for (j, byte) in codes.iter().enumerate() {
        out[j] = scale * LEVELS[usize::from(byte & 15)];
        out[j + 16] = scale * LEVELS[usize::from(byte >> 4)];
    }
}
