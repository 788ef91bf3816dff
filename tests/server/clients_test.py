"""Clients of other projects as their users call them: litellm, langchain-openai, instructor, dspy and an agent loop of openai-agents, against
`coppice serve`. Texts of a small or random model mean nothing: they are taken as they are, and outputs that have a form must be of it."""

import asyncio
import os
import sys
import tempfile
import unittest
from typing import Literal

from packages import install_or_skip
from server_process import Server, default_model_or_skip
from tool_model import make_tool_model

sys.path.insert(0, install_or_skip("clients"))
# Nothing but the server is asked: no price lists, no traces, no cache at home.
CACHE = tempfile.TemporaryDirectory()
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", DSPY_CACHEDIR=CACHE.name, NO_PROXY="127.0.0.1")

import agents  # noqa: E402
import dspy  # noqa: E402
import instructor  # noqa: E402
import langchain_core.tools  # noqa: E402
import langchain_openai  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

MODEL = default_model_or_skip()
HELLO = [{"role": "system", "content": "You answer in one short sentence."}, {"role": "user", "content": "What is the capital of France?"}]


class Trip(pydantic.BaseModel):
    """A trip to a town."""

    town: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def weather(town: Literal["Rome", "Oslo"]) -> str:
    """The weather of a town."""
    return f"It is dry in {town}."


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-context", 2048, "--model-name", "small", model=MODEL))
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        tool_model = make_tool_model(folder, "qwen2.5-instruct")  # that of the other server shows no tools
        cls.tools = cls.enterClassContext(Server("--model-name", "tools", model=tool_model))
        cls.base, cls.tools_base = cls.server.url + "/v1", cls.tools.url + "/v1"

    def test_litellm(self):
        ask = {"model": "openai/small", "api_base": self.base, "api_key": "any", "messages": HELLO, "max_tokens": 24}
        answer = litellm.completion(**ask, temperature=0)
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertGreater(answer.usage.prompt_tokens, 20)
        chunks = list(litellm.completion(**ask, temperature=0, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), answer.choices[0].message.content)
        trip = litellm.completion(**ask | {"max_tokens": 100}, response_format=Trip)
        Trip.model_validate_json(trip.choices[0].message.content)
        text = litellm.text_completion(model="text-completion-openai/small", api_base=self.base, api_key="any", prompt="One, two,", max_tokens=4)
        self.assertTrue(text.choices[0].text)
        call = litellm.completion(model="openai/tools", api_base=self.tools_base, api_key="any", messages=HELLO, max_tokens=200, tool_choice="required", tools=[
            {"type": "function", "function": {"name": "trip", "parameters": Trip.model_json_schema()}}])
        Trip.model_validate_json(call.choices[0].message.tool_calls[0].function.arguments)
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(**ask, temperature=-1)

    def test_langchain(self):
        model = langchain_openai.ChatOpenAI(model="small", base_url=self.base, api_key="any", max_tokens=24, temperature=0, max_retries=0)
        answer = model.invoke([("system", "You answer in one short sentence."), ("human", "What is the capital of France?")])
        self.assertIn("Paris", answer.content)
        self.assertGreater(answer.usage_metadata["input_tokens"], 20)
        streamed = "".join(chunk.content for chunk in model.stream([("system", HELLO[0]["content"]), ("human", HELLO[1]["content"])]))
        self.assertEqual(streamed, answer.content)
        self.assertEqual(len(model.batch(["Hi.", "Hello."])), 2)
        long = langchain_openai.ChatOpenAI(model="small", base_url=self.base, api_key="any", max_tokens=100, max_retries=0)
        self.assertIsInstance(long.with_structured_output(Trip, method="json_schema").invoke("Where to?"), Trip)
        tools = langchain_openai.ChatOpenAI(model="tools", base_url=self.tools_base, api_key="any", max_tokens=200, max_retries=0)
        self.assertIsInstance(tools.with_structured_output(Trip, method="function_calling").invoke("Where to?"), Trip)
        bound = tools.bind_tools([langchain_core.tools.tool(weather)], tool_choice="required")
        message = bound.invoke("Is it dry?")
        self.assertIn(message.tool_calls[0]["args"]["town"], ("Rome", "Oslo"))
        result = ("tool", "It is dry.", message.tool_calls[0]["id"])
        self.assertTrue(tools.bind(max_tokens=4).invoke([("human", "Is it dry?"), message, langchain_core.messages.ToolMessage(
            content=result[1], tool_call_id=result[2])]).usage_metadata["output_tokens"])
        completion = langchain_openai.OpenAI(model="small", base_url=self.base, api_key="any", max_tokens=4, max_retries=0)
        self.assertTrue(completion.invoke("One, two,"))

    def test_instructor(self):
        client = openai.OpenAI(base_url=self.tools_base, api_key="any", max_retries=0)
        small = openai.OpenAI(base_url=self.base, api_key="any", max_retries=0)
        question = [{"role": "user", "content": "Where to?"}]
        for mode, one, model in ((instructor.Mode.TOOLS, client, "tools"), (instructor.Mode.TOOLS_STRICT, client, "tools"),
                                 (instructor.Mode.JSON_SCHEMA, small, "small"), (instructor.Mode.JSON_SCHEMA, client, "tools")):
            with self.subTest(mode=mode, model=model):
                asked = instructor.from_openai(one, mode=mode)
                trip = asked.chat.completions.create(model=model, messages=question, response_model=Trip, max_tokens=200, max_retries=0)
                self.assertIsInstance(trip, Trip)
        asked = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        partial = list(asked.chat.completions.create_partial(model="tools", messages=question, response_model=Trip, max_tokens=200))
        Trip.model_validate(partial[-1].model_dump())

    def test_dspy(self):
        options = {"api_base": self.base, "api_key": "any", "max_tokens": 100, "temperature": 0.7, "cache": False, "num_retries": 0}
        native = dspy.LM("openai/small", **options)
        self.assertTrue(native("What is the capital of France?")[0])
        self.assertTrue(native(messages=HELLO)[0])
        # Lists of models say which take a schema; to those that they do not have, dspy sends none.
        litellm.register_model({"openai/small": {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}})
        lm = dspy.LM("openai/small", engine="litellm", **options)

        class Choose(dspy.Signature):
            """Choose a town for the question."""

            question: str = dspy.InputField()
            town: Literal["Rome", "Oslo"] = dspy.OutputField()

        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            self.assertIn(dspy.Predict(Choose)(question="Where is it dry?").town, ("Rome", "Oslo"))

        async def streamed():
            with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
                return [part async for part in dspy.streamify(dspy.Predict(Choose))(question="Where is it dry?")]

        self.assertIn(asyncio.run(streamed())[-1].town, ("Rome", "Oslo"))

    def test_agent_loop(self):
        called = []

        def look(town: Literal["Rome", "Oslo"]) -> str:
            """The weather of a town."""
            called.append(town)
            return weather(town)

        client = openai.AsyncOpenAI(base_url=self.tools_base, api_key="any", max_retries=0)
        model = agents.OpenAIChatCompletionsModel(model="tools", openai_client=client)
        agent = agents.Agent(name="guide", instructions="Look up the weather.", model=model, tools=[agents.function_tool(look)],
                             model_settings=agents.ModelSettings(tool_choice="required", max_tokens=100))

        async def run():
            whole = await agents.Runner.run(agent, "Is it dry?", max_turns=4)  # the second turn is free to answer
            streamed = agents.Runner.run_streamed(agent, "Is it dry?", max_turns=4)
            kinds = {event.type async for event in streamed.stream_events()}
            await client.close()
            return whole, streamed, kinds

        whole, streamed, kinds = asyncio.run(run())
        self.assertGreaterEqual(len(called), 2)
        self.assertLessEqual(set(called), {"Rome", "Oslo"})
        for result in (whole, streamed):
            self.assertIn("function_call_output", [item.get("type") for item in result.to_input_list()])
            self.assertIsInstance(result.final_output, str)
        self.assertIn("raw_response_event", kinds)


if __name__ == "__main__":
    unittest.main()
