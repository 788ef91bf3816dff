"""gemma3-270m, a base model, in the file that `coppice pull` brings: it goes on with the expected word behind at least ten of the
twelve beginnings of tests/data/gemma3/questions.jsonl, greedily. Skipped where the model cannot be fetched."""

import json
import os
import re
import unittest

from program import DATA, pulled_model_or_skip, run_json

with open(os.path.join(DATA, "gemma3", "questions.jsonl"), encoding="utf-8") as file:
    QUESTIONS = [json.loads(line) for line in file]
MODEL = pulled_model_or_skip("gemma3-270m")


class Gemma3Test(unittest.TestCase):
    def test_questions(self):
        missed = []
        for item in QUESTIONS:
            output = run_json("--model", MODEL, "--prompt", item["question"], "--temperature", 0, "--max-tokens", 12)
            text = output["samples"][0]["text"]
            if not re.search(rf"\b{item['answer']}\b", text, re.IGNORECASE):
                missed.append((item["question"], item["answer"], text))
        print(f"{len(QUESTIONS) - len(missed)} of {len(QUESTIONS)} answered; missed: {missed}")
        self.assertEqual(len(QUESTIONS), 12)
        self.assertLessEqual(len(missed), 2)


if __name__ == "__main__":
    unittest.main()
