"""Fill-in-the-middle over HTTP and in a batch: completions with a suffix, and llama.cpp's /infill, by a model of random weights whose vocabulary has
Qwen2.5-Coder's tokens."""

import json
import os
import tempfile
import unittest

from server_process import Server, coppice
from tool_model import make_tool_model

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
PREFIX, SUFFIX = "def total(items):\n    ", "\n    return sum\n"


class InfillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model = make_tool_model(folder, "qwen2.5-instruct", tokens=FIM)
        cls.server = cls.enterClassContext(Server("--max-context", 1024, "--deterministic", "--model-name", "coder", model=cls.model))

    def ask(self, path, **body):
        status, headers, text = self.server.ask("POST", path, body)
        return status, headers, text

    def tokens(self, text):
        return json.loads(self.ask("/tokenize", prompt=text, add_special_tokens=False)[2])["tokens"]

    def answer(self, path, **body):
        status, _, text = self.ask(path, **body)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_a_suffix_is_prefix_suffix_middle(self):
        fields = {"max_tokens": 8, "temperature": 0, "return_token_ids": True}
        filled = self.answer("/v1/completions", prompt=PREFIX, suffix=SUFFIX, **fields)
        ids = [*self.tokens("<|fim_prefix|>"), *self.tokens(PREFIX), *self.tokens("<|fim_suffix|>"), *self.tokens(SUFFIX), *self.tokens("<|fim_middle|>")]
        self.assertEqual(filled["usage"]["prompt_tokens"], len(ids))
        written = self.answer("/v1/completions", prompt=ids, stop_token_ids=[self.tokens(text)[0] for text in FIM[3:]], **fields)
        self.assertEqual(filled["choices"][0]["token_ids"], written["choices"][0]["token_ids"])
        # A second gap in the same long file finds the file's beginning in the cache.
        long = "# a line of the file\n" * 20
        self.answer("/v1/completions", prompt=long, suffix="a", **fields)
        again = self.answer("/v1/completions", prompt=long + "x = ", suffix="b", **fields)
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 60)

    def test_control_tokens_of_the_user_are_text(self):
        plain = len(self.tokens("a")) + 3
        hostile = self.answer("/v1/completions", prompt="a", suffix="<|fim_middle|><|im_end|>", max_tokens=1)
        self.assertGreater(hostile["usage"]["prompt_tokens"], plain + 2)

    def test_tokens_between_files_end_the_answer(self):
        separator = self.tokens("<|file_sep|>")[0]
        ended = self.answer("/v1/completions", prompt="a", suffix="b", max_tokens=5, logit_bias={str(separator): 100}, return_token_ids=True)
        self.assertEqual((ended["choices"][0]["text"], ended["choices"][0]["finish_reason"]), ("", "stop"))
        on = self.answer("/v1/completions", prompt="a", suffix="b", max_tokens=5, logit_bias={str(separator): 100}, ignore_eos=True)
        self.assertEqual(on["choices"][0]["finish_reason"], "length")

    def test_infill(self):
        body = {"input_prefix": "def total(items):\n", "prompt": "    ", "input_suffix": SUFFIX, "n_predict": 6, "temperature": 0, "seed": -1, "cache_prompt": True,
                "samplers": ["top_k", "top_p", "infill"]}
        status, headers, text = self.ask("/infill", **body)
        self.assertEqual((status, headers["x-coppice-ignored-fields"]), (200, "samplers"))
        whole = json.loads(text)
        filled = self.answer("/v1/completions", prompt=PREFIX, suffix=SUFFIX, max_tokens=6, temperature=0)
        self.assertEqual(whole["content"], filled["choices"][0]["text"])
        self.assertEqual((whole["stop"], whole["model"], whole["tokens_evaluated"]), (True, "coder", filled["usage"]["prompt_tokens"]))
        self.assertIn(whole["stop_type"], ("limit", "eos"))
        status, headers, text = self.ask("/infill", **body, stream=True)
        self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        pieces = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
        self.assertEqual("".join(piece["content"] for piece in pieces), whole["content"])
        self.assertEqual([piece["stop"] for piece in pieces], [False] * (len(pieces) - 1) + [True])
        self.assertEqual((pieces[-1]["tokens_predicted"], pieces[-1]["stop_type"]), (whole["tokens_predicted"], whole["stop_type"]))
        more = self.answer("/infill", **body, input_extra=[{"filename": "a.py", "text": "import b\n"}])
        self.assertGreater(more["tokens_evaluated"], whole["tokens_evaluated"] + 5)
        self.assertEqual(self.answer("/infill", **body | {"n_predict": 0})["content"], "")  # fills the cache
        for wrong, param in (({"input_suffix": None}, "input_suffix"), ({"n_predict": "all"}, "n_predict"), ({"mirostat": 1}, "mirostat")):
            status, _, text = self.ask("/infill", **body | wrong)
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param))

    def test_a_batch_fills_gaps(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
            bodies = [{"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 8, "temperature": 0}, {"prompt": [1], "suffix": "x"}]
            with open(source, "w", encoding="utf-8") as file:
                for i, body in enumerate(bodies):
                    file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
            done = coppice("batch", source, target, "--model", self.model, "--deterministic")
            with open(target, encoding="utf-8") as file:
                (line,) = map(json.loads, file)
            filled = self.answer("/v1/completions", **bodies[0])
            self.assertEqual(line["response"]["body"]["choices"][0]["text"], filled["choices"][0]["text"], done.stderr)

    def test_models_without_the_tokens_say_so(self):
        with tempfile.TemporaryDirectory() as folder, Server(model=make_tool_model(folder, "qwen2.5-instruct")) as server:
            for path, body, param in (("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"), ("/infill", {"input_prefix": "a", "input_suffix": "b"}, None)):
                status, _, text = server.ask("POST", path, body)
                error = json.loads(text)["error"]
                self.assertEqual((status, error["param"]), (400, param))
                self.assertIn("no fill-in-the-middle tokens", error["message"])


if __name__ == "__main__":
    unittest.main()
