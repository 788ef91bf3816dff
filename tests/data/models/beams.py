"""Writes beams.json: what the beam search of Hugging Face transformers finds with the models of this folder, in float32.

    python3 tests/data/models/beams.py    (torch and transformers installed)

A case is `stable` if noise of 1e-3 on all logits changes none of its outputs in two runs: others hang on differences that two
implementations of a model may have.
"""

import json
import pathlib
from collections import Counter

import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
# width, n, length_penalty, early_stopping, tokens that end an output
CASES = [(4, 4, 1.0, False, 0), (4, 2, 1.0, False, 1), (8, 3, 0.0, "never", 2), (5, 5, 2.0, "never", 1), (6, 6, 1.0, True, 2), (16, 16, 1.0, False, 1), (3, 2, -0.5, True, 1)]
TOKENS, PROMPT = 24, 40


class Noise(transformers.LogitsProcessor):
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids, scores):
        return scores + 1e-3 * (2 * torch.rand(scores.shape, generator=self.generator) - 1)


def search(model, prompt, case, ends, noise=None):
    width, n, length_penalty, early_stopping, _ = case
    model.generation_config.eos_token_id = ends or None
    found = model.generate(
        prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False, num_beams=width, num_return_sequences=n, max_new_tokens=TOKENS,
        length_penalty=length_penalty, early_stopping=early_stopping, eos_token_id=ends or None, pad_token_id=0, return_dict_in_generate=True,
        output_scores=True, logits_processor=transformers.LogitsProcessorList([Noise(noise)] if noise is not None else []))  # fmt: skip
    outputs = []
    for sequence in found.sequences:
        tokens = sequence[len(prompt) :].tolist()
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        outputs.append(tokens[:end])
    return outputs, [round(score, 5) for score in found.sequences_scores.tolist()]


def main():
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    cases = []
    for folder in sorted(path.parent for path in HERE.glob("*/expected.safetensors")):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        prompt = load_file(folder / "expected.safetensors")["prompt"].long()[:PROMPT]
        model.generation_config = transformers.GenerationConfig()
        free, _ = search(model, prompt, (8, 8, 1.0, False, 0), [])
        common = [token for token, _ in Counter(token for output in free for token in output[6:]).most_common()]
        for case in CASES:
            ends = sorted(common[1 : 1 + case[4]])
            outputs, scores = search(model, prompt, case, ends)
            stable = all(search(model, prompt, case, ends, seed)[0] == outputs for seed in range(2))
            width, n, length_penalty, early_stopping, _ = case
            cases.append({"model": folder.name, "beam_width": width, "n": n, "length_penalty": length_penalty, "early_stopping": str(early_stopping).lower(),
                          "stop_token_ids": ends, "stable": stable, "outputs": outputs, "scores": scores})  # fmt: skip
            print(folder.name, width, "stable" if stable else "", [len(output) for output in outputs], flush=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"transformers": "{transformers.__version__}", "prompt_tokens": {PROMPT}, "max_tokens": {TOKENS}, "cases": [\n{lines}\n]}}\n'
    (HERE / "beams.json").write_text(text)


if __name__ == "__main__":
    main()
