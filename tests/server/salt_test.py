"""Salts isolate, exactly: a prompt that another salt has cached costs a server as much as a new prompt."""

import json
import random
import unittest

from server_process import Server

COUNTERS = ("coppice_prefill_tokens_total", "coppice_cached_tokens_total", "coppice_kv_read_bytes_total", "coppice_kv_read_unshared_bytes_total",
            "coppice_steps_total")


class SaltTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(7)

    def prompt(self, length):
        return [self.random.randrange(3, 250) for _ in range(length)]

    def cost(self, server, **fields):
        """Increments of the counters by a completion, and the cached tokens that its answer reports."""
        before = [server.metric(name) for name in COUNTERS]
        status, answer = server.complete(max_tokens=2, temperature=0, **fields)
        self.assertEqual(status, 200, answer)
        return [server.metric(name) - value for name, value in zip(COUNTERS, before)], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_another_salts_prompt_costs_what_a_new_one_does(self):
        with Server() as server:
            for length in (1, 15, 16, 17, 200, 513):
                known, unknown = self.prompt(length), self.prompt(length)
                first = self.cost(server, prompt=known, cache_salt="a")
                for salt in ({"cache_salt": "b"}, {}, {"cache_salt": "a "}):
                    self.assertEqual(self.cost(server, prompt=known, **salt), first, (length, salt))
                self.assertEqual(self.cost(server, prompt=unknown, cache_salt="b"), first, length)
                if length > 16:  # a page; the same salt finds it
                    cost, cached = self.cost(server, prompt=known, cache_salt="a")
                    self.assertGreater(cached, 0)
                    self.assertLess(cost[0], first[0][0])

    def test_a_private_part_behind_a_shared_one(self):
        """The tokens before cache_private_begin are shared, those behind it are the salt's."""
        with Server() as server:
            shared, known, unknown = self.prompt(64), self.prompt(100), self.prompt(100)
            self.cost(server, prompt=shared + known, cache_salt="a", cache_private_begin=64)
            of_known = self.cost(server, prompt=shared + known, cache_salt="b", cache_private_begin=64)
            of_unknown = self.cost(server, prompt=shared + unknown, cache_salt="b", cache_private_begin=64)
            self.assertEqual(of_known, of_unknown)
            self.assertEqual(of_known[1], 64)

    def test_streams_report_no_more(self):
        with Server() as server:
            known, unknown = self.prompt(100), self.prompt(100)
            server.complete(prompt=known, cache_salt="a", max_tokens=1)
            usages = []
            for prompt in (known, unknown):
                _, _, text = server.ask("POST", "/v1/completions", {"prompt": prompt, "cache_salt": "b", "max_tokens": 1, "ignore_eos": True,
                                                                    "stream": True, "stream_options": {"include_usage": True}})
                frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                usages.append(frames[-1]["usage"])
            self.assertEqual(usages[0], usages[1])
            self.assertEqual(usages[0]["prompt_tokens_details"]["cached_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
