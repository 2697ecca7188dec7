"""The operations written to be read: slow, in the widest float there is, importing nothing of this package.

Everything else is judged against this file, so it uses no shortcut: a row's maximum, the exponentials of the
distances to it, their sum. Arithmetic is in `numpy.longdouble` (64 bits of mantissa on x86: results are then
within 0.51 ulp of float64 but for a few where a tail's distance to the maximum itself had to be rounded) and
comes back as float64. Where longdouble is float64, results are good to a few ulp.

Special values, by the maximum m of what takes part in a row:

    NaN                        softmax, log_softmax NaN       logsumexp NaN
    +inf                       softmax, log_softmax NaN       logsumexp +inf
    -inf (or nothing is left)  softmax, log_softmax NaN       logsumexp -inf
    masked elements            softmax 0, log_softmax -inf    left out

Arguments common to all: `x` holds real numbers (bool, integers, floats up to float64, the ml_dtypes formats);
`axis` is an int, a tuple of ints, or None for all; an empty tuple makes each element a row. Bool `where`
broadcasts to x's shape, True takes part. Raises TypeError for x and where of a wrong dtype, ValueError for an
axis out of range or named twice, or a where or b that does not broadcast. Cost: about 50 bytes of memory and
0.2 microseconds an element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Axis = int | tuple[int, ...] | None
_Wide = np.longdouble
_Back = Callable[[Array], Array]


def softmax(x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`: float64, x's shape."""
    rows, keep, back = _rows(x, axis, where)
    m = _maximum(rows)
    with np.errstate(all="ignore"):
        e = np.exp(rows - m)
        y = np.where(np.isfinite(m), e / e.sum(axis=-1, keepdims=True), np.nan)
    return back(np.where(keep, y, 0))


def log_softmax(x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
    """x - logsumexp(x) over `axis`: float64, x's shape."""
    rows, keep, back = _rows(x, axis, where)
    m = _maximum(rows)
    with np.errstate(all="ignore"):
        y = np.where(np.isfinite(m), (rows - m) - _log_sum(rows, m), np.nan)
    return back(np.where(keep, y, -np.inf))


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
    array = _real(x, "x")
    keep = _mask(where, array.shape)
    weights = _broadcast(_real(1.0 if b is None else b, "b"), array.shape, "b").astype(np.float64)
    rows, _, _ = _rows(x, axis, keep & (weights != 0))
    m = _maximum(rows)
    if b is None:
        with np.errstate(all="ignore"):
            lse = np.where(np.isfinite(m), m + _log_sum(rows, m), m)[..., 0]
        sign = np.where(lse == -np.inf, 0, np.where(np.isnan(lse), np.nan, 1))
    else:
        taken = _as_rows(np.where(keep, weights, 0), _axes(axis, array.ndim)).astype(_Wide)
        lse, sign = _weighted(rows, taken)
    shape = _kept_shape(array.shape, _axes(axis, array.ndim), keepdims)
    found = [_narrow(a).reshape(shape) for a in (lse, sign)]
    if return_sign:
        return found[0][()], found[1][()]
    return np.where(found[1] < 0, np.nan, found[0])[()]


def softmax_topk(x: ArrayLike, k: int, axis: int = -1) -> tuple[Array, Array, Array]:
    """(values, indices, lse): the k largest softmax values over one axis, float64, int64 and float64.

    values and indices have k in place of the axis, lse lacks it. Order: descending by logit, NaN first of
    all, equal logits by the lower index. Raises ValueError where k is negative or exceeds the axis' length.
    """
    array = _real(x, "x")
    where = _axes(operator.index(axis), array.ndim)
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
    rows, _, _ = _rows(x, axis, where)
    m = _maximum(rows)
    with np.errstate(all="ignore"):
        s = np.exp(rows - np.where(np.isinf(m), 0, m)).sum(axis=-1)
    s = np.where(m[..., 0] == np.inf, (rows == np.inf).sum(axis=-1), s)
    array = np.asarray(x)
    shape = _kept_shape(array.shape, _axes(axis, array.ndim), False)
    return _narrow(m).reshape(shape)[()], _narrow(s).reshape(shape)[()]


def _maximum(rows: Array) -> Array:
    """The maximum of each row, kept as a last axis of length 1: NaN where there is one, -inf where there is
    nothing."""
    return np.asarray(np.max(rows, axis=-1, keepdims=True, initial=-np.inf))


def _log_sum(rows: Array, m: Array) -> Array:
    """log(sum(exp(x - m))) with the terms that are exactly 1 taken out of the sum, so that log1p sees the
    rest whole."""
    top = rows == m
    count = top.sum(axis=-1, keepdims=True).astype(_Wide)
    rest = np.where(top, 0, np.exp(rows - m)).sum(axis=-1, keepdims=True)
    return np.asarray(np.log(count) + np.log1p(rest / count))


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


def _rows(x: ArrayLike, axis: Axis, where: ArrayLike | None) -> tuple[Array, Array, _Back]:
    """(rows, keep, back): x as a wide (rows, length) array, -inf where masked; the mask alike; and the way
    back."""
    array = _real(x, "x")
    axes = _axes(axis, array.ndim)
    mask = _mask(where, array.shape)
    keep = _as_rows(mask, axes)
    # Through float64: that is what integers promote to.
    rows = np.where(keep, _as_rows(array.astype(np.float64), axes).astype(_Wide), -np.inf)
    kept = [a for a in range(array.ndim) if a not in axes]

    def back(result: Array) -> Array:
        moved = _narrow(result).reshape([array.shape[a] for a in (*kept, *axes)])
        return np.ascontiguousarray(moved.transpose(np.argsort((*kept, *axes)))).reshape(array.shape)

    return rows, keep, back


def _narrow(result: Array) -> Array:
    """float64: a difference past its range, as in the log_softmax of -1e308 beside 1e308, becomes -inf."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(result).astype(np.float64)


def _as_rows(array: Array, axes: tuple[int, ...]) -> Array:
    kept = [a for a in range(array.ndim) if a not in axes]
    length = math.prod(array.shape[a] for a in axes)
    return array.transpose(*kept, *axes).reshape(math.prod(array.shape[a] for a in kept), length)


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    return tuple(1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes)


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    given = [operator.index(a) for a in (axis if isinstance(axis, tuple) else (axis,))]
    bound = max(ndim, 1)
    if any(not -bound <= a < bound for a in given):
        would = f"{-bound} to {bound - 1} would do"
        raise ValueError(f"axis={axis!r} is out of range for {ndim} dimensions: {would}")
    found = sorted(a % bound for a in given)
    if len(set(found)) != len(found):
        raise ValueError(f"axis={axis!r} names an axis twice: each axis once would do")
    return tuple(found) if ndim else ()


def _real(value: ArrayLike, name: str) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: pass its data and where=")
    array = np.asarray(value)
    # The ml_dtypes formats are of kind V (void) with a scalar type of their own.
    extension = array.dtype.kind == "V" and array.dtype.type is not np.void
    if not (array.dtype.kind in "biuf" or extension) or array.dtype.itemsize > 8:
        raise TypeError(f"{name} holds {array.dtype}: real numbers up to float64 would do")
    return array


def _mask(where: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    array = np.asarray(True if where is None else where)
    if array.dtype != np.bool_:
        raise TypeError(f"where holds {array.dtype}: bool would do")
    return _broadcast(array, shape, "where")


def _broadcast(array: Array, shape: tuple[int, ...], name: str) -> Array:
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ValueError(f"{name} has shape {array.shape}, which does not broadcast to {shape}") from error
