"""Hydragen's recipe (Juravsky et al. 2024) by hand: attention over the prefix for all requests at once, attention over each request's own
tokens, and the merge of both. Then the same as one forest, whose plan does it in one call. Both agree.
"""

import numpy

from coppice_llm import attention

PAGE, PREFIX, OWN, REQUESTS, HEADS, DIM = 16, 256, 16, 8, 4, 64
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": HEADS, "head_dim": DIM, "dtype": "f32"}

random = numpy.random.default_rng(0)
k, v = (random.standard_normal((PREFIX // PAGE + REQUESTS, PAGE, HEADS, DIM)).astype(numpy.float32) for _ in range(2))
q = random.standard_normal((REQUESTS, HEADS, DIM)).astype(numpy.float32)
device = attention.Device("cpu", num_threads=2)
kv = attention.KvPool(device, k, v)
prefix_pages = list(range(PREFIX // PAGE))

# By hand. To the prefix alone the requests are branches of the same length that end with it.
prefix, suffix = attention.Forest(PAGE), attention.Forest(PAGE)
node = prefix.add_node(None, 0, PREFIX)
for request in range(REQUESTS):
    prefix.add_branch(node, PREFIX, prefix_pages)
    suffix.add_branch(suffix.add_node(None, 0), OWN, [len(prefix_pages) + request])
over_prefix = attention.run(q, kv, attention.Plan(device, prefix, **SHAPE))
over_suffix = attention.run(q, kv, attention.Plan(device, suffix, **SHAPE))
by_hand, _ = attention.merge_states(device, [over_prefix, over_suffix])

# As a forest.
forest = attention.Forest(PAGE)
root = forest.add_node(None, 0, PREFIX)
for request in range(REQUESTS):
    forest.add_branch(forest.add_node(root, PREFIX), PREFIX + OWN, [*prefix_pages, len(prefix_pages) + request])
plan = attention.Plan(device, forest, **SHAPE, force_sharing=True)
out, _ = attention.run(q, kv, plan)

difference = float(numpy.abs(out - by_hand).max())
read = plan.stats()
print(f"largest difference {difference:.1e}; KV tokens read: {read['kv_tokens_read']}, unshared: {read['kv_tokens_read_unshared']}")
assert difference < 1e-5
