"""Attention, one query after the other: the keys that take part, their scores, a softmax, a sum of values.

Operands are (batch, heads, length, features), or without batch, or without batch and heads. Head h of q uses
head h // (HQ / HK) of k and v, whose features may differ from q's and k's. A score is made in this order:

    scale * (q . k)  ->  softcap * tanh(score / softcap)  ->  + bias  ->  mask

and its softmax is over the keys that take part. A key takes part where `mask` is True (it and all that
follows combine), where it lies in the causal triangle and in the window, and where bias is not -inf; neither
it nor its value is read elsewhere. With the diagonal d = i + Lk - Lq (`causal_align="lower_right"`) or d = i
("upper_left") for query i, causal keeps the keys j <= d, and window=(left, right) those with d - left <= j <=
d + right, None unlimited.

A score that comes out as -inf takes no part either. A query with no key left has output 0 and lse -inf, and
no gradient; NaN or +inf among its scores make its output NaN (its lse is NaN, or +inf).

sinks (HQ,): a further logit of each query head, with a value of 0: it takes its share of the sum and is in
the lse. So a query without keys has lse = sink. alibi_slopes (HQ,) or (B, HQ): -slope * abs(d - j) is added
to the bias. dropout_p and keep: after the softmax, where the bool keep is False a weight is 0 and its value
not read, and the others are divided by 1 - dropout_p; the lse does not see it. mask, bias and keep broadcast
to q's shape with the length of k in place of the features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .wide import (
    Array,
    Wide,
    as_wide,
    broadcast,
    log_sums,
    mask_of,
    narrow,
    number,
    one_of,
    probabilities,
    real,
    summed_to,
)


class AttentionGradients(NamedTuple):
    """Gradients of `attention`, float64 and of the shapes of their operands."""

    q: Array
    k: Array
    v: Array
    #: None where no bias was given.
    bias: Array | None
    #: None where no sinks were given.
    sinks: Array | None


class _Call(NamedTuple):
    """The operands with all four dimensions, wide, and the options made into arrays."""

    q: Array
    k: Array
    v: Array
    scale: np.longdouble
    softcap: np.longdouble | None
    #: bias and alibi, (B, HQ, Lq, Lk)
    added: Array
    #: bool, (B, HQ, Lq, Lk)
    takes_part: Array
    #: (HQ,), -inf where there are none
    sinks: Array
    #: What a weight is multiplied by after the softmax, (B, HQ, Lq, Lk): 0 where dropped
    factor: Array
    #: q's shape as given, without its features
    shape: tuple[int, ...]


class _Row(NamedTuple):
    """What one query sees."""

    #: Index of the head of k and v.
    head: int
    #: Places of the keys that are left.
    keys: Array
    #: Derivative of their scores by scale * (q . k).
    slope: Array
    #: Their share, and that of the sink.
    weights: Array
    sink: Any
    lse: Any


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    causal: bool = False,
    causal_align: str = "lower_right",
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout_p: float = 0.0,
    keep: ArrayLike | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scores) @ v: float64, q's shape with v's features; with `return_lse` the pair (output, lse),
    lse the natural log of the sum of exp of the final scores, of q's shape without its features.

    scale is 1/sqrt(features) unless given. See the text of this file for the options. Raises TypeError for
    operands and masks of a wrong dtype, ValueError for shapes that do not fit (batches, features, lengths of
    k and v, heads that do not divide), options out of range and dropout without `keep`. Cost: a loop of
    Python over the queries, and up to 33 bytes a score: made for hundreds of queries, not for thousands.
    """
    call = _prepare(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        causal=causal,
        causal_align=causal_align,
        window=window,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        keep=keep,
    )
    output = np.zeros((*call.q.shape[:-1], call.v.shape[-1]), Wide)
    lse = np.empty(call.q.shape[:-1], Wide)
    with np.errstate(all="ignore"):
        for place in np.ndindex(lse.shape):
            row = _row(call, place)
            factor = call.factor[place][row.keys]
            left = factor != 0
            values = call.v[place[0], row.head, row.keys[left]]
            output[place] = (row.weights * factor)[left] @ values
            lse[place] = row.lse
    result = narrow(output).reshape(*call.shape, call.v.shape[-1])
    return (result, narrow(lse).reshape(call.shape)[()]) if return_lse else result


def attention_vjp(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    **options: Any,
) -> AttentionGradients:
    """The gradients of `attention` with respect to q, k, v, bias and sinks.

    do has the output's shape, dlse (None for 0) the lse's, or they broadcast to it. With p the weights and dp
    = (do . v) * keep / (1 - dropout_p), a final score has the gradient p * (dp - sum(p * dp) + dlse). The
    other options and the errors are those of `attention`; do of a query with no key left is not read.
    """
    wide = wide_gradients(q, k, v, do, dlse=dlse, bias=bias, sinks=sinks, **options)
    dq, dk, dv = (narrow(g) for g in wide[:3])
    d_bias, d_sinks = (None if g is None else narrow(g) for g in wide[3:])
    return AttentionGradients(dq, dk, dv, d_bias, d_sinks)


def wide_gradients(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    **options: Any,
) -> AttentionGradients:
    """`attention_vjp` before it is rounded to float64, to be summed further."""
    call = _prepare(q, k, v, bias=bias, sinks=sinks, **options)
    d_out = broadcast(as_wide(do, "do"), (*call.shape, call.v.shape[-1]), "do")
    d_out = d_out.reshape(*call.q.shape[:-1], call.v.shape[-1])
    d_lse = broadcast(as_wide(0.0 if dlse is None else dlse, "dlse"), call.shape, "dlse")
    d_lse = d_lse.reshape(call.q.shape[:-1])
    dq, dk, dv = (np.zeros_like(a) for a in (call.q, call.k, call.v))
    d_added, d_sinks = np.zeros(call.added.shape, Wide), np.zeros_like(call.sinks)
    with np.errstate(all="ignore"):
        for place in np.ndindex(d_lse.shape):
            row = _row(call, place)
            cell = (place[0], row.head)
            factor = call.factor[place][row.keys]
            left = factor != 0
            kept = row.keys[left]
            d_weight = np.zeros(len(row.keys), Wide)
            d_weight[left] = factor[left] * (call.v[cell][kept] @ d_out[place])
            mean = (row.weights * d_weight).sum() if len(row.keys) else Wide(0)
            d_score = row.weights * (d_weight - mean + d_lse[place])
            # The sink's value is 0: so is the gradient of its weight.
            d_sinks[place[1]] += row.sink * (d_lse[place] - mean) if row.sink != 0 else 0
            d_added[place][row.keys] = d_score
            d_raw = call.scale * d_score * row.slope
            dq[place] = d_raw @ call.k[cell][row.keys]
            dk[cell][row.keys] += d_raw[:, None] * call.q[place]
            dv[cell][kept] += (row.weights * factor)[left][:, None] * d_out[place]
    dq, dk, dv = (d.reshape(np.shape(a)) for d, a in ((dq, q), (dk, k), (dv, v)))
    d_bias = None
    if bias is not None:
        full = d_added.reshape(*call.shape, call.k.shape[-2])
        d_bias = summed_to(full, np.shape(bias))
    return AttentionGradients(dq, dk, dv, d_bias, None if sinks is None else d_sinks)


def _row(call: _Call, place: tuple[int, ...]) -> _Row:
    """The keys of the query at (batch, head, query) and their weights."""
    batch, query_head, _ = place
    head = query_head // (call.q.shape[1] // call.k.shape[1])
    keys = np.flatnonzero(call.takes_part[place])
    raw = call.scale * (call.k[batch, head, keys] @ call.q[place])
    if call.softcap is None:
        capped, slope = raw, np.ones_like(raw)
    else:
        capped, slope = call.softcap * np.tanh(raw / call.softcap), 1 / np.cosh(raw / call.softcap) ** 2
    scores = capped + call.added[place][keys]
    left = scores != -np.inf
    keys, scores, slope = keys[left], scores[left], slope[left]
    sink = call.sinks[query_head]
    # A sink of -inf has no share, and beside nothing else would make 0/0.
    terms = scores if sink == -np.inf else np.append(scores, sink)
    shares = probabilities(terms)
    share = shares[len(keys)] if len(terms) > len(keys) else Wide(0)
    return _Row(head, keys, slope, shares[: len(keys)], share, log_sums(terms))


def _prepare(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    causal: bool = False,
    causal_align: str = "lower_right",
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout_p: float = 0.0,
    keep: ArrayLike | None = None,
) -> _Call:
    """The call checked, and its options made into arrays."""
    arrays = _operands(q, k, v)
    shape = np.shape(q)[:-1]
    batch, heads, queries, features = arrays[0].shape
    length = arrays[1].shape[2]
    full, four = (*shape, length), (batch, heads, queries, length)
    factor = 1 / Wide(np.sqrt(Wide(features or 1))) if scale is None else number(scale, "scale")
    cap = None if softcap is None else number(softcap, "softcap")
    if cap is not None and cap <= 0:
        raise ValueError(f"softcap={softcap}: a positive number, or None for no cap, would do")
    one_of(causal_align, "causal_align", ("lower_right", "upper_left"))
    distance = np.arange(length) - np.arange(queries)[:, None]
    distance = distance - (length - queries if causal_align == "lower_right" else 0)
    added = broadcast(as_wide(0.0 if bias is None else bias, "bias"), full, "bias").reshape(four)
    takes_part = (mask_of(mask, full, "mask").reshape(four) & (added != -np.inf)) & _near(
        distance, causal, window
    )
    if alibi_slopes is not None:
        slopes = as_wide(alibi_slopes, "alibi_slopes")
        if slopes.shape not in ((heads,), (batch, heads)):
            would = f"{(heads,)} or {(batch, heads)} would do"
            raise ValueError(f"alibi_slopes has shape {slopes.shape}: {would}")
        added = added - slopes[..., None, None] * np.abs(distance)
    logits = as_wide(np.full(heads, -np.inf) if sinks is None else sinks, "sinks")
    if logits.shape != (heads,):
        raise ValueError(f"sinks has shape {logits.shape}: {(heads,)}, one for each head of q, would do")
    dropped = _dropout(dropout_p, keep, full).reshape(four)
    return _Call(*arrays, factor, cap, added, takes_part, logits, dropped, shape)


def _operands(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
    """q, k and v, wide and with all four dimensions."""
    given = [real(a, name) for a, name in ((q, "q"), (k, "k"), (v, "v"))]
    ndim = given[0].ndim
    if ndim not in (2, 3, 4):
        would = "(batch, heads, length, features), (heads, length, features) or (length, features) would do"
        raise ValueError(f"q has shape {given[0].shape}: {would}")
    for array, name in zip(given[1:], "kv", strict=True):
        if array.ndim != ndim:
            raise ValueError(f"{name} has shape {array.shape}: {ndim} dimensions, as q has, would do")
    shapes = [(1,) * (4 - ndim) + a.shape for a in given]
    wide_q, wide_k, wide_v = (as_wide(a, n).reshape(s) for a, n, s in zip(given, "qkv", shapes, strict=True))
    (batch, heads, _, features), (_, kv_heads, _, _) = shapes[:2]
    if shapes[1][0] != batch or shapes[1][3] != features:
        would = f"q's batch of {batch} and its {features} features would do"
        raise ValueError(f"k has shape {given[1].shape}: {would}")
    if shapes[2][:3] != shapes[1][:3]:
        would = f"k's batch, heads and length, {given[1].shape[:-1]}, and any features would do"
        raise ValueError(f"v has shape {given[2].shape}: {would}")
    if heads % kv_heads if kv_heads else heads:
        would = "as many heads as q has, or a divisor of that, would do"
        raise ValueError(f"k has {kv_heads} heads for {heads} of q: {would}")
    return wide_q, wide_k, wide_v


def _near(distance: Array, causal: bool, window: tuple[int | None, int | None] | None) -> Array:
    """Bool (Lq, Lk): the causal triangle and the window, by each key's distance to the diagonal."""
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal={causal!r}: True or False would do")
    near = distance <= 0 if causal else np.ones_like(distance, np.bool_)
    if window is None:
        return near
    if not (isinstance(window, tuple | list) and len(window) == 2):
        raise TypeError(f"window={window!r}: None or a pair (left, right) of numbers of keys would do")
    for size in window:
        if size is not None and not isinstance(size, int | np.integer):
            raise TypeError(f"window={window!r}: integers, or None for no limit, would do")
        if size is not None and size < 0:
            raise ValueError(f"window={window!r}: sizes from 0 on, or None for no limit, would do")
    left, right = window
    if left is not None:
        near = near & (distance >= -int(left))
    return near if right is None else near & (distance <= int(right))


def _dropout(dropout_p: float, keep: ArrayLike | None, full: tuple[int, ...]) -> Array:
    """What the weights are multiplied by: 0 where dropped, 1 / (1 - dropout_p) elsewhere."""
    p = number(dropout_p, "dropout_p")
    if not 0 <= p <= 1:
        raise ValueError(f"dropout_p={dropout_p}: 0 to 1 would do")
    if p and keep is None:
        raise ValueError(
            f"dropout_p={dropout_p} needs keep: the bool array of the weights that stay would do"
        )
    if keep is None:
        return np.broadcast_to(Wide(1), full)
    with np.errstate(all="ignore"):
        return np.where(mask_of(keep, full, "keep") & (p < 1), 1 / (1 - p), 0).astype(Wide)
