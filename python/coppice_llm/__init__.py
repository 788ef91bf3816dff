"""Coppice: LLM inference that stores what requests share once and reads it once per decode step.

    from coppice_llm import LLM, SamplingParams

    llm = LLM("model.gguf")
    for sample in llm.generate("A coppice is", SamplingParams(n=4, max_tokens=32)):
        print(sample.text)

`python -m coppice_llm` is the program `coppice`. docs/python.md of the project explains more.
"""

from ._llm import LLM, Explanation
from ._types import Chat, Completion, Prompt, SampleInfo, SamplingParams, Score

__all__ = ["LLM", "SamplingParams", "Completion", "SampleInfo", "Score", "Explanation", "Prompt", "Chat"]
