"""A random Llama of 64 tokens for tests of trainers' adapters, and what transformers says of it. Needs torch and transformers."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

VOCABULARY = 64
# The synthetic task of trainers: answer with these, an eighth of the vocabulary.
WANTED = set(range(8, 16))
PROMPTS = ["w2 w3 w4 w5 w6", "w2 w3 w4 w7", "w9 w20 w21 w22 w23 w24 w25", "w30 w31"]


def rewards_of(completion_ids):
    """The part of each completion that is wanted."""
    return [sum(token in WANTED for token in ids) / len(ids) for ids in completion_ids]



def make_model(seed, **config):
    """Other weights for each seed, large enough that they say different things."""
    set_seed(seed)
    settings = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 1,
                "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**settings | config))


def make_tokenizer():
    """Of the words w2 w3 ..., a token each."""
    vocabulary = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


@torch.no_grad()
def greedy(model, ids, count):
    """Greedy tokens of transformers after `ids`, with log-probabilities, and the lead of each token over the next best."""
    text, logprobs, margins = list(ids), [], []
    for _ in range(count):
        best = model(torch.tensor([text], device=model.device)).logits[0, -1].float().log_softmax(-1).topk(2)
        logprobs.append(float(best.values[0]))
        margins.append(float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
    return text[len(ids) :], logprobs, margins
