"""Golden ids and trained spans for crates/text, made by transformers.

    python scripts/golden/training_mask.py --assets FOLDER --out crates/text/tests/golden

Needs the packages `transformers` and `gguf`. For Qwen3, Qwen2.5, Llama 3.2
(tok/NAME/package/models in FOLDER) and SmolLM2 (its GGUF there) the published template gets
`{% generation %}` tags around what the model has to say itself, end-of-turn token included, and
`apply_chat_template(..., return_assistant_tokens_mask=True)` gives ids and mask. The tags are put
where the template prints a reply; that the tagged template prints the published one's text is
asserted. Every reply is taken as the last one of its conversation, as chat meets it.

Writes training_mask.json: for every conversation and reply the ids up to the end of that reply, and
the first and one past the last trained id.
"""
import argparse
import hashlib
import json
import pathlib

DATE = "16 Nov 2025"

PAIR = [{"role": "user", "content": "你是誰"}, {"role": "assistant", "content": "我是 F# 之神。"}]
ENGLISH = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "I am the god of F#."},
]
SYSTEM = [{"role": "system", "content": "  Be brief.\n"}] + ENGLISH
THOUGHTS = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nFour."},
    {"role": "user", "content": " and <b>3</b>? \n"},
    {"role": "assistant", "content": "<think>\nThree more.\n</think>\n\nSeven."},
]
TURNS = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "談談UFO"},
    {"role": "assistant", "content": "UFO 是天空中還不知道是什麼的東西。\n1. 光\n2. 影"},
    {"role": "user", "content": "\U0001F31F?"},
    {"role": "assistant", "content": "let f x = x + 1  \n\n"},
    {"role": "user", "content": "thanks"},
    {"role": "assistant", "content": "You are welcome \U0001F31F"},
]
CONVERSATIONS = [
    {"messages": PAIR},
    {"messages": ENGLISH},
    {"messages": SYSTEM},
    {"messages": THOUGHTS},
    {"messages": TURNS},
    {"messages": TURNS, "extra": {"enable_thinking": False}},
    {"messages": PAIR, "extra": {"enable_thinking": False}},
]

OPEN, CLOSE = "{%- generation %}", "{%- endgeneration %}"


def once(text, old, new):
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new)


def tagged_qwen3(source, thinking):
    head = "'<|im_start|>' + message.role + '\\n"
    block = "<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}"
    if thinking:
        marked = "' }}@OPEN@{{- '" + block.replace(" }}", " + '<|im_end|>' }}@CLOSE@")
    else:
        # With thinking turned off the empty block is the prompt's.
        marked = block.replace(
            " + content.lstrip('\\n') }}", " }}@OPEN@{{- content.lstrip('\\n') + '<|im_end|>' }}@CLOSE@")
    source = once(source, head + block, head + marked)
    plain = head + "' + content }}"
    assert source.count(plain) == 2
    source = source.replace(plain, head + "' }}@OPEN@{{- content + '<|im_end|>' }}@CLOSE@")
    end = "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"
    return once(source, end, end.replace("<|im_end|>", "", 1))


def tagged_qwen2_5(source, thinking):
    say = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    reply = ("{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}@OPEN@"
             "{{- message.content + '<|im_end|>' }}@CLOSE@{{- '\\n' }}{%- else %}" + say + "{%- endif %}")
    return once(source, say, reply)


def tagged_llama3_2(source, thinking):
    say = ("{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
           "'<|eot_id|>' }}")
    reply = ("{%- if message.role == 'assistant' %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}@OPEN@"
             "{{- message['content'] | trim + '<|eot_id|>' }}@CLOSE@{%- else %}" + say + "{%- endif %}")
    return once(source, say, reply)


def tagged_smollm2(source, thinking):
    say = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    reply = ("{% if message['role'] == 'assistant' %}{{'<|im_start|>assistant\n'}}@OPEN@"
             "{{ message['content'] + '<|im_end|>' }}@CLOSE@{{'\n'}}{% else %}" + say + "{% endif %}")
    return once(source, say, reply)


TAGGED = {"qwen3": tagged_qwen3, "qwen2_5": tagged_qwen2_5, "llama3_2": tagged_llama3_2, "smollm2": tagged_smollm2}


def tokenizers(assets):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    for name in ["qwen3", "qwen2_5", "llama3_2"]:
        folder = assets / "tok" / name / "package" / "models"
        if folder.exists():
            config = json.loads((folder / "tokenizer_config.json").read_text())
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_file=str(folder / "tokenizer.json"), bos_token=config.get("bos_token"),
                eos_token=config.get("eos_token"))
            yield name, config["chat_template"], tokenizer
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    if (assets / file).exists():
        from gguf import GGUFReader
        source = GGUFReader(assets / file).fields["tokenizer.chat_template"].contents()
        yield "smollm2", source, AutoTokenizer.from_pretrained(str(assets), gguf_file=file)


def apply(tokenizer, source, messages, extra, **more):
    # Without the clock: Llama's template takes this date instead.
    return tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=more.get("return_dict", False), date_string=DATE, **extra, **more)


def reply(tokenizer, name, source, messages, extra):
    thinking = extra.get("enable_thinking", True)
    marked = TAGGED[name](source, thinking).replace("@OPEN@", OPEN).replace("@CLOSE@", CLOSE)
    assert apply(tokenizer, marked, messages, extra) == apply(tokenizer, source, messages, extra)
    result = apply(tokenizer, marked, messages, extra, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = list(result["input_ids"]), list(result["assistant_masks"])
    end = max(i for i, trained in enumerate(mask) if trained) + 1
    start = end
    while start > 0 and mask[start - 1]:
        start -= 1
    return {"ids": ids[:end], "start": start}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    models = {}
    for name, source, tokenizer in tokenizers(arguments.assets):
        rows = []
        for conversation in CONVERSATIONS:
            messages, extra = conversation["messages"], conversation.get("extra", {})
            places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            rows.append([reply(tokenizer, name, source, messages[:i + 1], extra) for i in places])
        models[name] = {"sha256": hashlib.sha256(source.encode()).hexdigest(), "replies": rows}
    result = {"date": DATE, "conversations": CONVERSATIONS, "models": models}
    (arguments.out / "training_mask.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()
