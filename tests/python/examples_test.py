"""The programs of examples/python run, and print what they are for."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))

from program import ROOT, default_model_or_skip  # noqa: E402


def run(name, *args, packages=""):
    """stdout of an example; `packages`: a folder of what it imports beside coppice_llm."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path[1:], packages])}
    return subprocess.run([sys.executable, os.path.join(ROOT, "examples", "python", name), *args], stdout=subprocess.PIPE, text=True, check=True, timeout=600,
                          env=environment).stdout


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = default_model_or_skip()

    def test_best_of_n(self):
        lines = run("best_of_n.py", self.model, "The capital of France is", "4").splitlines()
        means = [float(line.split()[0]) for line in lines]
        self.assertGreaterEqual(len(means), 1)
        self.assertEqual(means, sorted(means, reverse=True))

    def test_self_consistency(self):
        self.assertRegex(run("self_consistency.py", self.model, "8"), r"of 8: -?\d+\n")

    def test_hydragen(self):
        self.assertIn("largest difference", run("hydragen.py"))


if __name__ == "__main__":
    unittest.main()
