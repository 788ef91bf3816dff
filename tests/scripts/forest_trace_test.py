"""bench/peers/forest_trace.py: steps of traces as arrays, page tables and levels of a cascade, without a GPU."""

import gzip
import os
import random
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))

from forest_trace import Layout, Step, Trace  # noqa: E402

HEAD = '{"format":"coppice forest trace","version":1,"page_size":16,"layers":[{"layers":2,"qo_heads":4,"kv_heads":2,"head_dim":16,"window":0}]}'
TRACES = os.path.join(ROOT, "bench", "traces")


def random_step(rng):
    nodes, inner = {}, {-1: 0}
    for node in range(100, 100 + rng.randint(0, 6)):
        parent = rng.choice(list(inner))
        nodes[node] = (parent, rng.choice([0, rng.randint(1, 90)]))
        inner[node] = inner[parent] + nodes[node][1]
    branches = {}
    for branch in range(rng.randint(1, 12)):
        parent = rng.choice(list(inner))
        nodes[branch] = (parent, None)
        own = rng.randint(1, 60)
        branches[branch] = (branch, inner[parent] + own, rng.choice([0, 1, 1, 1, rng.randint(1, own)]) if branch else 1)
    return Step(nodes, branches)


class ForestTraceTest(unittest.TestCase):
    def check(self, step, page_size):
        at = Layout(step, page_size)
        self.assertEqual(sorted(zip(at.kv_len, at.queries)),
                         sorted((kv_len, queries) for _, kv_len, queries in step.branches.values() if queries > 0))
        for row, kv_len, leaf in zip(at.page_rows, at.kv_len, at.leaves):
            self.assertEqual(len(row), -(-kv_len // page_size))
            self.assertTrue(at.begin[leaf] < kv_len <= at.end[leaf])
        for node, parent in enumerate(at.parent):
            self.assertEqual(at.begin[node], at.end[parent] if parent >= 0 else 0)
        # Each request's groups of all levels, in order, are its page row.
        rows = [[] for _ in at.queries]
        for level in at.levels:
            self.assertEqual([i for members, _ in level for i in members], list(range(len(rows))))
            for members, pages in level:
                for i in members:
                    rows[i] += pages
        self.assertEqual(rows, at.page_rows)
        # Pages of several requests hold what all queries of each see.
        for level in at.levels[:-1]:
            for members, pages in level:
                for i in members:
                    self.assertTrue(not pages or (rows[i].index(pages[-1]) + 1) * page_size <= at.kv_len[i] - at.queries[i] + 1)
        # With copies each token of a node is one thing, whatever the request.
        value = {}
        for page in range(at.num_pages):
            for slot in range(page_size):
                value[page, slot] = (page, slot)
        for page, to, begin, end in at.copies:
            for slot in range(begin, end):
                value[to, slot] = value[page, slot]
        seen = {}
        for i, row in enumerate(at.page_rows):
            node = at.leaves[i]
            while node >= 0:
                for token in range(at.begin[node], min(at.end[node], at.kv_len[i])):
                    found = value[row[token // page_size], token % page_size]
                    self.assertEqual(seen.setdefault((node, token), found), found)
                node = at.parent[node]
        self.assertEqual(len(set(seen.values())), len(seen), "two tokens in one place")

    def test_random_steps(self):
        rng = random.Random(1)
        for _ in range(200):
            self.check(random_step(rng), rng.choice([1, 4, 16]))

    def test_deltas(self):
        lines = [HEAD, '{"nodes":[[0,2,-1],[1,2,-1],[2,-1,100]],"branches":[[0,0,101,1],[1,1,101,1]]}', "{}",
                 '{"nodes_gone":[1,2],"nodes":[[0,-1,-1]],"branches_gone":[1]}']
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            for packed in (False, True):
                data = "".join(line + "\n" for line in lines).encode()
                with open(path, "wb") as file:
                    file.write(gzip.compress(data) if packed else data)
                trace = Trace(path)
                self.assertEqual([number for number, _ in trace.steps], [1, 2, 3])
                self.assertEqual(trace.steps[1][1].branches, {0: (0, 102, 1), 1: (1, 102, 1)})
                self.assertEqual((trace.steps[2][1].nodes, trace.steps[2][1].branches), ({0: (-1, None)}, {0: (0, 103, 1)}))
                self.assertEqual([number for number, _ in Trace(path, 1).steps], [2])
            levels = Layout(trace.steps[0][1], 16).levels
            self.assertEqual([[len(pages) for _, pages in level] for level in levels], [[6], [1, 1]])

    def test_what_is_no_trace_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            for lines, message in (([], ":1: is no forest trace"), (["{}"], ":1: is no forest trace"),
                                   ([HEAD.replace('"version":1', '"version":2')], ":1: version is 2, expected 1"),
                                   ([HEAD, "{"], ":2: "), ([HEAD, "{}", '{"branches_gone":[7]}'], ":3: KeyError(7)")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write("".join(line + "\n" for line in lines))
                with self.assertRaisesRegex(ValueError, message.replace("(", r"\(").replace(")", r"\)")):
                    Trace(path)

    def test_the_traces_of_the_repository(self):
        names = [name for name in os.listdir(TRACES) if name.endswith(".jsonl.gz")]
        self.assertGreaterEqual(len(names), 4)
        for name in names:
            path = os.path.join(TRACES, name)
            self.assertLess(os.path.getsize(path), 200 << 10)
            trace = Trace(path, 12)
            self.assertGreater(trace.num_steps, 50)
            for _, step in trace.steps:
                self.check(step, 16)


if __name__ == "__main__":
    unittest.main()
