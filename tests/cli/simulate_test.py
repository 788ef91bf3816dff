"""`coppice simulate`: traces of its own and of others, batches, policies, what it refuses, and that its report adds up."""

import json
import os
import tempfile
import unittest

from program import ROOT, TINY, coppice, default_model_or_skip

CONFIG = os.path.join(TINY, "config.json")
LLAMA = os.path.join(ROOT, "bench", "models", "llama3-8b", "config.json")


def lines(*objects):
    return "".join(json.dumps(line) + "\n" for line in objects)


class SimulateTest(unittest.TestCase):
    def simulate(self, *args, stdin="", code=0, model=("--config", CONFIG)):
        done = coppice("simulate", *args, *model, stdin=stdin)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_a_trace_of_segments(self):
        trace = lines(*({"timestamp": 1000 * i, "segments": [["system", 300], [i, 50]], "output_length": 20} for i in range(8)))
        report = json.loads(self.simulate("-", "--policy", "round-robin,prefix-aware", "--replicas", "1,2", "--json", stdin=trace).stdout)
        self.assertEqual(report["requests"], 8)
        self.assertAlmostEqual(report["endless_hit_rate"], 7 * 300 / (8 * 350), places=6)
        self.assertEqual(len(report["rows"]), 4)
        for row in report["rows"]:
            self.assertEqual(row["prompt_tokens"], 8 * 350)
            self.assertEqual(row["output_tokens"], 8 * 20)
            self.assertEqual(row["cached_tokens"], (8 - row["replicas"]) * 300 if row["policy"] == "round-robin" else row["cached_tokens"])
            self.assertAlmostEqual(row["hit_rate"], row["cached_tokens"] / row["prompt_tokens"], places=9)
            self.assertGreaterEqual(row["imbalance"], 1)
            self.assertGreater(row["first_token_seconds"]["mean"], 0)
            self.assertGreater(row["kv_bytes_read_unshared"], 0)

    def test_a_trace_of_blocks(self):
        trace = lines({"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]},
                      {"timestamp": 9000, "input_length": 1024, "output_length": 4, "hash_ids": [1, 3]})
        report = json.loads(self.simulate("-", "--replicas", 1, "--policy", "least-load", "--json", stdin=trace).stdout)
        self.assertEqual(report["rows"][0]["cached_tokens"], 512)

    def test_what_became_of_each_request(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, out = os.path.join(folder, "trace.jsonl"), os.path.join(folder, "out.jsonl")
            self.simulate("--chats", 200, "--rate", 20, "--write-trace", trace, "--policy", "round-robin", "--replicas", 3, "--out", out)
            with open(out, encoding="utf-8") as file:
                outcomes = [json.loads(line) for line in file]
            self.assertEqual([outcome["replica"] for outcome in outcomes], [i % 3 for i in range(200)])
            self.assertTrue(all(0 < outcome["first_token_seconds"] <= outcome["seconds"] for outcome in outcomes))
            # The trace that was written is the one that was simulated.
            again = self.simulate(trace, "--policy", "round-robin", "--replicas", 3, "--json").stdout
            first = self.simulate("--chats", 200, "--rate", 20, "--policy", "round-robin", "--replicas", 3, "--json").stdout
            for row, other in zip(json.loads(again)["rows"], json.loads(first)["rows"], strict=True):
                self.assertEqual(row["cached_tokens"], other["cached_tokens"])
                self.assertAlmostEqual(row["request_seconds"]["mean"], other["request_seconds"]["mean"], places=3)

    def test_files_that_are_not_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, other, link, pipe = (os.path.join(folder, name) for name in ("trace.jsonl", "other", "link", "pipe"))
            run = ("--policy", "least-load", "--replicas", 1)
            self.simulate("--chats", 5, "--write-trace", trace, *run)
            with open(other, "w", encoding="utf-8") as file:
                file.write("something else\n")
            os.symlink(trace, link)
            os.mkfifo(pipe)
            self.simulate("--chats", 6, "--write-trace", link, *run)
            self.assertTrue(os.path.islink(link))
            with open(trace, encoding="utf-8") as file:
                written = file.read()
            self.assertEqual(written.count("\n"), 6)
            for option in ("--out", "--write-trace"):
                self.assertIn(f"the trace and {option} are the same file", self.simulate(trace, option, link, *run, code=2).stderr)
                self.assertIn("other holds something else than lines of requests", self.simulate(trace, option, other, *run, code=2).stderr)
                self.assertIn("pipe is a pipe, expected a regular file", self.simulate(trace, option, pipe, *run, code=2).stderr)
            self.assertIn("--write-trace and --out are the same file", self.simulate(trace, "--write-trace", "a", "--out", "a", *run, code=2).stderr)
            with open(trace, encoding="utf-8") as file:
                self.assertEqual(file.read(), written)

    def test_requests_that_fit_no_cache(self):
        trace = lines(*({"timestamp": 0, "segments": [[i, 50 + 1000 * i]], "output_length": 5} for i in range(3)))
        done = self.simulate("-", "--kv-cache", 500 * 384, "--replicas", 1, "--policy", "least-load", stdin=trace)
        self.assertIn("2 of 3 requests do not fit the KV cache of a replica and are left out; raise --kv-cache", done.stderr)

    def test_percentiles_of_few_requests(self):
        """As `coppice bench serve` has them: between two requests they lie on a line."""
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.jsonl")
            trace = lines(*({"timestamp": 100000 * i, "segments": [[i, 50]], "output_length": 40 * (i + 1)} for i in range(2)))
            done = self.simulate("-", "--policy", "round-robin", "--replicas", 1, "--out", out, "--json", stdin=trace)
            with open(out, encoding="utf-8") as file:
                short, long = (json.loads(line)["seconds"] for line in file)
        times = json.loads(done.stdout)["rows"][0]["request_seconds"]
        self.assertLess(short, long)
        self.assertAlmostEqual(times["p50"], times["mean"], places=5)
        self.assertAlmostEqual(times["p99"], short + 0.99 * (long - short), places=5)

    def test_a_gpu_that_is_not_here(self):
        with open(CONFIG, encoding="utf-8") as file:
            config = json.load(file) | {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
            text = self.simulate("--chats", 500, "--rate", 50, "--machine", "h100", model=("--config", path)).stdout
            self.assertIn("500 requests on h100, steps by the roofline of their weights", text)
            self.assertEqual(sum(policy in text for policy in ("round-robin", "least-load", "prefix-hash", "prefix-aware")), 4)

    def test_a_batch(self):
        model = default_model_or_skip()
        requests = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                     "body": {"model": "m", "prompt": "All questions begin with these words. " * 20 + str(i), "max_tokens": 8, "n": 2}} for i in range(6)]
        report = json.loads(self.simulate("-", "--replicas", 1, "--policy", "prefix-aware", "--json", stdin=lines(*requests), model=("--model", model)).stdout)
        row = report["rows"][0]
        self.assertEqual((report["requests"], row["output_tokens"]), (6, 6 * 2 * 8))
        self.assertGreater(row["hit_rate"], 0.75)
        self.assertLess(row["kv_bytes_read"], row["kv_bytes_read_unshared"])
        empty = lines({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": ""}})
        refused = self.simulate("-", stdin=empty, code=2, model=("--model", model)).stderr
        self.assertIn("standard input:1: the prompt has no token, expected at least one", refused)

    def test_steps_that_were_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            steps, trace = os.path.join(folder, "steps.json"), lines({"timestamp": 0, "segments": [[1, 5]], "output_length": 3})
            with open(steps, "w", encoding="utf-8") as file:
                json.dump({"prompt": [[1, 2.0], [2, 2.0]], "decode": [[1, 2.5], [2, 2.5]]}, file)
            row = json.loads(self.simulate("-", "--steps", steps, "--json", "--policy", "least-load", stdin=trace).stdout)["rows"][0]
            self.assertAlmostEqual(row["request_seconds"]["mean"], 3 * 2.5, delta=0.01)
            steps = os.path.join(folder, "measured.json")
            made = coppice("bench", "steps", "--model", TINY, "--threads", 1, "--max-running", 4, "--max-batch-tokens", 16, "--repeats", 1, "--out", steps)
            self.assertEqual(made.returncode, 0, made.stderr)
            with open(steps, encoding="utf-8") as file:
                measured = json.load(file)
            self.assertEqual([rows for rows, _ in measured["prompt"]], [1, 2, 4, 8, 16])
            self.assertEqual([rows for rows, _ in measured["decode"]], [1, 2, 4])
            self.simulate("-", "--steps", steps, "--policy", "least-load", stdin=trace)

    def test_explain(self):
        def body(i):
            return {"prompt": [9] * 400 + [10 + i % 4] * 100 + [20 + i] * 10, "max_tokens": 50, "n": 4}

        job = lines(*({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body(i)} for i in range(16)))
        text = coppice("explain", "-", "--config", CONFIG, stdin=job)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertTrue(text.stdout.startswith("400 tokens: 16 requests, 64 samples\n  100 tokens: 4 requests, 16 samples, 10 tokens of their own\n"), text.stdout)
        self.assertIn("16 requests, 64 samples, 8160 prompt tokens, 3200 output tokens at most\n", text.stdout)
        self.assertIn("prompt tokens to compute: 960, 11.8% of all\n", text.stdout)
        report = json.loads(coppice("explain", "-", "--config", CONFIG, "--json", "--kv-cache", 700 * 384, stdin=job).stdout)
        self.assertEqual(report["kv_bytes_per_token"], 384)
        self.assertEqual((report["stored_tokens"], report["stored_tokens_apart"]), (960 + 3200, 16 * 4 * (510 + 50)))
        self.assertEqual((report["largest_batch"], report["largest_batch_apart"]), (0, 0))  # four samples of a prompt take 710
        report = json.loads(coppice("explain", "-", "--config", CONFIG, "--json", "--kv-cache", 930 * 384, stdin=job).stdout)
        self.assertEqual((report["largest_batch"], report["largest_batch_apart"]), (8, 0))
        self.assertEqual([row["samples"] for row in report["break_even"]], [1, 2, 4, 8, 16, 32, 64, 128, 256])
        self.assertEqual([node["depth"] for node in report["tree"]], [0, 1, 1, 1, 1])
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.html")
            self.assertEqual(coppice("explain", "-", "--config", CONFIG, "--html", page, stdin=job).returncode, 0)
            with open(page, encoding="utf-8") as file:
                html = file.read()
        self.assertIn(">400</td><td>16</td><td>64</td>", html)
        self.assertIn("whole step", html)
        one, two = (json.loads(coppice("explain", "-", "--config", LLAMA, "--machine", "h200", "--kv-cache", "60GiB", "--json", *ranks, stdin=job).stdout)
                    for ranks in ((), ("--device", "cuda:0,cuda:1")))
        self.assertEqual((one["ranks"], two["ranks"], two["kv_bytes_per_token"]), (1, 2, one["kv_bytes_per_token"] / 2))
        self.assertTrue(0.5 < two["step_seconds"] / one["step_seconds"] < 0.8, (one["step_seconds"], two["step_seconds"]))
        self.assertIn("2 ranks on ", coppice("explain", "-", "--config", CONFIG, "--machine", "zen5", "--tp", 2, stdin=job).stderr)
        refused = coppice("explain", "-", "--config", CONFIG, "--kv-cache", 10, stdin=job)
        self.assertIn("--kv-cache is 10 B, expected room for a token", refused.stderr)

    def test_refusals(self):
        good = {"timestamp": 0, "segments": [[1, 2]], "output_length": 1}
        for args, stdin, message in (
            ((), "", "there is no trace; give a file, or --chats N for a mix of chats, and not both"),
            (("-", "--chats", 5), "", "not both"),
            (("-",), "", "- has no requests"),
            (("-",), lines(good, {**good, "timestamp": "now"}), 'standard input:2: timestamp is "now", expected milliseconds, at least 0'),
            (("-",), lines(good) + "{\n", "standard input:2: "),
            (("/nowhere.jsonl",), "", "/nowhere.jsonl"),
            (("-", "--machine", "z80"), lines(good), "z80"),
            (("-", "--steps", "/nowhere.json"), lines(good), "/nowhere.json"),
            (("-", "--max-running", 64, "--max-batch-tokens", 32), lines(good), "--max-running is 64 and --max-batch-tokens 32"),
            (("-", "--out", "-"), lines(good), "--out has the requests of one simulation"),
            (("-", "--bound", "nan"), lines(good), "--bound: nan is not a number; see coppice simulate --help"),
            (("-", "--request-seconds", -1), lines(good), "--request-seconds: -1 is not a number of at least 0; see coppice simulate --help"),
            (("-", "--request-seconds", "inf"), lines(good), "--request-seconds: inf is not a number of at least 0"),
            (("--chats", 5, "--rate", 0), "", "--rate: 0 is not a number above 0; see coppice simulate --help"),
            (("--chats", 5, "--turns", "nan"), "", "--turns: nan is not a number"),
            (("-", "--machine", "h100", "--device", "cpu,cpu"), lines(good), "--device is cpu,cpu, expected GPUs such as cuda:0,cuda:1"),
            (("-", "--policy", "random"), lines(good), "'random' is no policy; expected round-robin, least-load, prefix-hash or prefix-aware"),
            (("-",), lines({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"temperature": 0}}), "standard input:1: prompt is missing"),
        ):
            with self.subTest(message):
                done = coppice("simulate", *args, "--config", CONFIG, stdin=stdin)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
