"""Losses, gradients and AdamW steps of small decoders as torch computes them in f32
-> crates/model/tests/golden/gradients.json

Configs are drawn as in decoder.py (same formula for the weights, none are stored). A batch is three
samples of different lengths, each a row of its own here and packed one after the other in the test;
some targets are masked. Of each gradient the length and eight entries are kept.
Run with torch and transformers installed: python scripts/golden/gradients.py
"""

import json
import random
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from decoder import FAMILIES, GOLDEN, ROPES, fill, random_config

LENGTHS = [45, 7, 20]  # one longer than a tile of 32 keys
STEPS = 5
KEPT = 8
IGNORED = -100


def model_of(config):
    fields = json.loads(json.dumps(config))
    known = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(known, dtype=torch.float32, attn_implementation="eager").train()
    fill(model)
    return model


def batch_of(draw, vocabulary):
    """Samples of tokens and what follows each of them; the last of a sample has no target."""
    samples = []
    for length in LENGTHS:
        tokens = [draw.randrange(vocabulary) for _ in range(length)]
        masked = draw.randrange(1, length // 2)  # as a prompt: nothing is learnt from it
        targets = [IGNORED if t < masked or draw.random() < 0.1 else tokens[t + 1] for t in range(length - 1)]
        samples.append((tokens, targets + [IGNORED]))
    return samples


def mean_loss(model, samples):
    """Over all trained tokens of all samples."""
    losses = [
        torch.nn.functional.cross_entropy(
            model(torch.tensor([tokens])).logits[0], torch.tensor(targets), ignore_index=IGNORED, reduction="sum")
        for tokens, targets in samples
    ]
    trained = sum(target != IGNORED for _, targets in samples for target in targets)
    return sum(losses) / trained


def places(count):
    """Where the kept entries lie: spread over the tensor, both ends among them."""
    return sorted({round(i * (count - 1) / (KEPT - 1)) for i in range(KEPT)})


def gradients(model):
    kept = {}
    for name, value in model.named_parameters():
        flat = value.grad.flatten().double()
        entries = {str(i): float(f"{flat[i]:.7g}") for i in places(flat.numel())}
        kept[name] = {"l2": float(f"{flat.norm():.9g}"), "entries": entries}
    return kept


def case(draw, family, index):
    config = random_config(draw, family, index)
    samples = batch_of(draw, config["vocab_size"])
    model = model_of(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, samples)
        loss.backward()
        losses.append(float(f"{loss.item():.9g}"))
        first = first or gradients(model)
        optimizer.step()
    print(family, index, losses, file=sys.stderr)
    return {"config": config, "samples": samples, "losses": losses, "gradients": first}


if __name__ == "__main__":
    torch.manual_seed(0)
    draw = random.Random(17)
    cases = [case(draw, family, index) for family in FAMILIES for index in range(len(ROPES)) if index % 2 == 0]
    cases += [case(draw, family, index) for family, index in zip(FAMILIES, [5, 1, 3])]
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
    (GOLDEN / "gradients.json").write_text(text)
