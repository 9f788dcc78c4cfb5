#!/usr/bin/env python3
"""Is a sentence found again in a long context? Prints one line per length, depth and weight format.

  python scripts/check/needle.py --model SmolLM2-135M-Instruct.Q4_1.gguf --text handbook-ch1.txt

`--llama-cpp` asks llama.cpp (package llama-cpp-python) the same questions.
"""
import argparse, subprocess

SECRET = "7391"


def prompt(text, characters, depth):
    hay = text[:characters]
    at = hay.find("\n\n", int(len(hay) * depth))
    return (hay[:at] + f"\n\nThe secret code of the vault is {SECRET}. Remember it.\n\n" + hay[at:]
            + "\n\nThe secret code of the vault is")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--halfbyte", default="target/release/halfbyte")
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--weights", nargs="+", default=["bf16", "int8", "nvfp4"])
    p.add_argument("--characters", nargs="+", type=int, default=[2000, 12000, 33000, 38320])
    p.add_argument("--depths", nargs="+", type=float, default=[0.1, 0.5, 0.9])
    p.add_argument("--llama-cpp", action="store_true")
    a = p.parse_args()
    text = open(a.text, encoding="utf-8").read()
    llama = None
    if a.llama_cpp:
        from llama_cpp import Llama
        llama = Llama(a.model, n_ctx=8192, verbose=False)
    for characters in a.characters:
        for depth in a.depths:
            asked = prompt(text, characters, depth)
            for weights in a.weights:
                flags = ["--raw", "--prompt", "-", "--context", "8192", "--max-tokens", "8", "--weights", weights]
                r = subprocess.run([a.halfbyte, "run", a.model, *flags], input=asked, stdout=subprocess.PIPE, text=True, check=True)
                print(weights, characters, depth, SECRET in r.stdout, repr(r.stdout.strip()), flush=True)
            if llama:
                answer = llama(asked, max_tokens=8, temperature=0)["choices"][0]["text"]
                print("llama.cpp", characters, depth, SECRET in answer, repr(answer.strip()), flush=True)


if __name__ == "__main__":
    main()
