"""Best of n: of n samples of a prompt, those that the model itself finds most probable, duplicates left out (Bifurcated Attention 5.4).

The prompt is computed once, and each step reads it once for all samples. Usage: best_of_n.py MODEL PROMPT [N]
"""

import sys

from coppice_llm import LLM, SamplingParams

model, prompt, n = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 16

with LLM(model) as llm:
    samples = llm.generate(prompt, SamplingParams(n=n, max_tokens=32, temperature=0.8, seed=1))
best = {}
for sample in sorted(samples, key=lambda sample: sample.mean_logprob, reverse=True):
    best.setdefault(sample.text.strip(), sample.mean_logprob)
for text, mean_logprob in list(best.items())[:3]:
    print(f"{mean_logprob:.3f} {text!r}")
