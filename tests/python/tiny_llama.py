"""A random Llama of 64 tokens for tests of trainers' adapters, and what transformers says of it. Needs torch and transformers."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

VOCABULARY = 64


def make_model(seed, **config):
    """Other weights for each seed, large enough that they say different things."""
    set_seed(seed)
    settings = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 1,
                "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**settings | config))


@torch.no_grad()
def greedy(model, ids, count):
    """What transformers says after `ids`, with log-probabilities, and by how much each token was ahead of the next best."""
    text, logprobs, margins = list(ids), [], []
    for _ in range(count):
        best = model(torch.tensor([text])).logits[0, -1].float().log_softmax(-1).topk(2)
        logprobs.append(float(best.values[0]))
        margins.append(float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
    return text[len(ids) :], logprobs, margins
