"""Monte Carlo tree search on the Game of 24: a node is a sample, an expansion a fork, a rollout a fork that goes on to the end.

Children are chosen by PUCT (Silver et al. 2017): the model's probability of a line is its prior, what rollouts reach is its reward.
Usage: monte_carlo_tree_search.py MODEL NUMBER NUMBER NUMBER NUMBER
"""

import math
import sys

from coppice_llm import LLM, SamplingParams
from game_of_24 import PROMPT, grammar, reached

SIMULATIONS, CHILDREN, ROLLOUTS, EXPLORATION = 120, 12, 4, 1.5


class Node:
    """The text so far, as a sample that is kept."""

    def __init__(self, sample, text, prior):
        self.sample, self.text, self.prior = sample, text, prior
        self.children, self.visits, self.reward = [], 0, 0.0

    def value_of(self, child):
        mean = child.reward / child.visits if child.visits else self.reward / self.visits
        return mean + EXPLORATION * child.prior * math.sqrt(self.visits) / (1 + child.visits)


def expand(llm, node):
    """The lines that the model thinks of behind a node, each once."""
    seen = set()
    for child in llm.fork(node.sample, n=CHILDREN, max_tokens=24):
        if child.text in seen:
            llm.prune(child)
        else:
            seen.add(child.text)
            node.children.append(Node(child, node.text + child.text + "\n", math.exp(float(child.logprobs.sum()))))


def rollouts(llm, node):
    """Ends of a node, and the best of their rewards: 1 for 24, less for what is further from it."""
    ends = [node.text]
    if reached(node.text) is None:
        ends = []
        for child in llm.fork(node.sample, n=ROLLOUTS):
            text = node.text + child.text + "\n"
            while reached(text) is None:  # a line at a time: the newline ends a sample
                [child] = llm.fork(child)
                text += child.text + "\n"
            ends.append(text)
    rewards = {text: 1 / (1 + abs(reached(text) - 24)) for text in ends}
    best = max(rewards, key=rewards.get)
    return best, rewards[best]


with LLM(sys.argv[1]) as llm:
    newline = llm.tokenize("\n", add_special=False)
    numbers = [int(number) for number in sys.argv[2:6]]
    # The root begins behind the prompt: its children are forks that keep no token of it.
    [first] = llm.generate(PROMPT.format(" ".join(sys.argv[2:6])), SamplingParams(max_tokens=24, grammar=grammar(numbers), stop_token_ids=newline, seed=1),
                           keep=True)
    root, best, reward, simulation = Node(first, "", 1.0), "", 0.0, 0
    for child in llm.fork(first, n=CHILDREN, keep_tokens=0, max_tokens=24):
        if child.text not in [other.text.strip() for other in root.children]:
            root.children.append(Node(child, child.text + "\n", math.exp(float(child.logprobs.sum()))))
    root.visits = 1
    while reward < 1 and simulation < SIMULATIONS:
        simulation += 1
        path = [root]
        while path[-1].children:
            path.append(max(path[-1].children, key=path[-1].value_of))
        if path[-1].visits and reached(path[-1].text) is None:
            expand(llm, path[-1])
            path.append(max(path[-1].children, key=lambda child: child.prior))
        text, found = rollouts(llm, path[-1])
        if found > reward:
            best, reward = text, found
        for node in path:
            node.visits += 1
            node.reward += found
    print(best.strip())
    print(f"{simulation} simulations; children of the root by visits: " + ", ".join(
        f"{child.text.strip()} ({child.visits})" for child in sorted(root.children, key=lambda child: -child.visits)[:3]))
