"""Golden vectors of every GGUF tensor type, from the `gguf` package.

    python scripts/golden/ggml.py crates/formats/tests/golden/ggml.json

Needs `gguf` and numpy. Random bytes, random bytes with extreme scales, and Q8_0 encoding of
awkward rows. Values are written as the hexadecimal of their f32 bits.
"""

import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

# type -> offsets of the f16 scales inside a block
TYPES = {
    T.F32: [], T.F16: [0], T.BF16: [], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [], T.NVFP4: [],
}
# smallest subnormal, largest, minus one, zero, minus zero, largest subnormal, smallest normal
EXTREME = [0x0001, 0x7BFF, 0xBC00, 0x0000, 0x8000, 0x03FF, 0x0400]


def finite_scales(blocks, offsets, rng):
    for at in offsets:
        scale = rng.normal(size=len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    for row, bits in enumerate(EXTREME[: len(blocks)] if offsets else []):
        for at in offsets:
            blocks[row, at:at + 2] = np.array([bits], dtype="<u2").view(np.uint8)


def special(ty, blocks):
    if ty == T.F32:
        values = [0.0, -0.0, 1e-45, 3.4e38, -1.5, np.inf, -np.inf, 1e-38]
        blocks[:8] = np.array(values, dtype="<f4").view(np.uint8).reshape(-1, 4)
    if ty == T.BF16:
        bits = [0, 0x8000, 1, 0x7F7F, 0x7F80, 0xFF80, 0x0080, 0x3F80]
        blocks[:8] = np.array(bits, dtype="<u2").view(np.uint8).reshape(-1, 2)
    if ty == T.MXFP4:
        blocks[:5, 0] = [0, 1, 2, 254, 255]
    if ty == T.NVFP4:
        # The sign bit of a scale has no meaning in the file format; only 0..0x7F occur.
        blocks[:, :4] &= 0x7F
        blocks[0, :4] = [0x00, 0x01, 0x07, 0x08]
        blocks[1, :4] = [0x7E, 0x7F, 0x77, 0x10]


def bits(values):
    return values.astype("<f4").tobytes().hex()


def decoded(ty, offsets, rng):
    values, size = GGML_QUANT_SIZES[ty]
    blocks = rng.integers(0, 256, size=(3 if values == 256 else 8, size), dtype=np.uint8)
    finite_scales(blocks, offsets, rng)
    special(ty, blocks)
    with np.errstate(all="ignore"):
        values = dequantize(blocks.reshape(1, -1).copy(), ty).reshape(-1)
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    return {"type": ty.name, "id": int(ty), "bytes": blocks.tobytes().hex(), "values": bits(values)}


def encoded(x):
    x = np.asarray(x, dtype=np.float32).reshape(1, -1)
    with np.errstate(all="ignore"):
        out = quantize(x, T.Q8_0)
    return {"values": bits(x.reshape(-1)), "bytes": out.tobytes().hex()}


def q8_0_rows(rng):
    ties = np.array([127.0] + [k + 0.5 for k in range(-15, 16)])
    near = np.nextafter(ties.astype(np.float32), np.float32(0))
    near[0] = 127.0
    rows = [np.zeros(32), np.full(32, -0.0), ties, -ties, near, rng.normal(size=32)]
    rows += [rng.normal(size=32) * 10.0 ** e for e in (-38, -20, -9, -6, -4, 4, 6)]
    rows.append(np.array([1e-44] * 32))
    return [encoded(row) for row in rows]


def main():
    rng = np.random.default_rng(8)
    golden = {"decode": [decoded(ty, at, rng) for ty, at in TYPES.items()], "q8_0": q8_0_rows(rng)}
    with open(sys.argv[1], "w") as file:
        json.dump(golden, file, indent=0)
        file.write("\n")


main()
