"""Attention of NumPy arrays: documents, checks, routes."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from .. import cpu
from . import checks

Array = checks.Array
LAYOUTS: Final = ("BHSD", "BSHD")
ALIGNMENTS: Final = ("lower_right", "upper_left")
#: Features of a head at most.
MOST_FEATURES: Final = 1024


class Attention(NamedTuple):
    """An attention output with its log-sum-exps."""

    output: Array
    lse: Array


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: str = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, return_lse: Any = False, layout: str = "BHSD", isa: str | None = None,
    threads: int | None = None,
) -> Any:  # fmt: skip
    """softmax(scale * q k^T) v, a chunk of keys at a time: the matrix of scores is never there.

    A score goes through scale, softcap, bias, slopes and mask, in this order; statistics and sums are in
    float32 for operands of up to 32 bits, in float64 for float64.

    Args:
        q: (batch, heads, queries, d), or without batch, or without batch and heads.
        k, v: (batch, key heads, keys, d) and (batch, key heads, keys, d of the output), in q's format. A
            multiple of key heads are query heads: head h of q uses head h // (heads // key heads).
        mask: bool, broadcastable to (batch, heads, queries, keys): True takes part. Where it is False neither
            key nor value is read into arithmetic.
        bias: real, broadcastable likewise, added to the scores; -inf is a mask.
        scale: default 1/sqrt(d).
        causal: query i sees the keys up to i + keys - queries, or up to i with causal_align="upper_left".
        window: (left, right): the keys at most so far from the query's own place; None for no limit.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: (heads,) logits with a value of 0, which take their share of the sum.
        alibi_slopes: (heads,) or (batch, heads): slope * distance is subtracted from the scores.
        return_lse: with the log-sum-exps of the scores, q's shape without features, float32 (float64 for
            float64), sinks included.
        layout: "BSHD" for (batch, length, heads, d) in all of q, k, v, output and lse.

    Returns: the output, in q's format, or Attention(output, lse). A query that sees nothing gets 0, with an
    lse of -inf (of its sink, where there is one).

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: 2 * queries * keys * (d + d of the output) flops a head, less what lies outside mask blocks, causal
    triangle and window; scratch of some 2 MiB a thread.
    """
    arrays = {name: checks.array(value, name) for name, value in (("q", q), ("k", k), ("v", v))}
    result = _formats(arrays)
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}: one of {', '.join(LAYOUTS)} would do")
    compute = checks.compute_dtype(result)
    rank = arrays["q"].ndim
    four = {name: _four(checks.cast(a, compute), name, layout, rank) for name, a in arrays.items()}
    sizes = _sizes(**four)
    scores = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    wide = cpu.state_dtype(compute)
    shape = _shape(layout, rank, sizes)
    output = cpu.empty(shape, compute)
    lse = np.empty(scores[:3], wide)
    cpu.attention(
        **four, out=_four(output, "out", layout, rank), lse=lse,
        mask=_mask(mask, scores, rank), bias=_bias(bias, scores, rank, wide),
        scale=_scale(scale, sizes.d), softcap=_softcap(softcap),
        band=_band(causal, causal_align, window, sizes),
        sinks=_heads(sinks, "sinks", sizes), slopes=_heads(alibi_slopes, "alibi_slopes", sizes, batched=True),
        isa=isa, threads=threads,
    )  # fmt: skip
    output = checks.cast(output, result)
    if not checks.flag(return_lse, "return_lse"):
        return output
    if layout == "BSHD" and rank > 2:
        lse = np.moveaxis(lse, 1, 2)
    return Attention(output, lse.reshape(shape[:-1]))


class _Sizes(NamedTuple):
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    d: int
    dv: int


def _formats(arrays: dict[str, Array]) -> np.dtype[Any]:
    """The one format of all operands. Integers count as float64."""
    found = {name: checks.result_dtype(array.dtype, None) for name, array in arrays.items()}
    for name in ("k", "v"):
        if found[name] != found["q"]:
            raise TypeError(f"{name} is {found[name]} and q is {found['q']}: one format for all would do")
    return found["q"]


def _four(array: Array, name: str, layout: str, rank: int) -> Array:
    """(batch, heads, length, features), a view."""
    if array.ndim != rank or not 2 <= rank <= 4:
        would = f"{rank} like q" if 2 <= rank <= 4 else "2, 3 or 4"
        raise ValueError(f"{name} has {array.ndim} dimensions: {would} would do")
    if rank == 2:
        return array[None, None]
    if layout == "BSHD":
        array = np.moveaxis(array, -2, -3)
    return array[None] if rank == 3 else array


def _shape(layout: str, rank: int, sizes: _Sizes) -> tuple[int, ...]:
    whole = (sizes.batch, sizes.heads, sizes.queries, sizes.dv)
    if layout == "BSHD" and rank > 2:
        whole = (sizes.batch, sizes.queries, sizes.heads, sizes.dv)
    return whole[4 - rank :]


def _sizes(q: Array, k: Array, v: Array) -> _Sizes:
    (batch, heads, queries, d), (batch_k, groups, keys, d_k), (batch_v, groups_v, keys_v, dv) = (
        q.shape,
        k.shape,
        v.shape,
    )
    if batch_k != batch or batch_v != batch:
        raise ValueError(f"q, k and v have batches of {batch}, {batch_k} and {batch_v}: the same would do")
    if d_k != d:
        raise ValueError(f"k has {d_k} features and q {d}: the same number would do")
    if keys_v != keys:
        raise ValueError(f"v has {keys_v} values for {keys} keys: one value a key would do")
    if groups_v != groups:
        raise ValueError(f"v has {groups_v} heads and k {groups}: the same number would do")
    if groups == 0 if heads else groups:
        raise ValueError(f"k has {groups} heads for {heads} of q: a divisor of {heads} would do")
    if groups and heads % groups:
        raise ValueError(f"q has {heads} heads and k {groups}: a multiple of {groups} would do")
    for name, size in (("q", d), ("v", dv)):
        if size > MOST_FEATURES:
            raise ValueError(f"{name} has {size} features a head: up to {MOST_FEATURES} would do")
    return _Sizes(batch, heads, groups, queries, keys, d, dv)


def _broadcast(array: Array, name: str, shape: tuple[int, ...], rank: int) -> Array:
    """A view of `shape` (batch, heads, queries, keys), of which the caller knows the last `rank`."""
    if array.ndim > rank:
        raise ValueError(f"{name} has {array.ndim} dimensions: up to {rank} would do")
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ValueError(
            f"{name} of shape {array.shape} does not broadcast to {shape[4 - rank :]}, what scores there are"
        ) from error


def _mask(mask: Any, shape: tuple[int, ...], rank: int) -> Array | None:
    if mask is None:
        return None
    given = np.asarray(mask)
    if given.dtype != np.bool_:
        raise TypeError(f"mask is {given.dtype}: bool would do, True takes part; scores to add go into bias")
    return _broadcast(given, "mask", shape, rank)


def _bias(bias: Any, shape: tuple[int, ...], rank: int, wide: np.dtype[Any]) -> Array | None:
    if bias is None:
        return None
    return _broadcast(checks.cast(checks.array(bias, "bias"), wide), "bias", shape, rank)


def _number(value: Any, name: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}: a number would do")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}: a finite number would do")
    return float(value)


def _scale(scale: Any, d: int) -> float:
    return 1 / math.sqrt(max(d, 1)) if scale is None else _number(scale, "scale")


def _softcap(softcap: Any) -> float:
    """0 for none."""
    if softcap is None:
        return 0.0
    cap = _number(softcap, "softcap")
    if cap <= 0:
        raise ValueError(f"softcap is {softcap}: a positive number would do, None for no cap")
    return cap


def _band(causal: Any, align: Any, window: Any, sizes: _Sizes) -> tuple[int, int, int]:
    """(place of query 0 among the keys, keys seen to the left of a query's place, to the right); -1: all."""
    if not isinstance(align, str) or align not in ALIGNMENTS:
        raise ValueError(f"causal_align is {align!r}: one of {', '.join(ALIGNMENTS)} would do")
    left, right = _window(window)
    if checks.flag(causal, "causal"):
        right = 0
    return (sizes.keys - sizes.queries if align == "lower_right" else 0), left, right


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    would = "a pair (left, right) of distances would do, None for no limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}: {would}")
    sides = []
    for side in window:
        if side is not None and (isinstance(side, bool) or not isinstance(side, (int, np.integer))):
            raise TypeError(f"window is {window!r}: {would}")
        if side is not None and side < 0:
            raise ValueError(f"window is {window!r}: distances are at least 0")
        sides.append(-1 if side is None else min(int(side), 1 << 62))
    return sides[0], sides[1]


def _heads(values: Any, name: str, sizes: _Sizes, *, batched: bool = False) -> Array | None:
    """A float64 number for each head, (heads,), or where `batched` (batch, heads), C-contiguous."""
    if values is None:
        return None
    given = checks.array(values, name)
    shape = (sizes.batch, sizes.heads) if batched else (sizes.heads,)
    if given.shape not in {(sizes.heads,), shape}:
        would = f"({sizes.heads},) or {shape}" if batched else f"({sizes.heads},)"
        raise ValueError(f"{name} has shape {given.shape}: {would} would do")
    return np.ascontiguousarray(np.broadcast_to(given, shape), dtype=np.float64)
