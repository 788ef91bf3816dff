"""A Llama in PyTorch whose attention is Coppice's: samples of one prompt read its KV together. Beside it Hydragen's recipe (Juravsky et al.
2024) by three calls: attention over the prefix, attention over each sample's own tokens, and the merge of both. Both draw the same tokens,
and a line of each has those of all samples.

Usage: llama.py FOLDER TOKEN_IDS [SAMPLES [TOKENS [TEMPERATURE]]], with a Hugging Face folder of a Llama and the prompt as 1,5,9.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, rms_norm, silu

from coppice_llm import attention

PAGE = 16


class Llama:
    def __init__(self, folder, num_pages):
        config = json.loads((Path(folder) / "config.json").read_text())
        self.weights = {name: tensor.float() for file in Path(folder).glob("model*.safetensors") for name, tensor in load_file(file).items()}
        self.eps, self.heads, self.kv_heads = config["rms_norm_eps"], config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
        self.frequencies = theta ** (-torch.arange(0, self.dim, 2) / self.dim)
        self.device = attention.Device("cpu")
        pools = torch.zeros(config["num_hidden_layers"], 2, num_pages, PAGE, self.kv_heads, self.dim)
        self.kv = [attention.KvPool(self.device, k, v) for k, v in pools]

    def plan(self, forest):
        return attention.Plan(self.device, forest, num_qo_heads=self.heads, num_kv_heads=self.kv_heads, head_dim=self.dim, dtype="f32")

    def rotate(self, x, positions):
        angles = (positions[:, None] * self.frequencies)[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, ids, positions, slots, attend):
        """Logits of the rows `ids`, whose KV goes to `slots`. attend(q, kv): what the rows see of a layer's KV."""
        x = self.weights["model.embed_tokens.weight"][ids]
        for i, kv in enumerate(self.kv):
            weight = {name: self.weights[f"model.layers.{i}.{name}.weight"] for name in NAMES}
            h = rms_norm(x, x.shape[-1:], weight["input_layernorm"], self.eps)
            q, k, v = (linear(h, weight[f"self_attn.{name}_proj"]).view(len(ids), -1, self.dim) for name in "qkv")
            kv.append(self.rotate(k, positions), v, slots)
            x = x + linear(attend(self.rotate(q, positions), kv).flatten(1), weight["self_attn.o_proj"])
            h = rms_norm(x, x.shape[-1:], weight["post_attention_layernorm"], self.eps)
            x = x + linear(silu(linear(h, weight["mlp.gate_proj"])) * linear(h, weight["mlp.up_proj"]), weight["mlp.down_proj"])
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return linear(rms_norm(x, x.shape[-1:], self.weights["model.norm.weight"], self.eps), head)


NAMES = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")] + ["input_layernorm", "post_attention_layernorm"]


def by_tree(model, tables, shared, length, count):
    """Attention of all samples by one plan: the forest is what their page tables begin with alike."""
    plan = model.plan(attention.Forest.of_page_tables(tables, [length] * len(tables), [count] * len(tables), PAGE))
    return lambda q, kv: attention.run(q, kv, plan)[0]


def by_hydragen(model, tables, shared, length, count):
    """The same by hand. To the prefix alone each row is a branch that ends with it."""
    prefix, suffix = attention.Forest(PAGE), attention.Forest(PAGE)
    root = prefix.add_node(None, 0, shared)
    for table in tables:
        for _ in range(count):
            prefix.add_branch(root, shared, table[:shared // PAGE])
        suffix.add_branch(suffix.add_node(None, 0), length - shared, table[shared // PAGE:], count)
    plans = model.plan(prefix), model.plan(suffix)
    return lambda q, kv: attention.merge_states(model.device, [attention.run(q, kv, plan) for plan in plans])[0]


def generate(folder, prompt, samples, tokens, temperature, recipe):
    """`tokens` of each sample [samples, tokens]. Whole pages of the prompt are shared; each sample has the rest of it, and what it draws."""
    shared, own = (len(prompt) - 1) // PAGE * PAGE, -(-(PAGE + tokens) // PAGE)
    model = Llama(folder, shared // PAGE + samples * own)
    front = list(range(shared // PAGE))
    tables = [front + list(range(len(front) + s * own, len(front) + (s + 1) * own)) for s in range(samples)]

    def step(ids, begin, tables, recipe, shared):
        """Logits of the last of `ids` [samples, count], whose first token has the position `begin`."""
        positions = torch.arange(begin, begin + ids.shape[1]).repeat(len(tables))
        slots = torch.tensor([table[at // PAGE] * PAGE + at % PAGE for table in tables for at in range(begin, begin + ids.shape[1])])
        attend = recipe(model, tables, shared, begin + ids.shape[1], ids.shape[1])
        return model.forward(ids.flatten(), positions, slots, attend).view(*ids.shape, -1)[:, -1]

    if shared:
        step(torch.tensor([prompt[:shared]]), 0, [front], by_tree, 0)
    ids, random, drawn = torch.tensor([prompt[shared:]] * samples), torch.Generator().manual_seed(1), []
    for begin in [shared, *range(len(prompt), len(prompt) + tokens - 1)]:
        logits = step(ids, begin, tables, recipe if shared else by_tree, shared)
        ids = torch.multinomial((logits / temperature).softmax(-1), 1, generator=random) if temperature else logits.argmax(-1, keepdim=True)
        drawn.append(ids)
    return torch.cat(drawn, 1)


if __name__ == "__main__":
    folder, prompt, samples, tokens, temperature = sys.argv[1:] + ["4", "16", "0.8"][len(sys.argv) - 3:]
    request = folder, [int(token) for token in prompt.split(",")], int(samples), int(tokens), float(temperature)
    for recipe in (by_tree, by_hydragen):
        print(recipe.__name__, *(",".join(map(str, row)) for row in generate(*request, recipe).tolist()))
