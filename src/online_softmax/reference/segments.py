"""Log-sum-exp and softmax of groups of neighbours, log-sum-exps of windows, and their gradients: one group,
one window after the other, by the functions on rows."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .gradients import logsumexp_vjp, softmax_vjp
from .rows import logsumexp, softmax
from .wide import Array, axes_of, broadcast, integers, real


def segment_logsumexp(
    x: ArrayLike,
    ids: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    num_segments: int | None = None,
    axis: int = 0,
) -> Array:
    """`logsumexp` of each group along `axis`: float64, x's shape with the groups in place of the axis.

    Groups are given by ids, one an entry, at least 0 and not decreasing, or by offsets: group g is
    [offsets[g], offsets[g + 1]). num_segments groups, else one more than the last id. An empty group is
    -inf. Raises TypeError for numbers that are not real and ids that are not integers, ValueError for an axis
    out of range and for ids or offsets that do not describe groups.
    """
    array, place, slices = _groups(x, ids, offsets, num_segments, axis)
    rows = np.moveaxis(array, place, 0)
    result = np.empty((len(slices), *rows.shape[1:]))
    for g, group in enumerate(slices):
        result[g] = logsumexp(rows[group], 0)
    return np.ascontiguousarray(np.moveaxis(result, 0, place))


def segment_softmax(
    x: ArrayLike,
    ids: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    num_segments: int | None = None,
    axis: int = 0,
) -> Array:
    """`softmax` of each group along `axis`: float64, x's shape. Arguments, errors as `segment_logsumexp`."""
    array, place, slices = _groups(x, ids, offsets, num_segments, axis)
    rows = np.moveaxis(array, place, 0)
    result = np.empty(rows.shape)
    for group in slices:
        result[group] = softmax(rows[group], 0)
    return np.ascontiguousarray(np.moveaxis(result, 0, place))


def segment_logsumexp_vjp(
    x: ArrayLike,
    dy: ArrayLike,
    ids: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    num_segments: int | None = None,
    axis: int = 0,
) -> Array:
    """`logsumexp_vjp` of each group: float64, x's shape. dy has the result's shape or broadcasts to it."""
    array, place, slices = _groups(x, ids, offsets, num_segments, axis)
    rows = np.moveaxis(array, place, 0)
    shape = (*array.shape[:place], len(slices), *array.shape[place + 1 :])
    g = np.moveaxis(broadcast(real(dy, "dy"), shape, "dy"), place, 0)
    result = np.empty(rows.shape)
    for i, group in enumerate(slices):
        result[group] = logsumexp_vjp(rows[group], g[i], 0)
    return np.ascontiguousarray(np.moveaxis(result, 0, place))


def segment_softmax_vjp(
    x: ArrayLike,
    dy: ArrayLike,
    ids: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    num_segments: int | None = None,
    axis: int = 0,
) -> Array:
    """`softmax_vjp` of each group: float64, x's shape. dy broadcasts to it."""
    array, place, slices = _groups(x, ids, offsets, num_segments, axis)
    rows = np.moveaxis(array, place, 0)
    g = np.moveaxis(broadcast(real(dy, "dy"), array.shape, "dy"), place, 0)
    result = np.empty(rows.shape)
    for group in slices:
        result[group] = softmax_vjp(rows[group], g[group], 0)
    return np.ascontiguousarray(np.moveaxis(result, 0, place))


def window_logsumexp(x: ArrayLike, window: int, axis: int = -1) -> Array:
    """`logsumexp` of x[max(0, i - window + 1) : i + 1] for every i along `axis`: float64, x's shape.

    Raises TypeError for numbers that are not real, ValueError for an axis out of range or a window below 1.
    """
    rows, back = _along(x, axis, window)
    result = np.empty(rows.shape)
    for i in range(rows.shape[-1]):
        result[..., i] = logsumexp(rows[..., max(0, i - window + 1) : i + 1], -1)
    return back(result)


def window_logsumexp_vjp(x: ArrayLike, dy: ArrayLike, window: int, axis: int = -1) -> Array:
    """`logsumexp_vjp` of every window, added up: float64, x's shape. dy broadcasts to it. A window that is
    all -inf adds 0; one that holds a NaN or +inf makes all of its elements NaN."""
    rows, back = _along(x, axis, window)
    g, _ = _along(broadcast(real(dy, "dy"), np.shape(x), "dy"), axis, window)
    result = np.zeros(rows.shape)
    for i in range(rows.shape[-1]):
        start = max(0, i - window + 1)
        result[..., start : i + 1] += logsumexp_vjp(rows[..., start : i + 1], g[..., i], -1)
    return back(result)


def _along(x: ArrayLike, axis: int, window: int) -> tuple[Array, Callable[[Array], Array]]:
    """x with the axis last, and the way back."""
    if operator.index(window) < 1:
        raise ValueError(f"window={window}: at least 1 would do")
    array = real(x, "x")
    places = axes_of(operator.index(axis), array.ndim)
    if not places:
        return array.reshape(1), lambda result: result.reshape(())
    (place,) = places
    return np.moveaxis(array, place, -1), lambda result: np.ascontiguousarray(np.moveaxis(result, -1, place))


def _groups(
    x: ArrayLike, ids: ArrayLike | None, offsets: ArrayLike | None, num_segments: int | None, axis: int
) -> tuple[Array, int, list[slice]]:
    """x, the axis of the groups, and where each of them lies along it."""
    array = real(x, "x")
    if not array.ndim:
        raise ValueError("x has no dimensions: at least one would do")
    (place,) = axes_of(operator.index(axis), array.ndim)
    length = array.shape[place]
    if (ids is None) == (offsets is None):
        raise ValueError("ids or offsets: one of them would do")
    if ids is not None:
        numbers = integers(ids, "ids") if np.size(ids) else np.zeros(0, np.int64)
        if numbers.shape != (length,):
            raise ValueError(f"ids has shape {numbers.shape}: ({length},) would do")
        if length and (numbers.min() < 0 or (numbers[1:] < numbers[:-1]).any()):
            raise ValueError("ids: numbers from 0 on that do not decrease would do")
        groups = int(numbers[-1]) + 1 if length else 0
        if num_segments is not None:
            if num_segments < groups:
                raise ValueError(f"num_segments={num_segments}: at least {groups} would do")
            groups = num_segments
        bounds = np.searchsorted(numbers, np.arange(groups + 1))
    else:
        bounds = integers(np.asarray(offsets), "offsets")
        if bounds.ndim != 1 or not len(bounds) or bounds[0] != 0 or bounds[-1] != length:
            raise ValueError(f"offsets: a row from 0 to {length} would do")
        if (bounds[1:] < bounds[:-1]).any():
            raise ValueError("offsets: numbers that do not decrease would do")
        if num_segments is not None and num_segments != len(bounds) - 1:
            raise ValueError(f"num_segments={num_segments}: {len(bounds) - 1} would do")
    return array, place, [slice(int(bounds[g]), int(bounds[g + 1])) for g in range(len(bounds) - 1)]
