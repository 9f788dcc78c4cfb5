#!/usr/bin/env python3
"""halfbyte beside PyTorch on one GPU, in one run: a Qwen3-4B's shape with random weights.

  python3 scripts/bench/gpu.py --peers gpu_peers.py
  python3 scripts/bench/gpu.py --peers gpu_peers.py --fast      the best peer of each row only

Each row is measured by halfbyte, with the ceilings of the same minute, and by the peers, one after
the other. Needs a release build of halfbyte and, for the peers, torch and transformers (see
gpu_peers.py); without --peers halfbyte is measured alone.
"""
import argparse, json, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 1 << 30
TRAIN = ["--train", "--seq", "1024", "--repeat", "5"]

# what -> (flags of `halfbyte bench`, the figure, peers with the best last, what issue 10 asks for)
ROWS = {
    "1x1024": ([*TRAIN, "--batch", "1"], "train_tok_s",
               ["train 1x1024 recompute adamw-bf16", "train 1x1024 recompute adamw-bf16 liger"], 9000),
    "1x1024, lean": ([*TRAIN, "--batch", "1", "--state", "lean"], "train_tok_s", [], None),
    "8x1024": ([*TRAIN, "--batch", "8"], "train_tok_s",
               ["train 8x1024 recompute adamw-bf16", "train 8x1024 recompute adamw-bf16 liger"], 17500),
    "8x1024, all kept": ([*TRAIN, "--batch", "8", "--recompute", "none"], "train_tok_s",
                         ["train 8x1024 keep adamw-bf16"], 20000),
    "8x1024, attention kept": ([*TRAIN, "--batch", "8", "--recompute", "feed-forward"], "train_tok_s", [], None),
    "8x1024, own products": ([*TRAIN, "--batch", "8", "--kernels", "own"], "train_tok_s", [], None),
    "prompt of 8192": (["--prompt-tokens", "8192", "--decode-tokens", "8"], "prefill_tok_s", ["prefill 8192"], 45000),
    "decode at 512": (["--decode-at", "512", "--decode-tokens", "128"], "decode_tok_s",
                      ["decode 512 eager", "decode 512 compiled"], 600),
}


def ours(a, row):
    flags, figure, _, wanted = ROWS[row]
    command = [a.halfbyte, "bench", "--random", a.config, "--device", "cuda", *flags, "--json"]
    r = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if r.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {r.returncode}")
    d = json.loads(r.stdout)
    share = d.get("percent_of_ceiling") or d.get(figure.replace("tok_s", "percent_of_ceiling"))
    return {"tok_s": d[figure], "percent": share, "gib": (d["measured_peak_bytes"] or 0) / GIB,
            "planned_gib": d["planned_peak_bytes"] / GIB, "optimizer_ms": d.get("optimizer_seconds", 0) * 1e3 or None,
            "wanted": wanted}


def theirs(a, names):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        command = [sys.executable, a.peers, "--steps", "5", "--json", f.name, "--only", *names]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        return {name: row for name, row in json.load(open(f.name)).items() if name in names}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peers", help="the peer script, gpu_peers.py")
    p.add_argument("--halfbyte", default=str(ROOT / "target/release/halfbyte"))
    p.add_argument("--config", default=str(ROOT / "configs/qwen3-4b.json"))
    p.add_argument("--fast", action="store_true", help="only the best peer of each row")
    p.add_argument("--only", nargs="*", help="rows that contain one of these")
    p.add_argument("--json", help="also write the results here")
    a = p.parse_args()
    results = {}
    print(f"{'':24} {'halfbyte':>10} {'ceiling':>8} {'GiB':>6} {'planned':>8} {'optimizer':>10} {'wanted':>8}   peers")
    for row, (_, _, peers, _) in ROWS.items():
        if a.only and not any(part in row for part in a.only):
            continue
        own = ours(a, row)
        names = peers[-1:] if a.fast else peers
        others = theirs(a, names) if a.peers and names else {}
        results[row] = {"halfbyte": own, "peers": others}
        show = lambda value, form, unit="": "" if value is None else format(value, form) + unit
        text = "; ".join(f"{name}: {r['tok_s']:,.0f} at {r['device_used_gib']:.1f} GiB" if "tok_s" in r else f"{name}: {r}"
                         for name, r in others.items())
        print(f"{row:24} {own['tok_s']:>10,.0f} {show(own['percent'], '.0f', '%'):>8} {own['gib']:>6.1f} {own['planned_gib']:>8.1f}"
              f" {show(own['optimizer_ms'], '.1f', ' ms'):>10} {show(own['wanted'], ',d'):>8}   {text}", flush=True)
    if "8x1024" in results and "8x1024, own products" in results:
        share = results["8x1024, own products"]["halfbyte"]["tok_s"] / results["8x1024"]["halfbyte"]["tok_s"]
        print(f"own products: {100 * share:.0f}% of the figure with cuBLASLt")
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
