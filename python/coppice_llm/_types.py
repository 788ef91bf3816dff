"""Inputs and outputs of an engine."""

from __future__ import annotations

import json
import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeGuard, Union

if TYPE_CHECKING:
    import numpy

    from . import _native

# Messages with "role" and "content", as OpenAI's API has them; the model's chat template makes a prompt of them.
Chat = Sequence[Mapping[str, Any]]
# Text, token ids, or a chat.
Prompt = Union[str, Sequence[int], Chat]


@dataclass
class SamplingParams:
    """How samples of a prompt are drawn and where they end. None: as the line says.

    Values out of range are a ValueError of the call that uses them, which names the parameter and the value.
    """

    n: int = 1
    """Samples of the prompt: the prompt is computed once, and read once a step for all of them."""
    max_tokens: int | None = None
    """Tokens of a sample at most. None: 16 after a text or token ids; a chat's may go on to the end of the context."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0: greedy, the most probable token each time."""
    top_p: float = 1.0
    """In (0, 1]."""
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    """In [0, 1]."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    """Token id -> what is added to its logit."""
    seed: int | None = None
    """0 to 2^64 - 1: the same seed draws the same samples from the same distributions. None: another one for each prompt."""
    beam_width: int | None = None
    """Beam search: that many of the most probable outputs go on at a time, and the best n are reported, best first, when it is over;
    temperature, top_p, top_k and min_p do not count. None: samples are drawn."""
    length_penalty: float = 1.0
    """Of beam search: an output scores the sum of its log-probabilities / tokens ** length_penalty."""
    early_stopping: bool | str = False
    """Of beam search, once as many outputs have ended as it has beams: True: it is over; False: it is over once no beam, as long as
    it is, scores better than the worst of them; "never": once no beam can, however long it becomes."""
    stochastic_beams: bool = False
    """Of beam search: beam_width different outputs are drawn without replacement, at `temperature`, with `seed`."""
    stop: str | Sequence[str] | None = None
    """Texts that end a sample; they are not part of it."""
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    top_logprobs: int = 0
    """0 to 128: that many alternatives at each place, for Completion.top_logprobs."""
    json_schema: Mapping[str, Any] | str | None = None
    """A schema that the whole output follows; at most one of json_schema, regex and grammar."""
    regex: str | None = None
    grammar: str | None = None
    """In EBNF; its rule `root` is the whole output."""
    cache_salt: str | None = None
    """Requests with different salts share no KV."""
    priority: int = 0
    """Of requests that wait, higher ones come first."""
    timeout: float | None = None
    """Seconds from submission; what is unfinished then ends with finish_reason "error"."""

    def _fork_fields(self) -> dict[str, Any]:
        """Those that a fork takes. ValueError: another one is given, which is its request's and cannot change."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _FORK_FIELDS and value != each.default:
                raise ValueError(f"params.{each.name}={value!r:.100}: a fork has it from its request, expected {each.default!r}")
        taken = {name: getattr(self, name) for name in _FORK_FIELDS}
        return _with_bias({name: value for name, value in taken.items() if value is not None})

    def _body(self, chat: bool) -> dict[str, Any]:
        """These as fields of an OpenAI body (docs/batch.md)."""
        taken = {each.name: getattr(self, each.name) for each in fields(self)}
        body = _with_bias({name: value for name, value in taken.items() if value is not None})
        body.setdefault("seed", secrets.randbits(63))
        alternatives = body.pop("top_logprobs", 0)
        if chat:
            body |= {"logprobs": True, "top_logprobs": alternatives}
        else:
            body |= {"logprobs": alternatives}
        if self.beam_width is not None:
            body["use_beam_search"] = True  # one beam, too, is a search
        schema = body.pop("json_schema", None)
        if schema is not None:
            if isinstance(schema, str):
                try:
                    schema = json.loads(schema)
                except ValueError as error:
                    raise ValueError(f"json_schema={schema!r:.100}: expected JSON: {error}") from None
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
        return body


_FORK_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed")


def _with_bias(body: dict[str, Any]) -> dict[str, Any]:
    """`body`, its logit_bias as JSON has it."""
    if "logit_bias" in body:
        if not isinstance(body["logit_bias"], Mapping):
            raise TypeError(f"logit_bias={body['logit_bias']!r:.100}: expected a dict of token ids and numbers")
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    return body


@dataclass
class Completion:
    """A sample, or what is new of it."""

    prompt_index: int
    """Which of the prompts."""
    index: int
    """Which of the prompt's samples."""
    text: str
    """Empty where the model has no tokenizer."""
    token_ids: list[int]
    logprobs: numpy.ndarray[Any, Any] = field(repr=False, compare=False)
    """float32 [tokens]: natural logarithms of the model's own probabilities, before sampling parameters."""
    top_logprobs: list[dict[int, float]] = field(repr=False)
    """With SamplingParams.top_logprobs: for each token those that were most probable in its place, most probable first; else empty."""
    finish_reason: str | None
    """"stop", "length", "cancelled" or "error"; None: the sample goes on, in LLM.stream."""
    cached_tokens: int
    """Tokens of the prompt whose KV was there already."""
    weight_version: int
    """Updates of the weights before these tokens were computed: LLM.update_weights."""
    error: str | None = None
    """With finish_reason "error": what happened."""
    sample: _native.Sample | None = field(default=None, repr=False, compare=False)
    """With keep=True: the sample itself, for LLM.fork, extend, prune, release and describe. KV that is kept of a prompt's samples
    is released when no Completion holds one of them any more."""
    beam_score: float | None = None
    """Of an output of a beam search, with its finish_reason: what it was ranked by."""

    @property
    def mean_logprob(self) -> float | None:
        """None where there is no token."""
        return float(self.logprobs.mean()) if len(self.token_ids) else None


@dataclass
class SampleInfo:
    """A sample that is kept, as LLM.describe gives it."""

    prompt_tokens: int
    token_ids: list[int] = field(repr=False)
    """The prompt's, and all behind it: what was generated, and what LLM.extend added."""
    finished: bool


@dataclass
class Score:
    """How probable a continuation is behind a prefix."""

    logprob: float
    """Natural logarithm: the sum of `logprobs`."""
    logprobs: numpy.ndarray[Any, Any] = field(repr=False, compare=False)
    """float32 [tokens]."""
    greedy: bool
    """Each token is the most probable one in its place."""
    token_ids: list[int]


def is_chat(prompt: object) -> bool:
    return is_list(prompt) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    if isinstance(value, (str, bytes, bytearray, Mapping)) or getattr(value, "ndim", 1) == 0:  # an array without dimensions has no len
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def is_one(prompts: object) -> bool:
    """A prompt and not a list of prompts. An empty list is none of either."""
    return isinstance(prompts, str) or is_chat(prompts) or (is_list(prompts) and len(prompts) > 0 and isinstance(prompts[0], numbers.Integral))


def prompt_field(name: str, prompt: object) -> dict[str, Any]:
    """The prompt as the field of an OpenAI body."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if is_list(prompt) and is_chat(prompt):
        return {"messages": list(prompt)}
    if is_list(prompt) and all(isinstance(token, numbers.Integral) for token in prompt):
        return {"prompt": [int(token) for token in prompt]}
    raise TypeError(f"{name}={prompt!r:.100}: expected a string, a list of token ids or a list of messages")


def dump(body: Mapping[str, Any]) -> str:
    """The text of a body. TypeError and ValueError name the field that JSON has no form for."""
    for name, value in body.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}={value}: expected a finite number")
    try:
        return _json(body)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        for name, value in body.items():
            try:
                _json(value)
            except (TypeError, ValueError):
                raise kind(f"{name}={value!r:.100}: {error}") from None
        raise


def _json(value: object) -> str:
    text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)
    text.encode()  # ValueError: a surrogate, as of a file that was read with errors="surrogateescape"
    return text


def _plain(value: object) -> object:
    """Numbers of numpy as numbers of Python, mappings of any kind as dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"an object of type {type(value).__name__} has no form in JSON")
