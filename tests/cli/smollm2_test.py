"""The default model, SmolLM2-135M-Instruct, against tests/data/smollm2/expected.json: what Hugging Face transformers computed in
float32 from the same file. On the device of COPPICE_TEST_DEVICE, or the ranks of a list, cpu if unset. Skipped only where the model cannot be fetched."""

import json
import os
import unittest

from program import DATA, coppice, default_model_or_skip, run_json

DEVICE = os.environ.get("COPPICE_TEST_DEVICE", "cpu")
ON_CPU = set(DEVICE.split(",")) == {"cpu"}
F32_LIMIT = 2e-3
# Of the differences of prompt log-probabilities in the default dtype, mean and largest: bf16 on CPUs, f16 on GPUs (docs/numerics.md).
MEAN_LIMIT, LARGEST_LIMIT = (0.05, 0.5) if ON_CPU else (0.015, 0.15)
SURE_MARGIN = 0.1  # between the two most probable tokens: closer ones may go either way in 16 bits

with open(os.path.join(DATA, "smollm2", "expected.json"), encoding="utf-8") as file:
    CASES = json.load(file)
MODEL = default_model_or_skip()


def run(case, *options):
    return run_json("--model", MODEL, "--device", DEVICE, *options, "--prompt", case["prompt"], "--temperature", 0, "--ignore-eos", "--max-tokens",
                    len(case["greedy_ids"]), "--prompt-logprobs")


def prompt_differences(output, case):
    """Of the log-probabilities of the prompt's tokens; the expected file has no entry for the first."""
    return [abs(got - expected) for got, expected in zip(output["prompt_logprobs"][1:], case["prompt_logprobs"], strict=True)]


class SmolLM2Test(unittest.TestCase):
    def expect_greedy(self, output, case, margin_limit, logprob_limit):
        """The same tokens up to one that may fall either way: what follows depends on it."""
        sample = output["samples"][0]
        steps = zip(sample["token_ids"], sample["logprobs"], case["greedy_ids"], case["greedy_logprobs"], case["margin_to_second"], strict=True)
        for step, (token, logprob, expected_token, expected_logprob, margin) in enumerate(steps):
            if token != expected_token:
                self.assertLess(margin, margin_limit, f"step {step}: token {token}, expected {expected_token}")
                break
            self.assertAlmostEqual(logprob, expected_logprob, delta=logprob_limit, msg=f"step {step}")

    @unittest.skipIf(not ON_CPU, "GPUs compute in 16 bits")
    def test_f32(self):
        for case in CASES:
            with self.subTest(prompt=case["prompt"]):
                output = run(case, "--dtype", "f32")
                self.assertEqual(output["prompt_ids"], case["prompt_ids"])
                self.assertLess(max(prompt_differences(output, case)), F32_LIMIT)
                self.expect_greedy(output, case, F32_LIMIT, F32_LIMIT)

    def test_default_dtype(self):
        differences = []
        for case in CASES:
            with self.subTest(prompt=case["prompt"]):
                output = run(case)
                self.assertEqual(output["prompt_ids"], case["prompt_ids"])
                self.assertEqual(output["stats"]["dtype"], "bf16" if ON_CPU else "f16")
                differences += prompt_differences(output, case)
                self.expect_greedy(output, case, SURE_MARGIN, LARGEST_LIMIT)
        mean = sum(differences) / len(differences)
        print(f"{len(differences)} prompt log-probabilities: mean absolute difference {mean:.4f}, largest {max(differences):.4f}")
        self.assertLess(mean, MEAN_LIMIT)
        self.assertLess(max(differences), LARGEST_LIMIT)

    def test_a_final_newline_is_no_part_of_a_piped_prompt(self):
        def prompt_ids(*args, stdin=""):
            return run_json("--model", MODEL, "--device", DEVICE, "--max-tokens", 1, *args, stdin=stdin)["prompt_ids"]

        text = "The capital of France is"
        ids = prompt_ids("--prompt", text)
        self.assertEqual(prompt_ids(stdin=text + "\n"), ids)
        self.assertEqual(prompt_ids(stdin=text + "\r\n"), ids)
        self.assertEqual(prompt_ids(stdin=text), ids)
        self.assertEqual(prompt_ids("--prompt-file", "-", stdin=text + "\n"), ids)
        done = coppice("run", "--model", MODEL, "--device", DEVICE, "--json-schema", "-", stdin="{}")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("read already", done.stderr)
        self.assertEqual(prompt_ids("--keep-newline", stdin=text + "\n"), prompt_ids("--prompt", text + "\n"))
        self.assertNotEqual(prompt_ids("--keep-newline", stdin=text + "\n"), ids)

    def test_a_vote_that_stops(self):
        options = ("--model", MODEL, "--device", DEVICE, "--deterministic", "--prompt", "Tom has 3 apples and gets 2 more. He has", "--regex", "( [0-9]| [a-z]+){4,12}[.]",
                   "-n", 24, "--max-running", 6, "--max-tokens", 24, "--seed", 5, "--temperature", 0.4, "--vote", "apples?")
        whole, stopped = run_json(*options), run_json(*options, "--vote-stop")
        self.assertEqual(len(whole["samples"]), 24)
        by_index = {sample["index"]: sample["token_ids"] for sample in whole["samples"]}
        for sample in stopped["samples"]:
            self.assertEqual(sample["token_ids"], by_index[sample["index"]])  # each is what it is without
        self.assertEqual(stopped["votes"][0]["answer"], whole["votes"][0]["answer"])
        self.assertLess(len(stopped["samples"]), 24)
        self.assertLess(stopped["stats"]["generated_tokens"], whole["stats"]["generated_tokens"])


if __name__ == "__main__":
    unittest.main()
