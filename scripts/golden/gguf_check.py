"""Reads toy GGUF files that halfbyte wrote with the `gguf` package and compares every value.

    HALFBYTE_GGUF_TOYS=DIR cargo test -p halfbyte-checkpoint --test gguf toys
    python scripts/golden/gguf_check.py DIR

The toys' values are formulas (crates/checkpoint/tests/gguf_toy); this repeats them, puts q and k
of the llama family into its row order, and demands equality.
"""

import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFReader
from gguf.quants import dequantize, quantize

HUGGING_FACE = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def hugging_face(name):
    if name in HUGGING_FACE:
        return HUGGING_FACE[name]
    _, layer, stem, ending = name.split(".")
    return f"model.layers.{layer}.{HUGGING_FACE[stem]}.{ending}"


def plain(seed, rows, columns):
    row, column = np.indices((rows, columns))
    return (((row * 31 + column * 7 + seed * 13) % 255 - 127) / 64).astype(np.float32)


def nvfp4(seed, rows, columns):
    row, column = np.indices((rows, columns))
    codes = E2M1[(row * 5 + column * 3 + seed) % 16]
    scale = 0x30 + (row + column // 16 + seed) % 16
    return codes * ((1 + scale % 8 / 8) * 2.0 ** (scale // 8 - 7)).astype(np.float32)


def to_file_order(values, heads):
    half = len(values) // heads // 2
    return values.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(values.shape)


def check(path):
    reader = GGUFReader(path)
    family = reader.fields["general.architecture"].contents()
    heads = {
        "attn_q": reader.fields[f"{family}.attention.head_count"].contents(),
        "attn_k": reader.fields[f"{family}.attention.head_count_kv"].contents(),
    }
    assert reader.fields["tokenizer.ggml.tokens"].contents()[39] == "[PAD39]"
    assert len(reader.fields["tokenizer.ggml.token_type"].contents()) == 40
    for tensor in reader.tensors:
        assert tensor.data_offset % 32 == 0, tensor.name
        if tensor.name.endswith(".scale"):
            seed = sum(hugging_face(tensor.name[:-5] + "weight").encode())
            assert tensor.data[0] == (seed % 7 + 1) / 16, tensor.name
            continue
        shape = [int(n) for n in tensor.shape][::-1]
        rows, columns = shape if len(shape) == 2 else (1, shape[0])
        seed = sum(hugging_face(tensor.name).encode())
        make = nvfp4 if tensor.tensor_type == T.NVFP4 else plain
        expected = make(seed, rows, columns)
        stem = tensor.name.split(".")[2] if tensor.name.startswith("blk") else ""
        if family == "llama" and stem in heads:
            expected = to_file_order(expected if rows > 1 else expected.T, heads[stem])
        if tensor.tensor_type == T.Q8_0:
            expected = dequantize(quantize(expected, T.Q8_0), T.Q8_0)
        if tensor.tensor_type in (T.F32, T.F16):
            found = tensor.data.astype(np.float32)
        else:
            found = dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(found.reshape(-1), expected.reshape(-1)), f"{path}: {tensor.name}"
    print(f"{path.name}: {len(reader.tensors)} tensors equal")


for path in sorted(pathlib.Path(sys.argv[1]).glob("*.gguf")):
    check(path)
