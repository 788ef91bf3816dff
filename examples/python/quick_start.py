"""Samples, what of them was shared and why, a stream, a chat, scores, a fork: quick_start.py [MODEL]"""

import sys

from coppice_llm import LLM, SamplingParams

TEXT = "A coppice is a tree that was cut to its stump. Many shoots grow from its one root. " * 20

with LLM(sys.argv[1] if len(sys.argv) > 1 else "") as llm:
    print("samples of one prompt, which is computed once:")
    for sample in llm.generate(TEXT + "Such a tree", SamplingParams(n=8, max_tokens=16)):
        print(f"  {sample.mean_logprob:.2f} {sample.text!r}")
    print(llm.explain())

    print("as they come: ", end="")
    for piece in llm.stream("The first three primes are", SamplingParams(max_tokens=16, temperature=0)):
        print(piece.text, end="", flush=True)

    [answer] = llm.chat([{"role": "user", "content": "Name a tree."}], SamplingParams(max_tokens=16, temperature=0))
    print(f"\na chat: {answer.text!r}")

    likely, unlikely = llm.score("The capital of France is", [" Paris", " a fish"])
    print(f"scores: {likely.logprob:.1f} and {unlikely.logprob:.1f}")

    samples = llm.generate(["Two and two is"] * 2, SamplingParams(n=2, max_tokens=4, temperature=0), keep=True)
    [longer] = llm.fork(samples[0], max_tokens=8)
    print(f"a sample that goes on: {samples[0].text!r} + {longer.text!r}")
