#!/usr/bin/env python3
"""Decode speed of vLLM beside Coppice on one GPU: random weights of a config.json, bf16, n samples of one prompt, temperature 1.

vLLM 0.26.0 was used (it pins torch 2.11.0, built for CUDA 13); it runs in this process, scheduler and output side included, with
its prefix cache on and its graphs captured up to the largest batch asked for. Modes, each in a process of its own: its default; with
cascade attention allowed (disable_cascade_attn=False and the V1 model runner, the only one that has it); and its default with text
made of the tokens, by a byte-level BPE of the model's vocabulary whose tokens are random syllables. The prompt is computed once; then n requests with it are added before the first step. Tokens/s is n / mean step over the longest run of steps in
which each sample got one token, from about the 16th step to the last, and so without admission; Coppice's is that of `coppice bench
decode --modes tree`, n / mean step once all samples run. A case of vLLM that takes longer than --case-seconds is stopped after eight
such steps at least. With --groups, too: 16 groups of 32 requests, 2,048 tokens of text shared in a group, 128 own ones and 128
generated each, all added at once: generated tokens over the whole time.

Usage: vllm.py --config FOLDER [--modes default,cascade,detokenize] [--coppice build/cuda/coppice] [--cases 4096x256,4096x1024] [--groups]
               [--case-seconds 8] [--out FILE]
FOLDER holds config.json (bench/models has some). One line a case, and with --out one JSON object a line. A start of vLLM takes about
a minute.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import vllm_settings

vllm_settings.hide_this_folder()

TOKENS = 128  # of each sample
GROUPS, PER_GROUP, SHARED, OWN = 16, 32, 2048, 128
NAMES = {"default": "vllm", "cascade": "vllm, cascade", "detokenize": "vllm, text"}  # by mode


def write_tokenizer(folder, vocabulary):
    """A byte-level BPE of so many tokens, 256 bytes and random syllables with and without a space before them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    source = random.Random(2)
    tokens = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    while len(tokens) < vocabulary:
        syllable = "".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 7)))
        tokens.setdefault(source.choice(("", "\u0120")) + syllable, len(tokens))
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, file)


class Vllm:
    """An engine that notes when each step ended and how many tokens it gave."""

    def __init__(self, folder, max_samples, max_context, mode, tokenizer=None):
        vllm_settings.set_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
        if mode == "cascade":
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        from vllm import LLM, SamplingParams

        self.make_params = lambda tokens: SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=tokens, detokenize=tokenizer is not None)
        llm = LLM(model=folder, load_format="dummy", tokenizer=tokenizer, skip_tokenizer_init=tokenizer is None, dtype="bfloat16", enable_prefix_caching=True,
                  max_num_seqs=max_samples, max_model_len=max_context, max_num_batched_tokens=16384, seed=0,
                  disable_cascade_attn=mode != "cascade", compilation_config={"cudagraph_capture_sizes": vllm_settings.capture_sizes(max_samples)})
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

    def run(self, prompts, tokens, seconds=float("inf")):
        """Adds all requests, then steps until they are done, or `seconds` and eight whole steps have passed. Seconds of stepping."""
        self.steps.clear()
        ids = []
        for prompt in prompts:
            self.requests += 1
            ids.append(str(self.requests))
            self.engine.add_request(ids[-1], {"type": "token", "prompt_token_ids": prompt}, self.make_params(tokens))
        begin = time.perf_counter()
        while self.engine.has_unfinished_requests():
            self.engine.step()
            if time.perf_counter() - begin > seconds and sum(count == len(prompts) for _, count in self.steps) >= 8:
                self.engine.abort_request(ids)
                break
        return time.perf_counter() - begin

    def decode(self, prompt, samples, seconds):
        """Tokens/s and the median step in ms."""
        self.run([prompt], 1)  # the prompt is cached
        self.run([prompt] * samples, TOKENS, seconds)
        return decode_speed(self.steps, samples)

    def groups(self, source, vocabulary):
        """Generated tokens over the whole time."""
        prompts = []
        for _ in range(GROUPS):
            text = [source.randrange(3, vocabulary) for _ in range(SHARED)]
            prompts += [text + [source.randrange(3, vocabulary) for _ in range(OWN)] for _ in range(PER_GROUP)]
        source.shuffle(prompts)
        seconds = self.run(prompts, TOKENS)
        return sum(count for _, count in self.steps) / seconds


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


def run_coppice(arguments):
    """The JSON report of one of our benchmarks."""
    report = f"/tmp/coppice_{os.getpid()}.json"
    try:
        subprocess.run([*arguments, "--out", report], check=True, stdout=subprocess.DEVNULL)
        with open(report, encoding="utf-8") as file:
            return json.load(file)
    finally:
        if os.path.exists(report):
            os.remove(report)


def on_the_gpu(folder):
    return ["--device", "cuda", "--weights", "random", "--config", os.path.join(folder, "config.json"), "--modes", "tree", "--repeats", "1"]


def measure_decode(program, folder, prompt_tokens, samples):
    row = run_coppice([program, "bench", "decode", *on_the_gpu(folder), "-n", str(samples), "--prompt-tokens", str(prompt_tokens),
                       "--max-tokens", str(TOKENS), "--max-running", str(samples), "--max-batch-tokens", str(max(2048, samples)),
                       "--max-context", str(prompt_tokens + 256)])["rows"][0]
    if "out_of_memory" in row:
        raise RuntimeError(row["out_of_memory"])
    return row["decode_tokens_per_second"]


def measure_groups(program, folder):
    report = run_coppice([program, "bench", "throughput", *on_the_gpu(folder), "--groups", str(GROUPS), "--requests", str(PER_GROUP),
                          "--shared-tokens", str(SHARED), "--unique-tokens", str(OWN), "--output-tokens", str(TOKENS),
                          "--max-running", "512", "--max-batch-tokens", "8192", "--max-context", "4096"])
    return report["rows"][0]["result"]["output_tokens_per_second"]


def case(text):
    prompt_tokens, samples = text.split("x")
    return int(prompt_tokens), int(samples)


class Report:
    """A line a case, in text and JSON."""

    def __init__(self, path):
        self.path = path
        print(f"{'case':>12} {'engine':>14} {'tokens/s':>9} {'step ms':>8}", flush=True)

    def add(self, name, engine, speed, step=None):
        print(f"{name:>12} {engine:>14} {speed:>9.0f} {'' if step is None else f'{step:.2f}':>8}", flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                json.dump({"case": name, "engine": engine, "tokens_per_second": speed, "median_step_ms": step}, file)
                file.write("\n")


def measure_coppice(options, report):
    for prompt_tokens, samples in options.cases:
        report.add(f"{prompt_tokens}x{samples}", "coppice", measure_decode(options.coppice, options.config, prompt_tokens, samples))
    if options.groups:
        report.add("groups", "coppice", measure_groups(options.coppice, options.config))


def measure_vllm(options, mode, report):
    with open(os.path.join(options.config, "config.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["vocab_size"]
    longest = max([prompt for prompt, _ in options.cases] + [SHARED + OWN] * options.groups)
    most = max([samples for _, samples in options.cases] + [GROUPS * PER_GROUP] * options.groups)
    with tempfile.TemporaryDirectory() as folder:
        if mode == "detokenize":
            write_tokenizer(folder, vocabulary)
        peer = Vllm(options.config, most, longest + 256, mode, folder if mode == "detokenize" else None)
    source, name = random.Random(1), NAMES[mode]
    peer.run([[source.randrange(3, vocabulary) for _ in range(64)]] * 4, 8)  # first calls, kernels compiled
    for prompt_tokens, samples in options.cases:
        prompt = [source.randrange(3, vocabulary) for _ in range(prompt_tokens)]
        report.add(f"{prompt_tokens}x{samples}", name, *peer.decode(prompt, samples, options.case_seconds))
    if options.groups:
        report.add("groups", name, peer.groups(source, vocabulary))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="folder with config.json")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["default"], help="of vLLM: " + ", ".join(NAMES))
    parser.add_argument("--coppice", help="program to measure beside it")
    parser.add_argument("--cases", type=lambda text: [case(one) for one in text.split(",") if one], default=[(1, 256), (1024, 256), (4096, 256)],
                        help="prompt tokens x samples")
    parser.add_argument("--groups", action="store_true", help="the workload of groups, too")
    parser.add_argument("--case-seconds", type=float, default=8, help="of vLLM")
    parser.add_argument("--out", help="JSON lines")
    options = parser.parse_args()
    if not options.modes or any(mode not in NAMES for mode in options.modes):
        parser.error(f"--modes {','.join(options.modes)}: expected some of {', '.join(NAMES)}")
    if not options.cases and not options.groups:
        parser.error("nothing to measure: no --cases and no --groups")
    report = Report(options.out)
    if options.coppice:
        measure_coppice(options, report)
    # vLLM keeps the memory of the GPU as long as its process lives: each mode has one, the last this one.
    for mode in options.modes[:-1]:
        arguments = [sys.executable, os.path.abspath(__file__), *without(sys.argv[1:], ("--coppice", "--modes")), "--modes", mode]
        subprocess.run(arguments, check=True)
    measure_vllm(options, options.modes[-1], report)


def without(arguments, names):
    """The arguments without those options and their values."""
    kept, skips = [], False
    for argument in arguments:
        if not skips and argument.split("=")[0] in names:
            skips = "=" not in argument
            continue
        if not skips:
            kept.append(argument)
        skips = False
    return kept


if __name__ == "__main__":
    main()
