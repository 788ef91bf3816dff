"""Uses of coppice_llm that a program may have, for checkers of types: types_test.py has it checked, nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from typing_extensions import assert_type

from coppice_llm import LLM, Chat, Completion, Explanation, SampleInfo, SamplingParams, Score, attention


def generate() -> None:
    chat: Chat = [{"role": "user", "content": "hi"}]
    with LLM("model.gguf", device=["cuda:0", "cuda:1"], kv_cache_bytes=1 << 20, deterministic=True) as llm:
        samples = llm.generate(["a", "b"], SamplingParams(n=2, temperature=0.5, stop=["x"], logit_bias={1: 0.5}), keep=True)
        assert_type(samples, list[Completion])
        sample = samples[0]
        assert_type(sample.text, str)
        assert_type(sample.token_ids, list[int])
        assert_type(sample.finish_reason, str | None)
        assert_type(sample.weight_version, int)
        assert_type(sample.cached_tokens, int)
        assert_type(sample.mean_logprob, float | None)
        print(sample.logprobs.sum())
        for prompt in ("a", [1, 2, 3], chat):
            assert_type(llm.generate(prompt), list[Completion])
        assert_type(llm.generate([[1, 2], [3]], [SamplingParams(), SamplingParams(n=2)]), list[Completion])
        assert_type(llm.generate([chat, chat]), list[Completion])
        assert_type(llm.chat(chat, tools=[{"type": "function"}]), list[Completion])
        assert_type(llm.stream("x"), Iterator[Completion])
        assert_type(llm.score("a", ["b", "c"]), list[Score])
        assert_type(llm.score([1], [[2], [3]])[0].logprob, float)


def grow(llm: LLM, sample: Completion) -> None:
    children = llm.fork(sample, n=3, keep_tokens=2, seed=1, params=SamplingParams(), max_tokens=4)
    assert_type(children, list[Completion])
    assert_type(llm.extend(children[0], [1, 2]), Completion)
    assert_type(llm.describe(children[0]), SampleInfo)
    for piece in llm.stream_fork(sample, n=2):
        assert_type(piece, Completion)
    llm.prune(children[0])
    llm.release(sample)


async def wait(llm: LLM) -> None:
    assert_type(await llm.agenerate("x"), list[Completion])
    async for piece in llm.astream("x"):
        assert_type(piece, Completion)
    assert_type(await llm.aextend((await llm.agenerate("x", keep=True))[0], "y"), Completion)


def keep_house(llm: LLM) -> None:
    llm.pin("x", "name")
    llm.unpin("name")
    llm.save_prefix("x", "file")
    llm.load_prefix("file", "name")
    assert_type(llm.update_weights({"a": numpy.zeros(3, numpy.float32)}, when="wait", label="1"), int)
    llm.pause()
    llm.resume()
    llm.sleep(1)
    llm.wake()
    assert_type(llm.state, str)
    assert_type(llm.explain(), Explanation)
    assert_type(llm.weight_version, tuple[int, str])
    assert_type(llm.detokenize(llm.tokenize("x")), str)
    print(llm.metrics()["steps"], llm.model_info["num_layers"], llm.explain()["plan"])


def attend() -> None:
    device = attention.Device("cpu")
    forest = attention.Forest(page_size=16)
    assert_type(forest.add_node(None, 0, 32), int)
    forest.add_branch(forest.add_node(0, 32), kv_len=40, pages=[0, 1, 2])
    forest = attention.Forest.of_page_tables(numpy.zeros((1, 3), numpy.int32), [40])
    plan = attention.Plan(device, forest, num_qo_heads=4, num_kv_heads=2, head_dim=64, dtype="f32", max_branches=4)
    kv = attention.KvPool(device, numpy.zeros((3, 16, 2, 64)), numpy.zeros((3, 16, 2, 64)))
    kv.append(numpy.zeros((1, 2, 64)), numpy.zeros((1, 2, 64)), [39])
    out, lse = attention.run(numpy.zeros((1, 4, 64)), kv, plan)
    attention.merge_states(device, [(out, lse)])
    plan.update(forest)
    assert_type(plan.explain(), str)
    assert_type(plan.stats()["kv_tokens_read"], float)
