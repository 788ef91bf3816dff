"""The scripts of bench/papers run: each figure with a tiny model on the CPU, each case a line of the results, and none measured twice."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from program import COPPICE

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The names of cases.
CASE = ("command", "model", "workload", "sharing", "kinds", "schedule", "chunk", "target_tbt", "max_batch_tokens", "max_running", "samples", "largest", "requests", "prompt_tokens", "max_tokens", "output_tokens", "label", "x", "asked_rate", "tree")


class PapersTest(unittest.TestCase):
    def run_script(self, name, results, *figures):
        env = {**os.environ, "SMOKE": "1", "COPPICE": os.path.abspath(COPPICE), "RESULTS": results}
        return subprocess.run([str(ROOT / "bench/papers" / name), *figures], env=env, capture_output=True, text=True, check=False)

    def rows_of(self, name):
        """The rows of a smoke run of the whole script."""
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.jsonl")
            done = self.run_script(name, results)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(results, encoding="utf-8") as file:
                first, *rows = (json.loads(line) for line in file)
        self.assertEqual(set(first), {"commit", "command", "card", "driver"})
        cases = [tuple(row.get(key) for key in CASE) for row in rows]
        self.assertEqual(len(cases), len(set(cases)), "each case once, whatever figures ask for it")
        self.assertFalse([row for row in rows if "out_of_memory" in row])
        return rows

    def test_hydragen(self):
        self.assertEqual({row["sharing"] for row in self.rows_of("hydragen.sh")}, {"tree", "one-level", "store", "none", "no-attention"})

    def test_bifurcated(self):
        self.assertEqual({row["sharing"] for row in self.rows_of("bifurcated.sh")}, {"tree", "store", "none"})

    def test_relay(self):
        self.assertEqual({row["sharing"] for row in self.rows_of("relay.sh")}, {"tree", "store", "none"})

    def test_pod(self):
        rows = self.rows_of("pod.sh")
        self.assertEqual({row["sharing"] for row in rows}, {"tree", "no-attention"})
        self.assertEqual({row["kinds"] for row in rows}, {"auto", "two-launches", "serial"})
        self.assertEqual({row["schedule"] for row in rows}, {"mixed", "prefill-first"})

    def test_a_page_is_filled(self):
        """report.py writes tables of what was measured between a page's marks, and nothing else."""
        with tempfile.TemporaryDirectory() as folder:
            results, page = os.path.join(folder, "results.jsonl"), pathlib.Path(folder, "page.md")
            for script, figure in (("pod.sh", "figure4"), ("cascade.sh", "figure4")):
                done = self.run_script(script, results, figure)
                self.assertEqual(done.returncode, 0, done.stderr)
            page.write_text("before\n<!-- steps ratio tiny -->\n<!-- end -->\nbetween\n<!-- layer 4 1,4 -->\nold\n<!-- end -->\n", encoding="utf-8")
            done = subprocess.run([str(ROOT / "bench/papers/report.py"), str(page), results], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = page.read_text(encoding="utf-8")
            page.write_text("<!-- steps ratio llama -->\n<!-- end -->\n", encoding="utf-8")
            done = subprocess.run([str(ROOT / "bench/papers/report.py"), str(page), results], capture_output=True, text=True, check=False)
            self.assertIn("the results have none", done.stderr)
        self.assertRegex(text, r"before\n<!-- steps ratio tiny -->\n\n\| \| steps \| number \| `tree` \| without attention \| attention of `tree` \|\n")
        self.assertRegex(text, r"\| 48 tokens a request, 3 \| hybrid \| \d+ \| [\d.]+ \| [\d.]+ \| -?[\d.]+, -?\d+ % \|\n")
        self.assertRegex(text, r"\| prefix \| suffix \| 1 \| 4 \| 4, over `none` \|\n\|---\|---\|---\|---\|---\|\n\| 64 \| 16 \| [\d.]+ \| [\d.]+ \| [\d.]+ \|\n")
        self.assertNotIn("old", text)

    def test_cascade(self):
        rows = self.rows_of("cascade.sh")
        layers = [row for row in rows if row["command"] == "attention"]
        self.assertEqual([row["tree"] for row in layers], ["64,16x1", "64,16x4"])
        for row in layers:
            self.assertEqual(set(row["modes"]), {"planned", "all-shared", "store", "none", "deterministic"})
            self.assertTrue(all(mode["median_us"] > 0 for mode in row["modes"].values()))
        requests = 4  # read together or once each
        self.assertEqual(layers[1]["modes"]["none"]["kv_bytes"], layers[1]["modes"]["store"]["kv_bytes"])
        self.assertAlmostEqual(layers[1]["modes"]["store"]["kv_bytes"] / layers[1]["modes"]["all-shared"]["kv_bytes"], requests * (64 + 16) / (64 + requests * 16))
        self.assertEqual({row["sharing"] for row in rows if row["command"] == "throughput"}, {"tree", "one-level", "store", "none"})

    def test_a_command_that_goes_on(self):
        """Cases that the file has are not measured again."""
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.jsonl")
            for _ in range(2):
                done = self.run_script("cascade.sh", results, "figure4")
                self.assertEqual(done.returncode, 0, done.stderr)
            with open(results, encoding="utf-8") as file:
                self.assertEqual(len(file.readlines()), 3)

    def test_accuracy(self):
        """A report a task, with what was run; in deterministic mode all four sharing modes say the same."""
        fetched = subprocess.run([str(ROOT / "scripts/fetch_model")], stdout=subprocess.PIPE, text=True, check=False)
        if fetched.returncode != 0:
            self.skipTest("the default model could not be fetched")
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "COPPICE": os.path.abspath(COPPICE), "MODEL": fetched.stdout.strip(), "OUT": folder, "EXACT": "1", "LENGTHS": "96", "DEPTHS": "0,1", "REPEATS": "1"}
            script = str(ROOT / "bench/papers/accuracy.sh")
            done = subprocess.run([script, "needle"], env=env, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            (name,) = os.listdir(folder)
            self.assertRegex(name, r"^[\d-]+_cpu_needle_smollm2[a-z0-9_]*_exact\.json$")
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                report = json.load(file)
            self.assertEqual(list(report)[:3], ["measured", "eval", "model"])
            self.assertEqual(set(report["measured"]), {"commit", "command", "driver"})
            self.assertIn("--deterministic", report["measured"]["command"])
            self.assertEqual([mode["items_unlike_first_mode"] for mode in report["modes"].values()], [0] * 4)
            done = subprocess.run([script, "needles"], env=env, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (2, "accuracy.sh: there is no needles; expected some of needle choice vote code\n"))

    def test_questions(self):
        """Files for coppice eval of data sets as their authors give them."""
        with tempfile.TemporaryDirectory() as folder:
            row = '"Which, of these?",one,two,three,four,{}\n'
            for part in ("dev", "test"):
                os.mkdir(os.path.join(folder, part))
                pathlib.Path(folder, part, f"a_b_{part}.csv").write_text(row.format("A") + row.format("C") * 2, encoding="utf-8")
            problems = pathlib.Path(folder, "problems.jsonl")
            problems.write_text('{"question": "1 + 1? ", "answer": "1 + 1 = <<1+1=2>>2\\nTwo.\\n#### 2"}\n', encoding="utf-8")
            made = lambda *args: [json.loads(line) for line in subprocess.run([str(ROOT / "bench/papers/questions.py"), *args], capture_output=True, text=True, check=True).stdout.splitlines()]
            first, second = made("mmlu", folder, "--shots", "1", "--of-each", "2")
            text = "Which, of these?\nA. one\nB. two\nC. three\nD. four\nAnswer:"
            head = "The following are multiple choice questions (with answers) about a b.\n\n"
            self.assertEqual(first, {"question": f"{head}{text} A\n\n{text}", "choices": [" A", " B", " C", " D"], "answer": 0})
            self.assertEqual((second["question"], second["answer"]), (first["question"], 2))
            (problem,) = made("gsm8k", str(problems), "--examples", str(problems), "--shots", "1")
            self.assertEqual(problem, {"prompt": "Q: 1 + 1?\nA: 1 + 1 = 2 Two. The answer is 2.\n\nQ: 1 + 1?\nA:", "answer": "2", "stop": ["\nQ:", "\n\n"]})

    def test_a_figure_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("hydragen.sh", os.path.join(folder, "results.jsonl"), "table99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no table99", done.stderr)


if __name__ == "__main__":
    unittest.main()
