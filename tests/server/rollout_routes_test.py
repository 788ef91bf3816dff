"""Requests of trainers: vLLM's /inference/v1/generate and additions to completions, SGLang's /generate, log-probabilities of both kinds, groups
of requests. Each answer is compared with that of another route, or with what follows from the model's own distribution."""

import hashlib
import json
import math
import os
import tempfile
import threading
import unittest

from server_process import Server

PROMPT = [5, 6, 7, 9, 11, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54]
SAMPLING = {"max_tokens": 12, "temperature": 0.7, "seed": 3, "ignore_eos": True}


def events(text):
    data = [line[len("data: "):] for line in text.split("\n\n") if line and not line.startswith(":")]
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(item) for item in data[:-1]]


class RolloutRoutesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-running", 8, "--deterministic"))

    def post(self, path, body, status=200, server=None):
        found, _, text = (server or self.server).ask("POST", path, body)
        self.assertEqual(found, status, text)
        return json.loads(text)

    def tokens(self, server=None, status=200, sampling=None, **fields):
        return self.post("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": SAMPLING | (sampling or {})} | fields, status, server)

    def test_tokens_are_those_of_a_completion(self):
        status, completion = self.server.complete(prompt=PROMPT, n=2, logprobs=3, **SAMPLING)
        self.assertEqual(status, 200)
        answer = self.tokens(sampling={"n": 2, "logprobs": 3}, request_id="mine", priority=1, cache_salt="x")
        self.assertEqual(answer["request_id"], "mine")
        self.assertEqual(answer["usage"]["completion_tokens"], 24)
        for choice, expected in zip(answer["choices"], completion["choices"], strict=True):
            self.assertEqual(choice["token_ids"], expected["token_ids"])
            self.assertEqual(choice["finish_reason"], "length")
            self.assertEqual(choice["weight_versions"], [{"version": "0", "start": 0, "end": 12}])
            for entry, token, logprob in zip(choice["logprobs"]["content"], choice["token_ids"], expected["logprobs"]["token_logprobs"], strict=True):
                self.assertEqual(entry["token_id"], token)
                self.assertAlmostEqual(entry["logprob"], logprob, 4)
                self.assertEqual(entry["top_logprobs"][0]["token_id"], token)
                others = entry["top_logprobs"][1:]
                self.assertIn(len(others), (2, 3))
                self.assertEqual(sum(other["logprob"] > entry["logprob"] for other in others), min(3, entry["rank"] - 1))

    def test_streams_say_what_whole_answers_say(self):
        whole = self.tokens(sampling={"n": 2, "logprobs": 1})
        for kind, objects in ((1, 24), (2, 2)):
            body = {"token_ids": PROMPT, "sampling_params": SAMPLING | {"n": 2, "logprobs": 1, "output_kind": kind}, "stream": True}
            status, _, text = self.server.ask("POST", "/inference/v1/generate", body)
            self.assertEqual(status, 200, text)
            received = events(text)
            self.assertEqual(len(received), objects)
            for choice in whole["choices"]:
                parts = [part["choices"][0] for part in received if part["choices"][0]["index"] == choice["index"]]
                self.assertEqual(sum((part["token_ids"] for part in parts), []), choice["token_ids"])
                self.assertEqual(sum((part["logprobs"]["content"] for part in parts), []), choice["logprobs"]["content"])
                self.assertEqual(parts[-1]["finish_reason"], "length")
                self.assertEqual(parts[-1]["weight_versions"], choice["weight_versions"])

    def test_stops_are_reported(self):
        free = self.tokens()["choices"][0]["token_ids"]
        stop = free[4]
        choice = self.tokens(sampling={"stop_token_ids": [stop]})["choices"][0]
        self.assertEqual(choice["token_ids"], free[: free.index(stop) + 1])
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))

    def test_processed_logprobs_are_of_what_is_drawn_from(self):
        """They are the raw ones after temperature and top_k."""
        raw = self.tokens(sampling={"logprobs": 128})["choices"][0]
        both = [self.tokens(sampling={"logprobs": 128, "logprobs_mode": mode, "top_k": 20})["choices"][0] for mode in ("raw", "processed")]
        self.assertEqual(both[0]["token_ids"], both[1]["token_ids"])
        first = raw["logprobs"]["content"][0]
        logits = sorted((other["logprob"] for other in first["top_logprobs"]), reverse=True)[:20]
        total = math.log(sum(math.exp(logit / 0.7) for logit in logits))
        processed = both[1]["logprobs"]["content"][0]
        unprocessed = both[0]["logprobs"]["content"][0]
        self.assertAlmostEqual(processed["logprob"], unprocessed["logprob"] / 0.7 - total, 4)
        self.assertEqual(processed["rank"], unprocessed["rank"])
        self.assertEqual(len(processed["top_logprobs"]), 20)  # the token and 19 others: nothing else may come
        self.assertAlmostEqual(sum(math.exp(other["logprob"]) for other in processed["top_logprobs"]), 1, 5)
        # Of the prompt: at the temperature.
        sides = [self.tokens(sampling={"prompt_logprobs": 5, "logprobs_mode": mode, "top_k": 20})["prompt_logprobs"] for mode in ("raw", "processed")]
        for of_model, at_temperature in zip(sides[0][1:], sides[1][1:], strict=True):
            self.assertEqual({token: entry["rank"] for token, entry in of_model.items()}, {token: entry["rank"] for token, entry in at_temperature.items()})
            best = min(of_model, key=lambda token: of_model[token]["rank"])
            for token, entry in of_model.items():
                distance = at_temperature[best]["logprob"] - at_temperature[token]["logprob"]
                self.assertAlmostEqual(distance, (of_model[best]["logprob"] - entry["logprob"]) / 0.7, 4)
        with Server("--deterministic", "--logprobs-mode", "processed_logprobs") as server:
            self.assertEqual(self.tokens(server, sampling={"logprobs": 128, "top_k": 20})["choices"][0]["logprobs"], both[1]["logprobs"])
            status, completion = server.complete(prompt=PROMPT, logprobs=0, top_k=20, **SAMPLING)
            self.assertEqual(status, 200)
            self.assertAlmostEqual(completion["choices"][0]["logprobs"]["token_logprobs"][0], processed["logprob"], 5)

    def test_prompts_have_logprobs_by_id(self):
        _, echoed = self.server.complete(prompt=PROMPT, echo=True, logprobs=5, max_tokens=0)
        expected = echoed["choices"][0]["logprobs"]["token_logprobs"]
        status, completion = self.server.complete(prompt=[PROMPT, [8, 9]], n=2, prompt_logprobs=100, return_token_ids=True, max_tokens=1)
        self.assertEqual(status, 200)
        self.assertEqual([len(choice["prompt_logprobs"]) for choice in completion["choices"]], [20, 20, 2, 2])
        self.assertEqual([choice["prompt_token_ids"] for choice in completion["choices"]], [PROMPT, PROMPT, [8, 9], [8, 9]])
        # The fields that TRL sends and reads.
        status, trl = self.server.complete(prompt=[PROMPT, [8, 9]], n=2, logprobs=0, return_token_ids=True, return_tokens_as_token_ids=True,
                                           max_tokens=3, top_k=0, min_p=0.0, repetition_penalty=1.0)
        self.assertEqual(status, 200)
        for choice in trl["choices"]:
            of_tokens = choice["logprobs"]
            self.assertEqual(of_tokens["tokens"], [f"token_id:{token}" for token in choice["token_ids"]])
            self.assertEqual(of_tokens["top_logprobs"], [{name: value} for name, value in zip(of_tokens["tokens"], of_tokens["token_logprobs"])])
        for logprobs in (completion["choices"][1]["prompt_logprobs"], self.tokens(sampling={"prompt_logprobs": 100})["prompt_logprobs"]):
            self.assertIsNone(logprobs[0])
            for token, of_place, value in zip(PROMPT[1:], logprobs[1:], expected[1:], strict=True):
                own = of_place[str(token)]
                self.assertAlmostEqual(own["logprob"], value, 4)
                self.assertIn(len(of_place), (100, 101))
                ranks = sorted(entry["rank"] for entry in of_place.values())
                self.assertEqual(ranks[:100], list(range(1, 101)))
                self.assertEqual(own["rank"], 1 + sum(entry["logprob"] > own["logprob"] for entry in of_place.values()) if own["rank"] <= 100 else ranks[-1])

    def test_sglangs_route_says_the_same(self):
        sampling = {"max_new_tokens": 12, "temperature": 0.7, "sampling_seed": 3, "ignore_eos": True}
        expected = self.tokens(sampling={"logprobs": 2, "prompt_logprobs": 2})
        body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "rid": "r"}
        answer = self.post("/generate", body)
        self.assertEqual(answer["output_ids"], expected["choices"][0]["token_ids"])
        meta = answer["meta_info"]
        self.assertEqual((meta["id"], meta["weight_version"], meta["prompt_tokens"], meta["completion_tokens"]), ("r", "0", 20, 12))
        self.assertEqual(meta["finish_reason"], {"type": "length", "length": 12})
        for (logprob, token, text), entry in zip(meta["output_token_logprobs"], expected["choices"][0]["logprobs"]["content"], strict=True):
            self.assertEqual((token, text), (entry["token_id"], None))
            self.assertAlmostEqual(logprob, entry["logprob"], 4)
        self.assertEqual(meta["input_token_logprobs"][0], [None, 5, None])
        for (logprob, token, _), of_place in zip(meta["input_token_logprobs"][1:], expected["prompt_logprobs"][1:], strict=True):
            self.assertAlmostEqual(logprob, of_place[str(token)]["logprob"], 4)
        self.assertEqual([len(top) for top in meta["output_top_logprobs"]], [2] * 12)
        # From a place on: what lies before it comes from the cache.
        later = self.post("/generate", body | {"logprob_start_len": 18})["meta_info"]
        self.assertGreaterEqual(later["cached_tokens"], 16)
        self.assertEqual(len(later["input_token_logprobs"]), 2)
        for (logprob, token, _), (other, same, _) in zip(later["input_token_logprobs"], meta["input_token_logprobs"][18:], strict=True):
            self.assertEqual(token, same)
            self.assertAlmostEqual(logprob, other, 3)
        self.assertEqual(self.post("/generate", body | {"logprob_start_len": 20})["meta_info"]["input_token_logprobs"], [])
        status, _, text = self.server.ask("POST", "/generate", body | {"logprob_start_len": 21})
        self.assertEqual(status, 400, text)
        self.assertIn("logprob_start_len is 21 and the prompt has 20 tokens", text)
        # A list of prompts, and a stream that reports all that there is.
        both = self.post("/generate", {"input_ids": [PROMPT, PROMPT], "sampling_params": sampling})
        self.assertEqual([one["output_ids"] for one in both], [answer["output_ids"]] * 2)
        status, _, text = self.server.ask("POST", "/generate", body | {"stream": True})
        self.assertEqual(status, 200)
        received = events(text)
        self.assertEqual([len(part["output_ids"]) for part in received], list(range(1, 13)))
        self.assertEqual(received[-1]["output_ids"], answer["output_ids"])
        self.assertEqual(received[-1]["meta_info"]["output_token_logprobs"], meta["output_token_logprobs"])

    def test_the_rest_of_a_group_ends_as_aborted(self):
        answers = []

        def ask(tokens):
            answers.append(self.tokens(group_id="g", min_answered=2, sampling={"max_tokens": tokens})["choices"][0])

        threads = [threading.Thread(target=ask, args=(tokens,)) for tokens in (4, 8, 1500, 1500, 1500, 1500, 1500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ask(100)  # it comes when the group is over
        self.assertEqual(sorted(choice["finish_reason"] for choice in answers), ["abort"] * 6 + ["length"] * 2)
        self.assertEqual(answers[-1]["token_ids"], [])
        status, other = self.server.complete(group_id="other", min_answered=1, max_tokens=3)
        self.assertEqual((status, other["choices"][0]["finish_reason"]), (200, "length"))
        status, aborted = self.server.complete(group_id="other", min_answered=1, max_tokens=3)
        self.assertEqual((status, aborted["choices"][0]["finish_reason"]), (200, "abort"))
        status, refused = self.server.complete(min_answered=1)
        self.assertEqual((status, refused["error"]["message"]), (400, "min_answered is 1, but the request has no group: name one (group_id)"))

    def test_keys_have_groups_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="ascii") as file:
                for name in ("alice", "bob"):
                    file.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n")
            with Server("--api-keys", keys) as server:
                body = {"token_ids": PROMPT, "sampling_params": SAMPLING, "group_id": "g", "min_answered": 1}
                reasons = []
                for name in ("alice", "bob", "alice", "bob"):
                    status, _, text = server.ask("POST", "/inference/v1/generate", body, {"Authorization": f"Bearer {name}"})
                    self.assertEqual(status, 200, text)
                    reasons.append(json.loads(text)["choices"][0]["finish_reason"])
                self.assertEqual(reasons, ["length", "length", "abort", "abort"])

    def test_what_is_wrong_is_named(self):
        for path, body, param in (("/inference/v1/generate", {"token_ids": []}, "token_ids"),
                                  ("/inference/v1/generate", {"token_ids": PROMPT, "priority": -1}, "priority"),
                                  ("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {"logprobs": 129}}, "sampling_params.logprobs"),
                                  ("/generate", {"sampling_params": {}}, "text"),
                                  ("/generate", {"input_ids": PROMPT, "lora_path": "x"}, "lora_path")):
            self.assertEqual(self.post(path, body, 400)["error"]["param"], param)
        message = self.tokens(priority=-1, status=400)["error"]["message"]
        self.assertIn("lower numbers come first", message)
        self.assertEqual(self.tokens(sampling={"n": 129}, status=400)["error"]["param"], "sampling_params.n")
        many = {"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 129}]}
        self.assertEqual(self.post("/generate", many, 400)["error"]["param"], "sampling_params.n")


if __name__ == "__main__":
    unittest.main()
