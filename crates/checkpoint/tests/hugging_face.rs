//! Hugging Face directories: every number format in, every directory out, and back again.

mod common;

use std::fs;

use common::*;
use halfbyte_checkpoint::{Checkpoint, Encoding, Format, LayerTensor, Rope, RopeScaling, TensorName, create};
use serde_json::{Value, json};

fn open_toy(scratch: &Scratch) -> Checkpoint {
    let directory = scratch.join("toy");
    write_model(&directory, &qwen3_config(), &tensors(&qwen3_config()));
    Checkpoint::open(&directory).unwrap()
}

#[test]
fn every_value_of_an_f32_model_is_read() {
    let scratch = Scratch::new();
    let checkpoint = open_toy(&scratch);
    assert_eq!(checkpoint.format, Format::HuggingFace);
    for raw in tensors(&qwen3_config()) {
        let name = TensorName::from_hugging_face(&raw.name).unwrap();
        let tensor = checkpoint.find(name).unwrap();
        assert_eq!(tensor.shape, raw.shape);
        let bytes: Vec<u8> =
            read_all(&checkpoint, tensor).unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes, raw.bytes, "{name}");
    }
}

#[test]
fn any_rows_can_be_read_alone() {
    let scratch = Scratch::new();
    let checkpoint = open_toy(&scratch);
    let tensor = checkpoint.find(TensorName::Embedding).unwrap();
    let all = read_all(&checkpoint, tensor).unwrap();
    let mut part = vec![0.0; 3 * 32];
    checkpoint.read_f32(tensor, 5..8, &mut part).unwrap();
    assert_eq!(part, all[5 * 32..8 * 32]);
    assert!(checkpoint.read_f32(tensor, 46..49, &mut part).is_err());
    assert!(checkpoint.read_f32(tensor, 0..1, &mut part).is_err());
    #[allow(clippy::reversed_empty_ranges)] // a hostile caller
    let reversed = checkpoint.read_f32(tensor, 8..5, &mut []);
    assert!(reversed.is_err());
}

#[test]
fn half_precision_directories_are_written_and_read() {
    let scratch = Scratch::new();
    let source = open_toy(&scratch);
    for (encoding, dtype) in [(Encoding::Bf16, "bfloat16"), (Encoding::F16, "float16")] {
        let path = scratch.join(dtype);
        rewrite(&source, &path, Format::HuggingFace, |_| encoding).unwrap();
        let copy = Checkpoint::open(&path).unwrap();
        assert_eq!(copy.architecture, source.architecture);
        assert_eq!(copy.text.config.as_ref().unwrap()["torch_dtype"], dtype);
        for (a, b) in source.tensors.iter().zip(&copy.tensors) {
            assert_eq!(b.encoding, encoding);
            assert_eq!(read_all(&source, a).unwrap(), read_all(&copy, b).unwrap());
        }
    }
}

#[test]
fn modelopt_directories_keep_every_code_and_scale() {
    let scratch = Scratch::new();
    let source = open_toy(&scratch);
    let (first, second) = (scratch.join("first"), scratch.join("second"));
    rewrite(&source, &first, Format::ModelOpt, nvfp4_layers).unwrap();
    let first = Checkpoint::open(&first).unwrap();
    assert_eq!(first.format, Format::ModelOpt);
    rewrite(&first, &second, Format::ModelOpt, |tensor| tensor.encoding).unwrap();
    let (a, b) = (scratch.join("first"), scratch.join("second"));
    for name in ["model.safetensors", "config.json", "hf_quant_config.json"] {
        assert_eq!(fs::read(a.join(name)).unwrap(), fs::read(b.join(name)).unwrap(), "{name}");
    }
    let config: Value = serde_json::from_slice(&fs::read(a.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["quant_method"], "modelopt");
    assert_eq!(config["quantization_config"]["ignore"], json!(["lm_head"]));
}

#[test]
fn nvfp4_decodes_as_code_times_scale_times_global() {
    let scratch = Scratch::new();
    let config = llama_config();
    for packed_by_key in [false, true] {
        let mut model = tensors(&config);
        let key = "model.layers.0.self_attn.q_proj";
        let index = model.iter().position(|raw| raw.name == format!("{key}.weight")).unwrap();
        let codes: Vec<u8> = (0..32 * 16).map(|i| (i * 7 % 256) as u8).collect();
        let scales: Vec<u8> = (0..32 * 2).map(|i| 0x30 + (i % 16) as u8).collect();
        let (weight, global_key, stored) = match packed_by_key {
            true => ("weight_packed", "weight_global_scale", 1.0f32 / 0.25),
            false => ("weight", "weight_scale_2", 0.25),
        };
        model[index] = Raw::bytes(&format!("{key}.{weight}"), "U8", &[32, 16], codes.clone());
        model.push(Raw::bytes(&format!("{key}.weight_scale"), "F8_E4M3", &[32, 2], scales.clone()));
        let shape: &[usize] = if packed_by_key { &[1] } else { &[] };
        model.push(Raw::f32(&format!("{key}.{global_key}"), shape, &[stored]));
        model.push(Raw::f32(&format!("{key}.input_scale"), &[], &[1.0]));
        let path = scratch.join(weight);
        write_model(&path, &config, &model);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = checkpoint.find(TensorName::Layer(0, LayerTensor::Q)).unwrap();
        assert_eq!((tensor.encoding, tensor.shape.clone()), (Encoding::Nvfp4, vec![32, 32]));
        assert_eq!(checkpoint.nvfp4_global(tensor).unwrap(), 0.25);
        let values = read_all(&checkpoint, tensor).unwrap();
        for (i, value) in values.iter().enumerate() {
            let code = (codes[i / 2] >> (4 * (i % 2))) & 15;
            let scale = halfbyte_formats::e4m3::decode(scales[i / 16]);
            assert_eq!(*value, halfbyte_formats::e2m1::decode(code) * scale * 0.25, "{i}");
        }
    }
}

#[test]
fn sharded_directories_read_as_one() {
    let scratch = Scratch::new();
    let config = qwen3_config();
    let model = tensors(&config);
    write_sharded(&scratch, &config, &model);
    let sharded = Checkpoint::open(scratch.path()).unwrap();
    let whole = scratch.join("whole");
    write_model(&whole, &config, &model);
    let whole = Checkpoint::open(&whole).unwrap();
    for (a, b) in sharded.tensors.iter().zip(&whole.tensors) {
        assert_eq!(read_all(&sharded, a).unwrap(), read_all(&whole, b).unwrap());
    }
}

fn write_sharded(scratch: &Scratch, config: &Value, model: &[Raw]) {
    let (a, b) = model.split_at(model.len() / 2);
    let mut map = serde_json::Map::new();
    for (name, part) in [("a.safetensors", a), ("b.safetensors", b)] {
        fs::write(scratch.join(name), safetensors(part)).unwrap();
        map.extend(part.iter().map(|raw| (raw.name.clone(), json!(name))));
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    fs::write(scratch.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(scratch.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn a_cache_of_links_into_blobs_is_read() {
    let scratch = Scratch::new();
    let (blobs, snapshot) = (scratch.join("blobs"), scratch.join("snapshots/abc"));
    let config = qwen3_config();
    write_model(&blobs, &config, &tensors(&config));
    fs::create_dir_all(&snapshot).unwrap();
    for name in ["config.json", "model.safetensors"] {
        #[cfg(unix)]
        std::os::unix::fs::symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    #[cfg(unix)]
    Checkpoint::open(&snapshot).unwrap();
}

#[test]
fn direct_reads_give_the_same_values() {
    let scratch = Scratch::new();
    let source = open_toy(&scratch);
    let mut direct = Checkpoint::open(&scratch.join("toy")).unwrap();
    direct.read_directly().unwrap();
    for (a, b) in source.tensors.iter().zip(&direct.tensors) {
        assert_eq!(read_all(&source, a).unwrap(), read_all(&direct, b).unwrap());
    }
}

#[test]
fn a_tied_head_is_accepted_and_not_written_twice() {
    let scratch = Scratch::new();
    let config = qwen3_config();
    let mut model = tensors(&config);
    let mut head = model[0].clone();
    head.name = "lm_head.weight".into();
    model.push(head);
    let path = scratch.join("with-head");
    write_model(&path, &config, &model);
    let source = Checkpoint::open(&path).unwrap();
    assert!(source.architecture.tied && source.find(TensorName::Head).is_some());
    let out = scratch.join("out");
    rewrite(&source, &out, Format::HuggingFace, |tensor| tensor.encoding).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    assert!(copy.architecture.tied && copy.find(TensorName::Head).is_none());
}

#[test]
fn text_files_travel_along() {
    let scratch = Scratch::new();
    let path = scratch.join("toy");
    write_model(&path, &qwen3_config(), &tensors(&qwen3_config()));
    fs::write(path.join("tokenizer.json"), b"{ \"as\": \"it is\" }").unwrap();
    fs::write(path.join("tokenizer_config.json"), b"{\"chat_template\": \"old\"}").unwrap();
    fs::write(path.join("chat_template.jinja"), b"new").unwrap();
    fs::write(path.join("generation_config.json"), b"{\"eos_token_id\": [2, 3]}").unwrap();
    fs::write(path.join("merges.txt"), b"a b").unwrap();
    let source = Checkpoint::open(&path).unwrap();
    assert_eq!(source.architecture.eos, [2, 3]);
    let out = scratch.join("out");
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::Bf16).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    assert_eq!(copy.text.tokenizer_json, source.text.tokenizer_json);
    assert_eq!(copy.text.chat_template.as_deref(), Some("new"));
    assert_eq!(copy.text.other, source.text.other);
    assert_eq!(copy.architecture, source.architecture);
}

#[test]
fn a_model_without_config_gets_one_that_reads_back() {
    let scratch = Scratch::new();
    let mut source = open_toy(&scratch);
    source.text.config = None;
    source.architecture.eos = vec![2, 5];
    let scalings = [
        RopeScaling::None,
        RopeScaling::Linear { factor: 4.0 },
        RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 },
        RopeScaling::Yarn {
            factor: 4.0,
            original: 32,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.25,
            truncate: false,
        },
    ];
    for (number, scaling) in scalings.into_iter().enumerate() {
        source.architecture.rope = Rope { theta: 50000.0, scaling };
        source.architecture.sliding_window = vec![None, (number > 1).then_some(8)];
        let out = scratch.join(&format!("out{number}"));
        rewrite(&source, &out, Format::HuggingFace, |_| Encoding::Bf16).unwrap();
        let copy = Checkpoint::open(&out).unwrap();
        assert_eq!(copy.architecture, source.architecture);
    }
}

#[test]
fn rope_divisors_of_gguf_become_llama3_scaling() {
    let scratch = Scratch::new();
    let mut source = open_toy(&scratch);
    source.text.config = None;
    source.architecture.head_dim = 16;
    let llama3 = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192 };
    let rope = |scaling| Rope { theta: 500000.0, scaling };
    let (plain, _) = rope(RopeScaling::None).inverse_frequencies(16);
    let (stretched, _) = rope(llama3.clone()).inverse_frequencies(16);
    let divisors = plain.iter().zip(&stretched).map(|(a, b)| (a / b) as f32).collect();
    source.architecture.rope = rope(RopeScaling::Frequencies(divisors));
    let out = scratch.join("out");
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::Bf16).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    let (got, _) = copy.architecture.rope.inverse_frequencies(16);
    for (got, want) in got.iter().zip(&stretched) {
        assert!((got / want - 1.0).abs() < 1e-4, "{got} {want}");
    }
}

#[test]
fn fingerprints_differ_by_one_value() {
    let scratch = Scratch::new();
    let config = qwen3_config();
    let mut model = tensors(&config);
    let (a, b) = (scratch.join("a"), scratch.join("b"));
    write_model(&a, &config, &model);
    model[0].bytes[3] ^= 1;
    write_model(&b, &config, &model);
    let open = |path| Checkpoint::open(path).unwrap().fingerprint();
    assert_eq!(open(&a), open(&a));
    assert_ne!(open(&a), open(&b));
}

#[test]
fn an_unfinished_model_cannot_be_finished() {
    let scratch = Scratch::new();
    let source = open_toy(&scratch);
    let out = scratch.join("out");
    let mut sink = create(&out, Format::HuggingFace, output_of(&source, |_| Encoding::Bf16)).unwrap();
    sink.write_rows(0, 0, &vec![0.0; 47 * 32]).unwrap();
    let error = sink.finish().unwrap_err().to_string();
    assert!(error.contains("model.embed_tokens.weight") && error.contains("row 47"), "{error}");
    assert!(!out.exists());
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "leftovers");
}

#[test]
fn q_k_and_v_must_share_their_tensor_scale() {
    let scratch = Scratch::new();
    let source = open_toy(&scratch);
    let output = output_of(&source, nvfp4_layers);
    let declared = output.tensors.clone();
    let out = scratch.join("out");
    let mut sink = create(&out, Format::ModelOpt, output).unwrap();
    for (index, tensor) in declared.iter().enumerate() {
        let count = tensor.rows() * tensor.columns();
        if tensor.encoding == Encoding::Nvfp4 {
            let (codes, scales) = (vec![0; count / 2], vec![0; count / 16]);
            sink.write_nvfp4(index, 0, &codes, &scales).unwrap();
            let odd = tensor.name == TensorName::Layer(1, LayerTensor::Up);
            sink.set_global(index, if odd { 0.5 } else { 0.25 }).unwrap();
        } else {
            sink.write_rows(index, 0, &vec![0.0; count]).unwrap();
        }
    }
    let message = sink.finish().unwrap_err().to_string();
    assert!(message.contains("layers.1.mlp.up_proj") && message.contains("0.5"), "{message}");
    assert!(!out.exists());
}
