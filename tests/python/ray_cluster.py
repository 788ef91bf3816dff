"""A Ray cluster of this machine for the tests that need one; ends them as skipped where ray is not to be had."""

import contextlib
import os
import secrets
import subprocess
import sys

from long_packages import install_or_skip

PACKAGES = install_or_skip("ray", __file__)

from server_process import ROOT, free_port  # noqa: E402

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's address in its network


def processes(matches):
    """Of this machine's processes those whose arguments match: their parents' ids by their own."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().decode(errors="replace").split("\0")
            if matches(arguments):
                with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                    found[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
    return found


@contextlib.contextmanager
def cluster(folder, cpus):
    """The environment of the drivers of a Ray cluster of one node, which ends with its block. Temporary files of all are in `folder`."""
    address = f"{LOOPBACK}:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], PACKAGES, ROOT]), "RAY_ADDRESS": address, "TMPDIR": folder,
                   "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address", LOOPBACK, "--port", address.split(":")[1],
             "--num-cpus", str(cpus), "--include-dashboard", "false", "--temp-dir", os.path.join(folder, "ray"), "--object-store-memory", str(10**8)]
    with open(os.path.join(folder, "ray.log"), "wb") as log:
        with subprocess.Popen(start, env={name: value for name, value in environment.items() if name != "RAY_ADDRESS"}, stdout=log, stderr=log) as head:
            try:
                yield environment
            finally:
                head.terminate()  # and all that it has started
                try:
                    head.wait(60)
                except subprocess.TimeoutExpired:
                    head.kill()
