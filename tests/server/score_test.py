"""Log-likelihoods of a multiple-choice task: as lm-eval's local-completions client asks for them, by /v1/score and by `coppice score`.
The fixture has those of transformers for the same tokens."""

import array
import json
import math
import os
import struct
import tempfile
import unittest

from server_process import DATA, Server, coppice

MODEL = os.path.join(DATA, "models", "llama-hd64-long")
NUM_CHOICES = 4


def read_tensor(path, name):
    """(values, shape) of a tensor of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    header_size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + header_size])[name]
    begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
    return array.array({"F32": "f", "I32": "i"}[entry["dtype"]], data[begin:end]), entry["shape"]


class Expected:
    """Results of transformers for the fixture's prompt: log-probabilities after each of its tokens."""

    def __init__(self):
        path = os.path.join(MODEL, "expected.safetensors")
        self.prompt = list(read_tensor(path, "prompt")[0])
        self.logits, (_, self.vocab) = read_tensor(path, "logits")

    def logprob(self, place, token):
        """Of `token` in the place behind prompt[:place]."""
        row = self.logits[(place - 1) * self.vocab : place * self.vocab]
        return row[token] - max(row) - math.log(math.fsum(math.exp(value - max(row)) for value in row))

    def greedy(self, place):
        row = self.logits[(place - 1) * self.vocab : place * self.vocab]
        return row.index(max(row))

    def items(self):
        """Questions: (context, choices, their log-likelihoods, whether they are greedy). A choice leaves the prompt with its last token."""
        for begin in range(40, 260, 20):
            choices, scores, greedy = [], [], []
            for choice in range(NUM_CHOICES):
                common = choice % 3
                place = begin + common
                last = self.greedy(place) if choice == begin // 20 % NUM_CHOICES else (self.prompt[place] + 7 * choice) % self.vocab
                choices.append(self.prompt[begin:place] + [last])
                places = range(begin, place + 1)
                scores.append(math.fsum(self.logprob(i, token) for i, token in zip(places, choices[-1])))
                greedy.append(all(self.greedy(i) == token for i, token in zip(places, choices[-1])))
            yield self.prompt[:begin], choices, scores, greedy


def lm_eval_payload(prompts):
    """LocalCompletionsAPI._create_payload of lm-eval 0.4.13, for log-likelihoods."""
    return {"model": "any", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def lm_eval_parse(answer, context_lengths):
    """LocalCompletionsAPI.parse_logprobs of lm-eval 0.4.13."""
    found = []
    for choice, length in zip(sorted(answer["choices"], key=lambda choice: choice["index"]), context_lengths):
        logprobs = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        found.append((sum(logprobs), all(one == max(top.values()) for one, top in zip(logprobs, tops))))
    return found


class ScoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = Expected()
        cls.server = cls.enterClassContext(Server("--deterministic", "--dtype", "f32", model=MODEL))

    def score(self, **body):
        status, _, text = self.server.ask("POST", "/v1/score", body)
        return status, json.loads(text)

    def test_lm_eval_client(self):
        right = total = 0
        for context, choices, scores, _ in self.expected.items():
            prompts = [context + choice for choice in choices]
            status, _, text = self.server.ask("POST", "/v1/completions", lm_eval_payload(prompts))
            self.assertEqual(status, 200, text)
            found = lm_eval_parse(json.loads(text), [len(context)] * len(choices))
            for (logprob, _), score in zip(found, scores):
                self.assertLess(abs(logprob - score), 1e-3)
            chosen = max(range(NUM_CHOICES), key=lambda i: found[i][0])
            right += chosen == max(range(NUM_CHOICES), key=lambda i: scores[i])
            total += 1
        self.assertEqual(right, total)

    def test_scores_are_those_of_transformers(self):
        some_greedy = 0
        for context, choices, scores, greedy in self.expected.items():
            status, answer = self.score(prompt=context, continuations=choices, return_token_ids=True)
            self.assertEqual(status, 200, answer)
            for i, entry in enumerate(answer["scores"]):
                self.assertEqual((entry["index"], entry["token_ids"], entry["num_tokens"]), (i, choices[i], len(choices[i])))
                self.assertLess(abs(entry["logprob"] - scores[i]), 1e-3)
                self.assertEqual(entry["greedy"], greedy[i])
                self.assertAlmostEqual(entry["mean_logprob"], entry["logprob"] / len(choices[i]))
            some_greedy += sum(greedy)
            self.assertEqual(answer["usage"]["prompt_tokens"], len(context) + sum(map(len, choices)))
        self.assertGreater(some_greedy, 0)

    def test_a_score_has_the_bits_of_an_echo(self):
        for context, choices, _, _ in self.expected.items():
            _, answer = self.score(prompt=context, continuations=choices, cache_salt="uncached")
            for _ in range(2):  # the second time all is cached
                self.assertEqual(self.score(prompt=context, continuations=choices)[1]["scores"], answer["scores"])
            for choice, entry in zip(choices, answer["scores"]):
                status, whole = self.server.complete(prompt=context + choice, max_tokens=0, echo=True, logprobs=0)
                self.assertEqual(status, 200, whole)
                self.assertEqual(whole["choices"][0]["logprobs"]["token_logprobs"][len(context) :], entry["token_logprobs"])
                self.assertEqual(whole["choices"][0]["finish_reason"], "length")
                self.assertEqual(whole["usage"]["completion_tokens"], 0)

    def test_a_prefix_and_a_cached_prompt_are_not_computed_again(self):
        context, choices, _, _ = next(self.expected.items())
        status, _, text = self.server.ask("PUT", "/v1/prefixes/p", {"prompt": context[:-4]})
        self.assertEqual(status, 200, text)
        _, named = self.score(prefix="p", prompt=context[-4:], continuations=choices)
        _, whole = self.score(prompt=context, continuations=choices)
        self.assertEqual(named["scores"], whole["scores"])
        computed = self.server.metric("coppice_prefill_tokens_total")
        self.score(prompt=context, continuations=choices)
        # The token before the choices, and those of the choices that others follow.
        self.assertLessEqual(self.server.metric("coppice_prefill_tokens_total") - computed, 1 + 2 * NUM_CHOICES)

    def test_refusals(self):
        self.assertEqual(self.score(prompt=[1], continuations=[[300]])[0], 400)
        self.assertEqual(self.score(prompt=[1], continuations=[])[1]["error"]["param"], "continuations")
        self.assertEqual(self.score(prompt=[1], continuations=[[2]], temperature=1)[0], 200)  # it changes no score
        self.assertEqual(self.score(prompt="text", continuations=["x"])[0], 400)  # no tokenizer

    def test_the_command_says_what_the_server_says(self):
        items = list(self.expected.items())
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for context, choices, _, _ in items:
                file.write(json.dumps({"prompt": context, "continuations": choices}) + "\n\n")
            file.flush()
            done = coppice("score", "--model", MODEL, "--deterministic", "--dtype", "f32", file.name)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(file.name, encoding="utf-8") as lines:
                piped = coppice("score", "--model", MODEL, "--deterministic", "--dtype", "f32", "-", stdin=lines.read())
            self.assertEqual([json.loads(line)["scores"] for line in piped.stdout.splitlines()],
                             [json.loads(line)["scores"] for line in done.stdout.splitlines()])
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            self.assertEqual(len(lines), len(items))
            for line, (context, choices, _, _) in zip(lines, items):
                self.assertEqual(line["scores"], self.score(prompt=context, continuations=choices)[1]["scores"])
            file.write("[]\n{\"prompt\": [1]}\n")
            file.flush()
            done = coppice("score", "--model", MODEL, "--queue", 1, file.name)
            self.assertEqual(done.returncode, 1)
            errors = [json.loads(line) for line in done.stdout.splitlines()][len(items) :]
            self.assertEqual([error["error"]["param"] for error in errors], ["body", "continuations"])
            self.assertEqual(errors[1]["line"], 2 * len(items) + 2)


if __name__ == "__main__":
    unittest.main()
