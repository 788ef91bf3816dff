#!/usr/bin/env python3
"""Seconds that a trainer's update of all weights takes over HTTP, from /start_weight_update to the first token of the new weights, by
CUDA IPC: the weights lie in this process's memory of the GPU that the server runs on.

    bench/trainer_update.py [--coppice build/cuda/coppice] [--model bench/models/llama3-8b/config.json] [--repeats 5]

Weights are random; their values do not matter here. Prints one line of JSON. Beside the update stands a copy of as many bytes on the
same GPU, which is its bound, and a first token without an update.
"""

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "trainers"))

import cuda_ipc  # noqa: E402

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "f32": 4, "bf16": 2, "f16": 2}
PROMPT = {"prompt": list(range(10, 138)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def seconds_of(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def copy_seconds(memory, size, repeats):
    """Of copying `size` bytes from one place of the GPU to another: half of the memory to its other half, twice."""
    half = size // 2

    def copy():
        for _ in range(2):
            cuda_ipc.call("cuMemcpyDtoD_v2", ctypes.c_uint64(memory.pointer + half), ctypes.c_uint64(memory.pointer), ctypes.c_size_t(half))
        cuda_ipc.call("cuCtxSynchronize")

    copy()
    return statistics.median(seconds_of(copy) for _ in range(repeats))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--coppice", default="build/cuda/coppice")
    parser.add_argument("--model", default="bench/models/llama3-8b/config.json")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    command = [arguments.coppice, "serve", "--trainer", "--device", "cuda", "--weights", "random", "--model", arguments.model, "--kv-cache", "2GiB",
               "--max-context", "4096", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            url = re.search(r"http://\S+", line)[0]
            weights = ask(url + "/weight_info")["weights"]
            tensors, end = [], 0
            for weight in weights:
                size = BYTES[weight["dtype"]]
                for extent in weight["shape"]:
                    size *= extent
                tensors.append({"name": weight["name"], "dtype": weight["dtype"], "shape": weight["shape"], "offset": end})
                end = (end + size + 255) // 256 * 256
            with cuda_ipc.DeviceMemory(end) as memory:
                cuda_ipc.call("cuMemsetD16_v2", ctypes.c_uint64(memory.pointer), ctypes.c_uint16(0x3C00), ctypes.c_size_t(end // 2))
                cuda_ipc.call("cuCtxSynchronize")
                info = cuda_ipc.share(memory.pointer)
                offset = info.pop("offset")
                for tensor in tensors:
                    tensor["offset"] += offset
                parts = {"start": [], "update": [], "finish": [], "first_token": [], "whole": [], "token_alone": []}
                for _ in range(arguments.repeats + 1):
                    times = {
                        "token_alone": seconds_of(lambda: ask(url + "/v1/completions", PROMPT)),
                        "start": seconds_of(lambda: ask(url + "/start_weight_update", {"mode": "wait"})),
                        "update": seconds_of(lambda: ask(url + "/update_weights", {"update_info": info | {"tensors": tensors}})),
                        "finish": seconds_of(lambda: ask(url + "/finish_weight_update", {})),
                        "first_token": seconds_of(lambda: ask(url + "/v1/completions", PROMPT)),
                    }
                    times["whole"] = sum(times[name] for name in ("start", "update", "finish", "first_token"))
                    for name, value in times.items():
                        parts[name].append(value)
                medians = {name: round(statistics.median(values[1:]), 4) for name, values in parts.items()}  # the first one warms up
                row = {"model": arguments.model, "gigabytes": round(end / 1e9, 2), "tensors": len(tensors), "repeats": arguments.repeats,
                       "copy_seconds": round(copy_seconds(memory, end, arguments.repeats), 4), "median_seconds": medians,
                       "whole_seconds": [round(value, 4) for value in parts["whole"][1:]]}
                print(json.dumps(row))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
