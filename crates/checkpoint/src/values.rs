//! Stored bytes <-> f32 for encodings without a tensor scale, and the checks of NVFP4 scales.

use halfbyte_formats::{bf16, e2m1, f16, ggml, nvfp4};

use crate::error::Error;
use crate::tensor::{Encoding, WideScale};
use std::path::Path;

/// Bytes moved at once: large enough for the disk, small beside any tensor.
pub(crate) const CHUNK: usize = 4 << 20;

/// Decodes one run of whole rows of `columns` values.
pub(crate) fn decode(encoding: Encoding, columns: usize, bytes: &[u8], out: &mut [f32]) {
    match encoding {
        Encoding::F32 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Encoding::F16 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::decode(u16::from_le_bytes(*bytes));
            }
        }
        Encoding::Bf16 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::decode(u16::from_le_bytes(*bytes));
            }
        }
        Encoding::Ggml(kind) => ggml::decode_row(kind, bytes, out),
        Encoding::Nvfp4 => {
            for (row, out) in bytes.chunks(columns / 16 * 9).zip(out.chunks_mut(columns)) {
                let (codes, scales) = row.split_at(columns / 2);
                nvfp4::decode_row(codes, scales, 1.0, out);
            }
        }
        Encoding::E2m1(scale) => {
            let row_bytes = columns / 2 + columns / 16 * scale.bytes();
            for (row, out) in bytes.chunks(row_bytes).zip(out.chunks_mut(columns)) {
                decode_wide(scale, columns, row, out);
            }
        }
    }
}

/// One row of codes followed by its wide scales.
fn decode_wide(scale: WideScale, columns: usize, row: &[u8], out: &mut [f32]) {
    let (codes, scales) = row.split_at(columns / 2);
    for (index, value) in out.iter_mut().enumerate() {
        let code = (codes[index / 2] >> (4 * (index % 2))) & 15;
        let at = index / 16 * scale.bytes();
        let scale = match scale {
            WideScale::F16 => f16::decode(u16::from_le_bytes([scales[at], scales[at + 1]])),
            WideScale::F32 => {
                let bytes = [scales[at], scales[at + 1], scales[at + 2], scales[at + 3]];
                f32::from_le_bytes(bytes)
            }
        };
        *value = e2m1::decode(code) * scale;
    }
}

/// Encodes whole rows as F32, F16, BF16 or Q8_0; `None` for any other encoding.
pub(crate) fn encode(encoding: Encoding, values: &[f32]) -> Option<Vec<u8>> {
    match encoding {
        Encoding::F32 => Some(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Encoding::F16 => Some(halves(values, f16::encode)),
        Encoding::Bf16 => Some(halves(values, bf16::encode)),
        Encoding::Ggml(ggml::Type::Q8_0) => {
            let mut bytes = vec![0; encoding.row_bytes(values.len())?];
            ggml::encode_row_q8_0(values, &mut bytes);
            Some(bytes)
        }
        _ => None,
    }
}

fn halves(values: &[f32], encode: fn(f32) -> u16) -> Vec<u8> {
    values.iter().flat_map(|&x| encode(x).to_le_bytes()).collect()
}

/// A tensor scale must be a positive finite number.
pub(crate) fn check_global(file: &Path, key: &str, value: f32) -> Result<f32, Error> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(Error::input(
            file,
            format!("tensor {key}"),
            format!("the tensor scale is {value}; it must be a positive finite number"),
            "the quantised file is broken: quantise the model again",
        )),
    }
}

/// Block scales must be E4M3 numbers of 0 or more. `first` is the block number of `scales[0]`.
pub(crate) fn check_block_scales(file: &Path, key: &str, first: usize, scales: &[u8]) -> Result<(), Error> {
    // 0x80 is minus zero, and harmless.
    let bad = scales.iter().position(|&scale| scale == 0x7f || scale > 0x80);
    let Some(index) = bad else {
        return Ok(());
    };
    let what = match scales[index] & 0x7f {
        0x7f => "not a number",
        _ => "negative",
    };
    Err(Error::input(
        file,
        format!("tensor {key}, block {}", first + index),
        format!("the block scale 0x{:02x} is {what}", scales[index]),
        "the quantised file is broken: quantise the model again",
    ))
}
