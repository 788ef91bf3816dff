#!/usr/bin/env python3
"""Costs of Python over C++: the package's import, `LLM.generate` of 64 samples beside `coppice run`, an update of a plan and a run of
attention, and what many runs leave behind.

The two generations alternate, each in a process of its own; compared are a prompt's seconds from its call to its last sample in Python and
the seconds of the program's steps alone. Beside that, of the same Python process, the seconds outside of steps: load of the machine falls
out of it. Attention is that of one request of one token, so that nearly all of the time is the way to it and back: an upper bound of what
Python adds. Needs PYTHONPATH as docs/python.md has it, COPPICE (build/dev/coppice), and the default model.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPT = "The capital of France is"


def spread(values):
    return f"median {statistics.median(values):.4g}, {min(values):.4g} to {max(values):.4g} of {len(values)}"


def python(code, *args):
    return json.loads(subprocess.run([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True, check=True).stdout)


IMPORT = "import time; t = time.perf_counter(); import coppice_llm; print(time.perf_counter() - t)"
GENERATE = """
import json, sys, time
import numpy  # log-probabilities are its arrays: the first call would import it
from coppice_llm import LLM, SamplingParams
llm = LLM(sys.argv[1], device="cpu")
begin = time.perf_counter()
samples = llm.generate(sys.argv[2], SamplingParams(n=64, max_tokens=int(sys.argv[3]), seed=1, ignore_eos=True))
seconds = time.perf_counter() - begin
metrics = llm.metrics()
print(json.dumps({"seconds": seconds, "steps": metrics["prefill_seconds"] + metrics["decode_seconds"], "tokens": sum(len(s.token_ids) for s in samples)}))
"""


def measure_generation(model, repeats, tokens):
    program = os.environ.get("COPPICE", os.path.join(ROOT, "build", "dev", "coppice"))
    command = [program, "run", "--model", model, "--device", "cpu", "--prompt", PROMPT, "-n", "64", "--max-tokens", str(tokens), "--seed", "1", "--ignore-eos", "--json"]
    ours, theirs, outside = [], [], []
    for _ in range(repeats):
        said = python(GENERATE, model, PROMPT, tokens)
        assert said["tokens"] == 64 * tokens
        ours.append(said["seconds"])
        outside.append(100 * (said["seconds"] / said["steps"] - 1))
        stats = json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)["stats"]
        assert stats["generated_tokens"] == 64 * tokens
        theirs.append(stats["prefill_seconds"] + stats["decode_seconds"])
    print(f"generate, 64 samples of {tokens} tokens, s: {spread(ours)}")
    print(f"steps of coppice run, s: {spread(theirs)}")
    print(f"generate over coppice run, %: {spread([100 * (a / b - 1) for a, b in zip(ours, theirs)])}")
    print(f"generate outside of its steps, %: {spread(outside)}")


def measure_attention(calls):
    import numpy

    from coppice_llm import attention
    device = attention.Device("cpu", num_threads=1)
    forest = attention.Forest(16)
    forest.add_branch(forest.add_node(None, 0), 1, [0])
    plan = attention.Plan(device, forest, num_qo_heads=1, num_kv_heads=1, head_dim=8, dtype="f32")
    kv = attention.KvPool(device, *numpy.zeros((2, 1, 16, 1, 8), numpy.float32))
    q, out, lse = numpy.ones((1, 1, 8), numpy.float32), numpy.empty((1, 1, 8), numpy.float32), numpy.empty((1, 1), numpy.float32)

    def repeat(count, *outputs):
        """Microseconds of an update with a run."""
        begin = time.perf_counter()
        for i in range(count):
            forest.set_length(0, 1 + i % 2)
            plan.update(forest)
            attention.run(q, kv, plan, *outputs)
        return 1e6 * (time.perf_counter() - begin) / count

    repeat(1000, out, lse)
    print(f"set_length, update, run, us: {spread([repeat(1000, out, lse) for _ in range(20)])}")
    print(f"the same with out and lse made, us: {spread([repeat(1000) for _ in range(20)])}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    repeat(calls)
    print(f"growth of resident memory over {calls} of them, KiB: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="of each generation")
    parser.add_argument("--tokens", type=int, default=32, help="of each sample")
    parser.add_argument("--calls", type=int, default=100_000, help="of attention, for what they leave behind")
    arguments = parser.parse_args()
    print(f"import, s: {spread([python(IMPORT) for _ in range(10)])}")
    measure_attention(arguments.calls)
    default_model = subprocess.run([os.path.join(ROOT, "scripts", "fetch_model")], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    measure_generation(default_model, arguments.repeats, arguments.tokens)
