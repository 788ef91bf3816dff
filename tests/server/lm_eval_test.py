"""lm-eval itself, by its local-completions client, asks a multiple-choice task of the default model: the accuracy and, item by item, the
log-likelihoods are those of Hugging Face transformers (tests/data/lm_eval)."""

import glob
import json
import os
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


def run_lm_eval(packages, url, output):
    """(results, samples) of the task, which needs nothing from the network but the server."""
    arguments = ["--model", "local-completions", "--model_args", f"base_url={url}/v1/completions,model=any,num_concurrent=1", "--tasks", TASK,
                 "--include_path", ".", "--batch_size", "8", "--log_samples", "--output_path", output]
    environment = os.environ | {"PYTHONPATH": packages, "HF_HOME": output, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", "lm_eval", *arguments], cwd=FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    (results,) = glob.glob(os.path.join(output, "**", "results_*.json"), recursive=True)
    (samples,) = glob.glob(os.path.join(output, "**", f"samples_{TASK}_*.jsonl"), recursive=True)
    with open(samples, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return read_json(results)["results"][TASK], sorted(lines, key=lambda line: line["doc_id"])


class LmEvalTest(unittest.TestCase):
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
