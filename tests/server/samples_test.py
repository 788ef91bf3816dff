"""Samples that clients keep: /v1/samples. A child says what a completion of its own says after the same tokens; another key or salt
finds nothing."""

import hashlib
import http.client
import json
import os
import tempfile
import threading
import time
import unittest

from server_process import DEVICE, Server, default_model_or_skip

PROMPT = [5, 6, 7, 8, 9, 10]
ARGS = [] if DEVICE else ["--dtype", "f32", "--deterministic"]


def frames_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


class SamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(*ARGS))

    def ask(self, method, path, body=None, status=200, headers=None, server=None):
        code, _, text = (server or self.server).ask(method, path, body, headers)
        self.assertEqual(code, status, text)
        return json.loads(text)

    def start(self, server=None, headers=None, **fields):
        body = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 6, "temperature": 0, "keep": 60} | fields
        return self.ask("POST", "/v1/completions", body, server=server, headers=headers)

    def verb(self, sample, verb, status=200, server=None, headers=None, **fields):
        return self.ask("POST", f"/v1/samples/{sample}/{verb}", fields, status, server=server, headers=headers)

    def fresh(self, prompt, **fields):
        status, answer = self.server.complete(**{"prompt": prompt, "max_tokens": 6, "temperature": 0} | fields)
        self.assertEqual(status, 200, answer)
        return [choice["token_ids"] for choice in answer["choices"]]

    def test_a_tree_grows(self):
        answer = self.start(n=2, temperature=1, seed=3)
        first, second = answer["choices"]
        self.assertNotEqual(first["sample_id"], second["sample_id"])
        behind = PROMPT + second["token_ids"]
        forked = self.verb(second["sample_id"], "fork", n=3, keep_tokens=2, seed=7)
        self.assertEqual([choice["token_ids"] for choice in forked["choices"]], self.fresh(behind[:-4], n=3, seed=7, temperature=1))
        self.assertEqual([choice["index"] for choice in forked["choices"]], [0, 1, 2])
        self.assertEqual((forked["object"], forked["usage"]["prompt_tokens"], forked["usage"]["completion_tokens"]), ("text_completion", 8, 18))
        [child] = self.verb(second["sample_id"], "fork", temperature=0)["choices"]
        self.assertEqual([child["token_ids"]], self.fresh(behind))
        [grandchild] = self.verb(child["sample_id"], "fork", max_tokens=2, top_k=3)["choices"]  # it draws as its parent: greedily
        self.assertEqual([grandchild["token_ids"]], self.fresh(behind + child["token_ids"], max_tokens=2))
        shown = self.ask("GET", "/v1/samples/" + grandchild["sample_id"])
        self.assertEqual(shown["token_ids"], behind + child["token_ids"] + grandchild["token_ids"])
        self.assertEqual((shown["object"], shown["id"], shown["prompt_tokens"], shown["finished"]), ("sample", grandchild["sample_id"], len(PROMPT), True))
        self.assertTrue(time.time() + 50 < shown["expires"] < time.time() + 70)

    def test_answers_have_the_form_of_the_request(self):
        [choice] = self.start(logprobs=1, return_token_ids=True, return_tokens_as_token_ids=True)["choices"]
        self.assertEqual(choice["prompt_token_ids"], PROMPT)
        for answer in (self.verb(choice["sample_id"], "fork"), self.verb(choice["sample_id"], "extend", token_ids=[40])):
            [grown] = answer["choices"]
            self.assertEqual(grown["logprobs"]["tokens"], [f"token_id:{token}" for token in grown["token_ids"]])
            self.assertNotIn("prompt_token_ids", grown)  # what GET says, not an empty list

    def test_a_sample_is_extended(self):
        [choice] = self.start()["choices"]
        turns = PROMPT + choice["token_ids"]
        for tool in ([40, 41], [42]):
            answer = self.verb(choice["sample_id"], "extend", token_ids=tool)
            [on] = answer["choices"]
            self.assertEqual(on["sample_id"], choice["sample_id"])
            self.assertEqual([on["token_ids"]], self.fresh(turns + tool))
            self.assertEqual(answer["usage"]["prompt_tokens"], len(turns) + len(tool))
            turns += tool + on["token_ids"]
        self.assertEqual(self.ask("GET", "/v1/samples/" + choice["sample_id"])["token_ids"], turns)

    def test_streams(self):
        body = {"prompt": [PROMPT, PROMPT[:3]], "n": 2, "ignore_eos": True, "max_tokens": 4, "temperature": 0, "keep": 60, "stream": True}
        frames = frames_of(self.server.ask("POST", "/v1/completions", body)[2])
        names = {}
        for frame in frames:
            for choice in frame["choices"]:
                self.assertEqual(names.setdefault(choice["index"], choice["sample_id"]), choice["sample_id"])
        self.assertEqual((sorted(names), len(set(names.values()))), ([0, 1, 2, 3], 4))
        for index, prompt in ((1, PROMPT), (2, PROMPT[:3])):
            self.assertEqual(self.ask("GET", "/v1/samples/" + names[index])["token_ids"], prompt + self.fresh(prompt, max_tokens=4)[0])
        text = self.server.ask("POST", f"/v1/samples/{names[3]}/fork", {"n": 2, "stream": True, "stream_options": {"include_usage": True}})[2]
        tokens, children = {0: [], 1: []}, {}
        frames = frames_of(text)
        for frame in frames[:-1]:
            for choice in frame["choices"]:
                tokens[choice["index"]] += choice["token_ids"]
                children[choice["index"]] = choice["sample_id"]
        behind = PROMPT[:3] + self.fresh(PROMPT[:3], max_tokens=4)[0]
        self.assertEqual([tokens[0], tokens[1]], self.fresh(behind, max_tokens=4) * 2)
        self.assertEqual(frames[-1]["usage"]["completion_tokens"], 8)
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        self.assertTrue(self.ask("GET", "/v1/samples/" + children[1])["finished"])

    def stream(self, **fields):
        """A connection with a stream that goes on, its first frame and the rest of its lines."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 2000, "temperature": 0, "keep": 60, "stream": True} | fields
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        [first] = json.loads(response.readline()[6:])["choices"]
        return connection, first, response

    def test_a_sample_that_runs(self):
        connection, first, response = self.stream()
        self.addCleanup(connection.close)
        shown = self.ask("GET", "/v1/samples/" + first["sample_id"])
        while len(shown["token_ids"]) < 9:  # the fork keeps three of its own
            shown = self.ask("GET", "/v1/samples/" + first["sample_id"])
        self.assertEqual((shown["finished"], shown["expires"]), (False, None))
        forked = self.verb(first["sample_id"], "fork", n=2, keep_tokens=3, max_tokens=5)
        self.assertEqual([choice["token_ids"] for choice in forked["choices"]], self.fresh(shown["token_ids"][:9], max_tokens=5) * 2)
        self.verb(first["sample_id"], "prune")
        *_, last = frames_of(response.read().decode())
        self.assertEqual(last["choices"][0]["finish_reason"], "abort")
        self.ask("GET", "/v1/samples/" + first["sample_id"], status=404)
        self.assertTrue(self.ask("GET", "/v1/samples/" + forked["choices"][0]["sample_id"])["finished"])

    def test_a_sample_that_runs_is_extended(self):
        connection, first, response = self.stream(max_tokens=400)
        self.addCleanup(connection.close)
        shown = self.verb(first["sample_id"], "extend", token_ids=[40, 41, 42], stream=True)  # a stream of nothing would be no answer
        self.assertEqual((shown["object"], shown["id"], shown["finished"], shown["expires"]), ("sample", first["sample_id"], False, None))
        self.assertEqual(shown["token_ids"][-3:], [40, 41, 42])
        received = first["token_ids"] + [token for frame in frames_of(response.read().decode()) for token in frame["choices"][0]["token_ids"]]
        self.assertEqual(len(received), 400)  # what was added is not part of it, and does not count
        before = len(shown["token_ids"]) - len(PROMPT) - 3
        self.assertEqual(PROMPT + received[:before] + [40, 41, 42], shown["token_ids"])
        [behind] = self.fresh(shown["token_ids"], max_tokens=400 - before, ignore_eos=True)
        self.assertEqual(received[before:], behind)
        self.assertEqual(self.ask("GET", "/v1/samples/" + first["sample_id"])["token_ids"], shown["token_ids"] + behind)

    def test_what_is_deleted_while_it_runs_goes_at_its_end(self):
        connection, first, response = self.stream(max_tokens=600)
        self.addCleanup(connection.close)
        self.assertEqual(self.ask("DELETE", "/v1/samples/" + first["sample_id"]), {"object": "sample.deleted", "id": first["sample_id"], "deleted": True})
        self.ask("GET", "/v1/samples/" + first["sample_id"], status=404)
        *_, last = frames_of(response.read().decode())
        self.assertEqual(last["choices"][0]["finish_reason"], "length")

    def test_a_client_that_leaves_keeps_nothing(self):
        connection, first, _ = self.stream()
        connection.close()
        self.server.wait_for("coppice_samples_running", 0)
        self.ask("GET", "/v1/samples/" + first["sample_id"], status=404)

    def test_salts(self):
        [choice] = self.start(cache_salt="a b")["choices"]
        sample = choice["sample_id"]
        for salt in ("", "?cache_salt=", "?cache_salt=b"):
            self.ask("GET", f"/v1/samples/{sample}{salt}", status=404)
            self.ask("DELETE", f"/v1/samples/{sample}{salt}", status=404)
        for fields in ({}, {"cache_salt": "b"}):
            for verb in ("fork", "prune"):
                self.verb(sample, verb, status=404, **fields)
            self.verb(sample, "extend", status=404, token_ids=[1], **fields)
        self.assertTrue(self.ask("GET", f"/v1/samples/{sample}?cache_salt=a%20b")["finished"])
        [child] = self.verb(sample, "fork", cache_salt="a b")["choices"]
        self.verb(child["sample_id"], "fork", status=404)  # it has the salt of its parent
        self.verb(child["sample_id"], "extend", cache_salt="a b", token_ids=[1])
        self.ask("DELETE", f"/v1/samples/{sample}?cache_salt=a+b")
        self.verb(sample, "fork", status=404, cache_salt="a b")
        self.ask("GET", f"/v1/samples/{child['sample_id']}?salt=a", status=400)

    def test_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="ascii") as file:
                file.writelines(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("alice", "bob"))
            alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
            with Server("--api-keys", path, "--max-kept", 2, *ARGS) as server:
                first, second = self.start(server, alice, n=2)["choices"]
                name = first["sample_id"]
                self.ask("GET", f"/v1/samples/{name}", status=404, headers=bob, server=server)
                self.ask("DELETE", f"/v1/samples/{name}", status=404, headers=bob, server=server)
                for verb, fields in (("fork", {}), ("extend", {"token_ids": [1]}), ("prune", {})):
                    self.verb(name, verb, status=404, server=server, headers=bob, **fields)
                self.ask("GET", f"/v1/samples/{name}", status=401, server=server)
                # Each has its own room.
                self.assertIn("--max-kept", self.verb(name, "fork", status=429, server=server, headers=alice)["error"]["message"])
                self.start(server, bob, n=2)
                self.ask("DELETE", "/v1/samples/" + second["sample_id"], headers=alice, server=server)
                self.verb(name, "fork", server=server, headers=alice)

    def test_their_time(self):
        with Server("--max-kept", 3, "--max-keep", 100, *ARGS) as server:
            first, second = self.start(server, n=2, keep=0.5)["choices"]
            answer = self.verb(second["sample_id"], "extend", server=server, token_ids=[1], keep=100)  # its time begins anew
            self.assertEqual(answer["choices"][0]["sample_id"], second["sample_id"])
            code, _, text = server.ask("POST", "/v1/completions", {"prompt": PROMPT, "keep": 1, "n": 2})
            self.assertEqual(code, 429, text)
            end = time.monotonic() + 30
            while server.ask("POST", "/v1/completions", {"prompt": PROMPT, "keep": 1, "n": 2, "max_tokens": 1})[0] == 429:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            self.ask("GET", "/v1/samples/" + first["sample_id"], status=404, server=server)
            self.ask("GET", "/v1/samples/" + second["sample_id"], server=server)

    def test_what_clients_do_wrong(self):
        [choice] = self.start()["choices"]
        name = choice["sample_id"]
        for fields, param, message in [
            ({"keep": "a"}, "keep", "keep is \"a\", expected a number"),
            ({"keep": 0}, None, "keep is 0, expected seconds above 0, at most 3600 (--max-keep)"),
            ({"keep": 1e9}, None, "at most 3600"),
            ({"keep": 1, "n": 1, "best_of": 2}, "keep", "leave best_of and dedup out"),
            ({"keep": 1, "n": 2, "dedup": True}, "keep", "leave best_of and dedup out"),
            ({"keep": 1, "n": 128, "prompt": [[1]] * 3}, None, "384 samples are to be kept, and the server keeps 256"),
        ]:
            error = self.ask("POST", "/v1/completions", {"prompt": PROMPT} | fields, status=400)["error"]
            self.assertIn(message, error["message"])
            self.assertEqual(error["param"], param)
        for verb, fields, message in [
            ("fork", {"n": 0}, "n is 0"),
            ("fork", {"n": "a"}, "n is \"a\", expected an integer"),
            ("fork", {"n": 129}, "--max-choices"),
            ("fork", {"keep_tokens": 7}, "keep_tokens is 7, expected a number in 0..6"),
            ("fork", {"top_p": 3}, "top_p"),
            ("fork", {"keep": -1}, "keep is -1, expected seconds"),
            ("fork", {"stream": 1}, "stream is 1, expected true or false"),
            ("fork", {"cache_salt": 5}, "cache_salt is 5, expected a string"),
            ("fork", {"stop_token_ids": [3]}, "stop_token_ids is [3], expected it absent"),
            ("fork", {"logprobs": 2}, "logprobs is 2, expected it absent"),
            ("extend", {"token_ids": [1], "max_tokens": 2}, "max_tokens is 2, expected it absent"),
            ("extend", {"token_ids": [1], "temperature": 1}, "temperature is 1, expected it absent"),
            ("extend", {}, "extend needs text or token_ids, one of the two"),
            ("extend", {"text": "a"}, "text needs a tokenizer"),
            ("extend", {"token_ids": []}, "tokens"),
            ("extend", {"token_ids": [1], "keep": 0}, "keep is 0"),
        ]:
            self.assertIn(message, self.verb(name, verb, status=400, **fields)["error"]["message"], (verb, fields))
        self.assertIn("object", self.ask("POST", f"/v1/samples/{name}/fork", [1], status=400)["error"]["message"])
        self.assertIn("there is no sample \"smp-1\"", self.ask("GET", "/v1/samples/smp-1", status=404)["error"]["message"])
        self.assertIn(f"there is no /v1/samples/{name}/nope", self.ask("POST", f"/v1/samples/{name}/nope", {}, status=404)["error"]["message"])
        self.assertEqual(self.ask("GET", "/v1/samples/" + name)["token_ids"], PROMPT + choice["token_ids"])  # nothing has changed

    def test_many_clients_grow_one_tree(self):
        [choice] = self.start()["choices"]
        expected = {n: self.fresh(PROMPT + choice["token_ids"], n=n, seed=n, temperature=1) for n in range(1, 5)}
        wrong = []

        def grow(n):
            for _ in range(5):
                children = self.verb(choice["sample_id"], "fork", n=n, seed=n, temperature=1)["choices"]
                if [child["token_ids"] for child in children] != expected[n]:
                    wrong.append(children)
        threads = [threading.Thread(target=grow, args=(n,)) for n in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_vote_that_stops(self):
        try:
            model = default_model_or_skip()
        except SystemExit:
            self.skipTest("the default model could not be fetched")
        with Server("--max-running", 4, model=model) as server:
            # The first token is the answer: "a", most of the time. It ends short samples, others go on.
            body = {"prompt": "The letter is", "n": 24, "max_tokens": 40, "seed": 1, "regex": "(a|a|b)( [a-z]+)*", "vote": "^[ab]", "temperature": 0.6}
            whole = self.ask("POST", "/v1/completions", body, server=server)
            stopped = self.ask("POST", "/v1/completions", body | {"vote_stop": True}, server=server)
            self.assertEqual(len(whole["choices"]), 24)
            self.assertEqual(stopped["votes"][0]["answer"], whole["votes"][0]["answer"])
            counts = [vote["count"] for vote in stopped["votes"]] + [0]
            self.assertLess(len(stopped["choices"]), 24)
            self.assertGreater(counts[0] - counts[1], 0)
            self.assertLess(stopped["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            self.assertIn("give vote", self.ask("POST", "/v1/completions", {"prompt": "a", "vote_stop": True}, 400, server=server)["error"]["message"])
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a", "vote": "a", "vote_stop": 1})[0], 400)

    def test_a_chat(self):
        try:
            model = default_model_or_skip()
        except SystemExit:
            self.skipTest("the default model could not be fetched")
        with Server(model=model) as server:
            body = {"messages": [{"role": "user", "content": "Name a tree."}], "max_tokens": 12, "temperature": 0, "keep": 60}
            [choice] = self.ask("POST", "/v1/chat/completions", body, server=server)["choices"]
            forked = self.verb(choice["sample_id"], "fork", server=server, n=2, keep_tokens=4, max_tokens=8)
            self.assertEqual(forked["object"], "chat.completion")
            for child in forked["choices"]:
                self.assertTrue(choice["message"]["content"].endswith(child["message"]["content"]), (choice, child))
            turn = "<|im_end|>\n<|im_start|>user\nAnother one.<|im_end|>\n<|im_start|>assistant\n"
            [on] = self.verb(choice["sample_id"], "extend", server=server, text=turn)["choices"]
            self.assertTrue(on["message"]["content"])
            shown = self.ask("GET", "/v1/samples/" + choice["sample_id"], server=server)["text"]
            self.assertIn("<|im_start|>user\nName a tree.<|im_end|>", shown)
            self.assertTrue(shown.endswith(turn + on["message"]["content"]) or shown.endswith(turn + on["message"]["content"] + "<|im_end|>"), shown)


if __name__ == "__main__":
    unittest.main()
