"""Log-sum-exp and softmax of ragged groups of NumPy arrays, and their gradients.

Groups are neighbours along one axis: given by sorted ids, one an entry, or by offsets, where each group
starts and the last one ends. Arguments common to all:

x
    Real numbers as in `online_softmax.softmax`, with at least one dimension. Other axes than `axis` are
    features: every group has a result for each of them.
ids
    Integers, one an entry of the axis, at least 0 and not decreasing. A number that does not occur is an
    empty group.
offsets
    Integers, one more than there are groups, from 0 to the length of the axis, not decreasing: group g is
    [offsets[g], offsets[g + 1]). Either ids or offsets is given.
num_segments
    Number of groups. Default: one more than the last id; with offsets it has to be what they say.
isa, threads
    As in `softmax`.

A group's bits depend on its values, format, instruction set and on whether they are adjacent in memory, as
those of a row do: not on threads, other groups or its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import cpu, cpu_scans
from . import arrays, checks, scans
from .checks import Array
from .windows import whole


@arrays.routed
def segment_logsumexp(
    x: Any, *, ids: Any = None, offsets: Any = None, num_segments: int | None = None, axis: int = 0,
    isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """log(sum(exp(x))) of each group along `axis`: x's shape with the groups in place of the axis, in x's
    format.

    Args:
        x: real numbers with at least one dimension, any strides. Other axes than `axis` are features.
        ids: integers from 0 on that do not decrease, the group of each entry of the axis.
        offsets: integers, one more than there are groups, from 0 to the length of the axis: group g is
            [offsets[g], offsets[g + 1]). Either ids or offsets is given.
        num_segments: number of groups, at least ids[-1] + 1, which is the default.

    Returns: -inf of an empty group and of one that is all -inf; +inf and NaN as `logsumexp`. As accurate as
    `logsumexp`: within 1/4 of 0 the sum is made in double.

    Raises: TypeError and ValueError, naming the argument and the place, before anything is computed.

    Cost: one read of x, and of ids one pass. Groups are shared out among threads by their lengths, and long
    ones by their pieces.
    """
    given, place, bounds = _groups(x, ids, offsets, num_segments, axis)
    target = checks.result_dtype(given.dtype, None)
    values = checks.cast(given, target, checks.compute_dtype(target))
    lse = cpu_scans.groups_lse(values, place, bounds, isa=isa, threads=threads)
    return checks.cast(np.moveaxis(lse, 0, place), target)


@arrays.routed
def segment_softmax(
    x: Any, *, ids: Any = None, offsets: Any = None, num_segments: int | None = None, axis: int = 0,
    out: Array | None = None, isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """exp(x) / sum(exp(x)) within each group along `axis`: x's shape and format.

    Args:
        x, ids, offsets, num_segments, axis: as in `segment_logsumexp`.
        out: array of x's shape and format, written and returned: x itself, or memory apart from it.

    Returns: as `softmax` of each group by itself, special values included; an empty group has no entries.

    Raises: as `segment_logsumexp`; ValueError for an out that does not fit.

    Cost: as `softmax`: one read of x while a group fits a core's cache, two beyond, and one write.
    """
    given, place, bounds = _groups(x, ids, offsets, num_segments, axis)
    target = checks.result_dtype(given.dtype, None)
    asked = checks.output(out, x if isinstance(x, np.ndarray) else given, target, None)
    compute = checks.compute_dtype(target)
    values = checks.cast(given, target, compute)
    direct = asked is not None and compute == target and asked.flags.aligned
    result = asked if asked is not None and direct else cpu.empty(given.shape, compute, like=values)
    cpu_scans.groups_softmax(values, result, place, bounds, isa=isa, threads=threads)
    if asked is None:
        return checks.cast(result, target)
    if not direct:
        asked[...] = checks.cast(result, target)
    return out  # type: ignore[return-value]  # asked is a view of it


@arrays.routed
def segment_logsumexp_vjp(
    dout: Any, x: Any, *, ids: Any = None, offsets: Any = None, num_segments: int | None = None,
    axis: int = 0, isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """The gradient of x from dout, that of `segment_logsumexp(x)`: dout * softmax(x), group by group.

    Args: dout broadcasts to the result's shape. The others: as in `segment_logsumexp`.

    Returns: x's shape and format. A group that is all -inf has gradient 0; one with a NaN or +inf NaN.

    Raises: as `segment_logsumexp`; ValueError where dout does not broadcast.

    Cost: a softmax, and temporaries of x's size in float32 (float64 for float64), in NumPy.
    """
    given, place, bounds = _groups(x, ids, offsets, num_segments, axis)
    target = checks.result_dtype(given.dtype, None)
    shape = (*given.shape[:place], len(bounds) - 1, *given.shape[place + 1 :])
    g = scans.gradient_of(dout, shape)
    values = given.astype(np.promote_types(cpu.state_dtype(target), g.dtype), copy=False)
    lse = np.moveaxis(cpu_scans.groups_lse(values, place, bounds, isa=isa, threads=threads), 0, place)
    y = np.empty(values.shape, values.dtype)
    cpu_scans.groups_softmax(values, y, place, bounds, isa=isa, threads=threads)
    sizes = np.diff(bounds)
    with np.errstate(all="ignore"):
        dx = y * np.repeat(g, sizes, axis=place)
    dx[np.repeat(np.isneginf(lse), sizes, axis=place)] = 0
    return checks.cast(dx, target)


@arrays.routed
def segment_softmax_vjp(
    dout: Any, x: Any, *, ids: Any = None, offsets: Any = None, num_segments: int | None = None,
    axis: int = 0, isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """The gradient of x from dout, that of `segment_softmax(x)`: y * (dout - sum(y * dout)), group by group.

    Args: dout broadcasts to x's shape. The others: as in `segment_logsumexp`.

    Returns: x's shape and format. A dout that is the same all over a group gives exactly 0; a group whose
    softmax is NaN has gradient NaN.

    Raises: as `segment_logsumexp`; ValueError where dout does not broadcast.

    Cost: a softmax in float64, and temporaries of x's size, in NumPy.
    """
    given, place, bounds = _groups(x, ids, offsets, num_segments, axis)
    target = checks.result_dtype(given.dtype, None)
    g = np.moveaxis(scans.gradient_of(dout, given.shape), place, 0).astype(np.float64)
    rows = np.ascontiguousarray(np.moveaxis(given, place, 0), np.float64)
    y = np.empty(rows.shape)
    cpu_scans.groups_softmax(rows, y, 0, bounds, isa=isa, threads=threads)
    # reduceat knows no empty groups: those with entries follow one another without gaps.
    sizes = np.diff(bounds)
    starts, sizes = bounds[:-1][sizes > 0], sizes[sizes > 0]
    if not rows.size:
        return checks.cast(np.empty(given.shape), target)

    def over(values: Array, add: np.ufunc) -> Array:
        return np.repeat(add.reduceat(values, starts, axis=0), sizes, axis=0)

    with np.errstate(all="ignore"):
        # Any constant may be taken from dout. That of the largest probability leaves least to cancel.
        places = np.arange(rows.shape[0]).reshape(-1, *[1] * (rows.ndim - 1))
        largest = over(np.where(y == over(y, np.maximum), places, rows.shape[0] - 1), np.minimum)
        constant = np.take_along_axis(g, largest, axis=0)
        g = g - np.where(np.isfinite(constant), constant, 0)
        dx = y * (g - over(y * g, np.add))
    return checks.cast(np.ascontiguousarray(np.moveaxis(dx, 0, place)), target)


def _groups(x: Any, ids: Any, offsets: Any, num_segments: Any, axis: Any) -> tuple[Array, int, Array]:
    """x as an array, the axis of its groups, and their offsets as int64."""
    given = checks.array(x, "x")
    place = checks.single_axis(axis, None, given.ndim)
    length = given.shape[place]
    if (ids is None) == (offsets is None):
        both = "neither ids nor offsets was" if ids is None else "ids and offsets were both"
        raise ValueError(f"{both} given: one of them would do")
    count = None if num_segments is None else whole(num_segments, "num_segments", 0)
    if ids is not None:
        return given, place, _from_ids(_integers(ids, "ids"), length, count)
    bounds = _integers(offsets, "offsets").copy()  # what has been checked is what is read, whatever `out` is
    _check_offsets(bounds, length)
    if count is not None and count != len(bounds) - 1:
        raise ValueError(f"num_segments={count} where offsets make {len(bounds) - 1} groups: that would do")
    return given, place, np.ascontiguousarray(bounds, np.int64)


def _from_ids(ids: Array, length: int, count: int | None) -> Array:
    if len(ids) != length:
        raise ValueError(f"ids has {len(ids)} entries: one for each of the {length} along axis would do")
    # Where the ids change: all else is asked of these places alone.
    starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1 if length else np.zeros(0, np.int64)
    firsts = ids[np.concatenate([np.zeros(min(length, 1), np.int64), starts])]
    if length and firsts.min() < 0:
        at = int(np.argmax(ids < 0))
        raise ValueError(f"ids[{at}]={ids[at]} is negative: numbers from 0 on would do")
    falls = firsts[1:] < firsts[:-1]
    if falls.any():
        at = int(starts[np.argmax(falls)])
        would = "ids that do not decrease would do (sort x by them)"
        raise ValueError(f"ids[{at}]={ids[at]} comes after {ids[at - 1]}: {would}")
    groups = int(ids[-1]) + 1 if length else 0
    if count is not None and count < groups:
        raise ValueError(f"num_segments={count} where ids go to {groups - 1}: at least {groups} would do")
    groups = groups if count is None else count
    try:
        sizes = np.zeros(groups + 1, np.int64)
    except (MemoryError, ValueError) as error:
        given = f"ids go to {groups - 1}" if count is None else f"num_segments={count}"
        raise ValueError(f"{given}: fewer groups, whose offsets memory has room for, would do") from error
    sizes[firsts.astype(np.int64) + 1] = np.diff(np.concatenate([[0], starts, [length]]))[: len(firsts)]
    return np.cumsum(sizes)


def _check_offsets(offsets: Array, length: int) -> None:
    if not len(offsets):
        raise ValueError("offsets is empty: one entry more than there are groups would do")
    if offsets[0] != 0:
        raise ValueError(f"offsets[0]={offsets[0]}: 0 would do")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(np.argmax(falls)) + 1
        would = "offsets that do not decrease would do"
        raise ValueError(f"offsets[{at}]={offsets[at]} comes after {offsets[at - 1]}: {would}")
    if offsets[-1] != length:
        raise ValueError(f"offsets[-1]={offsets[-1]}: the length of axis, {length}, would do")


def _integers(value: Any, name: str) -> Array:
    given = checks.array(value, name)
    if given.ndim == 1 and not given.size:
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {given.dtype}: integers would do")
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}: one dimension would do")
    return given
