"""The default model, SmolLM2-135M-Instruct, against tests/data/smollm2/expected.json: what Hugging Face transformers computed in
float32 from the same file. Skipped only where the model cannot be fetched."""

import json
import os
import unittest

from program import DATA, default_model_or_skip, run_json

TOLERANCE = 2e-3
BF16_MEAN_LIMIT = 0.05

with open(os.path.join(DATA, "smollm2", "expected.json"), encoding="utf-8") as file:
    CASES = json.load(file)
MODEL = default_model_or_skip()


def run(case, dtype):
    return run_json("--model", MODEL, "--dtype", dtype, "--prompt", case["prompt"], "--temperature", 0, "--ignore-eos",
                    "--max-tokens", len(case["greedy_ids"]), "--prompt-logprobs")


class SmolLM2Test(unittest.TestCase):
    def test_f32(self):
        for case in CASES:
            with self.subTest(prompt=case["prompt"]):
                output = run(case, "f32")
                self.assertEqual(output["prompt_ids"], case["prompt_ids"])
                # The expected file has no entry for the first token.
                for got, expected in zip(output["prompt_logprobs"][1:], case["prompt_logprobs"], strict=True):
                    self.assertAlmostEqual(got, expected, delta=TOLERANCE)
                sample = output["samples"][0]
                steps = list(zip(sample["token_ids"], sample["logprobs"], case["greedy_ids"], case["greedy_logprobs"], case["margin_to_second"], strict=True))
                for step, (token, logprob, expected_token, expected_logprob, margin) in enumerate(steps):
                    if margin < TOLERANCE:
                        break  # a tie within the tolerance may fall either way, and what follows depends on it
                    self.assertEqual(token, expected_token, f"step {step}")
                    self.assertAlmostEqual(logprob, expected_logprob, delta=TOLERANCE, msg=f"step {step}")

    def test_bf16(self):
        differences = []
        for case in CASES:
            output = run(case, "bf16")
            self.assertEqual(output["prompt_ids"], case["prompt_ids"])
            differences += [abs(a - b) for a, b in zip(output["prompt_logprobs"][1:], case["prompt_logprobs"], strict=True)]
        mean = sum(differences) / len(differences)
        print(f"bf16: mean absolute difference of {len(differences)} prompt log-probabilities {mean:.4f}, largest {max(differences):.4f}")
        self.assertLess(mean, BF16_MEAN_LIMIT)


if __name__ == "__main__":
    unittest.main()
