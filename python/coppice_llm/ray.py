"""A batch of OpenAI requests on many machines of a Ray cluster: `coppice batch` on each, with the requests that share a prefix.

    python -m coppice_llm.ray batch IN.jsonl OUT.jsonl --model MODEL --num-workers 8

The driver has the program divide the batch (`coppice batch --parts`), gives each part to an actor, which runs `coppice batch` over it in a
folder of its own, and writes what actors send to one output. That output is all that a run goes on from: an actor that ends early is made
anew with what is left of its part, and a driver that was killed begins with what is left of the batch. docs/many_machines.md explains more.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .__main__ import PROGRAM

OLDEST_RAY = (2, 9)
# An actor that ends so often without a new answer in between ends the batch: its machine, or a request of its part, kills it each time.
MOST_FRUITLESS_RUNS = 3
SYNC_INTERVAL = 1.0  # seconds between two syncs of the output to disk, as `coppice batch` has it
TAKE_SECONDS = 1.0   # an actor's longest wait for an answer
SILENCE_SECONDS = 60.0  # of all actors, after which a warning says that none runs

# As the program's own, with the parent's id: the actor may have ended before the child asks to end with it.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BatchResult:
    """Counts of a run. Requests are those of the input."""
    answered: int         # by this run
    answered_before: int  # found in the output
    failed: int           # lines of the file of errors
    workers: int          # parts that the batch was divided into
    restarts: int         # of workers that ended early


def _import_ray():
    try:
        ray = importlib.import_module("ray")
        version = ray.__version__
    except (ImportError, AttributeError):
        version = None
    if version is None or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        found = "there is no package ray" if version is None else f"ray is {version}"
        raise ImportError(f"{found}, expected {'.'.join(map(str, OLDEST_RAY))} or later: pip install 'ray>={'.'.join(map(str, OLDEST_RAY))}'")
    return ray


def _last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


class _WholeLines:
    """Reads a file that grows, whole lines of it."""

    def __init__(self, path):
        self._path, self._file, self._rest = path, None, b""

    def read(self, piece_bytes=1 << 24):
        """The lines that end in the next piece, or in the first one after it in which a line ends."""
        if self._file is None:
            if not os.path.exists(self._path):
                return []
            self._file = open(self._path, "rb")
        while piece := self._file.read(piece_bytes):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            if lines:
                return lines
        return []

    def close(self):
        if self._file is not None:
            self._file.close()


class _Worker:
    """An actor: `coppice batch` over one part of a batch, which it is given and sends back by Ray, as machines may share no disk."""

    def __init__(self, options):
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="coppice-ray-", ignore_cleanup_errors=True)
        self._process = self._answers = None

    def _path(self, name):
        return os.path.join(self._folder.name, name)

    def begin(self, requests):
        """`requests`: the part's lines as one text. Returns what take returns."""
        with open(self._path("in.jsonl"), "wb") as file:
            file.write(requests)
        self._answers = _WholeLines(self._path("out.jsonl"))
        command = [PROGRAM, "batch", self._path("in.jsonl"), self._path("out.jsonl"), *self._options]
        with open(self._path("stderr"), "wb") as errors:
            self._process = subprocess.Popen([sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), *command],
                                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        return self.take()

    def take(self):
        """New answers, and when all is sent the exit status, the lines of the file of errors and the last thing that the program said."""
        deadline = time.monotonic() + TAKE_SECONDS
        while True:
            status = self._process.poll()  # before the read: what it wrote before its end is there
            lines = self._answers.read()
            if lines or status is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if lines or status is None:
            return lines, None, [], ""
        with open(self._path("stderr"), encoding="utf-8", errors="replace") as file:
            said = _last_line(file.read())
        with contextlib.closing(_WholeLines(self._path("out.jsonl.errors"))) as errors:
            failed = errors.read(-1)
        self.end()
        return [], status, failed, said

    def end(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._answers.close()
        self._folder.cleanup()


class _Output:
    """The one output and the one file of errors, as `coppice batch` writes them: whole lines, synced once a second at most."""

    def __init__(self, path, errors_path, size):
        self._file = open(path, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"{path} is locked: another run writes to it; wait for it or give another output") from None
        if os.fstat(self._file.fileno()).st_size != size:
            raise RuntimeError(f"{path} changed while the batch was divided: another run writes to it; wait for it or give another output")
        self._errors_path = errors_path
        self._last_sync = time.monotonic()

    def append(self, lines):
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        if time.monotonic() - self._last_sync > SYNC_INTERVAL:
            self.sync()

    def append_errors(self, lines):
        if not lines:
            return
        with open(self._errors_path, "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))

    def sync(self):
        os.fdatasync(self._file.fileno())
        self._last_sync = time.monotonic()

    def close(self):
        self._file.close()


class _Part:
    """A worker's requests: what is left of them, and what has become of the worker."""

    def __init__(self, jsonl):
        self._jsonl = jsonl
        self.left = {}   # custom_id -> the line's number in the input and its place there, in bytes
        self.sent = []   # numbers of the lines that the worker has, in its order
        self.fruitless_runs = 0
        self.actor = None

    def text(self):
        self.sent = [number for number, _, _ in self.left.values()]
        lines = []
        with open(self._jsonl, "rb") as file:
            for _, begin, size in self.left.values():
                file.seek(begin)
                lines.append(file.read(size).strip())
        return b"".join(line + b"\n" for line in lines)

    def answered(self, lines):
        """Those of `lines` that are answers to what was left."""
        new = []
        for line in lines:
            if self.left.pop(json.loads(line)["custom_id"], None) is not None:
                new.append(line)
        return new

    def failed(self, lines):
        """Lines of a worker's file of errors, with the input's line numbers."""
        named = []
        for line in lines:
            error = json.loads(line)
            number = self.sent[error["line"] - 1]
            for place in (error, error["error"] or {}):
                if "line" in place:
                    place["line"] = number
            if self.left.pop(error["custom_id"], None) is not None:
                named.append(json.dumps(error, ensure_ascii=False, separators=(",", ":")).encode())
        return named


def _divide(jsonl, out, errors, num_workers, options):
    """The report of `coppice batch --parts`, and the parts."""
    command = [PROGRAM, "batch", jsonl, out, "--errors", errors, "--parts", str(num_workers), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(_last_line(done.stderr).removeprefix("coppice: ") or f"{PROGRAM} ended with status {done.returncode}")
    for line in done.stderr.splitlines():
        _log.warning("%s", line.removeprefix("coppice: "))
    report = json.loads(done.stdout)
    parts = [_Part(jsonl) for _ in report["parts"]]
    part_of = {number: part for part, planned in zip(parts, report["parts"]) for number in planned["lines"]}
    with open(jsonl, "rb") as file:
        begin = 0
        for number, line in enumerate(file, 1):
            if number in part_of:
                part_of[number].left[json.loads(line)["custom_id"]] = (number, begin, len(line))
            begin += len(line)
    return report, parts


class _Run:
    """Workers and what they are asked for."""

    def __init__(self, ray, parts, output, resources, options, progress):
        self._ray, self._output, self._progress = ray, output, progress
        self._actor_class = ray.remote(_Worker).options(max_restarts=0, **resources)
        self._options = options
        self._parts, self._waiting = parts, {}  # what an actor was asked for -> its part
        self._needs = {name: amount for name, amount in resources.items() if amount}
        self.answered = self.failed = self.restarts = 0
        self.total = sum(len(part.left) for part in parts)
        for part in parts:
            self._start(part)

    def _start(self, part):
        part.actor = self._actor_class.remote(self._options)
        self._waiting[part.actor.begin.remote(part.text())] = part

    def finish(self):
        """Until all is answered or has failed."""
        silent = False
        try:
            while self._waiting:
                ready, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=SILENCE_SECONDS)
                for asked in ready:
                    self._take(self._waiting.pop(asked), asked)
                if not ready and not silent:
                    has = {name: amount for name, amount in self._ray.cluster_resources().items() if not name.startswith("node:")}
                    _log.warning("no worker has answered for %g s: each waits for %s of the cluster's %s", SILENCE_SECONDS, self._needs, has)
                silent = not ready
                self._progress(self.answered + self.failed, self.total)
        finally:
            ends = [part.actor.end.remote() for part in self._parts if part.actor is not None]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=3 * TAKE_SECONDS)
            self._output.sync()

    def _take(self, part, asked):
        try:
            lines, status, errors, said = self._ray.get(asked)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:  # its machine may end after it has answered
            self._restart(part, _last_line(str(error)).partition(". ")[0])
            return
        except self._ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"a worker failed: {_last_line(str(error))}") from error
        if lines:
            new = part.answered(lines)
            self._output.append(new)
            self.answered += len(new)
            part.fruitless_runs = 0
        if status is None:
            self._waiting[part.actor.take.remote()] = part
            return
        failed = part.failed(errors)
        self._output.append_errors(failed)
        self.failed += len(failed)
        part.actor = None  # the last handle: Ray ends it
        if not part.left:
            return
        if status < 0:  # most often by a system that had no memory left
            self._restart(part, f"coppice was ended by {signal.Signals(-status).name}")
            return
        raise RuntimeError(said.removeprefix("coppice: ") or f"coppice ended with status {status} and {len(part.left)} requests unanswered")

    def _restart(self, part, why):
        if not part.left:
            return
        part.fruitless_runs += 1
        if part.fruitless_runs >= MOST_FRUITLESS_RUNS:
            raise RuntimeError(f"a worker ended {part.fruitless_runs} times in a row without an answer; {len(part.left)} requests are left: {why}")
        _log.warning("a worker ended, %d of its requests are left for another one: %s", len(part.left), why)
        self.restarts += 1
        self._start(part)


def batch(jsonl: str | os.PathLike[str], out: str | os.PathLike[str], *, model: str | None = None, num_workers: int, resources: Mapping[str, Any] | None = None,
          errors: str | os.PathLike[str] | None = None, options: Sequence[str] = (), progress: Callable[[int, int], None] = lambda done, total: None) -> BatchResult:
    """Answers the requests of `jsonl` into `out`, formats and continuation as docs/batch.md has them. Returns a BatchResult.

    model: as `--model`, a path or name that is valid on this machine and on every worker's; None: the default one.
    num_workers: actors at most, each an engine.
    resources: what Ray is to give each, such as {"num_cpus": 8, "num_gpus": 1}; by default one CPU. An engine has `num_cpus` threads
        and sees the GPUs that Ray gives its actor; several ranks of one are `options` such as ["--device", "cpu,cpu"].
    errors: the file of what could not be answered; by default `out` + ".errors".
    options: further ones of `coppice batch`.
    progress: called with the numbers of requests that are done and that this run has.

    Connects to the Ray cluster of this process, of RAY_ADDRESS or of this machine, else starts one here. ImportError: ray is missing or too
    old. RuntimeError: what the program said, or that a worker ended early again and again; what was answered is in `out`.
    """
    ray = _import_ray()
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}, expected at least 1")
    jsonl, out = os.path.abspath(jsonl), os.path.abspath(out)
    errors = os.path.abspath(errors) if errors else out + ".errors"
    resources = collections.ChainMap(dict(resources or {}), {"num_cpus": 1})
    if model:
        options = ["--model", os.path.abspath(model) if os.path.exists(model) else model, *options]
    options = list(options)
    report, parts = _divide(jsonl, out, errors, num_workers, options)
    run_counts = (0, 0, 0)
    if parts:
        if resources["num_cpus"] >= 1 and not any(option.partition("=")[0] == "--threads" for option in options):
            options += ["--threads", str(int(resources["num_cpus"]))]
        with contextlib.closing(_Output(out, errors, report["output_bytes"])) as output:  # an error's traceback would keep it, and its lock
            if not ray.is_initialized():
                ray.init(log_to_driver=False)
            run = _Run(ray, parts, output, resources, options, progress)
            run.finish()
        run_counts = (run.answered, run.failed, run.restarts)
    answered, failed, restarts = run_counts
    return BatchResult(answered=answered, answered_before=report["answered_before"], failed=report["errors"] + failed, workers=len(parts),
                       restarts=restarts)


def _show_progress():
    """A line on stderr, once in ten seconds at most."""
    last = time.monotonic()

    def show(done, total):
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"{done}/{total} requests", file=sys.stderr, flush=True)
    return show


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m coppice_llm.ray", description="Coppice on a Ray cluster")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("batch", help="answer a file of OpenAI batch requests on many machines",
                                  epilog="Options after -- are those of coppice batch, such as -- --deterministic.")
    command.add_argument("jsonl", metavar="IN", help="JSON lines: custom_id, method, url, body")
    command.add_argument("out", metavar="OUT", help="JSON lines of responses; if it exists, the rest is done")
    command.add_argument("--model", help="a model that every machine has (default: the default one)")
    command.add_argument("--num-workers", type=int, required=True, metavar="N", help="engines at most, an actor each")
    command.add_argument("--cpus", type=int, default=1, metavar="N", help="of each worker, and threads of its engine (default 1)")
    command.add_argument("--gpus", type=float, default=0, metavar="X", help="of each worker (default 0)")
    command.add_argument("--resource", action="append", default=[], metavar="NAME=X", help="a resource of Ray's that each worker needs")
    command.add_argument("--errors", help="JSON lines of what could not be answered (default: OUT.errors)")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = parser.parse_args(arguments[:end])
    try:
        own = {name: float(amount) for name, _, amount in (text.partition("=") for text in given.resource)}
    except ValueError:
        command.error(f"--resource is {' '.join(given.resource)}, expected NAME=NUMBER")
    logging.basicConfig(level=logging.WARNING, format="coppice: %(message)s")
    try:
        result = batch(given.jsonl, given.out, model=given.model, num_workers=given.num_workers, errors=given.errors, options=arguments[end + 1:],
                       resources={"num_cpus": given.cpus, "num_gpus": given.gpus, "resources": own}, progress=_show_progress())
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        print(f"coppice: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("coppice: interrupted; the same command goes on with what is left", file=sys.stderr)
        return 130
    text = f"{result.answered} answered by {result.workers} workers"
    text += f", {result.answered_before} by an earlier run" if result.answered_before else ""
    text += f", {result.restarts} workers begun anew" if result.restarts else ""
    text += f", {result.failed} errors in {given.errors or given.out + '.errors'}" if result.failed else ""
    print(text)
    return 1 if result.failed else 0


if __name__ == "__main__":
    from coppice_llm import ray as module  # whose classes workers import by name; those of __main__ they could not

    sys.exit(module.main())
