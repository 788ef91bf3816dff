"""Tree of thoughts (Yao et al. 2023) on the Game of 24: breadth first, the model's log-probabilities are the values of thoughts.

A thought is a line. The most probable ones of a level are kept, and each is forked for the next level's; the others are pruned. Tokens
that thoughts have in common are stored once and read once a step. Usage: tree_of_thoughts.py MODEL NUMBER NUMBER NUMBER NUMBER
"""

import sys

from coppice_llm import LLM, SamplingParams
from game_of_24 import PROMPT, grammar, reached

WIDTH, CHILDREN, ROUNDS = 6, 8, 12
numbers = [int(number) for number in sys.argv[2:6]]

with LLM(sys.argv[1]) as llm:
    newline = llm.tokenize("\n", add_special=False)
    params = SamplingParams(n=WIDTH * CHILDREN, max_tokens=24, grammar=grammar(numbers), stop_token_ids=newline, seed=1)
    tried, solution = set(), None
    for turn in range(ROUNDS):
        params.seed, params.temperature = turn, 1 + turn / 5  # more daring each time
        # By its text: the sum of the log-probabilities of a thought and of those before it, and the sample.
        thoughts = [(sample.text, float(sample.logprobs.sum()), sample) for sample in llm.generate(PROMPT.format(" ".join(sys.argv[2:6])), params, keep=True)]
        for level in range(4):
            best = {}
            for text, value, sample in sorted(thoughts, key=lambda thought: -thought[1]):
                if text not in best and text not in tried and len(best) < WIDTH:
                    best[text] = value, sample
                else:
                    llm.prune(sample)
            tried |= best.keys()  # other thoughts next time
            if level == 3:
                break
            thoughts = []
            for text, (value, sample) in best.items():
                thoughts += [(text + "\n" + child.text, value + float(child.logprobs.sum()), child) for child in llm.fork(sample, n=CHILDREN)]
        solution = next((text for text in best if reached(text) == 24), None)
        if solution:
            break
    shared = llm.metrics()
print(solution if solution else f"none of {len(tried)} thoughts reaches 24")
print(f"KV read: {shared['kv_bytes_read'] >> 20} MiB; each sample for itself: {shared['kv_bytes_read_unshared'] >> 20} MiB")
