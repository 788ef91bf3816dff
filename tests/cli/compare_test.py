"""`coppice compare-logprobs` puts an engine's log-probabilities beside those of a trainer: answers of a batch against a score of the same tokens, and files that
do not fit each other."""

import json
import os
import tempfile
import unittest

from program import TINY, coppice


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def file(self, name, *lines):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return path

    def compare(self, *args, status=0):
        done = coppice("compare-logprobs", *args)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status < 2 else done.stderr

    def test_rollouts_of_a_batch_beside_scores_of_other_arithmetic(self):
        prompt = [5, 6, 7, 8]
        body = {"prompt": prompt, "n": 3, "max_tokens": 20, "seed": 1, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        requests = self.file("in.jsonl", {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body})
        answers = os.path.join(self.folder, "out.jsonl")
        self.assertEqual(coppice("batch", "--model", TINY, "--dtype", "bf16", requests, answers).returncode, 0)
        with open(answers, encoding="utf-8") as file:
            choices = json.loads(file.readline())["response"]["body"]["choices"]
        scores = coppice("score", "--model", TINY, "--dtype", "f32",
                         self.file("scores.jsonl", {"prompt": prompt, "continuations": [choice["token_ids"] for choice in choices]}))
        self.assertEqual(scores.returncode, 0, scores.stderr)
        lines = [{"token_ids": choice["token_ids"], "logprobs": score["token_logprobs"]}
                 for choice, score in zip(choices, json.loads(scores.stdout)["scores"], strict=True)]
        trainer = self.file("trainer.jsonl", *lines)
        found = json.loads(self.compare("--json", "--worst", "2", answers, trainer))
        self.assertEqual((found["sequences"], found["tokens"], found["left_out"]), (3, 60, 0))
        differences = [theirs - ours for choice, line in zip(choices, lines) for ours, theirs in zip(choice["logprobs"]["token_logprobs"], line["logprobs"])]
        self.assertAlmostEqual(found["mean_difference"], sum(map(abs, differences)) / 60, 6)
        self.assertAlmostEqual(found["kl_k1"], -sum(differences) / 60, 6)
        self.assertAlmostEqual(abs(found["worst"][0]["difference"]), max(map(abs, differences)), 6)
        self.assertGreater(found["largest_difference"], 0)
        self.assertLess(found["kl_k3"], 0.01)
        text = self.compare(answers, trainer)
        self.assertIn("60 tokens of 3 sequences", text)
        self.assertEqual(len(text.splitlines()), 4 + 1 + 10)
        # Bounds, for a job that watches them.
        self.compare("--max-difference", found["largest_difference"] * 1.01, "--max-kl", found["kl_k3"] * 1.01, answers, trainer)
        self.compare("--max-difference", found["largest_difference"] * 0.99, answers, trainer, status=1)
        self.compare("--max-kl", found["kl_k3"] * 0.99, answers, trainer, status=1)

    def test_a_head_in_f32(self):
        lines = self.file("scores.jsonl", {"prompt": list(range(5, 25)), "continuations": [list(range(30, 60))]})

        def scores(*options):
            done = coppice("score", "--model", TINY, "--deterministic", *options, lines)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["scores"][0]["token_logprobs"]

        exact, rounded, head = scores("--dtype", "f32"), scores("--weights", "bf16"), scores("--weights", "bf16", "--head-dtype", "f32")
        self.assertNotEqual(rounded, head)
        self.assertEqual(scores("--dtype", "f32", "--head-dtype", "f32"), exact)
        self.assertLess(sum(abs(a - b) for a, b in zip(head, exact)) / len(exact), 0.05)
        refused = coppice("score", "--model", TINY, "--head-dtype", "bf16", lines)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("--head-dtype is bf16: expected f32", refused.stderr)

    def test_what_does_not_fit(self):
        one = self.file("one.jsonl", {"token_ids": [1, 2], "logprobs": [-1, -2]})
        self.assertIn("1 sequences and the trainer 2", self.compare(one, self.file("two.jsonl", {"logprobs": [-1, -2]}, {"logprobs": [-1]}), status=2))
        self.assertIn("is 2 in the rollout and 3 in the trainer's file",
                      self.compare(one, self.file("other.jsonl", {"token_ids": [1, 3], "logprobs": [-1, -2]}), status=2))
        wrong = self.compare(one, self.file("wrong.jsonl", {"logprobs": [-1, "x"]}), status=2)
        self.assertIn("wrong.jsonl", wrong)
        self.assertIn('logprobs is "x"', wrong)
        self.compare(one, os.path.join(self.folder, "absent.jsonl"), status=2)
        self.assertIn("largest 0 ", self.compare("--worst", 0, one, one))


if __name__ == "__main__":
    unittest.main()
