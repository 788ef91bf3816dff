"""Prefix-tree attention over paged KV: each token that requests share is read once for all of them. Exact.

    device = attention.Device("cpu")
    forest = attention.Forest(page_size=16)
    prefix = forest.add_node(None, 0, 32)                        # a node of 32 tokens, shared by what is below it
    for pages in ([0, 1, 2], [0, 1, 3]):                         # page rows cover the whole path
        leaf = forest.add_node(prefix, 32)                       # a leaf ends where its branch does
        forest.add_branch(leaf, kv_len=40, pages=pages)
    plan = attention.Plan(device, forest, num_qo_heads=32, num_kv_heads=8, head_dim=128, dtype="f32")
    kv = attention.KvPool(device, k, v, layout="NHD")            # the caller's tensors, not copied
    out, lse = attention.run(q, kv, plan)

Tensors are those of numpy, torch or whatever has DLPack, on the device's memory; results are of the same kind as `q`. TypeError and
ValueError name the argument, what was found and what is expected. docs/attention.md explains what a plan is.

Functions of torch that torch.compile traces may call `run`, `merge_states` and `KvPool.append`, also with fullgraph=True: they become
the operators torch.ops.coppice.*, which are there once torch_ops() was called or a KvPool of torch's tensors was made. There is no
backward pass.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from . import _native

__all__ = ["Device", "Forest", "Plan", "KvPool", "run", "merge_state", "merge_states", "torch_ops"]

# Devices and plans by handle: an operator of torch takes tensors and numbers.
_by_handle: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def torch_ops() -> Any:
    """torch.ops.coppice, with what it needs registered; imports torch. Its operators take tensors on CPUs and CUDA devices:

    run(q, k, v, plan, heads_first=False) -> (out, lse)
    merge_states(outs, lses, device) -> (out, lse)
    append_kv(k_pool, v_pool, k, v, slots, device, heads_first=False), which writes the pools

    plan, device: `handle` of a Plan, of a Device, which live as long as the operator is used. heads_first: the pools' layout is "HND".
    """
    from . import _torch_ops

    return _torch_ops.ops


def _torch_of(tensor: Any) -> Any:
    """torch, where it is torch's tensor."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(tensor, torch.Tensor) else None


def _traced(name: str, tensor: Any) -> Any:
    """torch.ops.coppice, where torch.compile traces what is done with the tensor; else None. TypeError: its gradient is wanted."""
    torch = _torch_of(tensor)
    if torch is None:
        return None
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{name} requires a gradient, and there is no backward pass: use torch.no_grad() or {name}.detach()")
    return torch.ops.coppice if torch.compiler.is_compiling() else None


class Device:
    """Where attention runs: "cpu", with `num_threads` threads of its own (0: one a core), or "cuda", "cuda:1"."""

    def __init__(self, device: str = "cpu", num_threads: int = 0) -> None:
        self._native = _native.AttentionDevice(device, num_threads)
        self.handle = next(_handles)
        _by_handle[self.handle] = self

    def _stream(self, tensor: Any) -> int:
        """The stream that the tensor's library computes on now; 0, the default one, where it says none."""
        torch = _torch_of(tensor)
        if torch is not None and tensor.is_cuda:
            return torch.cuda.current_stream(tensor.device).cuda_stream
        return 0


class Forest:
    """Who shares which KV: nodes, each a range of KV indices below its parent's, and branches, the requests, each with its queries.

    A KV index is the order along a branch's path. Query i of the c queries of a branch has the index kv_len - c + i, and sees the
    indices up to its own. Queries are rows of `q`, those of a branch behind those of the branches before it.
    """

    def __init__(self, page_size: int = 16) -> None:
        """page_size: tokens of a page of KV, 1 to 256."""
        self._native = _native.AttentionForest(page_size)

    def add_node(self, parent: int | None, begin: int, end: int | None = None) -> int:
        """A node with the KV indices [begin, end) below `parent` (None: a root), which ends at `begin`. end None: a leaf of one
        branch, which ends where the branch does. Returns its number."""
        return self._native.add_node(-1 if parent is None else parent, begin, end)

    def add_branch(self, node: int, kv_len: int, pages: Sequence[int], query_count: int = 1) -> int:
        """A request whose path ends at `node`, of `kv_len` tokens, its queries included. Entry j of `pages` is the page with the KV
        indices [j * page_size, (j + 1) * page_size) of the whole path; it may have more pages than it needs now. Returns its number."""
        return self._native.add_branch(node, kv_len, list(pages), query_count)

    @classmethod
    def of_page_tables(cls, page_tables: Sequence[Sequence[int]], kv_lens: Sequence[int], query_counts: Sequence[int] | None = None,
                       page_size: int = 16) -> Forest:
        """The forest of requests whose sharing their page tables tell: pages that two tables begin with alike hold the same tokens.

        page_tables: of each request, as `pages` of add_branch. kv_lens, query_counts (None: 1 each): as there. The branches have the
        requests' numbers and order. Shared are whole pages that all queries of a request see whole.
        """
        counts = [1] * len(page_tables) if query_counts is None else query_counts
        if not len(page_tables) == len(kv_lens) == len(counts):
            raise ValueError(f"there are {len(page_tables)} page_tables, {len(kv_lens)} kv_lens and {len(counts)} query_counts, expected as many of each")
        forest = cls(page_size)
        fronts = [list(table[:max(0, (kv_len - count + 1) // page_size)]) for table, kv_len, count in zip(page_tables, kv_lens, counts)]
        order = sorted(range(len(fronts)), key=fronts.__getitem__)
        common = [0] + [_common(fronts[a], fronts[b]) for a, b in zip(order, order[1:])]  # pages, with the one before in the order
        ends: dict[int, int] = {}  # by request, the node of its branch
        pending: list[tuple[int, int, int, int | None]] = [(0, len(order), 0, None)] if order else []
        while pending:  # the requests of order[first:last] share `parent`, which has so many pages
            first, last, pages, parent = pending.pop()
            if last - first == 1:
                request = order[first]
                complete = parent is not None and pages * page_size == kv_lens[request]
                ends[request] = parent if complete else forest.add_node(parent, pages * page_size)
                continue
            shared = min(common[first + 1:last])
            if shared > pages:
                parent = forest.add_node(parent, pages * page_size, shared * page_size)
            cuts = [first, *(i for i in range(first + 1, last) if common[i] == shared), last]
            pending += [(begin, end, shared, parent) for begin, end in zip(cuts, cuts[1:])]
        for request, (table, kv_len, count) in enumerate(zip(page_tables, kv_lens, counts)):
            forest.add_branch(ends[request], kv_len, table, count)
        return forest

    def set_length(self, branch: int, kv_len: int) -> None:
        """A branch has grown; the next Plan.update reads it. Growth of a token a step rarely makes a new plan."""
        self._native.set_length(branch, kv_len)

    def capacity(self) -> dict[str, int]:
        """What a plan of exactly this forest needs: max_branches, max_queries, max_nodes, max_page_slots, page_size."""
        return self._native.capacity()


class Plan:
    """The work of one forest under one shape of attention; it serves all layers of that shape."""

    def __init__(self, device: Device, forest: Forest, *, num_qo_heads: int, num_kv_heads: int, head_dim: int, dtype: str = "bf16",
                 kv_dtype: str | None = None, sm_scale: float = 0.0, soft_cap: float = 0.0, window: int = 0, deterministic: bool = False,
                 share: bool = True, force_sharing: bool = False, **capacity: int) -> None:
        """
        num_qo_heads: a multiple of num_kv_heads. head_dim: a multiple of 8, at most 256.
        dtype: of q and out; kv_dtype: of KV (None: the same): "f32", "bf16" or "f16".
        sm_scale: multiplies q . k; 0: 1 / sqrt(head_dim). soft_cap: c > 0, scores become c * tanh(score / c). window: w > 0, a query
        with KV index i sees (i - w, i].
        deterministic: the bits of a request depend on nothing but the request.
        share: False, each branch reads its path itself. force_sharing: share wherever the tree allows, whether it pays or not.
        capacity: max_branches, max_queries, max_nodes, max_page_slots, for forests that grow; by default those of `forest`.
        """
        options = forest.capacity()
        for name, value in capacity.items():
            if name not in options or name == "page_size":
                raise TypeError(f"there is no argument {name}={value!r}; capacities are max_branches, max_queries, max_nodes, max_page_slots")
            options[name] = value
        self._native = _native.AttentionPlan(device._native, options | {
            "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": dtype, "kv_dtype": kv_dtype or dtype,
            "sm_scale": sm_scale, "soft_cap": soft_cap, "window": window, "deterministic": deterministic, "share": share,
            "force_sharing": force_sharing})
        self.device = device
        self.num_qo_heads = num_qo_heads
        self.handle = next(_handles)
        _by_handle[self.handle] = self
        self.update(forest)

    def update(self, forest: Forest, stream: int = 0) -> None:
        """Makes the plan fit the forest, after each of its changes. MemoryError: it exceeds a capacity."""
        self._native.update(forest._native, stream)

    @property
    def num_queries(self) -> int:
        """Rows of q."""
        return self._native.num_queries()

    def explain(self) -> str:
        """The tree, each decision with its reason, bytes and FLOPs with and without sharing, predicted time."""
        return self._native.explain()

    def stats(self) -> dict[str, float]:
        """Tokens and bytes of KV read a layer, and what they would be without sharing; FLOPs; predicted nanoseconds."""
        return self._native.stats()


class KvPool:
    """The KV of one layer in the caller's memory, which nothing here copies.

    k, v: [pages, page_size, num_kv_heads, head_dim] with layout "NHD", [pages, num_kv_heads, page_size, head_dim] with "HND"; any
    strides but head_dim's, equal in both. They stay alive with the pool.
    """

    def __init__(self, device: Device, k: Any, v: Any, layout: str = "NHD") -> None:
        if layout not in ("NHD", "HND"):
            raise ValueError(f"layout={layout!r}: expected 'NHD' or 'HND'")
        self.device, self.k, self.v, self.heads_first = device, k, v, layout == "HND"
        self._native = _native.AttentionKv(device._native, k, v, self.heads_first)
        if _torch_of(k) is not None:
            torch_ops()

    def append(self, k: Any, v: Any, slots: Sequence[int]) -> None:
        """Writes tokens: k, v [tokens, num_kv_heads, head_dim] go to page slots[t] // page_size, place slots[t] % page_size; a
        negative entry is skipped. IndexError and ValueError leave the pool as it was."""
        if ops := _traced("k", k):
            ops.append_kv(self.k, self.v, k, v, sys.modules["torch"].as_tensor(slots), self.device.handle, self.heads_first)
        else:
            self._native.append(k, v, [int(slot) for slot in slots], self.device._stream(k))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Entries that both begin with."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


def run(q: Any, kv: KvPool, plan: Plan, out: Any = None, lse: Any = None) -> tuple[Any, Any]:
    """softmax(sm_scale * q . k) v of all queries of the plan.

    q: [rows, num_qo_heads, head_dim], heads contiguous, with the plan's num_queries rows at least. out: like q; lse: float32
    [rows, num_qo_heads], natural logarithms of the sums of exponentials; both are made where they are None. A row that sees nothing,
    and one behind the queries in what is made here, has out 0 and lse -inf.
    On a GPU the work is put into the current stream of torch, else the default one.
    """
    if ops := _traced("q", q):
        made_out, made_lse = ops.run(q, kv.k, kv.v, plan.handle, kv.heads_first)
        return made_out if out is None else out.copy_(made_out), made_lse if lse is None else lse.copy_(made_lse)
    rows = plan.num_queries
    if out is None:
        out = _empty_like(q, q.shape)
        out[rows:] = 0
    if lse is None:
        lse = _empty_like(q, (q.shape[0], plan.num_qo_heads), "float32")
        lse[rows:] = -float("inf")
    plan._native.run(kv._native, q, out, lse, plan.device._stream(q))
    return out, lse


def merge_states(device: Device, states: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """One attention state of several over disjoint KV: out [n, heads, head_dim] and lse float32 [n, heads], natural logarithms, of
    each. Exact, and in any order but for rounding. The states stay as they are."""
    if not states:
        raise ValueError("states is empty, expected one state at least")
    if ops := _traced("states[0]", states[0][0]):
        return ops.merge_states([out for out, _ in states], [lse for _, lse in states], device.handle)
    out, lse = (_copy(part) for part in states[0])
    _native.merge_states(device._native, out, lse, [(o, l) for o, l in states[1:]], device._stream(out))
    return out, lse


def merge_state(device: Device, out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """merge_states of two."""
    return merge_states(device, [(out_a, lse_a), (out_b, lse_b)])


def _empty_like(tensor: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """Memory of the tensor's library and device."""
    torch = _torch_of(tensor)
    if torch is not None:
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else tensor.dtype, device=tensor.device)
    import numpy

    return numpy.empty(shape, dtype or tensor.dtype)


def _copy(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()
