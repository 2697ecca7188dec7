"""The operations on rows: softmax, log_softmax, logsumexp, the largest of a softmax, the state."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .wide import (
    Array,
    Axis,
    Wide,
    as_rows,
    axes_of,
    broadcast,
    kept_shape,
    log_probabilities,
    log_sums,
    mask_of,
    maximum,
    narrow,
    probabilities,
    real,
    rows_of,
)


def softmax(x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`: float64, x's shape."""
    rows, keep, back = rows_of(x, axis, where)
    return back(np.where(keep, probabilities(rows), 0))


def log_softmax(x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """x - logsumexp(x) over `axis`: float64, x's shape."""
    rows, keep, back = rows_of(x, axis, where)
    return back(np.where(keep, log_probabilities(rows), -np.inf))


def logsumexp(
    x: ArrayLike,
    axis: Axis = -1,
    *,
    b: ArrayLike | None = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
) -> Any:
    """log(sum(b * exp(x))) over `axis`: float64, x's shape without the reduced axes (1 there with
    `keepdims`).

    With `return_sign` the pair (log(abs(sum)), sign), sign in {-1, 0, 1} or NaN; without it a negative sum
    gives NaN. An element whose b is 0 drops out, whatever x holds there. A sum of exactly 0 gives (-inf, 0).
    """
    array = real(x, "x")
    keep = mask_of(where, array.shape)
    weights = broadcast(real(1.0 if b is None else b, "b"), array.shape, "b").astype(np.float64)
    rows, _, _ = rows_of(x, axis, keep & (weights != 0))
    axes = axes_of(axis, array.ndim)
    if b is None:
        lse = log_sums(rows)
        sign = np.where(lse == -np.inf, 0, np.where(np.isnan(lse), np.nan, 1))
    else:
        lse, sign = _weighted(rows, as_rows(np.where(keep, weights, 0), axes).astype(Wide))
    shape = kept_shape(array.shape, axes, keepdims)
    found = [narrow(a).reshape(shape) for a in (lse, sign)]
    if return_sign:
        return found[0][()], found[1][()]
    return np.where(found[1] < 0, np.nan, found[0])[()]


def softmax_topk(x: ArrayLike, k: int, axis: int = -1) -> tuple[Array, Array, Array]:
    """(values, indices, lse): the k largest softmax values over one axis, float64, int64 and float64.

    values and indices have k in place of the axis, lse lacks it. Order: descending by logit, NaN first of
    all, equal logits by the lower index. Raises ValueError where k is negative or exceeds the axis' length.
    """
    array = real(x, "x")
    where = axes_of(operator.index(axis), array.ndim)
    if not array.ndim:
        raise ValueError("x has no dimensions: an array of at least one would do")
    (place,) = where
    if not 0 <= operator.index(k) <= array.shape[place]:
        raise ValueError(f"k={k} is out of range for an axis of {array.shape[place]} entries")
    logits = np.moveaxis(array.astype(np.float64), place, -1)
    # The last key counts first: not-NaN puts NaN in front; the sort is stable, so that equal logits keep
    # their order.
    order = np.lexsort((-logits, ~np.isnan(logits)), axis=-1)[..., :k]
    values = np.take_along_axis(np.moveaxis(softmax(array, place), place, -1), order, axis=-1)
    lse = logsumexp(array, place)
    return np.moveaxis(values, -1, place), np.moveaxis(order, -1, place).astype(np.int64), lse


def state(x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> tuple[Array, Array]:
    """(m, s): a row's maximum and the sum of exp(x - m), float64, x's shape without the reduced axes.

    (-inf, 0) where nothing is left or all is -inf; s counts the +inf entries where m is +inf; both are NaN
    where a NaN takes part.
    """
    rows, _, _ = rows_of(x, axis, where)
    m = maximum(rows)
    with np.errstate(all="ignore"):
        s = np.exp(rows - np.where(np.isinf(m), 0, m)).sum(axis=-1)
    s = np.where(m[..., 0] == np.inf, (rows == np.inf).sum(axis=-1), s)
    array = np.asarray(x)
    shape = kept_shape(array.shape, axes_of(axis, array.ndim), False)
    return narrow(m).reshape(shape)[()], narrow(s).reshape(shape)[()]


def _weighted(rows: Array, b: Array) -> tuple[Array, Array]:
    """(log(abs(sum)), sign) of sum(b * exp(x)), as the sum of sign(b) * exp(x + log(abs(b)))."""
    with np.errstate(all="ignore"):
        heights = np.where(b == 0, -np.inf, rows + np.log(np.abs(b)))
        m = np.max(heights, axis=-1, initial=-np.inf)
        infinite = heights == np.inf
        e = np.exp(heights - np.where(np.isinf(m), 0, m)[..., None])
        # Beside a +inf nothing finite counts.
        terms = np.sign(b) * np.where((m == np.inf)[..., None], infinite, np.where(b == 0, 0, e))
        largest = heights == m[..., None]
        top, rest = (np.where(part, terms, 0).sum(axis=-1) for part in (largest, ~largest))
        total = terms.sum(axis=-1)
        near = np.abs(rest) < np.abs(top) / 2
        log = np.where(near, np.log(np.abs(top)) + np.log1p(rest / top), np.log(np.abs(total)))
        # +inf of both signs is inf - inf.
        mixed = (infinite & (b > 0)).any(axis=-1) & (infinite & (b < 0)).any(axis=-1)
        lse = np.where(m == -np.inf, -np.inf, m + log)
        lse = np.where(m == np.inf, np.inf, lse)
        lse, sign = (np.where(mixed | np.isnan(m), np.nan, a) for a in (lse, np.sign(total)))
    return lse, np.where(np.isnan(lse), np.nan, sign)
