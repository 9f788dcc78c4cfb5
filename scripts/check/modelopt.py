#!/usr/bin/env python3
"""Decodes a ModelOpt NVFP4 directory with nothing of halfbyte's and compares it with halfbyte's own values.

    halfbyte convert MODEL nvfp4 --to modelopt
    halfbyte convert nvfp4 decoded --to hf --weights f32
    python3 scripts/check/modelopt.py nvfp4 decoded

Every value must be equal bit for bit. Also checked: q/k/v and gate/up share their tensor scale, the
quantisation files name exactly the linear modules that are not quantised. Needs numpy alone: the
safetensors container is read here (8-byte length, JSON header, data), because the numpy side of the
safetensors package knows neither bfloat16 nor E4M3.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def e4m3_table():
    """All 256 values of E4M3FN: bias 7, no infinities, 0x7f and 0xff are NaN."""
    table = np.zeros(256, dtype=np.float32)
    for byte in range(256):
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if exponent == 15 and mantissa == 7:
            value = float("nan")
        table[byte] = -value if byte & 0x80 else value
    return table


E4M3 = e4m3_table()


class Directory:
    """Raw tensors of all safetensors files of a directory."""

    def __init__(self, path):
        self.path = Path(path)
        self.entries = {}
        for file in sorted(self.path.glob("*.safetensors")):
            with open(file, "rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                self.entries[name] = (file, 8 + length, entry)

    def raw(self, name):
        file, start, entry = self.entries[name]
        begin, end = entry["data_offsets"]
        data = np.memmap(file, dtype=np.uint8, mode="r", offset=start + begin, shape=(end - begin,))
        return entry["dtype"], entry["shape"], data

    def values(self, name):
        """Values as float32; NVFP4 by code * block scale * tensor scale."""
        dtype, shape, data = self.raw(name)
        if dtype == "F32":
            return np.frombuffer(data, dtype="<f4").reshape(shape)
        if dtype == "F16":
            return np.frombuffer(data, dtype="<f2").astype(np.float32).reshape(shape)
        if dtype == "BF16":
            bits = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
            return bits.view(np.float32).reshape(shape)
        assert dtype == "U8", f"{name}: {dtype}"
        return self.nvfp4(name, shape, data)

    def nvfp4(self, name, shape, data):
        rows, columns = shape[0], shape[1] * 2
        scale_type, scale_shape, scales = self.raw(name + "_scale")
        assert scale_type == "F8_E4M3" and scale_shape == [rows, columns // 16], name
        tensor_type, tensor_shape, tensor_scale = self.raw(name + "_scale_2")
        assert tensor_type == "F32" and tensor_shape == [], name
        codes = np.empty((rows, columns), dtype=np.uint8)
        codes[:, 0::2] = data.reshape(shape) & 15
        codes[:, 1::2] = data.reshape(shape) >> 4
        block = np.repeat(E4M3[scales.reshape(scale_shape)], 16, axis=1)
        return (E2M1[codes] * block) * np.frombuffer(tensor_scale, dtype="<f4")[0]


def check_groups(model):
    """Servers run these parts as one product with one tensor scale."""
    groups = 0
    for name in model.entries:
        for first, others in [("q_proj", ["k_proj", "v_proj"]), ("gate_proj", ["up_proj"])]:
            if not name.endswith(f"{first}.weight_scale_2"):
                continue
            for other in others:
                mate = name.replace(first, other)
                if mate in model.entries:
                    same = bytes(model.raw(name)[2]) == bytes(model.raw(mate)[2])
                    assert same, f"{name} and {mate} differ"
                    groups += 1
    return groups


def check_configs(model):
    """Both files must exclude exactly the linear modules without scales."""
    config = json.loads((model.path / "config.json").read_text())
    quantised = json.loads((model.path / "hf_quant_config.json").read_text())["quantization"]
    linear = {name[: -len(".weight")] for name in model.entries if name.endswith("_proj.weight") or name == "lm_head.weight"}
    plain = {name for name in linear if f"{name}.weight_scale" not in model.entries}
    if config.get("tie_word_embeddings"):
        plain.add("lm_head")
    assert set(quantised["exclude_modules"]) == plain, "hf_quant_config.json: exclude_modules"
    assert set(config["quantization_config"]["ignore"]) == plain, "config.json: ignore"
    assert quantised["group_size"] == 16


def main():
    model, decoded = Directory(sys.argv[1]), Directory(sys.argv[2])
    check_configs(model)
    pairs = check_groups(model)
    scales = ("_scale", "_scale_2")
    names = [name for name in model.entries if not name.endswith(scales)]
    assert sorted(names) == sorted(decoded.entries), "the two directories have other tensors"
    packed = values = 0
    for name in names:
        ours, theirs = model.values(name), decoded.values(name)
        assert ours.shape == theirs.shape, name
        assert np.array_equal(ours.view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32)), name
        packed += model.raw(name)[0] == "U8"
        values += ours.size
    print(f"{len(names)} tensors, {packed} of them NVFP4, {values:,} values equal bit for bit; {pairs} shared tensor scales")


if __name__ == "__main__":
    main()
