#!/usr/bin/env python3
"""halfbyte beside llama.cpp and transformers on this CPU, in turns within one run.

  python scripts/bench/cpu.py --peers cpu_peers.py --model smollm2=SmolLM2-135M-Instruct.Q4_1.gguf
  python scripts/bench/cpu.py --peers cpu_peers.py --model qwen3-0.6b=qwen3-0.6b-random.gguf \\
      --random qwen3-0.6b=configs/qwen3-0.6b.json

Each round measures halfbyte (with its ceilings), llama.cpp and transformers one after the other,
so that all of them meet the machine's good and bad minutes. Medians of all rounds; ratios from the medians. `--random NAME=config.json` lets halfbyte use random
weights of that shape where the peer reads a synthetic file (`cpu_peers.py synth`).
Needs: a release build of halfbyte, and the packages that cpu_peers.py names.
"""
import argparse, json, statistics, subprocess, sys, tempfile


def run(command):
    r = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if r.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {r.returncode}")
    return r.stdout


def peer(a, task, name, path, extra=()):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        run([sys.executable, a.peers, task, "--model", f"{name}={path}", "--threads", str(a.threads),
             "--repeat", str(a.repeat), "--json", f.name, *extra])
        d = json.load(open(f.name))
    while isinstance(d, (dict, list)) and "decode_tok_s" not in d:   # the driver nests results by task and model
        d = next(v for v in (d.values() if isinstance(d, dict) else d) if isinstance(v, (dict, list)))
    return d["prefill_512_tok_s"]["median"], d["decode_tok_s"]["median"]


def ours(a, path, config):
    source = ["--random", config] if config else [path]
    return json.loads(run([a.halfbyte, "bench", *source, "--threads", str(a.threads), "--repeat", str(a.repeat), "--json"]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peers", required=True, help="the peer script, cpu_peers.py")
    p.add_argument("--halfbyte", default="target/release/halfbyte")
    p.add_argument("--model", action="append", required=True, type=lambda s: s.split("=", 1), metavar="NAME=FILE.gguf")
    p.add_argument("--random", action="append", default=[], type=lambda s: s.split("=", 1), metavar="NAME=config.json")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=2, help="of every program in a round; the median counts")
    p.add_argument("--no-transformers", action="store_true")
    p.add_argument("--json", help="also write the results here")
    a = p.parse_args()
    random, results = dict(a.random), {}
    for name, path in a.model:
        hf, llama, half = [], [], []
        for _ in range(a.rounds):
            half.append(ours(a, path, random.get(name)))
            llama.append(peer(a, "llamacpp", name, path))
            if not a.no_transformers:
                hf.append(peer(a, "hf", name, path, ["--dtype", "bfloat16"]))
        med = lambda xs: statistics.median(xs)
        key = lambda k: med([h[k] for h in half])
        r = {"prefill": {"halfbyte": key("prefill_tok_s"), "llama.cpp": med([x[0] for x in llama])},
             "decode": {"halfbyte": key("decode_tok_s"), "llama.cpp": med([x[1] for x in llama])},
             "percent": {"prefill": key("prefill_percent_of_ceiling"), "decode": key("decode_percent_of_ceiling")},
             "ceilings": {"read_gb_s": key("read_bytes_s") / 1e9, "tflop_s": key("arithmetic_flop_s") / 1e12},
             "rounds": {"halfbyte": [[h["prefill_tok_s"], h["decode_tok_s"]] for h in half], "llama.cpp": llama, "transformers": hf}}
        if hf:
            r["prefill"]["transformers bf16"] = med([x[0] for x in hf])
            r["decode"]["transformers bf16"] = med([x[1] for x in hf])
        results[name] = r
        print(f"\n{name}: kernels {half[0]['kernels']}, memory read {r['ceilings']['read_gb_s']:.1f} GB/s, tiles {r['ceilings']['tflop_s']:.2f} TFLOP/s")
        for what in ("prefill", "decode"):
            row = r[what]
            peers = "   ".join(f"{k} {v:.1f} ({row['halfbyte'] / v:.2f}x)" for k, v in row.items() if k != "halfbyte")
            print(f"  {what:8} halfbyte {row['halfbyte']:9.1f} tok/s, {r['percent'][what]:.0f}% of ceiling   {peers}")
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
