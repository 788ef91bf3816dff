#!/usr/bin/env python3
"""Decode speed of llama.cpp beside Coppice: one prompt, B samples of it, the same token ids, threads and steps, interleaved.

llama.cpp runs through the low-level API of PyPI's llama-cpp-python (0.3.36 was used):
    CMAKE_ARGS='-DGGML_NATIVE=ON "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"' pip install llama-cpp-python==0.3.36
Without the second flag GCC 12 drops stores that set up its AMX tiles, and it crashes on CPUs that have AMX (ggml-org/llama.cpp#20824, #26954).
The prompt is prefilled once into sequence 0 and given to the other B - 1 by llama_memory_seq_cp; then every step decodes one token of
each sequence with logits for every row. Its next tokens are fixed, so llama.cpp spends no time on sampling; Coppice's figure contains its own.
One untimed step comes first, in which llama.cpp copies KV where its flags make copies. Each measurement is a process of its own, so
that peak memory is its own; repeats go round all cases, medians are reported.

Weights other than the model's own are made by llama_model_quantize from it and kept beside --work.
Usage: llama_cpp.py --model MODEL.gguf [--coppice build/release/coppice] [--points 512x64,2048x32] [--out FILE]; --help for the rest.
"""

import argparse
import ctypes
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time

# This folder comes first in the path, where this very file would hide the package of the same name.
sys.path = [folder for folder in sys.path if os.path.abspath(folder or ".") != os.path.dirname(os.path.abspath(__file__))]

FLAGS = {  # name -> how the context differs from llama.cpp's defaults
    "default": {},
    "unified": {"kv_unified": True},
    "unified-fa-bf16": {"kv_unified": True, "flash_attn_type": 1, "type_k": "bf16", "type_v": "bf16"},
    "A": {"kv_unified": True, "flash_attn_type": 0, "type_k": "q8_0", "type_v": "bf16"},
    "C": {"kv_unified": True, "flash_attn_type": 0, "type_k": "bf16", "type_v": "bf16"},
}
GGML_TYPE = {"f16": 1, "q8_0": 8, "bf16": 30}
FTYPE = {"q4_0": 2, "q8_0": 7, "bf16": 32}  # llama_ftype
PADDING = 256  # the KV cache's granularity


def low_level_api():
    """llama.h by name, silenced."""
    from llama_cpp import llama_cpp as api
    if not hasattr(low_level_api, "silent"):
        low_level_api.silent = api.llama_log_callback(lambda level, text, data: None)  # must outlive all calls
        api.llama_log_set(low_level_api.silent, ctypes.c_void_p())
        api.llama_backend_init()
    return api


def prompt_ids(count):
    """The prompt of `coppice bench decode`: speed does not depend on the ids."""
    return [1 + i * 31 % 200 for i in range(count)]


def measure_llama(path, flags, prompt, samples, steps, threads):
    """One measurement in this process."""
    api = low_level_api()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    settings = FLAGS[flags]
    cells = prompt + steps + 1
    if settings.get("kv_unified"):
        params.n_ctx = -(-(prompt + samples * (steps + 1)) // PADDING) * PADDING
    else:
        params.n_ctx = samples * -(-cells // PADDING) * PADDING
    params.n_seq_max = samples
    params.n_threads = params.n_threads_batch = threads
    for name, value in settings.items():
        setattr(params, name, GGML_TYPE[value] if name.startswith("type_") else value)
    context = api.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"llama.cpp refuses the flags {flags}")
    memory = api.llama_get_memory(context)
    batch = api.llama_batch_init(max(params.n_batch, samples), 0, 1)

    def decode(rows):  # (token, position, sequence, logits)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, logits
        status = api.llama_decode(context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")

    # A short run wakes threads and pages weights in, as Coppice does when it repacks them at the start.
    decode([(token, i, 0, i == 15) for i, token in enumerate(prompt_ids(16))])
    api.llama_memory_clear(memory, True)

    ids = prompt_ids(prompt)
    begin = time.perf_counter()
    for start in range(0, prompt, params.n_batch):
        chunk = ids[start:start + params.n_batch]
        decode([(token, start + i, 0, start + i == prompt - 1) for i, token in enumerate(chunk)])
    api.llama_synchronize(context)
    prefill = time.perf_counter() - begin

    for sequence in range(1, samples):
        api.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
    rows = [[(100 + (step * 7 + sequence) % 100, prompt + step, sequence, 1) for sequence in range(samples)] for step in range(steps + 1)]
    decode(rows[0])
    api.llama_synchronize(context)
    begin = time.perf_counter()
    for step in rows[1:]:
        decode(step)
        assert api.llama_get_logits_ith(context, samples - 1)
    api.llama_synchronize(context)
    seconds = time.perf_counter() - begin
    return {"prefill": prompt / prefill, "decode": samples * steps / seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def measure_coppice(options, prompt, samples, steps):
    command = [options.coppice, "run", "--json", "--model", options.model, "--prompt-ids", ",".join(map(str, prompt_ids(prompt))), "-n", str(samples),
               "--max-tokens", str(steps + 1), "--ignore-eos", "--temperature", "0", "--max-running", str(max(samples, 1)), "--threads", str(options.threads)]
    stats = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["stats"]
    return {"prefill": stats["prefill_tokens_per_second"], "decode": stats["decode_tokens_per_second"], "peak_rss_bytes": stats["peak_rss_bytes"]}


def quantized(options, weights):
    """The model with other weights; made once. `own`: as it is."""
    if weights == "own":
        return options.model
    path = os.path.join(options.work, f"{os.path.splitext(os.path.basename(options.model))[0]}.as-{weights}.gguf")
    if not os.path.exists(path):
        api = low_level_api()
        params = api.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = FTYPE[weights], True, options.threads
        if api.llama_model_quantize(options.model.encode(), (path + ".part").encode(), ctypes.byref(params)) != 0:
            raise SystemExit(f"llama.cpp could not re-encode {options.model} as {weights}")
        os.rename(path + ".part", path)
    return path


def summarize(runs):
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return median | {f"{key}_range": [min(run[key] for run in runs), max(run[key] for run in runs)] for key in ("prefill", "decode")}


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def table(rows):
    text = "| prompt | n | engine | weights | flags | prefill t/s | decode t/s [range] | peak MiB | Coppice's decode is |\n|---|---|---|---|---|---|---|---|---|\n"
    ours = {(row["prompt_tokens"], row["samples"]): row["decode"] for row in rows if row["engine"] == "coppice"}
    for row in rows:
        low, high = row["decode_range"]
        factor = ours[row["prompt_tokens"], row["samples"]] / row["decode"]
        text += (f"| {row['prompt_tokens']} | {row['samples']} | {row['engine']} | {row['weights']} | {row['flags']} | {row['prefill']:.0f} | "
                 f"{row['decode']:.1f} [{low:.0f}-{high:.0f}] | {row['peak_rss_bytes'] / 2**20:.0f} | {factor:.2f}x |\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--coppice", default="build/release/coppice")
    parser.add_argument("--points", default="512x64,2048x32,7680x32=own:default+own:A+q4_0:A,512x1,2048x1",
                        help="prompt x samples; =CASES instead of --cases for this point")
    parser.add_argument("--cases", default="own:default+own:A+own:C+q4_0:default+q4_0:A+q8_0:A+bf16:A",
                        help=f"weights ({', '.join(['own', *FTYPE])}) and flags ({', '.join(FLAGS)}) of llama.cpp")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--defaults-once", action="store_true", help="measure llama.cpp's defaults, its slowest, in the first round only")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="repeat no measurement after this time")
    parser.add_argument("--work", default=os.path.expanduser("~/.cache/coppice/models"), help="where re-encoded models are kept")
    parser.add_argument("--out", help="write the result to this file as JSON")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one measurement: weights file, flags, prompt, samples
    options = parser.parse_args()
    if options.measure:
        path, flags, prompt, samples = json.loads(options.measure)
        print(json.dumps(measure_llama(path, flags, prompt, samples, options.steps, options.threads)))
        return

    cases = []
    for point in options.points.split(","):
        sizes, _, own_cases = point.partition("=")
        prompt, samples = map(int, sizes.split("x"))
        cases.append((prompt, samples, "coppice", "own", "tree"))
        cases += [(prompt, samples, "llama.cpp", *case.split(":")) for case in (own_cases or options.cases).split("+")]
    paths = {case[3]: quantized(options, case[3]) for case in cases}
    runs = {case: [] for case in cases}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # by way of `finally`
    try:
        measure_all(options, cases, paths, runs)
    finally:
        report(options, runs)


def measure_all(options, cases, paths, runs):
    begin = time.monotonic()
    for case in cases * options.repeats:
        prompt, samples, engine, weights, flags = case
        if runs[case] and (flags == "default" and options.defaults_once or time.monotonic() - begin > options.seconds):
            continue
        if engine == "coppice":
            runs[case].append(measure_coppice(options, prompt, samples, options.steps))
        else:
            command = [sys.executable, os.path.abspath(__file__), "--model", options.model, "--steps", str(options.steps), "--threads", str(options.threads),
                       "--measure", json.dumps([paths[weights], flags, prompt, samples])]
            runs[case].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print(f"{time.monotonic() - begin:.0f} s: {case} {runs[case][-1]['prefill']:.0f} prefill, {runs[case][-1]['decode']:.1f} decode", file=sys.stderr, flush=True)


def report(options, runs):
    """Prints and writes what was measured so far."""
    rows = [{"prompt_tokens": case[0], "samples": case[1], "engine": case[2], "weights": case[3], "flags": case[4], "runs": len(measured)} | summarize(measured)
            for case, measured in runs.items() if measured]
    from llama_cpp import __version__
    print(table(rows))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"cpu": cpu_name(), "cores": os.cpu_count(), "threads": options.threads, "model": os.path.basename(options.model), "steps": options.steps,
                       "llama_cpp_python": __version__, "flags": FLAGS, "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
