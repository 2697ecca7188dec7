"""Log-sums that are no reduction of a whole row: of two arrays, and of every prefix of a row."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike

from .wide import Array, as_wide, axes_of, log_sums, narrow, real


def logaddexp(a: ArrayLike, b: ArrayLike) -> Array:
    """log(exp(a) + exp(b)): float64, of the shape that a and b broadcast to.

    +inf where either is +inf, -inf where both are -inf, NaN where either is NaN. Raises TypeError for numbers
    that are not real, ValueError for shapes that do not broadcast.
    """
    pair = both(a, b)
    return narrow(log_sums(pair))[()]


def logcumsumexp(x: ArrayLike, axis: int = -1) -> Array:
    """log(sum(exp(x[:i + 1]))) for every i of one axis: float64, x's shape.

    -inf as long as only -inf has been seen, +inf from the first +inf on, NaN from the first NaN on. One
    running state, in which the entries equal to the maximum are counted apart from the sum of the rest: after
    n entries its relative error is below n * 2^-63 (the wide float's), and no step is made from a rounded
    logarithm. Raises TypeError for numbers that are not real, ValueError for an axis out of range.
    """
    array = real(x, "x")
    if not array.ndim:
        axes_of(operator.index(axis), 0)
        return array.astype(np.float64)
    (place,) = axes_of(operator.index(axis), array.ndim)
    rows = np.moveaxis(as_wide(array, "x"), place, -1)
    result = np.empty_like(rows)
    m = np.full(rows.shape[:-1], -np.inf, rows.dtype)
    count, rest = np.zeros_like(m), np.zeros_like(m)
    with np.errstate(all="ignore"):
        for i in range(rows.shape[-1]):
            entry = rows[..., i]
            new = np.maximum(m, entry)
            grown, equal = entry > m, entry == new
            # exp(-inf) of a state of nothing, and of a finite one below +inf: 0.
            rest = np.where(
                grown, (count + rest) * np.exp(m - new), rest + np.where(equal, 0, np.exp(entry - new))
            )
            count = np.where(grown, 1, count + equal)
            m = new
            result[..., i] = np.where(np.isfinite(m), m + (np.log(count) + np.log1p(rest / count)), m)
    return np.ascontiguousarray(np.moveaxis(narrow(result), -1, place))


def both(a: ArrayLike, b: ArrayLike) -> Array:
    """a and b, broadcast to each other, as rows of two wide entries."""
    pair = [as_wide(a, "a"), as_wide(b, "b")]
    try:
        return np.stack(np.broadcast_arrays(*pair), axis=-1)
    except ValueError as error:
        shapes = f"a has shape {pair[0].shape} and b {pair[1].shape}"
        raise ValueError(f"{shapes}: shapes that broadcast to each other would do") from error
