"""Answers of `coppice serve` over real connections: completions whole and streamed, cancellation, a full queue, keys, SIGTERM."""

import json
import hashlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from server_process import COPPICE, TINY, Server, raw_request, read_all

LONG = {"prompt": [5, 6, 7], "max_tokens": 1500, "ignore_eos": True, "stream": True}


def events(text):
    """The objects of a stream, which must be complete."""
    data = [line[len("data: "):] for line in text.split("\n\n") if line and not line.startswith(":")]
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(item) for item in data[:-1]]


class ApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())

    def test_streamed_tokens_are_those_of_the_whole_answer(self):
        fields = {"max_tokens": 20, "temperature": 1, "seed": 3, "n": 2, "logprobs": 2, "prompt": [[5, 6, 7], [8, 9]], "ignore_eos": True}
        status, whole = self.server.complete(**fields)
        self.assertEqual(status, 200, whole)
        self.assertEqual(len(whole["choices"]), 4)
        status, headers, text = self.server.ask("POST", "/v1/completions", fields | {"stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(status, 200)
        self.assertEqual(headers.get_content_type(), "text/event-stream")
        streamed = [[] for _ in range(4)]
        scores = [[] for _ in range(4)]
        objects = events(text)
        for item in objects[:-1]:
            choice = item["choices"][0]
            streamed[choice["index"]] += choice["token_ids"]
            if choice["logprobs"]:
                scores[choice["index"]] += choice["logprobs"]["token_logprobs"]
        self.assertEqual(streamed, [choice["token_ids"] for choice in whole["choices"]])
        self.assertEqual(scores, [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]])
        self.assertEqual(objects[-1]["usage"]["completion_tokens"], 80)
        self.assertEqual(objects[-1]["usage"]["prompt_tokens"], 5)

    def test_streams_report_the_prompts_ids(self):
        for echo in (False, True):
            fields = {"max_tokens": 3, "n": 2, "prompt": [[5, 6, 7], [8, 9]], "return_token_ids": True, "ignore_eos": True, "echo": echo, "seed": 3}
            whole = self.server.complete(**fields)[1]["choices"]
            received = [[item["choices"][0] for item in events(self.server.ask("POST", "/v1/completions", fields | {"stream": True})[2])
                         if item["choices"][0]["index"] == i] for i in range(4)]
            for choice, objects in zip(whole, received, strict=True):
                self.assertEqual(objects[0]["prompt_token_ids"], choice["prompt_token_ids"])
                self.assertFalse(any("prompt_token_ids" in item for item in objects[1:]))
                self.assertEqual([token for item in objects for token in item["token_ids"]], choice["token_ids"])

    def test_a_prompt_that_was_computed_before_is_cached(self):
        prompt = list(range(100, 180))
        self.server.complete(prompt=prompt)
        usage = self.server.complete(prompt=prompt)[1]["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 64)
        # The cache has log-probabilities of a prompt once they were asked for.
        for fields, cached in (({"echo": True}, 79), ({"echo": True, "logprobs": 0}, 0), ({"echo": True, "logprobs": 0}, 79)):
            usage = self.server.complete(prompt=prompt, **fields)[1]["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], cached, fields)
        salted = self.server.complete(prompt=prompt, cache_salt="other")[1]["usage"]
        self.assertEqual(salted["prompt_tokens_details"]["cached_tokens"], 0)
        half = self.server.complete(prompt=prompt, cache_salt="third", cache_private_begin=64)[1]["usage"]
        self.assertEqual(half["prompt_tokens_details"]["cached_tokens"], 64)

    def test_what_samples_read_together_is_reported(self):
        name = 'coppice_kv_bytes_not_read_total{key=""}'
        self.server.complete()
        before = self.server.metric(name)
        fields = {"prompt": [token % 300 for token in range(1000)], "n": 8, "max_tokens": 12, "temperature": 1, "seed": 1}
        usage = self.server.complete(**fields)[1]["usage"]
        shared = usage["shared_prefix"]
        self.assertEqual(self.server.metric(name), before + shared["kv_bytes_not_read"])
        # Whether the planner shares is a matter of speed; what it shares is reported.
        self.assertIn(shared["sharers"], range(9))
        self.assertEqual(shared["sharers"] > 1, shared["kv_bytes_not_read"] > 0)
        _, _, text = self.server.ask("POST", "/v1/completions", fields | {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True})
        self.assertEqual(set(events(text)[-1]["usage"]["shared_prefix"]), set(shared))
        alone = self.server.complete(prompt=[9, 8, 7])[1]["usage"]["shared_prefix"]
        self.assertEqual(alone, {"tokens": 0, "sharers": 0, "kv_bytes_not_read": 0})

    def test_without_a_seed_each_request_draws_anew(self):
        drawn = [self.server.complete(max_tokens=20, temperature=5)[1]["choices"][0]["token_ids"] for _ in range(2)]
        self.assertNotEqual(drawn[0], drawn[1])
        drawn = [self.server.complete(max_tokens=20, temperature=5, seed=1)[1]["choices"][0]["token_ids"] for _ in range(2)]
        self.assertEqual(drawn[0], drawn[1])

    def test_beams_are_choices_in_the_order_of_their_scores(self):
        fields = {"prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
        search = fields | {"use_beam_search": True, "beam_width": 6, "n": 3}
        status, whole = self.server.complete(**search)
        self.assertEqual(status, 200, whole)
        choices = whole["choices"]
        scores = [choice["beam_score"] for choice in choices]
        self.assertEqual(len(scores), 3)
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(len({tuple(choice["token_ids"]) for choice in choices}), 3)
        for choice in choices:
            self.assertAlmostEqual(choice["beam_score"], sum(choice["logprobs"]["token_logprobs"]) / 12, 4)
        greedy = self.server.complete(temperature=0, **fields)[1]["choices"][0]
        self.assertNotIn("beam_score", greedy)
        self.assertLessEqual(sum(greedy["logprobs"]["token_logprobs"]) / 12, scores[0] + 1e-3)
        best_of = fields | {"use_beam_search": True, "best_of": 6, "n": 3}
        self.assertEqual([choice["token_ids"] for choice in self.server.complete(**best_of)[1]["choices"]], [choice["token_ids"] for choice in choices])
        streamed, last = [[] for _ in range(3)], {}
        for item in events(self.server.ask("POST", "/v1/completions", search | {"stream": True})[2]):
            [choice] = item["choices"]
            streamed[choice["index"]] += choice["token_ids"]
            last[choice["index"]] = choice
        self.assertEqual(streamed, [choice["token_ids"] for choice in choices])
        self.assertEqual([last[i]["beam_score"] for i in range(3)], scores)
        drawn = self.server.complete(**search, stochastic_beams=True, temperature=1, seed=4)[1]["choices"]
        self.assertEqual(len({tuple(choice["token_ids"]) for choice in drawn}), 3)
        for wrong in ({"repetition_penalty": 1.2}, {"logprobs": 2}, {"n": 7}, {"beam_width": 300}, {"early_stopping": "soon"}):
            status, body = self.server.complete(**(search | wrong))
            self.assertEqual(status, 400, body)

    def test_a_client_that_leaves_frees_its_samples(self):
        for fields in (LONG, LONG | {"stream": False}, LONG | {"n": 3}):
            with self.server.connect() as connection:
                connection.sendall(raw_request(fields))
                self.server.wait_for("coppice_samples_running", fields.get("n", 1))
            self.server.wait_for("coppice_samples_running", 0)
            self.server.wait_for("coppice_http_requests_active", 0)

    def test_a_deadline_ends_a_request_with_408(self):
        status, body = self.server.complete(max_tokens=1500, n=64, timeout=0.05)
        self.assertEqual(status, 408)
        self.assertIn("0.05", body["error"]["message"])

    def test_head_and_http_1_0(self):
        status, headers, text = self.server.ask("HEAD", "/health")
        self.assertEqual((status, text), (200, ""))
        self.assertEqual(headers["Content-Length"], str(len(self.server.ask("GET", "/health")[2])))
        with self.server.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            received = read_all(connection)  # closed after the answer
        self.assertTrue(received.startswith(b"HTTP/1.0 200 OK\r\n"), received)
        with self.server.connect() as connection:
            connection.sendall(raw_request(LONG | {"max_tokens": 3}).replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertEqual(sum(len(item["choices"][0]["token_ids"]) for item in events(body.decode())), 3)

    def test_text_needs_a_tokenizer(self):
        status, body = self.server.complete(prompt="text")
        self.assertEqual(status, 400)
        self.assertIn("tokenizer", body["error"]["message"])
        self.assertEqual(self.server.ask("POST", "/tokenize", {"prompt": "text"})[0], 400)

    def test_logs_have_no_text_and_say_why(self):
        self.server.complete(stop=["very private"])
        self.server.complete(temperature=-1, stop=["very private"])
        self.server.ask("GET", "/no/such/path")
        self.server.ask("GET", "/metrics")
        log = self.server.logged()
        self.assertRegex(log, r"POST /v1/completions 200 \d+\.\d\d s, 3\+\d+ tokens, \d+ cached\n")
        self.assertRegex(log, r"POST /v1/completions 400 \d+\.\d\d s, .*from 127\.0\.0\.1, request \w+: .*temperature.*\n")
        self.assertRegex(log, r"GET /no/such/path 404 .*: there is no /no/such/path")
        self.assertNotIn("private", log)
        self.assertNotIn("/metrics 200", log)  # asked for again and again

    def test_it_says_what_it_serves(self):
        log = self.server.logged()
        self.assertRegex(log, r"model \S+ \(llama, \d+ layers\), context of \d+ tokens\n")
        self.assertRegex(log, r"KV cache of 64 MiB for \d+ tokens; sharing tree: ")
        self.assertIn(f"page at {self.server.url}/, API at {self.server.url}/v1, ", log)

    def test_other_names_of_the_model(self):
        with Server("--model-name", "ours,gpt-4o") as server:
            self.assertEqual([one["id"] for one in json.loads(server.ask("GET", "/v1/models")[2])["data"]], ["ours", "gpt-4o"])
            self.assertEqual(json.loads(server.ask("GET", "/v1/models/gpt-4o")[2])["id"], "gpt-4o")
            self.assertEqual(server.ask("GET", "/v1/models/other")[0], 404)
            self.assertEqual(server.complete()[1]["model"], "ours")


class PrefixTest(unittest.TestCase):
    PROMPT = list(range(1, 101))

    def put(self, server, name, body, **headers):
        status, _, text = server.ask("PUT", f"/v1/prefixes/{name}", body, headers)
        return status, json.loads(text)

    def cached(self, server, **fields):
        status, body = server.complete(max_tokens=2, temperature=0, **fields)
        self.assertEqual(status, 200, body)
        return body["usage"]["prompt_tokens_details"]["cached_tokens"], body["choices"][0]["token_ids"]

    def test_requests_with_a_prefix(self):
        with Server() as server:
            status, made = self.put(server, "a", {"prompt": self.PROMPT})
            self.assertEqual((status, made["num_tokens"], made["saved"]), (200, 100, False), made)
            cached, tokens = self.cached(server, prompt=[7, 8], prefix="a")
            self.assertEqual(cached, 100)
            self.assertEqual(tokens, self.cached(server, prompt=self.PROMPT + [7, 8])[1])
            # A salt of the request's own begins behind the prefix.
            self.assertEqual(self.cached(server, prompt=[9, 10, 11], prefix="a", cache_salt="s")[0], 100)
            self.assertEqual(self.cached(server, prompt=[9, 10, 11], prefix="a", cache_salt="t")[0], 100)
            self.assertGreater(self.cached(server, prompt=[9, 10, 11], prefix="a", cache_salt="s")[0], 100)
            self.assertEqual([item["name"] for item in json.loads(server.ask("GET", "/v1/prefixes")[2])["data"]], ["a"])
            self.assertEqual(server.ask("DELETE", "/v1/prefixes/a")[0], 200)
            for method in ("GET", "DELETE"):
                self.assertEqual(server.ask(method, "/v1/prefixes/a")[0], 404)
            status, body = server.complete(prefix="a")
            self.assertEqual((status, body["error"]["param"]), (400, "prefix"))

    def test_kill_9_leaves_prefixes(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--prefixes", folder) as server:
                self.assertTrue(self.put(server, "a", {"prompt": self.PROMPT, "cache_salt": "s"})[1]["saved"])
                before = self.cached(server, prompt=[7, 8], prefix="a")
                server.process.kill()
                server.process.wait()
                server.process.returncode = 0  # as it should be
            with Server("--prefixes", folder) as server:
                self.assertTrue(json.loads(server.ask("GET", "/v1/prefixes/a")[2])["private"])
                self.assertEqual(self.cached(server, prompt=[7, 8], prefix="a"), (100, before[1]))
            with Server("--prefixes", folder, "--max-prefixes", 0) as server:  # no room: it stays where it is
                self.assertEqual(server.ask("GET", "/v1/prefixes/a")[0], 404)
            with Server("--prefixes", folder) as server:
                self.assertEqual(server.ask("GET", "/v1/prefixes/a")[0], 200)

    def test_a_prefix_belongs_to_its_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            for name in ("alice", "bob"):
                keys.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n")
            keys.flush()
            with Server("--api-keys", keys.name) as server:
                alice, bob = {"Authorization": "Bearer alice"}, {"Authorization": "Bearer bob"}
                self.assertEqual(server.ask("PUT", "/v1/prefixes/a", {"prompt": [1, 2, 3]})[0], 401)
                self.assertEqual(self.put(server, "a", {"prompt": [1, 2, 3]}, **alice)[0], 200)
                self.assertEqual(server.ask("GET", "/v1/prefixes/a", headers=bob)[0], 404)
                self.assertEqual(server.ask("DELETE", "/v1/prefixes/a", headers=bob)[0], 404)
                self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [1], "prefix": "a"}, bob)[0], 400)
                self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [1], "prefix": "a"}, alice)[0], 200)


class LimitsTest(unittest.TestCase):
    def test_a_full_queue_is_429(self):
        with Server("--max-running", 1, "--max-waiting", 1) as server, server.connect() as running, server.connect() as waiting:
            running.sendall(raw_request(LONG | {"n": 64}))  # one after the other: it must last until the third one has come
            server.wait_for("coppice_samples_running", 1)
            waiting.sendall(raw_request(LONG))
            server.wait_for("coppice_requests_waiting", 1)
            status, headers, text = server.ask("POST", "/v1/completions", {"prompt": [1]})
            self.assertEqual(status, 429)
            self.assertEqual(headers["Retry-After"], "1")
            self.assertEqual(json.loads(text)["error"]["type"], "rate_limit_error")
            running.close()
            waiting.close()
            server.wait_for("coppice_http_requests_active", 0)
            self.assertEqual(server.complete(max_tokens=2)[0], 200)

    def test_api_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(f"alice {hashlib.sha256(b'sesame').hexdigest()}\n")
            keys.flush()
            with Server("--api-keys", keys.name) as server:
                body = {"prompt": [1, 2], "max_tokens": 2, "ignore_eos": True}
                self.assertEqual(server.ask("POST", "/v1/completions", body)[0], 401)
                self.assertEqual(server.ask("POST", "/v1/completions", body, {"Authorization": "Bearer wrong"})[0], 401)
                key = {"Authorization": "Bearer sesame"}
                self.assertEqual(server.ask("POST", "/v1/completions", body, key)[0], 200)
                self.assertEqual(server.ask("GET", "/metrics")[0], 401)
                self.assertIn('coppice_key_generated_tokens_total{key="alice"} 2', server.ask("GET", "/metrics", headers=key)[2])
                self.assertNotIn("sesame", server.logged())

    def test_what_cannot_be_served_is_said(self):
        for args, expected in (
            (["--host", "0.0.0.0"], "--api-keys"),
            (["--host", "example.org", "--allow-public"], "address"),
            (["--api-keys", "/no/such/file"], "/no/such/file"),
        ):
            done = subprocess.run([COPPICE, "serve", "--model", TINY, *args], capture_output=True, text=True, timeout=60, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(expected, done.stderr)

    def test_a_configuration_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('# ours\nmodel-name = "ours"\nmax-running = 2\nlog-json = true\nport = 1\n')
            file.flush()
            with Server("--config", file.name) as server:  # which gives --port
                self.assertEqual(json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["id"], "ours")
                self.assertEqual(json.loads(server.logged().splitlines()[0])["level"], "info")
            file.write("max-runing = 2\n")
            file.flush()
            done = subprocess.run([COPPICE, "serve", "--config", file.name], capture_output=True, text=True, timeout=60, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("max-runing", done.stderr)

    def test_every_option_has_its_environment(self):
        with Server(environment={"COPPICE_MODEL_NAME": "named", "COPPICE_LOG_JSON": "true", "COPPICE_MAX_CONTEXT": "40", "COPPICE_PORT": "1"}) as server:
            self.assertEqual(json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["id"], "named")
            self.assertEqual(json.loads(server.ask("GET", "/tokenizer_info")[2]).get("model_max_length", 40), 40)
            self.assertEqual(server.complete(prompt=[5] * 41)[0], 400)
            self.assertEqual(json.loads(server.logged().splitlines()[0])["level"], "info")

    def test_a_json_log_has_only_objects(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "x.json"), "w", encoding="utf-8") as file:
                file.write('{"no": "record"}')
            with Server("--log-json", "--prefixes", folder) as server:
                server.complete()
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(timeout=120)
                lines = [json.loads(line) for line in server.logged().splitlines()]
        self.assertTrue(any("x.json" in line.get("message", "") for line in lines), lines)
        self.assertTrue(any(line.get("event", {}).get("status") == 200 for line in lines), lines)
        self.assertTrue(all(set(line) in ({"time", "level", "event"}, {"time", "level", "message"}) for line in lines), lines)

    def test_texts_are_logged_when_asked_for(self):
        with Server("--log-text") as server:
            server.complete(stop=["very private"])
            self.assertIn("very private", server.logged())

    def test_a_port_that_is_taken(self):
        with Server() as server:
            done = subprocess.run([COPPICE, "serve", "--model", TINY, "--port", str(server.port)], capture_output=True, text=True, timeout=60, check=False)
            self.assertIn("cannot listen", done.stderr)
            self.assertIn("another --port", done.stderr)


class ShutdownTest(unittest.TestCase):
    def test_sigterm_under_load_loses_no_admitted_request(self):
        """Streams and whole answers that were admitted end complete; what comes later is refused or finds the port closed."""
        answers = [None] * 24
        with Server("--max-running", 8, "--drain-seconds", 600) as server:  # under sanitizers they take long

            def ask(i):
                answers[i] = server.ask("POST", "/v1/completions", LONG | {"max_tokens": 600, "stream": i % 2 == 0})

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
            for thread in threads:
                thread.start()
            server.wait_for("coppice_http_requests_active", len(answers))
            server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join()
            self.assertEqual(server.process.wait(timeout=60), 0, server.logged())
        for i, (status, _, text) in enumerate(answers):
            self.assertEqual(status, 200, text)
            objects = events(text) if i % 2 == 0 else [json.loads(text)]
            self.assertEqual(sum(len(item["choices"][0]["token_ids"]) for item in objects), 600)

    def test_what_does_not_end_is_cut_off(self):
        with Server("--drain-seconds", "0.2") as server, server.connect() as connection, server.connect() as idle:
            idle.sendall(b"GET /heal")  # a request that never ends does not keep the server
            connection.sendall(raw_request(LONG | {"n": 64}))
            server.wait_for("coppice_http_requests_active", 1)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=60), 0, server.logged())
            self.assertLess(time.monotonic() - begin, 20)
            self.assertNotIn(b"[DONE]", read_all(connection))


if __name__ == "__main__":
    unittest.main()
