#!/usr/bin/env python3
"""One step of one attention layer: Coppice beside PyTorch and FlashInfer, in one process, on the same paged KV. Decoding over prefix
trees (cases A1 to tree14), and hybrid batches, a chunk of a prompt beside requests that decode and share nothing (H1 to H5, --pod).

  bench/peers/attention_peers.py --library build/shared/src/attention/libcoppice_attention.so [--cases A1,B,tree8] [--json FILE]
  bench/peers/attention_peers.py --library .. --pod pod.json    the batches that `coppice bench pod --out pod.json` measured

Needs an NVIDIA GPU and PyTorch. Columns:
  tree, store        Coppice through its C ABI, with sharing and without
  mma_sync, exact    tree with the mma.sync kernels forced; in deterministic mode
  flash, cudnn       PyTorch's kernels as the Hydragen recipe: one call a level over KV gathered beforehand (not timed), then a merge
  fi_cascade         FlashInfer's MultiLevelCascadeAttentionWrapper as shipped; fi_cascade_fa2: its levels forced to the fa2 kernels
  fi_decode          BatchDecodeWithPagedKVCacheWrapper with tensor cores over shared pages; fi_batch: BatchAttention
  fi_pod             of hybrid batches: BatchPODWithPagedKVCacheWrapper; fi_fa3, fi_fa2: the chunk by BatchPrefillWithPagedKVCacheWrapper
                     with that backend, then the requests as fi_decode
FlashInfer's columns stay empty where `flashinfer` (PyPI flashinfer-python) cannot be imported. PAT and FastTree are not run here.
Host times, with uploads: plan_ms and step_ms are ours after a change of the tree and of a mean decode step with a change every 16;
fi_plan is the fastest plan of FlashInfer's wrappers, which they need every step.

Method: every contestant is captured in a CUDA graph and runs for 50 ms before it counts, since the first contestant after a pause is slower for
some 10 ms; between replays 256 MB are written, so that the L2 is cold; the median of the replays counts, graph launch included. Bounds
take the rates measured in the same run: W, a device-to-device copy (read + write), and C, a bf16 product of 8192-cubes. Each result is
compared with float64 attention of three rows (relative L2 error).
"""

import argparse
import ctypes
import itertools
import json
import math
import statistics
import sys
import time

import torch

TREE_PEERS = ("flash", "cudnn", "fi_cascade", "fi_cascade_fa2", "fi_decode", "fi_batch")
HYBRID_PEERS = ("fi_pod", "fi_fa3", "fi_fa2", "fi_batch")
PAGE = 16
HEAD_DIM = 128
FLUSH_BYTES = 256 << 20
WARM_UP_SECONDS = 0.05

KV_LIVE, FREE_SLOT = 2**31 - 1, -2  # of the C ABI

# name: query heads, kv heads, nodes of each level, tokens of each level's nodes. The last level's nodes are the requests.
CASES = {
    "A1": (32, 32, [1, 128], [32768, 256]),
    "A2": (32, 32, [1, 256], [32768, 256]),
    "A3": (32, 32, [1, 1024], [32768, 256]),
    "B": (32, 8, [1, 256], [8192, 256]),
    "C": (8, 1, [1, 4096], [8192, 128]),
    "D": (32, 8, [1, 1024], [16384, 128]),
    "E": (8, 1, [1, 16], [1024, 128]),
    "E2": (32, 8, [1, 8], [512, 64]),
    "F": (32, 8, [64], [8192]),
}
TREES = [
    ([1, 1024], [2048, 32]),
    ([1, 2, 64], [1024, 256, 256]),
    ([1, 8, 512], [512, 2048, 256]),
    ([1, 4, 16, 512], [1024, 256, 128, 32]),
    ([1, 4, 16, 64, 256, 1024], [256, 32, 256, 64, 32, 256]),
    ([8, 16, 32, 256], [512, 512, 256, 32]),
    ([4, 16, 256, 512], [512, 32, 128, 32]),
]
for kv in (32, 8):
    for nodes, tokens in TREES:
        CASES[f"tree{len([c for c in CASES if c.startswith('tree')]) + 1}"] = (32, kv, nodes, tokens)


# name: query heads, kv heads, queries of the chunk, tokens of its prompt up to its end, requests that decode, tokens of each.
HYBRIDS = {
    "H1": (28, 4, 2048, 2048, 128, 2048),
    "H2": (32, 8, 4096, 4096, 128, 4096),
    "H3": (32, 8, 1024, 12288, 80, 12288),
    "H4": (32, 8, 512, 8192, 128, 8192),
    "H5": (32, 32, 1024, 8192, 64, 8192),
}


class Batch:
    """Attention that contestants compute: queries over one KV pool [page][K, V][kv head][slot][dim], pages in random order.

    Subclasses have `requests`, forest(), passes(): (bytes, FLOP) of each part that serial kernels would compute, rows_to_check() and
    seen(row): the pages and the number of tokens of a row."""

    def __init__(self, qo_heads, kv_heads, num_pages, rows):
        self.qo_heads, self.kv_heads = qo_heads, kv_heads
        self.shuffled = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1))
        generator = torch.Generator("cuda").manual_seed(2)
        self.pool = torch.randn(num_pages, 2, kv_heads, PAGE, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.q = torch.randn(rows, qo_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator)

    def bounds_ms(self, copy, matmul):
        """Overlapped and serial."""
        each = [(size / copy, flops / matmul) for size, flops in self.passes()]
        return 1e3 * max(sum(b for b, _ in each), sum(f for _, f in each)), 1e3 * sum(max(e) for e in each)

    def error(self, out):
        """Relative L2 error of some rows against float64, root mean square over them: a row that sees few tokens is long."""
        squares = []
        for row in self.rows_to_check():
            pages, tokens = self.seen(row)
            kv = self.pool[pages.cuda()].double()  # [pages, 2, kv heads, slots, dim]
            k, v = (kv[:, i].transpose(0, 1).reshape(self.kv_heads, -1, HEAD_DIM)[:, :tokens] for i in (0, 1))
            q = self.q[row].double().view(self.kv_heads, -1, HEAD_DIM)
            want = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM), -1) @ v
            squares.append(((out[row].double().view_as(want) - want).square().sum() / want.square().sum()).item())
        return math.sqrt(statistics.mean(squares))


class Tree(Batch):
    """A balanced tree whose requests decode."""

    def __init__(self, qo_heads, kv_heads, nodes, tokens):
        self.nodes, self.tokens, self.requests = nodes, tokens, nodes[-1]
        counts = [n * t // PAGE for n, t in zip(nodes, tokens)]
        super().__init__(qo_heads, kv_heads, sum(counts), self.requests)
        # Of each level: [nodes, pages of a node].
        self.pages = [p.view(n, -1) for p, n in zip(self.shuffled.split(counts), nodes)]

    def ancestors(self, level):
        """Of each request: its node of a level."""
        return torch.arange(self.requests) * self.nodes[level] // self.requests

    def page_rows(self):
        return torch.cat([p[self.ancestors(level)] for level, p in enumerate(self.pages)], dim=1)

    def passes(self):
        return [(4.0 * n * t * self.kv_heads * HEAD_DIM, 4.0 * HEAD_DIM * self.qo_heads * self.requests * t)
                for n, t in zip(self.nodes, self.tokens)]

    def forest(self):
        parent, begin, end, depth, first = [], [], [], 0, 0
        for level, (count, tokens) in enumerate(zip(self.nodes, self.tokens)):
            above = self.nodes[level - 1]
            parent += [first - above + i * above // count if level else -1 for i in range(count)]
            begin += [depth] * count
            depth += tokens
            end += [depth if level + 1 < len(self.nodes) else KV_LIVE] * count
            first += count
        n = self.requests
        return parent, begin, end, list(range(first - n, first)), [1] * n, [depth] * n, list(self.page_rows())

    def rows_to_check(self):
        return sorted({0, self.requests // 2, self.requests - 1})

    def seen(self, row):
        return torch.cat([p[row * n // self.requests] for n, p in zip(self.nodes, self.pages)]), sum(self.tokens)


class Hybrid(Batch):
    """A chunk that ends a prompt, in rows [0, chunk), beside requests of `context` tokens that decode. Nothing is shared."""

    def __init__(self, qo_heads, kv_heads, chunk, prompt, requests, context):
        self.chunk, self.prompt, self.requests, self.context = chunk, prompt, requests, context
        prompt_pages = -(-prompt // PAGE)
        super().__init__(qo_heads, kv_heads, prompt_pages + requests * -(-context // PAGE), chunk + requests)
        self.chunk_pages, self.decode_pages = self.shuffled[:prompt_pages], self.shuffled[prompt_pages:].view(requests, -1)

    def passes(self):
        token_bytes, pair_flops = 4.0 * self.kv_heads * HEAD_DIM, 4.0 * HEAD_DIM * self.qo_heads
        unseen = 0.5 * self.chunk * (self.chunk - 1)  # queries do not see those after them
        decoded = self.requests * self.context
        return [(token_bytes * self.prompt, pair_flops * (self.chunk * self.prompt - unseen)), (token_bytes * decoded, pair_flops * decoded)]

    def forest(self):
        n = 1 + self.requests
        return ([-1] * n, [0] * n, [KV_LIVE] * n, list(range(n)), [self.chunk] + [1] * self.requests,
                [self.prompt] + [self.context] * self.requests, [self.chunk_pages, *self.decode_pages])

    def rows_to_check(self):
        return 0, self.chunk - 1, self.chunk + self.requests - 1

    def seen(self, row):
        if row < self.chunk:
            return self.chunk_pages, self.prompt - self.chunk + row + 1
        return self.decode_pages[row - self.chunk], self.context


# ------------------------------------------------------------------------------------------------------------- Coppice's C ABI


def struct(name, *fields):
    """A ctypes structure of attention_c.h; struct_size sets itself."""
    def init(self, **values):
        ctypes.Structure.__init__(self, struct_size=ctypes.sizeof(type(self)), **values)
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", ctypes.c_size_t), *fields], "__init__": init})


I32, I64, U64, F32, PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_float, ctypes.c_void_p
Message = struct("Message", ("text", ctypes.c_char_p), ("capacity", ctypes.c_size_t))
ContextOptions = struct("ContextOptions", ("device", I32), ("device_index", I32), ("num_threads", I32),
                        ("cuda_kernels", I32))
Spec = struct("Spec", ("num_qo_heads", I32), ("num_kv_heads", I32), ("head_dim", I32), ("q_dtype", I32), ("kv_dtype", I32),
              ("sm_scale", F32), ("soft_cap", F32), ("window", I32), ("deterministic", I32))
PlanOptions = struct("PlanOptions", ("max_branches", I32), ("max_queries", I32), ("max_nodes", I32), ("max_page_slots", I32),
                     ("page_size", I32), ("share_policy", I32), ("force_sharing", I32), ("lookahead_tokens", I32))
Forest = struct("Forest", ("page_size", I32), ("version", U64), ("num_nodes", I32), ("node_parent", PTR), ("node_begin", PTR),
                ("node_end", PTR), ("num_branches", I32), ("branch_node", PTR), ("branch_query_begin", PTR),
                ("branch_query_count", PTR), ("branch_kv_len", PTR), ("branch_page_begin", PTR), ("branch_page_capacity", PTR),
                ("num_page_slots", I32), ("page_indices", PTR), ("num_query_tree_masks", I32), ("query_tree_mask", PTR))
KvLayer = struct("KvLayer", ("k", PTR), ("v", PTR), ("page_stride", I64), ("head_stride", I64), ("slot_stride", I64),
                 ("num_pages", I32), ("page_size", I32), ("dtype", I32), ("k_scale", F32), ("v_scale", F32))
RunArgs = struct("RunArgs", ("q", PTR), ("q_row_stride", I64), ("out", PTR), ("out_row_stride", I64), ("lse", PTR))
BF16, CUDA = 1, 1
# Contestant: share policy, kernels of its context, deterministic.
OWN = {"tree": (0, 0, 0), "store": (2, 0, 0), "mma_sync": (0, 2, 0), "exact": (0, 0, 1)}


def starts(counts):
    """Where each of the runs of so many begins."""
    return list(itertools.accumulate(counts, initial=0))[:-1]


class Coppice:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.contexts = {}
        for kernels in {kernels for _, kernels, _ in OWN.values()}:
            context = self.contexts[kernels] = PTR()
            self.call("context_create", ctypes.byref(ContextOptions(device=CUDA, cuda_kernels=kernels)), ctypes.byref(context))

    def call(self, name, *arguments):
        text = ctypes.create_string_buffer(512)
        message = Message(text=ctypes.cast(text, ctypes.c_char_p), capacity=len(text))
        if getattr(self.lib, "coppice_" + name)(*arguments, ctypes.byref(message)) != 0:
            raise RuntimeError(f"coppice_{name}: {text.value.decode()}")

    def contestant(self, tree, name):
        """Two functions, which run the plan and release it, and the host times of planning in ms, with the upload: after a request left
        or came, and of a decode step, the mean over 64 of which every 16th begins with such a change."""
        policy, kernels, deterministic = OWN[name]
        context = self.contexts[kernels]
        parent, begin, end, leaves, queries, kv_len, page_rows = tree.forest()
        rows = [torch.nn.functional.pad(row.int(), (0, 8)) for row in page_rows]  # room to grow
        capacity = [len(row) for row in rows]
        pages = torch.cat(rows)
        n = len(leaves)
        arrays = [torch.tensor(a, dtype=torch.int32) for a in
                  (parent, begin, end, leaves, starts(queries), queries, kv_len, starts(capacity), capacity)]
        names = ("node_parent", "node_begin", "node_end", "branch_node", "branch_query_begin", "branch_query_count", "branch_kv_len",
                 "branch_page_begin", "branch_page_capacity")
        forest = Forest(page_size=PAGE, version=1, num_nodes=len(parent), num_branches=n, num_page_slots=len(pages),
                        page_indices=pages.data_ptr(), **{k: a.data_ptr() for k, a in zip(names, arrays)})
        spec = Spec(num_qo_heads=tree.qo_heads, num_kv_heads=tree.kv_heads, head_dim=HEAD_DIM, q_dtype=BF16, kv_dtype=BF16,
                    deterministic=deterministic)
        plan, bound = PTR(), PTR()
        self.call("plan_create", context, ctypes.byref(spec),
                  ctypes.byref(PlanOptions(max_branches=n, max_queries=len(tree.q), max_nodes=max(2 * n, len(parent)),
                                           max_page_slots=len(pages), page_size=PAGE, share_policy=policy)),
                  ctypes.byref(plan))
        stream = PTR(torch.cuda.current_stream().cuda_stream)

        def update():
            start = time.perf_counter()
            self.call("plan_update", plan, ctypes.byref(forest))
            self.call("plan_upload", plan, stream)
            return 1e3 * (time.perf_counter() - start)

        leaf = leaves[-1]
        above = parent[leaf]

        def change():  # the last request leaves, or comes back
            gone = arrays[3][-1].item() == FREE_SLOT
            arrays[0][leaf], arrays[3][-1], arrays[5][-1] = (above, leaf, queries[-1]) if gone else (FREE_SLOT, FREE_SLOT, 0)
            forest.version += 1

        update()
        changes, steps = [], []
        for _ in range(8):
            change()
            changes.append(update())
        for step in range(64):
            if step % 16 == 0:
                change()
            arrays[6] += 1
            steps.append(update())
        arrays[6] -= 64
        forest.version += 1
        plane = tree.kv_heads * PAGE * HEAD_DIM
        layer = KvLayer(k=tree.pool.data_ptr(), v=tree.pool.data_ptr() + plane * 2, page_stride=2 * plane,
                        head_stride=PAGE * HEAD_DIM, slot_stride=HEAD_DIM, num_pages=len(tree.pool), page_size=PAGE, dtype=BF16)
        self.call("kv_bind", context, ctypes.byref(spec), ctypes.byref(layer), ctypes.byref(bound))
        update()
        torch.cuda.synchronize()
        out = torch.empty_like(tree.q)
        row = tree.qo_heads * HEAD_DIM
        args = RunArgs(q=tree.q.data_ptr(), q_row_stride=row, out=out.data_ptr(), out_row_stride=row)

        def run():
            self.call("plan_run", plan, bound, ctypes.byref(args), PTR(torch.cuda.current_stream().cuda_stream))
            return out

        def release():
            self.lib.coppice_kv_destroy(bound)
            self.lib.coppice_plan_destroy(plan)
            arrays.clear()

        return run, release, {"plan_ms": statistics.median(changes), "step_plan_ms": statistics.mean(steps)}


# ------------------------------------------------------------------------------------------------------------------- PyTorch


def hydragen(tree, kernel):
    """One call a level (the rows of a node together, query heads of a kv head as rows), merged by log-sum-exp in float32."""
    levels = []
    for nodes, tokens, pages in zip(tree.nodes, tree.tokens, tree.pages):
        kv = tree.pool[pages.cuda()]  # [nodes, pages, 2, kv heads, slots, dim]
        k, v = (kv[:, :, i].transpose(1, 2).reshape(nodes, tree.kv_heads, tokens, HEAD_DIM).contiguous() for i in (0, 1))
        levels.append((nodes, k, v))
    group, per = tree.qo_heads // tree.kv_heads, tree.requests

    def attend(q, k, v):
        if kernel == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]

    def run():
        states = []
        for nodes, k, v in levels:
            members = per // nodes
            q = tree.q.view(nodes, members, tree.kv_heads, group, HEAD_DIM).transpose(1, 2)
            out, lse = attend(q.reshape(nodes, tree.kv_heads, members * group, HEAD_DIM), k, v)
            shape = (nodes, tree.kv_heads, members, group)
            states.append((out.reshape(*shape, HEAD_DIM).transpose(1, 2).reshape(per, tree.qo_heads, HEAD_DIM),
                           lse.reshape(shape).transpose(1, 2).reshape(per, tree.qo_heads, 1)))
        if len(states) == 1:
            return states[0][0]
        lse = torch.logsumexp(torch.stack([s[1] for s in states]), 0)
        return sum(out.float() * torch.exp(part - lse) for out, part in states).to(tree.q.dtype)

    return run


# ----------------------------------------------------------------------------------------------------------------- FlashInfer


def indptr(counts):
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()


def planned(plan, run):
    """A peer that plans every step anew: what to run, and the median host time of its plan in ms."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        plan()
        times.append(1e3 * (time.perf_counter() - start))
    return run, None, {"plan_ms": statistics.median(times)}


def cascade_wrapper(flashinfer, levels, workspace, backend=None):
    """backend: of all levels; None: FlashInfer's choice."""
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(levels, workspace, "HND")
    for level in wrapper._batch_prefill_wrappers if backend else ():
        level._backend = backend
    return wrapper


def flashinfer_contestants(tree, flashinfer, workspace):
    heads = (tree.qo_heads, tree.kv_heads, HEAD_DIM, PAGE)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    def cascade(backend):
        wrapper = cascade_wrapper(flashinfer, len(tree.nodes), workspace, backend)
        arguments = ([indptr([tree.requests // n] * n).cuda() for n in tree.nodes],
                     [indptr([p.shape[1]] * len(p)).cuda() for p in tree.pages],
                     [p.flatten().int().cuda() for p in tree.pages],
                     [torch.full((n,), PAGE, dtype=torch.int32, device="cuda") for n in tree.nodes], *heads)
        return planned(lambda: wrapper.plan(*arguments, **dtypes), lambda: wrapper.run(tree.q, tree.pool))

    rows = tree.page_rows().int()
    row_indptr = indptr([rows.shape[1]] * tree.requests)

    def decode():
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        arguments = (row_indptr, rows.flatten().cuda(), torch.full((tree.requests,), PAGE, dtype=torch.int32), *heads)
        return planned(lambda: wrapper.plan(*arguments, **dtypes), lambda: wrapper.run(tree.q, tree.pool))

    def batch():
        wrapper = flashinfer.BatchAttention(kv_layout="HND")
        arguments = (indptr([1] * tree.requests).cuda(), row_indptr.cuda(), rows.flatten().cuda(),
                     torch.full((tree.requests,), rows.shape[1] * PAGE, dtype=torch.int32, device="cuda"), tree.qo_heads,
                     tree.kv_heads, HEAD_DIM, HEAD_DIM, PAGE)
        return planned(lambda: wrapper.plan(*arguments, **dtypes), lambda: wrapper.run(tree.q, tree.pool)[0])

    return {"fi_cascade": lambda: cascade(None), "fi_cascade_fa2": lambda: cascade("fa2"), "fi_decode": decode, "fi_batch": batch}


def flashinfer_hybrids(batch, flashinfer, workspace):
    heads = (batch.qo_heads, batch.kv_heads, HEAD_DIM, PAGE)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    def part(queries, pages):
        """The page table of requests of equally many pages, whose last is full: qo_indptr, kv_indptr, kv_indices, last_page_len."""
        return (indptr(queries).cuda(), indptr([pages.shape[1]] * len(pages)).cuda(), pages.flatten().int().cuda(),
                torch.full((len(pages),), PAGE, dtype=torch.int32, device="cuda"))

    chunk, decode = part([batch.chunk], batch.chunk_pages[None]), part([1] * batch.requests, batch.decode_pages)
    q_chunk, q_decode = batch.q[:batch.chunk], batch.q[batch.chunk:]

    def serial(backend):
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend=backend)
        decoder = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty_like(workspace), "HND", use_tensor_cores=True)

        def plan():
            prefill.plan(*chunk, *heads, causal=True, **dtypes)
            decoder.plan(decode[1].cpu(), decode[2], decode[3].cpu(), *heads, **dtypes)

        return planned(plan, lambda: (prefill.run(q_chunk, batch.pool), decoder.run(q_decode, batch.pool)))

    def pod():
        wrapper = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace, "HND")
        return planned(lambda: wrapper.plan(*chunk, *decode, *heads, **dtypes),
                       lambda: wrapper.run(q_chunk, batch.pool, q_decode, batch.pool, causal_p=True))

    def both():
        wrapper = flashinfer.BatchAttention(kv_layout="HND")
        arguments = (indptr([batch.chunk] + [1] * batch.requests).cuda(),
                     indptr([len(batch.chunk_pages)] + [batch.decode_pages.shape[1]] * batch.requests).cuda(),
                     batch.shuffled.int().cuda(),
                     torch.tensor([batch.prompt] + [batch.context] * batch.requests, dtype=torch.int32, device="cuda"),
                     batch.qo_heads, batch.kv_heads, HEAD_DIM, HEAD_DIM, PAGE)
        return planned(lambda: wrapper.plan(*arguments, causal=True, **dtypes), lambda: wrapper.run(batch.q, batch.pool)[0])

    return {"fi_pod": pod, "fi_fa3": lambda: serial("fa3"), "fi_fa2": lambda: serial("fa2"), "fi_batch": both}


# -------------------------------------------------------------------------------------------------------------------- measuring


class Timer:
    def __init__(self, iterations):
        self.iterations = iterations
        self.flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def events(self, run, count, flush=True):
        times = []
        for _ in range(count + 2):
            if flush:
                self.flush.add_(1)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times[2:])

    def graph(self, run):
        """Median and spread (90 % - 10 %) in ms of a graph's replays, and what the last one wrote."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # lazy initialisation stays outside the graph
                run()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = run()
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_UP_SECONDS:
            captured.replay()
            torch.cuda.synchronize()
        times = self.events(captured.replay, self.iterations)
        return statistics.median(times), times[len(times) * 9 // 10] - times[len(times) // 10], out

    def rates(self):
        a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        copy = 2 * a.numel() / (1e-3 * statistics.median(self.events(lambda: b.copy_(a), 11, flush=False)))
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        matmul = 2 * 8192**3 / (1e-3 * statistics.median(self.events(lambda: torch.matmul(x, y), 11, flush=False)))
        return copy, matmul


def measure(tree, timer, contestants):
    results = {}
    for name, make in contestants.items():
        release = None
        try:
            made = make()
            run, release, host = made if isinstance(made, tuple) else (made, None, {})
            ms, spread, out = timer.graph(run)
            if isinstance(out, tuple):  # the chunk's, the requests'
                out = torch.cat(out)
            results[name] = {"ms": ms, "spread_ms": spread, "error": tree.error(out), **host}
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            results[name] = {"refused": str(problem).strip().splitlines()[0][:200]}
        torch.cuda.synchronize()
        if release:
            release()
    return results


def pod_batches(path):
    """The batches of a report of `coppice bench pod`, by name: as in HYBRIDS, and whether both parts count (POD section 5.1)."""
    batches = {}
    with open(path, encoding="utf-8") as file:
        for row in json.load(file)["rows"]:
            name = f"{row['model']}/{row['gpus']} {row['chunk']}@{row['prompt']}+{row['requests']}x{row['context']}"
            batches[name] = (tuple(row[k] for k in ("qo_heads", "kv_heads", "chunk", "prompt", "requests", "context")), row["both_count"])
    return batches


def write_lines(path, lines):
    """JSON, an object a line; nothing where there is no path."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libcoppice_attention.so of a CUDA build with BUILD_SHARED_LIBS=ON")
    parser.add_argument("--cases", help="names, by commas (default: all trees and H1 to H5)")
    parser.add_argument("--pod", help="a report of `coppice bench pod`, whose batches take the cases' place")
    parser.add_argument("--contestants", help="columns to fill (default: all)")
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--json", help="write one object a line, the rates first")
    options = parser.parse_args()
    pod = pod_batches(options.pod) if options.pod else {}
    known_cases = {name: ("tree", case) for name, case in CASES.items()} | {name: ("hybrid", case) for name, case in HYBRIDS.items()}
    if pod:
        known_cases = {name: ("hybrid", case) for name, (case, _) in pod.items()}
    cases = options.cases.split(",") if options.cases else list(known_cases)
    unknown = [c for c in cases if c not in known_cases]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(known_cases)}")
    known = {"tree": (*OWN, *TREE_PEERS), "hybrid": ("tree", "exact", *HYBRID_PEERS)}
    only = options.contestants.split(",") if options.contestants else known["tree"] + known["hybrid"]
    if set(only) - set(known["tree"] + known["hybrid"]):
        parser.error(f"unknown contestant {(set(only) - set(known['tree'] + known['hybrid'])).pop()}; known: "
                     f"{', '.join(dict.fromkeys(known['tree'] + known['hybrid']))}")

    try:
        import flashinfer
    except ImportError:
        flashinfer = None
    coppice, timer = Coppice(options.library), Timer(options.iterations)
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    copy, matmul = timer.rates()
    lines = [{"device": torch.cuda.get_device_name(), "copy_tbps": copy / 1e12, "matmul_tflops": matmul / 1e12,
              "torch": torch.__version__, "flashinfer": getattr(flashinfer, "__version__", None), "iterations": options.iterations}]
    print(f"{lines[0]['device']}, W {copy / 1e12:.2f} TB/s, C {matmul / 1e12:.0f} TFLOP/s, torch {torch.__version__}, "
          f"flashinfer {lines[0]['flashinfer']}; ms, best peer / tree, error of tree")
    width = max(len(name) for name in cases)
    kind, gains, over_each = None, [], {}
    for name in cases:
        if kind != known_cases[name][0]:
            kind = known_cases[name][0]
            columns = [c for c in known[kind] if c in only]
            print(f"{'case':<{width}}{'overlap':>9}{'serial':>9}" + "".join(f"{c:>15}" for c in columns) +
                  f"{'peer/x':>8}{'error':>9}{'plan_ms':>9}{'step_ms':>9}{'fi_plan':>9}")
        batch = Tree(*known_cases[name][1]) if kind == "tree" else Hybrid(*known_cases[name][1])
        contestants = {own: (lambda o=own: coppice.contestant(batch, o)) for own in OWN}
        if kind == "tree":
            contestants |= {kernel: (lambda k=kernel: hydragen(batch, k)) for kernel in ("flash", "cudnn")}
        if flashinfer is not None:
            contestants |= (flashinfer_contestants if kind == "tree" else flashinfer_hybrids)(batch, flashinfer, workspace)
        results = measure(batch, timer, {name: make for name, make in contestants.items() if name in columns})
        overlap, serial = batch.bounds_ms(copy, matmul)
        lines.append({"case": name, "kind": kind, "shape": known_cases[name][1], "bound_overlapped_ms": overlap,
                      "bound_serial_ms": serial, "results": results})
        ms = {c: r["ms"] for c, r in results.items() if "ms" in r}
        peers = {c: ms[c] for c in columns if c in ms and c not in OWN}
        gain = min(peers.values()) / ms["tree"] if peers and "tree" in ms else None
        if gain and name.startswith("tree"):
            gains.append(gain)
        if gain and name in pod and pod[name][1]:
            for peer, time_ms in (peers | {"best": min(peers.values())}).items():
                over_each.setdefault(peer, []).append(time_ms / ms["tree"])
        own = results.get("tree", {})
        fastest_plan = min((r["plan_ms"] for c, r in results.items() if c.startswith("fi_") and "plan_ms" in r), default=math.nan)
        print(f"{name:<{width}}{overlap:>9.4f}{serial:>9.4f}" +
              "".join(f"{ms[c]:>15.4f}" if c in ms else f"{'-':>15}" for c in columns) +
              (f"{gain:>8.2f}" if gain else f"{'-':>8}") + f"{own.get('error', math.nan):>9.1e}"
              f"{own.get('plan_ms', math.nan):>9.3f}{own.get('step_plan_ms', math.nan):>9.4f}{fastest_plan:>9.3f}", flush=True)
        del batch, contestants
        torch.cuda.empty_cache()
    if gains:
        print(f"trees: geomean {statistics.geometric_mean(gains):.2f}x the best peer of this run")
    for peer, ratios in over_each.items():
        print(f"{peer}: {statistics.mean(ratios):.3f} times tree's time in the mean of {len(ratios)} batches of which both parts count, "
              f"{min(ratios):.3f} to {max(ratios):.3f}")
    write_lines(options.json, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
