#!/usr/bin/env python3
"""Rollouts as trainers ask for them, over HTTP: each sample a request of its own with n = 1 and its own seed, shuffled, all at once;
beside the same job in process, as one request with n samples a prompt.

    bench/rollouts_over_http.py [--coppice build/cuda/coppice] [--device cuda] [--config bench/models/llama3-8b/config.json]
                                [--prompts 32] [--samples 16] [--prompt-tokens 4096] [--output-tokens 256] [--repeats 3]

Runs of both kinds alternate. Prints a line of JSON a run, then one of medians: output tokens per second over the whole job. `computed`:
prompt tokens that the engine computed. Each run in process captures its graphs on a GPU, as the server's first one does; the server's
later ones have them.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import tempfile
import time


async def complete(port, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    received = await reader.read()
    writer.close()
    head, _, text = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received[:500].decode(errors="replace"))
    if b"transfer-encoding: chunked" in head.lower():
        parts, rest = [], text
        while (size := int(rest[: rest.index(b"\r\n")], 16)) > 0:
            begin = rest.index(b"\r\n") + 2
            parts.append(rest[begin : begin + size])
            rest = rest[begin + size + 2 :]
        text = b"".join(parts)
    return json.loads(text)


async def over_http(port, arguments, seed):
    randomness = random.Random(seed)
    prompts = [[randomness.randrange(3, arguments.vocab_size) for _ in range(arguments.prompt_tokens)] for _ in range(arguments.prompts)]
    bodies = [{"prompt": prompt, "max_tokens": arguments.output_tokens, "temperature": 1, "seed": randomness.randrange(1 << 31), "ignore_eos": True,
               "return_token_ids": True, "logprobs": 0} for prompt in prompts for _ in range(arguments.samples)]
    randomness.shuffle(bodies)
    begin = time.perf_counter()
    answers = await asyncio.gather(*(complete(port, body) for body in bodies))
    seconds = time.perf_counter() - begin
    tokens = sum(len(answer["choices"][0]["token_ids"]) for answer in answers)
    if tokens != len(bodies) * arguments.output_tokens:
        raise RuntimeError(f"{tokens} tokens came, expected {len(bodies) * arguments.output_tokens}")
    computed = sum(answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    return {"kind": "http", "seconds": round(seconds, 3), "tokens_per_second": round(tokens / seconds, 1), "computed": computed}


def in_process(arguments, seed, engine):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([arguments.coppice, "bench", "throughput", "--config", arguments.config, "--modes", "tree", "--workload", "sampling", "--requests",
                        str(arguments.prompts), "--samples", str(arguments.samples), "--unique-tokens", str(arguments.prompt_tokens), "--output-tokens",
                        str(arguments.output_tokens), "--seed", str(seed), "--append", out.name + "l", *engine], check=True, capture_output=True)
        with open(out.name + "l", encoding="utf-8") as file:
            result = json.loads(file.readlines()[-1])["result"]
    return {"kind": "in process", "seconds": round(result["seconds"], 3), "tokens_per_second": round(result["output_tokens_per_second"], 1),
            "computed": result["prefilled_tokens"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--coppice", default="build/cuda/coppice")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--config", default="bench/models/llama3-8b/config.json")
    for name, value in (("prompts", 32), ("samples", 16), ("prompt-tokens", 4096), ("output-tokens", 256), ("repeats", 3), ("max-batch-tokens", 4096),
                        ("vocab-size", 32000)):
        parser.add_argument("--" + name, type=int, default=value)
    arguments = parser.parse_args()

    requests = arguments.prompts * arguments.samples
    engine = ["--device", arguments.device, "--weights", "random", "--max-running", str(requests), "--max-batch-tokens", str(arguments.max_batch_tokens),
              "--max-context", str(arguments.prompt_tokens + arguments.output_tokens + 16)]
    command = [arguments.coppice, "serve", "--model", arguments.config, "--port", "0", "--max-waiting", str(2 * requests), *engine, "--gpu-memory-utilization", "0.45"]  # room for the other one
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            port = int(re.search(r":(\d+)\n", server.stdout.readline())[1])
            rows = []
            for seed in range(arguments.repeats + 1):
                rows.append(asyncio.run(over_http(port, arguments, seed)))
                if seed == 0:
                    rows[-1]["kind"] = "http, first"
                print(json.dumps(rows[-1]), flush=True)
                rows.append(in_process(arguments, seed, engine))
                print(json.dumps(rows[-1]), flush=True)
            kinds = dict.fromkeys(row["kind"] for row in rows)
            medians = {kind: statistics.median(row["tokens_per_second"] for row in rows if row["kind"] == kind) for kind in kinds}
            print(json.dumps(vars(arguments) | {"median_tokens_per_second": medians, "first_over_in_process": round(medians["http, first"] / medians["in process"], 3),
                                                 "http_over_in_process": round(medians["http"] / medians["in process"], 3)}))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
