"""Runs `coppice serve` for the tests of this folder, on the device of COPPICE_TEST_DEVICE, the CPU if unset, and speaks HTTP to it as
plainly as a test needs."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))

from program import COPPICE, DATA, ROOT, TINY, coppice, default_model_or_skip  # noqa: E402,F401

# Packages of requirements.txt, where scripts/test puts them.
sys.path.insert(0, os.path.join(ROOT, "build", "python-packages"))

# Elsewhere than on a CPU the tokens of a request depend on what is computed beside it, unless the server is deterministic.
DEVICE = ["--device", os.environ["COPPICE_TEST_DEVICE"], "--deterministic"] if "COPPICE_TEST_DEVICE" in os.environ else []


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server on a free port, for a `with`; leaving it sends SIGTERM and expects a clean end. `key`: sent where no other one is."""

    def __init__(self, *args, model=TINY, environment=None, preexec=None, key=None):
        self.environment, self.preexec = environment, preexec
        self.key = {"Authorization": f"Bearer {key}"} if key else {}
        self.args = [COPPICE, "serve", "--model", model, "--port", "0", "--kv-cache", "64MiB", *DEVICE, *map(str, args)]

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=self.log, text=True, env=os.environ | (self.environment or {}),
                                        preexec_fn=self.preexec)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        if not match:
            self.process.kill()
            raise AssertionError(f"{self.args} printed {line!r}: {self.logged()}")
        self.port = int(match[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, error_type, *_):
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(timeout=120)
            if error_type is None and self.process.returncode != 0:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.logged()}")
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.log.close()

    def logged(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, text) of one request; a body that is no text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            if body is not None and not isinstance(body, (str, bytes)):
                body = json.dumps(body)
            given = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, given | self.key | (headers or {}))
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def complete(self, **fields):
        """(status, object) of a completion; the tiny model takes and gives token ids."""
        status, _, text = self.ask("POST", "/v1/completions", {"prompt": [5, 6, 7], "ignore_eos": True} | fields)
        return status, json.loads(text)

    def metric(self, name):
        for line in self.ask("GET", "/metrics")[2].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"/metrics has no {name}")

    def wait_for(self, name, value, at_least=False, seconds=300):
        """Waits until a metric has this value, or at least this one."""
        end = time.monotonic() + seconds
        while True:
            found = self.metric(name)
            if found == value or (at_least and found > value):
                return
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {found} after {seconds} s, expected {value}")
            time.sleep(0.01)


def raw_request(body, path="/v1/completions", **headers):
    """The bytes of a POST request with JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def read_all(connection):
    """The bytes that come until the server closes the connection."""
    received = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not part:
            return received
        received += part


def statuses(received):
    """The status codes of the answers that follow each other in `received`."""
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]
