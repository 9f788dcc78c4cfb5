"""Checksums of every decoded tensor of a GGUF file, from the `gguf` package.

    python scripts/golden/gguf_sums.py MODEL.gguf crates/checkpoint/tests/golden/smollm2-sums.json

The sum runs over (index mod 65521 + 1) * bits of the f32 value, modulo 2^64; q and k of the llama
family are put into Hugging Face's row order first.
"""

import json
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFReader
from gguf.quants import dequantize


def to_hugging_face_order(values, heads):
    half = len(values) // heads // 2
    return values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)


def main():
    reader = GGUFReader(sys.argv[1])
    family = reader.fields["general.architecture"].contents()
    heads = {
        "attn_q": reader.fields[f"{family}.attention.head_count"].contents(),
        "attn_k": reader.fields[f"{family}.attention.head_count_kv"].contents(),
    }
    sums = {}
    for tensor in reader.tensors:
        values = tensor.data
        if tensor.tensor_type not in (T.F32, T.F16):
            values = dequantize(values, tensor.tensor_type)
        values = np.ascontiguousarray(values, dtype=np.float32)
        stem = tensor.name.split(".")[2] if tensor.name.startswith("blk") else ""
        if family == "llama" and stem in heads:
            values = to_hugging_face_order(values, heads[stem])
        bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32).astype(np.uint64)
        weights = np.arange(len(bits), dtype=np.uint64) % np.uint64(65521) + np.uint64(1)
        sums[tensor.name] = f"{int((bits * weights).sum(dtype=np.uint64)):016x}"
    with open(sys.argv[2], "w") as file:
        json.dump(sums, file, indent=0)
        file.write("\n")


main()
