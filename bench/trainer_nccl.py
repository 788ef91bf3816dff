#!/usr/bin/env python3
"""Seconds that a trainer's update of all weights takes over HTTP, from /start_weight_update to the first token of the new weights, by NCCL: the weights
lie in this process's memory of one GPU, the server runs on another.

    bench/trainer_nccl.py [--coppice build/cuda/coppice] [--model bench/models/llama3-8b/config.json] [--repeats 5] [--server-gpu 0] [--trainer-gpu 1]

It needs PyTorch with CUDA. Messages, store and calls are those of vLLM 0.26's NCCLWeightTransferEngine, packed and not. The server's output with the new
weights is compared with its output after the same bytes have come by shared memory: greedy tokens must be equal, and others than before. Prints one line
of JSON, with the seconds of a copy of as many bytes from one GPU to the other, which is the bound."""

import argparse
import ctypes
import glob
import json
import os
import pickle
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import types
import urllib.request
from datetime import timedelta
from multiprocessing import shared_memory

import torch
from torch.distributed import TCPStore

BUFFER_BYTES = 1 << 30
PROMPT = {"prompt": list(range(10, 138)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
WRAPPER = "vllm.distributed.device_communicators.pynccl_wrapper"  # the module that the pickled name of a group is of
TYPES = {torch.uint8: 1, torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}


class NcclId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


NcclId.__name__ = NcclId.__qualname__ = "ncclUniqueId"
NcclId.__module__ = WRAPPER


def library():
    """The folder of the NCCL that torch brings, which the server is to load as well."""
    for folder in sys.path:
        found = glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2"))
        if found:
            return os.path.dirname(found[0])
    return ""


class Group:
    """The first rank of a group of two, as vLLM's StatelessProcessGroup and PyNcclCommunicator make it."""

    def __init__(self, port):
        self.nccl = ctypes.CDLL(os.path.join(library(), "libnccl.so.2"))
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, NcclId, ctypes.c_int]
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.store = TCPStore("127.0.0.1", port, world_size=2, is_master=True, timeout=timedelta(seconds=120), use_libuv=False)
        name = NcclId()
        self.call("ncclGetUniqueId", ctypes.byref(name))
        for end in [at for at, letter in enumerate(WRAPPER) if letter == "."] + [len(WRAPPER)]:  # pickle looks for the class there
            sys.modules.setdefault(WRAPPER[:end], types.ModuleType(WRAPPER[:end]))
        sys.modules[WRAPPER].ncclUniqueId = NcclId
        self.store.set("broadcast_from/0/0", pickle.dumps(name))
        self.handle = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(self.handle), 2, name, 0)
        number = torch.zeros(1, device="cuda")
        self.call("ncclAllReduce", *self.buffers(number), ctypes.c_size_t(1), TYPES[number.dtype], 0, self.handle, self.stream())
        torch.cuda.synchronize()

    def call(self, function, *arguments):
        result = getattr(self.nccl, function)(*arguments)
        if result != 0:
            raise RuntimeError(f"{function}: {self.nccl.ncclGetErrorString(result).decode()}")

    @staticmethod
    def buffers(tensor):
        return ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(tensor.data_ptr())

    @staticmethod
    def stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def broadcast(self, tensor):
        self.call("ncclBroadcast", *self.buffers(tensor), ctypes.c_size_t(tensor.numel()), TYPES[tensor.dtype], 0, self.handle, self.stream())

    def send(self, tensors, packed):
        parts, size = [], 0
        for tensor in tensors:
            if not packed:
                self.broadcast(tensor)
                continue
            parts.append(tensor.view(torch.uint8).view(-1))
            size += parts[-1].numel()
            if size > BUFFER_BYTES:
                self.broadcast(torch.cat(parts))
                parts, size = [], 0
        if parts:
            self.broadcast(torch.cat(parts))
        torch.cuda.synchronize()


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.code} {error.read().decode()}") from error


def beside(url, body, action):
    """Asks while `action` does the trainer's part."""
    errors = []

    def run():
        try:
            ask(url, body)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    action()
    thread.join()
    if errors:
        raise errors[0]


def seconds_of(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def greedy(url):
    """Tokens of some prompts."""
    texts = []
    for first in (10, 300, 700):
        request = PROMPT | {"prompt": list(range(first, first + 64)), "max_tokens": 24, "return_token_ids": True}
        texts.append(ask(url + "/v1/completions", request)["choices"][0]["token_ids"])
    return texts


def copy_seconds(size, from_gpu, to_gpu, repeats):
    """Of copying `size` bytes, 1 GiB at a time, from one GPU to the other."""
    piece = min(size, 1 << 30)
    source = torch.empty(piece, dtype=torch.uint8, device=f"cuda:{from_gpu}")
    target = torch.empty(piece, dtype=torch.uint8, device=f"cuda:{to_gpu}")

    def copy():
        for at in range(0, size, piece):
            target[: min(piece, size - at)].copy_(source[: min(piece, size - at)])
        torch.cuda.synchronize(from_gpu)
        torch.cuda.synchronize(to_gpu)

    copy()
    return statistics.median(seconds_of(copy) for _ in range(repeats))


def send_by_shared_memory(url, weights, tensors):
    """All weights through a segment of the host's memory, some at a time."""
    segment = shared_memory.SharedMemory(create=True, size=max(BUFFER_BYTES, *(tensor.nbytes for tensor in tensors)))
    try:
        ask(url + "/start_weight_update", {})
        whole = torch.frombuffer(segment.buf, dtype=torch.uint8)
        bucket, end = [], 0

        def flush():
            torch.cuda.synchronize()
            ask(url + "/update_weights", {"update_info": {"segment": segment.name, "tensors": bucket}})

        for weight, tensor in zip(weights, tensors):
            if end + tensor.nbytes > segment.size:
                flush()
                bucket, end = [], 0
            whole[end : end + tensor.nbytes].copy_(tensor.view(torch.uint8).view(-1))
            bucket.append({"name": weight["name"], "dtype": weight["dtype"], "shape": weight["shape"], "offset": end})
            end += tensor.nbytes
        flush()
        ask(url + "/finish_weight_update", {})
        del whole
    finally:
        segment.close()
        segment.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--coppice", default="build/cuda/coppice")
    parser.add_argument("--model", default="bench/models/llama3-8b/config.json")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--server-gpu", type=int, default=0)
    parser.add_argument("--trainer-gpu", type=int, default=1)
    arguments = parser.parse_args()

    torch.cuda.set_device(arguments.trainer_gpu)
    command = [arguments.coppice, "serve", "--trainer", "--device", f"cuda:{arguments.server_gpu}", "--weights", "random", "--model", arguments.model,
               "--kv-cache", "2GiB", "--max-context", "4096", "--port", "0", "--deterministic"]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (library(), os.environ.get("LD_LIBRARY_PATH"))))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0]
            weights = ask(url + "/weight_info")["weights"]
            for weight in weights:
                if len(weight["shape"]) > 1 or weight["dtype"] == "float32":  # those are converted; a trainer sends its own dtype
                    weight["dtype"] = "bfloat16"
            torch.manual_seed(1)
            tensors = [torch.randn(weight["shape"], dtype=torch.bfloat16, device="cuda") * 0.02 for weight in weights]
            size = sum(tensor.nbytes for tensor in tensors)
            said_before, by_shared_memory = greedy(url), []
            for _ in range(2):  # two models, of which each update below brings the one that is not there
                for tensor in tensors:
                    tensor.neg_()
                send_by_shared_memory(url, weights, tensors)
                by_shared_memory.insert(0, greedy(url))
            if said_before in by_shared_memory or by_shared_memory[0] == by_shared_memory[1]:
                raise RuntimeError("other weights say the same: the comparison shows nothing")

            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            init = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
            group = []
            joined = seconds_of(lambda: beside(url + "/init_weight_transfer_engine", {"init_info": init}, lambda: group.append(Group(port))))

            rows = {}
            for packed in (True, False):
                info = {"names": [weight["name"] for weight in weights], "dtype_names": [weight["dtype"] for weight in weights],
                        "shapes": [weight["shape"] for weight in weights], "packed": packed, "packed_buffer_size_bytes": BUFFER_BYTES}
                parts = {"start": [], "update": [], "finish": [], "first_token": [], "whole": [], "token_alone": []}
                for repeat in range(arguments.repeats + 1):
                    for tensor in tensors:
                        tensor.neg_()
                    torch.cuda.synchronize()
                    by_shared_memory.reverse()
                    times = {
                        "token_alone": seconds_of(lambda: ask(url + "/v1/completions", PROMPT)),
                        "start": seconds_of(lambda: ask(url + "/start_weight_update", {"mode": "wait"})),
                        "update": seconds_of(lambda: beside(url + "/update_weights", {"update_info": info}, lambda: group[0].send(tensors, packed))),
                        "finish": seconds_of(lambda: ask(url + "/finish_weight_update", {})),
                        "first_token": seconds_of(lambda: ask(url + "/v1/completions", PROMPT)),
                    }
                    times["whole"] = sum(times[name] for name in ("start", "update", "finish", "first_token"))
                    said = greedy(url)
                    if said != by_shared_memory[0]:
                        raise RuntimeError(f"update {repeat}, packed {packed}: the server says {said}, expected {by_shared_memory[0]}")
                    for name, value in times.items():
                        parts[name].append(value)
                rows["packed" if packed else "one_by_one"] = {
                    "median_seconds": {name: round(statistics.median(values[1:]), 4) for name, values in parts.items()},  # the first one warms up
                    "whole_seconds": [round(value, 4) for value in parts["whole"][1:]]}
            print(json.dumps({"model": arguments.model, "gigabytes": round(size / 1e9, 2), "tensors": len(tensors), "repeats": arguments.repeats,
                              "join_seconds": round(joined, 3), "greedy_tokens": "equal to those after shared memory",
                              "copy_seconds": round(copy_seconds(size, arguments.trainer_gpu, arguments.server_gpu, arguments.repeats), 4)} | rows))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
