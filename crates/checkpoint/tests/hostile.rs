//! Hostile files, one test per row of the list: each must end in an error naming file and place.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use halfbyte_checkpoint::{Architecture, Checkpoint, LayerTensor, TensorName};
use serde_json::{Value, json};

/// The refusal of a directory whose model.safetensors is `file`; it must name that file and `place`.
fn refused_file(file: &[u8], place: &str, problem: &str) {
    let scratch = Scratch::new();
    fs::write(scratch.join("config.json"), qwen3_config().to_string()).unwrap();
    fs::write(scratch.join("model.safetensors"), file).unwrap();
    let message = refusal(scratch.path());
    for part in ["model.safetensors", place, problem] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

fn entry(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn row_1_a_file_shorter_than_its_length_field_is_refused() {
    for length in 0..8 {
        refused_file(&vec![1; length], "header length", "too short");
    }
}

#[test]
fn row_2_a_header_longer_than_the_file_or_the_limit_is_refused() {
    let mut file = 1000u64.to_le_bytes().to_vec();
    file.extend(b"{}");
    refused_file(&file, "header length", "promises 1000 bytes, the file has 2");
    for length in [100_000_001, u64::MAX, 1 << 63] {
        refused_file(&length.to_le_bytes(), "header length", "allowed");
    }
}

#[test]
fn row_3_a_header_that_is_no_utf8_or_json_is_refused() {
    for header in [&b"\xff\xfe{}"[..], b"{\"\xff\": 1}", b"nonsense", b"[]", b"", b"{\"a\":", b"3"] {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        refused_file(&file, "line 1", "not valid JSON");
    }
}

#[test]
fn row_4_a_duplicate_key_is_refused() {
    let one = entry("U8", "[1]", 0, 1);
    let header = format!(r#"{{"a":{one},"a":{one}}}"#);
    refused_file(&with_header(&header, &[0]), "line 1", "\"a\" occurs twice");
    let header = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    refused_file(&with_header(header, &[0]), "line 1", "duplicate field");
}

#[test]
fn row_5_a_shape_whose_product_overflows_is_refused() {
    for shape in ["[4294967296,4294967296]", "[18446744073709551615,2]", "[9223372036854775808]"] {
        let header = format!(r#"{{"a":{}}}"#, entry("F32", shape, 0, 4));
        refused_file(&with_header(&header, &[0; 4]), "tensor a", "overflows");
    }
}

#[test]
fn row_6_offsets_backwards_or_past_the_end_are_refused() {
    let header = format!(r#"{{"a":{}}}"#, entry("U8", "[1]", 4, 3));
    refused_file(&with_header(&header, &[0; 4]), "tensor a", "before it begins");
    for end in [5, u64::MAX] {
        let header = format!(r#"{{"a":{}}}"#, entry("U8", "[5]", 0, end));
        refused_file(&with_header(&header, &[0; 4]), "tensor a", "4 bytes of data");
    }
}

#[test]
fn row_7_bytes_that_do_not_fit_shape_and_type_are_refused() {
    let header = format!(r#"{{"a":{}}}"#, entry("F32", "[2]", 0, 4));
    refused_file(&with_header(&header, &[0; 4]), "tensor a", "takes 8 bytes, it has 4");
    let header = format!(r#"{{"a":{}}}"#, entry("F17", "[1]", 0, 4));
    refused_file(&with_header(&header, &[0; 4]), "tensor a", "F17");
}

#[test]
fn row_8_overlaps_are_refused_even_of_nothing() {
    let (a, b) = (entry("U8", "[4]", 0, 4), entry("U8", "[4]", 2, 6));
    let header = format!(r#"{{"a":{a},"b":{b}}}"#);
    refused_file(&with_header(&header, &[0; 6]), "tensor b", "overlaps");
    let header = format!(r#"{{"a":{a},"b":{a}}}"#);
    refused_file(&with_header(&header, &[0; 4]), "tensor b", "overlaps");
    let empty = entry("U8", "[0]", 2, 2);
    let header = format!(r#"{{"a":{a},"b":{empty}}}"#);
    refused_file(&with_header(&header, &[0; 4]), "tensor b", "holds nothing");
}

#[test]
fn row_9_holes_and_trailing_bytes_are_refused() {
    let (a, b) = (entry("U8", "[2]", 0, 2), entry("U8", "[2]", 4, 6));
    let header = format!(r#"{{"a":{a},"b":{b}}}"#);
    refused_file(&with_header(&header, &[0; 6]), "tensor b", "hole");
    let header = format!(r#"{{"a":{a}}}"#);
    refused_file(&with_header(&header, &[0; 6]), "offset", "4 bytes follow");
}

#[test]
fn row_10_a_million_levels_of_nesting_are_refused() {
    let deep = "[".repeat(1_000_000);
    let objects = r#"{"a":"#.repeat(1_000_000);
    for header in [
        deep.clone(),
        format!(r#"{{"a":{deep}"#),
        objects.clone(),
        format!(r#"{{"__metadata__":{objects}"#),
        format!(r#"{{"a":{{"dtype":{deep}"#),
        format!(r#"{{"a":{{"unknown":{deep}"#),
    ] {
        refused_file(&with_header(&header, &[]), "line 1", "not valid JSON");
    }
    let scratch = Scratch::new();
    fs::write(scratch.join("config.json"), objects).unwrap();
    let message = refusal(scratch.path());
    assert!(message.contains("config.json") && message.contains("recursion"), "{message}");
}

// ---- .dat ----

fn leb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn dat_entry(key: &str, element: u64, dims: &[u64], data: &[u8]) -> Vec<u8> {
    let mut bytes = leb(key.len() as u64);
    bytes.extend(key.as_bytes());
    bytes.extend(leb(element));
    bytes.extend(leb(dims.len() as u64));
    dims.iter().for_each(|&dim| bytes.extend(leb(dim)));
    bytes.extend(data);
    bytes
}

fn dat(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = leb(entries.len() as u64);
    bytes.extend(entries.concat());
    bytes
}

fn refused_dat(file: &[u8], place: &str, problem: &str) {
    let scratch = Scratch::new();
    fs::write(scratch.join("config.json"), llama_config().to_string()).unwrap();
    fs::write(scratch.join("model.dat"), file).unwrap();
    let message = refusal(&scratch.join("model.dat"));
    for part in ["model.dat", place, problem] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn row_23_an_endless_leb128_number_is_refused() {
    refused_dat(&[0x80; 64], "entry count", "63 bits");
    let mut file = vec![1];
    file.extend([0xff; 40]);
    refused_dat(&file, "entry 0", "63 bits");
    refused_dat(&[], "entry count", "ends here");
    refused_dat(&leb(1 << 40), "entry count", "cannot be in");
}

#[test]
fn row_24_dimensions_that_wrap_are_refused() {
    for dims in [&[1 << 32, 1 << 32][..], &[1 << 62, 4], &[(1 << 62) + 1; 3]] {
        refused_dat(&dat(&[dat_entry(Q, 6, dims, &[0; 8])]), Q, "overflow");
    }
    refused_dat(&dat(&[dat_entry(Q, 6, &[1; 9], &[0; 4])]), Q, "dimensions");
}

#[test]
fn row_25_codes_without_scales_and_scales_without_codes_are_refused() {
    let qdata = dat_entry(&format!("{Q}.qdata"), 0, &[32, 16], &[0; 512]);
    let scale = dat_entry(&format!("{Q}.scale"), 101, &[32, 2], &[0x38; 64]);
    refused_dat(&dat(&[qdata]), ".qdata", "no .scale");
    refused_dat(&dat(&[scale]), ".scale", "no .qdata");
}

#[test]
fn row_26_a_scale_shape_that_does_not_match_is_refused() {
    let qdata = dat_entry(&format!("{Q}.qdata"), 0, &[32, 16], &[0; 512]);
    for dims in [&[32, 1][..], &[16, 2], &[64], &[2, 32]] {
        let count: u64 = dims.iter().product();
        let scale = dat_entry(&format!("{Q}.scale"), 101, dims, &vec![0x38; count as usize]);
        refused_dat(&dat(&[qdata.clone(), scale]), ".scale", "the codes ask for [32, 2]");
    }
}

#[test]
fn row_27_data_past_the_end_of_the_file_is_refused() {
    refused_dat(&dat(&[dat_entry(Q, 6, &[32, 32], &[0; 100])]), Q, "the file ends after 100");
    let mut file = dat(&[dat_entry(Q, 6, &[1], &[0; 4])]);
    file.push(0);
    refused_dat(&file, "offset", "1 bytes follow");
}

#[test]
fn row_28_a_payload_beyond_2_gib_that_is_not_there_is_refused() {
    let file = dat(&[dat_entry(Q, 6, &[1 << 20, 1 << 20], &[0; 16])]);
    refused_dat(&file, Q, "4398046511104 bytes");
}

#[test]
fn unknown_types_and_keys_of_a_dat_are_refused() {
    refused_dat(&dat(&[dat_entry(Q, 4711, &[1], &[0])]), Q, "4711");
    refused_dat(&dat(&[dat_entry(Q, 4, &[1], &[0; 8])]), Q, "cannot hold weights");
    refused_dat(&dat(&[dat_entry("x.absmax", 6, &[1], &[0; 4])]), "x.absmax", "NF4");
    refused_dat(&dat(&[dat_entry("", 6, &[1], &[0; 4])]), "entry 0", "key of 0 bytes");
    let mut key = vec![1, 2, 0xff, 0xfe];
    key.extend([6, 0]);
    refused_dat(&key, "entry 0", "UTF-8");
}

#[test]
fn a_dat_without_config_says_so() {
    let scratch = Scratch::new();
    fs::write(scratch.join("model.dat"), dat(&[])).unwrap();
    let message = refusal(&scratch.join("model.dat"));
    assert!(message.contains("model.dat") && message.contains("config.json"), "{message}");
}

// ---- NVFP4 values ----

/// A Llama whose q is stored as ModelOpt (or compressed-tensors) does.
fn quantised(directory: &Path, packed: bool, columns: usize, scale: u8, global: f32) {
    let mut config = llama_config();
    config["hidden_size"] = json!(columns);
    config["head_dim"] = json!(16);
    let mut model = tensors(&config);
    let (weight, key) = match packed {
        true => ("weight_packed", "weight_global_scale"),
        false => ("weight", "weight_scale_2"),
    };
    let base = "model.layers.0.self_attn.q_proj";
    let index = model.iter().position(|raw| raw.name == Q).unwrap();
    let codes = vec![0; 32 * columns / 2];
    model[index] = Raw::bytes(&format!("{base}.{weight}"), "U8", &[32, columns / 2], codes);
    let blocks = columns / 16;
    let mut scales = vec![0x38; 32 * blocks];
    scales[5] = scale;
    model.push(Raw::bytes(&format!("{base}.weight_scale"), "F8_E4M3", &[32, blocks], scales));
    model.push(Raw::f32(&format!("{base}.{key}"), &[1], &[global]));
    write_model(directory, &config, &model);
}

#[test]
fn row_29_a_tensor_scale_that_is_no_positive_number_is_refused() {
    for packed in [false, true] {
        for global in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let scratch = Scratch::new();
            quantised(scratch.path(), packed, 32, 0x38, global);
            let message = refusal(scratch.path());
            assert!(message.contains("model.safetensors"), "{message}");
            assert!(message.contains("self_attn.q_proj.weight_"), "{message}");
            assert!(message.contains("positive finite"), "{message}");
        }
    }
    let scratch = Scratch::new();
    quantised(scratch.path(), true, 32, 0x38, 1e-45); // its inverse is infinite
    assert!(refusal(scratch.path()).contains("positive finite"));
}

#[test]
fn row_30_a_block_scale_that_is_no_number_is_refused_with_its_block() {
    for (scale, what) in [(0x7f, "not a number"), (0xff, "not a number"), (0xb8, "negative")] {
        let scratch = Scratch::new();
        quantised(scratch.path(), false, 32, scale, 1.0);
        let checkpoint = Checkpoint::open(scratch.path()).unwrap();
        let tensor = checkpoint.find(TensorName::Layer(0, LayerTensor::Q)).unwrap();
        let (mut codes, mut scales) = (vec![0; 31 * 16], vec![0; 31 * 2]);
        let errors = [
            checkpoint.read_f32(tensor, 0..32, &mut vec![0.0; 32 * 32]).unwrap_err(),
            checkpoint.read_nvfp4(tensor, 1..32, &mut codes, &mut scales).unwrap_err(),
        ];
        for message in errors.map(|error| error.to_string()) {
            for part in ["model.safetensors", "q_proj.weight_scale", "block 5", what] {
                assert!(message.contains(part), "{part:?} is not in: {message}");
            }
        }
    }
}

#[test]
fn row_31_rows_that_are_no_whole_blocks_are_refused() {
    let scratch = Scratch::new();
    quantised(scratch.path(), false, 40, 0x38, 1.0);
    let message = refusal(scratch.path());
    assert!(message.contains(Q) && message.contains("40 columns"), "{message}");
    let qdata = dat_entry(&format!("{Q}.qdata"), 0, &[32, 20], &[0; 640]);
    let scale = dat_entry(&format!("{Q}.scale"), 101, &[32, 2], &[0x38; 64]);
    refused_dat(&dat(&[qdata, scale]), ".qdata", "40 columns");
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let cases = [
        ("q_proj.pre_quant_scale", "AWQ"),
        ("q_proj.weight.absmax", "bitsandbytes"),
        ("q_proj.qweight", "GPTQ"),
        ("q_proj.lora_A", "no decoder"),
    ];
    for (ending, what) in cases {
        let scratch = Scratch::new();
        let mut model = tensors(&llama_config());
        let name = format!("model.layers.0.self_attn.{ending}");
        model.push(Raw::f32(&name, &[1], &[1.0]));
        write_model(scratch.path(), &llama_config(), &model);
        let message = refusal(scratch.path());
        assert!(message.contains(&name) && message.contains(what), "{message}");
    }
}

// ---- shard index ----

fn refused_index(prepare: impl Fn(&Scratch, &mut Value), place: &str, problem: &str) {
    let scratch = Scratch::new();
    let config = llama_config();
    let model = tensors(&config);
    fs::write(scratch.join("config.json"), config.to_string()).unwrap();
    fs::write(scratch.join("one.safetensors"), safetensors(&model)).unwrap();
    let map: serde_json::Map<String, Value> =
        model.iter().map(|raw| (raw.name.clone(), json!("one.safetensors"))).collect();
    let mut index = json!({ "weight_map": map });
    prepare(&scratch, &mut index);
    let index = match index {
        Value::String(text) => text,
        value => value.to_string(),
    };
    fs::write(scratch.join("model.safetensors.index.json"), index).unwrap();
    let message = refusal(scratch.path());
    for part in [place, problem] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn row_42_shards_outside_the_directory_are_refused() {
    for name in ["../one.safetensors", "/etc/passwd", "a/one.safetensors", "..", "", ".", "a\\b"] {
        let set = |_: &Scratch, index: &mut Value| index["weight_map"]["lm_head.weight"] = json!(name);
        refused_index(set, "lm_head.weight", "leads out");
    }
    #[cfg(unix)]
    refused_index(
        |scratch, index| {
            std::os::unix::fs::symlink("/etc/passwd", scratch.join("link.safetensors")).unwrap();
            index["weight_map"]["lm_head.weight"] = json!("link.safetensors");
        },
        "index.json",
        "outside the directory",
    );
}

#[test]
fn row_42_a_single_file_that_links_out_is_refused() {
    #[cfg(unix)]
    {
        let scratch = Scratch::new();
        let model = scratch.join("model");
        fs::create_dir(&model).unwrap();
        fs::write(model.join("config.json"), llama_config().to_string()).unwrap();
        fs::write(scratch.join("other"), safetensors(&tensors(&llama_config()))).unwrap();
        std::os::unix::fs::symlink("../other", model.join("model.safetensors")).unwrap();
        let message = refusal(&model);
        assert!(message.contains("model.safetensors") && message.contains("outside"), "{message}");
    }
}

#[test]
fn row_43_missing_extra_and_doubly_mapped_tensors_are_refused_by_name() {
    refused_index(
        |_, index| index["weight_map"]["extra.weight"] = json!("one.safetensors"),
        "extra.weight",
        "does not have it",
    );
    refused_index(
        |_, index| drop(index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight")),
        "lm_head.weight",
        "does not name it",
    );
    refused_index(
        |_, index| {
            let twice = r#""weight_map":{"lm_head.weight":"one.safetensors","#;
            *index = json!(index.to_string().replace(r#""weight_map":{"#, twice));
        },
        "line 1",
        "lm_head.weight is mapped twice",
    );
    refused_index(
        |scratch, index| {
            let head = tensors(&llama_config()).pop().unwrap();
            fs::write(scratch.join("two.safetensors"), safetensors(&[head])).unwrap();
            index["weight_map"]["lm_head.weight"] = json!("two.safetensors");
        },
        "lm_head.weight",
        "the index places it in",
    );
    refused_index(
        |_, index| index["weight_map"]["lm_head.weight"] = json!("three.safetensors"),
        "lm_head.weight",
        "not there",
    );
}

// ---- config.json ----

fn refused_config(change: impl Fn(&mut Value), place: &str, problem: &str) {
    let mut config = llama_config();
    change(&mut config);
    let error = Architecture::from_config(Path::new("some/config.json"), &config, None);
    let message = error.expect_err(place).to_string();
    for part in ["some/config.json", place, problem] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn row_44_head_counts_of_zero_or_not_dividing_are_refused() {
    refused_config(|c| c["num_attention_heads"] = json!(0), "num_attention_heads", "0");
    refused_config(|c| c["num_key_value_heads"] = json!(0), "num_key_value_heads", "0");
    refused_config(|c| c["num_attention_heads"] = json!(5), "num_attention_heads", "do not divide");
    refused_config(
        |c| {
            c["num_attention_heads"] = json!(4);
            c["num_key_value_heads"] = json!(3);
        },
        "num_key_value_heads",
        "evenly",
    );
    refused_config(|c| c["head_dim"] = json!(7), "head_dim", "odd");
    refused_config(|c| c["head_dim"] = json!(-16), "head_dim", "-16");
}

#[test]
fn row_45_layer_counts_and_sizes_beyond_reason_are_refused() {
    for layers in [1u64 << 31, u64::MAX, 0] {
        refused_config(|c| c["num_hidden_layers"] = json!(layers), "num_hidden_layers", "");
    }
    for key in ["hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"] {
        refused_config(|c| c[key] = json!(1u64 << 40), key, "1099511627776");
        refused_config(|c| c[key] = json!(0), key, "0");
        refused_config(|c| c[key] = json!("many"), key, "many");
    }
    refused_config(
        |c| {
            c["hidden_size"] = json!(1 << 27);
            c["intermediate_size"] = json!(1 << 27);
        },
        "",
        "2^48",
    );
}

#[test]
fn row_46_rope_and_epsilon_that_are_no_numbers_are_refused() {
    let scratch = Scratch::new();
    for literal in ["NaN", "Infinity", "1e999"] {
        let mut config = llama_config();
        config["rms_norm_eps"] = json!("here");
        let text = config.to_string().replace("\"here\"", literal);
        fs::write(scratch.join("config.json"), text).unwrap();
        let message = refusal(scratch.path());
        assert!(message.contains("config.json") && message.contains("line 1"), "{message}");
    }
    refused_config(|c| c["rms_norm_eps"] = json!("NaN"), "rms_norm_eps", "NaN");
    refused_config(|c| c["rms_norm_eps"] = json!(-1.0), "rms_norm_eps", "-1");
    refused_config(|c| c["rope_theta"] = json!(0.0), "rope_theta", "0");
    refused_config(|c| c["rope_theta"] = json!("NaN"), "rope_theta", "NaN");
    let scaling = |value: Value| move |c: &mut Value| c["rope_scaling"] = value.clone();
    refused_config(scaling(json!({ "type": "linear", "factor": 0 })), "factor", "0");
    refused_config(scaling(json!({ "type": "linear" })), "factor", "missing");
    refused_config(scaling(json!({ "type": "longrope" })), "rope_type", "longrope");
    refused_config(scaling(json!("linear")), "rope_scaling", "object");
}

#[test]
fn row_47_a_tie_flag_against_the_tensors_is_refused() {
    let scratch = Scratch::new();
    let mut config = llama_config();
    let model = tensors(&config);
    config["tie_word_embeddings"] = json!(true); // but the head differs
    write_model(scratch.path(), &config, &model);
    let message = refusal(scratch.path());
    assert!(message.contains("lm_head.weight") && message.contains("tie_word"), "{message}");
    config["tie_word_embeddings"] = json!(false);
    write_model(scratch.path(), &config, &model[..model.len() - 1]);
    let message = refusal(scratch.path());
    assert!(message.contains("lm_head.weight") && message.contains("tie_word"), "{message}");
}

#[test]
fn missing_and_misshapen_tensors_are_refused_by_name() {
    let scratch = Scratch::new();
    let config = llama_config();
    let mut model = tensors(&config);
    let gone = model.remove(3);
    write_model(scratch.path(), &config, &model);
    assert!(refusal(scratch.path()).contains(&gone.name));
    model.insert(3, Raw::f32(&gone.name, &[16, 64], &values(3, 1024)));
    write_model(scratch.path(), &config, &model);
    let message = refusal(scratch.path());
    assert!(message.contains(&gone.name) && message.contains("[32, 32]"), "{message}");
    let mut model = tensors(&config);
    model.push(Raw::f32("model.layers.7.input_layernorm.weight", &[32], &values(1, 32)));
    write_model(scratch.path(), &config, &model);
    assert!(refusal(scratch.path()).contains("model.layers.7"));
}

#[test]
fn unknown_families_and_switches_are_refused() {
    refused_config(|c| c["model_type"] = json!("gemma3"), "model_type", "qwen3, qwen2, llama");
    refused_config(|c| c["hidden_act"] = json!("gelu"), "hidden_act", "gelu");
    refused_config(|c| c["partial_rotary_factor"] = json!(0.5), "partial_rotary_factor", "0.5");
    let gptq = json!({ "quant_method": "gptq" });
    refused_config(|c| c["quantization_config"] = gptq.clone(), "quantization_config", "gptq");
}

#[test]
fn paths_that_are_no_models_are_refused() {
    let scratch = Scratch::new();
    assert!(refusal(scratch.path()).contains("config.json"));
    assert!(refusal(&scratch.join("nowhere")).contains("nowhere"));
    fs::write(scratch.join("file.bin"), b"whatever").unwrap();
    assert!(refusal(&scratch.join("file.bin")).contains("neither"));
    fs::write(scratch.join("config.json"), llama_config().to_string()).unwrap();
    assert!(refusal(scratch.path()).contains("model.safetensors"));
    fs::write(scratch.join("pytorch_model.bin"), b"").unwrap();
    assert!(refusal(scratch.path()).contains("can run code"));
}
