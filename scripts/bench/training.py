#!/usr/bin/env python3
"""Full-parameter training on this CPU, 4 sequences of 256 tokens: halfbyte beside PyTorch in bf16 with
AdamW, in turns within one run.

  python scripts/bench/training.py --peers cpu_peers.py --model SmolLM2-135M-Instruct.Q4_1.gguf --text TEXT

Medians over the steps of all rounds, the first two of each left out; ratios from the medians. The
optimizer's share is given of the fastest quarter of the steps too: on shared cores a neighbour slows
products more than the optimizer, so all others flatter it. TEXT is what both learn from. Needs a release build, and the packages that cpu_peers.py names.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile


def run(command):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {r.returncode}\n{r.stderr[-2000:]}")
    return r.stdout


def ours(a):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        run([a.halfbyte, "train", "--model", a.model, "--data", a.text, "--out", out, "--seq", "256", "--batch", "4",
             "--steps", str(a.steps), "--device", "cpu", "--threads", str(a.threads), "--state", a.state,
             "--recompute", a.recompute, "--json"])
        return [json.loads(line) for line in open(os.path.join(out, "log.jsonl"))][2:]


def peer(a):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        said = run([sys.executable, a.peers, "train", "--model", f"m={a.model}", "--dtype", "bfloat16", "--text", a.text,
             "--threads", str(a.threads), "--repeat", str(a.steps - 3), "--json", f.name])
        d = json.load(open(f.name))
    while "tok_s" not in d:   # the driver nests results by task and model
        inner = [v for v in (d.values() if isinstance(d, dict) else d) if isinstance(v, (dict, list))]
        if not inner:
            raise SystemExit(f"{a.peers} gave no speed:\n{said[-2000:]}")
        d = inner[0]
    return d


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peers", required=True, help="the peer script, cpu_peers.py")
    p.add_argument("--halfbyte", default="target/release/halfbyte")
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--state", default="default")
    p.add_argument("--recompute", default="layer", help="layer, feed-forward or none, as train takes it")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    steps, peers = [], []
    for number in range(a.rounds):
        mine, theirs = ours(a), peer(a)
        steps += mine
        peers.append(theirs)
        rate = statistics.median(r["tokens_per_second"] for r in mine)
        print(f"round {number + 1}: halfbyte {rate:.0f}, PyTorch {theirs['tok_s']['median']:.0f} tok/s: "
              f"{rate / theirs['tok_s']['median']:.2f}x", flush=True)
    med = lambda key: statistics.median(key(r) for r in steps)
    rate, other = med(lambda r: r["tokens_per_second"]), statistics.median(d["tok_s"]["median"] for d in peers)
    peak, theirs = max(r["memory_measured"] for r in steps) / 2**20, max(d["peak_rss_mib"] for d in peers)
    print(f"tokens a second     halfbyte {rate:.0f}, PyTorch {other:.0f}: {rate / other:.2f}x")
    print(f"peak resident, MiB  halfbyte {peak:.0f}, PyTorch {theirs}: 1/{theirs / peak:.1f}")
    print(f"share of ceiling    {med(lambda r: r['ceiling_share']):.0%}")
    fastest = sorted(steps, key=lambda r: r["seconds"])[:max(1, len(steps) // 4)]
    quiet = lambda key: statistics.median(key(r) for r in fastest)
    print(f"fastest quarter     {quiet(lambda r: r['tokens_per_second']):.0f} tok/s, optimizer "
          f"{quiet(lambda r: r['optimizer_seconds']) * 1e3:.1f} ms, {quiet(lambda r: r['optimizer_seconds'] / r['seconds']):.1%} of a step")
    print(f"optimizer           {med(lambda r: r['optimizer_seconds'] / r['seconds']):.1%} of a step; "
          f"PyTorch {statistics.median(d['optimizer_s'] / (d['forward_s'] + d['backward_s'] + d['optimizer_s']) for d in peers):.1%}")


if __name__ == "__main__":
    main()
