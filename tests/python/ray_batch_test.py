"""coppice_llm.ray without Ray: the batch is divided, what workers send is one output, and workers that end early are made anew. A stand-in for Ray
runs actors in this process; ray_test.py runs them where they belong."""

import concurrent.futures
import contextlib
import errno
import fcntl
import io
import json
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(TESTS, "cli")]

from batch_jobs import answers, records  # noqa: E402
from program import TINY, coppice  # noqa: E402

from coppice_llm import ray as coppice_ray  # noqa: E402


class RayActorError(Exception):
    pass


class RayTaskError(Exception):
    pass


class ObjectLostError(Exception):
    pass


class Handle:
    """An actor whose methods run one after the other on a thread, until it is killed."""

    def __init__(self, make):
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._actor = self._thread.submit(make)
        self.killed = False

    def __getattr__(self, name):
        def remote(*args):
            future = self._thread.submit(self._call, name, args)
            future.actor = self
            return future
        return types.SimpleNamespace(remote=remote)

    def _call(self, name, args):
        try:
            return getattr(self._actor.result(), name)(*args)
        except OSError as error:
            raise RayTaskError(f"ray::{name}()\n{type(error).__name__}: {error}") from error

    def kill(self):
        self.killed = True
        self._actor.result().end()


class StandIn(types.ModuleType):
    """The parts of ray that coppice_llm.ray uses. `taken`: called with each actor after each answer of it."""

    def __init__(self, version=".".join(map(str, coppice_ray.OLDEST_RAY)) + ".0"):
        super().__init__("ray")
        self.__version__ = version
        self.actors, self.given = [], []
        self.exceptions = types.SimpleNamespace(RayActorError=RayActorError, RayTaskError=RayTaskError, ObjectLostError=ObjectLostError)
        self.before_get = lambda: None

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 2.0, "node:127.0.0.2": 1.0}

    def remote(self, actor_class):
        def options(**given):
            self.given.append(given)

            def make(*args):
                self.actors.append(Handle(lambda: actor_class(*args)))
                return self.actors[-1]
            return types.SimpleNamespace(remote=make)
        return types.SimpleNamespace(options=options)

    def wait(self, futures, num_returns, timeout=None):
        when = concurrent.futures.FIRST_COMPLETED if num_returns == 1 else concurrent.futures.ALL_COMPLETED
        done, waiting = concurrent.futures.wait(futures, timeout, when)
        return list(done), list(waiting)

    def get(self, future):
        self.before_get()
        concurrent.futures.wait([future])
        if future.actor.killed:
            raise RayActorError("The actor died unexpectedly.")
        return future.result()


def line(custom_id, prompt, **body):
    body = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


class RayBatchTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.input, self.output = os.path.join(self.folder, "in.jsonl"), os.path.join(self.folder, "out.jsonl")
        self.ray = StandIn()
        sys.modules["ray"] = self.ray
        self.addCleanup(sys.modules.pop, "ray")

    def write(self, *lines):
        with open(self.input, "w", encoding="utf-8") as file:
            file.writelines(text + "\n" for text in lines)

    def groups(self, count=60, **body):
        return [line(f"q{i}", [3 + i % 4] * 40 + [100 + i, 7], **body) for i in range(count)]

    def batch(self, *options, **more):
        return coppice_ray.batch(self.input, self.output, model=TINY, options=["--deterministic", *options], **{"num_workers": 2} | more)

    def alone(self):
        path = os.path.join(self.folder, "alone.jsonl")
        coppice("batch", self.input, path, "--model", TINY, "--deterministic")
        return answers(path)

    def test_workers_answer_what_one_machine_answers(self):
        self.write("", *self.groups(), "")
        received = []
        result = self.batch(progress=lambda *counts: received.append(counts), resources={"num_gpus": 0, "resources": {"host": 1}})
        self.assertEqual(result, coppice_ray.BatchResult(answered=60, answered_before=0, failed=0, workers=2, restarts=0))
        self.assertEqual(answers(self.output), self.alone())
        self.assertEqual(received[-1], (60, 60))
        self.assertEqual(self.ray.given, [{"max_restarts": 0, "num_cpus": 1, "num_gpus": 0, "resources": {"host": 1}}])
        self.assertEqual(len(self.ray.actors), 2)
        self.assertFalse(os.path.exists(self.output + ".errors"))
        self.assertEqual(self.batch(), coppice_ray.BatchResult(answered=0, answered_before=60, failed=0, workers=0, restarts=0))

    def test_parts_are_prefix_groups(self):
        self.write(*self.groups())
        for workers in (1, 2, 4):
            done = coppice("batch", self.input, self.output, "--model", TINY, "--parts", workers)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertEqual((report["answered_before"], report["errors"], report["output_bytes"]), (0, 0, 0))
            groups = [{(number - 1) % 4 for number in part["lines"]} for part in report["parts"]]
            self.assertEqual([len(group) for group in groups], [4 // workers] * workers)
            self.assertEqual(set().union(*groups), set(range(4)))
            self.assertEqual({part["prompt_tokens"] for part in report["parts"]}, {4 // workers * 40 + 2 * 60 // workers})
            self.assertEqual({part["output_tokens"] for part in report["parts"]}, {6 * 60 // workers})

    def test_a_worker_that_ends_early_is_made_anew(self):
        self.write(*self.groups(max_tokens=200))
        killed = []

        def kill_the_first_three():
            if len(killed) < 3 and os.path.getsize(self.output) > 0:
                killed.append(self.ray.actors[len(killed)])
                killed[-1].kill()
        self.ray.before_get = kill_the_first_three
        with self.assertLogs("coppice_llm.ray", "WARNING") as logs:
            result = self.batch("--max-running", "2")
        self.assertEqual((result.answered, result.restarts), (60, 3))
        self.assertEqual(len(logs.output), 3)
        self.assertEqual(answers(self.output), self.alone())

    def test_a_machine_that_ends_with_the_answers_of_its_worker(self):
        self.write(*self.groups(max_tokens=200))
        lost = []

        def lose_what_has_been_answered():
            if os.path.getsize(self.output) > 0 and not lost:
                lost.append(True)
                raise ObjectLostError("Failed to retrieve object. Its node died.")
        self.ray.before_get = lose_what_has_been_answered
        with self.assertLogs("coppice_llm.ray", "WARNING") as logs:
            result = self.batch("--max-running", "2")  # answers come in many pieces
        self.assertEqual((result.answered, result.restarts, len(logs.output)), (60, 1, 1))
        self.assertEqual(answers(self.output), self.alone())

    def test_answers_longer_than_a_piece(self):
        path = os.path.join(self.folder, "lines")
        with open(path, "wb") as file:
            file.write(b"a" * 100 + b"\nb\n" + b"c" * 50)
            file.flush()
            lines = self.enterContext(contextlib.closing(coppice_ray._WholeLines(path)))
            self.assertEqual(lines.read(8), [b"a" * 100, b"b"])
            self.assertEqual(lines.read(8), [])
            file.write(b"d\n")
            file.flush()
            self.assertEqual(lines.read(8), [b"c" * 50 + b"d"])
            self.assertEqual(lines.read(8), [])

    def test_workers_that_do_not_begin(self):
        self.write(*self.groups(4))
        with mock.patch.object(coppice_ray, "SILENCE_SECONDS", 0.01), self.assertLogs("coppice_llm.ray", "WARNING") as logs:
            self.assertEqual(self.batch().answered, 4)
        self.assertIn("no worker has answered for 0.01 s: each waits for {'num_cpus': 1} of the cluster's {'CPU': 2.0}", logs.output[0])

    def test_a_worker_that_ends_again_and_again_ends_the_batch(self):
        self.write(*self.groups(4))
        self.ray.before_get = lambda: self.ray.actors[-1].kill()
        with self.assertLogs("coppice_llm.ray", "WARNING"), self.assertRaisesRegex(RuntimeError, "ended 3 times in a row without an answer; 4 requests are left"):
            self.batch(num_workers=1)

    def test_a_batch_that_failed_is_gone_on_with(self):
        self.write(*self.groups(4))
        kill, self.ray.before_get = self.ray.before_get, lambda: self.ray.actors[-1].kill()
        with self.assertLogs("coppice_llm.ray", "WARNING"):
            try:
                self.batch(num_workers=1)
            except RuntimeError as error:
                failure = error  # and its traceback, as a notebook keeps it
        self.ray.before_get = kill
        self.assertEqual(self.batch().answered, 4, failure)

    def test_an_output_that_cannot_be_written_ends_all_workers(self):
        self.write(*self.groups(max_tokens=200))
        with mock.patch.object(coppice_ray._Output, "append", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            try:
                self.batch()
            except OSError as error:
                failure = error  # and its traceback, which has the actors
        for actor in self.ray.actors:
            self.assertIsNotNone(actor._actor.result()._process.poll(), failure)

    def test_a_driver_that_is_killed(self):
        """As much as the output says is done; a torn last line is cut off."""
        self.write(*self.groups())
        whole = self.alone()
        self.batch()
        with open(self.output, "r+b") as file:
            lines = file.readlines()
            file.seek(0)
            file.truncate()
            file.writelines(lines[:25])
            file.write(lines[25][:30])
        result = self.batch()
        self.assertEqual((result.answered, result.answered_before), (35, 25))
        self.assertEqual(answers(self.output), whole)

    def test_errors_have_the_lines_of_the_input(self):
        self.write("no json", *self.groups(8), line("range", [5] * 40 + [6], top_p=7), line("big", [99999]), line("field", [5], max_tokens=-2))
        with self.assertLogs("coppice_llm.ray", "WARNING"):
            result = self.batch()
        self.assertEqual((result.answered, result.failed), (8, 4))
        errors = records(self.output + ".errors")
        self.assertEqual({error["line"]: error["custom_id"] for error in errors}, {1: None, 10: "range", 11: "big", 12: "field"})
        alone = os.path.join(self.folder, "alone.jsonl")
        coppice("batch", self.input, alone, "--model", TINY)
        self.assertEqual(sorted(errors, key=lambda error: error["line"]), sorted(records(alone + ".errors"), key=lambda error: error["line"]))
        with self.assertLogs("coppice_llm.ray", "WARNING"):  # what failed is tried again, and is there once
            self.assertEqual(self.batch().failed, 4)
        self.assertEqual(len(records(self.output + ".errors")), 4)

    def test_what_the_program_refuses(self):
        self.write(*self.groups(4))
        for options, message in ((["--max-running", "0"], "max-running"), (["--no-such-option"], "no-such-option"), (["--kv-cache", "1"], "KV cache")):
            with self.assertRaisesRegex(RuntimeError, message):
                self.batch(*options)
        with self.assertRaisesRegex(ValueError, "num_workers is 0"):
            self.batch(num_workers=0)
        self.assertEqual(self.batch().answered, 4)
        self.write(*self.groups(3), line("q3", [9]))
        with self.assertRaisesRegex(RuntimeError, 'custom_id "q3", but to another request'):
            self.batch()

    def test_an_output_that_is_written_to(self):
        self.write(*self.groups(4))
        with open(self.output, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with self.assertRaisesRegex(RuntimeError, "out.jsonl is locked"):
                self.batch()

    def test_ray_that_is_missing_or_too_old(self):
        self.write(*self.groups(1))
        for module, found in ((None, "there is no package ray"), (StandIn("1.13.0"), "ray is 1.13.0"), (types.ModuleType("ray"), "there is no package ray")):
            sys.modules["ray"] = module
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                self.assertEqual(coppice_ray.main(["batch", self.input, self.output, "--model", TINY, "--num-workers", "2"]), 2)
            self.assertEqual(said.getvalue().count("\n"), 1)
            self.assertIn(found, said.getvalue())
            self.assertIn("pip install 'ray>=", said.getvalue())

    def test_the_command(self):
        self.write(*self.groups(8), line("range", [5], top_p=7))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = coppice_ray.main(["batch", self.input, self.output, "--model", TINY, "--num-workers", "2", "--cpus", "1", "--resource", "host=0.5",
                                       "--", "--deterministic", "--threads=1"])
        self.assertEqual((status, said.getvalue()), (1, f"8 answered by 2 workers, 1 errors in {self.output}.errors\n"))
        self.assertEqual(self.ray.given[-1]["resources"], {"host": 0.5})


if __name__ == "__main__":
    unittest.main()
