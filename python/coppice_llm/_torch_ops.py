"""torch.ops.coppice: the operators of coppice_llm.attention as torch.compile sees them. Layer: above attention.py, which imports it with
the first tensor of torch. Inference only: no operator has a backward pass."""

from __future__ import annotations

from typing import Any

import torch

from . import _native, attention

# Lives as long as the operators.
_library: Any = torch.library.Library("coppice", "DEF")  # type: ignore[no-untyped-call]
_library.define("run(Tensor q, Tensor k, Tensor v, int plan, bool heads_first=False) -> (Tensor, Tensor)")
_library.define("merge_states(Tensor[] outs, Tensor[] lses, int device) -> (Tensor, Tensor)")
_library.define("append_kv(Tensor(a!) k_pool, Tensor(b!) v_pool, Tensor k, Tensor v, Tensor slots, int device, bool heads_first=False) -> ()")
ops = torch.ops.coppice


def _object(name: str, handle: int, kind: type) -> Any:
    found = attention._by_handle.get(handle)
    if not isinstance(found, kind):
        raise ValueError(f"{name}={handle} is the handle of no {kind.__name__} that is alive")
    return found


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: int, heads_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    planned = _object("plan", plan, attention.Plan)
    # The pool that is bound here may be one that torch.compile copied; the caller's own need not be what arrives.
    pool = attention.KvPool(planned.device, k.detach(), v.detach(), "HND" if heads_first else "NHD")
    return attention.run(q.detach(), pool, planned)


def _run_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: int, heads_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


def _merge_states(outs: list[torch.Tensor], lses: list[torch.Tensor], device: int) -> tuple[torch.Tensor, torch.Tensor]:
    states = [(out.detach().contiguous(), lse.detach().contiguous()) for out, lse in zip(outs, lses, strict=True)]
    return attention.merge_states(_object("device", device, attention.Device), states)


def _merge_states_fake(outs: list[torch.Tensor], lses: list[torch.Tensor], device: int) -> tuple[torch.Tensor, torch.Tensor]:
    return outs[0].new_empty(outs[0].shape), lses[0].new_empty(lses[0].shape)


def _append_kv(k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, device: int,
               heads_first: bool = False) -> None:
    pool = attention.KvPool(_object("device", device, attention.Device), k_pool.detach(), v_pool.detach(), "HND" if heads_first else "NHD")
    pool.append(k.detach(), v.detach(), slots.detach().to(torch.int64).contiguous())


def _append_kv_fake(*_: object) -> None:
    return None


for _name, _kernel, _fake in (("run", _run, _run_fake), ("merge_states", _merge_states, _merge_states_fake),
                              ("append_kv", _append_kv, _append_kv_fake)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
    torch.library.register_fake(f"coppice::{_name}", _fake, lib=_library)
