"""response_format, regex and grammar of clients that do not trust each other: what takes long to compile delays no other and ends with its
client and with the server, what takes long to follow ends its own request alone, and each in batches fails as a line. Skipped where the
build constrains no output."""

import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import unittest

from batch_client import Client
from server_process import Server, raw_request, read_all, statuses
from tool_model import make_tool_model

NUMBERS = itertools.count()


def slow():
    """As much as a grammar may be, and another one each time, since what was compiled is kept: compiling it takes many seconds."""
    parts = [f'[^\\n]{{0,{900 + i}}} "a" [^\\n]{{0,{900 + i}}}' for i in range(45)]
    return {"grammar": f'root ::= "{next(NUMBERS)}" | ' + " | ".join(parts)}


# Each "a" may belong to many repeats.
AMBIGUOUS = {"regex": "((a{0,40}){0,40}){0,40}", "ignore_eos": True, "max_tokens": 200}


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def descendants(pid):
    return [each for child in children(pid) for each in (child, *descendants(child))]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class OutputFormsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model = make_tool_model(cls.folder, "qwen2.5-instruct")
        cls.keys = os.path.join(cls.folder, "keys")
        with open(cls.keys, "w", encoding="ascii") as file:
            for name, more in (("alice", ""), ("bob", ""), ("admin", " role=admin")):
                file.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()}{more}\n")
        cls.server = cls.enterClassContext(cls.start())
        status, answer = cls.complete("bob", regex="a")
        if status == 400:
            print(f"skipped: output is not constrained: {answer}")
            sys.exit(77)

    @classmethod
    def start(cls, *args):
        return Server("--max-context", 2048, "--api-keys", cls.keys, *args, model=cls.model, key="admin")

    @classmethod
    def complete(cls, key, server=None, **fields):
        body = {"prompt": "a", "max_tokens": 8, "seed": 1, "temperature": 1} | fields
        status, _, text = (server or cls.server).ask("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
        return status, json.loads(text)

    @staticmethod
    def compiles(server):
        """The processes in which forms are compiled, those that have just ended among them."""
        return [pid for keeper in children(server.process.pid) for fork_server in children(keeper) for pid in children(fork_server)]

    def compiling(self, server, known=()):
        """The process in which a form is compiled, when it is there: none of `known`, which were there before."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if processes := [pid for pid in self.compiles(server) if pid not in known]:
                return processes[0]
            time.sleep(0.005)
        raise AssertionError("nothing is compiled")

    def wait_until(self, reached, what, seconds=30):
        end = time.monotonic() + seconds
        while not reached():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def send(self, server, **fields):
        """A connection on which alice has sent this."""
        connection = self.enterContext(server.connect())
        connection.sendall(raw_request({"prompt": "a", "max_tokens": 8} | fields, Authorization="Bearer alice", Connection="close"))
        return connection

    def test_structured_outputs_are_vllms_way_to_say_it(self):
        choices = ["yes", "no", 'say "maybe"\n']
        for seed in range(4):
            status, answer = self.complete("bob", structured_outputs={"choice": choices}, max_tokens=30, seed=seed)
            self.assertEqual(status, 200, answer)
            self.assertIn(answer["choices"][0]["text"], choices)
        schema = {"type": "object", "properties": {"b": {"enum": [1]}, "a": {"enum": [2]}}, "required": ["a", "b"]}
        for path, body in (("/v1/completions", {"prompt": "a", "max_tokens": 400, "structured_outputs": {"json": schema}}),
                           ("/inference/v1/generate", {"token_ids": [65], "output_mode": "text", "sampling_params": {"max_tokens": 400, "structured_outputs": {"json": schema}}}),
                           ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 400, "json_schema": json.dumps(schema)}})):
            status, _, text = self.server.ask("POST", path, body)
            self.assertEqual(status, 200, text)
            answer = json.loads(text)
            output = answer["text"] if path == "/generate" else answer["choices"][0]["text"]
            self.assertEqual(list(json.loads(output)), ["b", "a"], path)  # members in the order of the client's text
        self.assertEqual(self.complete("bob", structured_outputs={"regex": "("})[1]["error"]["param"], "structured_outputs")

    def test_what_is_compiled_delays_no_other_and_ends_with_its_client(self):
        known = self.compiles(self.server)
        connection = self.send(self.server, **slow())
        process = self.compiling(self.server, known)
        waiting = self.send(self.server, regex="(one|two)")  # of the same key: it waits for its turn
        for fields in ({}, {"regex": "(yes|no)"}, form({"enum": ["yes", "no"]})):
            self.assertEqual(self.complete("bob", **fields)[0], 200)
        self.assertEqual(self.complete("alice")[0], 200)  # what has no form does not wait either
        self.assertTrue(is_alive(process), "the slow form was not slow enough for this test")
        connection.close()
        self.wait_until(lambda: not is_alive(process), "it goes on without its client")
        self.assertEqual(statuses(read_all(waiting)), [200])
        self.server.wait_for("coppice_http_requests_active", 0)

    def test_a_timeout_is_that_of_compiling_too(self):
        begin = time.monotonic()
        status, answer = self.complete("alice", timeout=0.3, **slow())
        self.assertEqual((status, answer["error"]["param"]), (408, "grammar"))
        self.assertLess(time.monotonic() - begin, 10)

    def test_sigterm_ends_the_server_while_forms_are_compiled(self):
        with self.start() as server:
            connection = self.send(server, **slow())
            self.compiling(server)
            processes = descendants(server.process.pid)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(timeout=10)
            self.assertEqual(statuses(read_all(connection)), [503])
            self.wait_until(lambda: not any(map(is_alive, processes)), "a process of the server is left")

    def test_a_killed_server_leaves_no_process(self):
        server = self.start()
        with self.assertRaises(AssertionError), server:
            self.send(server, **slow())
            self.compiling(server)
            processes = descendants(server.process.pid)
            server.process.kill()
            server.process.wait()
            self.wait_until(lambda: not any(map(is_alive, processes)), "a process of the server is left")
            raise AssertionError("as expected")

    def test_killed_processes_are_replaced(self):
        self.wait_until(lambda: not self.compiles(self.server), "what another test left is compiled")
        connection = self.send(self.server, **slow())
        os.kill(self.compiling(self.server), signal.SIGKILL)
        self.assertEqual(statuses(read_all(connection)), [500])
        for keeper in children(self.server.process.pid):
            for process in children(keeper):
                os.kill(process, signal.SIGKILL)
        self.wait_until(lambda: self.complete("bob", regex="(yes|no)|killed")[0] == 200, "nothing is compiled any more")

    def test_what_takes_too_long_to_follow_is_named(self):
        running = self.send(self.server, prompt=["a"], max_tokens=300, regex="[a-z]{300}")
        status, answer = self.complete("alice", n=4, **AMBIGUOUS)
        self.assertEqual(status, 400, answer)
        self.assertEqual((answer["error"]["type"], answer["error"]["param"]), ("invalid_request_error", "regex"))
        self.assertIn("too long", answer["error"]["message"])
        self.assertEqual(statuses(read_all(running)), [200])  # of the same key, with another form
        status, _, text = self.server.ask("POST", "/v1/completions", {"prompt": "a", "stream": True} | AMBIGUOUS,
                                          {"Authorization": "Bearer alice"})
        error = json.loads(text.split("data: ")[-1])["error"]
        self.assertEqual((status, error["type"], error["param"]), (200, "invalid_request_error", "regex"))

    def test_lines_of_a_batch_fail_by_themselves(self):
        forms = [{"regex": "((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}"}, {"regex": "(yes|no)"}, {"regex": "(a"}, AMBIGUOUS,
                 {"grammar": "root ::= b"}, form({"enum": ["yes", "no"]}), {}]
        lines = [json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 200} | each})
                 for i, each in enumerate(forms)]
        with self.start("--files", os.path.join(self.folder, "files")) as server:
            client = Client(server, Authorization="Bearer alice")
            name = client.create(client.upload("\n".join(lines).encode()))
            batch = client.wait(name, lambda batch: batch["status"] not in ("validating", "in_progress", "finalizing"))
            self.assertEqual((batch["status"], batch["request_counts"]), ("completed", {"total": 7, "completed": 3, "failed": 4}))
            answered = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in client.lines(batch["output_file_id"])}
            self.assertEqual(set(answered), {"r1", "r5", "r6"})
            self.assertIn(answered["r1"], ("yes", "no"))
            self.assertIn(answered["r5"], ('"yes"', '"no"'))
            failed = {line["custom_id"]: line for line in client.lines(batch["error_file_id"])}
            self.assertEqual({name: self.param_of(line) for name, line in failed.items()}, {"r0": "regex", "r2": "regex", "r3": "regex", "r4": "grammar"})

    @staticmethod
    def param_of(line):
        error = line.get("error") or line["response"]["body"]["error"]
        return error.get("param")

    def test_a_batch_that_waits_for_a_form_delays_no_other_and_stops(self):
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"} | slow()}
        with self.start("--files", os.path.join(self.folder, "files of a stop")) as server:
            client = Client(server, Authorization="Bearer alice")
            name = client.create(client.upload(json.dumps(line).encode()))
            process = self.compiling(server)
            self.assertEqual(self.complete("bob", server=server, regex="(yes|no)")[0], 200)
            self.assertEqual(client.ask("POST", f"/v1/batches/{name}/cancel")[0], 200)
            client.wait(name, lambda batch: batch["status"] == "cancelled")
            self.wait_until(lambda: not is_alive(process), "it goes on without its batch")
            again = client.create(client.upload(json.dumps(line).encode()))
            self.compiling(server)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(timeout=10)
        with self.start("--files", os.path.join(self.folder, "files of a stop")) as server:  # the next start goes on with it
            self.assertEqual(Client(server, Authorization="Bearer alice").batch(again)["status"], "in_progress")


if __name__ == "__main__":
    unittest.main()
