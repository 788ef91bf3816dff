#!/usr/bin/env python3
"""`coppice simulate` beside servers: a trace of chats answered by `coppice serve`s of this machine, and forecast.

    bench/simulate_beside_servers.py [--coppice build/release/coppice] [--model MODEL] [--servers 2] [--policies round-robin,prefix-aware]
                                     [--requests 200] [--rate 0.8] [--repeats 3] [--steps FILE --machine FILE]

The trace is a chat mix of `coppice simulate --chats`, its pieces made of random tokens, but for answers, which later turns repeat as the
servers gave them. Each request goes, at its time, to the server that the simulated policy sends it to. The servers begin with empty
caches and have one thread each. Step times are measured first, by as many `coppice bench steps` at once as there are servers, and a
request's time beside steps by a server that runs no model. Without --machine `coppice bench calibrate` measures attention's constants, by
which the servers plan, too. With --null-step MS servers run no model, and each of their steps takes so long: hits, steps and latencies are
compared without what a machine's other work does to them; they count no reads.

Prints a line of JSON a run: what was measured and forecast, and forecast over measured. `elsewhere`: processors that other programs had
in the mean, without which latencies are those of a busier machine than that of the forecast. The last line has the medians.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time

# Token ids of pieces: none of them is special in the vocabularies of the models at hand.
FIRST_TOKEN, LAST_TOKEN = 1000, 30000


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} exited with {done.returncode}: {done.stderr}")
    return done.stdout


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------------------------------------------------- what is measured first


def read_json(path):
    """The object of a file; what names no file is itself."""
    if not os.path.exists(path):
        return path
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_even_steps(options, path):
    seconds = options.null_step / 1e3
    rows = [[1, seconds], [options.max_batch_tokens, seconds]]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"prompt": rows, "decode": rows}, file)


def measure_steps(options, path):
    """Steps with the servers' options, by as many processes at once as there are servers: they share the machine's memory."""
    command = [options.coppice, "bench", "steps", "--model", options.model, "--threads", "1", "--max-running", str(options.max_running), "--max-batch-tokens",
               str(options.max_batch_tokens), "--repeats", str(options.step_repeats)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.servers)]
    tables = [json.loads(process.communicate()[0]) for process in processes]
    for kind in ("prompt", "decode"):
        tables[0][kind] = [[rows[0][0], statistics.mean(seconds for _, seconds in rows)] for rows in zip(*(table[kind] for table in tables))]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tables[0], file)


# -------------------------------------------------------------------------------------------------------------------------- a forecast


class Forecasts:
    """Of one trace, by policy: the report's row and what became of each request."""

    def __init__(self, options, folder, steps, machine, request_seconds):
        self.options, self.folder = options, folder
        self.trace = os.path.join(folder, "trace.jsonl")
        self.given = ["--model", options.model, "--replicas", options.servers, "--threads", 1, "--machine", machine, "--steps", steps, "--kv-cache",
                      options.kv_cache, "--max-running", options.max_running, "--max-batch-tokens", options.max_batch_tokens, "--request-seconds",
                      request_seconds]
        run(options.coppice, "simulate", "--chats", options.requests, "--rate", options.rate, "--system-prompts", options.system_prompts, "--turns",
            options.turns, "--think-seconds", options.think_seconds, "--max-context", options.max_context, "--seed", options.seed, "--write-trace",
            self.trace, "--policy", "round-robin", *self.given)
        self.requests = read_lines(self.trace)

    def of(self, policy):
        out = os.path.join(self.folder, "out.jsonl")
        report = json.loads(run(self.options.coppice, "simulate", self.trace, "--policy", policy, "--out", out, "--json", *self.given))
        return report["rows"][0], read_lines(out)


# ----------------------------------------------------------------------------------------------------------------------------- servers


class Server:
    """`coppice serve` on a free port, for a `with`."""

    def __init__(self, options, machine, null_step=None):
        self.command = [options.coppice, "serve", "--model", options.model, "--port", "0", "--threads", "1", "--kv-cache", options.kv_cache, "--machine",
                        machine, "--max-running", str(options.max_running), "--max-batch-tokens", str(options.max_batch_tokens), "--max-waiting", "100000"]
        if null_step is not None:
            self.command += ["--null", "--null-step", str(null_step)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)\n", self.process.stdout.readline())[1])
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdout.close()

    async def exchange(self, request, on_data=None):
        """The body of an answer to a request that closes its connection; on_data is called with what has come so far."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        received = bytearray()
        while part := await reader.read(1 << 16):
            received += part
            if on_data is not None:
                on_data(received)
        writer.close()
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(bytes(received[:500]).decode(errors="replace"))
        return without_chunks(body) if b"transfer-encoding: chunked" in head.lower() else body

    async def metrics(self):
        text = await self.exchange(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return {name: float(value) for name, value in re.findall(r"^(\w+) ([-+.\deE]+)$", text.decode(), re.MULTILINE)}

    async def complete(self, prompt, max_tokens):
        """Seconds to the first token and to the end, prompt tokens found in the cache, and the answer's tokens."""
        data = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True,
                           "stream_options": {"include_usage": True}}).encode()
        begin, first = time.perf_counter(), []

        def note_first(received):
            if not first and b"data:" in received:
                first.append(time.perf_counter() - begin)

        body = await self.exchange(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                                   + f"Content-Length: {len(data)}\r\n\r\n".encode() + data, note_first)
        seconds = time.perf_counter() - begin
        events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
        tokens = [token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()]
        if len(tokens) != max_tokens:
            raise RuntimeError(f"{len(tokens)} tokens came, expected {max_tokens}")
        return first[0], seconds, events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], tokens


def without_chunks(text):
    parts, at = [], 0
    while (size := int(text[at:text.index(b"\r\n", at)], 16)) > 0:
        at = text.index(b"\r\n", at) + 2
        parts.append(text[at:at + size])
        at += size + 2
    return b"".join(parts)


def measure_request_seconds(options):
    """The median of a request that takes no steps to speak of."""
    async def ask(server):
        return [(await server.complete([FIRST_TOKEN + i], 1))[1] for i in range(50)]

    with Server(options, "generic-x86", null_step=0) as server:
        return statistics.median(asyncio.run(ask(server)))


class Pieces:
    """Tokens of pieces by id: random ones of a seed, of which the first differs from piece to piece, or a server's answer."""

    def __init__(self, seed):
        self.seed, self.tokens, self.firsts = seed, {}, 0

    def of(self, name, count):
        if name not in self.tokens:
            draw = random.Random(f"{self.seed} {name}")
            self.tokens[name] = [FIRST_TOKEN + self.firsts % (LAST_TOKEN - FIRST_TOKEN)] + [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count - 1)]
            self.firsts += 1
        return self.tokens[name]


def busy_seconds():
    """Of all processors of the machine, since it began."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


async def answer_all(servers, requests, replicas, options):
    pieces, ends = Pieces(options.seed), {line["output_id"]: asyncio.Event() for line in requests if "output_id" in line}
    late = 0
    begin = time.perf_counter()

    async def answer(line, replica):
        nonlocal late
        await asyncio.sleep(max(0, begin + line["timestamp"] / 1e3 - time.perf_counter()))
        for name, _ in line["segments"]:
            if name in ends and not ends[name].is_set():  # its answer took longer than the trace's user
                late += 1
                await ends[name].wait()
        prompt = [token for name, count in line["segments"] for token in pieces.of(name, count)]
        arrived = time.perf_counter() - begin
        first, seconds, cached, tokens = await servers[replica].complete(prompt, line["output_length"])
        if "output_id" in line:
            pieces.tokens[line["output_id"]] = tokens
            ends[line["output_id"]].set()
        return {"arrived": arrived, "prompt": len(prompt), "cached": cached, "first": first, "seconds": seconds}

    before = [await server.metrics() for server in servers]
    answers = await asyncio.gather(*(answer(line, replica) for line, replica in zip(requests, replicas, strict=True)))
    after = [await server.metrics() for server in servers]
    spent = {name: sum(b[name] - a[name] for a, b in zip(before, after)) for name in before[0] if name.endswith("_total")}
    return answers, spent, late


def middle(values):
    return {"mean": statistics.mean(values), "p50": statistics.median(values)}


def measure(forecasts, replicas, machine, options):
    """Measurements of the servers, request i sent to server replicas[i]; and the run's own: late requests, load, seconds."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(options, machine, options.null_step)) for _ in range(options.servers)]
        begin, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
        answers, spent, late = asyncio.run(answer_all(servers, forecasts.requests, replicas, options))
        wall, busy, own = time.perf_counter() - begin, busy_seconds() - busy, time.process_time() - own
    elsewhere = (busy - own - spent["process_cpu_seconds_total"]) / wall
    measured = {"hit_rate": sum(answer["cached"] for answer in answers) / sum(answer["prompt"] for answer in answers),
                "kv_bytes_read": spent["coppice_kv_read_bytes_total"],
                "kv_bytes_read_unshared": spent["coppice_kv_read_unshared_bytes_total"],
                "steps": spent["coppice_steps_total"],
                "busy_seconds": sum(spent[f"coppice_{part}_seconds_total"] for part in ("forward", "plan", "sample", "host")),
                "first_token_seconds": middle([answer["first"] for answer in answers]),
                "request_seconds": middle([answer["seconds"] for answer in answers])}
    return measured, {"late": late, "elsewhere": round(elsewhere, 2), "own": round(own / wall, 2), "seconds": round(wall, 1)}


def flat(figures, prefix=""):
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}_")
        else:
            yield prefix + name, value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--coppice", default="build/release/coppice")
    parser.add_argument("--model", default="", help="default: what scripts/fetch_model brings")
    parser.add_argument("--policies", metavar="LIST", default="round-robin,prefix-aware")
    parser.add_argument("--steps", help="a file of coppice bench steps (default: measured)")
    parser.add_argument("--machine", help="a file of coppice bench calibrate or a name (default: measured)")
    parser.add_argument("--kv-cache", default="1GiB", help="of each server")
    for name, value in (("rate", 0.8), ("turns", 5.0), ("think-seconds", 10.0), ("null-step", None)):
        parser.add_argument("--" + name, type=float, default=value)
    for name, value in (("servers", 2), ("requests", 200), ("system-prompts", 8), ("max-context", 4096), ("max-running", 64), ("max-batch-tokens", 512),
                        ("step-repeats", 5), ("repeats", 1), ("seed", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    options = parser.parse_args()
    if not options.model:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        options.model = run(os.path.join(root, "scripts", "fetch_model")).strip()

    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        steps, machine = options.steps or os.path.join(folder, "steps.json"), options.machine or os.path.join(folder, "machine.json")
        if options.null_step is not None:
            write_even_steps(options, steps)
            machine, options.kv_cache = "h200", "64GiB"  # attention takes next to nothing beside such steps, and the cache keeps all
        elif not options.steps:
            measure_steps(options, steps)
        if not os.path.exists(machine) and not options.machine and options.null_step is None:
            run(options.coppice, "bench", "calibrate", "--threads", 1, "--out", machine)
        request_seconds = measure_request_seconds(options)
        print(json.dumps({"steps": read_json(steps), "machine": read_json(machine), "request_seconds": round(request_seconds, 6)}), flush=True)
        forecasts = Forecasts(options, folder, steps, machine, request_seconds)
        for repeat in range(options.repeats):
            for policy in options.policies.split(","):
                row, outcomes = forecasts.of(policy)
                measured, said = measure(forecasts, [outcome["replica"] for outcome in outcomes], machine, options)
                measured = {name: value for name, value in flat(measured) if value}
                forecast = {name: value for name, value in flat(row) if name in measured}
                ratio = {name: round(forecast[name] / measured[name], 3) for name in measured}
                rows.setdefault(policy, []).append(ratio)
                print(json.dumps({"policy": policy, "repeat": repeat, **said, "measured": measured, "forecast": forecast, "ratio": ratio}), flush=True)
    print(json.dumps({"requests": options.requests, "rate": options.rate,
                      "median_ratio": {policy: {name: statistics.median(ratio[name] for ratio in ratios) for name in ratios[0]}
                                       for policy, ratios in rows.items()}}))


if __name__ == "__main__":
    main()
