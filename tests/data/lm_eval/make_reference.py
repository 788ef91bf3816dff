#!/usr/bin/env python3
"""Writes reference.json: what Hugging Face transformers says of questions.jsonl with the default model's weights.

  make_reference.py MODEL.gguf      (packages: torch, transformers, gguf, accelerate)

For each question the log-likelihoods of its choices, and whether each is greedy, as lm-eval defines them: of " choice" behind the prompt of
questions.yaml, in float32 with the file's weights dequantised.
"""
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent


def main(path):
    path = pathlib.Path(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
    items = []
    for line in (HERE / "questions.jsonl").read_text().splitlines():
        question = json.loads(line)
        context = f"Question: {question['question']}\nAnswer:"
        context_ids = tokenizer(context, add_special_tokens=False).input_ids
        item = {"logprobs": [], "greedy": []}
        for choice in question["choices"]:
            ids = tokenizer(f"{context} {choice}", add_special_tokens=False).input_ids
            with torch.no_grad():
                logprobs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            places = range(len(context_ids), len(ids))
            item["logprobs"].append(round(sum(logprobs[place - 1, ids[place]].item() for place in places), 6))
            item["greedy"].append(all(logprobs[place - 1].argmax().item() == ids[place] for place in places))
        items.append(item)
    right = sum(item["logprobs"].index(max(item["logprobs"])) == json.loads(line)["answer"]
                for item, line in zip(items, (HERE / "questions.jsonl").read_text().splitlines()))
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__, "model": path.name}
    lines = ",\n  ".join(json.dumps(item) for item in items)
    accuracy = right / len(items)
    (HERE / "reference.json").write_text(f'{{"made_by": {json.dumps(made_by)},\n "accuracy": {accuracy},\n "items": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
