//! The built program on a toy model it makes itself: inspect, convert, diff, init, end to end.

mod program;

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

/// A directory that goes away with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("halfbyte-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A toy model called `toy`, and its path.
    fn toy(&self, changes: Value) -> String {
        let mut config = json!({
            "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "eos_token_id": 7,
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        std::fs::write(self.0.join("toy.json"), config.to_string()).unwrap();
        let (config, out) = (self.at("toy.json"), self.at("toy"));
        succeed(&["init", "--config", &config, "--out", &out, "--seed", "5"]);
        out
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn halfbyte(args: &[&str]) -> Output {
    program::halfbyte().args(args).output().unwrap()
}

fn succeed(args: &[&str]) -> String {
    let output = halfbyte(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).unwrap()
}

/// Runs what must be refused; the exit code and the message.
fn refused(args: &[&str]) -> (i32, String) {
    let output = halfbyte(args);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn convert(from: &str, to: &str, format: &str, more: &[&str]) -> Value {
    let args = [&["convert", from, to, "--to", format, "--json"], more].concat();
    json_of(&args)
}

fn diff(a: &str, b: &str) -> Value {
    json_of(&["diff", a, b, "--json"])
}

/// Names with shapes, as `inspect` lists them.
fn shapes(model: &str) -> Vec<(String, Value)> {
    let inspected = json_of(&["inspect", model, "--json"]);
    let tensors = inspected["tensors"].as_array().unwrap().iter();
    tensors.map(|tensor| (tensor["name"].as_str().unwrap().to_string(), tensor["shape"].clone())).collect()
}

#[test]
fn a_model_goes_round_through_every_format() {
    let place = Place::new("round");
    for (number, family) in ["qwen3", "qwen2", "llama"].into_iter().enumerate() {
        let _ = std::fs::remove_dir_all(place.0.join("toy"));
        let tied = number != 1;
        let toy = place.toy(json!({ "model_type": family, "tie_word_embeddings": tied }));
        let path = |name: &str| place.at(&format!("{family}-{name}"));
        let (gguf, hf, modelopt, back) = (path("f16.gguf"), path("hf"), path("modelopt"), path("back"));
        convert(&toy, &gguf, "gguf", &["--weights", "bf16"]);
        assert_eq!(diff(&toy, &gguf)["same"], json!(true), "{family}: bf16 in GGUF loses nothing");
        convert(&gguf, &hf, "hf", &[]);
        assert_eq!(diff(&toy, &hf)["same"], json!(true), "{family}");
        let report = convert(&hf, &modelopt, "modelopt", &[]);
        let error = report["relative_rms"].as_f64().unwrap();
        assert!((0.05..0.12).contains(&error), "{family}: {error}");
        convert(&modelopt, &back, "hf", &["--weights", "f32"]);
        assert_eq!(diff(&modelopt, &back)["same"], json!(true), "{family}");
        for model in [&gguf, &hf, &modelopt, &back] {
            assert_eq!(shapes(model), shapes(&toy), "{family}");
        }
    }
}

#[test]
fn nvfp4_codes_pass_through_untouched() {
    let place = Place::new("codes");
    let toy = place.toy(json!({}));
    let paths = ["a", "b.gguf", "c", "d"].map(|name| place.at(name));
    convert(&toy, &paths[0], "modelopt", &["--scales", "search"]);
    convert(&paths[0], &paths[1], "gguf", &[]);
    convert(&paths[1], &paths[2], "modelopt", &[]);
    convert(&paths[2], &paths[3], "modelopt", &["--weights", "keep"]);
    let compared = diff(&paths[0], &paths[2]);
    let tensors = compared["tensors"].as_array().unwrap().iter();
    let differing: Vec<&Value> = tensors.filter(|tensor| tensor["differs"] == true).collect();
    // The embedding went through Q8_0.
    assert_eq!(differing.len(), 1, "{differing:?}");
    assert_eq!(differing[0]["name"], "model.embed_tokens.weight");
    assert_eq!(diff(&paths[2], &paths[3])["same"], json!(true));
}

#[test]
fn better_scale_rules_leave_smaller_errors() {
    let place = Place::new("scales");
    let toy = place.toy(json!({}));
    let error = |rule: &str| {
        let report = convert(&toy, &place.at(rule), "modelopt", &["--scales", rule]);
        report["relative_rms"].as_f64().unwrap()
    };
    let (nearest, four_over_six, search) = (error("nearest"), error("four-over-six"), error("search"));
    assert!(search <= four_over_six && four_over_six < nearest, "{search} {four_over_six} {nearest}");
}

#[test]
fn a_dat_written_again_is_the_same_file() {
    let place = Place::new("dat");
    for (number, tied) in [true, false].into_iter().enumerate() {
        let _ = std::fs::remove_dir_all(place.0.join("toy"));
        let toy = place.toy(json!({ "tie_word_embeddings": tied }));
        for side in ["a", "b"] {
            std::fs::create_dir(place.0.join(format!("{side}{number}"))).unwrap();
        }
        let (first, second) =
            (place.at(&format!("a{number}/model.dat")), place.at(&format!("b{number}/model.dat")));
        let report = convert(&toy, &first, "dat", &[]);
        assert!(report["relative_rms"].as_f64().unwrap() < 0.12);
        convert(&first, &second, "dat", &[]);
        assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap(), "tied: {tied}");
        let back = place.at(&format!("hf{number}"));
        convert(&first, &back, "hf", &["--weights", "f32"]);
        assert_eq!(diff(&first, &back)["relative_rms"], json!(0.0));
    }
}

#[test]
fn kept_tensors_and_the_head_are_as_asked() {
    let place = Place::new("keep");
    let toy = place.toy(json!({ "tie_word_embeddings": false }));
    let keep = ["--keep", "*.down_proj.*", "--keep", "model.layers.0.*", "--head"];
    convert(&toy, &place.at("kept"), "modelopt", &keep);
    let inspected = json_of(&["inspect", &place.at("kept"), "--json"]);
    for tensor in inspected["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let matrix = name.contains("_proj") || name == "lm_head.weight";
        let kept = !matrix || name.contains("down_proj") || name.contains("layers.0.");
        assert_eq!(tensor["encoding"], if kept { "BF16" } else { "NVFP4" }, "{name}");
    }
    let (code, text) = refused(&["convert", &toy, &place.at("x"), "--to", "gguf", "--keep", "*.mistyped"]);
    assert_eq!(code, 2);
    assert!(text.contains("*.mistyped"), "{text}");
}

#[test]
fn nothing_is_overwritten_unless_forced() {
    let place = Place::new("force");
    let toy = place.toy(json!({}));
    let (directory, file) = (place.at("out"), place.at("out.gguf"));
    convert(&toy, &directory, "hf", &[]);
    convert(&toy, &file, "gguf", &[]);
    let before = std::fs::read(&file).unwrap();
    for (out, format) in [(&directory, "hf"), (&file, "gguf"), (&toy, "hf")] {
        let (code, text) = refused(&["convert", &toy, out, "--to", format, "--scales", "search"]);
        assert_eq!(code, 2);
        assert!(text.contains(out.as_str()), "{text}");
    }
    assert!(std::fs::read(&file).unwrap() == before);
    let (code, _) = refused(&["convert", &toy, &toy, "--to", "hf", "--force"]);
    assert_eq!(code, 2, "a model is never written over itself");
    convert(&toy, &file, "gguf", &["--scales", "search", "--force"]);
    assert!(std::fs::read(&file).unwrap() != before);
    let (code, _) = refused(&["init", "--config", &place.at("toy.json"), "--out", &directory]);
    assert_eq!(code, 2);
}

#[test]
fn misuse_ends_with_2_and_bad_input_with_4() {
    let place = Place::new("codes-of-exit");
    let toy = place.toy(json!({}));
    let out = place.at("out");
    let misuse: [&[&str]; 7] = [
        &["convert", &toy, &out],
        &["convert", &toy, &out, "--to", "onnx"],
        &["convert", &toy, &out, "--to", "hf", "--weights", "nvfp4"],
        &["convert", &toy, &out, "--to", "hf", "--weights", "q8_0"],
        &["convert", &toy, &out, "--to", "dat"],
        &["convert", &toy, &out, "--to", "modelopt", "--head"],
        &["convert", &toy, &place.at("nowhere/out"), "--to", "hf"],
    ];
    for args in misuse {
        let (code, text) = refused(args);
        assert_eq!(code, 2, "{args:?}: {text}");
    }
    let nothing = place.at("nothing");
    let missing: [&[&str]; 4] = [
        &["inspect", &nothing],
        &["convert", &nothing, &out, "--to", "hf"],
        &["diff", &toy, &nothing],
        &["init", "--config", &nothing, "--out", &out],
    ];
    for args in missing {
        let (code, text) = refused(args);
        assert_eq!(code, 4, "{args:?}: {text}");
        assert!(text.contains(&nothing), "{text}");
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_broken_value_stops_the_conversion_and_is_counted() {
    let place = Place::new("nan");
    let toy = place.toy(json!({}));
    let file = Path::new(&toy).join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight";
    let offset = entries[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // Row 2, column 3: 64 values of two bytes in a row.
    let at = 8 + header + offset + (2 * 64 + 3) * 2;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let (code, text) = refused(&["convert", &toy, &place.at("out"), "--to", "modelopt"]);
    assert_eq!(code, 4);
    assert!(text.contains(name) && text.contains("row 2") && text.contains("column 3"), "{text}");
    assert!(!place.0.join("out").exists());
    let stats = json_of(&["inspect", &toy, "--stats", "--json"]);
    assert_eq!(stats["stats"]["nan"], json!(1));
    assert!(succeed(&["inspect", &toy, "--stats"]).contains("1 NaN"));
}

#[test]
fn inspect_tells_what_is_inside() {
    let place = Place::new("inspect");
    let toy = place.toy(json!({}));
    let modelopt = place.at("modelopt");
    convert(&toy, &modelopt, "modelopt", &[]);
    let text = succeed(&["inspect", &toy]);
    assert!(text.contains("qwen3") && text.contains("tied head") && text.contains("2 layers"), "{text}");
    assert!(text.contains("chat template: no"), "{text}");
    assert!(text.contains("Hugging Face safetensors · qwen3 · 156.1 k parameters"), "{text}");
    let gguf = place.at("toy.gguf");
    convert(&toy, &gguf, "gguf", &[]);
    assert!(succeed(&["inspect", &gguf]).starts_with("GGUF v3 · qwen3 · 156.1 k parameters"));
    let versions =
        [&gguf, &toy].map(|model| json_of(&["inspect", model, "--json"])["format_version"].clone());
    assert_eq!(versions, [json!(3), json!(null)]);
    assert!(succeed(&["inspect", &toy, "--tensors"]).contains("model.layers.1.self_attn.q_norm.weight"));
    let stats = json_of(&["inspect", &modelopt, "--stats", "--json"]);
    let blocks: u64 =
        stats["stats"]["scales"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let matrices = 2 * (128 * 64 + 2 * 64 * 64 + 64 * 128 + 3 * 192 * 64);
    assert_eq!(blocks, matrices / 16);
    assert_eq!(stats["stats"]["blocked_round_trip"], json!(true));
    assert_eq!(stats["types"]["NVFP4"], json!(14));
    let parameters = 512 * 64 + matrices + 64 + 2 * (64 + 64 + 32 + 32);
    assert_eq!(stats["parameters"], json!(parameters));
    assert!(succeed(&["inspect", &modelopt, "--stats"]).contains("every scale comes back"));
}

#[test]
fn diff_puts_the_worst_first_and_may_end_with_1() {
    let place = Place::new("diff");
    let toy = place.toy(json!({}));
    let modelopt = place.at("modelopt");
    convert(&toy, &modelopt, "modelopt", &[]);
    let compared = diff(&toy, &modelopt);
    let tensors = compared["tensors"].as_array().unwrap();
    let errors: Vec<f64> = tensors.iter().map(|tensor| tensor["relative_rms"].as_f64().unwrap()).collect();
    assert!(errors.is_sorted_by(|a, b| a >= b), "{errors:?}");
    assert!(errors[0] > 0.05 && errors[errors.len() - 1] == 0.0);
    assert!(succeed(&["diff", &toy, &toy]).starts_with("the same"));
    assert!(succeed(&["diff", &toy, &modelopt, "--most", "2"]).contains("12 more"));
    assert_eq!(refused(&["diff", &toy, &modelopt, "--exit-code"]).0, 1);
    succeed(&["diff", &toy, &toy, "--exit-code"]);
}

#[test]
fn the_same_seed_makes_the_same_model() {
    let place = Place::new("seed");
    let toy = place.toy(json!({}));
    let config = place.at("toy.json");
    let (same, other) = (place.at("same"), place.at("other"));
    succeed(&["init", "--config", &config, "--out", &same, "--seed", "5"]);
    let made = json_of(&["init", "--config", &config, "--out", &other, "--dtype", "f32", "--json"]);
    assert_eq!(made["bytes"].as_u64().unwrap(), made["parameters"].as_u64().unwrap() * 4);
    assert_eq!(diff(&toy, &same)["same"], json!(true));
    assert_eq!(diff(&toy, &other)["same"], json!(false));
}

/// A matrix of 140 terabytes: more than the disk of any machine that runs this.
#[test]
#[cfg(unix)]
fn what_the_disk_cannot_hold_is_refused_before_the_first_byte() {
    let place = Place::new("space");
    let config = json!({
        "model_type": "llama", "vocab_size": 1 << 22, "hidden_size": 1 << 24, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 16, "tie_word_embeddings": true,
    });
    std::fs::write(place.0.join("huge.json"), config.to_string()).unwrap();
    let (config, out) = (place.at("huge.json"), place.at("out"));
    let (code, text) = refused(&["init", "--config", &config, "--out", &out]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("bytes, and its disk has") && text.contains("another disk"), "{text}");
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 1, "nothing but the config is there");
}

/// The real model, where its folder is named by HALFBYTE_ASSETS.
#[test]
fn smollm2_keeps_every_name_and_shape_through_nvfp4() {
    let Some(assets) = std::env::var_os("HALFBYTE_ASSETS") else {
        eprintln!("skipped: HALFBYTE_ASSETS is not set");
        return;
    };
    let source = Path::new(&assets).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !source.exists() {
        eprintln!("skipped: {} is missing", source.display());
        return;
    }
    let (place, source) = (Place::new("smollm2"), source.display().to_string());
    let (hf, gguf, back) = (place.at("hf"), place.at("nvfp4.gguf"), place.at("back"));
    // Every conversion compares the ids of a sample text as well.
    for (from, to, format) in [(&source, &hf, "hf"), (&hf, &gguf, "gguf"), (&gguf, &back, "hf")] {
        assert_eq!(convert(from, to, format, &[])["tokenizer_checked"], json!(true));
    }
    for model in [&hf, &gguf, &back] {
        assert_eq!(shapes(model), shapes(&source));
    }
    let types = &json_of(&["inspect", &gguf, "--json"])["types"];
    assert_eq!(*types, json!({ "NVFP4": 210, "F32": 61, "Q8_0": 1 }));
    let read = |model: &str, name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(Path::new(model).join(name)).unwrap()).unwrap()
    };
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"] {
        assert_eq!(read(&hf, name), read(&back, name), "{name}");
    }
}
