"""torch.nn.functional.scaled_dot_product_attention, by its own signature and rules."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import checks as arguments
from ..attention_arguments import MOST_FEATURES
from . import checks, mode
from .attention import attention

_Shape = tuple[int, ...]


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention` by this library's kernels, same arguments and rules.

    Args:
        query, key, value: (..., heads, length, features), of 2 dimensions or more; what lies before length
            broadcasts.
        attn_mask: bool, True takes part, or floating point, added to the scores; broadcastable to (...,
            queries, keys).
        dropout_p: probability by which a weight is dropped, whatever the mode of a module. Which ones follows
            from a seed drawn from PyTorch's generator; they are not those that PyTorch drops.
        is_causal: query i sees the keys up to i (not up to i + keys - queries).
        scale: default 1/sqrt(features).
        enable_gqa: key and value may have fewer heads, a divisor of query's.

    Returns: (..., queries, features of value), laid out in memory as query is. A query that sees nothing gets
        0, as PyTorch's own gives, and passes no gradient on.

    Raises: RuntimeError where shapes, formats or devices do not fit together, and for attn_mask together with
        is_causal, as PyTorch documents it; NotImplementedError, with the reason, for what `unserved` names.

    Derivatives, memory and cost: those of `attention`. Dimensions that broadcast are not copied in calls of
    up to 4 dimensions.
    """
    is_causal, enable_gqa = arguments.flag(is_causal, "is_causal"), arguments.flag(enable_gqa, "enable_gqa")
    _together(query, key, value, attn_mask, dropout_p, is_causal)
    reason = unserved(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is not None:
        raise NotImplementedError(f"scaled_dot_product_attention: {reason}")
    shape = None
    if not _direct(query, key, value, attn_mask, enable_gqa):
        query, key, value, attn_mask, shape = _broadcast(query, key, value, attn_mask, enable_gqa)
    mask = bias = None
    if attn_mask is not None:
        mask, bias = (attn_mask, None) if attn_mask.dtype is torch.bool else (None, attn_mask)
    found: torch.Tensor = attention(
        query, key, value, mask=mask, bias=bias, dropout_p=0.0 if dropout_p == 1 else dropout_p,
        causal=is_causal, causal_align="upper_left", scale=scale,
    )  # fmt: skip
    if dropout_p == 1:
        found = found.masked_fill(torch.ones((), dtype=torch.bool, device=found.device), 0)
    return found if shape is None else found.reshape(*shape, *found.shape[-2:])


def unserved(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: Any = False,
    scale: float | None = None, enable_gqa: Any = False,
) -> str | None:  # fmt: skip
    """Why `scaled_dot_product_attention` does not serve a call that PyTorch may serve; None where it does.

    Not served: nested and sparse tensors; tensors that lie neither in CPU memory nor on "meta"; formats other
    than float64, float32, float16 and bfloat16, and several of them in one call unless autocast is on;
    attn_mask and is_causal together; more than 1024 features a head.
    """
    for name, t in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if t is None and name == "attn_mask":
            continue
        if not isinstance(t, torch.Tensor):
            return f"{name} is a {type(t).__name__} and not a tensor"
        if t.layout is not torch.strided or t.is_nested:
            return f"{name} is {'nested' if t.is_nested else t.layout} and not dense"
        if not t.is_cpu and not t.is_meta:
            return f"{name} lies on {t.device}, for which there is no kernel"
        if t.dtype not in checks.SERVED and not (name == "attn_mask" and t.dtype is torch.bool):
            return f"{name} is {str(t.dtype).removeprefix('torch.')}, which is not served"
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            return f"{name} is a {type(flag).__name__}"
    if attn_mask is not None and is_causal:
        return "attn_mask and is_causal are both given"
    if not query.dtype == key.dtype == value.dtype and not mode.autocast(query.device.type):
        return f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}"
    if query.ndim and value.ndim and (query.shape[-1] > MOST_FEATURES or value.shape[-1] > MOST_FEATURES):
        return f"a head has more than {MOST_FEATURES} features"
    return None


def _together(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any) -> None:
    """Refuses, by RuntimeError, what PyTorch refuses; TypeError for what is no tensor."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, torch.Tensor):
            checks.any_tensor(t, name)
        if t.ndim < 2:
            raise RuntimeError(
                f"{name} has {t.ndim} dimensions: 2 or more, (..., length, features), would do"
            )
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        checks.any_tensor(attn_mask, "attn_mask")
    checks.same_device(query=query, key=key, value=value, attn_mask=attn_mask)
    if not query.dtype == key.dtype == value.dtype and not mode.autocast(query.device.type):
        raise RuntimeError(
            f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}: one format would do"
        )
    if attn_mask is not None:
        casts = mode.autocast(query.device.type)
        if not casts and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            would = f"torch.bool, torch.float32 or query's, {query.dtype}, would do"
            raise RuntimeError(f"attn_mask is {attn_mask.dtype}: {would}")
        if is_causal:
            raise RuntimeError(
                "attn_mask is given and is_causal is True: one would do, a mask with the triangle in it"
            )
    if not isinstance(dropout_p, (int, float, torch.SymFloat)):
        raise TypeError(f"dropout_p is {dropout_p!r}: a number would do")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"dropout_p is {dropout_p}: a probability from 0 to 1 would do")
    if key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise RuntimeError(
            f"query, key and value have shapes {tuple(query.shape)}, {tuple(key.shape)} and "
            f"{tuple(value.shape)}: as many features in key as in query, as many values as keys would do"
        )


def _direct(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, gqa: bool) -> bool:
    """Whether a call needs no broadcasting but that of the mask."""
    rank = q.ndim
    if not rank == k.ndim == v.ndim <= 4:
        return False
    if rank > 2:
        if k.shape[:-2] != v.shape[:-2] or (rank == 4 and q.shape[0] != k.shape[0]):
            return False
        heads, groups = q.shape[-3], k.shape[-3]
        if heads != groups and not (heads and (groups == 1 or (gqa and groups and heads % groups == 0))):
            return False
    if mask is None:
        return True
    scores = (*q.shape[:-1], k.shape[-2])
    return mask.ndim <= rank and all(
        n in (1, m) for n, m in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def _broadcast(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, gqa: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, _Shape]:
    """q, k, v and mask of 4 dimensions, and what the output has before its last two."""
    shapes = [tuple(t.shape[:-2]) or (1,) for t in (q, k, v)]
    batch = _common((s[:-1] for s in shapes), q, k, v)
    groups = _common(((shapes[1][-1],), (shapes[2][-1],)), q, k, v)[0]
    heads = shapes[0][-1]
    if not (gqa and groups and heads % groups == 0):
        heads = _common(((heads,), (groups,)), q, k, v)[0]
    plain = q.ndim == k.ndim == v.ndim == 2
    q, k, v = (
        t.expand(*batch, n, *t.shape[-2:]).reshape(math.prod(batch), n, *t.shape[-2:])
        for t, n in ((q, heads), (k, groups), (v, groups))
    )
    if mask is not None:
        mask = _mask(mask, (*batch, heads, q.shape[-2], k.shape[-2]))
    return q, k, v, mask, () if plain else (*batch, heads)


def _mask(mask: torch.Tensor, scores: _Shape) -> torch.Tensor:
    """A mask of 4 dimensions, those before the heads in one. What is repeated stays so where it can."""
    if mask.ndim > len(scores) or any(
        n not in (1, m) for n, m in zip(reversed(mask.shape), reversed(scores), strict=False)
    ):
        would = f"one that broadcasts to {scores}, (..., queries, keys), would do"
        raise RuntimeError(f"attn_mask has shape {tuple(mask.shape)}: {would}")
    mask = mask.reshape((1,) * (max(len(scores), 4) - mask.ndim) + tuple(mask.shape))
    before, after = tuple(mask.shape[:-3]), mask.shape[-3:]
    if all(n == 1 for n in before):
        return mask.reshape(1, *after)
    return mask.expand(*scores[:-3], *after).reshape(math.prod(scores[:-3]), *after)


def _common(shapes: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _Shape:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        raise RuntimeError(
            f"query, key and value have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}: "
            f"dimensions before length that broadcast, or with enable_gqa a multiple of key's and value's "
            f"heads, would do"
        ) from error
