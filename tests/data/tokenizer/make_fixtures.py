#!/usr/bin/env python3
"""Makes the tokenizer fixtures of this folder; needs the PyPI packages tokenizers and jinja2.

  make_fixtures.py QWEN2_TOKENIZER_JSON

tokenizer.json       a reduced Qwen2 tokenizer (Apache-2.0): all 256 bytes, the first merges and those that the texts below use
expected_ids.json    texts, and their ids by Hugging Face tokenizers for each kind of pre-tokenizer over that vocabulary
chat_templates.json  templates (this project's own, and SmolLM2's, Apache-2.0), messages, and what jinja2 makes of them with the
                     settings of Hugging Face transformers; "error" where it raises
"""
import datetime
import json
import pathlib
import random
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
FIRST_MERGES = 3000

CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS = {
    "gpt2": byte_level(True),
    "smollm": sequence({"type": "Digits", "individual_digits": True}, byte_level(True)),
    "llama-3": sequence(split(LLAMA3), byte_level(False)),
    "qwen2": sequence(split(QWEN2), byte_level(False)),
}

TEXTS = [
    "", "a", " ", "  ", "\n", "\t", "hello world", "Hello, World! 123 4567 89", "I'm you're we'll they'd I'VE 'S 's 'ſ it'ſ DON'T don’t",
    "  leading", "trailing  ", "a  b   c    d", "x\n\ny\r\n\r\nz\t\t\n  w", "\n\n\n\n   \n \n", "   \t \n x", "café naïve",
    "cafe\u0301 e\u0301\u0301 n\u0303 \u1100\u1161\u11a8", "日本語のテキスト。漢字かな交じり文", "今天天气很好，我们去公园。", "مرحبا بالعالم ١٢٣", "Привет, мир! 🙂",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️", "한국어 텍스트", "हिन्दी में पाठ", "ภาษาไทย", "½ ² Ⅳ ① ٣ ௧", "def f(x):\n    return x**2  # comment\n\n\tif x: pass\r\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }", "\u200b\ufeff\u00a0\u2003\u3000x", "\u180e a\u180eb", "\x85a\x85 b\x1cc\x1d d",
    "\u2028x\u2029y", "a\x00b\x01", "!!!???...---===", "http://x.y/z?a=1&b=2#c", "1000000 1,000,000 3.14159 0x1F 12345678901234567890",
    "$100 €200 ¥300", "ǅ ᾈ ß İ ı", "\U0010ffff\U000f0000 \ue000", "'''' ' 's' '' s", "<|im_start|>user\nhi<|im_end|>\n<|im_star",
    "<|endoftext|><|endoftext|>", "<|im_start|<|im_start|>|im_end|>", "abcdefghij" * 20, "aaaaaaaaaaaaaaaa" * 10, " " * 100 + "x", "8" * 61,
]
POOLS = ["abcdefghijklmnopqrstuvwxyz", "the of and ing ", "0123456789 .,", "\n\r\t  ", "'smtdlrev", "日本語漢字", "éèüöñ", "🙂👍🏽❤️", "!@#$%^&*()",
         "\u0301\u0300\u200d", "١٢٣ابج", "½²Ⅳ", "\u00a0\u2003\u3000\x85\u180e"]


def random_texts(count):
    generator = random.Random(3)
    for _ in range(count):
        yield "".join(generator.choice(generator.choice(POOLS)) for _ in range(generator.randint(1, 60)))


def reduce_vocabulary(source, texts):
    """The tokens and merges that the texts need, with the first merges and all single bytes, numbered anew."""
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in source["model"]["merges"]]
    made_by = {}
    for rank, (left, right) in enumerate(merges):
        made_by.setdefault(left + right, rank)
    wanted = set(range(FIRST_MERGES))
    tokenizer = Tokenizer.from_str(json.dumps(source))
    pending = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).tokens]
    pending += [part for rank in range(FIRST_MERGES) for part in merges[rank]]
    while pending:
        token = pending.pop()
        rank = made_by.get(token)
        if rank is not None and (rank not in wanted or rank < FIRST_MERGES):
            if rank not in wanted:
                pending += merges[rank]
            wanted.add(rank)
    kept = [merges[rank] for rank in sorted(wanted)]
    tokens = sorted((token for token in source["model"]["vocab"] if len(token) == 1), key=source["model"]["vocab"].get)
    assert len(tokens) == 256
    tokens += dict.fromkeys(left + right for left, right in kept)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    added = [dict(token, id=len(tokens) + index) for index, token in enumerate(source["added_tokens"][:3])]
    added.append({"id": len(tokens) + 3, "content": "\t\t\t", "special": False, "normalized": False, "single_word": False,
                  "lstrip": False, "rstrip": False})
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
             "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": [" ".join(merge) for merge in kept]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": PRE_TOKENIZERS["qwen2"], "post_processor": byte_level(False), "decoder": byte_level(True), "model": model}


def ids_by_kind(tokenizer, texts):
    ids = {}
    for kind, pre_tokenizer in PRE_TOKENIZERS.items():
        model = dict(tokenizer["model"], ignore_merges=kind == "llama-3")
        normalizer = {"type": "NFC"} if kind == "qwen2" else None
        oracle = Tokenizer.from_str(json.dumps(dict(tokenizer, model=model, normalizer=normalizer, pre_tokenizer=pre_tokenizer)))
        ids[kind] = [oracle.encode(text, add_special_tokens=False).ids for text in texts]
    return ids


MESSAGES = {
    "user": [{"role": "user", "content": "Hello"}],
    "talk": [{"role": "system", "content": "You are a poet.  "}, {"role": "user", "content": "  Hi there \u3000\n"},
             {"role": "assistant", "content": "<think>hm</think>\n\nYes?"}, {"role": "user", "content": "日本語 \"q\" 's' \\ \x07\n"}],
    "twice": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "none": [],
}
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful "
           "AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TEMPLATES = [
    SMOLLM2,
    # The ways of Llama 3: a set in the loop, trim, bos before the first message.
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start|>' + message['role'] + '<|end|>\n\n' + "
    "message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}",
    # Of Llama 3.1: tests for what is defined, slices, comments, indentation taken away.
    "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n{%- if not date is defined %}\n"
    "    {%- set date = \"26 Jul 2024\" %}\n{%- endif %}\n\n{#- The system message goes first. #}\n{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = \"\" %}\n"
    "{%- endif %}\n{%- if tools is not none and not in_user %}\n    {%- for t in tools %}\n        {{- t | tojson(indent=4) }}\n    {%- endfor %}\n"
    "{%- endif %}\n{{- \"Today: \" + date + \"\\n\\n\" }}\n{{- system }}\n{%- for message in messages %}\n"
    "    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n"
    "        {{- '<|' + message['role'] + '|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}\n    {%- elif 'tool_calls' in message %}\n"
    "        {%- if not message.tool_calls|length == 1 %}\n            {{- raise_exception(\"one call at a time\") }}\n        {%- endif %}\n"
    "    {%- endif %}\n{%- endfor %}\n",
    # Of Qwen2.5: elif chains, neighbours of the loop's message, attributes that may be missing.
    "{%- if tools %}\n    {{- '# Tools' }}\n    {%- for tool in tools %}\n        {{- \"\\n\" }}\n        {{- tool | tojson }}\n    {%- endfor %}\n"
    "{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|s|>' + messages[0]['content'] + '<|e|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|s|>default<|e|>\\n' }}\n    {%- endif %}\n{%- endif %}\n{%- for message in messages %}\n"
    "    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or (message.role == \"assistant\" and not "
    "message.tool_calls) %}\n        {{- '<|' + message.role + '\\n' + message.content + '|>' + '\\n' }}\n"
    "    {%- elif message.role == \"tool\" %}\n        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != \"tool\") %}\n"
    "            {{- '<|user' }}\n        {%- endif %}\n        {%- if loop.last or (messages[loop.index0 + 1].role != \"tool\") %}\n"
    "            {{- '|>\\n' }}\n        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|assistant\\n' }}\n"
    "{%- endif %}\n",
    # Of Qwen3 and DeepSeek R1: namespaces, reversal, string methods.
    "{%- set ns = namespace(last=messages|length - 1, found=false) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) "
    "- loop.index0 %}\n    {%- if not ns.found and message.role == 'user' and message.content is string %}\n        {%- set ns.found = true %}\n"
    "        {%- set ns.last = index %}\n    {%- endif %}\n{%- endfor %}\n{{ ns.last }} {{ ns.found }}\n{% for m in messages %}\n"
    "{%- set c = m.content %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}/"
    "{{ c.split('</think>')[-1].lstrip('\\n') }}{% endif %}{{ c.startswith('  ') }}{{ c.endswith(('o', '?')) }}{% endfor %}",
    "{% if messages|length % 2 == 1 and messages[0].role == 'user' %}ok{% else %}{{ raise_exception('roles must alternate, found ' ~ "
    "messages|length) }}{% endif %}",
    # Whitespace control.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc  {# gone #}\nd {%+ if true +%}\n e{% endif %}\n\n",
    "  {%- if true -%}  \n x \n {{- 1 -}} \n y {%- endif %} z \n{{ 2 }}\n  {#- c -#}  w\r\nv\ru",
    "\t{% for i in [1,2] %}\n\t{{ i }}\n\t{% endfor %}\n{{ 'x' }}  {% if false %}{% endif %}|",
    # Expressions.
    "{{ 1 + 2 * 3 - 4 // 3 % 5 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2.50 + 1 }} {{ 1e3 if false else 1.0 }} {{ 'a' ~ 1 ~ none ~ true }} "
    "{{ (1 + 1) ~ 2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ - 3 | string }}",
    "{{ 1 < 2 <= 2 != 3 }} {{ 'a' < 'b' }} {{ 3 in [1, 2] }} {{ 'x' not in 'abc' }} {{ 'k' in {'k': 1} }} {{ not 1 == 2 }} {{ 0 or 'x' and 'y' }} "
    "{{ [] or {} }} {{ 1 == 1.0 == true }}",
    "{{ [1, 'a\\'b', \"c\", none, true, 2.0, [3], {'k': 'v'}] }} {{ (1, 2)[0] }} {{ {'a': {'b': [1, 2, 3]}}.a.b[-1] }} {{ 'héllo'[1] }} "
    "{{ 'héllo'[1:4] }} {{ 'héllo'[::-1] }} {{ [1,2,3,4,5][-2:] }} {{ [1,2,3,4,5][::2] }} {{ [1,2,3][5:] }} {{ [1,2,3,4,5][3:0:-2] }}",
    "{{ 'a' if 1 else 'b' }}{{ 'a' if 0 }}|{{ undefined_name }}|{{ undefined_name is defined }} {{ none is none }} {{ 'x' is string }} {{ 1 is number }} "
    "{{ {} is mapping }} {{ [] is iterable }} {{ 3 is odd }} {{ 3 is equalto 3 }} {{ 3 is not equalto(4) }} {{ raise_exception is defined }} "
    "{{ strftime_now is defined }} {{ true is true }} {{ 1 is boolean }} {{ [] is sequence }} {{ undefined_name is undefined }}",
    # Filters and methods.
    "{{ '  x y ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'héllo' | length }}|{{ 'été Ж' | upper | lower }}|{{ ['a', 1] | join(', ') }}|{{ nope | "
    "default('d') }}|{{ '' | default('d', true) }}|{{ 'abcabc' | replace('b', 'X') }}|{{ [3, 4] | first }}{{ [3, 4] | last }}|{{ 'hELLO w' | "
    "capitalize }}|{{ '42' | int + 1 }}|{{ 'x' | int(7) }}|{{ 3 | string ~ 4 }}|{{ 'abc' | list }}|{{ nope | length }}",
    "{{ {'a': [1, 2.5, none, true], 'b': {'c': 'é\\n\\t\"\\\\'}, 'd': [], 'e': {}} | tojson }}\n{{ {'a': [1, {'x': 'y'}], 'd': [], 'e': {}} | tojson(indent=2) "
    "}}\n{{ messages | tojson }}",
    "{{ messages | map(attribute='role') | join('-') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | "
    "rejectattr('role', 'equalto', 'user') | map(attribute='content') | list }} {{ ['a', 'b'] | reject('equalto', 'a') | join }} {{ ['a', ''] | select | "
    "list }} {{ ['a', 'b'] | map('upper') | list }}",
    "{% for k, v in {'a': 1, 'b': 2} | items %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'c': 3}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'q': 1}.get('z') }}"
    "{{ {'q': 1}.get('q') }}{{ {'q': 1}.keys() | list }}{{ {'q': 1}.values() | list }}{{ ' a b  c '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ "
    "'xAx'.strip('x').upper().lower().replace('a', 'b') }}",
    # Loops, scopes, set.
    "{% for i in range(5) if i is odd %}{{ i }}:{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}no{% endfor %}{% for i in [] %}x{% else "
    "%}empty{% endfor %}{% for i in range(3, 0, -1) %}{{ loop.revindex }}{{ loop.previtem is defined }}{{ loop.nextitem }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set a, b = [1, 2] "
    "%}{{ a }}{{ b }}{% set body %}[{{ x }}]{% endset %}{{ body }}{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% for j in 'ab' %}{% set ns.n = ns.n + 1 "
    "%}{% endfor %}{% endfor %}{{ ns.n }}",
    "{{ 'tab\\tnl\\nq\\'\\x41\\u00e9\\q' }}{{ \"two\" ' parts' }}{{ {'a': {'b': {}}} }}{{ '%}' }}{{ '}}' }}{% if '%}' %}y{% endif %}{{ messages.0.role }}",
    # What fails.
    "{{ nope.field }}", "{{ 'a' + 1 }}", "{{ messages[0].content + nope }}", "{% for x in 5 %}{% endfor %}", "{{ 1 // 0 }}", "{{ 'a' < 1 }}",
    "{% set a.b = 1 %}", "{% if %}{% endif %}", "{% for x in y %}", "{{ 1 + }}", "{% endif %}", "{{ 'open }}", "{# open", "{{ (1 }}", "{{ 1 2 }}",
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def template_cases():
    jinja = environment()
    for template in TEMPLATES:
        for name, messages in MESSAGES.items():
            if name != "user" and "messages" not in template:
                continue
            case = {"template": template, "messages": messages, "add_generation_prompt": name != "twice"}
            try:
                case["text"] = jinja.from_string(template).render(messages=messages, add_generation_prompt=case["add_generation_prompt"],
                                                                  bos_token="<s>", eos_token="</s>", tools=None, documents=None)
            except Exception as error:  # whatever it raises, this project must fail too
                case["error"] = str(error)
            yield case


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    source = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    texts = TEXTS + list(random_texts(250))
    tokenizer = reduce_vocabulary(source, texts)
    write("tokenizer.json", tokenizer)
    write("expected_ids.json", {"texts": texts, "ids": ids_by_kind(tokenizer, texts)})
    write("chat_templates.json", list(template_cases()))


if __name__ == "__main__":
    main()
