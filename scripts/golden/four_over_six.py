#!/usr/bin/env python3
"""Golden vectors for crates/formats: four-over-six NVFP4 by its authors' own package.

    pip install torch
    SKIP_CUDA_BUILD=1 pip install --no-deps --no-build-isolation fouroversix==1.0.5
    python scripts/golden/four_over_six.py crates/formats/tests/golden

Reads the inputs of nvfp4.json in that folder and adds one of weights that both choices of scale
occur in; writes four_over_six.json. Numbers are the hexadecimal of their little-endian bytes.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from fouroversix.quantize.pytorch.reference import quantize_to_fp4
from fouroversix.utils import DataType, RoundStyle, ScaleRule

NAMES = ["normal", "bf16 weights", "heavy-tailed", "ties", "scale ties", "zero blocks", "tiny blocks"]


def hexed(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes().hex()


def case(x):
    codes, scales, amax = quantize_to_fp4(
        x, fp4_format=DataType.nvfp4, round_style=RoundStyle.nearest, scale_rule=ScaleRule.mse,
        use_blackwell_scale_layout=False,
    )
    return {"codes": hexed(codes), "block_scales": hexed(scales), "amax": hexed(amax.reshape(1))}


def main():
    folder = pathlib.Path(sys.argv[1])
    inputs = json.loads((folder / "nvfp4.json").read_text())["inputs"]
    golden = {}
    for name in NAMES:
        x = np.frombuffer(bytes.fromhex(inputs[name]["x"]), dtype="<f4").copy()
        golden[name] = case(torch.from_numpy(x).reshape(-1, inputs[name]["columns"]))
    weights = torch.randn(32, 64, generator=torch.Generator().manual_seed(46)) * 0.05
    golden["weights"] = {"x": hexed(weights), **case(weights)}
    with open(folder / "four_over_six.json", "w") as file:
        json.dump(golden, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
