"""Log-sum-exps of windows that slide over NumPy arrays and over streams.

A state has no inverse: what has left a window cannot be taken out of a sum without cancelling what stays. So
windows are made by the queue of two stacks: one holds merged suffixes of the older entries, which are dropped
one by one, the other one merged prefix of the newer ones; when the first is empty, the entries of the second
are merged from its end and become the first. Every entry is merged twice, whatever the window's length.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import cpu, cpu_scans, state
from . import arrays, checks, scans
from .checks import LAST_AXIS, Array


@arrays.routed
def window_logsumexp(
    x: Any, window: int, axis: Any = LAST_AXIS, *, out: Array | None = None, dim: Any = None,
    isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """log(sum(exp(x[max(0, i - window + 1) : i + 1]))) for every i along one axis: x's shape and format.

    Args:
        window: entries of a window, at least 1. The first windows are shorter; one that is as long as the
            axis gives `logcumsumexp`.
        out: array of x's shape and format, written and returned: x itself (then copied), or memory apart
            from it.
        axis, dim, isa, threads: as in `logcumsumexp`.

    Returns: windows of nothing but -inf are -inf; those that hold a NaN are NaN, others with +inf are +inf:
    what leaves the window is forgotten exactly. Accurate as `logcumsumexp`.

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: two reads and one write; three exponentials and one logarithm an element, whatever the window.
    Scratch of about 32 * window bytes a thread. An axis that is not adjacent is copied first.
    """
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    length = _length(window)
    place = scans.scanned_axis(axis, dim, given.ndim)
    asked = checks.output(out, x if isinstance(x, np.ndarray) else given, target, None)
    result = _windows(given, length, place, target, isa, threads)
    if asked is None:
        return result[()]
    asked[...] = result
    return out


@arrays.routed
def window_logsumexp_vjp(
    dout: Any, x: Any, window: int, axis: Any = LAST_AXIS, *, dim: Any = None, isa: str | None = None,
    threads: int | None = None,
) -> Any:  # fmt: skip
    """The gradient of x from dout, that of `window_logsumexp(x, window, axis)`: for every j the sum over the
    windows i that hold it of dout[i] * exp(x[j] - lse[i]).

    Args: dout broadcasts to x's shape. The others: as in `window_logsumexp`.

    Returns: x's shape and format. A window that is all -inf adds 0 and its dout is not read; one that holds a
    NaN or +inf makes all of its elements NaN.

    Raises: as `window_logsumexp`; ValueError where dout does not broadcast.

    Cost: 2 * log2(window) passes over float64 temporaries, in NumPy. With lse of size L the result is off by
    some L units of roundoff of float64, relatively to the sum of the terms' sizes.
    """
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    length = _length(window)
    place = scans.scanned_axis(axis, dim, given.ndim)
    g = np.moveaxis(np.atleast_1d(scans.gradient_of(dout, given.shape)), place, -1).astype(np.float64)
    rows = np.moveaxis(np.atleast_1d(given), place, -1).astype(np.float64)
    length = max(min(length, rows.shape[-1]), 1)
    lse = _windows(rows, length, rows.ndim - 1, checks.FLOAT64, isa, threads)
    with np.errstate(all="ignore"):
        bad, live = np.isnan(lse) | np.isposinf(lse), np.isfinite(lse)
        sums = ahead((np.where(live, -lse, -np.inf), np.where(live, g, 0)), length)
        dx = np.exp(np.where(np.isfinite(rows), rows + sums[0], -np.inf)) * sums[1]
    # Counts of bad windows, so that one that has passed leaves nothing behind.
    count = np.concatenate([np.zeros_like(bad[..., :1], np.int64), np.cumsum(bad, axis=-1)], axis=-1)
    ends = np.minimum(np.arange(rows.shape[-1]) + length, rows.shape[-1])
    dx = np.where(count[..., ends] > count[..., :-1], np.nan, dx)
    return checks.cast(np.ascontiguousarray(np.moveaxis(dx, -1, place)).reshape(given.shape), target)[()]


class SlidingLogSumExp:
    """The log-sum-exp of the last `window` entries of a stream, one stream for each entry of `shape`.

    State-based: what expires leaves no trace, NaN and infinities included. Everything in float64; results are
    off by a few units of roundoff times the greater of the maximum's size and log2(window).

    Cost: memory of 2 * window states; three merges a push on average, window + 1 at most.

    Example:
        >>> slide = SlidingLogSumExp(2)
        >>> [float(slide.push(x)) for x in (0.0, -np.inf, -np.inf, 3.0)]
        [0.0, 0.0, -inf, 3.0]
    """

    def __init__(self, window: int, shape: int | tuple[int, ...] = ()) -> None:
        """Raises TypeError and ValueError, naming the argument, for a window below 1 or a negative shape."""
        self._window = _length(window)
        sizes = tuple(shape) if isinstance(shape, Iterable) and np.ndim(shape) else (shape,)
        self._shape = tuple(whole(n, "shape", 0) for n in sizes)
        self.clear()

    def clear(self) -> None:
        """Forgets all entries."""
        # Newer entries as states of their own with their merged state; suffixes of the older ones.
        self._new: list[state.State] = []
        self._prefix = state.identity(self._shape, np.float64)
        self._suffixes: list[state.State] = []

    def push(self, x: Any) -> Any:
        """Adds one entry to each stream, drops the oldest where there are `window`, and returns `lse`.

        x is real and broadcasts to the streams' shape; TypeError and ValueError otherwise.
        """
        values = checks.array(x, "x").astype(np.float64)
        try:
            values = np.broadcast_to(values, self._shape)
        except ValueError as error:
            would = f"one that broadcasts to {self._shape} would do"
            raise ValueError(f"x has shape {values.shape}: {would}") from error
        if len(self) == self._window:
            if not self._suffixes:
                self._turn()
            self._suffixes.pop()
        entry = state.push(state.identity(self._shape, np.float64), values[..., None])
        self._new.append(entry)
        self._prefix = state.merge(self._prefix, entry)
        return self.lse

    def _turn(self) -> None:
        for entry in reversed(self._new):
            self._suffixes.append(state.merge(entry, self._suffixes[-1]) if self._suffixes else entry)
        self._new, self._prefix = [], state.identity(self._shape, np.float64)

    @property
    def state(self) -> state.State:
        """(m, s) of the entries in the window, float64."""
        if self._suffixes:
            return state.merge(self._suffixes[-1], self._prefix)
        return self._prefix[0].copy(), self._prefix[1].copy()

    @property
    def lse(self) -> Any:
        """Log-sum-exps of the windows: float64, of `shape`; -inf where there is nothing."""
        return state.lse(*self.state)[()]

    @property
    def window(self) -> int:
        return self._window

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def __len__(self) -> int:
        """Entries in the window."""
        return len(self._new) + len(self._suffixes)

    def __repr__(self) -> str:
        return f"SlidingLogSumExp({self._window}, shape={self._shape}), {len(self)} entries"


def _windows(
    given: Array, window: int, place: int, target: checks.DType, isa: str | None, threads: int | None
) -> Array:
    """The windows' log-sum-exps in format `target` and given's shape, newly made."""
    compute = checks.compute_dtype(target)
    rows = np.moveaxis(np.atleast_1d(checks.cast(given, target, compute)), place, -1)
    shape = rows.shape
    result = cpu.empty(shape, compute)
    if window >= shape[-1]:
        cpu_scans.prefixes(rows, result, rows.ndim - 1, False, isa=isa, threads=threads)
    else:
        flat = (-1, shape[-1]) if rows.size else (0, shape[-1])
        lines = np.ascontiguousarray(rows).reshape(flat)
        cpu_scans.windows(lines, result.reshape(flat), window, isa=isa, threads=threads)
    back = np.moveaxis(result, -1, place)
    return checks.cast(np.ascontiguousarray(back).reshape(given.shape), target)


def ahead(entries: tuple[Array, Array], length: int) -> tuple[Array, Array]:
    """Merged signed states (m, s) of each entry and the length - 1 after it, along the last axis.

    By doubling: windows of 1, 2, 4 entries, and of them those that length is made of.
    """
    here, held, at, size = entries, (np.full_like(entries[0], -np.inf), np.zeros_like(entries[1])), 0, 1
    while True:
        if length & size:
            held, at = _signed(held, _later(here, at)), at + size
        if at == length:
            return held
        here, size = _signed(here, _later(here, size)), 2 * size


def _later(entries: tuple[Array, Array], steps: int) -> tuple[Array, Array]:
    (m, s), n = entries, entries[0].shape[-1]
    steps = min(steps, n)
    none = [np.full_like(m[..., :steps], -np.inf), np.zeros_like(s[..., :steps])]
    later = [np.concatenate([a[..., steps:], rest], axis=-1) for a, rest in zip((m, s), none, strict=True)]
    return later[0], later[1]


def _signed(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """The law's merge for sums of terms of either sign."""
    m = np.maximum(a[0], b[0])
    return m, a[1] * state.weight(a[0], m) + b[1] * state.weight(b[0], m)


def _length(window: Any) -> int:
    return whole(window, "window", 1)


def whole(value: Any, name: str, least: int) -> int:
    would = f"a whole number of at least {least} would do"
    wrong = f"{name}={value!r} is a {type(value).__name__}: {would}"
    if isinstance(value, bool | np.bool_):
        raise TypeError(wrong)
    try:
        number = operator.index(value)
    except TypeError as error:  # arrays have __index__, whatever they hold
        raise TypeError(wrong) from error
    if number < least:
        raise ValueError(f"{name}={value}: {would}")
    return number
