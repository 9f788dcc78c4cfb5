#!/usr/bin/env python3
"""What the training state costs: one model trained in every way of keeping it, over several seeds.

  python3 scripts/study/study.py --scratch --text reference.en.txt.gz --off handbook-ch1.txt \\
      --out study-scratch --name scratch
  python3 scripts/study/study.py --model SmolLM2.gguf --text reference.en.txt.gz --off handbook-ch1.txt \\
      --out study-smollm2 --name smollm2

The end of --text is held out; --off is never trained on. Every run starts from the same model and,
for one seed, sees the same sequences, so rows are compared seed by seed. What is measured is the
exported model, by `halfbyte perplexity`. A finished run is not done again: stop at any time and
give the same command to go on. After each run docs/study/NAME.md, .json and two .svg are written anew.

Needs a release build, and nothing but Python.
"""
import argparse, gzip, hashlib, json, pathlib, shutil, subprocess, sys, time

import byte_model, plots, tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDE = ["--moments", "32", "--second", "full"]

# name -> (what is kept, flags of `halfbyte train`)
ROWS = {
    "all-f32": ("all f32, f32 forward", ["--state", "all-f32", *WIDE]),
    "yardstick": ("**f32 master, f32 m and v, NVFP4 forward** (the yardstick)", ["--state", "f32", *WIDE]),
    "default": ("**NVFP4 + 8-bit remainder, m 4-bit, v factored** (the default)", ["--state", "default"]),
    "lean": ("**NVFP4 + 4-bit remainder, m 4-bit, v factored** (lean)", ["--state", "lean"]),
    "byte": ("NVFP4 + 8-bit remainder only", ["--state", "default", *WIDE]),
    "nibble": ("NVFP4 + 4-bit remainder only", ["--state", "lean", *WIDE]),
    "m4": ("m 4-bit only", ["--state", "f32", "--moments", "4", "--second", "full"]),
    "m8": ("m 8-bit only", ["--state", "f32", "--moments", "8", "--second", "full"]),
    "factored": ("v factored only", ["--state", "f32", "--moments", "32", "--second", "factored"]),
    "bf16": ("bf16 master only", ["--state", "bf16", *WIDE]),
    "yardstick-46": ("yardstick, four-over-six scales", ["--state", "f32", *WIDE, "--scales", "four-over-six"]),
    "default-46": ("default, four-over-six scales at the start", ["--state", "default", "--scales", "four-over-six"]),
    "yardstick-search": ("yardstick, searched scales", ["--state", "f32", *WIDE, "--scales", "search"]),
    "default-search": ("default, searched scales at the start", ["--state", "default", "--scales", "search"]),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    start = p.add_mutually_exclusive_group(required=True)
    start.add_argument("--model", help="the model to begin with")
    start.add_argument("--scratch", action="store_true", help="begin with random weights: 3.2 M parameters, a token for each byte")
    p.add_argument("--text", required=True, help="the text to learn, plain or .gz; its end is held out")
    p.add_argument("--off", required=True, help="a text of another kind")
    p.add_argument("--out", required=True, type=pathlib.Path, help="folder of the runs, to go on from")
    p.add_argument("--name", required=True, help="of the files under docs/study")
    p.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs/study", help="where table and plots go")
    p.add_argument("--rows", default=",".join(ROWS), help="some of: %(default)s")
    p.add_argument("--seeds", type=int, default=3, help="runs of each row (%(default)s)")
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--lr", default=None, help="largest learning rate (5e-5; from scratch 1e-3)")
    p.add_argument("--held-out", type=float, default=0.1, help="share of the text that is held out (%(default)s)")
    p.add_argument("--tokens", type=int, default=20480, help="tokens measured of each text (%(default)s)")
    p.add_argument("--halfbyte", default=str(ROOT / "target/release/halfbyte"), help="the program")
    a = p.parse_args()
    a.rows = a.rows.split(",")
    a.lr = a.lr or ("1e-3" if a.scratch else "5e-5")
    unknown = [row for row in a.rows if row not in ROWS]
    if unknown or a.seeds < 1:
        p.error(f"no such row: {', '.join(unknown)}" if unknown else "--seeds must be at least 1")
    if not shutil.which(a.halfbyte):
        p.error(f"{a.halfbyte} is not there: cargo build --release, or name it with --halfbyte")
    return a


def read(path):
    try:
        data = pathlib.Path(path).read_bytes()
        return (gzip.decompress(data) if str(path).endswith(".gz") else data).decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise SystemExit(f"{path}: {problem}")


def write(path, text):
    """Whole or not at all."""
    new = path.with_name(path.name + ".tmp")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def halfbyte(a, *flags):
    r = subprocess.run([a.halfbyte, *map(str, flags), "--json"], stdout=subprocess.PIPE, text=True)
    if r.returncode:
        raise SystemExit(f"halfbyte {flags[0]} ended with {r.returncode}; the same command goes on from here")
    return json.loads(r.stdout)


def prepare(a):
    """Texts and start model, once; another study's folder is refused."""
    text, off = read(a.text), read(a.off)
    settings = {key: getattr(a, key) for key in ("steps", "batch", "seq", "lr", "held_out", "tokens")}
    settings["model"] = "scratch" if a.scratch else pathlib.Path(a.model).name
    settings["text"] = [pathlib.Path(a.text).name, hashlib.sha256(text.encode()).hexdigest()]
    settings["off"] = [pathlib.Path(a.off).name, hashlib.sha256(off.encode()).hexdigest()]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "results").mkdir(exist_ok=True)
    known = a.out / "settings.json"
    if known.exists():
        old = json.loads(known.read_text())
        for key in settings:
            if old.get(key) != settings[key]:
                raise SystemExit(f"{a.out} holds a study with {key} {old.get(key)}, now it is {settings[key]}: take another --out")
        return old
    # Cut where a line ends; characters are never cut.
    cut = text.rfind("\n", 0, int(len(text) * (1 - a.held_out))) + 1
    for name, part in (("train", text[:cut]), ("held", text[cut:]), ("off", off)):
        write(a.out / f"{name}.txt", part)
    if a.scratch:
        shutil.rmtree(a.out / "start", ignore_errors=True)  # of a call that was stopped here
        byte_model.create(a.out / "start", lambda config, out: halfbyte(a, "init", "--config", config, "--out", out))
    write(known, json.dumps(settings, indent=2))
    return settings


def losses(a, model, forward):
    """Loss on held-out and on other text, with the program's estimate of its error."""
    found = {}
    for name in ("held", "off"):
        r = halfbyte(a, "perplexity", model, "--text", a.out / f"{name}.txt", "--window", a.seq, "--tokens", a.tokens, *forward)
        found[name], found[name + "_error"] = r["nll"], r["standard_error"]
    return found


def once(a, name, work):
    """The stored result of a run, or a new one."""
    path = a.out / "results" / f"{name}.json"
    if not path.exists():
        write(path, json.dumps(work()))
    return json.loads(path.read_text())


def train(a, start, row, seed):
    began, out = time.time(), a.out / f"run-{row}-{seed}"
    resume = ["--resume"] if (out / "settings.toml").exists() else []
    flags = ["--steps", a.steps, "--batch", a.batch, "--seq", a.seq, "--lr", a.lr, "--seed", seed, "--keep", 1,
             "--save-every", max(a.steps // 2, 1), *ROWS[row][1], *resume]
    end = halfbyte(a, "train", "--model", start, "--data", a.out / "train.txt", "--out", out, *flags)
    forward = ["--weights", "keep", *(["--cache", "f32"] if row == "all-f32" else [])]
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    result = {
        "bytes_per_parameter": end["state_bytes"] / end["parameters"],
        "seconds": sum(record["seconds"] for record in log), "curve": [record["loss"] for record in log],
        **losses(a, out / "model", forward),
    }
    print(f"  held {result['held']:.4f}  off {result['off']:.4f}  in {time.time() - began:.0f} s", file=sys.stderr)
    # Master weights and checkpoints of many runs would fill a disk.
    shutil.rmtree(out)
    return result


def main():
    a = arguments()
    settings = prepare(a)
    start = a.out / "start" if a.scratch else a.model
    before = once(a, "before", lambda: {
        "f32": losses(a, start, ["--weights", "f32", "--cache", "f32"]),
        "nvfp4": losses(a, start, ["--weights", "nvfp4"]),
    })
    study = {"settings": settings, "before": before, "rows": {}}
    # Seed by seed: whenever it is stopped, all rows have about as many runs.
    plan = [(row, seed) for seed in range(a.seeds) for row in a.rows]
    for number, (row, seed) in enumerate(plan, 1):
        if not (a.out / "results" / f"{row}-{seed}.json").exists():
            print(f"[{number}/{len(plan)}] {row}, seed {seed}", file=sys.stderr)
        result = once(a, f"{row}-{seed}", lambda: train(a, start, row, seed))
        of_row = study["rows"].setdefault(row, {"kept": ROWS[row][0], "flags": ROWS[row][1], "seeds": {}})
        of_row["seeds"][seed] = result
        publish(a, study)
    print((a.docs / f"{a.name}.md").read_text())


def publish(a, study):
    a.docs.mkdir(parents=True, exist_ok=True)
    thin = json.loads(json.dumps(study))
    for row in thin["rows"].values():
        for run in row["seeds"].values():
            del run["curve"]
    write(a.docs / f"{a.name}.json", json.dumps(thin, indent=1) + "\n")
    write(a.docs / f"{a.name}-cost.svg", plots.costs(study))
    write(a.docs / f"{a.name}-curves.svg", plots.curves(study))
    write(a.docs / f"{a.name}.md", tables.page(a.name, study))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; the same command goes on from here")
