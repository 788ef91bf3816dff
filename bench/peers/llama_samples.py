#!/usr/bin/env python3
"""Samples of one prompt by llama.cpp's own server: what `scripts/demo --against llama.cpp` sets beside Coppice.

One request asks for n completions ("n_cmpl"), so that the server computes the prompt once and gives its KV to the other slots. Of its ways
to hold the KV of slots (VARIANTS) each is probed with a few tokens, and the fastest does the job. Each measurement is a process of its
own and begins with a short request that warms it up. The server and its kernels come as PyPI's xllamacpp (`pip install xllamacpp`).

Usage: llama_samples.py --model MODEL.gguf --prompt-file FILE [-n 64] [--max-tokens 64] [--threads N] [--out FILE]; prints a line a
measurement, and writes {"name", "prefill_tokens_per_second", "decode_tokens_per_second"} and how they came about as JSON.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request

VARIANTS = {  # name -> how the server differs from its defaults but for the number of slots
    "unified": {"kv_unified": True},
    "a stream a slot": {"kv_unified": False},
    "unified, K q8_0, V bf16, no flash attention": {"kv_unified": True, "flash_attn_type": "DISABLED", "cache_type_k": "Q8_0", "cache_type_v": "BF16"},
}
PADDING = 256  # the KV cache's granularity


def start(options, settings, prompt_tokens):
    """The server, in a thread of this process."""
    import xllamacpp
    enums = {"flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"), "cache_type_k": ("ggml_type", "GGML_TYPE_"), "cache_type_v": ("ggml_type", "GGML_TYPE_")}
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.verbosity, params.port = options.model, options.n, 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    cells = prompt_tokens + options.max_tokens + 1
    if settings["kv_unified"]:  # the prompt once, and what each sample has of its own
        params.n_ctx = -(-(cells + options.n * (options.max_tokens + 1)) // PADDING) * PADDING
    else:
        params.n_ctx = options.n * -(-cells // PADDING) * PADDING
    for name, value in settings.items():
        if name in enums:
            kind, prefix = enums[name]
            value = getattr(getattr(xllamacpp, kind), prefix + value)
        setattr(params, name, value)
    return xllamacpp.Server(params)


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def complete(address, prompt, samples, tokens):
    """The samples' results. Samplers are the cheapest that draw at a temperature as the job does: llama.cpp's chain begins with top_k too."""
    answer = post(address, "/completion", {"prompt": prompt, "n_cmpl": samples, "n_predict": tokens, "temperature": 0.8, "samplers": ["top_k", "temperature"],
                                           "seed": 1, "ignore_eos": True, "cache_prompt": False})
    return answer if isinstance(answer, list) else [answer]


def measure(options, variant):
    """One measurement in this process, of the tokens that come after each sample's first one, by the server's own clock."""
    with open(options.prompt_file, encoding="utf-8") as file:
        prompt = file.read()
    server = start(options, VARIANTS[variant], options.prompt_tokens)
    address = server.listening_address
    complete(address, "Once upon a time", min(options.n, 4), 4)
    timings = [result["timings"] for result in complete(address, prompt, options.n, options.max_tokens)]
    computed = max(timings, key=lambda one: one["prompt_n"])
    after_first = sum(one["predicted_n"] - 1 for one in timings)
    return {"prompt_tokens": computed["prompt_n"] + computed.get("cache_n", 0), "generated_tokens": sum(one["predicted_n"] for one in timings),
            "prefill_tokens_per_second": 1e3 * computed["prompt_n"] / computed["prompt_ms"],
            "decode_tokens_per_second": 1e3 * after_first / max(one["predicted_ms"] for one in timings)}


def measured_apart(options, variant, tokens):
    """measure() in a process that ends with it; None where the server refuses the variant."""
    command = [sys.executable, os.path.abspath(__file__), "--model", options.model, "--prompt-file", options.prompt_file, "-n", str(options.n), "--max-tokens", str(tokens),
               "--threads", str(options.threads), "--prompt-tokens", str(options.prompt_tokens), "--measure", variant]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode != 0 or not lines:
        print(f"{variant}: refused ({(run.stderr.strip().splitlines() or ['no reason'])[-1]})", flush=True)
        return None
    result = json.loads(lines[-1])
    print(f"{variant}, {tokens} tokens a sample: prefill {result['prefill_tokens_per_second']:.1f} tokens/s, decode {result['decode_tokens_per_second']:.1f} tokens/s", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt-file", required=True)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--probe-tokens", type=int, default=8, help="a sample's, to find the fastest variant")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="at least as many as the prompt has; 0: counted by its bytes")
    parser.add_argument("--out", help="write the result to this file as JSON")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # a variant, in this process
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options, options.measure)), flush=True)
        os._exit(0)  # the server's threads would be waited for
    if not options.prompt_tokens:
        options.prompt_tokens = os.path.getsize(options.prompt_file) // 2
    probes = {variant: measured_apart(options, variant, min(options.probe_tokens, options.max_tokens)) for variant in VARIANTS}
    probes = {variant: probe for variant, probe in probes.items() if probe}
    if not probes:
        sys.exit("llama.cpp's server took none of the variants")
    best = max(probes, key=lambda variant: probes[variant]["decode_tokens_per_second"])
    options.prompt_tokens = probes[best]["prompt_tokens"]
    result = measured_apart(options, best, options.max_tokens)
    if not result:
        sys.exit("llama.cpp's server did not do the job")
    result = {"name": "llama.cpp", "version": f"xllamacpp {importlib.metadata.version('xllamacpp')}", "variant": best, "samples": options.n, "threads": options.threads} | result
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
