#!/usr/bin/env python3
"""Log-probabilities of the engine's rollouts beside those of a trainer, by mode: KL(engine || trainer) a token, by `coppice compare-logprobs`.

Each mode draws its own samples at temperature 1 (`coppice batch`); the trainer is Hugging Face transformers on the CPU, in float32 and bfloat16, with the
weights of the same file, given the same tokens. Needs torch, transformers, gguf and accelerate.

    bench/trainer_parity.py --program build/dev/coppice MODEL.gguf

Rollouts of a GPU can be drawn on one machine, which needs Python alone, and scored on another:

    bench/trainer_parity.py --program build/cuda/coppice --device cuda --modes bf16 "bf16, head f32" --draw-into drawn.json MODEL.gguf
    bench/trainer_parity.py --program build/dev/coppice --drawn drawn.json MODEL.gguf
"""

import argparse
import json
import os
import subprocess
import tempfile

BF16 = ["--weights", "bf16"]
MODES = {
    "bf16": BF16,
    "bf16, head f32": [*BF16, "--head-dtype", "f32"],
    "bf16, deterministic": [*BF16, "--deterministic"],
    "stored blocks": ["--weights", "stored"],
    "products f32, KV bf16": ["--weights", "f32"],
    "f32": ["--dtype", "f32"],
    "f32, deterministic": ["--dtype", "f32", "--deterministic"],
}
PROMPTS = ["The history of paper begins", "A recipe for bread:\n", "def fibonacci(n):\n", "Dear Professor,\nI am writing"]


def draw(arguments, options, folder):
    """[(prompt ids, token ids, log-probabilities)] of a mode's samples."""
    source, output = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(source, "w", encoding="utf-8") as file:
        for i, prompt in enumerate(PROMPTS):
            body = {"prompt": prompt, "n": arguments.samples, "max_tokens": arguments.max_tokens, "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0,
                    "repetition_penalty": 1, "seed": i, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    subprocess.run([arguments.program, "batch", "--model", arguments.model, "--device", arguments.device, *options, source, output], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = []
    with open(output, encoding="utf-8") as file:
        for line in sorted(map(json.loads, file), key=lambda line: line["custom_id"]):
            for choice in line["response"]["body"]["choices"]:
                samples.append((choice["prompt_token_ids"], choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    os.remove(output)
    return samples


def load_trainers(path):
    """By name of the dtype."""
    import torch
    import transformers

    folder, name = os.path.split(os.path.abspath(path))
    transformers.utils.logging.disable_progress_bar()
    dense = transformers.GgufConfig(gguf_file=name, dequantize=True)
    print(f"{name}, transformers {transformers.__version__}, torch {torch.__version__}")
    return {dtype: transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, quantization_config=dense, dtype=getattr(torch, dtype)).eval()
            for dtype in ("float32", "bfloat16")}


def score(model, samples):
    """The trainer's log-probabilities of the samples' tokens; samples of a prompt are a batch."""
    import torch

    scores = []
    for begin in range(0, len(samples), len(samples) // len(PROMPTS)):
        batch = samples[begin : begin + len(samples) // len(PROMPTS)]
        prompt = len(batch[0][0])
        ids = torch.tensor([ids + tokens for ids, tokens, _ in batch])
        with torch.no_grad():
            logits = model(ids).logits[:, prompt - 1 : -1].float().log_softmax(-1)
        scores += logits.gather(-1, ids[:, prompt:, None])[..., 0].tolist()
    return scores


def compare(arguments, samples, scores, folder):
    names = [os.path.join(folder, name) for name in ("rollout.jsonl", "trainer.jsonl")]
    for name, logprobs in zip(names, ([logprobs for _, _, logprobs in samples], scores)):
        with open(name, "w", encoding="utf-8") as file:
            for (_, tokens, _), values in zip(samples, logprobs):
                file.write(json.dumps({"token_ids": tokens, "logprobs": [min(0.0, value) for value in values]}) + "\n")
    done = subprocess.run([arguments.program, "compare-logprobs", "--json", "--worst", "1", *names], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--program", default="coppice")
    parser.add_argument("--samples", type=int, default=8, help="of each prompt")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--device", default="cpu", help="of the engine")
    parser.add_argument("--draw-into", metavar="FILE", help="write the samples of each mode to this file and score nothing")
    parser.add_argument("--drawn", metavar="FILE", help="score the samples of this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if arguments.draw_into:
            drawn = {mode: draw(arguments, MODES[mode], work) for mode in arguments.modes}
            with open(arguments.draw_into, "w", encoding="utf-8") as file:
                json.dump(drawn, file)
            return
        trainers = load_trainers(arguments.model)
        drawn = {}
        if arguments.drawn:
            with open(arguments.drawn, encoding="utf-8") as file:
                drawn = json.load(file)
        print(f"{'engine':<24}{'trainer':<10}{'k1':>10}{'k3':>10}{'mean |d|':>10}{'largest':>10}{'tokens':>8}")
        for mode in drawn or arguments.modes:
            samples = drawn.get(mode) or draw(arguments, MODES[mode], work)
            for dtype, model in trainers.items():
                found = compare(arguments, samples, score(model, samples), work)
                print(f"{mode:<24}{dtype:<10}{found['kl_k1']:>10.2e}{found['kl_k3']:>10.2e}{found['mean_difference']:>10.4f}"
                      f"{found['largest_difference']:>10.4f}{found['tokens']:>8}", flush=True)


if __name__ == "__main__":
    main()
