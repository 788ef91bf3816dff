#!/usr/bin/env python3
"""The steps of a forest trace (docs/traces.md) as one attention layer: Coppice beside FlashInfer, in one process, on the same paged KV.

  bench/peers/trace_peers.py --library build/shared/src/attention/libcoppice_attention.so bench/traces/*.jsonl.gz [--steps 16]

Needs an NVIDIA GPU, PyTorch and FlashInfer (PyPI flashinfer-python). Every step has its tree as it was recorded; heads are those of
Llama-3-8B unless --heads says otherwise, head_dim is 128, pages have 16 tokens. Columns, as in attention_peers.py, which says how it
measures:
  tree, store    Coppice through its C ABI, with sharing and without
  fi_cascade     MultiLevelCascadeAttentionWrapper: a level for each depth of the tree at which some node has a whole page, and one for
                 what each request has of its own; a request whose path is shorter has no pages on the levels between. Such steps have
                 the fa2 kernels, since those for Hopper (fa3, FlashInfer 0.7.2) read outside of memory there
  fi_decode      BatchDecodeWithPagedKVCacheWrapper with tensor cores over shared pages, in steps whose requests have one query each
  fi_batch       BatchAttention over shared pages
Printed are totals over the steps that all columns computed, and the median over steps of each column's time by tree's.
"""

import argparse
import statistics
import sys

import torch
from attention_peers import HEAD_DIM, PAGE, Batch, Coppice, Timer, cascade_wrapper, indptr, measure, planned, write_lines
from forest_trace import Layout, Trace

COLUMNS = ("tree", "store", "fi_cascade", "fi_decode", "fi_batch")


class TraceStep(Batch):
    """A step of a trace."""

    def __init__(self, qo_heads, kv_heads, layout):
        self.layout, self.requests = layout, len(layout.queries)
        super().__init__(qo_heads, kv_heads, layout.num_pages, sum(layout.queries))
        self.page_rows = [self.shuffled[row] for row in layout.page_rows]
        for page, to, begin, end in layout.copies:
            self.pool[self.shuffled[to], :, :, begin:end] = self.pool[self.shuffled[page], :, :, begin:end]

    def forest(self):
        at = self.layout
        return at.parent, at.begin, at.end, at.leaves, at.queries, at.kv_len, self.page_rows

    def request_of(self, row):
        request = 0
        while row >= self.layout.queries[request]:
            row -= self.layout.queries[request]
            request += 1
        return request, row

    def rows_to_check(self):
        rows = sum(self.layout.queries)
        return sorted({0, rows // 2, rows - 1})

    def seen(self, row):
        request, query = self.request_of(row)
        return self.page_rows[request], self.layout.kv_len[request] - self.layout.queries[request] + query + 1


def flashinfer_contestants(step, flashinfer, workspace):
    at, heads = step.layout, (step.qo_heads, step.kv_heads, HEAD_DIM, PAGE)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    counts = [len(row) for row in at.page_rows]
    rows, last = torch.cat(step.page_rows).int(), [(n - 1) % PAGE + 1 for n in at.kv_len]

    def cascade():
        has_empty = any(not pages for level in at.levels for _, pages in level)
        wrapper = cascade_wrapper(flashinfer, len(at.levels), workspace, "fa2" if has_empty else None)
        lasts = [[PAGE] * len(level) for level in at.levels[:-1]] + [last]
        arguments = ([indptr([sum(at.queries[i] for i in members) for members, _ in level]).cuda() for level in at.levels],
                     [indptr([len(pages) for _, pages in level]).cuda() for level in at.levels],
                     [step.shuffled[sum((pages for _, pages in level), [])].int().cuda() for level in at.levels],
                     [torch.tensor(each, dtype=torch.int32, device="cuda") for each in lasts], *heads)
        return planned(lambda: wrapper.plan(*arguments, causal=True, **dtypes), lambda: wrapper.run(step.q, step.pool))

    def decode():
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        arguments = (indptr(counts), rows.cuda(), torch.tensor(last, dtype=torch.int32), *heads)
        return planned(lambda: wrapper.plan(*arguments, **dtypes), lambda: wrapper.run(step.q, step.pool))

    def batch():
        wrapper = flashinfer.BatchAttention(kv_layout="HND")
        arguments = (indptr(at.queries).cuda(), indptr(counts).cuda(), rows.cuda(),
                     torch.tensor(at.kv_len, dtype=torch.int32, device="cuda"), step.qo_heads, step.kv_heads, HEAD_DIM, HEAD_DIM, PAGE)
        return planned(lambda: wrapper.plan(*arguments, causal=True, **dtypes), lambda: wrapper.run(step.q, step.pool)[0])

    contestants = {"fi_cascade": cascade, "fi_batch": batch}
    return contestants | ({"fi_decode": decode} if set(at.queries) == {1} else {})


def summary(results):
    """Of steps' results {column: {"ms": ..}}: columns that all of them have, or all that decode alone; total ms, and ratios to tree."""
    lines = []
    for column in COLUMNS:
        both = [(r[column]["ms"], r["tree"]["ms"]) for r in results if "ms" in r.get(column, {}) and "ms" in r["tree"]]
        if both:
            ms, tree = (sum(times) for times in zip(*both))
            lines.append({"column": column, "steps": len(both), "ms": ms, "over_tree": ms / tree,
                          "median_over_tree": statistics.median(a / b for a, b in both)})
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--library", required=True, help="libcoppice_attention.so of a CUDA build with BUILD_SHARED_LIBS=ON")
    parser.add_argument("--steps", type=int, default=16, help="of each trace, evenly apart; 0: all")
    parser.add_argument("--heads", default="32,8", help="query heads, kv heads")
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--json", help="write one object a line, a step each")
    options = parser.parse_args()
    qo_heads, kv_heads = map(int, options.heads.split(","))

    import flashinfer

    coppice, timer = Coppice(options.library), Timer(options.iterations)
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    lines = [{"device": torch.cuda.get_device_name(), "torch": torch.__version__, "flashinfer": flashinfer.__version__,
              "heads": [qo_heads, kv_heads], "iterations": options.iterations}]
    print(f"{lines[0]['device']}, torch {torch.__version__}, flashinfer {flashinfer.__version__}, {qo_heads}/{kv_heads} heads")
    for path in options.traces:
        trace, results = Trace(path, options.steps), []
        for number, recorded in trace.steps:
            step = TraceStep(qo_heads, kv_heads, Layout(recorded, PAGE))
            contestants = {own: (lambda o=own, s=step: coppice.contestant(s, o)) for own in ("tree", "store")}
            results.append(measure(step, timer, contestants | flashinfer_contestants(step, flashinfer, workspace)))
            lines.append({"trace": path, "step": number, "requests": step.requests, "queries": len(step.q), "results": results[-1]})
            del step, contestants
            torch.cuda.empty_cache()
        print(f"{path}: {len(trace.steps)} of {trace.num_steps} steps")
        for line in summary(results):
            print(f"  {line['column']:<12}{line['steps']:>5} steps {line['ms']:>10.3f} ms, {line['over_tree']:.2f} times tree's; median "
                  f"{line['median_over_tree']:.2f}", flush=True)
    write_lines(options.json, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
