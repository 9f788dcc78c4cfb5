//! The origin's `.dat`: read, written back byte for byte, and made from other models.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use halfbyte_checkpoint::{Checkpoint, Encoding, Format, LayerTensor, TensorName, WideScale, create};
use serde_json::json;

fn leb(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn push(bytes: &mut Vec<u8>, key: &str, element: u64, dims: &[usize], data: &[u8]) {
    leb(bytes, key.len() as u64);
    bytes.extend(key.as_bytes());
    leb(bytes, element);
    leb(bytes, dims.len() as u64);
    dims.iter().for_each(|&dim| leb(bytes, dim as u64));
    bytes.extend(data);
}

/// A `.dat` as the origin's tools write them, with all they vary in: key forms, types of codes and
/// scales, order, an entry the decoder does not need, a head although the config says tied.
fn origin_file() -> Vec<u8> {
    let config = qwen3_config();
    let mut list = tensor_list(&config);
    list.push(("lm_head.weight".into(), vec![48, 32]));
    let (mut body, mut count) = (Vec::new(), 0);
    for (seed, (name, shape)) in list.iter().enumerate() {
        let elements: usize = shape.iter().product();
        let matrix = shape.len() == 2 && !name.contains("embed");
        if !matrix {
            // Random bits, so that not-a-numbers with payloads are among them.
            let data: Vec<u8> = (0..elements * 2).map(|i| (i * 37 + seed * 11) as u8).collect();
            push(&mut body, name, if seed % 2 == 0 { 5 } else { 15 }, shape, &data);
            count += 1;
            continue;
        }
        let stem = match seed % 3 {
            0 => name.trim_end_matches(".weight"),
            _ => name.as_str(),
        };
        let codes: Vec<u8> = (0..elements / 2).map(|i| (i * 13 + seed) as u8).collect();
        let (packed, blocks) = ([shape[0], shape[1] / 2], [shape[0], shape[1] / 16]);
        let scales = elements / 16;
        let (kind, scales) = match seed % 4 {
            0 => (0, vec![0x38; scales]),
            1 => (101, (0..scales).map(|i| (i % 0x7f) as u8).collect()),
            2 => (5, (0..scales).flat_map(|i| (0x2000 + i as u16).to_le_bytes()).collect()),
            _ => (6, (0..scales).flat_map(|i| (i as f32 / 7.0).to_le_bytes()).collect()),
        };
        let element = [0, 100, 1, 11][seed % 4];
        // Scales before or after codes: both occur.
        if seed % 2 == 0 {
            push(&mut body, &format!("{stem}.qdata"), element, &packed, &codes);
            push(&mut body, &format!("{stem}.scale"), kind, &blocks, &scales);
        } else {
            push(&mut body, &format!("{stem}.scale"), kind, &blocks, &scales);
            push(&mut body, &format!("{stem}.qdata"), element, &packed, &codes);
        }
        count += 2;
    }
    push(&mut body, "model.rotary_emb.inv_freq", 6, &[2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut file = Vec::new();
    leb(&mut file, count + 1);
    file.extend(body);
    file
}

fn write_origin(directory: &Path) -> Checkpoint {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("config.json"), qwen3_config().to_string()).unwrap();
    fs::write(directory.join("tokenizer.json"), b"{}").unwrap();
    fs::write(directory.join("model.dat"), origin_file()).unwrap();
    Checkpoint::open(&directory.join("model.dat")).unwrap()
}

#[test]
fn a_dat_read_and_written_is_the_identical_file() {
    let scratch = Scratch::new();
    let source = write_origin(&scratch.join("in"));
    assert_eq!(source.format, Format::Dat);
    let out = scratch.join("out/model.dat");
    fs::create_dir(scratch.join("out")).unwrap();
    rewrite(&source, &out, Format::Dat, |tensor| tensor.encoding).unwrap();
    assert!(fs::read(&out).unwrap() == origin_file());
    assert!(Checkpoint::open(&out).unwrap().text.tokenizer_json.is_some());
}

#[test]
fn a_dat_can_be_replaced_by_itself() {
    let scratch = Scratch::new();
    let source = write_origin(scratch.path());
    rewrite(&source, &scratch.join("model.dat"), Format::Dat, |tensor| tensor.encoding).unwrap();
    assert!(fs::read(scratch.join("model.dat")).unwrap() == origin_file());
}

#[test]
fn every_sort_of_scale_decodes() {
    let scratch = Scratch::new();
    let source = write_origin(scratch.path());
    let mut seen = Vec::new();
    for tensor in &source.tensors {
        let values = read_all(&source, tensor).unwrap();
        assert_eq!(values.len(), tensor.values());
        seen.push(tensor.encoding);
    }
    for encoding in [
        Encoding::F16,
        Encoding::Bf16,
        Encoding::Nvfp4,
        Encoding::E2m1(WideScale::F16),
        Encoding::E2m1(WideScale::F32),
    ] {
        assert!(seen.contains(&encoding), "{encoding}");
    }
}

#[test]
fn single_level_nvfp4_has_a_global_of_one() {
    let scratch = Scratch::new();
    let source = write_origin(scratch.path());
    let tensor = source.tensors.iter().find(|tensor| tensor.encoding == Encoding::Nvfp4).unwrap();
    assert_eq!(source.nvfp4_global(tensor).unwrap(), 1.0);
    let columns = tensor.columns();
    let (mut codes, mut scales) = (vec![0; columns / 2], vec![0; columns / 16]);
    source.read_nvfp4(tensor, 1..2, &mut codes, &mut scales).unwrap();
    let mut values = vec![0.0; columns];
    source.read_f32(tensor, 1..2, &mut values).unwrap();
    let mut expected = vec![0.0; columns];
    halfbyte_formats::nvfp4::decode_row(&codes, &scales, 1.0, &mut expected);
    assert_eq!(values, expected);
}

#[test]
fn a_head_that_differs_from_the_embedding_unties_the_model() {
    let scratch = Scratch::new();
    assert!(!write_origin(scratch.path()).architecture.tied);
}

#[test]
fn a_changed_tensor_changes_nothing_else() {
    let scratch = Scratch::new();
    let source = write_origin(&scratch.join("in"));
    let changed = TensorName::Layer(0, LayerTensor::K);
    let out = scratch.join("model.dat");
    rewrite(&source, &out, Format::Dat, |tensor| match tensor.name == changed {
        true => Encoding::F32,
        false => tensor.encoding,
    })
    .unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    for (a, b) in source.tensors.iter().zip(&copy.tensors) {
        assert_eq!(a.encoding == b.encoding, a.name != changed, "{}", a.name);
        if a.encoding == b.encoding {
            assert_eq!(a.disk_name, b.disk_name);
        }
        let (a, b) = (read_all(&source, a).unwrap(), read_all(&copy, b).unwrap());
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn a_fresh_dat_has_the_origins_keys_and_its_head() {
    let scratch = Scratch::new();
    let path = scratch.join("toy");
    write_model(&path, &qwen3_config(), &tensors(&qwen3_config()));
    let source = Checkpoint::open(&path).unwrap();
    let out = scratch.join("fresh.dat");
    rewrite(&source, &out, Format::Dat, |tensor| match nvfp4_layers(tensor) {
        Encoding::Bf16 => Encoding::F16,
        other => other,
    })
    .unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    assert!(copy.architecture.tied);
    let q = copy.find(TensorName::Layer(1, LayerTensor::Q)).unwrap();
    assert_eq!(q.disk_name, "model.layers.1.self_attn.q_proj.weight.qdata");
    let (head, embedding) = (TensorName::Head, TensorName::Embedding);
    assert_eq!(
        read_all(&copy, copy.find(head).unwrap()).unwrap(),
        read_all(&source, source.find(embedding).unwrap()).unwrap()
    );
    let again = scratch.join("again");
    fs::create_dir(&again).unwrap();
    rewrite(&copy, &again.join("a.dat"), Format::Dat, |tensor| tensor.encoding).unwrap();
    assert!(fs::read(again.join("a.dat")).unwrap() == fs::read(&out).unwrap());
}

#[test]
fn a_tensor_scale_has_no_place_in_a_dat() {
    let scratch = Scratch::new();
    let path = scratch.join("toy");
    write_model(&path, &qwen3_config(), &tensors(&qwen3_config()));
    let source = Checkpoint::open(&path).unwrap();
    let output = output_of(&source, nvfp4_layers);
    let index = output.tensors.iter().position(|t| t.encoding == Encoding::Nvfp4).unwrap();
    let mut sink = create(&scratch.join("a.dat"), Format::Dat, output).unwrap();
    let message = sink.set_global(index, 0.5).unwrap_err().to_string();
    assert!(message.contains("a.dat") && message.contains("tensor scale of 1"), "{message}");
}

#[test]
fn another_models_config_beside_the_dat_is_not_overwritten() {
    let scratch = Scratch::new();
    let source = write_origin(&scratch.join("in"));
    let other = json!({ "model_type": "llama" }).to_string();
    fs::write(scratch.join("config.json"), &other).unwrap();
    let result = rewrite(&source, &scratch.join("a.dat"), Format::Dat, |tensor| tensor.encoding);
    assert!(result.unwrap_err().to_string().contains("config.json"));
    assert_eq!(fs::read_to_string(scratch.join("config.json")).unwrap(), other);
    assert!(!scratch.join("a.dat").exists());
}
