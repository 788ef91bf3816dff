#!/usr/bin/env python3
"""Capacity of llama.cpp's own server beside `coppice serve`: the highest rate of requests behind one system prompt whose 99th percentiles
of the times to the first token and between tokens keep given limits (POD-Attention 5.3), and what each server does at given rates
(RelayAttention 4.3). One client, `coppice bench serve --url`, measures both; the servers run in turns, each alone on the machine.

llama.cpp's server comes as PyPI's xllamacpp, whose wheel holds it with kernels for AVX2 (2026.10.11549 was used):
    pip install xllamacpp
Slots and context are llama-server's own by default: four slots over one KV cache of the model's context. --slots 16 and so on
give it more; its context then holds the system prompt and a request's own tokens for each slot, since slots share no KV.

Usage: llama_server.py --model MODEL.gguf [--coppice build/release/coppice] [--shared 2048] [--rounds 3] [--rates 0.5,1,2] [--out FILE]
"""

import argparse
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


def serve_llama(options, slots, port):
    """Serves in this process until it is killed."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = options.model, ["127.0.0.1"], port
    params.n_parallel = slots or 4
    params.kv_unified = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if slots or options.context_of_a_slot(options) * 4 > options.model_context:  # else requests would not fit, and be refused
        params.n_ctx = (slots or 4) * options.context_of_a_slot(options)
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


class Running:
    """A server in a process of its own, for a `with`."""

    def __init__(self, options, name):
        if name == "coppice":
            self.command = [options.coppice, "serve", "--model", options.model, "--port", "0", "--threads", str(options.threads),
                            "--max-context", str(2 * options.context_of_a_slot(options)), *options.coppice_args.split()]
        else:
            self.command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--serve", name.partition(":")[2] or "0"]

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        match = re.match(r"listening on (http://\S+)", line)
        if not match:
            self.process.kill()
            self.log.seek(0)
            raise SystemExit(f"{self.command} printed {line!r}: {self.log.read()[-2000:]}")
        self.url = match[1]
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).read()
                break
            except OSError:
                time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def bench(options, url, rates, limits=()):
    """The rows of `coppice bench serve`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.coppice, "bench", "serve", "--url", url, "--workload", "shared-prefix", "--groups", "1", "--requests", str(options.requests),
                   "--shared-tokens", str(options.shared), "--unique-tokens", str(options.unique), "--output-tokens", str(options.output),
                   "--vocab-size", str(options.vocab_size), "--rate", rates, "--precision", str(options.precision), *limits, "--out", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(out.name, encoding="utf-8") as file:
            return json.load(file)["rows"]


def warm(options, url):
    """The system prompt once, as a service that runs has it; and what a server computes at its first request."""
    bench(argparse.Namespace(**vars(options) | {"requests": 4, "output": 4}), url, "4")


def figures(row):
    result = row["result"]
    return {"rate": row["rate"], "requests_per_second": result["requests_per_second"], "output_tokens_per_second": result["output_tokens_per_second"],
            "normalized_latency": result["normalized_latency"]["mean"], "ttft_p50": result["ttft"]["p50"], "ttft_p99": result["ttft"]["p99"],
            "tbt_p99": result["tbt"]["p99"], "refused": result["refused"]}


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--coppice", default="build/release/coppice")
    parser.add_argument("--coppice-args", default="", help="more options of `coppice serve`")
    parser.add_argument("--servers", default="coppice,llama.cpp", help="llama.cpp:16 is its server with 16 slots")
    parser.add_argument("--shared", type=int, default=2048, help="tokens of the system prompt")
    parser.add_argument("--unique", type=int, default=64)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--vocab-size", type=int, default=49000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-rate", type=float, default=0.5, help="where the search for the capacity begins")
    parser.add_argument("--precision", type=float, default=0.1)
    parser.add_argument("--max-ttft-p99", type=float, default=5.0)
    parser.add_argument("--max-tbt-p99", type=float, default=0.5)
    parser.add_argument("--rates", help="measured as well, at each")
    parser.add_argument("--no-capacity", action="store_true")
    parser.add_argument("--model-context", type=int, default=8192)
    parser.add_argument("--out", help="write the result to this file as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # llama.cpp in this process: its slots
    options = parser.parse_args()
    options.context_of_a_slot = lambda given: given.shared + given.unique + given.output + 64
    if options.serve is not None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return serve_llama(options, int(options.serve), port)

    names = options.servers.split(",")
    capacities, points = {name: [] for name in names}, []
    limits = ["--max-ttft-p99", str(options.max_ttft_p99), "--max-tbt-p99", str(options.max_tbt_p99)]
    for number in range(options.rounds):
        for name in names:
            with Running(options, name) as server:
                warm(options, server.url)
                load = os.getloadavg()[0]
                if not options.no_capacity:
                    capacity = bench(options, server.url, str(options.first_rate), limits)[0]["capacity"]
                    capacities[name].append({"rate": capacity["rate"], "beyond": capacity["beyond"], "load_before": load, "probes": len(capacity["probes"])})
                    print(f"round {number + 1}, {name}: {capacity['rate']:.2f} requests/s, load {load:.1f}", file=sys.stderr, flush=True)
                for row in bench(options, server.url, options.rates) if options.rates else []:
                    points.append({"server": name, "round": number + 1, "load_before": load} | figures(row))
                    print(points[-1], file=sys.stderr, flush=True)
    result = {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": options.threads, "model": os.path.basename(options.model),
              "shared_tokens": options.shared, "unique_tokens": options.unique, "output_tokens": options.output, "requests": options.requests,
              "max_ttft_p99": options.max_ttft_p99, "max_tbt_p99": options.max_tbt_p99, "capacities": capacities, "points": points}
    if not options.no_capacity:
        medians = {name: statistics.median(run["rate"] for run in runs) for name, runs in capacities.items()}
        result["median_capacity"] = medians
        for name, rate in medians.items():
            print(f"{name}: {rate:.2f} requests/s" + (f", of which coppice's is {medians['coppice'] / rate:.1f} times" if name != "coppice" and "coppice" in medians and rate else ""))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
