"""The way of plain calls from tensors to the native core, without NumPy arrays between: q, k and v of one
format, with a mask or bias or without, and none of the rarer options. Whatever else there is goes by
`attention_kernels`, which is also where what does not fit together is refused."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from ... import cpu_attention
from . import memory, mode
from .attention_options import Rest, wide

_DTYPES: Final = {t: memory.NUMPY[t] for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
#: Scales and softcaps past these have rules of their own.
_MOST: Final = 1e18


def serves(q: Any, k: Any, v: Any, bias: Any, sinks: Any, rest: Rest) -> bool:
    """Whether the call is plain, and its shapes fit together."""
    if not (
        sinks is rest.slopes is rest.seed is rest.seqlens_k is rest.cu_seqlens_q is rest.cu_seqlens_k is None
        and rest.origin is None
    ):
        return False
    if not (q.ndim == k.ndim == v.ndim == 4 and q.dtype is k.dtype is v.dtype and q.dtype in _DTYPES):
        return False
    (batch, heads, queries, d), (_, groups, keys, _) = q.shape, k.shape
    if not (batch and heads and queries and groups and keys and heads % groups == 0):
        return False
    dv = v.shape[3]
    if k.shape != (batch, groups, keys, d) or v.shape != (batch, groups, keys, dv) or max(d, dv) > 1024:
        return False
    if (rest.scale is not None and not abs(rest.scale) < _MOST) or not 0 <= rest.softcap < _MOST:
        return False
    if bias is not None and (
        bias.dtype is not wide(q) or not _broadcasts(bias, (batch, heads, queries, keys))
    ):
        return False
    mask = rest.mask
    if mask is not None and not (
        mask.dtype is torch.bool and _broadcasts(mask, (batch, heads, queries, keys))
    ):
        return False
    return not any(t is not None and (t.is_neg() or t.data_ptr() % t.itemsize) for t in (q, k, v, bias, mask))


def _broadcasts(t: torch.Tensor, shape: tuple[int, ...]) -> bool:
    return t.ndim <= 4 and all(n in (1, m) for n, m in zip(reversed(t.shape), reversed(shape), strict=False))


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, rest: Rest,
    output: torch.Tensor, lse: torch.Tensor,
) -> None:  # fmt: skip
    arrays = _operands(q, k, v, bias, rest)
    arrays["o"], arrays["lse"] = _array(output), _array(lse)
    _described(q, k, v, rest, arrays).forward(False, lse.dtype is torch.float32)


def backward(
    do: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    bias: torch.Tensor | None, rest: Rest, output: torch.Tensor, lse: torch.Tensor,
    gradients: list[torch.Tensor],
) -> None:  # fmt: skip
    if do.shape != output.shape or lse.shape != q.shape[:-1] or output.shape[3] != v.shape[3]:
        raise ValueError(
            f"d_output, output and lse have shapes {tuple(do.shape)}, {tuple(output.shape)} and "
            f"{tuple(lse.shape)}: those of the results of attention would do"
        )
    arrays = _operands(q, k, v, bias, rest)
    do, output, lse = do.to(q.dtype).resolve_neg(), output.to(q.dtype), lse.to(wide(q))
    arrays |= {"d_out": _array(do), "o": _array(output), "lse": _array(lse)}
    if dlse is not None:
        dlse = dlse.to(torch.float64).resolve_neg()
        arrays["d_lse"] = _array(dlse)
    for name, t in zip(("q_grad", "k_grad", "v_grad"), gradients, strict=True):
        arrays[name] = _array(t)
    _described(q, k, v, rest, arrays).backward(lse.dtype is torch.float32, False)


def _operands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, rest: Rest
) -> dict[str, tuple[int, list[int]]]:
    arrays = {"q": _array(q), "k": _array(k), "v": _array(v)}
    for name, t in (("mask", rest.mask), ("bias", bias)):
        if t is not None:
            arrays[name] = _array(t, repeated=True)
    return arrays


def _array(t: torch.Tensor, *, repeated: bool = False) -> tuple[int, list[int]]:
    """Address and strides in bytes; 0 along an axis that is `repeated` from 1, of four."""
    size = t.itemsize
    if not repeated:
        return t.data_ptr(), [size * s for s in t.stride()]
    strides = [0 if n == 1 else size * s for n, s in zip(t.shape, t.stride(), strict=True)]
    return t.data_ptr(), [0] * (4 - t.ndim) + strides


def _described(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rest: Rest, arrays: Any) -> Any:
    (batch, heads, queries, d), (_, groups, keys, dv) = q.shape, v.shape
    scale = 1 / math.sqrt(max(d, 1)) if rest.scale is None else rest.scale
    return cpu_attention.dense(
        _DTYPES[q.dtype], (batch, heads, groups, queries, keys, d, dv), arrays, scale=scale,
        softcap=rest.softcap, lower_right=rest.lower_right, window=(rest.left, rest.right),
        threads=mode.threads(),
    )  # fmt: skip
