//! config.json -> `Architecture`, field by field as transformers reads it.

mod common;

use std::path::Path;

use common::{llama_config, qwen3_config};
use halfbyte_checkpoint::{Architecture, RopeScaling};
use serde_json::{Value, json};

fn parse(config: &Value) -> Architecture {
    Architecture::from_config(Path::new("config.json"), config, None).unwrap()
}

fn with(mut config: Value, changes: Value) -> Architecture {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    parse(&config)
}

fn without(mut config: Value, key: &str) -> Architecture {
    config.as_object_mut().unwrap().remove(key);
    parse(&config)
}

#[test]
fn head_dim_has_its_familys_default() {
    assert_eq!(without(qwen3_config(), "head_dim").head_dim, 128);
    assert_eq!(parse(&llama_config()).head_dim, 16);
    assert_eq!(with(llama_config(), json!({ "head_dim": null })).head_dim, 16);
    assert_eq!(with(llama_config(), json!({ "head_dim": 24 })).head_dim, 24);
}

#[test]
fn biases_follow_family_and_switch() {
    let switches = |architecture: Architecture| {
        let a = architecture;
        (a.qkv_bias, a.output_bias, a.mlp_bias, a.qk_norm)
    };
    let on = json!({ "attention_bias": true, "mlp_bias": true });
    assert_eq!(switches(parse(&llama_config())), (false, false, false, false));
    assert_eq!(switches(with(llama_config(), on.clone())), (true, true, true, false));
    assert_eq!(switches(with(qwen3_config(), on.clone())), (true, true, false, true));
    let qwen2 = json!({ "model_type": "qwen2" });
    assert_eq!(switches(with(llama_config(), qwen2)), (true, false, false, false));
}

#[test]
fn missing_kv_heads_are_as_many_as_heads() {
    assert_eq!(without(llama_config(), "num_key_value_heads").kv_heads, 2);
    assert_eq!(with(llama_config(), json!({ "num_key_value_heads": null })).kv_heads, 2);
}

#[test]
fn rope_is_found_in_all_its_places() {
    assert_eq!(parse(&llama_config()).rope.theta, 10000.0);
    let modern = json!({
        "rope_theta": 7.0,
        "rope_parameters": { "rope_type": "default", "rope_theta": 500000.0 },
    });
    let rope = with(llama_config(), modern).rope;
    assert_eq!((rope.theta, rope.scaling), (500000.0, RopeScaling::None));
    let legacy = json!({
        "rope_theta": 9.0, "rope_scaling": { "type": "linear", "factor": 2 },
    });
    let rope = with(llama_config(), legacy).rope;
    assert_eq!((rope.theta, rope.scaling), (9.0, RopeScaling::Linear { factor: 2.0 }));
    let part = json!({ "rope_type": "linear", "factor": 4.0, "rope_theta": 3.0 });
    let nested = json!({
        "rope_parameters": { "full_attention": part, "sliding_attention": part },
    });
    let rope = with(llama_config(), nested).rope;
    assert_eq!((rope.theta, rope.scaling), (3.0, RopeScaling::Linear { factor: 4.0 }));
}

#[test]
fn yarn_has_transformers_defaults() {
    let yarn = |scaling: Value| with(llama_config(), json!({ "rope_scaling": scaling })).rope.scaling;
    let plain = yarn(json!({ "rope_type": "yarn", "factor": 4.0 }));
    let RopeScaling::Yarn { original, beta_fast, beta_slow, attention_factor, truncate, .. } = plain else {
        panic!("{plain:?}");
    };
    assert_eq!((original, beta_fast, beta_slow, truncate), (64, 32.0, 1.0, true));
    assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    let both = yarn(json!({
        "rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 16, "truncate": false,
    }));
    let RopeScaling::Yarn { original, attention_factor, truncate, .. } = both else {
        panic!("{both:?}");
    };
    assert_eq!((original, truncate), (16, false));
    let expected = (0.1 * 40f64.ln() + 1.0) / (0.05 * 40f64.ln() + 1.0);
    assert!((attention_factor - expected).abs() < 1e-12);
}

#[test]
fn windows_slide_only_when_switched_on() {
    let windows = |changes: Value| with(qwen3_config(), changes).sliding_window;
    assert_eq!(windows(json!({ "sliding_window": 8 })), [None, None]);
    let off = json!({ "sliding_window": 8, "use_sliding_window": false, "max_window_layers": 0 });
    assert_eq!(windows(off), [None, None]);
    let on = json!({ "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1 });
    assert_eq!(windows(on), [None, Some(8)]);
    let default = json!({ "sliding_window": 8, "use_sliding_window": true });
    assert_eq!(windows(default), [None, None]); // max_window_layers is 28
    let types = json!({
        "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    assert_eq!(windows(types), [Some(8), None]);
}

#[test]
fn end_tokens_merge_from_both_files() {
    let mut config = llama_config();
    config["eos_token_id"] = json!([3, 1, 99_999]);
    config["bos_token_id"] = json!(1);
    let generation = json!({ "eos_token_id": [1, 7] });
    let file = Path::new("config.json");
    let architecture = Architecture::from_config(file, &config, Some(&generation)).unwrap();
    assert_eq!(architecture.eos, [3, 1, 7]); // 99999 is outside the vocabulary
    assert_eq!(architecture.bos, Some(1));
    assert!(parse(&llama_config()).eos.is_empty());
}

#[test]
fn parameters_count_a_tied_head_once() {
    let tied = parse(&qwen3_config());
    let mut untied = tied.clone();
    untied.tied = false;
    assert_eq!(untied.parameters() - tied.parameters(), 48 * 32);
    let by_shape: usize =
        tied.tensor_names().into_iter().map(|name| tied.shape(name).iter().product::<usize>()).sum();
    assert_eq!(tied.parameters(), by_shape as u64);
}

/// The figures are float32 of transformers, made by scripts/golden/rope.py.
#[test]
fn frequencies_are_those_of_transformers() {
    let golden: Value = serde_json::from_str(include_str!("golden/rope.json")).unwrap();
    for row in golden.as_array().unwrap() {
        let changes = json!({
            "head_dim": row["head_dim"],
            "max_position_embeddings": row["max_position_embeddings"],
            "rope_parameters": row["rope_parameters"],
        });
        let architecture = with(llama_config(), changes);
        let (inverse, factor) = architecture.rope.inverse_frequencies(architecture.head_dim);
        let expected = row["attention_factor"].as_f64().unwrap();
        assert!((f64::from(factor) - expected).abs() < 1e-6, "{row}");
        let wanted = row["inverse"].as_array().unwrap();
        assert_eq!(inverse.len(), wanted.len());
        for (got, want) in inverse.iter().zip(wanted) {
            let want = want.as_f64().unwrap();
            assert!((got / want - 1.0).abs() < 2e-6, "{got} {want} {}", row["rope_parameters"]);
        }
    }
}
