"""Runs the program `coppice` for the tests of this folder: command in, exit status, stdout and stderr out."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data")
TINY = os.path.join(DATA, "models", "llama-gqa")  # random weights, no tokenizer
COPPICE = os.environ.get("COPPICE", os.path.join(ROOT, "build", "dev", "coppice"))


def coppice(*args, stdin="", timeout=600, environment=None):
    """The finished process of `coppice ARGS`; its stdout and stderr are text. The time is that of a program that hangs: sanitizers are slow.
    `environment`: variables that are not, or not as, in this process."""
    return subprocess.run([COPPICE, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ, **(environment or {})})


def run_json(*args, stdin="", timeout=600):
    """The object that `coppice run ARGS --json` prints; fails loudly if the command does."""
    done = coppice("run", "--json", *args, stdin=stdin, timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(f"coppice run {args} exited with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def default_model_or_skip():
    """The path of the default model, fetched if need be; ends the test program as skipped where that is impossible."""
    fetched = subprocess.run([os.path.join(ROOT, "scripts", "fetch_model")], stdout=subprocess.PIPE, text=True, check=False)
    if fetched.returncode != 0:
        print("skipped: the default model could not be fetched")
        sys.exit(77)
    return fetched.stdout.strip()


def pulled_model_or_skip(name):
    """`name` once `coppice pull` has brought it; ends the test program as skipped where that is impossible."""
    if subprocess.run([COPPICE, "pull", name], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        print(f"skipped: {name} could not be pulled")
        sys.exit(77)
    return name
