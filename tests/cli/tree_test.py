"""`coppice tree`: verbs in JSON lines, answers in JSON lines. A child must say what `coppice run` says after the same tokens."""

import json
import signal
import subprocess
import unittest

from program import COPPICE, TINY, coppice, default_model_or_skip, run_json

ENGINE = ["--model", TINY, "--dtype", "f32", "--deterministic"]
PROMPT = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31]


def grow(*lines, args=ENGINE):
    """The answers to a script, and the exit code."""
    done = coppice("tree", *args, stdin="".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return [json.loads(answer) for answer in done.stdout.splitlines()], done.returncode


def start(**fields):
    return {"verb": "start", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


def tokens_of(answer):
    return {sample["sample"]: sample["token_ids"] for sample in answer["samples"]}


def fresh(prompt, *args):
    """Token ids of the samples of a request of its own."""
    ids = ",".join(map(str, prompt))
    return [s["token_ids"] for s in run_json("--prompt-ids", ids, "--ignore-eos", "--max-tokens", 8, *args, *ENGINE)["samples"]]


class TreeTest(unittest.TestCase):
    def test_a_tree_grows(self):
        answers, code = grow(
            start(n=2), {"verb": "step", "count": 3}, {"verb": "fork", "sample": "1.0", "n": 2}, {"verb": "wait"},
            {"verb": "fork", "sample": "1.1", "keep_tokens": 2, "n": 2, "seed": 7, "temperature": 1, "max_tokens": 8}, {"verb": "wait"},
            {"verb": "extend", "sample": "1.0", "token_ids": [40, 41]}, {"verb": "wait"}, {"verb": "show", "sample": "1.0"})
        self.assertEqual(code, 0, answers)
        self.assertEqual([answer["line"] for answer in answers], list(range(1, 10)))
        self.assertEqual(answers[0], {"request": 1, "samples": ["1.0", "1.1"], "line": 1})
        self.assertEqual(answers[2]["samples"], ["1.2", "1.3"])
        before, after = tokens_of(answers[1]), tokens_of(answers[3])
        whole = before["1.0"] + after["1.0"]
        self.assertEqual(whole, fresh(PROMPT, "--temperature", 0)[0])
        self.assertEqual([after["1.2"], after["1.3"]], [after["1.0"]] * 2)
        self.assertEqual({sample["finish_reason"] for sample in answers[3]["samples"]}, {"length"})
        sampled = fresh(PROMPT + whole[:2], "-n", 2, "--seed", 7, "--temperature", 1)
        self.assertEqual([tokens_of(answers[5])[name] for name in ("1.4", "1.5")], sampled)
        turns = PROMPT + whole + [40, 41]
        self.assertEqual(tokens_of(answers[7]), {"1.0": fresh(turns, "--temperature", 0)[0]})
        self.assertEqual(answers[8]["token_ids"], turns + tokens_of(answers[7])["1.0"])
        self.assertEqual((answers[8]["prompt_tokens"], answers[8]["finished"]), (len(PROMPT), True))

    def test_a_child_of_a_child_draws_as_its_parent(self):
        answers, code = grow(
            start(temperature=1, seed=3), {"verb": "wait"}, {"verb": "fork", "sample": "1.0", "keep_tokens": 0, "temperature": 0},
            {"verb": "fork", "sample": "1.1", "keep_tokens": 0, "top_k": 5}, {"verb": "wait"})
        self.assertEqual(code, 0, answers)
        greedy = fresh(PROMPT, "--temperature", 0)[0]
        self.assertNotEqual(tokens_of(answers[1])["1.0"], greedy)
        self.assertEqual(tokens_of(answers[4]), {"1.1": greedy, "1.2": greedy})

    def test_samples_are_let_go(self):
        answers, code = grow(start(), {"verb": "step"}, {"verb": "fork", "sample": "1.0", "n": 2}, {"verb": "prune", "sample": "1.1"},
                             {"verb": "wait"}, {"verb": "release", "request": 1}, {"verb": "step"}, {"verb": "show", "sample": "1.0"})
        self.assertEqual(code, 1)
        reasons = {sample["sample"]: sample["finish_reason"] for sample in answers[4]["samples"]}
        self.assertEqual(reasons, {"1.0": "length", "1.1": "cancelled", "1.2": "length"})
        self.assertIn("request 1 is not known", answers[7]["error"]["message"])

    def test_a_wrong_line_is_reported_and_the_next_one_done(self):
        wrong = [
            ("{", "not valid JSON"),
            ('{"verb": "wait", "verb": "wait"}', "key \"verb\" appears twice"),
            ([1], "object"),
            ({"verb": "grow"}, "verb is \"grow\", expected start, fork, extend, prune, release, show, step or wait"),
            ({"sample": "1.0"}, "verb is null, expected start"),
            ({"verb": "fork", "sample": "one"}, "sample is \"one\", expected the name of a sample, such as \"1.0\""),
            ({"verb": "fork", "sample": "9.0"}, "request 9 is not known"),
            ({"verb": "fork", "sample": "1.0", "keep_tokens": 3}, "keep_tokens is 3, expected a number in 0..0"),
            ({"verb": "fork", "sample": "1.0", "keep": 3}, "keep"),
            ({"verb": "extend", "sample": "1.0"}, "extend needs text or token_ids, one of the two"),
            ({"verb": "extend", "sample": "1.0", "text": "a"}, "text needs a tokenizer and the model has none: give token_ids"),
            ({"verb": "extend", "sample": "1.0", "token_ids": ["a"]}, "token_ids is [\"a\"], expected a list of token ids"),
            ({"verb": "step", "count": 0}, "count is 0, expected at least 1"),
            (start(rank=True, n=2), "are of answers that come whole"),
            (start(prompt=[]), "prompt"),
        ]
        answers, code = grow(start(), *(line for line, _ in wrong), {"verb": "wait"})
        self.assertEqual(code, 1)
        self.assertEqual(len(answers), len(wrong) + 2)
        for answer, (line, message) in zip(answers[1:], wrong):
            self.assertIn(message, answer["error"]["message"], line)
        self.assertTrue(answers[1]["error"]["message"].startswith("not valid JSON: "), answers[1])
        self.assertEqual(len(tokens_of(answers[-1])["1.0"]), 8)

    def test_answers_come_line_by_line(self):
        with subprocess.Popen([COPPICE, "tree", *ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            def ask(line):
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())
            sample = ask(start())["samples"][0]
            for _ in range(3):  # what comes next follows from what came
                sample = ask({"verb": "fork", "sample": sample, "n": 1})["samples"][0]
                self.assertIn(sample, tokens_of(ask({"verb": "step", "count": 2})))
            process.stdin.close()
            self.assertEqual(process.wait(timeout=60), 0)

    def test_interrupted_while_there_is_no_input(self):
        with subprocess.Popen([COPPICE, "tree", *ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            process.stdin.write(json.dumps(start()) + "\n")
            process.stdin.flush()
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 130)

    def test_text(self):
        try:
            model = default_model_or_skip()
        except SystemExit:
            self.skipTest("the default model could not be fetched")
        answers, code = grow(start(prompt="The capital of France is", max_tokens=4), {"verb": "wait"},
                             {"verb": "extend", "sample": "1.0", "text": " The capital of Spain is"}, {"verb": "wait"},
                             {"verb": "show", "sample": "1.0"}, args=["--model", model])
        self.assertEqual(code, 0, answers)
        said = [answer["samples"][0]["text"] for answer in (answers[1], answers[3])]
        self.assertEqual(answers[4]["text"], "The capital of France is" + said[0] + " The capital of Spain is" + said[1])


if __name__ == "__main__":
    unittest.main()
