"""Rotary frequencies as transformers computes them -> crates/checkpoint/tests/golden/rope.json

Run with transformers installed: python scripts/golden/rope.py
"""

import json
from pathlib import Path

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    (64, 8192, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    (128, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}),
    (64, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                  "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}),
    (128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                   "original_max_position_embeddings": 32768}),
    (32, 64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0,
              "original_max_position_embeddings": 32}),
    (64, 65536, {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 16.0, "beta_fast": 24.0,
                 "beta_slow": 2.0, "truncate": False, "original_max_position_embeddings": 4096}),
    (64, 65536, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0,
                 "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}),
    (64, 65536, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                 "attention_factor": 0.9, "original_max_position_embeddings": 4096}),
]


def main():
    rows = []
    for head_dim, positions, parameters in CASES:
        config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
                             max_position_embeddings=positions, rope_parameters=dict(parameters))
        inverse, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        rows.append({"head_dim": head_dim, "max_position_embeddings": positions,
                     "rope_parameters": parameters, "attention_factor": float(factor),
                     "inverse": [float(f"{x:.9g}") for x in inverse.tolist()]})
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    root = Path(__file__).resolve().parents[2]
    path = root / "crates/checkpoint/tests/golden/rope.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


main()
