"""The CPU kernels of attention's operations: tensors (batch, heads, length, features) as NumPy views, the
native core on them, results in memory laid out like their operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import cpu, cpu_attention
from .. import attention as arrays
from .. import checks, exact_attention
from ..attention_call import Call, Options, described
from . import attention_direct as plain
from . import memory, mode
from .attention_direct import like
from .attention_options import Rest, split, wide

Array = memory.Array


def options(bias: torch.Tensor | None, sinks: torch.Tensor | None, rest: Rest) -> Options:
    """Of sequences side by side, mask and bias lose the batch that they may have."""
    packed = rest.cu_seqlens_q is not None
    mask, added = (
        a[0] if packed and a is not None and a.ndim == 4 else a
        for a in (memory.optional(rest.mask), memory.optional(bias))
    )
    window = tuple(None if side < 0 else side for side in (rest.left, rest.right))
    return Options(
        mask=mask,
        bias=added,
        scale=rest.scale,
        causal_align="lower_right" if rest.lower_right else "upper_left",
        window=None if window == (None, None) else window,
        softcap=rest.softcap or None,
        sinks=memory.optional(sinks),
        alibi_slopes=memory.optional(rest.slopes),
        dropout_p=rest.dropout_p,
        seed=0 if rest.seed is None else number(rest.seed),
        cu_seqlens_q=memory.optional(rest.cu_seqlens_q),
        cu_seqlens_k=memory.optional(rest.cu_seqlens_k),
        seqlens_k=memory.optional(rest.seqlens_k),
        origin=rest.origin,
    )


def number(seed: torch.Tensor) -> int:
    """The 64 bits of a seed, as a number from 0 on."""
    return int(seed.item()) & ((1 << 64) - 1)


def rows(t: torch.Tensor, packed: bool) -> Array:
    """As the array face takes it: (total, heads, features) of sequences side by side."""
    a = memory.array(t)
    return np.moveaxis(a[0], 0, 1) if packed else a


def _call(q: Any, k: Any, v: Any, bias: Any, sinks: Any, rest: Rest) -> Call:
    packed = rest.cu_seqlens_q is not None
    return described(rows(q, packed), rows(k, packed), rows(v, packed), options(bias, sinks, rest))


def forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (q, k, v, bias, sinks), rest = split(args)
    numbers = plain.numbers_of(rest, sinks)
    made = None if numbers is None else plain.forward(q, k, v, bias, rest.mask, numbers)
    if made is not None:
        return made
    return attended(_call(q, k, v, bias, sinks, rest), q, v.shape[3])


def forward_any(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (q, k, v, bias, sinks), rest = split(args)
    return attended(_call(q, k, v, bias, sinks, rest), q, v.shape[3], any_order=True)


def attended(
    call: Call, q: torch.Tensor, features: int, *, any_order: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the lse of a checked call."""
    if any_order:
        exact_attention.check(call, None)
    output = like(q, features)
    lse = torch.empty(q.shape[:-1], dtype=wide(q))
    o, m = memory.array(output), memory.array(lse)
    if call.side_by_side:
        o[:, :, call.ends :], m[:, :, call.ends :] = 0, -np.inf
    elif call.problem.empty:
        o[...], m[...] = 0, -np.inf
    if call.problem.q.dtype == o.dtype:
        cpu_attention.forward(call.problem, o, m, any_order=any_order, threads=mode.threads())
        return output, lse
    computed = np.zeros(o.shape, call.problem.q.dtype)
    cpu_attention.forward(call.problem, computed, m, any_order=any_order, threads=mode.threads())
    o[...] = checks.cast(computed, o.dtype)
    return output, lse


def stored(*args: Any, any_order: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    (q, k, v, bias, sinks, block_table, k_scale, v_scale), rest = split(args)
    packed = rest.cu_seqlens_q is not None
    chosen = replace(
        options(bias, sinks, rest),
        block_table=memory.optional(block_table),
        k_scale=memory.optional(k_scale),
        v_scale=memory.optional(v_scale),
    )
    keys, values = (rows(t, packed and block_table is None) for t in (k, v))
    call = described(rows(q, packed), keys, values, chosen)
    return attended(call, q, v.shape[3], any_order=any_order)


def stored_any(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return stored(*args, any_order=True)


def keep(
    seed: torch.Tensor, batch: int, heads: int, queries: int, keys: int, cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None, dropout_p: float, origin: list[int] | None,
) -> torch.Tensor:  # fmt: skip
    """Which weights stay: bool (batch, heads, queries, keys), False between sequences."""
    b, h, q0, k0 = origin or (0, 0, 0, 0)
    made = np.zeros((batch, heads, queries, keys), np.bool_)
    if cu_seqlens_q is None or cu_seqlens_k is None:
        made = cpu_attention.keep(dropout_p, number(seed), made.shape, (b, h, q0, k0))
        return torch.from_numpy(made)
    starts, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for i in range(len(starts) - 1):
        q, k = slice(*starts[i : i + 2]), slice(*ends[i : i + 2])
        shape = (1, heads, q.stop - q.start, k.stop - k.start)
        at = (b + i, h, q0, k0)
        made[:, :, q, k] = cpu_attention.keep(dropout_p, number(seed), shape, at)
    return torch.from_numpy(made)


def backward(*args: Any) -> tuple[torch.Tensor, ...]:
    (do, dlse, q, k, v, bias, sinks, output, lse, bias_grad), rest = split(args)
    numbers = None if bias_grad else plain.numbers_of(rest, sinks)
    if numbers is not None:
        found = plain.backward(do, dlse, q, k, v, bias, rest.mask, output, lse, numbers)
        if found is not None:
            return (*found, or_nothing(None, q), or_nothing(None, q))
    call = _call(q, k, v, bias, sinks, rest)
    problem = call.problem
    given = {
        "d_out": memory.array(do if do.dtype == q.dtype else do.to(q.dtype)),
        "o": memory.array(output),
        "lse": memory.array(lse),
    }
    if dlse is not None:
        given["d_lse"] = memory.array(dlse.to(torch.float64))
    gradients = [like(t, t.shape[3]) for t in (q, k, v)]
    made = {f"{name}_grad": memory.array(t) for name, t in zip(("q", "k", "v"), gradients, strict=True)}
    if call.side_by_side or rest.seqlens_k is not None:  # rows of no sequence are not written
        for a in made.values():
            a[...] = 0
    made["delta"] = np.zeros(lse.shape)
    of_bias = None
    if bias_grad:
        shape = options(bias, None, rest).bias.shape
        of_bias = made["bias_grad"] = arrays.bias_room(call, shape, cpu.state_dtype(problem.q.dtype))
    cpu_attention.backward(problem, given, made, threads=mode.threads())
    d_bias = d_sinks = None
    if of_bias is not None:
        d_bias = torch.from_numpy(of_bias).to(bias.dtype).reshape(bias.shape)
    if problem.sinks is not None:
        d_sinks = torch.from_numpy(arrays.sinks_gradient(problem.sinks, given["lse"], made["delta"]))
        d_sinks = d_sinks.to(sinks.dtype)
    return (*gradients, or_nothing(d_bias, q), or_nothing(d_sinks, q))


def or_nothing(t: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    """An operation cannot return None: a tensor without elements stands for it."""
    return torch.empty(0, dtype=q.dtype) if t is None else t
