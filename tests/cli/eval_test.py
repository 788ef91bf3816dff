"""`coppice eval`: each task in all sharing modes with the default model, whose results they must not change. Skipped only where the
model cannot be fetched."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from program import TINY, coppice, default_model_or_skip

MODEL = default_model_or_skip()
MODES = ["tree", "one-level", "store", "none"]
TEXT = """The coppice is cut to its stumps every fifteen years, and from each stump many shoots grow. The poles were used for hurdles,
for charcoal, for the handles of tools, and for firewood. A wood that is cut in this way lives longer than one that is left alone,
and more light reaches the ground, where primroses and anemones flower before the leaves close over them in the third summer.
"""


def sandbox_works():
    """Whether programs can run; as an ordinary user does, which root becomes for them."""
    sandbox = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "true"]
    if os.geteuid() == 0:
        sandbox = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *sandbox]
    return shutil.which("bwrap") is not None and subprocess.run(sandbox, capture_output=True, check=False).returncode == 0


def evaluate(*args, timeout=900, environment=None):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        modes = [] if "--modes" in args else ["--modes", ",".join(MODES)]
        done = coppice("eval", *args, *modes, "--model", MODEL, "--out", report, timeout=timeout, environment=environment)
        if done.returncode != 0:
            raise AssertionError(f"coppice eval {args} exited with {done.returncode}: {done.stderr}")
        with open(report, encoding="utf-8") as file:
            return json.load(file), done.stdout


class EvalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def lines(self, name, *objects):
        return self.write(name, "".join(json.dumps(value) + "\n" for value in objects))

    def scores(self, report):
        """mode -> name -> score; the same names in all modes."""
        self.assertEqual(list(report["modes"]), MODES)
        scores = {mode: {s["name"]: s for s in report["modes"][mode]["scores"]} for mode in MODES}
        for mode in MODES:
            self.assertEqual(list(scores[mode]), list(scores["tree"]))
            for score in scores[mode].values():
                self.assertLessEqual(score["interval_95"][0], score["value"])
                self.assertGreaterEqual(score["interval_95"][1], score["value"])
                self.assertGreater(score["n"], 0)
        return scores

    def test_perplexity(self):
        path = self.write("text", TEXT)
        report, _ = evaluate("perplexity", path, "--window", 64, "--context", 16)
        perplexity = {mode: s["perplexity"] for mode, s in self.scores(report).items()}
        self.assertGreater(len(report["modes"]["tree"]["items"]), 1)
        for mode in MODES:
            self.assertAlmostEqual(perplexity[mode]["value"], perplexity["tree"]["value"], delta=0.02 * perplexity["tree"]["value"])
            self.assertEqual(perplexity[mode]["n"], perplexity["tree"]["n"])
        whole, table = evaluate("perplexity", path, "--modes", "tree", "--dtype", "f32")
        self.assertNotIn("unlike", table)
        windows, _ = evaluate("perplexity", path, "--modes", "tree", "--dtype", "f32", "--window", 100, "--context", 99)
        # Every token but the first is counted once, whatever the windows; more context never lies far off.
        self.assertEqual(*(r["modes"]["tree"]["scores"][0]["n"] for r in (whole, windows)))
        values = [r["modes"]["tree"]["scores"][0]["value"] for r in (whole, windows)]
        self.assertLess(abs(values[0] / values[1] - 1), 0.1)

    def test_choice(self):
        path = self.lines("questions",
                          {"question": "The capital of France is", "choices": [" Paris", " Berlin", " banana"], "answer": 0},
                          {"question": "The opposite of hot is", "choices": [" chair", " cold"], "answer": 1},
                          {"question": "The opposite of hot is", "choices": [" chair", " cold"], "answer": 0})
        report, text = evaluate("choice", path)
        for scores in self.scores(report).values():
            self.assertAlmostEqual(scores["accuracy"]["value"], 2 / 3)
        for mode in MODES:
            self.assertEqual((report["modes"][mode]["items"], report["modes"][mode]["items_unlike_first_mode"]), (["0", "1", "1"], 0))
        self.assertIn("one-level", text)
        out = os.path.join(self.folder, "report.json")
        for _ in range(2):  # the second report takes the first one's place
            done = coppice("eval", "choice", path, "--model", MODEL, "--out", out)
            self.assertEqual(done.returncode, 0, done.stderr)
        alone = done.stdout.splitlines()
        self.assertEqual([line.split()[0] for line in alone], ["sharing", *["tree"] * len(report["modes"]["tree"]["scores"])])

    def test_needle(self):
        report, _ = evaluate("needle", "--lengths", "96,160", "--depths", "0,1", "--repeats", 2, "--dtype", "f32")
        scores = self.scores(report)
        self.assertEqual(list(scores["tree"]), ["length 96, depth 0", "length 96, depth 1", "length 160, depth 0", "length 160, depth 1"])
        self.assertEqual({s["n"] for s in scores["tree"].values()}, {2})
        # In f32 greedy answers are the same texts in every mode.
        for mode in MODES:
            self.assertEqual(report["modes"][mode]["items"], report["modes"]["tree"]["items"])
        self.assertGreater(sum(s["value"] for s in scores["tree"].values()), 0)  # short texts: found at least once

    @unittest.skipUnless(sandbox_works(), "bubblewrap is missing or too old, or gets no namespaces here")
    def test_hostile_programs(self):
        """A program passes by what it was refused; what each would have passed by without a sandbox stands in `harm`."""
        call = "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        harm = (call + "assert libc.mount(None, b'/usr', None, 32 | 4096, None) == 0",  # writable again: MS_REMOUNT | MS_BIND
                call + "assert libc.unshare(0x10000000) == 0",  # a user namespace, with all capabilities
                call + "assert libc.ptrace(0, 0, 0, 0) == 0",
                "open('/proc/sys/kernel/core_pattern', 'r+')", "open('/proc/sys/net/ipv4/ip_forward', 'r+')",
                "assert 'SECRET' in open('/proc/1/environ').read()",
                "open('/x', 'w')", "for i in range(200): open('/tmp/%d' % i, 'wb').write(bytes(1 << 20))",
                "for i in range(200): open('/dev/shm/%d' % i, 'wb').write(bytes(1 << 20))",
                "import os\nwhile os.fork(): pass", "x = bytearray(1 << 30)")
        right = ("x = 1", "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "open('/tmp/x', 'w').write('y')")
        path = self.lines("problems", *({"prompt": "x = 1  # one,", "tests": tests, "stop": ["\n"]} for tests in (*harm, *right)))
        report, _ = evaluate("code", path, "-n", 1, "--max-tokens", 2, "--seconds", 20, "--modes", "tree", environment={"COPPICE_SECRET": "1"})
        self.assertEqual(report["modes"]["tree"]["items"], ["0/1"] * len(harm) + ["1/1"] * len(right))

    def test_no_sandbox_no_programs(self):
        path = self.lines("problems", {"prompt": "x = 1", "tests": ""})
        for args, environment, words in (((), {"PATH": "/nonexistent"}, "bubblewrap"), (("--interpreter", "/usr/bin/no-such"), {}, "/usr/bin/no-such")):
            done = coppice("eval", "code", path, "-n", 1, "--model", MODEL, *args, environment=environment)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn(words, done.stderr)

    @unittest.skipUnless(sandbox_works(), "bubblewrap is missing or too old, or gets no namespaces here")
    def test_code(self):
        # With any text of the model in the comment or behind it, the first passes and the second does not.
        path = self.lines("problems", {"prompt": "x = 1  # one,", "tests": "assert x == 1", "stop": ["\n"]},
                          {"prompt": "x = 1  # one,", "tests": "assert x == 2", "stop": ["\n"]})
        report, _ = evaluate("code", path, "-n", 4, "--k", "1,3", "--max-tokens", 8)
        for scores in self.scores(report).values():
            self.assertEqual([scores[name]["value"] for name in ("pass@1", "pass@3", "pass@top3", "programs out of time")], [0.5, 0.5, 0.5, 0])
        self.assertEqual(report["modes"]["store"]["items"], ["4/4", "0/4"])

    def test_vote(self):
        # Greedy samples are all one text, which repeats the list that it goes on with: the answer is known, and so is the vote.
        count = "one, two, three, one, two, three, one, two,"
        path = self.lines("problems", {"prompt": count, "answer": "three", "stop": ["."]}, {"prompt": count, "answer": "two", "stop": ["."]})
        report, _ = evaluate("vote", path, "-n", 3, "--max-tokens", 1, "--temperature", 0, "--answer", "[a-z]+")
        for scores in self.scores(report).values():
            self.assertEqual([scores[name]["value"] for name in ("accuracy of the vote", "accuracy of a sample", "samples with an answer")], [0.5, 0.5, 1])
        self.assertEqual(report["modes"]["store"]["items"], ["three (3)"] * 2)
        report, _ = evaluate("vote", path, "-n", 2, "--max-tokens", 1, "--answer", "no such words", "--modes", "tree")
        self.assertEqual(report["modes"]["tree"]["items"], ["", ""])
        self.assertEqual([score["value"] for score in report["modes"]["tree"]["scores"]], [0, 0, 0])

    def test_errors(self):
        for args, words in ((["perplexity", self.write("empty", "")], "0 tokens"),
                            (["perplexity", self.write("a", TEXT), "--window", "8", "--context", "8"], "--context"),
                            (["choice", self.write("b", "{}")], "line 1"), (["code", self.write("c", "nope")], "line 1"),
                            (["choice", "/nonexistent"], "/nonexistent"), (["needle", "--depths", "2"], "--depths"),
                            (["code", self.lines("d", {"prompt": "", "tests": ""}), "-n", "2", "--k", "3"], "--k"),
                            (["vote", self.lines("e", {"prompt": "", "answer": "1"}), "--answer", "("], "--answer")):
            done = coppice("eval", *args, "--model", MODEL)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(words, done.stderr)
        done = coppice("eval", "needle", "--model", TINY)
        self.assertEqual(done.returncode, 2)
        self.assertIn("tokenizer", done.stderr)


if __name__ == "__main__":
    unittest.main()
