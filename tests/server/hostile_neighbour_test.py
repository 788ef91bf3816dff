"""A hostile neighbour costs another key nothing: while one API key does its worst, another one's requests are answered as ever.

Each kind of KINDS is something that a client with a key (alice), or without one, may send. It runs in a process of its own, against a
server over the default model's tokenizer and the null engine, so that what is measured is the server and not the model. Meanwhile
another key (bob), at another address, asks for one token and for /health on new connections. Their times stay below three times the
idle 99th percentile + 0.3 s, the server's memory below the idle one + 500 MiB, what the keys are charged is what the engine
generated, and soon after the neighbour has left nothing of it is active. Some kinds are also there when SIGTERM comes, which ends the
server in its time.

HOSTILE_SECONDS: how long each kind is measured (2.5); HOSTILE_KINDS: a regex of the kinds' names.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import itertools
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import socket
import struct
import tempfile
import threading
import time
import unittest
from collections.abc import Callable

from server_process import Server, default_model_or_skip, raw_request

SECONDS = float(os.environ.get("HOSTILE_SECONDS", "2.5"))
ONLY = re.compile(os.environ.get("HOSTILE_KINDS", ""))
MEMORY = 500 << 20  # bytes beyond the idle ones
BODY = 10 << 20  # --max-body
CONNECTIONS = 256  # --max-connections: few, so that a flood of them is cheap
DRAIN_SECONDS = 2
OPTIONS = ("--null", "--max-connections", CONNECTIONS, "--max-waiting", 64, "--drain-seconds", DRAIN_SECONDS)
VICTIM, NEIGHBOUR = "127.0.0.2", "127.0.0.3"  # addresses that they come from


class Neighbour:
    """The client of a kind: at an address of its own, with alice's key by default."""

    def __init__(self, port):
        self.port = port
        self.number = itertools.count()

    def connect(self, seconds=60, buffer=None):
        connection = socket.socket()
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(seconds)
        try:
            connection.bind((NEIGHBOUR, 0))
            connection.connect(("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        return connection

    @staticmethod
    def request(body, path="/v1/completions", method="POST", key="alice", **headers):
        """The bytes of a request; a body that is bytes is sent as it is."""
        given = {"Authorization": f"Bearer {key}"} if key else {}
        return raw_request(body, path=path, **(given | headers)).replace(b"POST", method.encode(), 1)

    def send(self, request):
        """The whole answer's status, or 0 where there is none."""
        try:
            with self.connect() as connection:
                connection.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                return self.status(connection)
        except OSError:
            return 0

    @staticmethod
    def status(connection):
        received = connection.recv(65536)
        while part := connection.recv(1 << 20):
            received = received[:100] + part[:1]
        match = re.match(rb"HTTP/1\.1 (\d+)", received)
        return int(match[1]) if match else 0

    def post(self, body, path="/v1/completions", method="POST"):
        """An act that sends this body again and again."""
        request = self.request(body, path, method)
        return lambda: self.send(request)

    def hold(self, data, count, drip=b"", every=0.0):
        """An act that has so many connections on which `data` came and no more, but for `drip`."""
        def act():
            with contextlib.ExitStack() as held:
                connections = []
                for _ in range(count):
                    with contextlib.suppress(OSError):
                        connection = held.enter_context(self.connect())
                        connections.append(connection)
                        connection.sendall(data)
                for _ in range(int(10 / (every or 1))):
                    time.sleep(every or 1)
                    for connection in connections if drip else ():
                        with contextlib.suppress(OSError):
                            connection.sendall(drip)

        return act


@dataclasses.dataclass
class Kind:
    name: str
    # Makes the act that runs again and again on `threads`, before the measuring begins.
    prepare: Callable[[Neighbour], Callable[[], object]]
    threads: int = 1
    ends: bool = False  # it is there when SIGTERM comes, too


def text_of(size, unit):
    return {"prompt": unit * ((size - 100) // len(unit)), "max_tokens": 1}


def announced(length, path, key, body=b"{"):
    return raw_request(b"", path=path, **({"Authorization": f"Bearer {key}"} if key else {})).replace(
        b"Content-Length: 0", f"Content-Length: {length}".encode()) + body


def patterns(count):
    return {"anyOf": [{"type": "string", "pattern": f".{{0,{900 + i}}}a.{{0,{900 + i}}}"} for i in range(count)]}


def constrained(**fields):
    return {"prompt": "x", "max_tokens": 2} | fields


def schema(value):
    return constrained(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


def strict_tools(neighbour):
    functions = [{"type": "function", "function": {"name": f"f{i}", "strict": True, "parameters": {
        "type": "object", "properties": {"x": patterns(8)}, "required": ["x"], "additionalProperties": False}}} for i in range(16)]
    return neighbour.post({"messages": [{"role": "user", "content": "x"}], "tools": functions, "tool_choice": "required", "max_tokens": 2},
                          "/v1/chat/completions")


def new_schemas(neighbour):
    """Each request has another one, so that none is found compiled."""
    def act():
        value = patterns(100)
        value["anyOf"].append({"const": next(neighbour.number)})
        neighbour.send(neighbour.request(schema(value)))

    return act


def new_regexes(neighbour):
    def act():
        number = next(neighbour.number)
        regex = f"x{number}y([a-z]{{0,200}}|[a-zA-Z0-9 ]{{0,{200 + number % 700}}})z"
        neighbour.send(neighbour.request(constrained(regex=regex, max_tokens=400, n=4)))

    return act


AMBIGUOUS = "((a{0,40}){0,40}){0,40}"  # each letter may belong to many repeats
WIDE = "([a-z]{0,100}[a-z]{0,100}){0,4}"  # its masks are slow, and within the limit
NESTED = "((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}"
NESTED_GRAMMAR = "root ::= a{1000}\n" + "\n".join(f"{x} ::= {y}{{0,1000}}" for x, y in zip("abcd", "bcde")) + '\ne ::= "x"{0,1000}'


def wide_schema(_=None):
    return {"type": "object", "properties": {f"name{i:04}": {"enum": [f"value{i}{j}" for j in range(6)]} for i in range(700)}}


def failing_batches(neighbour):
    lines = b"{}\n" * 50_000
    form = (b"--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; "
            b"filename=\"a\"\r\n\r\n" + lines + b"\r\n--b--\r\n")
    with neighbour.connect() as connection:
        connection.sendall(neighbour.request(form, "/v1/files", Connection="close", Content_Type="multipart/form-data; boundary=b").replace(
            b"Content-Type: application/json\r\n", b"", 1))
        received = b""
        while part := connection.recv(65536):
            received += part
    file = json.loads(received.partition(b"\r\n\r\n")[2])["id"]
    return neighbour.post({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}, "/v1/batches")


def slow_readers(neighbour):
    request = neighbour.request({"prompt": "x", "n": 64, "max_tokens": 8000, "ignore_eos": True, "stream": True, "logprobs": 5})
    return neighbour.hold(request, 8)


def disconnects(neighbour):
    request = neighbour.request({"prompt": "x", "n": 8, "max_tokens": 8000, "ignore_eos": True, "stream": True})

    def act():
        with neighbour.connect() as connection:
            connection.sendall(request)
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return act


def pins(neighbour):
    def act():
        name = f"pin{next(neighbour.number) % 64}"
        neighbour.send(neighbour.request({"prompt": [next(neighbour.number) % 40_000 + 1] * 2000}, f"/v1/prefixes/{name}", "PUT"))

    return act


def pipelined(neighbour):
    request = neighbour.request({}, "/v1/tree", "GET").replace(b"Content-Length: 2\r\n", b"").removesuffix(b"{}")

    def act():
        with neighbour.connect() as connection:
            threading.Thread(target=lambda: [connection.recv(1 << 20) for _ in range(1000)], daemon=True).start()
            for _ in range(100):
                connection.sendall(request * 100)

    return act


def unread_answers(neighbour):
    """Answers larger than what the sockets hold, which need no key and are not read."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50

    def act():
        with contextlib.ExitStack() as held:
            for _ in range(CONNECTIONS + 100):
                with contextlib.suppress(OSError):
                    held.enter_context(neighbour.connect(buffer=4096)).sendall(request)
            time.sleep(10)

    return act


def of(path, body, method="POST"):
    """A kind's act: this body, again and again."""
    return lambda neighbour: neighbour.post(body() if callable(body) else body, path, method)


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KINDS = [
    # Bounds of the output.
    Kind("schema of many patterns", new_schemas, threads=4, ends=True),
    Kind("schema of many members", of(COMPLETIONS, lambda: schema(wide_schema())), threads=2),
    Kind("schema of long enumerations", of(COMPLETIONS, lambda: schema({"enum": ["x" * 50 + str(i) for i in range(1000)]})), threads=2),
    Kind("strict tools", strict_tools, threads=2),
    Kind("regex of nested repeats", of(COMPLETIONS, constrained(regex=NESTED)), threads=2),
    Kind("regex of nested repeats, many samples", of(COMPLETIONS, constrained(regex=NESTED, n=16)), ends=True),
    Kind("grammar of nested repeats", of(COMPLETIONS, constrained(grammar=NESTED_GRAMMAR)), threads=2),
    Kind("slow masks, many samples", of(COMPLETIONS, constrained(regex=WIDE, n=64, max_tokens=200, ignore_eos=True, temperature=2)), threads=2,
         ends=True),
    Kind("slow masks, many requests", of(COMPLETIONS, constrained(regex=WIDE, max_tokens=200, ignore_eos=True, temperature=2)), threads=16),
    Kind("masks that are too slow", of(COMPLETIONS, constrained(regex=AMBIGUOUS, n=16, max_tokens=200, ignore_eos=True)), threads=4),
    Kind("long repeats of a class", of(COMPLETIONS, constrained(regex="[a-z]{0,1000}", n=64, max_tokens=500, ignore_eos=True, temperature=2)),
         threads=2),
    Kind("another regex in each request", new_regexes, threads=8),
    # Large answers.
    Kind("echo with log-probabilities, many choices",
         of(COMPLETIONS, {"prompt": "a b c d " * 25, "echo": True, "logprobs": 20, "n": 2000, "max_tokens": 0}), threads=2),
    Kind("as many choices as may be", of(COMPLETIONS, {"prompt": "x", "n": 16_000, "max_tokens": 1}), threads=2),
    Kind("answers that are not read", slow_readers, ends=True),
    Kind("answers without a key that are not read", unread_answers),
    # Bodies and connections.
    Kind("announced bodies without a key", lambda n: n.hold(announced(BODY, "/nowhere", None), 60)),
    Kind("announced bodies", lambda n: n.hold(announced(BODY, COMPLETIONS, "alice"), 60), ends=True),
    Kind("large bodies that stop before their end", lambda n: n.hold(announced(BODY, COMPLETIONS, "alice", b" " * (BODY - 1)), 60)),
    Kind("bodies of a byte at a time", lambda n: n.hold(announced(BODY, COMPLETIONS, "alice"), 60, b" ", 0.05)),
    Kind("announced uploads", lambda n: n.hold(
        announced(200 << 20, "/v1/files", "alice", b"--b").replace(b"application/json", b"multipart/form-data; boundary=b"), 30)),
    Kind("silent connections", lambda n: n.hold(b"", CONNECTIONS + 100)),
    Kind("heads of a byte at a time", lambda n: n.hold(b"GET / HTTP/1.1\r\nX: ", CONNECTIONS + 100, b"a", 0.5)),
    Kind("connections that watch the server", lambda n: n.hold(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", CONNECTIONS + 100)),
    # Work before a request is admitted.
    Kind("tokenizing blanks", of("/tokenize", lambda: text_of(BODY, " ") | {"max_tokens": None}), threads=4, ends=True),
    Kind("tokenizing one letter", of("/tokenize", lambda: {"prompt": "a" * (BODY - 100)}), threads=4),
    Kind("tokenizing as much as a context may have", of("/tokenize", lambda: {"prompt": " " * 300_000}), threads=4),
    Kind("detokenizing", of("/detokenize", lambda: {"tokens": [9] * (BODY // 3)}), threads=4),
    Kind("prompts of 10 MB", of(COMPLETIONS, lambda: text_of(BODY, "word ")), threads=4),
    Kind("chats of 100,000 messages", of(CHAT, lambda: {"messages": [{"role": "user", "content": "a"}] * 100_000}), threads=4),
    Kind("chats of 10 MB", of(CHAT, lambda: {"messages": [{"role": "user", "content": " " * (BODY - 200)}]}), threads=4),
    Kind("bodies of many lists", of(COMPLETIONS, lambda: b'{"prompt":[' + b"[1]," * (BODY // 4 - 100) + b"[1]]}"), threads=6),
    Kind("bodies that are no JSON", of(COMPLETIONS, lambda: b"[" * (BODY - 10)), threads=4),
    Kind("scores behind a long prompt", of("/v1/score", lambda: {"prompt": " " * 300_000, "continuations": ["a"] * 2000}), threads=2, ends=True),
    # The queue and what is kept.
    Kind("lists of prompts", of(COMPLETIONS, {"prompt": [[i] for i in range(1, 65)], "max_tokens": 2000, "ignore_eos": True}), threads=4),
    Kind("many samples in every request", of(COMPLETIONS, {"prompt": "x", "n": 64, "max_tokens": 2000, "ignore_eos": True}), threads=16),
    Kind("scores of many continuations", of("/v1/score", {"prompt": "x", "continuations": [f" {i}" for i in range(64)]}), threads=4),
    Kind("batches whose lines all fail", failing_batches),
    Kind("pinned prefixes", pins, threads=4),
    Kind("votes that fail", of(COMPLETIONS, {"prompt": "x", "n": 12, "max_tokens": 64, "vote": "(a|a|b|.)*(.*)*(.*)*$x(y)"}), threads=2),
    # Floods.
    Kind("short requests", of(COMPLETIONS, {"prompt": "x", "max_tokens": 1}), threads=16),
    Kind("short requests that are refused", of(COMPLETIONS, {"prompt": "x", "n": -1}), threads=16),
    Kind("metrics and trees", pipelined, threads=2),
    Kind("disconnects", disconnects, threads=16, ends=True),
]


def attack(kind, port, ready):
    """The neighbour's process, until it is killed."""
    os.nice(19)  # its own work would be another machine's
    act = kind.prepare(Neighbour(port))

    def repeat():
        while True:
            with contextlib.suppress(OSError):
                act()

    for _ in range(kind.threads):
        threading.Thread(target=repeat, daemon=True).start()
    ready.set()
    time.sleep(3600)


@contextlib.contextmanager
def neighbour(kind, port):
    """While it lives, the neighbour does its worst."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=attack, args=(kind, port, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(60):
            raise AssertionError(f"{kind.name}: it was not ready in 60 s")
        yield process
    finally:
        process.kill()
        process.join()


def memory(server, name):
    """VmRSS, or VmHWM since the last reset, in bytes."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name + ":"))


def reset_peak(server):
    with open(f"/proc/{server.process.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def ask(server, method, path, body=None, seconds=10.0):
    """Seconds until the victim had this answer; a status other than 200 is an error."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=seconds, source_address=(VICTIM, 0))
    try:
        headers = {"Authorization": "Bearer bob"} | ({"Content-Type": "application/json"} if body else {})
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise AssertionError(f"{method} {path} was answered {response.status}: {text[:300]}")
    finally:
        connection.close()
    return time.monotonic() - begin


ONE_TOKEN = json.dumps({"prompt": "Hello", "max_tokens": 1, "ignore_eos": True})
ASKED = {"one token": ("POST", COMPLETIONS, ONE_TOKEN), "/health": ("GET", "/health")}


def measure(server, seconds):
    """By what was asked, the 99th percentile of the victim's times."""
    times = {name: [] for name in ASKED}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, request in ASKED.items():
            times[name].append(ask(server, *request))
        time.sleep(0.01)
    return {name: sorted(values)[math.ceil(0.99 * len(values)) - 1] for name, values in times.items()}


class HostileNeighbourTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = default_model_or_skip()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.keys = os.path.join(folder, "keys")
        with open(cls.keys, "w", encoding="ascii") as file:
            for name, role in (("alice", ""), ("bob", ""), ("carol", " role=admin")):  # carol sees all keys' figures
                file.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()}{role}\n")
        cls.server = cls.enterClassContext(cls.start())
        measure(cls.server, 0.5)
        cls.idle = measure(cls.server, 3)
        cls.idle_memory = memory(cls.server, "VmRSS")
        print(f"idle: {cls.shown(cls.idle)}, {cls.idle_memory >> 20} MiB", flush=True)

    @classmethod
    def start(cls):
        files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(files.cleanup)
        return Server("--api-keys", cls.keys, "--files", files.name, *OPTIONS, model=cls.model)

    @staticmethod
    def shown(times):
        return ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in times.items())

    def metrics(self):
        """Tokens that the engine generated, those that keys are charged with, and requests under way."""
        text = self.server.ask("GET", "/metrics", headers={"Authorization": "Bearer carol"})[2]
        keys = re.findall(r"^coppice_key_generated_tokens_total\{.*\} (\d+)$", text, re.M)
        return (int(re.search(r"^coppice_generated_tokens_total (\d+)$", text, re.M)[1]), sum(map(int, keys)),
                int(re.search(r"^coppice_http_requests_active (\d+)$", text, re.M)[1]))

    def check(self, kind):
        """Slow answers and growth of memory while the neighbour acts, as texts; empty: none."""
        wrong = []
        reset_peak(self.server)
        try:
            with neighbour(kind, self.server.port):
                times = measure(self.server, SECONDS)
        except (AssertionError, OSError) as error:
            return [f"the victim was not answered: {error!r}"]
        for name, seconds in times.items():
            if seconds > 3 * self.idle[name] + 0.3:
                wrong.append(f"{name} took {seconds:.3f} s, idle {self.idle[name]:.3f} s")
        if (peak := memory(self.server, "VmHWM")) > self.idle_memory + MEMORY:
            wrong.append(f"memory grew from {self.idle_memory >> 20} to {peak >> 20} MiB")
        print(f"{kind.name}: {self.shown(times)}, {peak >> 20} MiB", flush=True)
        return wrong

    def test_another_key_sees_nothing_of_it(self):
        for kind in KINDS:
            if not ONLY.search(kind.name):
                continue
            with self.subTest(kind.name):
                # Other programs share the processors: what a kind does, it does each time.
                wrong = self.check(kind) and self.check(kind) and self.check(kind)
                self.assertIsNone(self.server.process.poll(), self.server.logged()[-2000:])
                end = time.monotonic() + 15
                while True:
                    generated, charged, active = self.metrics()
                    if (active == 0 and charged == generated) or time.monotonic() > end:
                        break
                    time.sleep(0.1)
                if active:
                    wrong.append(f"{active} requests are active 15 s after the neighbour has left")
                if charged != generated:
                    wrong.append(f"{generated} tokens were generated, and the keys are charged with {charged}")
                self.assertEqual(wrong, [])

    def test_sigterm_ends_the_server_in_its_time(self):
        for kind in KINDS:
            if not kind.ends or not ONLY.search(kind.name):
                continue
            with self.subTest(kind.name), self.start() as server, neighbour(kind, server.port):
                time.sleep(1)
                server.process.send_signal(signal.SIGTERM)
                begin = time.monotonic()
                server.process.wait(timeout=60)
                self.assertLess(time.monotonic() - begin, DRAIN_SECONDS + 5)  # other programs share the processors


if __name__ == "__main__":
    unittest.main(verbosity=2)
