#!/usr/bin/env python3
"""Decode speed of vLLM beside Coppice on one GPU: random weights of a config.json, bf16, n samples of one prompt, temperature 1.

vLLM 0.26.0 was used (it pins torch 2.11.0, built for CUDA 13); it runs in this process, scheduler and output side included, with
its prefix cache on and its graphs captured up to the largest batch asked for. Two modes: its default, and with cascade attention
allowed (--cascade: disable_cascade_attn=False and the V1 model runner, the only one that has it), each a run of this script,
since both start seconds to minutes apart. The prompt is computed once; then n requests with it are added before the first step.
Tokens/s is n / mean step over the longest run of steps in which each sample got one token, from about the 16th step to the last,
and so without admission; Coppice's is that of `coppice bench decode --modes tree`, n / mean step once all samples run.

Usage: vllm.py --config FOLDER [--cascade] [--coppice build/cuda/coppice] [--prompts 1,1024] [--samples 256] [--out FILE]
FOLDER holds config.json. One line a case, and with --out one JSON object a line.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

# This folder comes first in the path, where this very file would hide the package of the same name.
sys.path = [folder for folder in sys.path if os.path.abspath(folder or ".") != os.path.dirname(os.path.abspath(__file__))]

TOKENS = 128  # of each sample
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


class Vllm:
    """An engine that notes when each step ended and how many tokens it gave."""

    def __init__(self, folder, max_samples, max_context, cascade):
        os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})
        if cascade:
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        from vllm import LLM, SamplingParams

        self.make_params = lambda tokens: SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024) if size <= max_samples]
        llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", enable_prefix_caching=True,
                  max_num_seqs=max_samples, max_model_len=max_context, max_num_batched_tokens=16384, seed=0,
                  disable_cascade_attn=not cascade, compilation_config={"cudagraph_capture_sizes": sizes})
        self.engine = llm.llm_engine
        self.steps = []  # (end, tokens)
        self.requests = 0
        core = self.engine.engine_core
        get_output = core.get_output

        def noted():
            output = get_output()
            self.steps.append((time.perf_counter(), sum(len(one.new_token_ids) for one in output.outputs)))
            return output

        core.get_output = noted

    def run(self, prompts, tokens):
        """Adds all requests, then steps until they are done."""
        self.steps.clear()
        for prompt in prompts:
            self.requests += 1
            self.engine.add_request(str(self.requests), {"type": "token", "prompt_token_ids": prompt}, self.make_params(tokens))
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def decode(self, prompt, samples):
        """Tokens/s and the median step in ms."""
        self.run([prompt], 1)  # the prompt is cached
        self.run([prompt] * samples, TOKENS)
        return decode_speed(self.steps, samples)


def decode_speed(steps, samples):
    """Of the longest run of steps with one token for each sample: tokens/s of its later part, median step in ms."""
    best = (0, 0)
    begin = 0
    while begin < len(steps):
        end = begin
        while end < len(steps) and steps[end][1] == samples:
            end += 1
        if end - begin > best[1] - best[0]:
            best = (begin, end)
        begin = max(end, begin + 1)
    begin, end = best
    if end - begin < 4:
        raise RuntimeError(f"only {end - begin} steps gave each of {samples} samples a token")
    times = [when for when, _ in steps[begin + min(15, (end - begin) // 3):end]]
    gaps = [after - before for before, after in zip(times, times[1:])]
    return samples * len(gaps) / (times[-1] - times[0]), 1e3 * statistics.median(gaps)


def measure_coppice(program, folder, prompt_tokens, samples, max_context):
    report = f"/tmp/coppice_decode_{os.getpid()}.json"
    command = [program, "bench", "decode", "--device", "cuda", "--weights", "random", "--config", os.path.join(folder, "config.json"),
               "--modes", "tree", "--repeats", "1", "-n", str(samples), "--prompt-tokens", str(prompt_tokens), "--max-tokens", str(TOKENS),
               "--max-batch-tokens", str(max(2048, samples)), "--max-context", str(max_context), "--out", report]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(report, encoding="utf-8") as file:
            row = json.load(file)["rows"][0]
    finally:
        if os.path.exists(report):
            os.remove(report)
    if "out_of_memory" in row:
        raise RuntimeError(row["out_of_memory"])
    return row["decode_tokens_per_second"]


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="folder with config.json")
    parser.add_argument("--cascade", action="store_true", help="vLLM may use cascade attention")
    parser.add_argument("--coppice", help="program to measure beside it")
    parser.add_argument("--prompts", type=numbers, default=[1, 1024, 4096], help="prompt lengths")
    parser.add_argument("--samples", type=numbers, default=[256], help="samples of a prompt")
    parser.add_argument("--out", help="JSON lines")
    options = parser.parse_args()
    with open(os.path.join(options.config, "config.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["vocab_size"]
    max_context = max(options.prompts) + 256
    cases = [(prompt, samples) for prompt in options.prompts for samples in options.samples]
    # Coppice first: vLLM keeps the memory of the GPU as long as this process lives.
    ours = [measure_coppice(options.coppice, options.config, *case, max_context) if options.coppice else None for case in cases]
    peer = Vllm(options.config, max(options.samples), max_context, options.cascade)
    source = random.Random(1)
    name = "vllm, cascade" if options.cascade else "vllm"
    print(f"{'prompt':>6} {'n':>5} {'coppice':>9} {name:>14} {'step ms':>8}")
    for (prompt_tokens, samples), own in zip(cases, ours):
        prompt = [source.randrange(3, vocabulary) for _ in range(prompt_tokens)]
        speed, step = peer.decode(prompt, samples)
        shown = "-" if own is None else f"{own:.0f}"
        print(f"{prompt_tokens:>6} {samples:>5} {shown:>9} {speed:>14.0f} {step:>8.2f}", flush=True)
        if options.out:
            with open(options.out, "a", encoding="utf-8") as file:
                json.dump({"prompt_tokens": prompt_tokens, "samples": samples, "peer": name, "coppice": own, "vllm": speed,
                           "vllm_step_ms": step}, file)
                file.write("\n")


if __name__ == "__main__":
    main()
