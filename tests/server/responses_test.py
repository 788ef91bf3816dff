"""/v1/responses, with OpenAI's own Python client: texts, streams, JSON schemas, tools whose calls and results come back as items, and
the same through `coppice batch`. Skipped where the client is missing, or the build constrains no output."""

import json
import os
import sys
import tempfile
import unittest
from typing import List, Literal

from server_process import Server, coppice
from tool_model import make_tool_model

try:
    import openai
    import pydantic
    from openai.types.responses import Response
except ImportError:
    print("skipped: there is no openai package; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

TOOLS = [{"type": "function", "name": name, "description": "About a town.", "strict": True, "parameters": {
    "type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["town", "days"], "additionalProperties": False}} for name in ("weather", "news")]
QUESTION = [{"role": "user", "content": "Is it dry in Rome?"}]


class Visit(pydantic.BaseModel):
    why: Literal["sun", "rain"]
    days: Literal[1, 2]
    towns: Literal["Rome", "Oslo"]


class ResponsesTest(unittest.TestCase):
    template = "qwen2.5-instruct"

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model = make_tool_model(cls.folder, cls.template)
        cls.server = cls.enterClassContext(Server("--max-context", 2048, "--deterministic", model=cls.model))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="any", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        try:
            cls.client.completions.create(model="m", prompt="a", extra_body={"regex": "a"})
        except openai.BadRequestError as refused:
            raise unittest.SkipTest(f"output is not constrained: {refused.message}")

    def fields(self, **fields):
        # The model says at random what it may: `regex` and `seed` are extensions.
        extra = {"seed": 3} | fields.pop("extra", {})
        return {"model": "m", "input": QUESTION, "temperature": 1.5, "max_output_tokens": 300, "extra_body": extra} | fields

    def ask(self, **fields):
        return self.client.responses.create(**self.fields(**fields))

    def test_a_text(self):
        answer = self.ask(input="Is it dry in Rome?", instructions="Be brief.", extra={"regex": "[a-z]{3} [a-z]{3}"}, metadata={"a": "b"})
        Response.model_validate(answer.model_dump(), strict=False)
        self.assertEqual(answer.status, "completed")
        self.assertRegex(answer.output_text, "^[a-z]{3} [a-z]{3}$")
        self.assertEqual([item.type for item in answer.output], ["message"])
        self.assertEqual((answer.instructions, answer.metadata, answer.store, answer.temperature), ("Be brief.", {"a": "b"}, False, 1.5))
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        chat = self.client.chat.completions.create(
            model="m", messages=[{"role": "system", "content": "Be brief."}, *QUESTION], seed=3, temperature=1.5, max_tokens=300,
            extra_body={"regex": "[a-z]{3} [a-z]{3}"})
        self.assertEqual(answer.output_text, chat.choices[0].message.content)
        self.assertEqual(answer.usage.input_tokens, chat.usage.prompt_tokens)

    def test_a_stream_is_the_whole_answer(self):
        fields = self.fields(extra={"regex": "[a-z]{9}"}, include=["message.output_text.logprobs"], top_logprobs=2)
        whole = self.client.responses.create(**fields)
        events = list(self.client.responses.create(stream=True, **fields))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        types = [event.type for event in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(types[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"])
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        self.assertEqual("".join(event.delta for event in deltas), whole.output_text)
        logprobs = whole.output[0].content[0].logprobs
        self.assertEqual(len(logprobs), whole.usage.output_tokens)
        self.assertTrue(all(len(entry.top_logprobs) == 2 for entry in logprobs))
        self.assertEqual([entry.logprob for event in deltas for entry in event.logprobs], [entry.logprob for entry in logprobs])
        self.assertEqual(events[-1].response.output[0].content, whole.output[0].content)
        self.assertNotIn("[DONE]", self.server.ask("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1, "stream": True})[2])

    def test_what_is_cut_off_is_incomplete(self):
        answer = self.ask(max_output_tokens=2)
        self.assertEqual((answer.status, answer.incomplete_details.reason, answer.output[0].status), ("incomplete", "max_output_tokens", "incomplete"))
        self.assertEqual(answer.usage.output_tokens, 2)
        self.assertEqual(list(self.ask(max_output_tokens=2, stream=True))[-1].type, "response.incomplete")

    def test_a_model_of_pydantic_is_parsed(self):
        fields = {"model": "m", "input": QUESTION, "text_format": Visit, "max_output_tokens": 500}
        answer = self.client.responses.parse(**fields)
        self.assertIsInstance(answer.output_parsed, Visit)
        self.assertEqual(list(json.loads(answer.output_text)), ["why", "days", "towns"])
        with self.client.responses.stream(**fields) as stream:
            kinds = {event.type for event in stream}
            self.assertIsInstance(stream.get_final_response().output_parsed, Visit)
        self.assertIn("response.output_text.delta", kinds)

    def calls(self, answer):
        return [item for item in answer.output if item.type == "function_call"]

    def test_calls_and_their_results_come_back(self):
        items = list(QUESTION)
        for _ in range(3):  # an agent's loop
            answer = self.ask(input=items, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
            self.assertEqual([item.type for item in answer.output], ["function_call"])
            call = answer.output[0]
            self.assertIn(call.name, ("weather", "news"))
            self.assertEqual(set(json.loads(call.arguments)), {"town", "days"})
            items += answer.output
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "dry"})
        last = self.ask(input=items, tools=TOOLS, tool_choice="none", extra={"regex": "[a-z]{5}"})
        self.assertRegex(last.output_text, "^[a-z]{5}$")
        # As dictionaries too, and as a chat would say it.
        echoed = [item if isinstance(item, dict) else item.model_dump() for item in items]
        self.assertEqual(self.ask(input=echoed, tools=TOOLS, tool_choice="none", max_output_tokens=1).usage.input_tokens, last.usage.input_tokens)

    def test_a_stream_of_calls_is_the_whole_answer(self):
        fields = self.fields(tools=TOOLS, tool_choice={"type": "function", "name": "news"})
        whole = self.client.responses.create(**fields)
        said = lambda answer: [(item.name, item.arguments, item.status) for item in self.calls(answer)]
        with self.client.responses.stream(**fields) as stream:
            arguments = {}
            for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    final = event.response
        self.assertTrue(self.calls(whole))
        self.assertEqual({item.name for item in self.calls(whole)}, {"news"})
        self.assertEqual(said(final), said(whole))
        self.assertEqual([arguments[i] for i in sorted(arguments)], [item.arguments for item in self.calls(whole)])
        self.assertEqual(len({item.call_id for item in final.output}), len(final.output))

    def test_what_is_refused(self):
        for fields, param, words in (({"previous_response_id": "resp_1"}, "previous_response_id", "send the earlier input and output items in input"),
                                     ({"store": True}, "store", "no responses are kept"),
                                     ({"background": True}, "background", "stream"),
                                     ({"truncation": "auto"}, "truncation", "shorten input"),
                                     ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
                                     ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, "input[0].content[0]", "images"),
                                     ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "none are kept"),
                                     ({"max_output_tokens": -5}, None, "max_output_tokens"),
                                     ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "tree"}}}}, "text.format", "#/type")):
            with self.subTest(fields=fields), self.assertRaises(openai.BadRequestError) as refused:
                self.ask(**fields)
            self.assertEqual(refused.exception.param, param)
            self.assertIn(words, refused.exception.message)
        for method in ("GET", "DELETE"):
            self.assertEqual(self.server.ask(method, "/v1/responses/resp_1")[0], 404)

    def test_ignored_fields_are_reported_by_their_names(self):
        body = {"input": [{"role": "user", "content": "a", "tone": 1}], "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 1}
        status, headers, _ = self.server.ask("POST", "/v1/responses", body)
        self.assertEqual(status, 200)
        self.assertEqual(headers["x-coppice-ignored-fields"], "reasoning.summary, input[0].tone")

    def test_a_timeout_ends_the_stream_as_failed(self):
        events = list(self.ask(stream=True, max_output_tokens=1900, extra={"timeout": 0.01, "ignore_eos": True}))
        self.assertEqual((events[-1].type, events[-1].response.error.code), ("response.failed", "server_error"))

    def test_a_prefix_comes_before_the_input(self):
        system = {"role": "system", "content": "You know all towns."}
        self.assertEqual(self.server.ask("PUT", "/v1/prefixes/towns", {"messages": [system]})[0], 200)
        named = self.ask(extra={"prefix": "towns"}, max_output_tokens=3)
        whole = self.ask(input=[system, *QUESTION], max_output_tokens=3)
        self.assertEqual((named.output_text, named.usage.input_tokens), (whole.output_text, whole.usage.input_tokens))
        self.assertEqual(self.server.ask("DELETE", "/v1/prefixes/towns")[0], 200)

    def test_a_batch_answers_the_same(self):
        body = {"input": QUESTION, "tools": TOOLS, "tool_choice": "required", "seed": 3, "temperature": 1.5, "max_output_tokens": 300, "parallel_tool_calls": False}
        source, target = os.path.join(self.folder, "in.jsonl"), os.path.join(self.folder, "out.jsonl")
        with open(source, "w", encoding="utf-8") as file:
            file.write(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}) + "\n")
            file.write(json.dumps({"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": body | {"store": True}}) + "\n")
        done = coppice("batch", "--model", self.model, source, target, "--deterministic", "--max-context", 2048)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("store is true", done.stderr)
        with open(target, encoding="utf-8") as file:
            lines: List[dict] = [json.loads(line) for line in file]
        self.assertEqual(len(lines), 1)
        answer = Response.model_validate(lines[0]["response"]["body"])
        over_http = self.ask(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        self.assertEqual([(item.name, item.arguments) for item in answer.output], [(item.name, item.arguments) for item in over_http.output])


class MistralResponsesTest(ResponsesTest):
    template = "mistral-nemo-instruct"


class LlamaResponsesTest(ResponsesTest):
    template = "llama-3.1-instruct"


if __name__ == "__main__":
    unittest.main()
