"""The example of a model class for lm-eval: the accuracy that transformers has on a multiple-choice task (tests/data/lm_eval)."""

import json
import os
import sys
import unittest
from types import SimpleNamespace

import long_packages

import examples_test

FOLDER = os.path.join(examples_test.ROOT, "tests", "data", "lm_eval")


class LmEvalModel(unittest.TestCase):
    def test_accuracy_is_that_of_transformers(self):
        packages = long_packages.install_or_skip("lm-eval")
        with open(os.path.join(FOLDER, "reference.json"), encoding="utf-8") as file:
            expected = json.load(file)["accuracy"]
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        model = examples_test.default_model_or_skip()
        os.chdir(FOLDER)  # the task names its data from here
        said = examples_test.run("lm_eval_model.py", model, "coppice_questions", ".", packages=packages)
        self.assertAlmostEqual(json.loads(said.splitlines()[-1])["coppice_questions"]["acc,none"], expected)

    def test_texts_and_generation(self):
        sys.path += [long_packages.install_or_skip("lm-eval"), os.path.join(examples_test.ROOT, "examples", "python")]
        from lm_eval_model import CoppiceLM

        model = CoppiceLM(examples_test.default_model_or_skip(), device="cpu", dtype="f32", weights="f32", max_context=64)
        texts = ["The capital of France is Paris.", "One two three four five six seven. " * 12]  # the second one is longer than a window
        said = model.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in texts])
        bos = model.llm.model_info["bos_token_id"]
        [whole] = model.llm.score([bos], [model.llm.tokenize(texts[0], add_special=False)])
        self.assertAlmostEqual(said[0], whole.logprob, places=3)
        self.assertLess(said[1], said[0])
        options = {"until": ["."], "max_gen_toks": 16}
        [paris, short] = model.generate_until([SimpleNamespace(args=("The capital of France is", options)), SimpleNamespace(args=("A", {"max_gen_toks": 1}))])
        self.assertIn("Paris", paris)
        self.assertNotIn(".", paris)
        self.assertEqual(len(model.llm.tokenize(short, add_special=False)), 1)


if __name__ == "__main__":
    unittest.main()
