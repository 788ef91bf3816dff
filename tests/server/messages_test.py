"""Messages as clients send them, through published chat templates over HTTP: what reaches the model, what is text, what is ignored and reported."""

import json
import os
import tempfile
import unittest

from server_process import Server, coppice
from tool_model import make_tool_model

CALL = {"id": "call12345", "type": "function", "function": {"name": "look_up", "arguments": "{\"town\": \"Rome\"}"}}


def user(text):
    return {"role": "user", "content": text}


class MessagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def ask(self, server, body, path="/v1/chat/completions"):
        """Status, headers and body of an answer of one token."""
        status, headers, text = server.ask("POST", path, {"max_tokens": 1} | body)
        return status, headers, text if body.get("stream") else json.loads(text)

    def prompt_tokens(self, server, messages, **more):
        status, _, answer = self.ask(server, {"messages": messages} | more)
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens"]

    def test_answers_go_back_through_every_template(self):
        for template in ("qwen3", "phi-3.5-instruct", "mistral-7b-instruct-v0.2", "smollm2-instruct", "gemma-3-it"):
            with self.subTest(template=template), Server(model=make_tool_model(self.folder, template)) as server:
                answer = self.ask(server, {"messages": [user("Hi")]})[2]["choices"][0]["message"]
                self.prompt_tokens(server, [user("Hi"), answer, user("Well?")])
                dumped = answer | {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
                self.assertEqual(self.prompt_tokens(server, [user("Hi"), dumped, user("Well?")]), self.prompt_tokens(server, [user("Hi"), answer, user("Well?")]))
                for more in ({}, {"tool_calls": [CALL]}, {"tool_calls": []}):
                    counts = {self.prompt_tokens(server, [user("Hi"), {"role": "assistant", **content, **more}, user("Well?")])
                              for content in ({"content": None}, {}, {"content": ""})}
                    self.assertEqual(len(counts), 1, more)

    def test_roles(self):
        with Server(model=make_tool_model(self.folder, "qwen3")) as server:
            brief = [{"role": "developer", "content": "Be brief."}, user("Hi")]
            self.assertEqual(self.prompt_tokens(server, brief), self.prompt_tokens(server, [brief[0] | {"role": "system"}, user("Hi")]))
            self.assertGreater(self.prompt_tokens(server, brief), self.prompt_tokens(server, [user("Hi")]))
            status, _, answer = self.ask(server, {"messages": [user("Hi"), {"role": "wizard", "content": "x"}]})
            self.assertEqual(status, 400)
            self.assertIn('messages[1].role is "wizard"', answer["error"]["message"])
        with Server(model=make_tool_model(self.folder, "phi-3.5-instruct")) as server:
            status, _, answer = self.ask(server, {"messages": [user("Hi"), {"role": "tool", "tool_call_id": "1", "content": "rain"}]})
            self.assertEqual(status, 400)
            self.assertIn("leaves out messages[1]", answer["error"]["message"])

    def test_control_tokens_in_messages_are_text(self):
        marks = "<|im_end|><|im_start|>"
        with Server(model=make_tool_model(self.folder, "qwen2.5-instruct")) as server:
            plain = self.prompt_tokens(server, [user("")])
            self.assertGreaterEqual(self.prompt_tokens(server, [user(marks)]) - plain, 8)
            _, _, text = self.ask(server, {"prompt": marks}, "/v1/completions")
            self.assertEqual(text["usage"]["prompt_tokens"], 2, "completions are written by their client")
            _, _, tokens = self.ask(server, {"prompt": marks, "max_tokens": None}, "/tokenize")
            self.assertEqual(tokens["count"], 2)
            tool = {"type": "function", "function": {"name": "f", "description": marks, "parameters": {"type": "object", "properties": {}}}}
            described = self.prompt_tokens(server, [user("")], tools=[tool])
            tool["function"]["description"] = ""
            self.assertGreaterEqual(described - self.prompt_tokens(server, [user("")], tools=[tool]), 8)
            result = [user(""), {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call12345", "content": ""}]
            empty = self.prompt_tokens(server, result)
            result[2]["content"] = marks
            self.assertGreaterEqual(self.prompt_tokens(server, result) - empty, 8)

    def test_unknown_fields_are_reported(self):
        body = {"messages": [user("Hi") | {"mood": "glad"}], "cache_prompt": True, "bad\r\nname": 1}
        with Server(model=make_tool_model(self.folder, "smollm2-instruct")) as server:
            for stream in (False, True):
                status, headers, _ = self.ask(server, body | {"stream": stream})
                self.assertEqual(status, 200)
                self.assertEqual(headers["x-coppice-ignored-fields"], r"messages[0].mood, bad\x0d\x0aname, cache_prompt")
            self.assertNotIn("x-coppice-ignored-fields", self.ask(server, {"messages": [user("Hi")]})[1])
            status, _, answer = self.ask(server, body | {"repeat_penalty": 1.2})
            self.assertEqual((status, answer["error"]["param"]), (400, "repeat_penalty"))
            self.assertIn("ignored messages[0].mood", server.logged())
        with Server("--unknown-fields", "refuse", model=self.folder) as server:
            status, _, answer = self.ask(server, body)
            self.assertEqual((status, answer["error"]["param"]), (400, "messages[0].mood"))

    def test_sampling_defaults_of_the_model(self):
        model = make_tool_model(self.folder, "smollm2-instruct")
        with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump({"do_sample": True, "top_k": 1, "temperature": 0.9}, file)

        def texts(server, **more):
            return {self.ask(server, {"prompt": "Once", "max_tokens": 8, "seed": seed, "ignore_eos": True} | more, "/v1/completions")[2]["choices"][0]["text"]
                    for seed in range(4)}

        with Server(model=model) as server:
            self.assertEqual(len(texts(server)), 1)
            self.assertGreater(len(texts(server, top_k=0)), 1)
        with Server("--sampling-defaults", "openai", model=model) as server:
            self.assertGreater(len(texts(server)), 1)

        def run(*args):
            done = [coppice("run", "--model", model, "--prompt", "Once", "--max-tokens", 8, "--ignore-eos", "--json", "--seed", seed, *args) for seed in range(4)]
            self.assertEqual([d.returncode for d in done], [0] * 4, done[0].stderr)
            return {json.loads(d.stdout)["samples"][0]["text"] for d in done}

        self.assertEqual(len(run()), 1)
        self.assertGreater(len(run("--top-k", 0)), 1)
        self.assertGreater(len(run("--sampling-defaults", "openai")), 1)
        source, target = os.path.join(self.folder, "in.jsonl"), os.path.join(self.folder, "out.jsonl")
        with open(source, "w", encoding="utf-8") as file:
            for seed in range(4):
                file.write(json.dumps({"custom_id": str(seed), "method": "POST", "url": "/v1/completions", "mood": "glad",
                                       "body": {"prompt": "Once", "max_tokens": 8, "seed": seed, "ignore_eos": True, "cache_prompt": True}}) + "\n")
        done = coppice("batch", source, target, "--model", model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("were ignored: cache_prompt, mood"), 1, done.stderr)
        with open(target, encoding="utf-8") as file:
            self.assertGreater(len({json.loads(line)["response"]["body"]["choices"][0]["text"] for line in file}), 1, "a batch has OpenAI's defaults")
        self.assertEqual(coppice("batch", source, target + "2", "--model", model, "--unknown-fields", "refuse").returncode, 1)

    def test_what_the_files_contradict_is_a_warning(self):
        model = make_tool_model(self.folder, "smollm2-instruct")
        with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump({"top_p": 7}, file)
        done = coppice("run", "--model", model, "--prompt", "Once", "--max-tokens", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count('"top_p" is left out'), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
