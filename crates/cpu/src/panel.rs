//! The layout of weights and caches: 16 lanes side by side, so one register serves 16 outputs.
//!
//! weight = 64 bytes (f32 scale, rest free), then panels of 16 rows; panel = units of 64 inner
//! positions; unit = scales, then values:
//!
//! | format | scales | values |
//! |---|---|---|
//! | nvfp4 | `[4 blocks][16 rows]` E4M3 | `[8][16 rows]` dwords: nibble i of dword j is position 8 j + i |
//! | int8 | `[4 blocks][16 rows]` E8M0 | `[64][16 rows]` |
//! | bf16 | | `[32 pairs][16 rows][2]`: the AMX tile as it is |
//! | f32 | | `[64][16 rows]` |
//!
//! A unit is a whole number of cache lines in every format, and a panel one stream.

use halfbyte_formats::{bf16, e4m3};
use halfbyte_ops::tensor::{BLOCK, PANEL, UNIT};
use halfbyte_ops::{Result, Weight, WeightFormat, WeightRows};

use crate::arena::Place;
use crate::strips;

pub(crate) use halfbyte_ops::panels::HEADER;

/// Values of a decoded unit: `[64][16]`.
pub(crate) type Decoded = [[f32; PANEL]; UNIT];

/// Lays `rows` out from panel `first_row / 16` on.
pub(crate) fn write(
    weight: &Weight,
    memory: &mut [u8],
    first_row: usize,
    rows: WeightRows<'_>,
) -> Result<()> {
    let columns = weight.columns;
    let blocks = columns.div_ceil(BLOCK);
    let half = columns.div_ceil(2);
    let count = weight.check_rows(first_row, rows)?;
    if let WeightRows::Nvfp4 { global, .. } = rows {
        memory[..4].copy_from_slice(&global.to_le_bytes());
    }
    let unit_bytes = weight.format.unit_bytes();
    let panel_bytes = columns.div_ceil(UNIT) * unit_bytes;
    let panels = memory[HEADER..].chunks_exact_mut(panel_bytes).skip(first_row / PANEL);
    for (panel, row) in panels.zip((0..count).step_by(PANEL)) {
        let lanes = PANEL.min(count - row);
        for (unit, bytes) in panel.chunks_exact_mut(unit_bytes).enumerate() {
            bytes.fill(0);
            for lane in 0..lanes {
                let (row, k) = (row + lane, unit * UNIT);
                match rows {
                    WeightRows::Values(x) => {
                        let x = &x[row * columns..][..columns][k..columns.min(k + UNIT)];
                        write_values(weight.format, x, lane, bytes);
                    }
                    WeightRows::Int8 { codes, scales } => {
                        write_scales(&scales[row * blocks..][..blocks][k / BLOCK..], lane, bytes);
                        let codes = &codes[row * columns..][..columns][k..columns.min(k + UNIT)];
                        for (i, code) in codes.iter().enumerate() {
                            bytes[UNIT + i * PANEL + lane] = *code as u8;
                        }
                    }
                    WeightRows::Nvfp4 { codes, scales, .. } => {
                        write_scales(&scales[row * blocks..][..blocks][k / BLOCK..], lane, bytes);
                        let codes = &codes[row * half..][..half][k / 2..half.min(k / 2 + UNIT / 2)];
                        for (j, dword) in codes.chunks(4).enumerate() {
                            bytes[UNIT + (j * PANEL + lane) * 4..][..dword.len()].copy_from_slice(dword);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// A row of an encoded weight, in whole blocks, out of its panel. `codes` are those of `WeightRows`, padded.
pub(crate) fn take_row(weight: &Weight, memory: &[u8], row: usize, codes: &mut [u8], scales: &mut [u8]) {
    let (panel, lane) = (&memory[panel_of(weight, row)], row % PANEL);
    let (of_codes, of_scales) = strips::weight(weight.format);
    of_codes.take(panel, lane, codes);
    if let Some(strip) = of_scales {
        strip.take(panel, lane, scales);
    }
}

/// Puts back what [`take_row`] took, or a row of f32 values as codes, which have no scales.
///
/// # Safety
/// Nobody else touches the row's panel.
pub(crate) unsafe fn put_row(weight: &Weight, memory: Place<u8>, row: usize, codes: &[u8], scales: &[u8]) {
    let (panel, lane) = (panel_of(weight, row), row % PANEL);
    // SAFETY: by the caller's promise.
    let panel = unsafe { memory.slice_mut(panel.start, panel.len()) };
    let (of_codes, of_scales) = strips::weight(weight.format);
    of_codes.put(panel, lane, codes);
    if let Some(strip) = of_scales {
        strip.put(panel, lane, scales);
    }
}

/// Where the panel of a row lies.
fn panel_of(weight: &Weight, row: usize) -> std::ops::Range<usize> {
    let bytes = weight.columns.div_ceil(UNIT) * weight.format.unit_bytes();
    let start = HEADER + row / PANEL * bytes;
    start..start + bytes
}

fn write_scales(scales: &[u8], lane: usize, unit: &mut [u8]) {
    for (block, scale) in scales.iter().take(UNIT / BLOCK).enumerate() {
        unit[block * PANEL + lane] = *scale;
    }
}

fn write_values(format: WeightFormat, x: &[f32], lane: usize, unit: &mut [u8]) {
    for (k, x) in x.iter().enumerate() {
        if format == WeightFormat::F32 {
            unit[(k * PANEL + lane) * 4..][..4].copy_from_slice(&x.to_le_bytes());
        } else {
            let at = ((k / 2) * PANEL + lane) * 4 + (k % 2) * 2;
            unit[at..][..2].copy_from_slice(&bf16::encode(*x).to_le_bytes());
        }
    }
}

/// An NVFP4 weight's own scale, 1 for the others.
pub(crate) fn scale(weight: &Weight, memory: &[u8]) -> f32 {
    match weight.format {
        WeightFormat::Nvfp4 => f32::from_le_bytes([memory[0], memory[1], memory[2], memory[3]]),
        _ => 1.0,
    }
}

/// Decodes a unit, for kernels without instructions of their own for the format.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn decode(format: WeightFormat, unit: &[u8], out: &mut Decoded) {
    for (block, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        decode_block(format, unit, block, out);
    }
}

/// Decodes 16 positions of a unit.
#[inline(always)]
pub(crate) fn decode_block(format: WeightFormat, unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    match format {
        WeightFormat::F32 => {
            let values = &unit.as_chunks::<4>().0[block * BLOCK * PANEL..];
            for (out, bytes) in out.as_flattened_mut().iter_mut().zip(values) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        WeightFormat::Bf16 => decode_bf16(&unit[block * BLOCK * PANEL * 2..], out),
        WeightFormat::Int8 => decode_int8(unit, block, out),
        WeightFormat::Nvfp4 => decode_nvfp4(unit, block, out),
    }
}

/// `[pairs][16][2]` bf16 into `[2 pairs][16]`.
#[inline(always)]
pub(crate) fn decode_bf16(pairs: &[u8], out: &mut [[f32; PANEL]]) {
    let (rows, _) = pairs.as_chunks::<64>();
    for (out, row) in out.chunks_exact_mut(2).zip(rows) {
        let (dwords, _) = row.as_chunks::<4>();
        for lane in 0..PANEL {
            let dword = u32::from_le_bytes(dwords[lane]);
            out[0][lane] = f32::from_bits(dword << 16);
            out[1][lane] = f32::from_bits(dword & 0xffff_0000);
        }
    }
}

/// 2^(e - 127); 0 stands for nothing at all.
#[inline(always)]
pub(crate) fn power(e: u8) -> f32 {
    f32::from_bits(u32::from(e) << 23)
}

#[inline(always)]
fn decode_int8(unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    let (scales, codes) = unit.split_at(UNIT);
    let (scales, codes) = (&scales[block * PANEL..][..PANEL], &codes.as_chunks::<PANEL>().0[block * BLOCK..]);
    for (out, codes) in out.iter_mut().zip(codes) {
        for lane in 0..PANEL {
            out[lane] = f32::from(codes[lane] as i8) * power(scales[lane]);
        }
    }
}

/// E2M1 by its bits: from 1 on exponent and mantissa are those of an f32, below stand 0 and 0.5.
#[inline(always)]
pub(crate) fn e2m1(code: u32) -> f32 {
    let magnitude = code & 7;
    let normal = (magnitude << 22) + (126 << 23);
    let bits = if magnitude >= 2 { normal } else { magnitude * 0x3f00_0000 };
    f32::from_bits(bits | (code & 8) << 28)
}

#[inline(always)]
fn decode_nvfp4(unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    let (scales, codes) = unit.split_at(UNIT);
    let mut scale = [0.0f32; PANEL];
    for (scale, byte) in scale.iter_mut().zip(&scales[block * PANEL..]) {
        *scale = e4m3::decode(*byte);
    }
    let dwords = &codes.as_chunks::<4>().0.as_chunks::<PANEL>().0[block * 2..][..2];
    for (out, dwords) in out.chunks_exact_mut(8).zip(dwords) {
        for (j, out) in out.iter_mut().enumerate() {
            for lane in 0..PANEL {
                out[lane] = e2m1(u32::from_le_bytes(dwords[lane]) >> (4 * j)) * scale[lane];
            }
        }
    }
}

/// One row of a weight, for the embedding.
pub(crate) fn read_row(weight: &Weight, memory: &[u8], row: usize, out: &mut [f32]) {
    let unit_bytes = weight.format.unit_bytes();
    let panel_bytes = weight.columns.div_ceil(UNIT) * unit_bytes;
    let panel = &memory[HEADER + row / PANEL * panel_bytes..][..panel_bytes];
    let (lane, scale) = (row % PANEL, scale(weight, memory));
    for (out, unit) in out.chunks_mut(UNIT).zip(panel.chunks_exact(unit_bytes)) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = read_value(weight.format, unit, k, lane) * scale;
        }
    }
}

fn read_value(format: WeightFormat, unit: &[u8], k: usize, lane: usize) -> f32 {
    let dword = |at: usize| u32::from_le_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]]);
    let block_scale = || unit[k / BLOCK * PANEL + lane];
    match format {
        WeightFormat::F32 => f32::from_bits(dword((k * PANEL + lane) * 4)),
        WeightFormat::Bf16 => {
            let pair = dword((k / 2 * PANEL + lane) * 4);
            f32::from_bits(if k.is_multiple_of(2) { pair << 16 } else { pair & 0xffff_0000 })
        }
        WeightFormat::Int8 => f32::from(unit[UNIT + k * PANEL + lane] as i8) * power(block_scale()),
        WeightFormat::Nvfp4 => {
            let code = dword(UNIT + (k / 8 * PANEL + lane) * 4) >> (k % 8 * 4);
            e2m1(code) * e4m3::decode(block_scale())
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn e2m1_by_bits_equals_the_table() {
        for code in 0..16 {
            let want = halfbyte_formats::e2m1::decode(code as u8);
            assert_eq!(super::e2m1(code).to_bits(), want.to_bits());
        }
    }
}
