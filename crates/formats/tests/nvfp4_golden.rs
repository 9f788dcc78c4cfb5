//! Bit for bit against torchao; against ModelOpt, compressed-tensors and the authors of four-over-six
//! with every difference named.
//!
//! The vectors come from `scripts/golden/nvfp4.py` and `scripts/golden/four_over_six.py`.

use std::collections::HashMap;

use halfbyte_formats::nvfp4::{self, BLOCK, Scales};
use halfbyte_formats::{bf16, blocked, e2m1, e4m3, f16};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/nvfp4.json")).expect("golden/nvfp4.json is JSON")
}

fn bytes(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("a string of hexadecimal digits");
    let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn halves(value: &Value) -> Vec<u16> {
    let pairs = bytes(value);
    pairs.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    let quads = bytes(value);
    quads.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All rows have whole blocks, so a tensor can be taken as one row.
struct Case {
    name: String,
    x: Vec<f32>,
    codes: Vec<u8>,
    block_scales: Vec<u8>,
    ours: (Vec<u8>, Vec<u8>),
    tensor_scale: f32,
}

impl Case {
    /// What a peer made of `x`, beside what we make of it.
    fn new(name: &str, x: Vec<f32>, tensor_scale: f32, scales: Scales, peer: &Value) -> Case {
        let mut ours = (vec![0; x.len() / 2], vec![0; x.len() / BLOCK]);
        nvfp4::encode_row(&x, tensor_scale, scales, &mut ours.0, &mut ours.1);
        let (codes, block_scales) = (bytes(&peer["codes"]), bytes(&peer["block_scales"]));
        Case { name: name.to_owned(), x, codes, block_scales, ours, tensor_scale }
    }

    fn blocks(&self) -> impl Iterator<Item = (&[f32], [&[u8]; 2], [u8; 2])> {
        let codes = self.codes.chunks(BLOCK / 2).zip(self.ours.0.chunks(BLOCK / 2));
        let scales = self.block_scales.iter().zip(&self.ours.1);
        self.x
            .chunks(BLOCK)
            .zip(codes)
            .zip(scales)
            .map(|((x, codes), scales)| (x, [codes.0, codes.1], [*scales.0, *scales.1]))
    }
}

/// The cases of one peer, each beside what `Nearest` makes of the same input.
fn cases(golden: &Value, peer: &str) -> Vec<(Case, Value)> {
    let inputs: HashMap<_, _> = golden["inputs"].as_object().expect("inputs").iter().collect();
    let cases = golden[peer].as_array().expect("cases");
    let build = |case: &Value| {
        let name = case["name"].as_str().expect("name");
        let x = floats(&inputs[&name.to_owned()]["x"]);
        let tensor_scale = match case["levels"].as_u64() {
            Some(1) => 1.0,
            _ => nvfp4::tensor_scale(nvfp4::amax(&x), Scales::Nearest),
        };
        Case::new(name, x, tensor_scale, Scales::Nearest, case)
    };
    cases.iter().map(|case| (build(case), case.clone())).collect()
}

/// The peers' order of decoding, code * (scale * tensor scale), from this crate's parts.
fn decode_as_peers(codes: &[u8], block_scales: &[u8], tensor_scale: f32) -> Vec<f32> {
    let value = |index: usize| {
        let code = codes[index / 2] >> (index % 2 * 4) & 15;
        e2m1::decode(code) * (e4m3::decode(block_scales[index / BLOCK]) * tensor_scale)
    };
    (0..codes.len() * 2).map(value).collect()
}

/// Our decoding beside a peer's: the same bits where nothing rounds twice, else one step apart.
fn assert_decodes(case: &Case, decoded: &[f32]) {
    let mut ours = vec![0.0; decoded.len()];
    nvfp4::decode_row(&case.codes, &case.block_scales, case.tensor_scale, &mut ours);
    let peers = decode_as_peers(&case.codes, &case.block_scales, case.tensor_scale);
    let exact_scale = case.tensor_scale.to_bits() & 0x007F_FFFF == 0;
    for ((ours, peers), decoded) in ours.iter().zip(peers).zip(decoded) {
        // `==` and not bits: ModelOpt decodes code 8 to zero without its sign.
        assert!(peers == *decoded, "{}: {peers:e} {decoded:e}", case.name);
        let apart = ours.abs().to_bits().abs_diff(decoded.abs().to_bits());
        assert!(apart <= u32::from(!exact_scale), "{}: {ours:e} {decoded:e}", case.name);
    }
}

/// Whether `x` lies between two codes of the block as exactly as f32 can tell.
fn is_tie(x: f32, scale: u8, tensor_scale: f32) -> bool {
    let t = f64::from(x.abs()) / (f64::from(e4m3::decode(scale)) * f64::from(tensor_scale));
    let midpoints = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    midpoints.iter().any(|middle| (t / middle - 1.0).abs() < 3e-7)
}

#[test]
fn torchao_encodes_to_the_same_bytes_in_one_level_and_in_two() {
    let golden = golden();
    let cases = cases(&golden, "torchao");
    assert_eq!(cases.len(), 20);
    for (case, peer) in cases {
        let tensor_scale = floats(&peer["tensor_scale"]);
        assert_eq!(bits(&[case.tensor_scale]), bits(&tensor_scale), "{}", case.name);
        assert_eq!(case.ours.1, case.block_scales, "{}: block scales", case.name);
        assert_eq!(case.ours.0, case.codes, "{}: codes", case.name);
    }
}

#[test]
fn torchao_decodes_to_the_same_values() {
    let golden = golden();
    for (case, peer) in cases(&golden, "torchao") {
        let decoded = floats(&peer["decoded"]);
        assert_decodes(&case, &decoded);
        let parts = decode_as_peers(&case.codes, &case.block_scales, case.tensor_scale);
        assert_eq!(bits(&parts), bits(&decoded), "{}", case.name);
    }
}

/// ModelOpt differs from torchao, and so from us, in four places: a zero block has scale 1.0; scales
/// below 2^-6 are written (down to 2^-9); negative zero loses its sign; x / (s * g) instead of
/// x * ((1 / g) / s) moves values that lie on a tie up to the last bit. All else is the same byte.
#[test]
fn modelopt_encodes_to_the_same_bytes_but_for_zero_and_tiny_blocks_and_ties() {
    let golden = golden();
    for (case, peer) in cases(&golden, "modelopt") {
        let tensor_scale = floats(&peer["tensor_scale"]);
        assert_eq!(bits(&[case.tensor_scale]), bits(&tensor_scale), "{}", case.name);
        for (x, [codes, ours], [scale, our_scale]) in case.blocks() {
            if x.iter().all(|value| *value == 0.0) {
                assert_eq!((scale, our_scale), (0x38, 0x08), "{}", case.name);
                assert!(codes.iter().all(|code| *code == 0));
                assert!(ours.iter().all(|code| code & 0x77 == 0));
            } else if scale < 0x08 {
                assert_eq!(our_scale, 0x08, "{}", case.name);
            } else {
                assert_eq!(our_scale, scale, "{}", case.name);
                for (index, x) in x.iter().enumerate() {
                    let code = |codes: &[u8]| codes[index / 2] >> (index % 2 * 4) & 15;
                    let tie = is_tie(*x, scale, case.tensor_scale);
                    assert!(code(ours) == code(codes) || tie, "{}: {x:e}", case.name);
                }
            }
        }
    }
}

#[test]
fn modelopt_decodes_to_the_same_values() {
    let golden = golden();
    for (case, peer) in cases(&golden, "modelopt") {
        assert_decodes(&case, &floats(&peer["decoded"]));
    }
}

/// compressed-tensors gives a zero block the scale 0.125 and drops the sign of zero.
#[test]
fn compressed_tensors_encodes_to_the_same_bytes_but_for_zero_blocks() {
    let golden = golden();
    for (case, _) in cases(&golden, "compressed_tensors") {
        for (x, [codes, ours], [scale, our_scale]) in case.blocks() {
            if x.iter().all(|value| *value == 0.0) {
                assert_eq!((scale, our_scale), (0x20, 0x08), "{}", case.name);
            } else {
                assert_eq!((ours, our_scale), (codes, scale), "{}", case.name);
            }
        }
    }
}

/// The authors' own reference differs from us in three places: a zero block has scale 0; scales
/// below 2^-6 are written; x * (1 / (g * s)), with g rounded twice, moves values that lie on a tie
/// up to the last bit. All else, and so every choice between four and six, is the same byte.
#[test]
fn the_authors_of_four_over_six_encode_to_the_same_bytes_but_for_zero_and_tiny_blocks_and_ties() {
    let inputs = &golden()["inputs"];
    let golden: Value = serde_json::from_str(include_str!("golden/four_over_six.json")).expect("JSON");
    let (mut same, mut fours) = (0, 0);
    for (name, peer) in golden.as_object().expect("cases") {
        let x = floats(peer.get("x").unwrap_or(&inputs[name]["x"]));
        assert_eq!(bits(&[nvfp4::amax(&x)]), bits(&floats(&peer["amax"])), "{name}");
        let tensor_scale = nvfp4::tensor_scale(nvfp4::amax(&x), Scales::FourOverSix);
        let case = Case::new(name, x, tensor_scale, Scales::FourOverSix, peer);
        for (x, [codes, ours], [scale, our_scale]) in case.blocks() {
            if x.iter().all(|value| *value == 0.0) {
                assert_eq!((scale, our_scale), (0x00, 0x08), "{name}");
            } else if scale < 0x08 {
                // 2^-6 and 1.5 times that are all there is to choose from.
                assert!((0x08..=0x0C).contains(&our_scale), "{name}: {our_scale:#x}");
            } else {
                assert_eq!(our_scale, scale, "{name}: {x:?}");
                let code = |codes: &[u8], index: usize| codes[index / 2] >> (index % 2 * 4) & 15;
                let tie = |index: usize| is_tie(x[index], scale, case.tensor_scale);
                let equal = |index: usize| code(codes, index) == code(ours, index);
                assert!((0..BLOCK).all(|index| equal(index) || tie(index)), "{name}: {x:?}");
                same += usize::from(codes == ours);
                fours += usize::from((0..BLOCK).all(|index| code(codes, index) & 7 < 7));
            }
        }
    }
    eprintln!("{same} blocks are the same bytes; {fours} have no six in them");
    assert!(same > 150 && fours > 40, "{same} {fours}");
}

#[test]
fn torch_casts_to_the_same_bits() {
    let golden = golden();
    let casts = &golden["casts"];
    let x = floats(&casts["x"]);
    let encoded = |encode: fn(f32) -> u16| x.iter().map(|x| encode(*x)).collect::<Vec<_>>();
    assert_eq!(encoded(bf16::encode), halves(&casts["bf16"]));
    assert_eq!(encoded(f16::encode), halves(&casts["f16"]));
    let ours: Vec<u8> = x.iter().map(|x| e4m3::encode(*x)).collect();
    assert_eq!(ours, bytes(&casts["e4m3"]));
}

#[test]
fn torch_decodes_every_e4m3_byte_and_a_spread_of_halves_to_the_same_values() {
    let golden = golden();
    let casts = &golden["casts"];
    let same = |ours: Vec<f32>, theirs: Vec<f32>| {
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let both_nan = ours.is_nan() && theirs.is_nan();
            assert!(both_nan || ours.to_bits() == theirs.to_bits(), "{ours} {theirs}");
        }
    };
    same((0..=255).map(e4m3::decode).collect(), floats(&casts["e4m3_values"]));
    let half_bits = halves(&casts["half_bits"]);
    let decoded = |decode: fn(u16) -> f32| half_bits.iter().map(|b| decode(*b)).collect();
    same(decoded(bf16::decode), floats(&casts["bf16_values"]));
    same(decoded(f16::decode), floats(&casts["f16_values"]));
}

#[test]
fn torchao_blocks_scales_to_the_same_layout() {
    for case in golden()["blocked"].as_array().expect("cases") {
        let size = |key: &str| case[key].as_u64().expect("a count") as usize;
        let (rows, columns) = (size("rows"), size("columns"));
        let scales: Vec<u8> = (0..rows * columns).map(|i| (i % 251) as u8).collect();
        let mut out = vec![0xAA; blocked::size(rows, columns)];
        blocked::to_blocked(&scales, rows, columns, &mut out);
        assert_eq!(out, bytes(&case["blocked"]));
    }
}
