#!/usr/bin/env python3
"""Does a trained model answer the same elsewhere? Asks halfbyte, transformers (a bf16 directory) and
llama.cpp (a GGUF), all greedily, and prints the replies side by side.

  python scripts/check/answers.py --model run/model --out answers --prompts "Who are you?" "Who am I?"

Needs the packages torch, transformers and llama-cpp-python, and a release build. OUT must not exist.
"""
import argparse, os, subprocess


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--halfbyte", default="target/release/halfbyte")
    p.add_argument("--model", required=True, help="what `halfbyte train` wrote")
    p.add_argument("--out", required=True, help="where the converted files go")
    p.add_argument("--prompts", nargs="+", required=True)
    p.add_argument("--max-tokens", type=int, default=40)
    a = p.parse_args()
    os.makedirs(a.out)
    directory, gguf = os.path.join(a.out, "bf16"), os.path.join(a.out, "model.gguf")
    for out, to in (directory, ["hf", "--weights", "bf16"]), (gguf, ["gguf", "--weights", "keep"]):
        subprocess.run([a.halfbyte, "convert", a.model, out, "--to", *to], check=True, stdout=subprocess.DEVNULL)

    import torch
    from llama_cpp import Llama
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    llama = Llama(gguf, n_ctx=1024, verbose=False)

    def ours(prompt):
        flags = ["--prompt", prompt, "--max-tokens", str(a.max_tokens)]
        r = subprocess.run([a.halfbyte, "run", a.model, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        return r.stdout

    def by_transformers(prompt):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
        out = model.generate(ids, max_new_tokens=a.max_tokens, do_sample=False)
        return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)

    def by_llama(prompt):
        # The same ids, so that only the model is judged.
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True)["input_ids"]
        return llama(list(ids), max_tokens=a.max_tokens, temperature=0)["choices"][0]["text"]

    same = 0
    for prompt in a.prompts:
        replies = {"halfbyte": ours(prompt), "transformers": by_transformers(prompt), "llama.cpp": by_llama(prompt)}
        replies = {name: reply.strip() for name, reply in replies.items()}
        equal = len(set(replies.values())) == 1
        same += equal
        print(f"\n{prompt}   {'all three the same' if equal else 'they differ'}")
        for name, reply in replies.items():
            print(f"  {name:13} {reply!r}")
    print(f"\n{same} of {len(a.prompts)} answered the same by all three")


if __name__ == "__main__":
    main()
