"""A small model with random weights and a tokenizer that has a token for each byte."""
import json

CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 272, "hidden_size": 256,
    "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "eos_token_id": 256,
}
END = "<|endoftext|>"


def letters():
    """The visible character that stands for each byte in byte-level tokenizers."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


def tokenizer():
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 256, "content": END, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": bytes_,
        "post_processor": None, "decoder": bytes_,
        "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in letters().items()}, "merges": []},
    }


def create(folder, init):
    """`init(config, folder)` writes the weights."""
    config = folder.with_name("config.json")
    config.write_text(json.dumps(CONFIG))
    init(config, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
