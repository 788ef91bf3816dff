"""The scripts of bench/papers run: each figure with a tiny model on the CPU, each case a line of the results, and none measured twice."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from program import COPPICE

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PapersTest(unittest.TestCase):
    def run_script(self, name, results, *figures):
        env = {**os.environ, "SMOKE": "1", "COPPICE": os.path.abspath(COPPICE), "RESULTS": results}
        return subprocess.run([str(ROOT / "bench/papers" / name), *figures], env=env, capture_output=True, text=True, check=False)

    def test_each_script(self):
        for name, modes in (("hydragen.sh", {"tree", "one-level", "store", "none", "no-attention"}), ("bifurcated.sh", {"tree", "store", "none"}), ("relay.sh", {"tree", "store", "none"}), ("pod.sh", {"tree", "no-attention"})):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                results = os.path.join(folder, "results.jsonl")
                done = self.run_script(name, results)
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(results, encoding="utf-8") as file:
                    first, *rows = (json.loads(line) for line in file)
                self.assertEqual(set(first), {"commit", "command", "card", "driver"})
                self.assertEqual({row["sharing"] for row in rows}, modes)
                cases = [tuple(row.get(key) for key in ("model", "sharing", "samples", "prompt_tokens", "max_tokens", "label", "x", "kinds", "schedule", "asked_rate", "command", "workload", "output_tokens")) for row in rows]
                self.assertEqual(len(cases), len(set(cases)), "each case once, whatever figures ask for it")
                if name == "pod.sh":
                    self.assertEqual({row["kinds"] for row in rows}, {"auto", "two-launches", "serial"})
                    self.assertEqual({row["schedule"] for row in rows}, {"mixed", "prefill-first"})

    def test_a_figure_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("hydragen.sh", os.path.join(folder, "results.jsonl"), "table99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no table99", done.stderr)


if __name__ == "__main__":
    unittest.main()
