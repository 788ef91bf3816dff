"""Ctrl-C: what is finished is printed with the closing table, and the exit status is 130."""

import json
import signal
import subprocess
import unittest

from program import COPPICE, TINY

# Hot samples of a random model: each step ends one in about 320 with end-of-text, the rest would go on for thousands.
JOB = [COPPICE, "run", "--model", TINY, "--prompt-ids", "5,6,7", "-n", "64", "--max-tokens", "2000", "--temperature", "50", "--seed", "1"]


class InterruptTest(unittest.TestCase):
    def test_text(self):
        with subprocess.Popen(JOB, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            first = process.stdout.readline()
            self.assertTrue(first.startswith("--- sample "), first)
            process.send_signal(signal.SIGINT)
            # Not communicate(): it reads the pipe past the buffer that readline filled, so lines that came with the first are lost.
            rest, errors = process.stdout.read(), process.stderr.read()
        self.assertEqual(process.returncode, 130)
        finished = 1 + sum(line.startswith("--- sample ") for line in rest.splitlines())
        self.assertLess(finished, 64)
        self.assertIn(f"in {finished} of 64 samples;", errors)
        self.assertIn("KV read per decode step", errors)

    def test_json(self):
        """JSON comes at the end, so the start shows on stderr, as a log line of --verbose."""
        with subprocess.Popen([*JOB, "--json", "--verbose", "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.assertIn("generating", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertTrue(json.loads(output)["stats"]["interrupted"])
        self.assertEqual(json.loads(output)["samples"], [])


if __name__ == "__main__":
    unittest.main()
