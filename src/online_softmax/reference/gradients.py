"""Gradients of the operations on rows and of the scans: what the gradient of a result does to the operands.

Masked elements have gradient 0 and neither they nor the result's gradient at them are read; so a row with
nothing left has gradient 0. What takes part follows the value: where softmax is NaN (a NaN, a +inf, or all
-inf) the gradients of softmax and log_softmax are NaN, and so is that of logsumexp, but for a row that is all
-inf: the log of nothing, a natural zero of recursions, has gradient 0 (not NaN, and not 1/n). An element of
-inf beside others has probability 0; the rest is plain arithmetic, in which 0 times an infinite gradient of
the result is NaN.

Differences near a probability of 1 are taken as the share of the others, so that nothing cancels there.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike

from .rows import softmax_topk
from .scans import both
from .wide import (
    Array,
    Axis,
    as_rows,
    as_wide,
    axes_of,
    broadcast,
    complements,
    kept_shape,
    mask_of,
    maximum,
    narrow,
    others,
    probabilities,
    real,
    rows_of,
    summed_to,
)


def softmax_vjp(x: ArrayLike, dy: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """y * (dy - sum(y * dy)) over `axis`, y = softmax(x): float64, x's shape. dy broadcasts to x's shape.

    A dy that is the same all over a row gives exactly 0. Raises as `softmax`, and ValueError where dy does
    not broadcast.
    """
    rows, keep, back = rows_of(x, axis, where)
    if not rows.shape[-1]:
        return back(rows)
    g = _upstream(x, dy, axis, keep)
    # Any constant may be taken from dy. That of the largest probability leaves least to cancel.
    constant = np.take_along_axis(g, np.argmax(rows, axis=-1)[..., None], axis=-1)
    with np.errstate(all="ignore"):
        y = np.where(keep, probabilities(rows), 0)
        g = np.where(keep, g - np.where(np.isfinite(constant), constant, 0), 0)
        dx = y * (g - (y * g).sum(axis=-1, keepdims=True))
    return back(np.where(keep, dx, 0))


def log_softmax_vjp(x: ArrayLike, dy: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """dy - softmax(x) * sum(dy) over `axis`: float64, x's shape. dy broadcasts to x's shape.

    Raises as `log_softmax`, and ValueError where dy does not broadcast.
    """
    rows, keep, back = rows_of(x, axis, where)
    g = _upstream(x, dy, axis, keep)
    with np.errstate(all="ignore"):
        dx = g * complements(rows) - probabilities(rows) * others(g)
    return back(np.where(keep, dx, 0))


def logsumexp_vjp(
    x: ArrayLike,
    dlse: ArrayLike,
    axis: Axis = -1,
    *,
    b: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """dlse * b * exp(x) / sum(b * exp(x)) over `axis`: float64, x's shape.

    The gradient of log(abs(sum)), which is what `return_sign` gives. dlse has x's shape without the reduced
    axes, or broadcasts to it. Elements whose b is 0 have gradient 0, whatever x holds there. Terms that
    cancel to a sum of exactly 0 have infinite gradients. Raises as `logsumexp`, and ValueError where dlse
    does not broadcast.
    """
    array = real(x, "x")
    weights = broadcast(as_wide(1.0 if b is None else b, "b"), array.shape, "b")
    rows, keep, back = rows_of(x, axis, mask_of(where, array.shape) & (weights != 0))
    axes = axes_of(axis, array.ndim)
    reduced = kept_shape(array.shape, axes, False)
    g = broadcast(as_wide(dlse, "dlse"), reduced, "dlse").reshape(-1, 1)
    signs = as_rows(weights, axes)
    with np.errstate(all="ignore"):
        heights = np.where(keep, rows + np.log(np.abs(signs)), -np.inf)
        m = maximum(heights)
        terms = np.where(keep, np.sign(signs) * np.exp(heights - m), 0)
        share = np.where(np.isfinite(m), terms / terms.sum(axis=-1, keepdims=True), np.nan)
        dx = np.where(m == -np.inf, 0, g * share)
    return back(np.where(keep, dx, 0))


def softmax_topk_vjp(
    x: ArrayLike, k: int, dvalues: ArrayLike, axis: int = -1, *, dlse: ArrayLike | None = None
) -> Array:
    """The gradient of the values of `softmax_topk`, and of its lse (dlse, None for 0): float64, x's shape.

    dvalues has the values' shape or broadcasts to it. Raises as `softmax_topk`, and ValueError where dvalues
    or dlse do not broadcast.
    """
    values, indices, _ = softmax_topk(x, k, axis)
    dy = np.zeros(np.shape(x))
    given = broadcast(real(dvalues, "dvalues").astype(np.float64), values.shape, "dvalues")
    np.put_along_axis(dy, indices, given, axis)
    dx = softmax_vjp(x, dy, axis)
    return dx if dlse is None else dx + logsumexp_vjp(x, dlse, axis)


def logaddexp_vjp(a: ArrayLike, b: ArrayLike, dy: ArrayLike) -> tuple[Array, Array]:
    """(da, db): dy times the softmax of the pair (a, b), float64, of the shapes of a and b.

    dy broadcasts to the shape of the result. Both 0 where a and b are -inf, so that the order of adding does
    not matter to the gradient either. Raises as `logaddexp`, and ValueError where dy does not broadcast.
    """
    pair = both(a, b)
    g = broadcast(as_wide(dy, "dy"), pair.shape[:-1], "dy")[..., None]
    m = maximum(pair)
    with np.errstate(all="ignore"):
        parts = np.where(m == -np.inf, 0, g * probabilities(pair))
    da, db = (narrow(summed_to(parts[..., i], np.shape(x)))[()] for i, x in enumerate((a, b)))
    return da, db


def logcumsumexp_vjp(x: ArrayLike, dy: ArrayLike, axis: int = -1) -> Array:
    """sum over i of dy[i] * softmax(x[:i + 1]): float64, x's shape, one prefix after the other.

    A prefix that is all -inf adds 0; one that holds a NaN or +inf makes all of its elements NaN. dy
    broadcasts to x's shape. Raises as `logcumsumexp`, and ValueError where dy does not broadcast. Cost: n^2/2
    exponentials for n elements.
    """
    array = real(x, "x")
    rows, keep, back = rows_of(array, operator.index(axis), None)
    g = _upstream(array, dy, axis, keep)
    dx = np.zeros_like(rows)
    with np.errstate(all="ignore"):
        for i in range(rows.shape[-1]):
            prefix = rows[..., : i + 1]
            share = np.where(maximum(prefix) == -np.inf, 0, g[..., i : i + 1] * probabilities(prefix))
            dx[..., : i + 1] += share
    return back(dx)


def _upstream(x: ArrayLike, dy: ArrayLike, axis: Axis, keep: Array) -> Array:
    """The result's gradient as rows, 0 where masked: nothing is read there."""
    shape = np.shape(x)
    g = as_rows(broadcast(as_wide(dy, "dy"), shape, "dy"), axes_of(axis, len(shape)))
    return np.where(keep, g, 0)
