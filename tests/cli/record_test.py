"""--record and `coppice bench attention --trace`: what is recorded is replayed, by every command; what is no trace is reported."""

import gzip
import json
import os
import signal
import subprocess
import tempfile
import unittest
import urllib.request

from program import COPPICE, TINY, coppice

HEAD = '{"format":"coppice forest trace","version":1,"page_size":16,"layers":[{"layers":2,"qo_heads":4,"kv_heads":2,"head_dim":16,"window":0}]}'
ONE = '{"nodes":[[0,-1,-1]],"branches":[[0,0,5,1]]}'
QUICK = ["--repeats", 1, "--precision", 1, "--seconds", 0, "--threads", 1]
PROMPT = ",".join(str(3 + i % 40) for i in range(70))


class RecordTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.trace = os.path.join(self.folder, "trace.jsonl")

    def lines(self):
        with open(self.trace, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def replay(self, *args, path=None):
        out = os.path.join(self.folder, "report.json")
        done = coppice("bench", "attention", "--trace", path or self.trace, "--out", out, *QUICK, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            return json.load(file), done.stdout

    def test_samples_are_recorded_and_replayed(self):
        done = coppice("run", "--model", TINY, "--prompt-ids", PROMPT, "-n", 4, "--max-tokens", 12, "--ignore-eos", "--record", self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        head, *steps = self.lines()
        self.assertEqual((head["format"], head["version"], head["page_size"]), ("coppice forest trace", 1, 16))
        self.assertEqual(head["layers"], [{"layers": 3, "qo_heads": 6, "kv_heads": 2, "head_dim": 16, "window": 0}])
        self.assertEqual(steps[0]["branches"][0][2:], [70, 70], "the prompt")
        self.assertIn({}, steps, "a step that decodes has nothing to say")
        self.assertLess(os.path.getsize(self.trace), 1000)

        report, text = self.replay("--steps", 0)
        self.assertEqual((report["steps"], report["replayed_steps"]), (len(steps), len(steps)))
        self.assertEqual({row["mode"] for row in report["rows"]}, {"planned", "one-level", "store"})
        self.assertEqual(report["rows"][0]["queries"], 70)
        totals = {total["mode"]: total for total in report["totals"]}
        self.assertEqual(totals["store"]["kv_bytes"], totals["store"]["kv_bytes_unshared"])
        self.assertLessEqual(totals["planned"]["kv_bytes"], totals["store"]["kv_bytes"])
        self.assertTrue(0 < report["largest_error"] <= 1, report["largest_error"])
        self.assertIn("largest error", text)

        packed = self.trace + ".gz"
        with open(self.trace, "rb") as file, gzip.open(packed, "wb") as into:
            into.write(file.read())
        other, _ = self.replay("--steps", 3, "--qo-heads", 8, "--kv-heads", 1, "--head-dim", 128, "--layers", 5, path=packed)
        self.assertEqual(other["replayed_steps"], 3)
        self.assertEqual(other["layers"], [{"layers": 5, "num_qo_heads": 8, "num_kv_heads": 1, "head_dim": 128, "window": 0}])

    def test_an_earlier_trace_is_replaced(self):
        for tokens in (30, 3):
            done = coppice("run", "--model", TINY, "--prompt-ids", PROMPT, "--max-tokens", tokens, "--ignore-eos", "--record", self.trace)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(self.lines()), 1 + tokens)

    def test_a_baseline_is_not_recorded(self):
        done = coppice("run", "--model", TINY, "--prompt-ids", PROMPT, "-n", 2, "--max-tokens", 5, "--ignore-eos", "--baseline", "none", "--record",
                       self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.lines()), 1 + 5)

    def test_trees_and_batches_are_recorded(self):
        verbs = [{"verb": "start", "prompt": [3, 5, 7], "max_tokens": 4, "ignore_eos": True}, {"verb": "step", "count": 2},
                 {"verb": "fork", "sample": "1.0", "n": 2}, {"verb": "wait"}]
        done = coppice("tree", "--model", TINY, "--record", self.trace, stdin="".join(json.dumps(verb) + "\n" for verb in verbs))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(any(len(step.get("branches", ())) >= 2 for step in self.lines()[1:]), "the fork")
        self.replay()

        requests = os.path.join(self.folder, "requests.jsonl")
        with open(requests, "w", encoding="utf-8") as file:
            for i in range(3):
                body = {"model": "m", "prompt": [3, 5, 7, 11 + i], "max_tokens": 4}
                file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
        done = coppice("batch", requests, os.path.join(self.folder, "answers.jsonl"), "--model", TINY, "--record", self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(len(self.lines()), 3)

    def test_a_server_that_is_stopped_has_written_its_steps(self):
        with subprocess.Popen([COPPICE, "serve", "--model", TINY, "--port", "0", "--record", self.trace], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) as server:
            try:
                url = server.stdout.readline().removeprefix("listening on ").strip() + "/v1/completions"
                body = json.dumps({"model": "m", "prompt": [3, 5, 7], "max_tokens": 4, "ignore_eos": True}).encode()
                headers = {"Content-Type": "application/json"}
                with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
                    self.assertEqual(answer.status, 200)
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=60)
        self.assertEqual(len(self.lines()), 1 + 4)

    def test_what_cannot_be_written_is_reported_before_the_model_is_loaded(self):
        letter = os.path.join(self.folder, "letter")
        with open(letter, "w", encoding="utf-8") as file:
            file.write("dear reader\n")
        for path, message in ((letter, "holds something else than a forest trace"), (self.folder, "is a folder"),
                              (os.path.join(self.folder, "none", "trace"), "cannot write to")):
            done = coppice("run", "--model", TINY, "--prompt-ids", "1", "--record", path)
            self.assertEqual(done.returncode, 2, path)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stdout, "")
        with open(letter, encoding="utf-8") as file:
            self.assertEqual(file.read(), "dear reader\n")

    def test_a_full_disk_ends_the_recording_with_one_warning(self):
        script = f"ulimit -f 1; exec {COPPICE} run --model {TINY} --prompt-ids {PROMPT} -n 64 --max-tokens 100 --ignore-eos --temperature 1 --seed 1 --json --quiet --record {self.trace}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)["samples"]), 64)
        self.assertEqual(done.stderr.count("--record ends before step"), 1, done.stderr)
        self.assertGreaterEqual(len(self.lines()), 1)

    def test_what_is_no_trace_is_reported_with_its_line(self):
        wrong = [
            ([], "trace.jsonl:1: not valid JSON"),
            (["{}"], 'trace.jsonl:1: format is null, expected "coppice forest trace"'),
            ([HEAD.replace('"version":1', '"version":7')], "trace.jsonl:1: version is 7"),
            ([HEAD], "a trace without steps"),
            ([HEAD, ONE, '{"nodes":[[0,-1]]}'], "trace.jsonl:3: an entry of nodes is [0,-1], expected a list of 3 integers"),
            ([HEAD, ONE, '{"branches":[[0,4,6,1]]}'], "trace.jsonl:3: branch 0 ends at node 4"),
            ([HEAD, ONE, '{"branches":[[0,0,6,0]]}'], "trace.jsonl:3: no branch has queries"),
            ([HEAD, '{"nodes":[[0,-1,9],[1,0,-1]],"branches":[[0,1,5,1]]}'], "trace.jsonl:2: branch 0 has 5 tokens, expected at least 9"),
        ]
        for lines, message in wrong:
            with open(self.trace, "w", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
            done = coppice("bench", "attention", "--trace", self.trace, "--steps", 0, *QUICK)
            self.assertEqual(done.returncode, 2, message)
            self.assertIn(message, done.stderr)
        with open(self.trace, "wb") as file:
            file.write(gzip.compress((HEAD + "\n" + ONE + "\n").encode())[:-9])
        done = coppice("bench", "attention", "--trace", self.trace, *QUICK)
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot read it as gzip: unexpected end of file", done.stderr)
        self.assertIn("--grid excludes --trace", coppice("bench", "attention", "--trace", self.trace, "--grid").stderr)


if __name__ == "__main__":
    unittest.main()
