"""OpenAI's own Python client against `coppice serve` with the default model. Skipped where the client or the model is missing."""

import json
import math
import sys
import tempfile
import time
import unittest

from server_process import Server, default_model_or_skip

try:
    import openai
except ImportError:
    print("skipped: there is no openai package; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

MODEL = default_model_or_skip()
HELLO = [{"role": "system", "content": "You answer in one short sentence."}, {"role": "user", "content": "What is the capital of France?"}]


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = cls.enterClassContext(Server("--deterministic", "--max-context", 1024, "--model-name", "small", "--files", folder, model=MODEL))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="any", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["small"])
        self.assertEqual(self.client.models.retrieve("small").id, "small")
        self.assertEqual(self.client.models.retrieve("small").max_model_len, 1024)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("large")

    def test_chat(self):
        answer = self.client.chat.completions.create(model="small", messages=HELLO, max_tokens=24, temperature=0)
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertGreater(answer.usage.prompt_tokens, 20)

    def test_a_stream_says_what_the_whole_answer_says(self):
        fields = {"model": "small", "messages": HELLO, "max_completion_tokens": 24, "temperature": 0.8, "seed": 7, "n": 2}
        whole = self.client.chat.completions.create(**fields)
        texts, reasons, usage = ["", ""], [None, None], None
        for chunk in self.client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        self.assertEqual(texts, [choice.message.content for choice in whole.choices])
        self.assertEqual(reasons, [choice.finish_reason for choice in whole.choices])
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completions_of_a_list_of_prompts(self):
        answer = self.client.completions.create(model="small", prompt=["The capital of France is", "One, two, three,"], max_tokens=4, temperature=0)
        self.assertIn("Paris", answer.choices[0].text)
        self.assertIn("four", answer.choices[1].text)

    def test_logprobs(self):
        chat = self.client.chat.completions.create(model="small", messages=HELLO, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
        content = chat.choices[0].logprobs.content
        self.assertEqual("".join(token.token for token in content), chat.choices[0].message.content)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # greedy
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertLessEqual(math.fsum(math.exp(other.logprob) for other in token.top_logprobs), 1.0001)
        completion = self.client.completions.create(model="small", prompt="One, two,", max_tokens=3, temperature=0, logprobs=2, echo=True)
        logprobs = completion.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), completion.choices[0].text)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs[1:]))
        self.assertEqual(logprobs.text_offset[:2], [0, len(logprobs.tokens[0])])

    def test_json_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"},
                                                   "continent": {"enum": ["Asia", "Europe"]}},
                  "required": ["city", "people", "continent"], "additionalProperties": False}
        answer = self.client.chat.completions.create(
            model="small", messages=HELLO, max_tokens=200, temperature=0.7, seed=3, n=4,
            response_format={"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}})
        ended = [json.loads(choice.message.content) for choice in answer.choices if choice.finish_reason == "stop"]
        self.assertTrue(ended)
        for place in ended:
            self.assertEqual(list(place), ["city", "people", "continent"])  # in the schema's order
            self.assertIsInstance(place["people"], int)
            self.assertIn(place["continent"], ("Asia", "Europe"))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.chat.completions.create(model="small", messages=HELLO, response_format={
                "type": "json_schema", "json_schema": {"name": "place", "schema": {"type": "object", "not": {}}}})
        self.assertEqual(refused.exception.param, "response_format")

    def test_regex_beside_free_text(self):
        answer = self.client.completions.create(model="small", prompt=["The sky is", "Is the sky blue?"], max_tokens=8, n=3, seed=1,
                                                extra_body={"regex": " (blue|red|green)"})
        for choice in answer.choices:
            self.assertIn(choice.text, (" blue", " red", " green"))
            self.assertEqual(choice.finish_reason, "stop")

    def test_stop(self):
        answer = self.client.completions.create(model="small", prompt="One, two, three,", max_tokens=30, temperature=0, stop=[" six"])
        self.assertNotIn("six", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="small", messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual(caught.exception.param, "tools")  # the model's template does not show it any
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model="small", messages=HELLO, temperature=-1)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="small", input="a")

    def test_leaving_a_stream_cancels_it(self):
        stream = self.client.chat.completions.create(model="small", messages=HELLO, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait_for("coppice_samples_running", 0)

    def test_a_prefix_is_what_its_text_is(self):
        system = [{"role": "system", "content": "You answer in one short sentence, in plain words, and you never guess."}]
        question = [{"role": "user", "content": "What is the capital of France?"}]
        status, _, text = self.server.ask("PUT", "/v1/prefixes/short", {"messages": system})
        self.assertEqual(status, 200, text)
        fields = {"model": "small", "max_tokens": 12, "temperature": 0}
        named = self.client.chat.completions.create(messages=question, extra_body={"prefix": "short"}, **fields)
        self.assertGreaterEqual(named.usage.prompt_tokens_details.cached_tokens, json.loads(text)["num_tokens"])
        whole = self.client.chat.completions.create(messages=system + question, **fields)
        self.assertEqual(named.choices[0].message.content, whole.choices[0].message.content)
        self.assertEqual(named.usage.prompt_tokens, whole.usage.prompt_tokens)
        with self.assertRaises(openai.BadRequestError):  # made of messages
            self.client.completions.create(prompt="a", extra_body={"prefix": "short"}, **fields)

        # A text goes on in the prefix's last token: "count" is one token, "cou" and "nt" are two.
        self.assertEqual(self.server.ask("PUT", "/v1/prefixes/text", {"prompt": "One, two, three: I can cou"})[0], 200)
        named = self.client.completions.create(prompt="nt to", extra_body={"prefix": "text"}, **fields)
        whole = self.client.completions.create(prompt="One, two, three: I can count to", **fields)
        self.assertEqual(named.choices[0].text, whole.choices[0].text)
        self.assertEqual(named.usage.prompt_tokens, whole.usage.prompt_tokens)

    def upload(self, *bodies, url="/v1/chat/completions"):
        lines = [{"custom_id": f"r{i}", "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return self.client.files.create(file=("in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}), data

    def wait_for_batch(self, name):
        end = time.monotonic() + 120
        while (batch := self.client.batches.retrieve(name)).status not in ("completed", "failed", "cancelled", "expired"):
            self.assertLess(time.monotonic(), end, batch)
            time.sleep(0.05)
        return batch

    def test_a_batch_answers_what_chats_answer(self):
        questions = [HELLO, [{"role": "user", "content": "Name a colour."}]]
        fields = {"max_tokens": 12, "temperature": 0}
        file, data = self.upload(*({"model": "small", "messages": messages} | fields for messages in questions), {"messages": []})
        self.assertEqual((file.purpose, file.bytes, file.expires_at), ("batch", len(data), file.created_at + 3600))
        self.assertEqual(self.client.files.content(file.id).read(), data)
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"},
                                           output_expires_after={"anchor": "created_at", "seconds": 7200})
        self.assertEqual(batch.status, "validating")
        batch = self.wait_for_batch(batch.id)
        self.assertEqual((batch.status, batch.metadata), ("completed", {"of": "a test"}))
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (3, 2, 1))
        answers = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, self.client.files.content(batch.output_file_id).iter_lines())}
        for i, messages in enumerate(questions):
            chat = self.client.chat.completions.create(model="small", messages=messages, **fields)
            self.assertEqual(answers[f"r{i}"]["choices"][0]["message"]["content"], chat.choices[0].message.content)
        error = json.loads(self.client.files.content(batch.error_file_id).text)
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("r2", 400))
        self.assertIn(batch.id, [one.id for one in self.client.batches.list(limit=1)])  # page after page
        outputs = [one.id for one in self.client.files.list(purpose="batch_output", limit=1)]
        self.assertLessEqual({batch.output_file_id, batch.error_file_id}, set(outputs))
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)

    def test_a_batch_is_cancelled(self):
        file, _ = self.upload(*({"prompt": "One, two,", "max_tokens": 900, "ignore_eos": True, "temperature": 1} for _ in range(40)), url="/v1/completions")
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        with self.assertRaises(openai.ConflictError):
            self.client.files.delete(file.id)
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        batch = self.wait_for_batch(batch.id)
        self.assertEqual(batch.status, "cancelled")
        self.assertLess(batch.request_counts.completed, 40)
        self.server.wait_for("coppice_samples_running", 0)

    def test_batches_that_are_refused(self):
        file, _ = self.upload({"messages": HELLO})
        for fields, param in (({"input_file_id": "file-0"}, "input_file_id"), ({"endpoint": "/v1/embeddings"}, "endpoint"), ({"completion_window": "1h"}, "completion_window")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.client.batches.create(**{"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields)
            self.assertEqual(refused.exception.param, param)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.files.create(file=b"{}", purpose="fine-tune")
        self.assertEqual(refused.exception.param, "purpose")

    def test_tokens_and_text(self):
        status, _, text = self.server.ask("POST", "/tokenize", {"prompt": "Hello, wörld"})
        self.assertEqual(status, 200)
        tokens = json.loads(text)["tokens"]
        self.assertIn("Hello, wörld", self.server.ask("POST", "/detokenize", {"tokens": tokens})[2])
        count = json.loads(self.server.ask("POST", "/tokenize", {"messages": HELLO})[2])["count"]  # a chat's prompt
        self.assertEqual(self.client.chat.completions.create(model="small", messages=HELLO, max_tokens=1).usage.prompt_tokens, count)
        status, _, text = self.server.ask("POST", "/tokenize", {"messages": []})
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "messages"))


if __name__ == "__main__":
    unittest.main()
