"""Golden steps of AdamW for crates/formats, made by torch.

    python scripts/golden/adamw.py --out crates/formats/tests/golden

Needs the package `torch`. For a few settings, twenty steps of torch.optim.AdamW in f32 on 32 weights
with given gradients: magnitudes over nine decades, zeros among them, and a learning rate that moves.

Writes adamw.json: settings, first weights, and for every step the learning rate, the gradients and the
weights after it; f32 as hexadecimal bytes, low byte first.
"""
import argparse
import json
import pathlib
import struct

import torch

WEIGHTS = 32
STEPS = 20

SETTINGS = [
    {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0},
    {"lr": 5e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    {"lr": 3e-4, "betas": [0.0, 0.99], "eps": 1e-6, "weight_decay": 0.3},
]


def hexadecimal(tensor):
    return struct.pack(f"<{tensor.numel()}f", *tensor.tolist()).hex()


def run(settings, generator):
    weight = torch.nn.Parameter(torch.randn(WEIGHTS, generator=generator) * 0.1)
    first = hexadecimal(weight.detach())
    optimizer = torch.optim.AdamW(
        [weight],
        lr=settings["lr"],
        betas=tuple(settings["betas"]),
        eps=settings["eps"],
        weight_decay=settings["weight_decay"],
        foreach=False,
        fused=False,
    )
    magnitudes = 10.0 ** torch.linspace(-8, 1, WEIGHTS)
    steps = []
    for index in range(STEPS):
        rate = settings["lr"] * (1.0 - 0.5 * index / STEPS)
        optimizer.param_groups[0]["lr"] = rate
        gradient = torch.randn(WEIGHTS, generator=generator) * magnitudes
        gradient[index % WEIGHTS] = 0.0
        weight.grad = gradient.clone()
        optimizer.step()
        steps.append({"lr": rate, "g": hexadecimal(gradient), "w": hexadecimal(weight.detach())})
    return {"settings": settings, "first": first, "steps": steps}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    generator = torch.Generator().manual_seed(9)
    runs = [run(settings, generator) for settings in SETTINGS]
    golden = {"torch": torch.__version__.split("+")[0], "runs": runs}
    (out / "adamw.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
