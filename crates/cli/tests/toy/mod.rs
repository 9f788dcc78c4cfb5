//! A toy model that a test writes: random weights, one token for each byte, a small chat template.

use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};

/// Runs the program.
pub(crate) fn halfbyte(arguments: &[&str]) -> Output {
    crate::program::halfbyte().args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is whole characters")
}

/// A folder with a model in it; goes away at the end.
pub(crate) struct Toy(PathBuf);

impl Toy {
    pub(crate) fn new(name: &str) -> Toy {
        let folder = std::env::temp_dir().join(format!("halfbyte-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let toy = Toy(folder);
        let config = json!({
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 260,
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 257,
        });
        toy.write("config.json", &config.to_string());
        let made = halfbyte(&["init", "--config", &toy.path("config.json"), "--out", &toy.path("model")]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        toy.write("model/tokenizer.json", &tokenizer().to_string());
        let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
            {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let config = json!({ "chat_template": template, "eos_token": "<|im_end|>" });
        toy.write("model/tokenizer_config.json", &config.to_string());
        toy
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.0.join(name), content).unwrap();
        self.path(name)
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tokenizer() -> Value {
    let byte = |b: u32| match b {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(b),
        0x00..=0x20 => char::from_u32(0x100 + b),
        0x7f..=0xa0 => char::from_u32(0x121 + b - 0x7f),
        _ => char::from_u32(0x143),
    };
    let vocabulary: serde_json::Map<_, _> =
        (0..256).map(|b| (byte(b).unwrap().to_string(), b.into())).collect();
    let special = |id: u32, text: &str| {
        json!({
            "id": id, "content": text, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "added_tokens": [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}
