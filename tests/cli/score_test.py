"""`coppice score IN OUT`: answers in a file, with which a run that was killed goes on; what it has in common with `coppice batch`. Scores
are compared in tests/server/score_test.py."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from program import COPPICE, TINY, coppice

LINES = [{"prompt": [3 + i % 5] * 20 + [100 + i % 200], "continuations": [[5 + i % 7, 9], [5 + i % 7, 11, 12], [40]]} for i in range(150)]


class ScoreTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.input, self.output = os.path.join(self.folder, "in.jsonl"), os.path.join(self.folder, "out.jsonl")

    def write(self, *lines):
        """A line each, JSON of what is no text, empty lines between them."""
        with open(self.input, "w", encoding="utf-8") as file:
            file.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n\n" for line in lines))

    def command(self, *args):
        return ["score", self.input, self.output, "--model", TINY, "--dtype", "f32", "--deterministic", *args]

    def records(self, path):
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def scores(self):
        return [(record["line"], record["scores"]) for record in self.records(self.output)]

    def refused(self, *words, args=None):
        done = coppice(*(args or self.command()))
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_killed_and_resumed(self):
        self.write(*LINES)
        done = coppice("score", self.input, "--model", TINY, "--dtype", "f32", "--deterministic")
        undisturbed = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([record["line"] for record in undisturbed], list(range(1, 2 * len(LINES), 2)))
        expected = [(record["line"], record["scores"]) for record in undisturbed]
        before = 0
        for records in (3, 60):
            with subprocess.Popen([COPPICE, *self.command("--queue", "1")], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                deadline = time.monotonic() + 60
                while self.whole_lines() < records:
                    self.assertIsNone(process.poll(), "it ended before it was killed")
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.001)
                process.kill()
                process.communicate(timeout=60)
            self.assertGreater(self.whole_lines(), before)
            before = self.whole_lines()
            with open(self.output, "a", encoding="utf-8") as file:  # what a kill in the middle of a write leaves
                file.write('{"id":"score-')
        self.assertLess(before, len(LINES))
        done = coppice(*self.command())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"{len(LINES) - before} answered, {before} by an earlier run\n")
        self.assertEqual(self.scores(), expected)
        self.assertEqual(coppice(*self.command()).stdout, f"0 answered, {len(LINES)} by an earlier run\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.jsonl", "out.jsonl"])

    def whole_lines(self):
        if not os.path.exists(self.output):
            return 0
        with open(self.output, encoding="utf-8") as file:
            return sum(text.endswith("}\n") for text in file)

    def test_interrupted(self):
        self.write(*LINES)
        with subprocess.Popen([COPPICE, *self.command("--queue", "1")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while self.whole_lines() < 3 and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("the same command goes on", output)

    def test_standard_input_may_be_silent(self):
        command = [COPPICE, "score", "-", "--model", TINY, "--dtype", "f32"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            for number, line in enumerate(LINES[:3], 1):  # answered while no other line is there
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline())["line"], number)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 130)

    def test_what_failed_is_tried_again(self):
        self.write(LINES[0], "[]", {"prompt": [1]}, LINES[1])
        done = coppice(*self.command())
        self.assertEqual((done.returncode, done.stdout), (1, f"2 answered, 2 errors in {self.output}.errors\n"))
        self.assertEqual([line for line, _ in self.scores()], [1, 7])
        errors = self.records(self.output + ".errors")
        self.assertEqual([(error["line"], error["error"]["param"]) for error in errors], [(3, "body"), (5, "continuations")])
        self.write(LINES[0], LINES[2], LINES[3], LINES[1])
        done = coppice(*self.command())
        self.assertEqual((done.returncode, done.stdout), (0, "2 answered, 2 by an earlier run\n"))
        self.assertEqual([line for line, _ in self.scores()], [1, 7, 3, 5])
        self.assertFalse(os.path.exists(self.output + ".errors"))

    def test_what_is_no_json(self):
        done = coppice("score", "-", "--model", TINY, stdin='{"prompt": [1], "prompt": [2]}\n{\n')
        twice, cut = (json.loads(line)["error"]["message"] for line in done.stdout.splitlines())
        self.assertEqual(twice, 'key "prompt" appears twice in one JSON object')
        self.assertTrue(cut.startswith("not valid JSON: "), cut)

    def test_an_answer_to_another_line_is_no_answer(self):
        self.write(LINES[0], LINES[1])
        self.assertEqual(coppice(*self.command()).returncode, 0)
        self.write(LINES[0], LINES[2])
        self.refused("line 3", "another request", "give another output")

    def test_files(self):
        self.write(LINES[0])
        self.refused("standard input", "leave the output out", args=["score", "-", self.output, "--model", TINY])
        self.refused("--errors", args=["score", self.input, "--errors", self.output, "--model", TINY])
        fifo = os.path.join(self.folder, "fifo")
        os.mkfifo(fifo)  # without a writer
        self.refused("fifo", "expected a file", args=["score", fifo, self.output, "--model", TINY])
        self.refused("same file", args=["score", self.input, self.input, "--model", TINY])
        for option in ("--errors", "--trace", "--record"):
            self.refused("same file", option, args=[*self.command(), option, os.path.join(self.folder, ".", os.path.basename(self.output))])
        with open(self.output, "w", encoding="utf-8") as file:
            file.write('{"id": "batch_req_1", "custom_id": "1"}\n')
        self.refused("no result of coppice score")
        done = coppice("score", self.input, "-", "--model", TINY)
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
