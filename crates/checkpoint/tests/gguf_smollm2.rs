//! SmolLM2 as published: architecture, names, and every decoded value against the `gguf` package.

use std::path::PathBuf;

use halfbyte_checkpoint::{Checkpoint, Encoding, Family, GgufValue, RopeScaling, TensorName};
use halfbyte_formats::ggml;

#[test]
fn vocabulary_files_of_other_models_give_their_metadata() {
    let assets = std::env::var_os("HALFBYTE_ASSETS").map(PathBuf::from);
    let entries = assets.and_then(|assets| std::fs::read_dir(assets.join("vocabs")).ok());
    let Some(entries) = entries else {
        eprintln!("skipped: HALFBYTE_ASSETS names no folder with vocabs/*.gguf");
        return;
    };
    let paths = entries.map(|entry| entry.expect("entry").path());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")) {
        let metadata = halfbyte_checkpoint::gguf::read_metadata(&path).expect("metadata");
        let tokens = metadata.get("tokenizer.ggml.tokens").and_then(GgufValue::as_strings);
        assert!(tokens.is_some_and(|tokens| tokens.len() > 1000), "{}", path.display());
    }
}

/// The model, or a visible line that says why it was not tested.
fn smollm2() -> Option<Checkpoint> {
    let Some(assets) = std::env::var_os("HALFBYTE_ASSETS") else {
        eprintln!("skipped: HALFBYTE_ASSETS names no folder with SmolLM2");
        return None;
    };
    let path = PathBuf::from(assets).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    Some(Checkpoint::open(&path).expect("open"))
}

#[test]
fn the_architecture_is_the_published_one() {
    let Some(checkpoint) = smollm2() else {
        return;
    };
    let model = &checkpoint.architecture;
    assert_eq!(checkpoint.tensors.len(), 272);
    assert_eq!(model.family, Family::Llama);
    assert_eq!((model.layers, model.hidden_size, model.intermediate_size), (30, 576, 1536));
    assert_eq!((model.heads, model.kv_heads, model.head_dim), (9, 3, 64));
    assert_eq!((model.vocab_size, model.max_context), (49152, 8192));
    assert_eq!((model.rope.theta, &model.rope.scaling), (100000.0, &RopeScaling::None));
    assert_eq!(model.norm_eps, 1e-5);
    assert_eq!((model.bos, &model.eos[..]), (Some(1), &[2][..]));
    assert!(model.tied && !model.qk_norm && !model.qkv_bias && !model.output_bias);
    assert!(checkpoint.text.chat_template.is_some_and(|text| text.contains("im_start")));
    let embedding = checkpoint.tensors.iter().find(|tensor| tensor.name == TensorName::Embedding);
    assert_eq!(embedding.map(|tensor| tensor.encoding), Some(Encoding::Ggml(ggml::Type::Q8_0)));
}

#[test]
fn every_tensor_decodes_as_the_gguf_package_decodes_it() {
    let Some(checkpoint) = smollm2() else {
        return;
    };
    let golden = include_str!("golden/smollm2-sums.json");
    let golden: serde_json::Value = serde_json::from_str(golden).expect("golden file is JSON");
    for tensor in &checkpoint.tensors {
        let mut values = vec![0.0; tensor.values()];
        checkpoint.read_f32(tensor, 0..tensor.rows(), &mut values).expect("read");
        let sum = values.iter().enumerate().fold(0u64, |sum, (index, value)| {
            let weight = index as u64 % 65521 + 1;
            sum.wrapping_add(weight.wrapping_mul(u64::from(value.to_bits())))
        });
        let expected = golden[&tensor.disk_name].as_str();
        assert_eq!(Some(format!("{sum:016x}").as_str()), expected, "{}", tensor.disk_name);
    }
}
