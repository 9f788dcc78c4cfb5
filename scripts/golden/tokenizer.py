"""Golden ids for crates/text, made by the Python package `tokenizers`.

    python scripts/golden/tokenizer.py --assets FOLDER --out crates/text/tests/golden

Writes small-tokenizer.json (a byte-level BPE of a few hundred tokens, trained here) and
tokenizer.json (awkward texts with ids and decoded text, for the small tokenizer and for those of
Qwen3, Qwen2.5 and Llama 3.2 where FOLDER holds them as tok/NAME/package/models/tokenizer.json).
"""
import argparse
import hashlib
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TRAINING = [
    "The quick brown fox jumps over the lazy dog and the other dogs.",
    "There is nothing in the world that the world would not answer with another question.",
    "We'll see what they've done; it's not that I'm against it, but you'd think they're thinking.",
    "1 22 333 4444 one two three four, and then: the end.\n\n    indented\n\tand tabbed\n",
    "你是誰?我是一個小助手。 談談天空,談談世界。",
    "assistant user system hello hello there this that these those",
]

TEXTS = [
    "", " ", "  ", "\n", "\n\n \n", "\t \t\n  x", "a", "Hello world!", "  leading and trailing  ",
    "Mixed\r\nline\rends\n", "I'm you'RE they'Ve it'S don’t", "3.14159 1000000 ½ Ⅻ ²",
    "你是誰", "談談UFO", "中文、English 混合。かな 한글", "\U0001F31F", "\U0001F469\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 family",
    "\U0001F1F9\U0001F1FC flag \U0001F44D\U0001F3FD", "e\u0301 vs \u00e9, A\u030a vs \u00c5, \ufb01", "\u1112\u1161\u11ab",
    "NUL \x00 inside \x00\x00", "\x01\x02\x7f\x80\x9f", "\ufeffbom \u200b zero \u00a0nbsp \u3000wide",
    "\ufffd replaced \ufffd\ufffd", "\U0010ffff \ue000 \u0378", "עברית עִם נִקּוּד، العربية ١٢٣", "हिन्दी ก่อน",
    "a" * 300, " " * 100 + "x", "!?" * 50, "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "x<|endoftext|>y <think>\n",
    "def f(x):\n    return x**2  # ok\n\n\n\tif x:\n\t\tpass\n", "https://example.org/a?b=c&d=%20#e", "ǅ ß ẞ İ ı ſ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
]


def small(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TRAINING * 3, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")


def golden(path):
    tokenizer = Tokenizer.from_file(str(path))
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append([ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)])
    # Ids that end inside a character, and ids whose bytes are no text at all.
    star = tokenizer.encode("a\U0001F31Fb誰", add_special_tokens=False).ids
    broken = [[star[:n], tokenizer.decode(star[:n], skip_special_tokens=False)] for n in range(1, len(star) + 1)]
    broken.append([star[::-1], tokenizer.decode(star[::-1], skip_special_tokens=False)])
    # The text itself is stored once; a decoded text only where it differs.
    def compact(text, case):
        ids, plain, skipped = case
        row = {"ids": ids}
        if plain != text:
            row["decoded"] = plain
        if skipped != plain:
            row["skipped"] = skipped
        return row
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "cases": [compact(t, c) for t, c in zip(TEXTS, cases)],
        "broken": broken,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    own = arguments.out / "small-tokenizer.json"
    small(own)
    paths = {"small": own}
    for name in ["qwen3", "qwen2_5", "llama3_2"]:
        paths[name] = arguments.assets / "tok" / name / "package" / "models" / "tokenizer.json"
    result = {"texts": TEXTS, "tokenizers": {n: golden(p) for n, p in paths.items() if p.exists()}}
    (arguments.out / "tokenizer.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()
