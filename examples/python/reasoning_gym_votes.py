"""Self-consistency over reasoning-gym: many answers to each question, the one that most samples give, and what the verifier says of it.

All questions follow the same examples, whose KV all samples of all questions read together. Usage: reasoning_gym_votes.py MODEL
[DATASET [QUESTIONS [N]]]; needs the package reasoning-gym.
"""

import collections
import sys

import reasoning_gym

from coppice_llm import LLM, SamplingParams

model, dataset, questions, n = sys.argv[1:] + ["chain_sum", "8", "16"][len(sys.argv) - 2:]
questions, n = int(questions), int(n)
tasks = reasoning_gym.create_dataset(dataset, size=questions, seed=1)
examples = "".join(f"Question: {task['question']}\nAnswer: {task['answer']}\n\n" for task in reasoning_gym.create_dataset(dataset, size=8, seed=2))

with LLM(model) as llm:
    prompts = [f"{examples}Question: {task['question']}\nAnswer:" for task in tasks]
    samples = llm.generate(prompts, SamplingParams(n=n, max_tokens=32, temperature=0.8, stop="\n", seed=1))
    read = llm.metrics()
answers = collections.defaultdict(list)
for sample in samples:
    answers[sample.prompt_index].append(sample.text.strip())
votes = {i: collections.Counter(said).most_common(1)[0][0] for i, said in answers.items()}
scores = [[tasks.score_answer(answer, task) for answer in answers[i]] for i, task in enumerate(tasks)]
print(f"a sample: {sum(map(sum, scores)) / len(samples):.3f}")
print(f"the vote of {n}: {sum(tasks.score_answer(votes[i], task) for i, task in enumerate(tasks)) / questions:.3f}")
print(f"the best of {n}: {sum(map(max, scores)) / questions:.3f}")
print(f"KV read: {read['kv_bytes_read'] >> 20} MiB; each sample for itself: {read['kv_bytes_read_unshared'] >> 20} MiB")
