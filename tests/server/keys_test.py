"""API keys see nothing of each other: one key's prompts cost, report and show another key the same as new prompts."""

import hashlib
import itertools
import json
import os
import random
import tempfile
import time
import unittest

from server_process import Server, raw_request, read_all, statuses

COUNTERS = ("coppice_prefill_tokens_total", "coppice_cached_tokens_total", "coppice_kv_read_bytes_total", "coppice_kv_read_unshared_bytes_total",
            "coppice_steps_total")
BOUNDARY = "a-boundary"
# The salts that a request may have.
WAYS = ({}, {"cache_salt": "alice"}, {"cache_salt": "alice", "cache_private_begin": 40}, {"cache_salt": "s", "cache_private_begin": 1000})


class KeysTest(unittest.TestCase):
    def setUp(self):
        self.random, self.numbers = random.Random(5), itertools.count()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.keys = self.write_keys({"alice": "", "bob": "", "root": "role=admin"})

    def write_keys(self, roles):
        """A file of keys that are their names."""
        path = os.path.join(self.folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{name} {hashlib.sha256(name.encode()).hexdigest()} {role}\n" for name, role in roles.items())
        return path

    def server(self, *args):
        return Server("--api-keys", self.keys, *args, key="root")

    def test_the_plan_of_a_step_is_for_admins(self):
        with self.server() as server:
            server.complete(prompt=[5] * 200, n=4, max_tokens=8)
            plan = json.loads(server.ask("GET", "/v1/plan")[2])
            self.assertRegex(plan["text"], r"^step \d+: ")
            self.assertEqual(server.ask("GET", "/v1/plan", headers={"Authorization": "Bearer alice"})[0], 403)

    def prompt(self, length=100):
        """Of random tokens but for the first, which no other prompt of the test begins with."""
        return [3 + next(self.numbers) % 247, *(self.random.randrange(3, 250) for _ in range(length - 1))]

    def ask(self, server, key, path, body, method="POST"):
        status, _, text = server.ask(method, path, body, {"Authorization": f"Bearer {key}"})
        self.assertEqual(status, 200, text)
        return text

    def complete(self, server, key, **fields):
        return json.loads(self.ask(server, key, "/v1/completions", {"max_tokens": 2, "ignore_eos": True, "temperature": 0} | fields))["usage"]

    def stream(self, server, key, **fields):
        text = self.ask(server, key, "/v1/completions", {"max_tokens": 2, "ignore_eos": True, "temperature": 0, "stream": True,
                                                         "stream_options": {"include_usage": True}} | fields)
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")][-1]["usage"]

    def score(self, server, key, **fields):
        return json.loads(self.ask(server, key, "/v1/score", {"continuations": [[7, 8], [9]]} | fields))["usage"]

    def pin(self, server, key, **fields):
        made = json.loads(self.ask(server, key, "/v1/prefixes/p", fields, "PUT"))
        self.ask(server, key, "/v1/prefixes/p", None, "DELETE")
        return made["num_tokens"]

    def batch(self, server, key, **fields):
        line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"max_tokens": 2, "ignore_eos": True, "temperature": 0} | fields}
        form = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
        form += f'Content-Disposition: form-data; name="file"; filename="in"\r\n\r\n{json.dumps(line)}\n\r\n--{BOUNDARY}--\r\n'
        headers = {"Authorization": f"Bearer {key}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        file = json.loads(server.ask("POST", "/v1/files", form.encode(), headers)[2])["id"]
        made = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        name = json.loads(self.ask(server, key, "/v1/batches", made))["id"]
        end = time.monotonic() + 60
        while (batch := json.loads(self.ask(server, key, f"/v1/batches/{name}", None, "GET")))["status"] != "completed":
            self.assertLess(time.monotonic(), end, batch)
            time.sleep(0.01)
        return json.loads(self.ask(server, key, f"/v1/files/{batch['output_file_id']}/content", None, "GET"))["response"]["body"]["usage"]

    def cost(self, server, way, key, **fields):
        """Increments of the server's counters by a request, and its answer."""
        before = [server.metric(name) for name in COUNTERS]
        received = way(server, key, **fields)
        return [server.metric(name) - value for name, value in zip(COUNTERS, before)], received

    def test_another_keys_prompt_costs_what_a_new_one_does(self):
        """By each way into the engine, with each salt."""
        with self.server("--files", os.path.join(self.folder, "files")) as server:
            for way in (self.complete, self.stream, self.score, self.pin, self.batch):
                new = {}  # what a new prompt costs bob, by what he says of its salt
                for i, of_bob in enumerate(WAYS):
                    new[i] = self.cost(server, way, "bob", prompt=self.prompt(), **of_bob)
                for of_alice in WAYS:
                    for i, of_bob in enumerate(WAYS):
                        known = self.prompt()
                        self.complete(server, "alice", prompt=known, **of_alice)
                        self.assertEqual(self.cost(server, way, "bob", prompt=known, **of_bob), new[i], (way.__name__, of_alice, of_bob))

    def test_a_secret_is_not_guessed_token_by_token(self):
        with self.server() as server:
            known = self.prompt(40)
            self.complete(server, "alice", prompt=known)
            self.assertGreater(self.complete(server, "alice", prompt=known)["prompt_tokens_details"]["cached_tokens"], 0)
            for length in range(20, 40):
                for way in ({}, {"cache_salt": "alice"}):
                    right, wrong = known[length], (known[length] + 1) % 250
                    usages = [self.complete(server, "bob", prompt=known[:length] + [guess, guess, 5], **way) for guess in (right, wrong)]
                    self.assertLessEqual(usages[0]["prompt_tokens_details"]["cached_tokens"], length)
                    # The second finds what the first, his own, began with.
                    self.assertEqual(usages[1]["prompt_tokens_details"]["cached_tokens"], length)

    def test_what_a_key_sees_does_not_change_with_others(self):
        with self.server() as server:
            def seen():
                return [server.ask("GET", path, headers={"Authorization": "Bearer bob"})[2] for path in ("/metrics", "/v1/tree", "/v1/prefixes")]

            self.complete(server, "bob", prompt=self.prompt())
            end = time.monotonic() + 60
            while not json.loads(seen()[1])["nodes"]:  # the tree is published when the engine is idle, after the answer
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            before = seen()
            for way in (self.complete, self.stream, self.score, self.pin):
                way(server, "alice", prompt=self.prompt())
            self.assertEqual(seen(), before)
            self.assertIn('key="alice"', server.ask("GET", "/metrics")[2])

    def test_prefixes_are_their_keys_after_a_restart(self):
        """Also those that a server without keys, or one whose keys shared, had left."""
        text, public = self.prompt(64), self.prompt(64)
        folder = os.path.join(self.folder, "prefixes")
        with self.server("--prefixes", folder, "--share-between-keys") as server:
            self.ask(server, "alice", "/v1/prefixes/p", {"prompt": text}, "PUT")
            self.ask(server, "root", "/v1/prefixes/all", {"prompt": public, "public": True}, "PUT")
        with self.server("--prefixes", folder) as server:
            cached = {}
            for key in ("bob", "alice"):
                cached[key] = self.complete(server, key, prompt=text + [3])["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(cached, {"bob": 0, "alice": 64})
            behind = self.prompt(30)
            for key in ("bob", "alice"):  # the prefix is there for both, what follows it for each alone
                usage = self.complete(server, key, prompt=behind, prefix="all")
                self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 64, key)
            self.assertEqual(server.ask("DELETE", "/v1/prefixes/all", headers={"Authorization": "Bearer bob"})[0], 404)
        self.write_keys({"alice": "", "bob": "", "root": ""})
        with self.server("--prefixes", folder) as server:  # no admin's any more
            self.assertEqual(server.ask("GET", "/v1/prefixes/all")[0], 404)

    def test_one_key_does_not_fill_the_line(self):
        """One request runs for long; a list of prompts fills the line behind it, and another key gets in all the same."""
        with self.server("--max-waiting", 8, "--max-running", 1) as server, server.connect() as running, server.connect() as waiting:
            running.sendall(raw_request({"prompt": [5, 6], "max_tokens": 1900, "ignore_eos": True, "stream": True}, Authorization="Bearer alice"))
            server.wait_for("coppice_samples_running", 1)
            waiting.sendall(raw_request({"prompt": [[5, 6 + i] for i in range(8)], "max_tokens": 2}, Authorization="Bearer alice"))
            server.wait_for("coppice_requests_waiting", 8)
            alice = {"Authorization": "Bearer alice"}
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [9], "max_tokens": 2}, alice)[0], 429)
            with server.connect() as other:
                other.sendall(raw_request({"prompt": [9], "max_tokens": 2}, Authorization="Bearer bob", Connection="close"))
                server.wait_for("coppice_requests_waiting", 9)
                running.close()
                self.assertEqual(statuses(read_all(other)), [200])

    def test_samples_of_a_key_are_bounded(self):
        with self.server("--max-per-key", 4) as server:
            for body in ({"n": 5}, {"prompt": [[5], [6]], "n": 3}, {"best_of": 5, "n": 1}):
                status, _, text = server.ask("POST", "/v1/completions", {"prompt": [5], "max_tokens": 2} | body, {"Authorization": "Bearer alice"})
                self.assertEqual(status, 400, text)
            self.complete(server, "alice", prompt=[5], n=4)
            self.complete(server, "alice", prompt=[[5], [6]], n=2)

    def test_keys_that_share(self):
        with self.server("--share-between-keys") as server:
            known = self.prompt(64)
            self.complete(server, "alice", prompt=known)
            self.assertGreater(self.complete(server, "bob", prompt=known)["prompt_tokens_details"]["cached_tokens"], 0)
            salted = self.prompt(64)
            self.complete(server, "alice", prompt=salted, cache_salt="s", cache_private_begin=16)
            self.assertEqual(self.complete(server, "bob", prompt=salted, cache_salt="s", cache_private_begin=16)["prompt_tokens_details"]["cached_tokens"],
                             16)


if __name__ == "__main__":
    unittest.main()
