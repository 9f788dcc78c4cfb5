//! GGUF written and read back: names, shapes, values, metadata, row order.

mod gguf_toy;

use gguf_toy::*;
use halfbyte_checkpoint::{
    Checkpoint, Encoding, Family, Format, GgufArray, GgufValue, LayerTensor, RopeScaling, TensorName, create,
};
use halfbyte_formats::ggml;

const FAMILIES: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];

#[test]
fn every_family_and_plain_encoding_reads_back_as_written() {
    for family in FAMILIES {
        for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16] {
            let path = scratch(&format!("plain-{}-{encoding}.gguf", family.name()));
            let output = output(architecture(family), encoding);
            write(&path, output.clone());
            let checkpoint = Checkpoint::open(&path).expect("open");
            assert_eq!(checkpoint.architecture, output.architecture);
            assert_eq!(checkpoint.tensors.len(), output.tensors.len());
            for tensor in &output.tensors {
                let found = checkpoint.find(tensor.name).expect("tensor");
                assert_eq!(found.shape, tensor.shape);
                let expected = match tensor.shape.len() {
                    1 => Encoding::F32,
                    _ => tensor.encoding,
                };
                assert_eq!(found.encoding, expected, "{}", tensor.name);
                let written = rows(tensor.name, 0..tensor.rows(), tensor.columns());
                assert!(read(&checkpoint, tensor.name) == written, "{}", tensor.name);
            }
        }
    }
}

#[test]
fn q8_0_is_what_the_encoder_makes_of_each_row() {
    let path = scratch("q8.gguf");
    let output = output(architecture(Family::Llama), Q8_0);
    write(&path, output.clone());
    let checkpoint = Checkpoint::open(&path).expect("open");
    for tensor in output.tensors.iter().filter(|tensor| tensor.encoding == Q8_0) {
        let values = rows(tensor.name, 0..tensor.rows(), tensor.columns());
        let mut bytes = vec![0; values.len() / 32 * 34];
        ggml::encode_row_q8_0(&values, &mut bytes);
        let mut decoded = vec![0.0; values.len()];
        ggml::decode_row(ggml::Type::Q8_0, &bytes, &mut decoded);
        assert!(read(&checkpoint, tensor.name) == decoded, "{}", tensor.name);
        let found = checkpoint.find(tensor.name).expect("tensor");
        let mut raw = vec![0; bytes.len()];
        checkpoint.read_raw(found, 0..tensor.rows(), &mut raw).expect("raw");
        assert!(raw == bytes, "{}", tensor.name);
    }
}

#[test]
fn nvfp4_codes_scales_and_globals_survive() {
    for family in FAMILIES {
        let path = scratch(&format!("nvfp4-{}.gguf", family.name()));
        let output = output(architecture(family), Encoding::Nvfp4);
        write(&path, output.clone());
        let checkpoint = Checkpoint::open(&path).expect("open");
        let metadata = checkpoint.text.gguf.as_ref().expect("metadata");
        assert_eq!(metadata.get("general.file_type"), Some(&GgufValue::U32(39)));
        for tensor in output.tensors.iter().filter(|tensor| tensor.encoding == Encoding::Nvfp4) {
            let found = checkpoint.find(tensor.name).expect("tensor");
            let (count, columns) = (tensor.rows(), tensor.columns());
            let (mut codes, mut scales) = (vec![0; count * columns / 2], vec![0; count * columns / 16]);
            checkpoint.read_nvfp4(found, 0..count, &mut codes, &mut scales).expect("read");
            let written = nvfp4_rows(tensor.name, 0..count, columns);
            assert!((codes, scales) == written, "{}", tensor.name);
            let stored = checkpoint.nvfp4_global(found).expect("global");
            assert_eq!(stored, global(tensor.name));
            let decoded = read(&checkpoint, tensor.name);
            let mut expected = vec![0.0; columns];
            let (codes, scales) = nvfp4_rows(tensor.name, 3..4, columns);
            halfbyte_formats::nvfp4::decode_row(&codes, &scales, stored, &mut expected);
            assert_eq!(decoded[3 * columns..4 * columns], expected);
        }
    }
}

#[test]
fn copying_raw_rows_reproduces_the_file_byte_for_byte() {
    for (family, encoding) in [(Family::Llama, Q8_0), (Family::Qwen2, Encoding::Nvfp4)] {
        let first = scratch(&format!("copy-{}-a.gguf", family.name()));
        let second = scratch(&format!("copy-{}-b.gguf", family.name()));
        let mut output = output(architecture(family), encoding);
        write(&first, output.clone());
        let source = Checkpoint::open(&first).expect("open");
        output.text = source.text.clone();
        let mut sink = create(&second, Format::Gguf, output.clone()).expect("create");
        for (index, declared) in output.tensors.iter().enumerate() {
            let from = source.find(declared.name).expect("tensor");
            let mut declared = declared.clone();
            if declared.shape.len() == 1 {
                let values = read(&source, declared.name);
                sink.write_rows(index, 0, &values).expect("write");
                continue;
            }
            if declared.encoding == Encoding::Nvfp4 {
                declared.encoding = from.encoding;
            }
            let copied = halfbyte_checkpoint::copy_tensor(&source, from, sink.as_mut(), index, &declared);
            assert!(copied.expect("copy"));
        }
        sink.finish().expect("finish");
        let (first, second) = (std::fs::read(first), std::fs::read(second));
        assert!(first.expect("first") == second.expect("second"), "{encoding}");
    }
}

#[test]
fn biases_of_llama_are_reordered_with_their_rows() {
    let path = scratch("llama-bias.gguf");
    let mut model = architecture(Family::Llama);
    (model.qkv_bias, model.output_bias, model.mlp_bias) = (true, true, true);
    let output = output(model, Encoding::F32);
    write(&path, output.clone());
    let checkpoint = Checkpoint::open(&path).expect("open");
    assert_eq!(checkpoint.architecture, output.architecture);
    for bias in [LayerTensor::QBias, LayerTensor::KBias, LayerTensor::VBias, LayerTensor::UpBias] {
        let name = TensorName::Layer(1, bias);
        let columns = output.architecture.shape(name)[0];
        assert_eq!(read(&checkpoint, name), rows(name, 0..1, columns));
    }
}

#[test]
fn rope_scalings_survive() {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original: 128,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        truncate: true,
    };
    let frequencies = RopeScaling::Frequencies((0..8).map(|i| 1.0 + i as f32).collect());
    for (number, scaling) in [RopeScaling::Linear { factor: 2.0 }, yarn, frequencies].into_iter().enumerate()
    {
        let path = scratch(&format!("rope-{number}.gguf"));
        let mut model = architecture(Family::Llama);
        model.rope.scaling = scaling;
        write(&path, output(model.clone(), Encoding::F32));
        assert_eq!(Checkpoint::open(&path).expect("open").architecture, model);
    }
}

#[test]
fn llama3_frequencies_come_back_as_divisors_of_the_same_frequencies() {
    let path = scratch("llama3.gguf");
    let mut model = architecture(Family::Llama);
    model.rope.scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
    write(&path, output(model.clone(), Encoding::F32));
    let opened = Checkpoint::open(&path).expect("open").architecture;
    assert!(matches!(opened.rope.scaling, RopeScaling::Frequencies(_)));
    let (ours, _) = model.rope.inverse_frequencies(16);
    let (stored, _) = opened.rope.inverse_frequencies(16);
    for (ours, stored) in ours.iter().zip(stored) {
        assert!((ours / stored - 1.0).abs() < 1e-6, "{ours} {stored}");
    }
}

#[test]
fn windows_of_some_layers_survive() {
    let path = scratch("window.gguf");
    for windows in [vec![Some(64), Some(64)], vec![None, Some(64)]] {
        let mut model = architecture(Family::Qwen2);
        model.sliding_window = windows;
        write(&path, output(model.clone(), Encoding::F32));
        assert_eq!(Checkpoint::open(&path).expect("open").architecture, model);
    }
}

#[test]
fn vocabulary_and_template_travel_and_are_padded_to_the_embedding() {
    let path = scratch("vocabulary.gguf");
    write(&path, output(architecture(Family::Qwen3), Encoding::F16));
    let checkpoint = Checkpoint::open(&path).expect("open");
    assert_eq!(checkpoint.text.chat_template.as_deref(), Some("{{ messages }}"));
    let metadata = checkpoint.text.gguf.expect("metadata");
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(GgufValue::as_strings);
    let tokens = tokens.expect("tokens");
    assert_eq!((tokens.len(), tokens[39].as_str()), (40, "[PAD39]"));
    let types = metadata.get("tokenizer.ggml.token_type").expect("types");
    let GgufValue::Array(GgufArray::I32(types)) = types else {
        panic!("types are I32");
    };
    assert_eq!(types[37..], [1, 5, 5]);
    assert_eq!(metadata.get("general.name"), Some(&GgufValue::String("toy".into())));
    assert_eq!(metadata.get("general.file_type"), Some(&GgufValue::U32(1)));
    assert_eq!(metadata.get("llama.block_count"), None);
    assert_eq!(metadata.get("split.count"), None);
}

#[test]
fn a_tied_head_is_taken_but_not_written_unless_it_is_nvfp4() {
    for (encoding, stored) in [(Encoding::F16, false), (Encoding::Nvfp4, true)] {
        let path = scratch(&format!("tied-{encoding}.gguf"));
        let model = architecture(Family::Llama);
        let mut output = output(model.clone(), Encoding::F16);
        output.tensors.push(halfbyte_checkpoint::OutputTensor {
            name: TensorName::Head,
            shape: model.shape(TensorName::Head),
            encoding,
        });
        write(&path, output);
        let checkpoint = Checkpoint::open(&path).expect("open");
        assert_eq!(checkpoint.find(TensorName::Head).is_some(), stored);
        assert_eq!(checkpoint.architecture.tied, !stored);
    }
}

#[test]
fn what_gguf_cannot_hold_is_refused_with_a_remedy() {
    let path = scratch("refused.gguf");
    let refused = |output: halfbyte_checkpoint::Output, words: &[&str]| {
        let error = create(&path, Format::Gguf, output).err().expect("refused").to_string();
        for word in words {
            assert!(error.contains(word), "{error}");
        }
    };
    let mut narrow = architecture(Family::Llama);
    narrow.intermediate_size = 96;
    refused(output(narrow, Encoding::Nvfp4), &["blk.0.ffn_down.weight", "96", "Q8_0"]);
    let mut embedding = output(architecture(Family::Llama), Encoding::F16);
    embedding.tensors[0].encoding = Encoding::Nvfp4;
    refused(embedding, &["token_embd.weight", "Q8_0"]);
    let mut missing = output(architecture(Family::Llama), Encoding::F16);
    missing.tensors.pop();
    refused(missing, &["model.norm.weight"]);
    let mut long = output(architecture(Family::Llama), Encoding::F16);
    let tokens = GgufArray::String(vec![String::new(); 41]);
    let metadata = long.text.gguf.as_mut().expect("metadata");
    metadata.set("tokenizer.ggml.tokens", GgufValue::Array(tokens));
    refused(long, &["tokenizer.ggml.tokens", "41", "40"]);
    assert!(!path.exists());
}

#[test]
fn an_unfinished_file_never_appears() {
    let path = scratch("unfinished.gguf");
    let output = output(architecture(Family::Llama), Encoding::F16);
    let mut sink = create(&path, Format::Gguf, output).expect("create");
    sink.write_rows(0, 0, &[0.0; 64]).expect("write");
    let error = sink.finish().expect_err("incomplete").to_string();
    assert!(error.contains("row 1"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_model_in_two_parts_is_read_as_one() {
    let whole = scratch("parts.gguf");
    write(&whole, output(architecture(Family::Llama), Encoding::F32));
    let bytes = std::fs::read(&whole).expect("read");
    let split = gguf_toy::split(&bytes, 3);
    for (name, part) in ["parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"].iter().zip(split) {
        std::fs::write(scratch(name), part).expect("write");
    }
    let one = Checkpoint::open(&whole).expect("whole");
    let two = Checkpoint::open(&scratch("parts-00002-of-00002.gguf")).expect("parts");
    assert_eq!(one.architecture, two.architecture);
    for tensor in &one.tensors {
        assert!(read(&one, tensor.name) == read(&two, tensor.name), "{}", tensor.name);
    }
    std::fs::rename(scratch("parts-00001-of-00002.gguf"), scratch("lost.gguf")).expect("rename");
    for name in ["parts-00002-of-00002.gguf", "lost.gguf"] {
        let error = Checkpoint::open(&scratch(name)).expect_err("a part is missing").to_string();
        assert!(error.contains("of 2") || error.contains("merge"), "{error}");
    }
}

/// Writes the files that scripts/golden/gguf_check.py reads with the `gguf` package.
#[test]
fn toys_for_the_python_check_are_written_on_request() {
    let Some(directory) = std::env::var_os("HALFBYTE_GGUF_TOYS") else {
        eprintln!("skipped: HALFBYTE_GGUF_TOYS names no directory for scripts/golden/gguf_check.py");
        return;
    };
    for family in FAMILIES {
        for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16, Q8_0, Encoding::Nvfp4] {
            let name = format!("{}-{encoding}.gguf", family.name());
            let path = std::path::Path::new(&directory).join(name);
            write(&path, output(architecture(family), encoding));
        }
    }
}
