#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets (tests/fuzz) from the fixtures beside this folder; one folder a target.

  make_corpora.py COPPICE

COPPICE is the program: it dumps the plans. Files found by a fuzzer and kept as regression tests have names that begin with
"found-"; they stay.
"""
import base64
import json
import pathlib
import re
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"
TOKENIZER = HERE.parent / "tokenizer"


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# ------------------------------------------------------------------------------------------------------------------ safetensors

def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = compact(header)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    yield "empty", safetensors({})
    yield "metadata", safetensors({"a": ("U8", [1], b"x")}, {"format": "pt", "author": "n"})
    sizes = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
             "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
    yield "dtypes", safetensors({name: (name, [2, 3], bytes(6 * size)) for name, size in sizes.items()})
    yield "shapes", safetensors({"scalar": ("F32", [], bytes(4)), "none": ("BF16", [0, 7], b""), "deep": ("I8", [1, 2, 1, 2, 1], bytes(4))})
    overlap = safetensors({"a": ("U8", [4], b"abcd"), "b": ("U8", [4], b"efgh")})
    yield "overlap", overlap.replace(b"[4,8]", b"[2,6]")
    yield "truncated", overlap[:-3]


# ------------------------------------------------------------------------------------------------------------------------- GGUF

GGUF_U8, GGUF_I32, GGUF_U32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_F64 = 0, 5, 4, 6, 7, 8, 9, 10, 12
BLOCK = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144), 13: (256, 176),
         14: (256, 210)}  # tensor type: elements, bytes of a block


def prefixed(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def gguf_value(value):
    """Type id and bytes of a Python value; (type, bytes) passes through."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, bool):
        return GGUF_BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return GGUF_U32, struct.pack("<I", value)
    if isinstance(value, float):
        return GGUF_F32, struct.pack("<f", value)
    if isinstance(value, str):
        return GGUF_STRING, prefixed(value)
    kind = GGUF_STRING if value and isinstance(value[0], str) else GGUF_I32
    items = b"".join(prefixed(item) if kind == GGUF_STRING else struct.pack("<i", item) for item in value)
    return GGUF_ARRAY, struct.pack("<IQ", kind, len(value)) + items


def gguf(values, tensors, version=3, alignment=32):
    """tensors: name -> (shape, outermost first, and type id)."""
    meta = b"".join(prefixed(key) + struct.pack("<I", kind) + content
                    for key, (kind, content) in ((key, gguf_value(value)) for key, value in values.items()))
    infos, data = b"", b""
    for name, (shape, kind) in tensors.items():
        elements, size = BLOCK[kind]
        count = size
        for dimension in shape:
            count *= dimension
        count //= elements
        infos += prefixed(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        infos += struct.pack("<IQ", kind, len(data))
        data += bytes((7 * i + 1) % 61 for i in range(count))
        data += bytes(-len(data) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + meta + infos
    return head + bytes(-len(head) % alignment) + data


def gguf_model(architecture="llama", kind=0, hidden=4, bias=False, qk_norm=False, tied=False, **more):
    """One layer, two heads on one kv head of dimension 2; matrices of type `kind` where their rows are whole blocks."""
    vocab, heads, kv_heads, dim, ffn = 6, 2, 1, 2, 3
    values = {"general.architecture": architecture, f"{architecture}.block_count": 1, f"{architecture}.context_length": 64,
              f"{architecture}.embedding_length": hidden, f"{architecture}.feed_forward_length": ffn,
              f"{architecture}.attention.head_count": heads, f"{architecture}.attention.head_count_kv": kv_heads,
              f"{architecture}.attention.key_length": dim, f"{architecture}.attention.value_length": dim,
              f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5}
    values.update(more)
    shapes = {"token_embd": [vocab, hidden], "output": [vocab, hidden], "blk.0.attn_q": [heads * dim, hidden], "blk.0.attn_k": [kv_heads * dim, hidden],
              "blk.0.attn_v": [kv_heads * dim, hidden], "blk.0.attn_output": [hidden, heads * dim], "blk.0.ffn_gate": [ffn, hidden],
              "blk.0.ffn_up": [ffn, hidden], "blk.0.ffn_down": [hidden, ffn]}
    if tied:
        del shapes["output"]
    tensors = {f"{name}.weight": (shape, kind if shape[1] % BLOCK[kind][0] == 0 else 0) for name, shape in shapes.items()}
    for name in ("attn_q", "attn_k", "attn_v") if bias else ():
        tensors[f"blk.0.{name}.bias"] = (shapes[f"blk.0.{name}"][:1], 0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = ([hidden], 0)
    if qk_norm:
        tensors["blk.0.attn_q_norm.weight"] = tensors["blk.0.attn_k_norm.weight"] = ([dim], 0)
    return values, tensors


def gguf_seeds():
    yield "llama", gguf(*gguf_model())
    yield "version-2", gguf(*gguf_model(tied=True), version=2)
    yield "qwen2", gguf(*gguf_model("qwen2", bias=True))
    yield "qwen3", gguf(*gguf_model("qwen3", qk_norm=True))
    yield "halves", gguf(*gguf_model(kind=1))
    yield "bf16-aligned", gguf(*gguf_model(kind=30, **{"general.alignment": 64}), alignment=64)
    for kind in (2, 3, 6, 7, 8, 12, 13, 14):
        yield f"blocks-{kind}", gguf(*gguf_model(kind=kind, hidden=BLOCK[kind][0]))
    tokens = ["a", "b", "ab", "\u0120", "<s>", "</s>"]
    tokenizer = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
                 "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 4,
                 "tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.add_bos_token": True,
                 "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    yield "tokenizer", gguf(*gguf_model(**tokenizer))
    yield "rope-linear", gguf(*gguf_model(**{"llama.rope.freq_base": 5e5, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0,
                                            "llama.rope.dimension_count": 2, "llama.attention.sliding_window": 8}))
    values, tensors = gguf_model()
    tensors["rope_freqs.weight"] = ([1], 0)
    yield "rope-factors", gguf(values, tensors)
    kinds = {"u64": (GGUF_U64, struct.pack("<Q", 1 << 63)), "f64": (GGUF_F64, struct.pack("<d", 1e300)), "u8": (GGUF_U8, b"\x07"),
             "nested": (GGUF_ARRAY, struct.pack("<IQ", GGUF_ARRAY, 1) + struct.pack("<IQ", GGUF_U8, 2) + b"xy")}
    yield "values", gguf(kinds, {})


# ------------------------------------------------------------------------------------------------------- config and tokenizer

def hf_config_seeds():
    for folder in sorted(MODELS.iterdir()):
        if (folder / "config.json").exists():
            yield folder.name, (folder / "config.json").read_bytes() + b"\0" + (folder / "generation_config.json").read_bytes()
    base = json.loads((MODELS / "qwen2-a" / "config.json").read_bytes())
    base.update(use_sliding_window=True, sliding_window=24, max_window_layers=0, rope_scaling={"type": "linear", "factor": 2.0}, eos_token_id=[1, 2])
    yield "window", compact(base)
    base.update(layer_types=["sliding_attention"] * base["num_hidden_layers"], rope_parameters={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4})
    yield "layer-types", compact(base)


def chars_map(keys):
    """A precompiled character map of keys of one byte each: a double-array trie (Darts), then the replacements."""
    units, replacements = [0] * 1024, b""
    units[0] = 256 << 10  # the root's children begin at 256
    for i, (key, replacement) in enumerate(sorted(keys.items())):
        node, leaf = 256 ^ ord(key), 512 + i * 2
        units[node] = ord(key) | 1 << 8 | (node ^ leaf) << 10
        units[leaf] = 1 << 31 | len(replacements)
        replacements += replacement.encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + replacements


def sentencepiece_seeds():
    def varint(value):
        parts = bytearray()
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        return bytes(parts + bytes([value]))

    def field(number, value):
        if isinstance(value, float):
            return varint(number << 3 | 5) + struct.pack("<f", value)
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        value = value.encode() if isinstance(value, str) else value
        return varint(number << 3 | 2) + varint(len(value)) + value

    def model(trainer, normalizer=b"", pieces=()):
        normal = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)] + [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
        words = ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "\u2581hello", "\u00e9"]
        normal += [(word, -1.0 - i, 1) for i, word in enumerate(words)] + list(pieces)
        file = b"".join(field(1, field(1, text) + field(2, score) + field(3, kind)) for text, score, kind in normal)
        return file + field(2, trainer) + field(3, normalizer)

    text = "hello  h\u00e9ll <x>\n".encode() + b"\0"
    yield "unigram", text + model(field(3, 1), field(2, chars_map({"H": "h", "\t": " "})))
    yield "bpe", text + model(field(3, 2) + field(35, 1), field(3, 0) + field(4, 0))
    yield "user-defined", text + model(field(3, 1) + field(41, 1) + field(42, 2), field(5, 0), [("<x>", 0.0, 4), ("unused", 0.0, 5)])


def hf_tokenizer_seeds():
    """A few tokens of the fixture with each way to cut a text, and each form of the other parts; then the files beside tokenizer.json and tokenizer.model."""
    whole = json.loads((TOKENIZER / "tokenizer.json").read_bytes())
    vocab = {token: i for i, token in enumerate("abcdehlortw,.!'1234567890\u0120\u010a\u00c3\u00a9")}
    merges = ["h e", "l l", "he ll", "hell o"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    first_added = len(vocab)
    added = [{"id": first_added + i, "content": content, "special": special, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i, (content, special) in enumerate([("<s>", True), ("</s>", True), ("<x>", False)])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

    def tokenizer(**more):
        return dict({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                     "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": merges}}, **more)

    def files(tokenizer, config=None, added_tokens=None, special_tokens_map=None):
        return b"".join((b"" if value is None else compact(value)) + b"\0" for value in (tokenizer, config, added_tokens, special_tokens_map))

    text = "hello <s>hell, 123!\n he'll \u00e9".encode()
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "chat_template": "{{ messages[0].content }}"}
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    # The pattern of the fixture, Qwen2's; a plain text; digits.
    pattern = re.search(r'"Regex": ?"((?:[^"\\]|\\.)*)"', json.dumps(whole["pre_tokenizer"]))
    steps = {"regex": dict(split, pattern={"Regex": json.loads(f'"{pattern[1]}"') if pattern else "\\p{L}+|\\s+"}),
             "string": dict(split, pattern={"String": "l."}), "digits": {"type": "Digits", "individual_digits": True}}
    for name, step in steps.items():
        value = tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [step, dict(byte_level, use_regex=name == "digits")]})
        yield name, files(value, config) + text
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                                        {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [],
                "special_tokens": {t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]} for t in added[:2]}}
    yield "template", files(tokenizer(post_processor={"type": "Sequence", "processors": [byte_level, template]}, normalizer={"type": "NFC"})) + text
    pairs = dict(tokenizer()["model"], merges=[merge.split() for merge in merges], ignore_merges=True, byte_fallback=False)
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    unigram = {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
               "vocab": [["<unk>", 0]] + [[token, -1.5 - i] for i, token in enumerate(["\u2581", "h", "e", "l", "o", "hell", "\u2581he", "x"])]}
    steps = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(chars_map({"H": "h", "\t": " "})).decode()},
             {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Strip"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "h"}]
    plain = [{"id": 9, "content": "<x>", "special": False, "single_word": True, "lstrip": True, "rstrip": True, "normalized": True}]
    yield "unigram", files(tokenizer(model=unigram, added_tokens=plain, pre_tokenizer=spaces, decoder=spaces,
                                     normalizer={"type": "Sequence", "normalizers": steps})) + text + b" <x>  \t Hello"
    named = dict(config, chat_template=[{"name": "default", "template": "{{ bos_token }}"}, {"name": "tool_use", "template": "x"}])
    yield "merge-pairs", files(tokenizer(model=pairs), named) + text
    marks = {"<|im_start|>": 10, "<|im_end|>": 12}
    special = {"eos_token": {"content": "<|im_end|>", "lstrip": False}, "pad_token": "<x>", "additional_special_tokens": ["<|im_start|>"]}
    chat = b"<|im_start|>ab a<|im_end|><x>\n"
    small = tokenizer(model=dict(tokenizer()["model"], vocab={"a": 0, "b": 1}, merges=[]), added_tokens=[])
    yield "special-tokens-map", files(small, {"eos_token": "</s>", "legacy": False}, marks, special) + chat
    listed = {str(id): {"content": content, "special": id == 10, "rstrip": id == 12} for content, id in marks.items()}
    yield "added-tokens-decoder", files(small, {"added_tokens_decoder": listed, "bos_token": "<|im_start|>", "extra_special_tokens": {"x": "ab"}}, {"y": 7}, special) + chat
    yield "no-tokenizer-json", files({}, {"add_bos_token": False}, {"ab": 4, "<x>": 10}) + chat


def chat_template_seeds():
    cases = {case["template"]: case["messages"] for case in json.loads((TOKENIZER / "chat_templates.json").read_bytes())}
    for i, (template, messages) in enumerate(cases.items()):
        yield f"{i:02}", template.encode() + b"\0" + (messages[-1]["content"] if messages else "").encode()


# ------------------------------------------------------------------------------------------------- prefixes, batch lines, plans

def prefix_file_seeds():
    """For the model of prefix_file_fuzz.cc: bf16, two layers, one kv head of dimension 4; the target puts the checksum in."""
    def prefix(tokens, salt=b"", begin=0, **changed):
        tensors = {"tokens": ("I32", [len(tokens)], struct.pack(f"<{len(tokens)}i", *tokens)), "salt": ("U8", [len(salt)], salt)}
        for layer in range(2):
            for part in "kv":
                tensors[f"layers.{layer}.{part}"] = ("BF16", [len(tokens), 1, 4], bytes(8 * len(tokens)))
        metadata = {"format": "coppice-prefix-1", "model": "m", "dtype": "bf16", "mode": "fast", "private_begin": str(begin), "checksum": "0" * 32}
        return safetensors(tensors, dict(metadata, **changed))

    yield "public", prefix([5, 6, 7])
    yield "private", prefix([5, 6, 7], b"salt\xff", 1)
    yield "deterministic", prefix([1], mode="deterministic")
    yield "no-tokens", prefix([])
    yield "other-model", prefix([1], model="n")


def batch_line_seeds():
    completions, chat = "/v1/completions", "/v1/chat/completions"
    user = [{"role": "user", "content": "hello"}]
    bodies = [
        ("text", completions, {"prompt": "Once upon a time", "max_tokens": 5}),
        ("ids", completions, {"prompt": [5, 6, 7], "n": 2, "best_of": 4, "logprobs": 0, "echo": True, "seed": -1}),
        ("sampling", completions, {"model": "m", "prompt": "a", "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": 0.5,
                                   "frequency_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {"50": -100, "7": 2.5}, "stop": ["\n", "END"],
                                   "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [2, 3], "seed": 7, "user": "u", "cache_salt": "s", "return_token_ids": True}),
        ("chat", chat, {"messages": [{"role": "system", "content": "Be brief."}] + user, "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 0}),
        ("parts", chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": "h\u00e9"}, {"type": "text", "text": "\U0001f642"}]}],
                         "stop": "x", "response_format": {"type": "text"}, "stream": False}),
        ("wrong", completions, {"prompt": ["a", "b"], "n": 1e9, "stop": [1], "logit_bias": {"x": "y"}, "tools": []}),
    ]
    for name, url, body in bodies:
        yield name, compact({"custom_id": name, "method": "POST", "url": url, "body": body})


def batch_file_seeds():
    """Files that an earlier run left and the batch's file, with a NUL byte between each two."""
    def line(name, body, url="/v1/completions"):
        return compact({"custom_id": name, "method": "POST", "url": url, "body": body}) + b"\n"

    def answer(name, number):
        return compact({"id": "batch_req_" + "0" * 32, "custom_id": name, "response": {"status_code": 200, "request_id": f"req_{number}", "body": {}}, "error": None}) + b"\n"

    def error(number):
        return compact({"id": None, "custom_id": None, "response": None, "error": {"code": "invalid_request", "message": "m", "param": None, "line": number}, "line": number}) + b"\n"

    lines = [line(f"r{i}", {"prompt": [5, 6, 9 - i]}) for i in range(4)]
    chat = line("chat", {"messages": [{"role": "user", "content": "hello"}], "tools": [{"type": "function", "function": {"name": "f"}}]}, "/v1/chat/completions")
    yield "plain", b"\0\0" + b"".join(lines) + chat
    yield "no-break-at-the-end", b"\0\0" + lines[0] + b" \r\n" + lines[1].rstrip()
    yield "wrong-lines", b"\0\0" + lines[0] + b"no request\n" + lines[0] + line("s", {"prompt": "a", "stream": True}) + b'{"custom_id":"x"}\n' + lines[1]
    yield "long-line", b"\0\0" + line("long", {"prompt": "x" * 3000}) + lines[1]
    yield "resumed", answer("other", 1) + b"\0" + error(2) + error(9) + b"\0" + b"".join(lines)
    yield "torn", answer("other", 1) + b'{"id":"batch_r\0' + error(1) + b'{"id":nul\0' + b"".join(lines)
    yield "other-answer", answer("r0", 1) + b"\0\0" + b"".join(lines)
    yield "many", b"\0\0" + b"".join(line(str(i), {"prompt": [i]}) for i in range(70))


# ------------------------------------------------------------------------------------------------------------- requests of servers

TOOL = {"type": "function", "function": {"name": "weather", "description": "Now", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}, "days": {"enum": [1, 2]}}, "required": ["town"]}}}


def http_request_seeds():
    def request(head, body=b"", **headers):
        lines = [head, "Host: localhost:8000", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def post(path, body, **headers):
        return request(f"POST {path} HTTP/1.1", body, Content_Type="application/json", Content_Length=len(body), **headers)

    body = compact({"prompt": [1, 2, 3], "max_tokens": 4, "stream": True})
    chunks = b"5;name=value\r\n{\"pro\r\n" + b"c\r\nmpt\":[1,2]}  \r\n0\r\nTrailer: x\r\n\r\n"
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    yield "get", request("GET /health HTTP/1.1")
    yield "old", request("GET /v1/models HTTP/1.0", Connection="keep-alive") + request("HEAD / HTTP/1.0")
    yield "post", post("/v1/completions", body, Authorization="Bearer k", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    yield "pipeline", post("/v1/score", body) + request("GET /v1/files?purpose=batch&limit=2&after=file%2D1&order=asc HTTP/1.1") + post("/tokenize", b"{}")
    yield "chunked", request("POST /v1/completions HTTP/1.1", chunks, Transfer_Encoding="chunked") + request("GET /ready HTTP/1.1")
    yield "upload", request("POST /v1/files HTTP/1.1", form, Content_Type="multipart/form-data; boundary=x", Content_Length=len(form), Expect="100-continue", Origin="http://a")
    yield "upload-chunked", request("POST /v1/files HTTP/1.1", b"400\r\n" + b"a" * 1024 + b"\r\n0\r\n\r\n", Transfer_Encoding="chunked", Content_Type="multipart/form-data")
    yield "proxy", request("GET http://proxy.example:80/v1/models?x HTTP/1.1") + request("GET http://[::1] HTTP/1.1")
    yield "two-lengths", request("POST /tokenize HTTP/1.1", body, Transfer_Encoding="chunked", Content_Length=3)
    yield "other-coding", request("POST /tokenize HTTP/1.1", body, Transfer_Encoding="gzip, chunked")
    yield "large-body", request("POST /tokenize HTTP/1.1", b"", Content_Length=1 << 40)
    yield "large-head", request("GET / HTTP/1.1", X=("a" * 1100))
    yield "long-line", request("POST /tokenize HTTP/1.1", b"1;" + b"a" * 1100 + b"\r\n{\r\n0\r\n\r\n", Transfer_Encoding="chunked")
    yield "two-hosts", request("GET / HTTP/1.1", host="elsewhere")
    yield "user-in-host", request("GET http://user@localhost:8000/ HTTP/1.1")
    yield "fold", request("POST /tokenize HTTP/1.1", b"{}", X="a\r\n b", Content_Length=2)
    yield "length-twice", request("POST /tokenize HTTP/1.1", b"{}", Content_Length="2\r\nContent-Length: 2")
    yield "length-list", request("POST /tokenize HTTP/1.1", b"{}", Content_Length="2, 2")
    yield "garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01"


def upload_form_seeds():
    def part(name, value, more=b"", filename=None):
        named = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
        return named.encode() + b"\r\n" + more + b"\r\n" + value

    def form(*parts, boundary=b"x"):
        return b"multipart/form-data; boundary=" + boundary + b"\0" + b"".join(b"--" + boundary + b"\r\n" + p + b"\r\n" for p in parts) + b"--" + boundary + b"--\r\n"

    purpose, file = part("purpose", b"batch"), part("file", b'{"custom_id": "a"}\n', b"Content-Type: application/jsonl\r\n", "in.jsonl")
    expires = [part("expires_after[anchor]", b"created_at"), part("expires_after[seconds]", b"3600")]
    yield "whole", form(purpose, file)
    yield "expires", form(*expires, file, purpose, boundary=b"----WebKitFormBoundary7MA4YWxk")
    yield "preamble", form(purpose, file).replace(b"\0", b"\0text before\r\n") + b"text behind"
    yield "quoted", form(purpose, part("file", b"x", filename='a \\"b\\" c.jsonl')).replace(b"=x", b'="x"', 1)
    yield "twice", form(purpose, purpose)
    yield "no-name", form(b"Content-Type: text/plain\r\n\r\nx")
    yield "cut-off", form(purpose, file)[:-9]
    yield "empty", form()
    yield "many", form(*(part(f"f{i}", b"") for i in range(20)))
    yield "no-form", b"application/json\0{}"


def json_request_seeds():
    user = [{"role": "user", "content": "hello"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"town\": \"Rome\"}"}}]}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bodies = [
        ("prompts", "/v1/completions", {"prompt": [[1, 2], [3]], "n": 2, "best_of": 3, "logprobs": 5, "echo": True, "stop": ["a"], "timeout": 2.5, "priority": -1}),
        ("stream", "/v1/completions", {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s", "cache_private_begin": 1}),
        ("prefix", "/v1/completions", {"prompt": " a time", "prefix": "text", "cache_salt": "s", "vote": "(a)", "rank": True, "dedup": True, "regex": "a+"}),
        ("salted", "/v1/completions", {"prompt": [4], "prefix": "salted", "logit_bias": {"5": 1.5}, "stop_token_ids": [7], "grammar": "root ::= \"a\""}),
        ("chat", "/v1/chat/completions", {"messages": [{"role": "system", "content": "Brief."}] + user, "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 2,
                                          "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}}),
        ("tools", "/v1/chat/completions", {"messages": user + [call, {"role": "tool", "tool_call_id": "c1", "content": "dry"}], "tools": [TOOL], "tool_choice": "required",
                                           "parallel_tool_calls": False}),
        ("named-tool", "/v1/chat/completions", {"messages": user, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        ("prefix-tools", "/v1/chat/completions", {"messages": user, "prefix": "chat", "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("parts", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "h\u00e9"}]}], "prefix": "chat", "tool_choice": "none"}),
        ("response", "/v1/responses", {"input": "hello", "instructions": "Brief.", "max_output_tokens": 9, "reasoning": {"effort": "low"}, "temperature": 0.5,
                                       "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True, "metadata": {"a": "b"},
                                       "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "strict": True, "schema": schema}}}),
        ("response-items", "/v1/responses", {"input": user + [
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{\"town\": \"Rome\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "dry"}]}],
            "tools": [{"type": "function"} | TOOL["function"]], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False, "store": False}),
        ("response-refused", "/v1/responses", {"input": "a", "previous_response_id": "resp_1", "store": True, "truncation": "auto", "n": 2, "max_tokens": 5}),
        ("score", "/v1/score", {"prompt": "The capital of France is", "continuations": [" Paris", " Rome"], "return_token_ids": True}),
        ("score-ids", "/v1/score", {"prompt": [1, 2], "continuations": [[3], [3, 4]], "cache_salt": "s", "timeout": 1}),
        ("put-chat", "/v1/prefixes", {"messages": [{"role": "system", "content": "You."}] + user, "tools": [TOOL], "ttl_seconds": 60}),
        ("put-text", "/v1/prefixes", {"prompt": "Once", "cache_salt": "s", "cache_private_begin": 1}),
        ("put-ids", "/v1/prefixes", {"prompt": [1, 2, 3]}),
        ("batch", "/v1/batches", {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"},
                                  "output_expires_after": {"anchor": "created_at", "seconds": 3600}}),
        ("tokenize", "/tokenize", {"prompt": "Hello, w\u00f6rld <|im_end|>", "add_special_tokens": False, "model": "m"}),
        ("detokenize", "/detokenize", {"tokens": [0, 5, 70000]}),
        ("wrong", "/v1/chat/completions", {"messages": [{"role": 1}], "tools": {}, "tool_choice": [], "n": 1e9, "stop": [1]}),
    ]
    for name, path, body in bodies:
        yield name, path.encode() + b"\0" + compact(body)


def plan_replay_seeds(coppice):
    plans = {"default": ["--tree", "96,16x3"], "deep": ["--tree", "64,32x2,16x2", "--force-sharing", "--page-size", "32"],
             "queries": ["--tree", "40,30x3", "--queries", "5"], "deterministic": ["--tree", "600,20x2", "--deterministic", "--page-size", "128"],
             "window": ["--tree", "200,30x2", "--window", "64", "--dtype", "f32"], "store": ["--tree", "80,10x2", "--sharing", "store"],
             "one-level": ["--tree", "30,20x2,10x2", "--sharing", "one-level"]}
    for name, arguments in plans.items():
        sizes = ["--qo-heads", "4", "--kv-heads", "2", "--head-dim", "64", "--threads", "2", "--no-measure", "--json"]
        dump = json.loads(subprocess.run([coppice, "inspect", "plan"] + arguments + sizes, check=True, stdout=subprocess.PIPE).stdout)
        del dump["plan"]  # replaying makes it again
        yield name, compact(dump)


def forest_trace_seeds():
    head = {"format": "coppice forest trace", "version": 1, "page_size": 16,
            "layers": [{"layers": 2, "qo_heads": 4, "kv_heads": 2, "head_dim": 64, "window": 0}]}
    prompt = {"nodes": [[0, -1, -1]], "branches": [[0, 0, 40, 40]]}
    steps = {"decode": [prompt, {"branches": [[0, 0, 41, 1]]}, {}, {}],
             "samples": [prompt, {"nodes": [[0, 4, -1], [1, 4, -1], [4, -1, 40]], "branches": [[0, 0, 41, 1], [1, 1, 41, 1]]}, {},
                         {"nodes_gone": [0, 4], "nodes": [[1, -1, -1]], "branches_gone": [0]}],
             "waiting": [prompt, {"branches": [[0, 0, 40, 0]]}], "inner": [{"nodes": [[3, -1, 16]], "branches": [[0, 3, 16, 2], [5, 3, 16, 1]]}]}
    for name, lines in steps.items():
        yield name, b"\n".join(compact(line) for line in [head, *lines]) + b"\n"
    window = {**head, "layers": head["layers"] + [{**head["layers"][0], "window": 512}]}
    yield "window", compact(window) + b"\n" + compact(prompt) + b"\n"


def main(coppice):
    corpora = {"gguf": gguf_seeds(), "safetensors": safetensors_seeds(), "hf_config": hf_config_seeds(), "hf_tokenizer": hf_tokenizer_seeds(),
               "sentencepiece": sentencepiece_seeds(),
               "chat_template": chat_template_seeds(), "prefix_file": prefix_file_seeds(), "batch_line": batch_line_seeds(),
               "batch_file": batch_file_seeds(), "http_request": http_request_seeds(), "upload_form": upload_form_seeds(), "json_request": json_request_seeds(),
               "plan_replay": plan_replay_seeds(coppice), "forest_trace": forest_trace_seeds()}
    for target, seeds in corpora.items():
        folder = HERE / target
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            if not old.name.startswith("found-"):
                old.unlink()
        for name, content in seeds:
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1])
