//! GGUF tensor types against golden vectors of the `gguf` package (scripts/golden/ggml.py), bit for bit.

use halfbyte_formats::ggml::{self, Type};
use halfbyte_formats::{e2m1, e4m3};
use proptest::prelude::*;
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/ggml.json")).expect("golden file is JSON")
}

fn bytes(value: &Value) -> Vec<u8> {
    let hex = value.as_str().expect("hexadecimal text");
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn floats(value: &Value) -> Vec<f32> {
    let raw = bytes(value);
    let (quads, _) = raw.as_chunks::<4>();
    quads.iter().map(|quad| f32::from_le_bytes(*quad)).collect()
}

fn rows<'a>(golden: &'a Value, key: &str) -> &'a [Value] {
    golden[key].as_array().expect("a list")
}

#[test]
fn every_type_decodes_to_the_bits_of_the_gguf_package() {
    let golden = golden();
    assert_eq!(rows(&golden, "decode").len(), Type::ALL.len());
    for case in rows(&golden, "decode") {
        let id = case["id"].as_u64().expect("id") as u32;
        let ty = Type::from_id(id).expect("known type");
        assert_eq!(Some(ty.name()), case["type"].as_str());
        let expected = floats(&case["values"]);
        let mut decoded = vec![1.0; expected.len()];
        ggml::decode_row(ty, &bytes(&case["bytes"]), &mut decoded);
        for (at, (ours, theirs)) in decoded.iter().zip(&expected).enumerate() {
            let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(same, "{} value {at}: {ours:e}, gguf says {theirs:e}", ty.name());
        }
    }
}

#[test]
fn q8_0_encodes_to_the_bytes_of_the_gguf_package() {
    let golden = golden();
    for (number, case) in rows(&golden, "q8_0").iter().enumerate() {
        let x = floats(&case["values"]);
        let expected = bytes(&case["bytes"]);
        let mut encoded = vec![0; expected.len()];
        ggml::encode_row_q8_0(&x, &mut encoded);
        assert_eq!(encoded, expected, "row {number}");
    }
}

#[test]
fn q8_0_shows_a_nan_or_an_infinity_when_read_back() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [1.0; 32];
        x[5] = bad;
        let (mut encoded, mut decoded) = ([0; 34], [0.0; 32]);
        ggml::encode_row_q8_0(&x, &mut encoded);
        ggml::decode_row(Type::Q8_0, &encoded, &mut decoded);
        assert!(decoded.iter().all(|value| value.is_nan()));
    }
}

#[test]
fn ids_and_sizes_agree_both_ways() {
    for ty in Type::ALL {
        assert_eq!(Type::from_id(ty.id()), Some(ty));
        assert_eq!(ty.bytes(3 * ty.block()), Some(3 * ty.block_bytes()));
    }
    assert_eq!(Type::Q4K.bytes(255), None);
    assert_eq!(Type::F32.bytes(usize::MAX), None);
    for unknown in [4, 5, 9, 15, 16, 24, 31, 38, 41, u32::MAX] {
        assert_eq!(Type::from_id(unknown), None);
    }
}

#[test]
fn empty_rows_are_allowed() {
    for ty in Type::ALL {
        ggml::decode_row(ty, &[], &mut []);
    }
    ggml::encode_row_q8_0(&[], &mut []);
}

#[test]
fn scale_bytes_that_gguf_counts_as_zero_are_repacked_as_zero() {
    let mut block = [0x22; 36];
    block[..4].copy_from_slice(&[0x7F, 0xFF, 0x80, 0xB8]);
    let (mut codes, mut scales) = ([0; 32], [0; 4]);
    ggml::nvfp4_to_rows(&block, &mut codes, &mut scales);
    assert_eq!(scales, [0, 0, 0, 0x38]);
}

proptest! {
    #[test]
    fn nvfp4_repacked_there_and_back_is_unchanged(
        blocks in proptest::collection::vec(proptest::array::uniform32(any::<u8>()), 1..5),
        scale in 0u8..0x7F,
    ) {
        let codes = blocks.concat();
        let scales: Vec<u8> = (0..blocks.len() * 4).map(|at| scale ^ (at as u8 & 1)).collect();
        prop_assume!(scales.iter().all(|scale| *scale != 0x7F));
        let mut packed = vec![0; blocks.len() * 36];
        ggml::nvfp4_from_rows(&codes, &scales, &mut packed);
        let (mut codes_again, mut scales_again) = (vec![0; codes.len()], vec![0; scales.len()]);
        ggml::nvfp4_to_rows(&packed, &mut codes_again, &mut scales_again);
        prop_assert_eq!(&codes, &codes_again);
        prop_assert_eq!(&scales, &scales_again);
        // The two orders mean the same values.
        let mut decoded = vec![0.0; blocks.len() * 64];
        ggml::decode_row(Type::Nvfp4, &packed, &mut decoded);
        for (at, value) in decoded.iter().enumerate() {
            let code = (codes[at / 2] >> (4 * (at % 2))) & 15;
            prop_assert_eq!(*value, e2m1::decode(code) * e4m3::decode(scales[at / 16]));
        }
    }
}
