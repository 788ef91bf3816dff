"""A model that can be asked to call tools: random weights, the tokenizer of tests/data/tokenizer, and one of the published chat templates. Its
output means nothing, so tests constrain it."""

import json
import os
import random
import struct

from program import DATA, TINY


def make_tool_model(folder, template, tokens=()):
    """Fills `folder` with the model of TINY's shape whose vocabulary is the tokenizer's; `template` is a file of tests/data/tokenizer/templates. `tokens`:
    texts of control tokens that it has beside."""
    with open(os.path.join(TINY, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(DATA, "tokenizer", "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    with open(os.path.join(DATA, "tokenizer", "templates", template + ".jinja"), encoding="utf-8") as file:
        chat_template = file.read()
    first = 1 + max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"]))
    tokenizer["added_tokens"] += [tokenizer["added_tokens"][0] | {"id": first + i, "content": text} for i, text in enumerate(tokens)]
    config["vocab_size"] = 1 + max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"]))
    names = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": chat_template}
    for name, content in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", names)):
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(content, file)
    write_weights(os.path.join(folder, "model.safetensors"), config)
    return folder


def write_weights(path, config):
    """TINY's weights, but for those of tokens."""
    with open(os.path.join(TINY, "model.safetensors"), "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    draw = random.Random(1)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape, content = entry["shape"], data[begin:end]
        if name == "model.embed_tokens.weight":
            shape = [config["vocab_size"], config["hidden_size"]]
            # bf16 is the upper half of a float.
            content = b"".join(struct.pack("<f", draw.gauss(0, 0.05))[2:] for _ in range(shape[0] * shape[1]))
        tensors[name] = (entry["dtype"], shape, content)
    offset, entries = 0, {}
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            file.write(content)
