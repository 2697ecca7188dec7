"""Arrays as rows of the widest float, and the checks of arguments that the functions of the reference share.

Every row lies along the last axis, masked elements are -inf, and nothing here shortens the arithmetic.
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
Wide = np.longdouble
Back = Callable[[Array], Array]


def maximum(rows: Array) -> Array:
    """The maximum of each row, kept as a last axis of length 1: NaN where there is one, -inf where there is
    nothing."""
    return np.asarray(np.max(rows, axis=-1, keepdims=True, initial=-np.inf))


def log_sum(rows: Array, m: Array) -> Array:
    """log(sum(exp(x - m))) with the terms that are exactly 1 taken out of the sum, so that log1p sees the
    rest whole."""
    top = rows == m
    count = top.sum(axis=-1, keepdims=True).astype(Wide)
    rest = np.where(top, 0, np.exp(rows - m)).sum(axis=-1, keepdims=True)
    return np.asarray(np.log(count) + np.log1p(rest / count))


def probabilities(rows: Array) -> Array:
    """softmax of each row: NaN where its maximum is not finite."""
    m = maximum(rows)
    with np.errstate(all="ignore"):
        e = np.exp(rows - m)
        return np.where(np.isfinite(m), e / e.sum(axis=-1, keepdims=True), np.nan)


def complements(rows: Array) -> Array:
    """1 - softmax of each row, as the share of all the others: nothing cancels near a probability of 1."""
    m = maximum(rows)
    with np.errstate(all="ignore"):
        e = np.exp(rows - m)
        return np.where(np.isfinite(m), others(e) / e.sum(axis=-1, keepdims=True), np.nan)


def log_probabilities(rows: Array) -> Array:
    """log(softmax) of each row: NaN where its maximum is not finite."""
    m = maximum(rows)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(m), (rows - m) - log_sum(rows, m), np.nan)


def log_sums(rows: Array) -> Array:
    """log(sum(exp(x))) of each row, without its last axis: the maximum where that is infinite or NaN."""
    m = maximum(rows)
    with np.errstate(all="ignore"):
        return np.asarray(np.where(np.isfinite(m), m + log_sum(rows, m), m)[..., 0])


def others(terms: Array) -> Array:
    """For each element of a row the sum of all the others: what is left of it and what is right of it."""
    if not terms.shape[-1]:
        return terms

    def before(a: Array) -> Array:
        return np.concatenate([np.zeros_like(a[..., :1]), np.cumsum(a[..., :-1], axis=-1)], axis=-1)

    with np.errstate(all="ignore"):
        return before(terms) + before(terms[..., ::-1])[..., ::-1]


def as_wide(value: ArrayLike, name: str) -> Array:
    """Real numbers in the wide float, through float64: that is what integers promote to."""
    return real(value, name).astype(np.float64).astype(Wide)


def as_rows(array: Array, axes: tuple[int, ...]) -> Array:
    """The array as (rows, length): `axes`, in order, make the rows."""
    kept = [a for a in range(array.ndim) if a not in axes]
    length = math.prod(array.shape[a] for a in axes)
    return array.transpose(*kept, *axes).reshape(math.prod(array.shape[a] for a in kept), length)


def rows_of(x: ArrayLike, axis: Axis, where: ArrayLike | None) -> tuple[Array, Array, Back]:
    """(rows, keep, back): x as a wide (rows, length) array, -inf where masked; the mask alike; and the way
    back."""
    array = real(x, "x")
    axes = axes_of(axis, array.ndim)
    keep = as_rows(mask_of(where, array.shape), axes)
    rows = np.where(keep, as_rows(as_wide(array, "x"), axes), -np.inf)
    kept = [a for a in range(array.ndim) if a not in axes]

    def back(result: Array) -> Array:
        moved = narrow(result).reshape([array.shape[a] for a in (*kept, *axes)])
        return np.ascontiguousarray(moved.transpose(np.argsort((*kept, *axes)))).reshape(array.shape)

    return rows, keep, back


def narrow(result: Array) -> Array:
    """float64: a difference past its range, as in the log_softmax of -1e308 beside 1e308, becomes -inf."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(result).astype(np.float64)


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """What a reduction of `axes` leaves of a shape."""
    return tuple(1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes)


def summed_to(array: Array, shape: tuple[int, ...]) -> Array:
    """A gradient with respect to what was broadcast from `shape`: summed over its copies."""
    lead = array.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + a for a, n in enumerate(shape) if n == 1 and array.shape[lead + a] != 1
    )
    with np.errstate(all="ignore"):
        return np.asarray(array.sum(axis=axes)).reshape(shape)


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Axes as sorted non-negative numbers. ValueError where one is out of range or named twice."""
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


def real(value: ArrayLike, name: str) -> Array:
    """The array that `value` is. TypeError where it does not hold real numbers of up to 64 bits."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: pass its data and where=")
    array = np.asarray(value)
    # The ml_dtypes formats are of kind V (void) with a scalar type of their own.
    extension = array.dtype.kind == "V" and array.dtype.type is not np.void
    if not (array.dtype.kind in "biuf" or extension) or array.dtype.itemsize > 8:
        raise TypeError(f"{name} holds {array.dtype}: real numbers up to float64 would do")
    return array


def number(value: Any, name: str) -> np.longdouble:
    """A finite scalar. TypeError where it is none, ValueError where it is infinite or NaN."""
    array = real(value, name)
    if array.ndim:
        raise TypeError(f"{name} has shape {array.shape}: a number would do")
    if not np.isfinite(array.astype(np.float64)):
        raise ValueError(f"{name}={value}: a finite number would do")
    return Wide(array.astype(np.float64))


def integers(value: ArrayLike, name: str) -> Array:
    """The array that `value` is. TypeError where it does not hold integers."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}: integers would do")
    return array


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """ValueError where `value` is not one of the words that would do."""
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{name}={value!r}: {', '.join(map(repr, choices))} would do")


def mask_of(where: ArrayLike | None, shape: tuple[int, ...], name: str = "where") -> Array:
    """`where` broadcast to a shape, all True for None. TypeError where it is not bool."""
    array = np.asarray(True if where is None else where)
    if array.dtype != np.bool_:
        raise TypeError(f"{name} holds {array.dtype}: bool would do")
    return broadcast(array, shape, name)


def broadcast(array: Array, shape: tuple[int, ...], name: str) -> Array:
    """The array broadcast to a shape. ValueError where it does not."""
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ValueError(f"{name} has shape {array.shape}, which does not broadcast to {shape}") from error
