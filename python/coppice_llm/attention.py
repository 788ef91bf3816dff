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

Tensors are those of numpy, torch, CuPy, JAX or whatever has DLPack, in the device's memory; results are of the same kind as `q`, and
numpy's where it is of another library, with which `run` on a GPU needs `out` and `lse`.
TypeError and ValueError name the argument, what was found and what is expected. docs/attention.md explains what a plan is.

On a GPU all work is put into the stream that torch or CuPy computes on now. JAX has no such stream: calls with its arrays return when
their work is done.

Functions of torch that torch.compile traces may call `run`, `merge_states` and `KvPool.append`, also with fullgraph=True: they become
the operators torch.ops.coppice.*, which are there once torch_ops() was called or a KvPool of torch's tensors was made. There is no
backward pass.
"""

from __future__ import annotations

import itertools
import operator
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

    def _stream(self, tensor: Any = None) -> int:
        """The stream that the tensor's library computes on now, as a number; 0 is the default one. Without a tensor: that of torch, or
        of CuPy where torch's is the default one."""
        ordinal = self._native.ordinal()
        if ordinal is None:
            return 0
        library = None if tensor is None else _library_of(tensor)
        torch, cupy = (sys.modules.get(name) if library in (None, name) else None for name in ("torch", "cupy"))
        stream = torch.cuda.current_stream(ordinal).cuda_stream if torch is not None and torch.cuda.is_initialized() else 0
        if stream == 0 and cupy is not None:
            with cupy.cuda.Device(ordinal):
                stream = cupy.cuda.get_current_stream().ptr
        return stream


class Forest:
    """Which requests share which KV: nodes, each a range of KV indices below its parent's, and branches, the requests, each with its queries.

    A KV index is the order along a branch's path. Query i of the c queries of a branch has the index kv_len - c + i, and sees the
    indices up to its own. Queries are rows of `q`, those of a branch behind those of the branches before it.
    """

    def __init__(self, page_size: int = 16) -> None:
        """page_size: tokens of a page of KV, 1 to 256."""
        self._native = _native.AttentionForest(page_size)

    def add_node(self, parent: int | None, begin: int, end: int | None = None) -> int:
        """A node with the KV indices [begin, end) below `parent` (None: a root), which ends at `begin`. end None: a leaf of one
        branch, which ends where the branch does. Returns its number."""
        try:
            return self._native.add_node(parent, begin, end)
        except TypeError:
            raise _wrong_number(begin=begin, **{name: value for name, value in (("parent", parent), ("end", end)) if value is not None}) from None

    def add_branch(self, node: int, kv_len: int, pages: Sequence[int], query_count: int = 1) -> int:
        """A request whose path ends at `node`, of `kv_len` tokens, its queries included. Entry j of `pages` is the page with the KV
        indices [j * page_size, (j + 1) * page_size) of the whole path; it may have more pages than it needs now. Returns its number."""
        pages = list(pages)
        try:
            return self._native.add_branch(node, kv_len, pages, query_count)
        except TypeError:
            raise _wrong_number(node=node, kv_len=kv_len, pages=pages, query_count=query_count) from None

    @classmethod
    def of_page_tables(cls, page_tables: Sequence[Sequence[int]] | Any, kv_lens: Sequence[int] | Any,
                       query_counts: Sequence[int] | Any | None = None, page_size: int = 16) -> Forest:
        """The forest of requests whose page tables show their sharing: pages that two tables begin with alike hold the same tokens.

        page_tables: of each request, as `pages` of add_branch, or one array of integers in host memory, [requests, pages], whose rows
        may have anything behind the pages that a request needs. kv_lens, query_counts (None: 1 each): as in add_branch; lists or arrays
        in host memory. The branches have the requests' numbers and order. Shared are whole pages that all queries of a request see
        whole.
        """
        import numpy

        forest = cls(page_size)
        if getattr(page_tables, "ndim", 0) == 2:
            pages = _host_ints("page_tables", page_tables, numpy.int32, 2)
            begin = numpy.arange(len(pages), dtype=numpy.int64) * pages.shape[1]
            end = begin + pages.shape[1]
        else:
            try:
                ends = list(itertools.accumulate(map(len, page_tables), initial=0))
            except TypeError:
                raise TypeError(f"page_tables={page_tables!r:.100}: expected a list of pages of each request, or an array [requests, pages]") from None
            pages = _host_ints("page_tables", list(itertools.chain.from_iterable(page_tables)), numpy.int32, 1)
            begin, end = (numpy.array(each, numpy.int64) for each in (ends[:-1], ends[1:]))
        lengths = _host_ints("kv_lens", kv_lens, numpy.int32, 1)
        counts = numpy.ones_like(lengths) if query_counts is None else _host_ints("query_counts", query_counts, numpy.int32, 1)
        if not len(begin) == len(lengths) == len(counts):
            raise ValueError(f"there are {len(begin)} page_tables, {len(lengths)} kv_lens and {len(counts)} query_counts, expected as many of each")
        if pages.ndim == 2:  # of rows as wide as the longest, no more than each needs
            end = numpy.minimum(end, begin + (lengths.astype(numpy.int64).clip(0) + page_size - 1) // page_size)
            pages = pages.reshape(-1)
        forest._native.add_page_tables(pages, begin, end, lengths, counts)
        return forest

    def set_length(self, branch: int, kv_len: int) -> None:
        """A branch has grown; the next Plan.update reads it. Growth of a token a step rarely makes a new plan."""
        try:
            self._native.set_length(branch, kv_len)
        except TypeError:
            raise _wrong_number(branch=branch, kv_len=kv_len) from None

    def capacity(self) -> dict[str, int]:
        """Sizes that a plan of exactly this forest needs: max_branches, max_queries, max_nodes, max_page_slots, page_size."""
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
        share: False, each branch reads its path itself. force_sharing: share wherever the tree allows, whether it saves time or not.
        capacity: max_branches, max_queries, max_nodes, max_page_slots, for forests that grow; by default those of `forest`.
        """
        native = _native_of("device", device, Device)
        options = {name: max(size, 1) for name, size in _native_of("forest", forest, Forest).capacity().items()}  # of no branches or queries too
        for name, value in capacity.items():
            if name not in options or name == "page_size":
                raise TypeError(f"there is no argument {name}={value!r}; capacities are max_branches, max_queries, max_nodes, max_page_slots")
            options[name] = value
        self._native = _native.AttentionPlan(native, options | {
            "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": dtype, "kv_dtype": kv_dtype or dtype,
            "sm_scale": sm_scale, "soft_cap": soft_cap, "window": window, "deterministic": deterministic, "share": share,
            "force_sharing": force_sharing})
        self.device = device
        self.num_qo_heads = num_qo_heads
        self.handle = next(_handles)
        _by_handle[self.handle] = self
        self.update(forest)

    def update(self, forest: Forest, stream: int | None = None) -> None:
        """Makes the plan fit the forest, after each of its changes, or another forest. MemoryError: it exceeds a capacity.

        On a GPU what changed is copied there, in `stream`, which is not being captured; None: the one that torch or CuPy computes on.
        A captured graph of `run` computes, when it is replayed behind the copy, what the plan then says.
        """
        self._native.update(_native_of("forest", forest, Forest), self.device._stream() if stream is None else stream)

    @property
    def num_queries(self) -> int:
        """Rows of q."""
        return self._native.num_queries()

    def explain(self) -> str:
        """The tree, each decision with its reason, bytes and FLOPs with and without sharing, predicted time. ValueError: the forest has
        changed since the last update."""
        return self._native.explain()

    def stats(self) -> dict[str, float]:
        """Tokens and bytes of KV read a layer, and what they would be without sharing; FLOPs; predicted nanoseconds. ValueError as in
        explain."""
        return self._native.stats()


class KvPool:
    """The KV of one layer in the caller's memory, which nothing here copies.

    k, v: [pages, page_size, num_kv_heads, head_dim] with layout "NHD", [pages, num_kv_heads, page_size, head_dim] with "HND"; any
    strides but head_dim's, equal in both. They stay alive with the pool. Read-only arrays, such as JAX's, serve for reads only.
    """

    def __init__(self, device: Device, k: Any, v: Any, layout: str = "NHD") -> None:
        if layout not in ("NHD", "HND"):
            raise ValueError(f"layout={layout!r}: expected 'NHD' or 'HND'")
        self.device, self.k, self.v, self.heads_first = device, k, v, layout == "HND"
        self._native = _native.AttentionKv(_native_of("device", device, Device), _ready(k), _ready(v), self.heads_first)
        if _torch_of(k) is not None:
            torch_ops()

    def append(self, k: Any, v: Any, slots: Sequence[int] | Any) -> None:
        """Writes tokens: k, v [tokens, num_kv_heads, head_dim] go to page slots[t] // page_size, place slots[t] % page_size; a
        negative entry is skipped. Where rows of k are further apart than those of v, or less far, both are copied first if they
        need it. ValueError leaves the pool as it was.

        slots: integers, or an int64 tensor [tokens]. On a GPU one that lies there is read by the GPU: its values are not checked, no
        copy is made, and the call may be captured in a CUDA graph."""
        if ops := _traced("k", k):
            ops.append_kv(self.k, self.v, k, v, sys.modules["torch"].as_tensor(slots), self.device.handle, self.heads_first)
        else:
            if not hasattr(slots, "__dlpack__") or _library_of(slots) == "numpy":
                import numpy

                slots = _host_ints("slots", slots, numpy.int64, 1)
            self._native.append(*_rows_alike(_ready(k), _ready(v)), slots, self.device._stream(k))


def run(q: Any, kv: KvPool, plan: Plan, out: Any = None, lse: Any = None, return_lse: bool = True) -> tuple[Any, Any]:
    """softmax(sm_scale * q . k) v of all queries of the plan.

    q: [rows, num_qo_heads, head_dim], heads contiguous, with the plan's num_queries rows at least. out: like q; lse: float32
    [rows, num_qo_heads], natural logarithms of the sums of exponentials; both are made where they are None. A row that sees nothing,
    and one behind the queries in what is made here, has out 0 and lse -inf. return_lse=False: lse is None and not computed, unless it
    is given.
    """
    if ops := _traced("q", q):
        made_out, made_lse = ops.run(q, kv.k, kv.v, plan.handle, kv.heads_first)
        made_lse = made_lse if lse is None else lse.copy_(made_lse)
        return made_out if out is None else out.copy_(made_out), made_lse if return_lse or lse is not None else None
    native, pool, library = _native_of("plan", plan, Plan), _native_of("kv", kv, KvPool), _library_of(q)
    _check_tensor("q", q)
    if len(q.shape) != 3:
        raise ValueError(f"q: the tensor has {len(q.shape)} dimensions; expected 3")
    lse_shape = (q.shape[0], plan.num_qo_heads)
    if library == "jax" and out is None and lse is None:
        out = _buffer(plan.device, q.shape, q.dtype)
        lse = _buffer(plan.device, lse_shape, "float32", -float("inf")) if return_lse else None
        native.run(pool, _ready(q), out, lse, 0)
        return _of_jax(plan.device, out), _of_jax(plan.device, lse)
    makes_out, makes_lse = out is None, lse is None and return_lse
    if makes_out:
        out = _empty_like(q, q.shape)
    if makes_lse:
        lse = _empty_like(q, lse_shape, "float32")
    rows = native.run(pool, _ready(q), out, lse, plan.device._stream(q))
    if q.shape[0] > rows:
        if makes_out:
            out[rows:] = 0
        if makes_lse:
            lse[rows:] = -float("inf")
    return out, lse


def merge_states(device: Device, states: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """One attention state of several over disjoint KV: out [n, heads, head_dim] and lse float32 [n, heads], natural logarithms, of
    each. Exact, and in any order but for rounding. The states stay as they are."""
    if not states:
        raise ValueError("states is empty, expected one state at least")
    first = states[0][0]
    if ops := _traced("states[0]", first):
        out, lse = ops.merge_states([out for out, _ in states], [lse for _, lse in states], device.handle)
        return out, lse
    native = _native_of("device", device, Device)
    for name, part in zip(("out", "lse"), states[0]):
        _check_tensor(f"states[0].{name}", part)
    if _library_of(first) == "jax":
        out, lse = _buffer(device, first.shape, first.dtype), _buffer(device, states[0][1].shape, "float32", -float("inf"))
        _native.merge_states(native, out, lse, [(_ready(o), _ready(l)) for o, l in states], 0)
        return _of_jax(device, out), _of_jax(device, lse)
    out, lse = (_copy(part) for part in states[0])
    _native.merge_states(native, out, lse, [(o, l) for o, l in states[1:]], device._stream(out))
    return out, lse


def merge_state(device: Device, out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """merge_states of two."""
    return merge_states(device, [(out_a, lse_a), (out_b, lse_b)])


def _native_of(name: str, value: Any, kind: type[Any]) -> Any:
    """The part of a Device, Forest, Plan or KvPool that the extension has. TypeError names the argument that is none."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r:.100}: expected a {kind.__name__}")
    return value._native


def _wrong_number(**numbers: Any) -> Exception:
    """The error of the first argument, or entry of one, that is no integer of 32 bits."""
    for name, value in numbers.items():
        for each in value if isinstance(value, list) else [value]:
            try:
                if not -2**31 <= operator.index(each) < 2**31:
                    return ValueError(f"{name}={each}: expected a number of 32 bits")
            except TypeError:
                return TypeError(f"{name}={each!r:.100}: expected an integer")
    return TypeError(f"{numbers!r:.200}: expected integers")


def _check_tensor(name: str, value: Any) -> None:
    """TypeError: the argument is none."""
    if not hasattr(value, "shape"):
        raise TypeError(f"{name} is {type(value).__name__}, expected a tensor with DLPack or the buffer protocol")


def _library_of(tensor: Any) -> str:
    """The name of the package that a tensor is of."""
    name = type(tensor).__module__.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def _ready(tensor: Any) -> Any:
    """The tensor, computed: JAX computes on streams of its own."""
    return tensor.block_until_ready() if _library_of(tensor) == "jax" else tensor


def _rows_alike(k: Any, v: Any) -> tuple[Any, Any]:
    """k and v, copies in their place where their rows are not equally far apart."""
    if (torch := _torch_of(k)) is not None and _torch_of(v) is not None:
        # A single row counts as contiguous whatever its stride: contiguous() would leave it.
        return (k, v) if k.stride() == v.stride() else (k.clone(memory_format=torch.contiguous_format), v.clone(memory_format=torch.contiguous_format))
    if _library_of(k) in ("numpy", "cupy") and _library_of(v) == _library_of(k):
        return (k, v) if k.strides == v.strides else (k.copy(), v.copy())
    return k, v


def _empty_like(tensor: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """Memory of the tensor's library and device."""
    torch = _torch_of(tensor)
    if torch is not None:
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else tensor.dtype, device=tensor.device)
    import numpy

    library = sys.modules["cupy"] if _library_of(tensor) == "cupy" else numpy
    return library.empty(shape, dtype or (tensor if hasattr(tensor, "dtype") else numpy.asarray(tensor)).dtype)


def _buffer(device: Device, shape: Sequence[int], dtype: Any, fill: float = 0) -> Any:
    """Memory of Coppice's own with DLPack, for a library whose arrays cannot be written: zeros, or `fill` where it is float32."""
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(str(dtype))
    if name is None:
        raise ValueError(f"q is {dtype}, expected float32, float16 or bfloat16")
    return _native.buffer(device._native, list(shape), name, fill)


def _of_jax(device: Device, buffer: Any) -> Any:
    """The memory, written by the default stream, as an array of JAX."""
    if buffer is None:
        return None
    device._native.synchronize(0)
    return sys.modules["jax"].dlpack.from_dlpack(buffer)


def _copy(tensor: Any) -> Any:
    if hasattr(tensor, "clone") or hasattr(tensor, "copy"):
        return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()
    import numpy

    return numpy.array(tensor)


def _host_ints(name: str, values: Any, dtype: Any, ndim: int) -> Any:
    """An array of integers in host memory, contiguous. TypeError and ValueError name what is none."""
    import numpy

    if getattr(values, "is_cuda", False) or hasattr(values, "__cuda_array_interface__"):
        raise ValueError(f"{name} is on a GPU, expected host memory")
    array = numpy.asarray(values)
    if array.shape[:1] == (0,):  # of an empty list numpy makes one dimension of floats
        array = numpy.zeros((0,) * ndim, dtype)
    if array.dtype.kind not in "iu" or array.ndim != ndim:
        raise TypeError(f"{name} is {array.dtype} of {array.ndim} dimensions, expected integers of {ndim}")
    least, most = (array.min(), array.max()) if array.size else (0, 0)
    if most > numpy.iinfo(dtype).max or least < numpy.iinfo(dtype).min:
        raise ValueError(f"{name} has values from {least} to {most}, expected those of {numpy.dtype(dtype).name}")
    return numpy.ascontiguousarray(array, dtype)
