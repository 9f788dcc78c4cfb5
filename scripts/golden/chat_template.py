"""Golden prompts for crates/text, made by jinja2 with the settings transformers uses.

    python scripts/golden/chat_template.py --assets FOLDER --out crates/text/tests/golden

Writes chat_template.json: small templates of our own with their output, and for Qwen3, Qwen2.5,
Llama 3.2 (tok/NAME/package/models/tokenizer_config.json in FOLDER) and SmolLM2 (its GGUF there; needs
the package `gguf`) only the hash of the template and the prompts it makes.
"""
import argparse
import datetime
import hashlib
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_763_251_200  # 2025-11-16 00:00 UTC

HELLO = [{"role": "user", "content": "Hello"}]
SYSTEM = [{"role": "system", "content": "  Be brief.\n"}] + HELLO
TURNS = [
    {"role": "user", "content": "你是誰?"},
    {"role": "assistant", "content": "<think>\nWho am I?\n</think>\n\nI am \"halfbyte\"."},
    {"role": "user", "content": " and <b>you</b>? \n"},
]
LONG = [{"role": "system", "content": "S"}] + TURNS + [
    {"role": "assistant", "content": "A model."},
    {"role": "user", "content": "\U0001F31F"},
]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "it's <b>\u00e9</b>", "parameters": {
    "type": "object", "properties": {"x": {"type": "number", "minimum": 0.5, "big": 1e22, "list": [1, None, True, []]}}, "required": ["x"]}}}]
CONVERSATIONS = [
    {"messages": HELLO, "prompt": True},
    {"messages": HELLO, "prompt": False},
    {"messages": SYSTEM, "prompt": True},
    {"messages": TURNS, "prompt": True},
    {"messages": LONG, "prompt": True},
    {"messages": LONG, "prompt": True, "extra": {"enable_thinking": False}},
    {"messages": HELLO, "prompt": True, "extra": {"enable_thinking": True}},
    {"messages": SYSTEM, "prompt": True, "extra": {"tools": TOOLS}},
]

OWN = [
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    "{%- for m in messages -%}\n  {%- if m.role == 'system' %}\n    sys\n  {% else %}\n{{ loop.index0 }}/{{ loop.length }}\n  {% endif %}\n{%- endfor %}\n\ntail\n",
    "  {% set ns = namespace(found=false, n=0) %}\n{% for m in messages %}\n  {% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% endif %}\n  {% set ns.n = ns.n + m.content|length %}\n{% endfor %}\n{{ ns.found }} {{ ns.n }} {{ none }} {{ undefined_thing }}|{{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ [1, 'a', none, true] }} {{ {'k': \"it's\"} }}",
    "{{ messages | tojson }}\n{{ {'a': [1, 2.5, none, true], 'é': '<&>\\n'} | tojson }}\n{{ {'b': {}, 'a': [[], [1]]} | tojson(indent=2) }}\n{{ [1, 2] | tojson(separators=(',', ':')) }}\n{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}",
    "{% macro show(m, mark='*') %}{{ mark }}{{ m.content.split('\\n')[0].strip() }}{{ mark }}{% endmacro %}\n{% for m in messages[::-1] %}{{ show(m) }}{{ show(m, mark='-') }}{% if loop.last %}.{% else %}, {% endif %}{% endfor %}",
    "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %A %B %H:%M:%S %j %y') }}",
    "{% for m in messages %}{% generation %}{{ m.content.upper() }}{% endgeneration %}{% if m.role == 'user' %}{% break %}{% endif %}{% endfor %}",
    "{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}{% set content = message.content.replace('e', '3').lstrip().title() if message.role == 'user' else message['content'] | upper %}{{ content ~ ';' }}{% endfor %}{{ loop_messages | map(attribute='role') | join(',') }} {{ (loop_messages | selectattr('role', 'equalto', 'user') | list) | length }}",
    "{{ 'x' if messages is defined and messages is iterable and messages is not mapping }}{{ 'a' in 'cat' }}{{ messages[0].get('name', 'anon') }}{{ messages[0].items() | list | length }}{{ messages[0].missing is defined }}{{ 'Hello'.startswith(('a', 'H')) }}{{ 'a,b,c'.split(',', 1)[1] }}{{ 'abc'[::-1] }}{{ 'abc'[-2:] }}{{ 'xyz'.find('z') }}",
    "{% raw %}{% set x = {{ 1 }} %}{% endraw %}{# comment {% include 'x' %} #}{{ '{% import %}' }}{% set block %}a{{ messages | length }}b{% endset %}{{ block * 2 }}{{ block | length }}",
    "{{ 'a\\nb\\n\\nc' | indent(2) }}{{ 'a\\nb' | indent(width=3, first=true) }}{{ messages | join('/', attribute='role') }}{{ [1, none, true] | join }}{{ 'a-b' | replace('-', '+') }}{{ '{} and {:>4}'.format(1, 'x') }}{{ ', '.join(['p', 'q']) }}",
    "{% for m in messages %}\n    {% if loop.first %}\n    first\n    {%- elif loop.last +%}\n    last\n    {% else %}\n    mid\n    {% endif %}\n{% endfor %}\nend",
]


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_say"), [], [], body).set_lineno(line)

        def _say(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)

    result = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = strftime_now
    return result


def render(source, conversation, bos, eos):
    variables = {"tools": None, "documents": None, "bos_token": bos, "eos_token": eos}
    variables.update(conversation.get("extra", {}))
    return environment().from_string(source).render(
        messages=conversation["messages"], add_generation_prompt=conversation["prompt"], **variables)


def models(assets):
    for name in ["qwen3", "qwen2_5", "llama3_2"]:
        path = assets / "tok" / name / "package" / "models" / "tokenizer_config.json"
        if path.exists():
            config = json.loads(path.read_text())
            yield name, config["chat_template"], config.get("bos_token") or "", config.get("eos_token") or ""
    path = assets / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if path.exists():
        from gguf import GGUFReader
        yield "smollm2", GGUFReader(path).fields["tokenizer.chat_template"].contents(), "<|im_start|>", "<|im_end|>"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    own = [{"source": s, "outputs": [render(s, c, "<s>", "</s>") for c in CONVERSATIONS[:5]]} for s in OWN]
    real = {}
    for name, source, bos, eos in models(arguments.assets):
        outputs = [render(source, c, bos, eos) for c in CONVERSATIONS]
        real[name] = {"sha256": hashlib.sha256(source.encode()).hexdigest(), "bos": bos, "eos": eos, "outputs": outputs}
    result = {"time": NOW, "conversations": CONVERSATIONS, "own": own, "models": real}
    (arguments.out / "chat_template.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()
