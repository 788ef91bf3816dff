"""Tools over HTTP, with OpenAI's own Python client: requests, streams, required calls and their results sent back, and the same through
`coppice batch`. Skipped where the client is missing, or the build constrains no output."""

import json
import os
import sys
import tempfile
import unittest

from server_process import Server, coppice
from tool_model import make_tool_model

try:
    import openai
except ImportError:
    print("skipped: there is no openai package; scripts/test installs tests/server/requirements.txt")
    sys.exit(77)

TOOLS = [{"type": "function", "function": {"name": name, "description": "About a town.", "parameters": {
    "type": "object", "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["town", "days"], "additionalProperties": False}}} for name in ("weather", "news")]
QUESTION = [{"role": "user", "content": "Is it dry in Rome?"}]


def check_call(test, call):
    test.assertIn(call.function.name, ("weather", "news"))
    arguments = json.loads(call.function.arguments)
    test.assertEqual(set(arguments), {"town", "days"})
    test.assertIn(arguments["town"], ("Rome", "Oslo"))
    test.assertIn(arguments["days"], (1, 2))


class ToolsTest(unittest.TestCase):
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

    def ask(self, **fields):
        return self.client.chat.completions.create(**({"model": "m", "messages": QUESTION, "tools": TOOLS, "seed": 3, "temperature": 1.5,
                                                       "max_tokens": 300} | fields))

    def test_a_required_call_is_valid(self):
        answer = self.ask(tool_choice="required", n=4, parallel_tool_calls=False)
        for choice in answer.choices:
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertIsNone(choice.message.content)
            self.assertEqual(len(choice.message.tool_calls), 1)
            self.assertEqual(choice.message.tool_calls[0].type, "function")
            check_call(self, choice.message.tool_calls[0])
        self.assertEqual(len({choice.message.tool_calls[0].id for choice in answer.choices}), 4)

    def test_a_named_function_is_called(self):
        answer = self.ask(tool_choice={"type": "function", "function": {"name": "news"}}, n=4)
        self.assertEqual({call.function.name for choice in answer.choices for call in choice.message.tool_calls}, {"news"})

    def test_a_stream_says_what_the_whole_answer_says(self):
        fields = {"tool_choice": "required", "n": 2}
        whole = self.ask(**fields)
        calls, reasons = [{}, {}], [None, None]
        for chunk in self.ask(stream=True, stream_options={"include_usage": True}, **fields):
            for choice in chunk.choices:
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                self.assertFalse(choice.delta.content)
                for delta in choice.delta.tool_calls or []:
                    call = calls[choice.index].setdefault(delta.index, {"arguments": ""})
                    if delta.id:
                        call |= {"id": delta.id, "name": delta.function.name}
                    call["arguments"] += delta.function.arguments or ""
        self.assertEqual(reasons, [choice.finish_reason for choice in whole.choices])
        for streamed, choice in zip(calls, whole.choices):
            self.assertEqual([(call["name"], call["arguments"]) for call in streamed.values()],
                             [(call.function.name, call.function.arguments) for call in choice.message.tool_calls])
            self.assertEqual(len({call["id"] for call in streamed.values()}), len(choice.message.tool_calls))

    def test_the_clients_own_stream_helper_puts_it_together(self):
        with self.client.chat.completions.stream(model="m", messages=QUESTION, tools=TOOLS, tool_choice="required", seed=5, max_tokens=300,
                                                 parallel_tool_calls=False) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        check_call(self, final.choices[0].message.tool_calls[0])

    def test_results_go_back(self):
        message = self.ask(tool_choice="required", parallel_tool_calls=False).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "dry"}
        for echoed in (message, message.model_dump()):
            answer = self.ask(messages=[*QUESTION, echoed, result], tool_choice="none", max_tokens=4)
            self.assertIsNone(answer.choices[0].message.tool_calls)
            self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_without_a_choice_random_text_is_text(self):
        answer = self.ask(max_tokens=8)
        self.assertIsNotNone(answer.choices[0].message.content)
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_what_is_refused(self):
        for fields, param in (({"tool_choice": "maybe"}, "tool_choice"), ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
                              ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.ask(**fields)
            self.assertEqual(refused.exception.param, param)

    def test_a_prefix_may_bring_the_tools(self):
        system = {"role": "system", "content": "You know all towns."}
        status, _, text = self.server.ask("PUT", "/v1/prefixes/towns", {"messages": [system], "tools": TOOLS})
        self.assertEqual(status, 200, text)
        fields = {"tool_choice": "required", "parallel_tool_calls": False}
        whole = self.ask(messages=[system, *QUESTION], **fields)
        named = self.ask(tools=openai.NOT_GIVEN, extra_body={"prefix": "towns"}, **fields)
        self.assertEqual(named.usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(named.choices[0].message.tool_calls[0].function, whole.choices[0].message.tool_calls[0].function)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask(extra_body={"prefix": "towns"})
        self.assertEqual(refused.exception.param, "tools")
        self.assertEqual(self.server.ask("DELETE", "/v1/prefixes/towns")[0], 200)

    def test_a_batch_answers_the_same(self):
        body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "seed": 3, "temperature": 1.5, "max_tokens": 300,
                "parallel_tool_calls": False}
        source, target = os.path.join(self.folder, "in.jsonl"), os.path.join(self.folder, "out.jsonl")
        with open(source, "w", encoding="utf-8") as file:
            file.write(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
        done = coppice("batch", "--model", self.model, source, target, "--deterministic", "--max-context", 2048)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(target, encoding="utf-8") as file:
            choice = json.loads(file.read())["response"]["body"]["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        over_http = self.ask(tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
        self.assertEqual([call["function"] for call in choice["message"]["tool_calls"]], [call.function.model_dump() for call in over_http])


class MistralToolsTest(ToolsTest):
    template = "mistral-nemo-instruct"


class LlamaToolsTest(ToolsTest):
    template = "llama-3.1-instruct"


if __name__ == "__main__":
    unittest.main()
