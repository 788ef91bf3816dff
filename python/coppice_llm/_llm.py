"""The engine: a model, its KV cache and the thread that steps it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from . import _native
from ._types import Chat, Completion, Prompt, SampleInfo, SamplingParams, Score, dump, is_chat, is_list, is_one, prompt_field

Params = SamplingParams | Sequence[SamplingParams] | None
Kept = Completion | _native.Sample

_PREFIXES = itertools.count(1)  # of each save_prefix, which pins its prompt under a name of its own


class Explanation(dict[str, Any]):
    """LLM.explain(): what is shared now. A dict, and as text a report of it."""

    def __str__(self) -> str:
        lines = [
            f"step {self['step']}: {self['decode_rows']} rows decode, {self['prefill_rows']} rows are prompts; "
            f"{self['grouped_rows']} read KV together with others",
            f"KV read by the step: {_bytes(self['kv_bytes_read'])}; each row for itself: {_bytes(self['kv_bytes_read_unshared'])}",
            f"KV read so far: {_bytes(self['total_kv_bytes_read'])}; each row for itself: {_bytes(self['total_kv_bytes_read_unshared'])}",
            f"prefix tree: {self['tree_nodes']} nodes" + (", those in most use:" if self["prefixes"] else ""),
        ]
        depth = {0: 0}
        for node in self["prefixes"]:
            level = depth[node["id"]] = depth.get(node["parent"], 0) + 1
            pinned = ", pinned" if node["pinned"] else ""
            lines.append(f"{'  ' * level}tokens {node['begin']} to {node['end']}: {node['users']} samples now, found {node['hits']} times{pinned}")
        for name, plan in (("last planned", self["plan"]), ("fullest", self["fullest_plan"])):
            if plan is not None and (name == "fullest" or plan != self["fullest_plan"]):
                lines.append(f"the {name} step, {plan['text'].rstrip()}")
        return "\n".join(lines)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
    else:
        unit = "TiB"
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


class LLM:
    """A model, loaded, with a thread of its own that steps it.

    Methods may be called from several threads at once: their requests run together and share what they have in common. No method
    holds the GIL while it waits. Two LLMs in one process are independent.

    A process that was forked after the model was loaded has no such thread: every call there is a RuntimeError. Load the model after
    the fork, or use multiprocessing's "spawn".

    Errors: ValueError for what can never work and TypeError for what is of another type, with the argument's name and value;
    FileNotFoundError, NotImplementedError (the message says which device or build can), MemoryError (KV cache or queue are too
    small), TimeoutError; RuntimeError for all else, a failed step among them.
    """

    def __init__(self, model: str | os.PathLike[str] = "", device: str | Sequence[str] = "auto", **options: Any) -> None:
        """
        model: a GGUF file, a Hugging Face folder, or the name of a pulled model; "": the default model.
        device: "cpu", "cuda", "cuda:1", or "auto", the first CUDA device if there is one that can, else the CPU. A list, such as
            ["cuda:0", "cuda:1"], divides one model among ranks, one on each of these GPUs; ["cpu", "cpu"] among two that divide the
            threads (docs/ranks.md).
        options, all with defaults:
            dtype: "bf16", "f16" or "f32", of KV and products. head_dtype: "f32": the output projection multiplies in f32 whatever the others do.
            weights: "fastest", "stored", "bf16" or "f32". Models of quantised files take updates as "bf16" or "f32" alone.
            sharing: "tree", "one-level", "store" or "none".
            kv_cache_bytes: bytes; 0: by what is free.
            gpu_memory_utilization: share of a GPU's memory, in (0, 1].
            max_running: samples that decode at the same moment.
            max_batch_tokens: tokens of a step. chunk: prompt tokens of a step; 0: what is left, -1: measured.
            target_tbt: seconds between two tokens of a sample, as far as prompts have a part in them; 0: no target.
            max_context: tokens; 0: the model's. max_waiting: samples that wait at most; 0: any number.
            kv_split: "auto", "heads" or "tokens", what of KV ranks divide.
            num_threads: 0: one a core. page_size: tokens, 1 to 256. steps_ahead: 0, 1, or -1 for the device's default.
            deterministic: a request's bits depend on nothing but the request.
            draft: "none", "ngram" or "model"; draft_tokens, draft_model_path.
            machine_model_path: JSON of `coppice bench calibrate`. tune: measure products first, on a GPU.
        """
        for name in ("model_path", "event_thread"):
            if name in options:
                raise TypeError(f"there is no option {name}={options[name]!r}")
        if not isinstance(device, str):
            if not is_list(device) or not all(isinstance(each, str) for each in device):
                raise TypeError(f"device={device!r:.100}: expected a string or a list of strings")
            if not device or not all(device):
                raise ValueError(f"device={device!r:.100}: expected a device for each rank")
            device = ",".join(device)
        import numpy  # noqa: F401  log-probabilities are its arrays; a Ctrl-C in its import, in a call, would lose samples

        self._native = _native.Engine({"model_path": os.fspath(model), "device": device, **options})
        self._model = self._native.model()
        _open.add(self)

    # ------------------------------------------------------------------------------------------------------------- generation

    def generate(self, prompts: Prompt | Sequence[Prompt], params: Params = None, keep: bool = False) -> list[Completion]:
        """Samples of one prompt or of several: of each prompt `n`, in their order.

        prompts: a string, a list of token ids, a chat (a list of messages), or a list of these.
        params: for all prompts, or a list with one for each.
        keep: samples can be forked and extended by Completion.sample.

        Ctrl-C ends the generation with what there is: samples that were cut off have finish_reason "cancelled", and are not kept. A
        second one raises KeyboardInterrupt.
        """
        return _whole(self._prepare(_bodies(prompts, params), True, keep))

    def chat(self, messages: Chat, params: Params = None, tools: Sequence[Mapping[str, Any]] | None = None,
             keep: bool = False) -> list[Completion]:
        """Samples of the next message of a chat; `tools`: functions as OpenAI's API has them, which the model's template shows."""
        if not is_chat(messages):
            raise TypeError(f"messages={messages!r:.100}: expected a list of messages")
        extra = {"tools": list(tools)} if tools else {}
        return _whole(self._prepare(_bodies([messages], params, extra), True, keep))

    def stream(self, prompts: Prompt | Sequence[Prompt], params: Params = None, keep: bool = False) -> Iterator[Completion]:
        """As generate, while it goes on: each Completion has what is new of a sample; the last one of a sample has its finish_reason.

        The requests are submitted by the call. An iterator that is closed or forgotten cancels what is left of them.
        """
        return _begun(self._prepare(_bodies(prompts, params), False, keep))

    async def agenerate(self, prompts: Prompt | Sequence[Prompt], params: Params = None, keep: bool = False) -> list[Completion]:
        """As generate, for asyncio. Cancelling the task cancels the requests."""
        return [sample async for sample in _apieces(self._prepare(_bodies(prompts, params), True, keep))]

    async def astream(self, prompts: Prompt | Sequence[Prompt], params: Params = None, keep: bool = False) -> AsyncIterator[Completion]:
        """As stream, for asyncio."""
        async with contextlib.aclosing(_apieces(self._prepare(_bodies(prompts, params), False, keep))) as pieces:
            async for piece in pieces:
                yield piece

    def _prepare(self, bodies: list[str], whole: bool, keep: bool) -> _native.Call | None:
        return self._native.prepare(bodies, whole, keep) if bodies else None

    # ------------------------------------------------------------------------------------------------------------------- trees

    def fork(self, sample: Kept, n: int = 1, keep_tokens: int | None = None, seed: int | None = None, params: SamplingParams | None = None,
             max_tokens: int | None = None) -> list[Completion]:
        """Children of a sample that is kept, or still goes on in a stream: each begins with the sample's tokens, which are stored and
        read once for all of them, and its Completion has what comes behind. The sample itself stays as it is.

        sample: a Completion of a call with keep=True, or its `sample`; children can be forked likewise.
        n: children. keep_tokens: of the tokens behind the prompt, so many first ones; None: all.
        seed: child i draws as sample i of a request of that seed; None: as no other sample does.
        params: how children draw, and max_tokens; None: as the sample. Stops or forms of output in it are an error.
        max_tokens: of each child, behind those that it begins with. None: those that the sample may still have; of a sample that has
        ended, as many as its request said.

        KeyError: the sample is not there any more: it was pruned or released, or its generation was cancelled. A request's `timeout`
        runs on for children, which end with finish_reason "error" when it is over.
        """
        return _whole(self._fork(sample, True, n, keep_tokens, seed, params, max_tokens))

    def stream_fork(self, sample: Kept, n: int = 1, keep_tokens: int | None = None, seed: int | None = None,
                    params: SamplingParams | None = None, max_tokens: int | None = None) -> Iterator[Completion]:
        """As fork, while it goes on. An iterator that is closed or forgotten prunes the children that have not ended."""
        return _begun(self._fork(sample, False, n, keep_tokens, seed, params, max_tokens))

    async def afork(self, sample: Kept, n: int = 1, keep_tokens: int | None = None, seed: int | None = None,
                    params: SamplingParams | None = None, max_tokens: int | None = None) -> list[Completion]:
        """As fork, for asyncio."""
        return [child async for child in _apieces(self._fork(sample, True, n, keep_tokens, seed, params, max_tokens))]

    async def astream_fork(self, sample: Kept, n: int = 1, keep_tokens: int | None = None, seed: int | None = None,
                           params: SamplingParams | None = None, max_tokens: int | None = None) -> AsyncIterator[Completion]:
        """As stream_fork, for asyncio."""
        async with contextlib.aclosing(_apieces(self._fork(sample, False, n, keep_tokens, seed, params, max_tokens))) as pieces:
            async for piece in pieces:
                yield piece

    def extend(self, sample: Kept, tokens: str | Sequence[int]) -> Completion:
        """Puts a text or token ids behind a sample, such as a tool's answer or a user's turn, and lets it go on.

        One that has ended and is kept goes on for max_tokens of its request: the Completion has what comes behind them, and is of the
        same sample. One that still goes on in a stream has them behind the tokens that it has by now, which describe reports. The
        Completion is empty at once, without a finish_reason, and the stream has what comes behind them; max_tokens stays.

        RuntimeError: its prompt is not computed yet. KeyError as of fork.
        """
        [completion] = _whole(self._extend(sample, True, tokens))
        return completion

    def stream_extend(self, sample: Kept, tokens: str | Sequence[int]) -> Iterator[Completion]:
        """As extend, while it goes on."""
        return _begun(self._extend(sample, False, tokens))

    async def aextend(self, sample: Kept, tokens: str | Sequence[int]) -> Completion:
        """As extend, for asyncio."""
        [completion] = [each async for each in _apieces(self._extend(sample, True, tokens))]
        return completion

    async def astream_extend(self, sample: Kept, tokens: str | Sequence[int]) -> AsyncIterator[Completion]:
        """As stream_extend, for asyncio."""
        async with contextlib.aclosing(_apieces(self._extend(sample, False, tokens))) as pieces:
            async for piece in pieces:
                yield piece

    def prune(self, sample: Kept) -> None:
        """A sample is not wanted any more: it ends with finish_reason "cancelled", or is forgotten. Its children stay."""
        self._native.prune(_kept(sample))

    def release(self, sample: Kept) -> None:
        """All samples of the same prompt and all their children are forgotten as they end; those that go on end as they would."""
        self._native.release(_kept(sample))

    def describe(self, sample: Kept) -> SampleInfo:
        """The tokens of a sample that is kept or goes on. KeyError as of fork."""
        return SampleInfo(*self._native.describe(_kept(sample)))

    def _fork(self, sample: Kept, whole: bool, n: int, keep_tokens: int | None, seed: int | None, params: SamplingParams | None,
              max_tokens: int | None) -> _native.Call:
        if params is not None and not isinstance(params, SamplingParams):
            raise TypeError(f"params={params!r:.100}: expected SamplingParams")
        given = {"n": n, "keep_tokens": keep_tokens, "seed": seed, "max_tokens": max_tokens}
        body = (params._fork_fields() if params else {}) | {name: value for name, value in given.items() if value is not None}
        return self._native.fork(_kept(sample), dump(body), whole)

    def _extend(self, sample: Kept, whole: bool, tokens: str | Sequence[int]) -> _native.Call:
        field = prompt_field("tokens", tokens).get("prompt")
        if field is None:
            raise TypeError(f"tokens={tokens!r:.100}: expected a string or a list of token ids")
        return self._native.extend(_kept(sample), dump({"text" if isinstance(field, str) else "token_ids": field}), whole)

    # ------------------------------------------------------------------------------------------------------------------ scores

    def score(self, prefix: str | Sequence[int], continuations: Sequence[str] | Sequence[Sequence[int]],
              cache_salt: str | None = None) -> list[Score]:
        """How probable each continuation is behind `prefix`; what continuations begin with alike is computed once.

        Texts, or token ids, 2,048 continuations at most. Prefix and continuation are tokenized as one text; scored are the tokens
        from the first one on that the prefix alone does not have. Ctrl-C raises KeyboardInterrupt.
        """
        body = prompt_field("prefix", prefix)
        if "messages" in body:
            raise TypeError(f"prefix={prefix!r:.100}: expected a string or a list of token ids")
        if isinstance(continuations, str) or not is_list(continuations):
            raise TypeError(f"continuations={continuations!r:.100}: expected a list of strings or of lists of token ids")
        body["continuations"] = [prompt_field(f"continuations[{i}]", each).get("prompt") for i, each in enumerate(continuations)]
        if cache_salt is not None:
            body["cache_salt"] = cache_salt
        return [Score(float(logprobs.sum(dtype="float64")), logprobs, greedy, ids) for logprobs, greedy, ids in self._native.score(dump(body))]

    # --------------------------------------------------------------------------------------------------------------- prefixes

    def pin(self, prompt: Prompt, name: str) -> None:
        """Computes a prompt, and keeps its KV in the cache under `name` until unpin(name)."""
        body = prompt_field("prompt", prompt) | {"max_tokens": 0}
        call = self._native.pin(dump(body), name)
        call.submit()
        call.take([])

    def unpin(self, name: str) -> None:
        """KeyError: nothing is pinned under that name."""
        self._native.unpin(name)

    def save_prefix(self, prompt: Prompt, path: str | os.PathLike[str]) -> None:
        """Computes a prompt and writes its tokens and KV to a file, which load_prefix of an equal model reads."""
        name = f"coppice_llm.save_prefix.{next(_PREFIXES)}"
        try:
            self.pin(prompt, name)
            self._native.save_prefix(name, os.fspath(path))
        finally:
            with contextlib.suppress(KeyError):  # it was not computed
                self._native.unpin(name)

    def load_prefix(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Reads such a file and pins its prompt under `name` (None: the path): prompts that begin with it find its KV."""
        path = os.fspath(path)
        self._native.load_prefix(path if name is None else name, path)

    # ---------------------------------------------------------------------------------------------------------------- weights

    def update_weights(self, tensors: Mapping[str, Any], when: str = "wait", label: str = "") -> int:
        """Replaces weights in place, some or all of them, and returns the number of updates so far.

        tensors: name, as Hugging Face's folders have it ("model.layers.0.self_attn.q_proj.weight") -> a contiguous tensor of float32,
        float16 or bfloat16, of the model's shape, in host memory or on the engine's GPU, by DLPack (torch) or the buffer protocol
        (numpy). Nothing is copied but into the weights themselves; no tensor may change before the return.
        when: what becomes of samples that run, as in pause.
        label: the caller's name of the weights, such as a training step.

        Cached KV is dropped. Errors: docs/weights.md.
        """
        if not isinstance(tensors, Mapping):
            raise TypeError(f"tensors={tensors!r:.100}: expected a dict of names and tensors")
        torch = sys.modules.get("torch")
        if torch is not None and any(getattr(tensor, "is_cuda", False) for tensor in tensors.values()):
            torch.cuda.synchronize()  # the engine's stream knows nothing of what still writes them
        return self._native.update_weights(dict(tensors), when, label)

    @property
    def weight_version(self) -> tuple[int, str]:
        """Updates since the model was loaded, and the label of the last one."""
        return self._native.weight_version()

    # ----------------------------------------------------------------------------------------------------------- pause, sleep

    def pause(self, when: str = "wait", refuse_new: bool = False) -> None:
        """No step computes anything until resume().

        when: samples that run finish first ("wait"), end with finish_reason "cancelled" ("abort"), or go on later ("keep").
        refuse_new: calls are a RuntimeError until resume(); else their requests wait.
        """
        self._native.pause(when, refuse_new)

    def resume(self) -> None:
        """RuntimeError: it is asleep, or weights are missing."""
        self._native.resume()

    def sleep(self, level: int = 1, when: str = "wait", refuse_new: bool = False) -> None:
        """Pauses, and gives memory back until wake(): that of KV, and on a GPU that of weights, which lie in host memory meanwhile
        (level 1), or of both, without a copy (level 2). Cached KV is dropped."""
        self._native.sleep(level, when, refuse_new)

    def wake(self, reload: bool = True, resume: bool = True) -> None:
        """Takes the memory again. reload: weights that are not there are read from the model's file; else update_weights brings them.
        resume: False, it stays paused. MemoryError: others have the memory now; it can be called again."""
        self._native.wake(reload, resume)

    @property
    def state(self) -> str:
        """running, paused or asleep."""
        return self._native.state()

    # ------------------------------------------------------------------------------------------------------------ information

    def metrics(self) -> dict[str, Any]:
        """Counters since the model was loaded, under the names of EngineMetrics (include/coppice/engine/engine.h): bytes, seconds,
        tokens; "last_step" has those of the last step, "prefixes" the nodes of the prefix tree in most use, "plan" and "fullest_plan"
        what attention of a step read together and why, or None where nothing was planned yet."""
        return self._native.metrics()

    def explain(self) -> Explanation:
        """Shared reads of KV, and why: the last step's reads with and without sharing, the prefix tree with its users, and of the last
        planned step and of the one with the most samples ("plan", "fullest_plan") which tokens were read together, and the reason."""
        metrics = self._native.metrics()
        step = metrics["last_step"]
        names = ("step", "decode_rows", "prefill_rows", "grouped_rows", "kv_bytes_read", "kv_bytes_read_unshared")
        return Explanation(
            {name: step[name] for name in names}
            | {f"total_{name}": metrics[name] for name in ("kv_bytes_read", "kv_bytes_read_unshared")}
            | {name: metrics[name] for name in ("tree_nodes", "prefixes", "plan", "fullest_plan")})

    @property
    def model_info(self) -> dict[str, Any]:
        """Shapes, vocabulary and what the model's files say of sampling ("sampling"), as ModelInfo has them."""
        return dict(self._model)

    def tokenize(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text; add_special: with what the model wants before and behind it."""
        return self._native.tokenize(text, add_special)

    def detokenize(self, token_ids: Sequence[int], keep_special: bool = False) -> str:
        field = prompt_field("token_ids", token_ids).get("prompt")
        if not isinstance(field, list):
            raise TypeError(f"token_ids={token_ids!r:.100}: expected a list of token ids")
        return self._native.detokenize(field, keep_special)

    # ------------------------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Gives model and KV cache back; what runs in other threads ends with RuntimeError. Closing twice does nothing."""
        self._native.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        model = self._model
        return f"<coppice_llm.LLM {model['architecture']}, {model['num_layers']} layers{', closed' if self._native.closed() else ''}>"


def _bodies(prompts: Prompt | Sequence[Prompt], params: Params, extra: Mapping[str, Any] | None = None) -> list[str]:
    """A body of a request for each prompt."""
    if not is_one(prompts) and not is_list(prompts):
        raise TypeError(f"prompts={prompts!r:.100}: expected a string, a list of token ids, a list of messages, or a list of these")
    all_prompts: Sequence[Any] = [prompts] if is_one(prompts) else prompts
    if params is None:
        params = SamplingParams()
    each = [params] * len(all_prompts) if isinstance(params, SamplingParams) else params
    if not is_list(each) or not all(isinstance(one, SamplingParams) for one in each):
        raise TypeError(f"params={params!r:.100}: expected SamplingParams, or a list with one for each prompt")
    if len(each) != len(all_prompts):
        raise ValueError(f"params has {len(each)} entries, expected {len(all_prompts)}, one for each prompt")
    bodies = []
    for i, (prompt, one) in enumerate(zip(all_prompts, each)):
        body = prompt_field(f"prompts[{i}]", prompt)
        bodies.append(dump(body | one._body("messages" in body) | dict(extra or {})))
    return bodies


def _kept(sample: Kept) -> _native.Sample:
    native = sample.sample if isinstance(sample, Completion) else sample
    if isinstance(native, _native.Sample):
        return native
    hint = "; generate it with keep=True" if isinstance(sample, Completion) else ""
    raise TypeError(f"sample={sample!r:.100}: expected a sample that is kept, or its Completion{hint}")


def _whole(call: _native.Call | None) -> list[Completion]:
    """All news of a call that is to be submitted. Ctrl-C as in _take, from the moment of the submission."""
    if call is None:
        return []
    news: list[tuple[Any, ...]] = []
    try:
        call.submit()
        call.take(news)
    except KeyboardInterrupt:
        if not call.cancel():
            raise
        if not news:
            call.take(news)
    return [Completion(*sample) for sample in news]


def _take(call: _native.Call) -> list[tuple[Any, ...]]:
    """The next news. The first Ctrl-C cancels what runs, so that the news are what there is."""
    news: list[tuple[Any, ...]] = []
    try:
        call.take(news)
    except KeyboardInterrupt:
        call.cancel()
        if not news:
            call.take(news)
    return news


def _begun(call: _native.Call | None) -> Iterator[Completion]:
    """The pieces of a call that is to be submitted at once."""
    if call is None:
        return iter(())
    call.submit()
    return _pieces(call)


def _pieces(call: _native.Call) -> Iterator[Completion]:
    try:
        while news := _take(call):
            for piece in news:
                yield Completion(*piece)
    finally:
        call.cancel()


async def _apieces(call: _native.Call | None) -> AsyncGenerator[Completion, None]:
    """The pieces of a call that is to be submitted; its end cancels what is left."""
    import asyncio  # half of the package's import

    if call is None:
        return
    await asyncio.to_thread(call.submit)
    async with contextlib.aclosing(_news(call)) as steps:
        async for news in steps:
            for piece in news:
                yield Completion(*piece)


async def _news(call: _native.Call) -> AsyncGenerator[list[tuple[Any, ...]], None]:
    import asyncio

    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = call.descriptor()
    loop.add_reader(descriptor, ready.set)
    try:
        while (news := call.take_now()) != []:
            if news is None:
                with contextlib.suppress(asyncio.TimeoutError):  # of an LLM that is closed nothing comes: take_now says so
                    await asyncio.wait_for(ready.wait(), 1.0)
                ready.clear()
            else:
                yield news
    finally:
        loop.remove_reader(descriptor)
        call.cancel()


_open: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter takes away what the engines' threads may need."""
    for llm in list(_open):
        llm.close()
