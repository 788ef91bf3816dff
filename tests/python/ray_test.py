"""coppice_llm.ray on a Ray cluster of this machine: 400 requests in 20 groups on two workers, undisturbed and with kills. 400 MB of packages."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from ray_cluster import cluster, processes

from batch_jobs import answers, computed_prompt_tokens, group_of, records, write_groups
from program import COPPICE, coppice, default_model_or_skip

REQUESTS = 400
DEADLINE = 900  # seconds, of a run on a machine with other work


def programs(folder):
    """Of the workers whose temporary files are in `folder`: their `coppice batch` by process id, and the worker's."""
    begin = os.path.join(folder, "coppice-ray-")
    return processes(lambda arguments: arguments[1:2] == ["batch"] and arguments[2].startswith(begin))


class RayBatch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = default_model_or_skip()
        cls.folder = tempfile.mkdtemp(prefix="cr-", dir="/tmp")  # short: it holds sockets, whose names have 107 bytes at most
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.input, cls.alone = os.path.join(cls.folder, "in.jsonl"), os.path.join(cls.folder, "alone.jsonl")
        write_groups(cls.input, REQUESTS, max_tokens=8, temperature=1)
        done = coppice("batch", cls.input, cls.alone, "--model", cls.model, "--deterministic", timeout=DEADLINE)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.environment = stack.enter_context(cluster(cls.folder, 2))

    def setUp(self):
        self.output = os.path.join(self.folder, self.id().rpartition(".")[2] + ".jsonl")

    def driver(self):
        log = open(self.output + ".log", "ab")
        self.addCleanup(log.close)
        return subprocess.Popen([sys.executable, "-m", "coppice_llm.ray", "batch", self.input, self.output, "--model", self.model, "--num-workers", "2",
                                 "--", "--deterministic"], env=self.environment, stdout=log, stderr=log)

    def log(self):
        with open(self.output + ".log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def count(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.output, "rb") as file:
                return file.read().count(b"\n")
        return 0

    def wait_for(self, condition, driver=None):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), deadline, self.log())
            if driver is not None:
                self.assertIsNone(driver.poll(), self.log())
            time.sleep(0.05)

    def assert_groups_have_one_part_each(self):
        done = coppice("batch", self.input, self.output, "--model", self.model, "--parts", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.input, encoding="utf-8") as file:
            names = [json.loads(line)["custom_id"] for line in file]
        groups = [{group_of(names[number - 1]) for number in part["lines"]} for part in json.loads(done.stdout)["parts"]]
        self.assertEqual(len(groups), 2)
        return len(groups[0] & groups[1])

    def test_two_workers_compute_what_one_machine_computes(self):
        self.assertEqual(self.assert_groups_have_one_part_each(), 0)
        with self.driver() as driver:
            self.assertEqual(driver.wait(DEADLINE), 0, self.log())
        self.assertIn(f"{REQUESTS} answered by 2 workers", self.log())
        self.assertEqual(answers(self.output), answers(self.alone))
        computed, alone = computed_prompt_tokens(self.output), computed_prompt_tokens(self.alone)
        print(f"\nprompt tokens computed: {computed} by two workers, {alone} by one machine")
        self.assertLessEqual(computed, 1.05 * alone)
        self.wait_for(lambda: not programs(self.folder))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("coppice-ray-")], [])

    def test_workers_and_the_driver_are_killed(self):
        with self.driver() as driver:
            for answered in (40, 120):
                self.wait_for(lambda: self.count() >= answered and len(programs(self.folder)) == 2, driver)
                program, worker = sorted(programs(self.folder).items())[0]
                os.kill(worker, signal.SIGKILL)
                self.wait_for(lambda: program not in programs(self.folder), driver)
            self.wait_for(lambda: self.count() >= 200, driver)
            driver.kill()
        self.assertEqual(self.log().count("a worker ended"), 2, self.log())
        self.wait_for(lambda: not programs(self.folder))
        before = self.count()
        self.assertLess(before, REQUESTS)
        with open(self.output, "ab") as file:  # what a kill in the middle of a write leaves
            file.write(json.dumps(records(self.alone)[0]).encode()[:100])
        self.assertLessEqual(self.assert_groups_have_one_part_each(), 1)  # of what is left, whose halves may lie within a group
        with self.driver() as driver:
            self.assertEqual(driver.wait(DEADLINE), 0, self.log())
        self.assertIn(f"{REQUESTS - before} answered by 2 workers, {before} by an earlier run", self.log())
        self.assertEqual(answers(self.output), answers(self.alone))


if __name__ == "__main__":
    unittest.main()
