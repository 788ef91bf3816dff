"""Self-consistency: many chains of thought of one question, and the answer that most of them end in (Wang et al. 2023).

A question and its examples are one prompt, whose KV all samples read together. Usage: self_consistency.py MODEL [N]
"""

import collections
import re
import sys

from coppice_llm import LLM, SamplingParams

EXAMPLES = """Q: There are 3 cars, and 2 more arrive. How many cars are there?
A: There were 3 cars and 2 came, so there are 3 + 2 = 5. The answer is 5.

Q: Lea has 10 pears and eats 4. How many pears are left?
A: She had 10 pears and ate 4, so 10 - 4 = 6 are left. The answer is 6.

"""
QUESTION = "Q: A box holds 4 eggs, and 5 more are put in. How many eggs are in the box?\nA:"

with LLM(sys.argv[1]) as llm:
    samples = llm.generate(EXAMPLES + QUESTION, SamplingParams(n=int(sys.argv[2]) if len(sys.argv) > 2 else 32, max_tokens=48, temperature=0.7, stop="\n", seed=1))
    shared = llm.metrics()
answers = (re.search(r"The answer is (-?\d+)", sample.text) for sample in samples)
votes = collections.Counter(answer[1] for answer in answers if answer)
for answer, count in votes.most_common():
    print(f"{count:3d} of {len(samples)}: {answer}")
print(f"KV read: {shared['kv_bytes_read'] >> 20} MiB; each sample for itself: {shared['kv_bytes_read_unshared'] >> 20} MiB")
