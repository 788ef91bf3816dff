"""The programs of examples/python run, and print what they are for."""

import os
import re
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

    def test_quick_start(self):
        text = run("quick_start.py", self.model)
        self.assertRegex(text, r"(?m)^scores: -\d+\.\d and -\d+\.\d$")
        self.assertRegex(text, "8 samples read them (together|apart): predicted")
        self.assertEqual(text.count("a sample that goes on"), 1)

    def test_best_of_n(self):
        lines = run("best_of_n.py", self.model, "The capital of France is", "4").splitlines()
        means = [float(line.split()[0]) for line in lines]
        self.assertGreaterEqual(len(means), 1)
        self.assertEqual(means, sorted(means, reverse=True))

    def test_self_consistency(self):
        self.assertRegex(run("self_consistency.py", self.model, "8"), r"of 8: -?\d+\n")

    def check_24(self, text, numbers):
        """The first lines are a solution: each line takes two of the numbers that are left, and 24 is reached."""
        left = list(numbers)
        lines = text.splitlines()
        for line in lines[:3]:
            a, sign, b, result = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+)", line).groups()
            for number in (a, b):
                left.remove(int(number))
            self.assertEqual({"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / max(1, int(b))}[sign], int(result), line)
            left.append(int(result))
        self.assertEqual((left, lines[3]), ([24], "Reach: 24"))

    def test_tree_of_thoughts(self):
        self.check_24(run("tree_of_thoughts.py", self.model, "1", "1", "4", "6"), [1, 1, 4, 6])

    def test_monte_carlo_tree_search(self):
        self.check_24(run("monte_carlo_tree_search.py", self.model, "1", "2", "3", "4"), [1, 2, 3, 4])

    def test_forked_agents(self):
        lines = run("forked_agents.py", self.model, "16").splitlines()
        self.assertEqual([line.split(":")[0] for line in lines if re.match(r"[a-z]+: .", line)][:3], ["oak", "beech", "hazel"])
        read, unshared = map(int, re.fullmatch(r"16 agents in .* s; KV read: (\d+) MiB; each for itself: (\d+) MiB", lines[-1]).groups())
        self.assertLess(read, 0.6 * unshared)

    def test_hydragen(self):
        self.assertIn("largest difference", run("hydragen.py"))


if __name__ == "__main__":
    unittest.main()
