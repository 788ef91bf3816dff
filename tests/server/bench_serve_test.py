"""`coppice bench serve --url`: figures of our own server that must hold, and what is said of servers that fail."""

import http.server
import json
import os
import tempfile
import threading
import unittest

from server_process import ROOT, Server, coppice, default_model_or_skip

WORKLOAD = ("--groups", 2, "--requests", 4, "--shared-tokens", 64, "--unique-tokens", 8, "--output-tokens", 6)


class OwnServerTest(unittest.TestCase):
    def bench(self, command, *args, expected=0):
        with tempfile.TemporaryDirectory() as folder:
            out, page = os.path.join(folder, "out.json"), os.path.join(folder, "out.html")
            done = coppice("bench", command, *args, "--out", out, "--html", page)
            self.assertEqual(done.returncode, expected, done)
            if expected:
                return done
            with open(page, encoding="utf-8") as file:
                self.assertNotIn("nan", file.read().replace("finance", ""))
            with open(out, encoding="utf-8") as file:
                report = json.load(file)
            self.assertEqual(len(done.stdout.splitlines()), 1 + len(report["rows"]), done.stdout)
            return report

    def check_row(self, result, requests, prompt_tokens, output_tokens):
        self.assertEqual((result["requests"], result["refused"], result["short_requests"]), (requests, 0, 0))
        self.assertEqual((result["prompt_tokens"], result["output_tokens"]), (prompt_tokens, output_tokens))
        self.assertEqual(len(result["ttft"]["percentiles"]), 101)
        self.assertGreater(result["latency"]["p50"], result["ttft"]["p50"])
        self.assertGreater(result["normalized_latency"]["mean"], 0)
        self.assertGreater(result["client_cpu_seconds_per_token"], 0)
        self.assertGreaterEqual(result["server_cpu_seconds_per_token"], 0)
        self.assertNotIn("kv_bytes_read", result)

    def test_figures(self):
        """Two groups of four requests: the second to the fourth of a group find its 64 tokens where they come later."""
        with Server() as server:
            report = self.bench("serve", "--url", server.url + "/v1", "--rate", "20,100", "--vocab-size", 256, *WORKLOAD, "--repeats", 2)
            self.assertEqual([row["rate"] for row in report["rows"]], [20, 100])
            for row in report["rows"]:
                self.assertEqual(row["server"], server.url + "/v1")
                self.check_row(row["result"], 8, 8 * 72, 8 * 6)
                self.assertGreater(row["result"]["hit_rate"], 0.4)
                self.assertLess(row["result"]["hit_rate"], 0.9)  # of no run before, which had the same prompts
            self.assertEqual(server.metric("coppice_generated_tokens_total"), 2 * 2 * 8 * 6)

    def test_concurrency_and_samples(self):
        with Server() as server:
            report = self.bench("throughput", "--url", server.url, "--concurrency", 2, "--vocab-size", 256, "--workload", "sampling",
                                "--requests", 5, "--unique-tokens", 10, "--output-tokens", 4, "--samples", 3)
            self.check_row(report["rows"][0]["result"], 5, 50, 5 * 3 * 4)
            self.assertEqual(report["concurrency"], 2)

    def test_two_servers(self):
        with Server() as first, Server("--max-running", 1) as second:
            report = self.bench("throughput", "--url", f"{first.url},{second.url}", "--vocab-size", 256, *WORKLOAD)
            self.assertEqual([row["server"] for row in report["rows"]], [first.url, second.url])
            for row in report["rows"]:
                self.check_row(row["result"], 8, 8 * 72, 8 * 6)

    def test_capacity(self):
        limits = ("--vocab-size", 256, *WORKLOAD, "--precision", 1)
        with Server() as server:
            capacity = self.bench("serve", "--url", server.url, *limits, "--rate", 4, "--max-ttft-p99", 60, "--max-tbt-p99", 60)["rows"][0]["capacity"]
            self.assertGreaterEqual(capacity["rate"], 4)
            self.assertIsNone(capacity["beyond"])  # eight requests do not bring it to a minute
            self.assertTrue(all(probe["within"] for probe in capacity["probes"]))
            capacity = self.bench("serve", "--url", server.url, *limits, "--rate", 4000, "--max-ttft-p99", 1e-9)["rows"][0]["capacity"]
            self.assertEqual((capacity["rate"], len(capacity["probes"])), (0, 11))

    def test_random_weights(self):
        """A server of a shape alone, for the prompts of benchmarks."""
        with Server("--weights", "random", model=os.path.join(ROOT, "bench", "models", "tiny", "config.json")) as server:
            self.check_row(self.bench("throughput", "--url", server.url, "--vocab-size", 256, *WORKLOAD)["rows"][0]["result"], 8, 8 * 72, 8 * 6)
            status, _, models = server.ask("GET", "/v1/models")
            self.assertEqual((status, json.loads(models)["data"][0]["id"]), (200, "tiny"))

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("me 2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 role=admin\n")  # alice
            keys.flush()
            with Server("--api-keys", keys.name) as server:
                workload = ("--url", server.url, "--vocab-size", 256, *WORKLOAD)
                self.assertIn("answered 401", self.bench("throughput", *workload, expected=2).stderr)
                self.check_row(self.bench("throughput", *workload, "--api-key", "alice")["rows"][0]["result"], 8, 8 * 72, 8 * 6)

    def test_refused_requests_are_counted(self):
        with Server("--max-waiting", 1, "--max-running", 1) as server:
            result = self.bench("throughput", "--url", server.url, "--vocab-size", 256, *WORKLOAD)["rows"][0]["result"]
            self.assertGreater(result["refused"], 0)
            self.assertEqual(result["requests"] + result["refused"], 8)

    def test_an_engine_takes_turns_too(self):
        """The same command without a server."""
        report = self.bench("throughput", "--model", Server().args[3], "--concurrency", 2, "--modes", "tree", *WORKLOAD)
        self.assertEqual(report["rows"][0]["result"]["output_tokens"], 8 * 6)
        report = self.bench("serve", "--model", Server().args[3], "--rate", 8, "--precision", 1, "--max-tbt-p99", 60, "--modes", "tree", *WORKLOAD)
        self.assertGreaterEqual(report["rows"][0]["capacity"]["rate"], 8)

    def test_text_of_a_null_server(self):
        """Tokens of --null are pieces of text: each has a frame of its own."""
        with Server("--null", model=default_model_or_skip()) as server:
            report = self.bench("throughput", "--url", server.url, *WORKLOAD)
            self.check_row(report["rows"][0]["result"], 8, 8 * 72, 8 * 6)
            _, _, text = server.ask("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 40, "return_token_ids": True})
            choice = json.loads(text)["choices"][0]
            self.assertEqual((len(choice["token_ids"]), choice["finish_reason"]), (40, "length"))
            self.assertNotIn("\ufffd", choice["text"])
            for token in choice["token_ids"]:
                _, _, piece = server.ask("POST", "/detokenize", {"tokens": [5000, token]})
                self.assertNotIn("<|", json.loads(piece)["prompt"])


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers as server.answer says: (status, type, body)."""

    def do_GET(self):
        self.reply(200, "application/json", b'{"object":"list","data":[{"id":"m"}]}' if self.path == "/v1/models" else b"")

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.reply(*self.server.answer)

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.command == "GET":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def frame(**fields):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": None} | fields]}).encode() + b"\n\n"


class OtherServersTest(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        self.server.bodies = []
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (self.server.shutdown(), thread.join(), self.server.server_close()))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def bench(self, status, kind, body, *args):
        self.server.answer = (status, kind, body)
        return coppice("bench", "throughput", "--url", self.url, "--workload", "sampling", "--requests", 1, "--samples", 1, "--unique-tokens", 3,
                       "--output-tokens", 2, *args)

    def test_a_plain_server(self):
        """No usage, no cached tokens, no metrics: what is there is measured."""
        done = self.bench(200, "text/event-stream", frame() + frame(finish_reason="length") + b"data: [DONE]\n\n")
        self.assertEqual(done.returncode, 0, done)
        body = self.server.bodies[0]
        self.assertEqual((body["model"], body["max_tokens"], body["stream"], len(body["prompt"])), ("m", 2, True, 3))
        self.assertIn(self.url, done.stdout)

    def test_failures(self):
        stream = "text/event-stream; charset=utf-8"
        for status, kind, body, part in (
                (400, "application/json", b'{"error":{"message":"prompt is too long"}}', "the server answered 400: prompt is too long"),
                (500, "text/plain", b"oops\n", "the server answered 500: oops"),
                (200, "application/json", b'{"choices":[]}', "without a stream of events"),
                (200, stream, b"data: {\n\n", "expected an object of a completion"),
                (200, stream, frame(index=3), "a choice 3 of 1"),
                (200, stream, frame(), "the stream ended before 1 of 1 samples had"),
                (200, stream, b'data: {"error":{"message":"the step failed"}}\n\n', "the server ended the stream: the step failed")):
            done = self.bench(status, kind, body)
            self.assertNotEqual(done.returncode, 0, done)
            self.assertIn("request 1 of 1: ", done.stderr)
            self.assertIn(part, done.stderr)

    def test_no_server_listens(self):
        done = coppice("bench", "serve", "--rate", 1, "--url", "http://127.0.0.1:1")
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("no connection to http://127.0.0.1:1: Connection refused", done.stderr)

    def test_options_of_the_other_kind(self):
        for args, part in ((["--url", self.url, "--kv-cache", "1MiB"], "--kv-cache is about an engine"),
                           (["--url", self.url, "--modes", "tree"], "--modes is about an engine"),
                           (["--vocab-size", 300], "--vocab-size is about a server"),
                           (["--url", "https://example.org"], "HTTPS")):
            done = coppice("bench", "throughput", *args)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
