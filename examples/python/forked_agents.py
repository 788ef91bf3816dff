"""Sub-agents that fork a conversation: each goes on from all that was said, with a task of its own, and the answers come back as one turn.

The conversation is stored once and read once a step for all of them. Usage: forked_agents.py MODEL [AGENTS]
"""

import sys
import time

from coppice_llm import LLM, SamplingParams

TREES = ["oak", "beech", "hazel", "willow", "birch", "pine", "elm", "lime", "alder", "ash", "maple", "chestnut", "spruce", "larch", "yew", "rowan"]
QUESTION = [{"role": "system", "content": "You are the voice of a botanical garden. You answer in one short sentence."},
            {"role": "user", "content": "I plan a garden of native trees. What should I keep in mind?"}]
TURN = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def agents_of(llm, conversation, tasks):
    """A fork of a conversation for each task, each with its task as the next turn, and what it answers."""
    # A fork generates something: the token that ended the conversation's last turn, again.
    length = len(llm.describe(conversation).token_ids) - llm.describe(conversation).prompt_tokens
    forks = llm.fork(conversation, n=len(tasks), keep_tokens=length - 1, params=SamplingParams(temperature=0, max_tokens=1))
    streams = [llm.stream_extend(fork, TURN.format(task)) for fork, task in zip(forks, tasks)]  # all of them run from here on
    return ["".join(piece.text for piece in stream).strip() for stream in streams]


with LLM(sys.argv[1]) as llm:
    [conversation] = llm.chat(QUESTION, SamplingParams(max_tokens=128, temperature=0, stop_token_ids=llm.tokenize("<|im_end|>")), keep=True)
    print(conversation.text.strip(), end="\n\n")
    tasks = [f"Is the {tree} a good choice? Answer in one sentence." for tree in TREES[: int(sys.argv[2]) if len(sys.argv) > 2 else len(TREES)]]
    before, begin = llm.metrics(), time.perf_counter()
    answers = agents_of(llm, conversation, tasks)
    after, seconds = llm.metrics(), time.perf_counter() - begin
    for tree, answer in zip(TREES, answers):
        print(f"{tree}: {answer}")
    report = "\n".join(f"{tree}: {answer}" for tree, answer in zip(TREES, answers))
    print("\n" + llm.extend(conversation, TURN.format("My agents say:\n" + report + "\nWhich tree do you recommend?")).text.strip())
    read, unshared = (after[name] - before[name] for name in ("kv_bytes_read", "kv_bytes_read_unshared"))
    print(f"\n{len(answers)} agents in {seconds:.1f} s; KV read: {read >> 20} MiB; each for itself: {unshared >> 20} MiB")
