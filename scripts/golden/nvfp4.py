#!/usr/bin/env python3
"""Golden vectors for crates/formats: NVFP4 by torchao, compressed-tensors and ModelOpt; casts by torch.

    pip install torch torchao compressed-tensors nvidia-modelopt
    python scripts/golden/nvfp4.py crates/formats/tests/golden/nvfp4.json

Numbers are written as the hexadecimal of their little-endian bytes. Without ModelOpt its section
is left out, and the two tests that read it fail: do not commit such a file.
"""

import json
import sys

import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from torchao.prototype.mx_formats.nvfp4_tensor import (
    NVFP4Tensor,
    nvfp4_quantize,
    per_tensor_amax_to_scale,
)
from torchao.prototype.mx_formats.utils import to_blocked

E2M1_MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def hexed(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes().hex()


def inputs():
    """Name -> f32 tensor [rows, 16 k]; few rows, each with a reason."""
    generator = torch.Generator().manual_seed(8)
    normal = torch.randn(4, 48, generator=generator)
    heavy = torch.randn(3, 48, generator=generator) / torch.rand(3, 48, generator=generator)
    tie = torch.tensor(E2M1_MIDPOINTS)
    tie_block = torch.cat([torch.tensor([6.0]), tie, -tie, torch.tensor([-6.0])])
    # Scales 2^k leave the midpoints exact; the neighbours one step off are no ties.
    ties = torch.stack([tie_block * 2.0**k for k in (-4, 0, 5)])
    up = torch.nextafter(ties, torch.full_like(ties, torch.inf))
    down = torch.nextafter(ties, torch.full_like(ties, -torch.inf))
    # Block amax at the midpoints of neighbouring E4M3 scales.
    scale_ties = torch.zeros(4, 16)
    scale_ties[:, 3] = 6.0 * torch.tensor([1.0625, 1.1875, 0.9375 + 1 / 32, 8.5 / 512])
    scale_ties[:, 4] = -1.0
    zeros = torch.zeros(2, 32)
    zeros[0, 1] = -0.0
    zeros[1, 20] = 3.0
    tiny = torch.randn(5, 32, generator=generator)
    tiny[:, 16:] *= torch.tensor([1e-3, 1e-4, 1e-5, 1e-6, 1e-12])[:, None]
    return {
        "normal": normal,
        "bf16 weights": (normal * 0.02).to(torch.bfloat16).float(),
        "heavy-tailed": heavy,
        "ties": torch.cat([ties, up, down]),
        "scale ties": scale_ties,
        "zero blocks": zeros,
        "tiny blocks": tiny,
        "tiny tensor": normal[:2] * 1e-28,
        "huge tensor": normal[:2] / normal[:2].abs().max() * 3.0e38,
        "saturating": normal[:2] * 3000.0,
    }


def torchao_case(name, x, levels):
    scale = per_tensor_amax_to_scale(x.abs().max()) if levels == 2 else None
    block_scales, codes = nvfp4_quantize(x, 16, scale)
    tensor = NVFP4Tensor(codes, block_scales, 16, torch.float32, scale)
    return {
        "name": name,
        "levels": levels,
        "tensor_scale": hexed(torch.ones(1) if scale is None else scale.reshape(1)),
        "codes": hexed(codes),
        "block_scales": hexed(block_scales),
        "decoded": hexed(tensor.dequantize(torch.float32)),
    }


def compressed_tensors_case(name, x):
    arguments = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16,
        symmetric=True, scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    )
    blocks = x.reshape(x.shape[0], -1, 16)
    inverse = generate_gparam(x.min(), x.max())
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments, inverse)
    codes = quantize_and_pack_fp4(x, scales, global_scale=inverse, zero_point=None, group_size=16)
    return {
        "name": name,
        "codes": hexed(codes),
        "block_scales": hexed(scales.to(torch.float8_e4m3fn)),
    }


def modelopt_case(name, x, quantizer):
    packed, scales, scale = quantizer.quantize(x.clone(), 16)
    decoded = packed.dequantize(torch.float32, scale=scales, double_scale=scale, block_sizes={-1: 16})
    return {
        "name": name,
        "tensor_scale": hexed(scale.reshape(1)),
        "codes": hexed(packed._quantized_data),
        "block_scales": hexed(scales),
        "decoded": hexed(decoded),
    }


def spread():
    """f32 values around every interesting place of the smaller formats."""
    generator = np.random.default_rng(8)
    bits = generator.integers(0, 2**32, 200, dtype=np.uint64).astype(np.uint32)
    exponents = generator.integers(90, 150, 200).astype(np.uint32)
    near = (bits & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))
    # Few mantissa bits make ties of f16 (13 dropped), bf16 (16) and E4M3 (20) likely.
    coarse = near & np.uint32(0xFFFFF000)
    edges = np.array(
        [0.0, -0.0, 65504, 65519.9, 65520, 65536, 2**-14, 2**-24, 2**-25, 1.5 * 2**-25, 3.4e38,
         448, 463.9, 464, 2**-9, 2**-10, 1.5 * 2**-10, 2**-6, 1e-45, np.inf, -np.inf], dtype=np.float32)
    values = np.concatenate([bits.view(np.float32), near.view(np.float32), coarse.view(np.float32), edges])
    return torch.from_numpy(values[~np.isnan(values)])


def casts():
    x = spread()
    # Above 448 torch gives NaN where saturation gives 448, so the clamp is said here.
    clamped = x.clamp(-448.0, 448.0)
    every_byte = torch.arange(256, dtype=torch.uint8)
    every_half = torch.arange(0, 65536, 251, dtype=torch.int32).to(torch.uint16)
    return {
        "x": hexed(x),
        "bf16": hexed(x.to(torch.bfloat16)),
        "f16": hexed(x.to(torch.float16)),
        "e4m3": hexed(clamped.to(torch.float8_e4m3fn)),
        "e4m3_values": hexed(every_byte.view(torch.float8_e4m3fn).float()),
        "half_bits": hexed(every_half),
        "bf16_values": hexed(every_half.view(torch.bfloat16).float()),
        "f16_values": hexed(every_half.view(torch.float16).float()),
    }


def blocked():
    cases = []
    for rows, columns in [(3, 5), (130, 6)]:
        scales = (torch.arange(rows * columns) % 251).to(torch.uint8).reshape(rows, columns)
        cases.append({"rows": rows, "columns": columns, "blocked": hexed(to_blocked(scales))})
    return cases


def main():
    tensors = inputs()
    golden = {
        "inputs": {n: {"columns": x.shape[1], "x": hexed(x)} for n, x in tensors.items()},
        "torchao": [torchao_case(n, x, levels) for levels in (1, 2) for n, x in tensors.items()],
        "compressed_tensors": [
            compressed_tensors_case(n, tensors[n])
            for n in ("normal", "bf16 weights", "heavy-tailed", "zero blocks")
        ],
        "casts": casts(),
        "blocked": blocked(),
    }
    try:
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        golden["modelopt"] = [
            modelopt_case(n, tensors[n], NVFP4QTensor)
            for n in ("normal", "bf16 weights", "heavy-tailed", "ties", "zero blocks", "tiny blocks")
        ]
    except ImportError as missing:
        print(f"ModelOpt left out: {missing}", file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        json.dump(golden, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
