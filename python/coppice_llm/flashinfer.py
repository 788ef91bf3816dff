"""FlashInfer's paged attention by Coppice: the same classes, functions, arguments and shapes, so that one import changes.

    import coppice_llm.flashinfer as flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type=torch.bfloat16)
    out = wrapper.run(q, kv_cache)

Tensors are torch's, on a CPU or a CUDA device. `plan` finds in the page indices which pages requests share, and the planner has them
read once where that saves time: a cascade by one plan, and batches too that say nothing of prefixes. LSE is to base 2, as FlashInfer's is;
`run` may stand in what torch.compile traces. Workspaces are taken and not used: a plan has its own memory.

With use_cuda_graph=True `run` may be captured, and `plan` made anew before each replay: for as many rows as the first one had at most, and
requests and pages that fit the buffers, of which only the sizes count.

An argument that Coppice lacks is a NotImplementedError with its name, unless it has its default. Arguments that change no result
(non_blocking, enable_pdl) are taken.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from . import attention

__all__ = ["MultiLevelCascadeAttentionWrapper", "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper", "merge_state",
           "merge_state_in_place", "merge_states", "append_paged_kv_cache", "get_batch_indices_positions", "get_seq_lens"]

_LOG2_E = math.log2(math.e)
_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_devices: dict[str, attention.Device] = {}

KvCache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def merge_state(v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One state of two over disjoint KV: v [n, heads, head_dim], s float32 [n, heads], base 2."""
    return _merge([v_a, v_b], [s_a, s_b])


def merge_state_in_place(v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """merge_state into v and s; mask, bool [n]: rows where it is False stay as they are."""
    merged_v, merged_s = merge_state(v, s, v_other, s_other)
    if mask is not None:
        merged_v, merged_s = torch.where(mask[:, None, None], merged_v, v), torch.where(mask[:, None], merged_s, s)
    v.copy_(merged_v)
    s.copy_(merged_s)


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One state of several: v [n, states, heads, head_dim], s float32 [n, states, heads], base 2."""
    return _merge(list(v.unbind(1)), list(s.unbind(1)))


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens of KV of each request, whose last page has kv_last_page_len of them."""
    return (kv_indptr.diff() - 1).clamp(min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(append_indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int, batch_indices: torch.Tensor | None = None,
                                positions: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each of the nnz tokens that are the last ones of their requests, append_indptr.diff() each: the request, and the place in it."""
    rows = torch.arange(nnz, dtype=append_indptr.dtype, device=append_indptr.device)
    requests = torch.searchsorted(append_indptr, rows, right=True) - 1
    places = seq_lens[requests] - append_indptr[requests + 1] + rows
    requests, places = requests.to(torch.int32), places.to(torch.int32)
    return requests if batch_indices is None else batch_indices.copy_(requests), places if positions is None else positions.copy_(places)


def append_paged_kv_cache(append_key: torch.Tensor, append_value: torch.Tensor, batch_indices: torch.Tensor, positions: torch.Tensor, paged_kv_cache: KvCache,
                          kv_indices: torch.Tensor, kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, kv_layout: str = "NHD") -> None:
    """Writes tokens, [nnz, num_kv_heads, head_dim], to the places of requests that get_batch_indices_positions gives."""
    k, v = paged_kv_cache if isinstance(paged_kv_cache, tuple | list) else paged_kv_cache.unbind(1)
    page_size = k.shape[2 if kv_layout == "HND" else 1]
    pages = kv_indices[kv_indptr[batch_indices.long()].long() + positions // page_size].long()
    torch.ops.coppice.append_kv(k, v, append_key, append_value, pages * page_size + positions % page_size, _device(k.device).handle, kv_layout == "HND")


class _Paged:
    """A kind of batch over a paged KV cache: what the wrappers have in common."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, use_cuda_graph: bool, **buffers: Any) -> None:
        """buffers: of use_cuda_graph, by the parameters' names, those of all levels; their sizes bound what plan(...) takes."""
        if kv_layout not in ("NHD", "HND"):
            raise ValueError(f"kv_layout={kv_layout!r}: expected 'NHD' or 'HND'")
        self._kv_layout = kv_layout
        self._device = _device(float_workspace_buffer.device)
        self._plans: list[attention.Plan] = []  # the states of several are merged
        self._form: dict[str, Any] = {}  # that captured plans have
        self._buffers: dict[str, list[torch.Tensor]] | None = None
        if use_cuda_graph:
            for name, buffer in buffers.items():
                if buffer is None:
                    raise ValueError(f"{name}=None: use_cuda_graph=True needs it, whose size says how much plan(...) may take")
            self._buffers = {name: list(buffer) if isinstance(buffer, list | tuple) else [buffer] for name, buffer in buffers.items()}

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._buffers is not None

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: Any) -> None:
        """Does nothing: workspaces are not used."""

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""

    def _plan_levels(self, levels: Sequence[_Level], page_size: int, causal: bool, *, window_left: int, sm_scale: float | None,
                     logits_soft_cap: float | None, q_data_type: str | torch.dtype | None, kv_data_type: str | torch.dtype | None,
                     o_data_type: str | torch.dtype | None = None, **heads: Any) -> None:
        many = len(levels) > 1 or any(count > 1 for count in levels[-1].counts)
        if window_left >= 0 and many and not (causal and len(levels) == 1):
            _lacks(window_left=f"{window_left} of several levels or without causal=True")
        dtype = _dtype("q_data_type", q_data_type or torch.float16)
        kv_dtype = dtype if kv_data_type is None else _dtype("kv_data_type", kv_data_type)
        if o_data_type is not None and _dtype("o_data_type", o_data_type) != dtype:
            _lacks(o_data_type=f"{o_data_type} beside q_data_type={q_data_type}")
        if sm_scale == 0:
            raise NotImplementedError("sm_scale=0: expected another number, or None for 1 / sqrt(head_dim)")
        form = heads | {"dtype": dtype, "kv_dtype": kv_dtype, "sm_scale": sm_scale or 0.0, "soft_cap": max(0.0, logits_soft_cap or 0.0),
                        "window": max(0, window_left + 1)}
        if self._buffers is not None:
            self._replan(levels, form, page_size, causal)
            return
        whole = _joined(levels, page_size, causal)
        parts = [(whole, causal)] if whole else [(level, causal and level is levels[-1]) for level in levels]
        self._plans = [attention.Plan(self._device, level.forest(page_size, is_causal), **form) for level, is_causal in parts]

    def _replan(self, levels: Sequence[_Level], form: dict[str, Any], page_size: int, causal: bool) -> None:
        """Plans that stay where they are, one for each level, so that a captured run goes on with them."""
        fixed = form | {"page_size": page_size, "causal": causal, "rows": levels[-1].rows[-1]}
        if self._plans:
            for name, value in fixed.items():
                if self._form[name] != value if name != "rows" else self._form[name] < value:
                    raise ValueError(f"{name}={value!r}: the first plan(...) of a wrapper with use_cuda_graph=True had {self._form[name]!r}")
        assert self._buffers is not None
        indptrs, indices = (next(buffer for name, buffer in self._buffers.items() if part in name) for part in ("indptr", "indices"))
        for i, (level, indptr, pages) in enumerate(zip(levels, indptrs, indices)):
            for what, most, found in (("requests", len(indptr) - 1, len(level.counts)), ("pages", len(pages), sum(map(len, level.tables)))):
                if found > most:
                    raise ValueError(f"level {i} has {found} {what}, expected at most {most}, for which there are buffers")
        forests = [level.forest(page_size, causal and level is levels[-1]) for level in levels]
        if self._plans:
            for plan, forest in zip(self._plans, forests):
                plan.update(forest)
            return
        for level, forest, indptr, pages in zip(levels, forests, indptrs, indices):
            # Without a causal mask each row is a request.
            is_causal = causal and level is levels[-1]
            requests, repeats = (len(indptr) - 1, 1) if is_causal else (fixed["rows"], max([1, *level.counts]))
            room = {"max_branches": requests, "max_queries": fixed["rows"], "max_nodes": 2 * requests, "max_page_slots": len(pages) * repeats}
            self._plans.append(attention.Plan(self._device, forest, **form, **{name: max(size, forest.capacity()[name]) for name, size in room.items()}))
        self._form = fixed

    def _states(self, q: torch.Tensor, paged_kv_cache: KvCache) -> tuple[torch.Tensor, torch.Tensor]:
        """out and natural LSE."""
        if not self._plans:
            raise ValueError("plan(...) comes before run(...)")
        k, v = paged_kv_cache if isinstance(paged_kv_cache, tuple | list) else paged_kv_cache.unbind(1)
        operators = torch.ops.coppice
        states = [operators.run(q, k, v, plan.handle, self._kv_layout == "HND") for plan in self._plans]
        out, lse = states[0] if len(states) == 1 else operators.merge_states(*map(list, zip(*states)), self._device.handle)
        return out, lse


class _Batch(_Paged):
    """A wrapper of one level."""

    def run(self, q: torch.Tensor, paged_kv_cache: KvCache, *args: Any, q_scale: float | None = None, k_scale: float | None = None,
            v_scale: float | None = None, out: torch.Tensor | None = None, lse: torch.Tensor | None = None, return_lse: bool = False,
            enable_pdl: bool | None = None, **others: Any) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """q [rows, num_qo_heads, head_dim]: a row for each query; paged_kv_cache [pages, 2, page_size, num_kv_heads, head_dim] ("NHD"), or
        [pages, 2, num_kv_heads, page_size, head_dim] ("HND"), or K and V of it. Returns out, or (out, lse), lse to base 2."""
        _lacks(args=args or None, q_scale=_other(q_scale, 1.0), k_scale=_other(k_scale, 1.0), v_scale=_other(v_scale, 1.0), **others)
        made_out, made_lse = self._states(q, paged_kv_cache)
        out = made_out if out is None else out.copy_(made_out)
        if not return_lse:
            return out
        made_lse = made_lse * _LOG2_E
        return out, made_lse if lse is None else lse.copy_(made_lse)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward_return_lse(self, q: torch.Tensor, paged_kv_cache: KvCache) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = self._states(q, paged_kv_cache)
        return out, lse * _LOG2_E


class BatchDecodeWithPagedKVCacheWrapper(_Batch):
    """One query for each request."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, use_tensor_cores: bool = False,
                 paged_kv_indptr_buffer: torch.Tensor | None = None, paged_kv_indices_buffer: torch.Tensor | None = None,
                 paged_kv_last_page_len_buffer: torch.Tensor | None = None, backend: str = "auto", jit_args: list[Any] | None = None) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indptr_buffer=paged_kv_indptr_buffer,
                         paged_kv_indices_buffer=paged_kv_indices_buffer)
        _lacks(jit_args=jit_args, backend=_other(backend, "auto"))
        self._use_tensor_cores = use_tensor_cores

    @property
    def use_tensor_cores(self) -> bool:
        """The constructor's arguments. Which kernels run is the planner's choice."""
        return self._use_tensor_cores

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
             page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: float | None = None,
             q_data_type: str | torch.dtype | None = "float16", kv_data_type: str | torch.dtype | None = None,
             o_data_type: str | torch.dtype | None = None, data_type: str | torch.dtype | None = None, sm_scale: float | None = None,
             rope_scale: float | None = None, rope_theta: float | None = None, non_blocking: bool = True, **others: Any) -> None:
        """indptr int32 [batch + 1], indices int32 [indptr[-1]], last_page_len int32 [batch]: the pages of each request, in order."""
        _lacks(pos_encoding_mode=_other(pos_encoding_mode, "NONE"), rope_scale=rope_scale, rope_theta=rope_theta, **others)
        rows = list(range(len(last_page_len) + 1))
        if data_type is not None:
            q_data_type = kv_data_type = data_type
        level = _Level.of(rows, indptr, indices, last_page_len, page_size)
        self._plan_levels([level], page_size, True, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads,
                          head_dim=head_dim, sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type,
                          kv_data_type=kv_data_type, o_data_type=o_data_type)

    begin_forward = plan


class BatchPrefillWithPagedKVCacheWrapper(_Batch):
    """Several queries for each request: prefill and append."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: torch.Tensor | None = None, paged_kv_indptr_buf: torch.Tensor | None = None,
                 paged_kv_indices_buf: torch.Tensor | None = None, paged_kv_last_page_len_buf: torch.Tensor | None = None,
                 custom_mask_buf: torch.Tensor | None = None, mask_indptr_buf: torch.Tensor | None = None, backend: str = "auto",
                 jit_args: list[Any] | None = None, jit_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf=qo_indptr_buf, paged_kv_indices_buf=paged_kv_indices_buf)
        _lacks(custom_mask_buf=custom_mask_buf, mask_indptr_buf=mask_indptr_buf, jit_args=jit_args, jit_kwargs=jit_kwargs,
               backend=_other(backend, "auto"))

    def plan(self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor, paged_kv_last_page_len: torch.Tensor,
             num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: int | None = None,
             custom_mask: torch.Tensor | None = None, packed_custom_mask: torch.Tensor | None = None, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
             q_data_type: str | torch.dtype = "float16", kv_data_type: str | torch.dtype | None = None,
             o_data_type: str | torch.dtype | None = None, non_blocking: bool = True, **others: Any) -> None:
        """qo_indptr int32 [batch + 1]: the rows of q of each request; the rest as in BatchDecodeWithPagedKVCacheWrapper.plan."""
        _lacks(head_dim_vo=_other(head_dim_vo, head_dim_qk), custom_mask=custom_mask, packed_custom_mask=packed_custom_mask,
               pos_encoding_mode=_other(pos_encoding_mode, "NONE"), use_fp16_qk_reduction=use_fp16_qk_reduction,
               rope_scale=rope_scale, rope_theta=rope_theta, **others)
        level = _Level.of(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self._plan_levels([level], page_size, causal, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads,
                          head_dim=head_dim_qk, sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type,
                          kv_data_type=kv_data_type, o_data_type=o_data_type)

    begin_forward = plan


class MultiLevelCascadeAttentionWrapper(_Paged):
    """Several levels of shared KV, all in one paged cache. One plan where each group of a level lies in one of the level above, whose last
    page is full; else a plan for each level, whose states are merged."""

    def __init__(self, num_levels: int, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf_arr: list[torch.Tensor] | None = None, paged_kv_indptr_buf_arr: list[torch.Tensor] | None = None,
                 paged_kv_indices_buf_arr: list[torch.Tensor] | None = None,
                 paged_kv_last_page_len_buf_arr: list[torch.Tensor] | None = None) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf_arr=qo_indptr_buf_arr,
                         paged_kv_indices_buf_arr=paged_kv_indices_buf_arr)
        self._num_levels = num_levels

    def plan(self, qo_indptr_arr: list[torch.Tensor], paged_kv_indptr_arr: list[torch.Tensor], paged_kv_indices_arr: list[torch.Tensor],
             paged_kv_last_page_len: list[torch.Tensor], num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
             q_data_type: str | torch.dtype = "float16", kv_data_type: str | torch.dtype | None = None) -> None:
        """A tensor for each level, from the most shared one on: rows of q of each group, and its pages. causal: of the last level."""
        _lacks(pos_encoding_mode=_other(pos_encoding_mode, "NONE"), use_fp16_qk_reduction=use_fp16_qk_reduction,
               rope_scale=rope_scale, rope_theta=rope_theta)
        arrays = {"qo_indptr_arr": qo_indptr_arr, "paged_kv_indptr_arr": paged_kv_indptr_arr, "paged_kv_indices_arr": paged_kv_indices_arr,
                  "paged_kv_last_page_len": paged_kv_last_page_len}
        for name, array in arrays.items():
            if len(array) != self._num_levels:
                raise ValueError(f"{name} has {len(array)} levels, expected {self._num_levels}")
        levels = [_Level.of(rows, indptr, indices, last, page_size)
                  for rows, indptr, indices, last in zip(qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)]
        self._plan_levels(levels, page_size, causal, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads,
                          head_dim=head_dim, sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type,
                          kv_data_type=kv_data_type)

    begin_forward = plan

    def run(self, q: torch.Tensor, paged_kv_cache: KvCache) -> torch.Tensor:
        """q [rows, num_qo_heads, head_dim]; paged_kv_cache as in BatchDecodeWithPagedKVCacheWrapper.run."""
        return self._states(q, paged_kv_cache)[0]

    forward = run


@dataclasses.dataclass
class _Level:
    """Groups of consecutive rows of q, each with the pages that all its rows see."""

    rows: list[int]  # group i has those of [rows[i], rows[i + 1])
    tables: list[list[int]]  # pages
    lengths: list[int]  # tokens of KV

    @classmethod
    def of(cls, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, last_page_len: Any, page_size: int) -> _Level:
        """FlashInfer's form of it."""
        rows, indptr, indices, last = (each.tolist() if isinstance(each, torch.Tensor) else list(each)
                                       for each in (qo_indptr, kv_indptr, kv_indices, last_page_len))
        if not len(rows) == len(indptr) == len(last) + 1:
            raise ValueError(f"there are {len(rows)} entries of qo_indptr, {len(indptr)} of kv_indptr and {len(last)} of last_page_len, "
                             "expected one more in the first two")
        for name, each in (("qo_indptr", rows), ("kv_indptr", indptr)):
            if each[0] != 0 or any(a > b for a, b in zip(each, each[1:])):
                raise ValueError(f"{name}={each!r:.100}: expected 0 first, and none less than the one before")
        if indptr[-1] > len(indices):
            raise ValueError(f"kv_indptr ends with {indptr[-1]}, and there are {len(indices)} kv_indices")
        tables = [indices[begin:end] for begin, end in zip(indptr, indptr[1:])]
        for i, (table, length) in enumerate(zip(tables, last)):
            if table and not 1 <= length <= page_size:
                raise ValueError(f"last_page_len[{i}]={length}: expected 1 to {page_size}, the tokens of a page")
        return cls(rows, tables, [(len(table) - 1) * page_size + length if table else 0 for table, length in zip(tables, last)])

    @property
    def counts(self) -> list[int]:
        return [end - begin for begin, end in zip(self.rows, self.rows[1:])]

    def forest(self, page_size: int, causal: bool) -> attention.Forest:
        tables: list[list[int]] = []
        lengths: list[int] = []
        counts: list[int] = []
        for i, (table, length, count) in enumerate(zip(self.tables, self.lengths, self.counts)):
            if count and length < (count if causal else 1):
                raise NotImplementedError(f"request {i} has {length} tokens of KV for {count} queries: one that sees none")
            # Without a causal mask each row sees all of its group: a request of its own, to which the others are neighbours.
            repeats, each = (1, count) if causal else (count, 1)
            if count:
                tables, lengths, counts = tables + [table] * repeats, lengths + [length] * repeats, counts + [each] * repeats
        return attention.Forest.of_page_tables(tables, lengths, counts, page_size)


def _joined(levels: Sequence[_Level], page_size: int, causal: bool) -> _Level | None:
    """The levels as one, whose groups have the pages of their whole path; None where these are no path in pages."""
    if len(levels) == 1:
        return levels[0]
    whole = levels[-1]
    if any(level.rows[-1] != whole.rows[-1] for level in levels):
        raise ValueError(f"the levels end with rows {[level.rows[-1] for level in levels]}, expected the same")
    tables, lengths = [], []
    at = [0] * (len(levels) - 1)  # by level, the group that the rows lie in
    for group, (begin, end) in enumerate(zip(whole.rows, whole.rows[1:])):
        table: list[int] = []
        for i, level in enumerate(levels[:-1] if end > begin else ()):
            while level.rows[at[i] + 1] <= begin:
                at[i] += 1
            if level.rows[at[i] + 1] < end or level.lengths[at[i]] % page_size:
                return None
            table += level.tables[at[i]]
        if causal and whole.lengths[group] < end - begin:
            return None  # what sees nothing of its own sees all above
        tables.append(table + whole.tables[group])
        lengths.append(len(table) * page_size + whole.lengths[group])
    return _Level(whole.rows, tables, lengths)


def _merge(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    natural = [lse.to(torch.float32) / _LOG2_E for lse in lses]
    out, lse = torch.ops.coppice.merge_states(outs, natural, _device(outs[0].device).handle)
    return out, lse * _LOG2_E


def _device(device: torch.device) -> attention.Device:
    """The device of attention on which torch's device computes, made once."""
    name = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
    if name not in _devices:
        _devices[name] = attention.Device(name)
    return _devices[name]


def _dtype(name: str, value: str | torch.dtype) -> str:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype not in _DTYPES:
        raise NotImplementedError(f"{name}={value}: expected float32, float16 or bfloat16")
    return _DTYPES[dtype]


def _other(value: Any, neutral: Any) -> Any:
    """None where it is the value that changes nothing."""
    return None if not isinstance(value, torch.Tensor) and value == neutral else value


def _lacks(**arguments: Any) -> None:
    """Refuses by name what has another value than none."""
    for name, value in arguments.items():
        if value is not None and value is not False and not (isinstance(value, int | float) and value == 0):
            raise NotImplementedError(f"{name}={value!r:.100} is not implemented; leave it out")


attention.torch_ops()
