"""Logits of small decoders as transformers computes them in f32 -> crates/model/tests/golden/decoder.json

Weights are a formula of the tensor's name (the same in crates/model/tests/common), so none are
stored. Run with torch and transformers installed: python scripts/golden/decoder.py
With a folder as argument, the formula models' reference files found there (tiny-*.json) are cut
down to what the test reads: python scripts/golden/decoder.py FOLDER
"""

import json
import math
import random
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "crates/model/tests/golden"
TOKENS = 45  # more than one tile of 32 keys

# Every way of stretching rope that halfbyte reads. The original contexts are short, so that 45
# tokens are enough to tell them apart.
ROPES = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 4.0,
     "beta_slow": 0.5, "truncate": False},
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 40,
     "attention_factor": 1.3},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 48, "mscale": 1.0,
     "mscale_all_dim": 0.5, "beta_fast": 8.0},
    {"rope_type": "default"},
]
FAMILIES = ["qwen3", "qwen2", "llama"]


def formula(name, shape, amplitude, offset):
    """offset + amplitude * (m / 2^23 - 1), m = 24 bits of a hash of the name and the index"""
    import numpy as np
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    u = (np.arange(int(np.prod(shape)), dtype=np.uint64) * 2654435761 + seed) & 0xFFFFFFFF
    u ^= u >> 16
    u = (u * 2246822519) & 0xFFFFFFFF
    u ^= u >> 13
    unit = (u >> 8).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return (np.float32(offset) + np.float32(amplitude) * unit).reshape(shape)


def fill(model):
    import torch
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 2:
                amplitude = 0.05 if "embed_tokens" in name else 1.5 / math.sqrt(value.shape[1])
                offset = 0.0
            else:
                amplitude, offset = 0.1, 0.0 if name.endswith("bias") else 1.0
            value.copy_(torch.from_numpy(formula(name, tuple(value.shape), amplitude, offset)))


def rope_fields(rope, theta, legacy):
    if not legacy:
        return {"rope_parameters": {**rope, "rope_theta": theta}}
    scaling = dict(rope)
    scaling["type"] = scaling.pop("rope_type")  # the key of older files
    return {"rope_theta": theta, "rope_scaling": None if scaling["type"] == "default" else scaling}


def window_fields(family, index, layers):
    """The two ways a config asks for a window; llama files carry the keys and ignore them."""
    window = [None, 9, 20][index % 3]
    if family == "llama" or window is None:
        return {}
    fields = {"use_sliding_window": True, "sliding_window": window}
    if index % 2:
        return {**fields, "max_window_layers": 1}
    kinds = ["sliding_attention", "full_attention"]
    return {**fields, "layer_types": [kinds[layer % 2] for layer in range(layers)]}


def random_config(draw, family, index):
    ratio = [1, 2, 4][(index + index // 3) % 3]
    kv_heads = draw.choice([1, 2, 3])
    heads = ratio * kv_heads
    hidden = draw.choice([size for size in (48, 64, 80, 96) if size % heads == 0])
    head_dim = draw.choice([8, 12, 16, 24, 40])
    while hidden == heads * head_dim:
        head_dim += 4
    layers = draw.choice([2, 3])
    config = {
        "model_type": family,
        "vocab_size": draw.choice([61, 80, 97]),
        "hidden_size": hidden,
        "intermediate_size": draw.choice([36, 72, 100, 130]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": None if ratio == 1 else kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "max_position_embeddings": 256,
        "tie_word_embeddings": index % 4 < 2,
    }
    if index == 7 and family != "qwen3":  # head_dim left out: hidden / heads
        config.update(hidden_size=heads * 16)
        del config["head_dim"]
    if family != "qwen2":
        config["attention_bias"] = index % 4 in (1, 2)
    if family == "llama":
        config["mlp_bias"] = index % 4 in (2, 3)
    theta = draw.choice([100.0, 10000.0, 500000.0])
    legacy = index % 2 == 1
    return {**config, **rope_fields(ROPES[index], theta, legacy), **window_fields(family, index, layers)}


def run(config, ids):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    fields = json.loads(json.dumps(config))
    known = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(known, dtype=torch.float32, attn_implementation="eager").eval()
    fill(model)
    with torch.no_grad():
        return known, model(torch.tensor([ids])).logits[0]


def random_models():
    draw = random.Random(8)
    cases = []
    for family in FAMILIES:
        for index in range(len(ROPES)):
            config = random_config(draw, family, index)
            ids = [draw.randrange(config["vocab_size"]) for _ in range(TOKENS)]
            known, logits = run(config, ids)
            rows = [0, draw.randrange(10, TOKENS - 1), TOKENS - 1]
            if index % 4 == 0:  # also as today's transformers writes it, every key spelled out
                config = known.to_diff_dict()
            cases.append({
                "config": config,
                "input_ids": ids,
                "logits": {str(row): [float(f"{x:.7g}") for x in logits[row].tolist()] for row in rows},
            })
            spread = float(logits.max() - logits.min())
            print(family, index, known.rope_parameters, f"range {spread:.3g}", file=sys.stderr)
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
    (GOLDEN / "decoder.json").write_text(text)


def formula_models(folder):
    kinds = {"qwen3": "qwen3", "qwen2.5": "qwen2", "llama": "llama"}
    for kind, family in kinds.items():
        reference = json.loads((Path(folder) / f"tiny-{kind}.json").read_text())
        config = {"model_type": family, **reference["config"], "max_position_embeddings": 32768,
                  "rope_parameters": reference["rope"]}
        kept = ["input_ids", "loss_mean_over_94_predictions", "logits_last_position_of_row_0",
                "logits_position_10_of_row_1_first_32", "gradients", "adamw_lr1e-3_wd0.01_losses_same_batch"]
        case = {"config": config, **{key: reference[key] for key in kept}}
        (GOLDEN / f"tiny-{kind}.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    formula_models(sys.argv[1]) if len(sys.argv) > 1 else random_models()
