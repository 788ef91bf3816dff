"""Which CPU kernels run by measured time: the file that keeps it, what `--version` and `coppice inspect kernels` say of it, and bits that depend on no time."""

import glob
import json
import os
import tempfile
import time
import unittest

from program import TINY, coppice

TABLE = "COPPICE_CPU_PROBE is off"
FAST = {"COPPICE_CPU_PROBE": "", "COPPICE_CPU_ISA": ""}  # as a user's start
TOKENS = ["run", "--model", TINY, "--prompt-ids", ",".join(str(7 + i * 31 % 300) for i in range(40)), "-n", 3, "--max-tokens", 12, "--temperature", 0.7, "--seed", 5, "--ignore-eos", "--json"]


def answers(*options, **environment):
    done = coppice(*TOKENS, *options, environment=environment)
    if done.returncode != 0:
        raise AssertionError(done)
    return json.loads(done.stdout)["samples"]


class KernelsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = os.path.join(folder.name, "made", "by the program")
        self.env = FAST | {"COPPICE_CACHE_DIR": self.cache}

    def inspect(self, *options, **environment):
        done = coppice("inspect", "kernels", "--json", *options, environment=self.env | environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return json.loads(done.stdout)

    def measured(self):
        """The report of a first start that has measured both libraries; skips the test where none did."""
        return self.until(lambda _: len(self.files()) == 2)

    def until(self, is_so, *options):
        """The report of a start of which is_so holds: where other work leaves no time to measure, another one may have it."""
        for _ in range(5):
            said = self.inspect(*options)
            if is_so(said):
                return said
            self.assertRegex(said["products"]["why"] + said["attention"]["why"], "runs no other|left no time")
        self.skipTest("one instruction set, or other work left no time to measure")

    def files(self):
        return sorted(glob.glob(os.path.join(glob.escape(self.cache), "cpu-*.txt")))

    def prefer(self, chosen):
        """Has the files say that the form `chosen(forms)` of each kind takes half of the first one's time."""
        for path in self.files():
            with open(path, encoding="utf-8") as file:
                header, *lines = file.read().splitlines()
            for i, line in enumerate(lines):
                kind, *words = line.split()
                forms = words[::4]
                words = [(form, 500, 0.5, 0.5) if form == chosen(forms) and form != forms[0] else (form, 1000, 1, 1) for form in forms]
                lines[i] = " ".join(map(str, [kind] + [word for form in words for word in form]))
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join([header, *lines]) + "\n")

    def test_measured_once(self):
        first = self.measured()
        self.assertEqual(set(first["products"]["kinds"]), {"f32-few", "f32-many", "bf16-few", "bf16-many", "coded", "blocks-few", "blocks-many"})
        self.assertEqual(set(first["attention"]["kinds"]), {"dense", "stream"})
        again = self.inspect()
        for library in ("products", "attention"):
            self.assertEqual(*({name: (kind["kernels"], list(kind["times"])) for name, kind in said[library]["kinds"].items()} for said in (first, again)))
            self.assertRegex(again[library]["why"], "read from .*cpu-" + library + "-")
            for kind in again[library]["kinds"].values():
                self.assertIn(kind["kernels"], kind["times"])
        said = self.until(lambda said: "left no time" not in said["products"]["why"], "--again")
        self.assertIn("measured at this start", said["products"]["why"])
        text = coppice("inspect", "kernels", environment=self.env).stdout
        self.assertRegex(text, r"bf16-many +\w+ .*takes \d\.\d\d of its time")

    def test_another_is_chosen_where_the_file_says_so(self):
        self.measured()
        self.prefer(lambda forms: forms[1])
        said = self.inspect()
        self.assertEqual([kind["measured_faster"] for library in ("products", "attention") for kind in said[library]["kinds"].values()], [True] * 9)
        version = coppice("--version", environment=self.env).stdout
        self.assertRegex(version, r"bf16-many by \w+.*dense by [\w-]+")
        plan = coppice("inspect", "plan", "--no-measure", environment=self.env).stdout
        self.assertRegex(plan, r"machine [\w-]+ with tiles of [\w-]+|machine generic-x86")
        off = self.inspect(COPPICE_CPU_PROBE="off")
        self.assertEqual((off["products"]["why"], off["attention"]["why"]), (TABLE, TABLE))
        self.assertFalse(off["products"]["kinds"]["bf16-many"]["measured_faster"])
        forced = self.inspect(COPPICE_CPU_ISA="avx2")
        self.assertEqual({kind["kernels"] for kind in forced["products"]["kinds"].values()}, {"avx2"})

    def test_deterministic_bits_depend_on_no_time(self):
        table = answers("--deterministic", COPPICE_CPU_PROBE="off")
        self.inspect()
        for choose in (lambda forms: forms[1 % len(forms)], lambda forms: forms[-1]):
            self.prefer(choose)
            self.assertEqual(answers("--deterministic", **self.env), table)
            # The fast mode may round otherwise; its tokens are drawn from nearly the same distribution.
            self.assertEqual([len(sample["token_ids"]) for sample in answers(**self.env)], [12] * 3)

    def test_without_a_cache_folder(self):
        table = answers(COPPICE_CPU_PROBE="off")
        for folder in ("/dev/null/none", "/proc/self"):
            done = coppice("--version", environment=self.env | {"COPPICE_CACHE_DIR": folder})
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertRegex(done.stdout, "measured at this start|runs no other|left no time")
        done = coppice("--version", environment=self.env | {"COPPICE_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": ""})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertEqual(len(table), 3)

    def test_the_first_start_takes_no_longer(self):
        """Measuring and keeping: 60 ms at most, on a machine whose cores others may use; the least of several starts of each."""
        def start(**environment):
            begin = time.monotonic()
            self.assertEqual(coppice("--version", environment=self.env | environment).returncode, 0)
            return time.monotonic() - begin

        turns = [(start(COPPICE_CPU_PROBE="off"), start(COPPICE_CPU_PROBE="again")) for _ in range(5)]
        self.assertLess(min(again for _, again in turns) - min(off for off, _ in turns), 0.060, turns)


if __name__ == "__main__":
    unittest.main()
