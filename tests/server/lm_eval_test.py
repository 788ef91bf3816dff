"""lm-eval itself, by its local-completions client, asks a multiple-choice task of the default model: the accuracy and, item by item, the
log-likelihoods are those of Hugging Face transformers (tests/data/lm_eval). With few shots, what options and questions have in common is computed once."""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from packages import install_or_skip
from server_process import DATA, Server, default_model_or_skip

FOLDER = os.path.join(DATA, "lm_eval")
LARGEST_DIFFERENCE = 0.05
TASK = "coppice_questions"


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def run_lm_eval(packages, url, output, task=TASK, concurrent=1):
    """(results, samples) of a task, which needs nothing from the network but the server."""
    arguments = ["--model", "local-completions", "--model_args", f"base_url={url}/v1/completions,model=any,num_concurrent={concurrent}", "--tasks", task,
                 "--include_path", ".", "--batch_size", "8", "--log_samples", "--output_path", output]
    environment = os.environ | {"PYTHONPATH": packages, "HF_HOME": output, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", "lm_eval", *arguments], cwd=FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    (results,) = glob.glob(os.path.join(output, "**", "results_*.json"), recursive=True)
    (samples,) = glob.glob(os.path.join(output, "**", f"samples_{task}_*.jsonl"), recursive=True)
    with open(samples, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return read_json(results)["results"][task], sorted(lines, key=lambda line: line["doc_id"])


class LmEvalTest(unittest.TestCase):
    def test_a_context_of_few_shots_is_computed_once(self):
        """Beside a server that computes each prompt whole, as all did before log-probabilities stayed in the cache."""
        packages = install_or_skip("lm-eval")
        for task, concurrent, times in (("coppice_first_shots", 1, 6), ("coppice_few_shots", 1, 2.5), ("coppice_few_shots", 8, 2.5)):
            with Server("--threads", 2, model=default_model_or_skip()) as server, tempfile.TemporaryDirectory() as output:
                _, samples = run_lm_eval(packages, server.url, output, task, concurrent)
                computed = server.metric("coppice_prefill_tokens_total")
                asked = sum(map(int, re.findall(r"POST /v1/completions 200 .* s, (\d+)\+\d+ tokens", server.logged())))
            self.assertEqual(len(samples), 30)
            print(f"{task}, {concurrent} at a time: {asked} prompt tokens, {computed:.0f} of them computed, {asked / computed:.2f} times fewer")
            self.assertGreater(asked / computed, times)

    def test_accuracy_and_log_likelihoods_are_those_of_transformers(self):
        packages = install_or_skip("lm-eval")  # 700 MB
        reference = read_json(os.path.join(FOLDER, "reference.json"))
        with Server("--dtype", "f32", "--weights", "f32", model=default_model_or_skip()) as server, tempfile.TemporaryDirectory() as output:
            results, samples = run_lm_eval(packages, server.url, output)
        self.assertEqual(len(samples), len(reference["items"]))
        largest = 0
        for sample, expected in zip(samples, reference["items"]):
            for answer, logprob, greedy in zip(sample["filtered_resps"], expected["logprobs"], expected["greedy"], strict=True):
                largest = max(largest, abs(float(answer[0]) - logprob))
                self.assertEqual(str(answer[1]), str(greedy), sample["doc"])
        print(f"largest difference of a log-likelihood: {largest:.2g}; accuracy: {results['acc,none']:.3f}")
        self.assertLess(largest, LARGEST_DIFFERENCE)
        self.assertAlmostEqual(results["acc,none"], reference["accuracy"])
        self.assertGreater(reference["accuracy"], 0.5)  # the task means something to this model


if __name__ == "__main__":
    unittest.main()
