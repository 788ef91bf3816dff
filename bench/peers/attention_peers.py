#!/usr/bin/env python3
"""One decode step of one attention layer over prefix trees: Coppice beside PyTorch and FlashInfer, in one process, on the same paged KV.

  bench/peers/attention_peers.py --library build/shared/src/attention/libcoppice_attention.so [--cases A1,B,tree8] [--json FILE]

Needs an NVIDIA GPU and PyTorch. Columns:
  tree, store        Coppice through its C ABI, with sharing and without
  mma_sync, exact    tree with the mma.sync kernels forced; in deterministic mode
  flash, cudnn       PyTorch's kernels as the Hydragen recipe: one call a level over KV gathered beforehand (not timed), then a merge
  fi_cascade         FlashInfer's MultiLevelCascadeAttentionWrapper as shipped; fi_cascade_fa2: its levels forced to the fa2 kernels
  fi_decode          BatchDecodeWithPagedKVCacheWrapper with tensor cores over shared pages; fi_batch: BatchAttention
FlashInfer's columns stay empty where `flashinfer` (PyPI flashinfer-python) cannot be imported. PAT and FastTree are not run here.
Host times, with uploads: plan_ms and step_ms are ours after a change of the tree and of a mean decode step with a change every 16;
fi_plan is the fastest plan of FlashInfer's wrappers, which they need every step.

Method: every contestant is captured in a CUDA graph and runs for 50 ms before it counts, since who is first after a pause is slower for
some 10 ms; between replays 256 MB are written, so that the L2 is cold; the median of the replays counts, graph launch included. Bounds
take the rates measured in the same run: W, a device-to-device copy (read + write), and C, a bf16 product of 8192-cubes. Each result is
compared with float64 attention of three requests (relative L2 error).
"""

import argparse
import ctypes
import json
import math
import statistics
import sys
import time

import torch

PEERS = ("flash", "cudnn", "fi_cascade", "fi_cascade_fa2", "fi_decode", "fi_batch")
PAGE = 16
HEAD_DIM = 128
FLUSH_BYTES = 256 << 20
WARM_UP_SECONDS = 0.05

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


class Tree:
    """A balanced tree over one KV pool [page][K, V][kv head][slot][dim], pages in random order."""

    def __init__(self, qo_heads, kv_heads, nodes, tokens):
        self.qo_heads, self.kv_heads, self.nodes, self.tokens = qo_heads, kv_heads, nodes, tokens
        self.requests = nodes[-1]
        counts = [n * t // PAGE for n, t in zip(nodes, tokens)]
        shuffled = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1))
        # Of each level: [nodes, pages of a node].
        self.pages = [p.view(n, -1) for p, n in zip(shuffled.split(counts), nodes)]
        generator = torch.Generator("cuda").manual_seed(2)
        self.pool = torch.randn(len(shuffled), 2, kv_heads, PAGE, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.q = torch.randn(self.requests, qo_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator)

    def ancestors(self, level):
        """Of each request: its node of a level."""
        return torch.arange(self.requests) * self.nodes[level] // self.requests

    def page_rows(self):
        return torch.cat([p[self.ancestors(level)] for level, p in enumerate(self.pages)], dim=1)

    def bounds_ms(self, copy, matmul):
        each = [(4.0 * n * t * self.kv_heads * HEAD_DIM / copy, 4.0 * HEAD_DIM * self.qo_heads * self.requests * t / matmul)
                for n, t in zip(self.nodes, self.tokens)]
        return 1e3 * max(sum(b for b, _ in each), sum(f for _, f in each)), 1e3 * sum(max(e) for e in each)

    def error(self, out):
        """Relative L2 error of the first, a middle and the last request against float64."""
        rows, wrong, norm = self.page_rows(), 0.0, 0.0
        for r in sorted({0, self.requests // 2, self.requests - 1}):
            kv = self.pool[rows[r].cuda()].double()  # [pages, 2, kv heads, slots, dim]
            k, v = (kv[:, i].transpose(0, 1).reshape(self.kv_heads, -1, HEAD_DIM) for i in (0, 1))
            q = self.q[r].double().view(self.kv_heads, -1, HEAD_DIM)
            want = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM), -1) @ v
            wrong += (out[r].double().view_as(want) - want).square().sum().item()
            norm += want.square().sum().item()
        return math.sqrt(wrong / norm)


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
BF16, CUDA, KV_LIVE, FREE_SLOT = 1, 1, 2**31 - 1, -2
# Contestant: share policy, kernels of its context, deterministic.
OWN = {"tree": (0, 0, 0), "store": (2, 0, 0), "mma_sync": (0, 2, 0), "exact": (0, 0, 1)}


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
        """What to run, how to let go of it, and the host times of planning in ms, with the upload: after a request left or came, and of a
        decode step, the mean over 64 of which every 16th begins with such a change."""
        policy, kernels, deterministic = OWN[name]
        context = self.contexts[kernels]
        parent, begin, end, first_node, depth = [], [], [], [], 0
        for level, (count, tokens) in enumerate(zip(tree.nodes, tree.tokens)):
            first_node.append(len(parent))
            above = tree.nodes[level - 1]
            parent += [first_node[level - 1] + i * above // count if level else -1 for i in range(count)]
            begin += [depth] * count
            depth += tokens
            end += [depth if level + 1 < len(tree.nodes) else KV_LIVE] * count
        rows = torch.nn.functional.pad(tree.page_rows().int(), (0, 8)).contiguous()  # room to grow
        row_pages = rows.shape[1]
        n = tree.requests
        arrays = [torch.tensor(a, dtype=torch.int32) for a in
                  (parent, begin, end, range(first_node[-1], first_node[-1] + n), range(n), [1] * n, [depth] * n,
                   range(0, n * row_pages, row_pages), [row_pages] * n)]
        names = ("node_parent", "node_begin", "node_end", "branch_node", "branch_query_begin", "branch_query_count", "branch_kv_len",
                 "branch_page_begin", "branch_page_capacity")
        forest = Forest(page_size=PAGE, version=1, num_nodes=len(parent), num_branches=n, num_page_slots=rows.numel(),
                        page_indices=rows.data_ptr(), **{k: a.data_ptr() for k, a in zip(names, arrays)})
        spec = Spec(num_qo_heads=tree.qo_heads, num_kv_heads=tree.kv_heads, head_dim=HEAD_DIM, q_dtype=BF16, kv_dtype=BF16,
                    deterministic=deterministic)
        plan, bound = PTR(), PTR()
        self.call("plan_create", context, ctypes.byref(spec),
                  ctypes.byref(PlanOptions(max_branches=n, max_queries=n, max_nodes=max(2 * n, len(parent)),
                                           max_page_slots=rows.numel(), page_size=PAGE, share_policy=policy)),
                  ctypes.byref(plan))
        stream = PTR(torch.cuda.current_stream().cuda_stream)

        def update():
            start = time.perf_counter()
            self.call("plan_update", plan, ctypes.byref(forest))
            self.call("plan_upload", plan, stream)
            return 1e3 * (time.perf_counter() - start)

        leaf = first_node[-1] + n - 1
        above = parent[leaf]

        def change():  # the last request leaves, or comes back
            leaves = arrays[3][-1].item() != FREE_SLOT
            arrays[0][leaf], arrays[3][-1], arrays[5][-1] = (FREE_SLOT, FREE_SLOT, 0) if leaves else (above, leaf, 1)
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


def flashinfer_contestants(tree, flashinfer, workspace):
    heads = (tree.qo_heads, tree.kv_heads, HEAD_DIM, PAGE)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    def cascade(backend):
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(tree.nodes), workspace, "HND")
        if backend:
            for level in wrapper._batch_prefill_wrappers:
                level._backend = backend
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
            results[name] = {"ms": ms, "spread_ms": spread, "error": tree.error(out), **host}
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            results[name] = {"refused": str(problem).strip().splitlines()[0][:200]}
        torch.cuda.synchronize()
        if release:
            release()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libcoppice_attention.so of a CUDA build with BUILD_SHARED_LIBS=ON")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--contestants", help="columns to fill (default: all)")
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--json", help="write one object a line, the rates first")
    options = parser.parse_args()
    unknown = [c for c in options.cases.split(",") if c not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(CASES)}")
    known = (*OWN, *PEERS)
    only = options.contestants.split(",") if options.contestants else known
    if set(only) - set(known):
        parser.error(f"unknown contestant {(set(only) - set(known)).pop()}; known: {', '.join(known)}")

    def wanted(contestant):
        return contestant in only

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
    columns = [c for c in (*OWN, *PEERS) if wanted(c)]
    print(f"{'case':<7}{'overlap':>9}{'serial':>9}" + "".join(f"{c:>15}" for c in columns) + f"{'peer/x':>8}{'error':>9}{'plan_ms':>9}{'step_ms':>9}{'fi_plan':>9}")
    gains = []
    for name in options.cases.split(","):
        tree = Tree(*CASES[name])
        contestants = {own: (lambda o=own: coppice.contestant(tree, o)) for own in OWN}
        contestants |= {kernel: (lambda k=kernel: hydragen(tree, k)) for kernel in ("flash", "cudnn")}
        if flashinfer is not None:
            contestants |= flashinfer_contestants(tree, flashinfer, workspace)
        results = measure(tree, timer, {name: make for name, make in contestants.items() if wanted(name)})
        overlap, serial = tree.bounds_ms(copy, matmul)
        lines.append({"case": name, "qo_heads": tree.qo_heads, "kv_heads": tree.kv_heads, "nodes": tree.nodes, "tokens": tree.tokens,
                      "bound_overlapped_ms": overlap, "bound_serial_ms": serial, "results": results})
        ms = {c: r["ms"] for c, r in results.items() if "ms" in r}
        peers = [ms[c] for c in PEERS if c in ms]
        gain = min(peers) / ms["tree"] if peers and "tree" in ms else None
        if gain and name.startswith("tree"):
            gains.append(gain)
        own = results.get("tree", {})
        fastest_plan = min((r["plan_ms"] for c, r in results.items() if c.startswith("fi_") and "plan_ms" in r), default=math.nan)
        print(f"{name:<7}{overlap:>9.4f}{serial:>9.4f}" + "".join(f"{ms[c]:>15.4f}" if c in ms else f"{'-':>15}" for c in columns) +
              (f"{gain:>8.2f}" if gain else f"{'-':>8}") + f"{own.get('error', math.nan):>9.1e}"
              f"{own.get('plan_ms', math.nan):>9.3f}{own.get('step_plan_ms', math.nan):>9.4f}{fastest_plan:>9.3f}", flush=True)
        del tree
        torch.cuda.empty_cache()
    if gains:
        print(f"trees: geomean {statistics.geometric_mean(gains):.2f}x the best peer of this run")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
