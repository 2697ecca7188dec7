"""The four algorithms of `error_bound`, carried out in a format for real: each operation rounds once.

numpy rounds each operation on float16, float32 and float64 arrays, ml_dtypes on bfloat16; exp and log are
taken in float64 and rounded (in float64: numpy's own). A batch of rows goes through together, so only the
positions that depend on each other are a loop in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .error_bound import BLOCK, check_algorithm
from .roundoff import Array, Rounding, dtype_of

Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Simulation:
    """What came out, in the format it was made in; of rows whose maximum is not finite nothing but NaN and
    infinities.

    Attributes:
        m, s, lse: (...) maximum, sum of exponentials, log-sum-exp.
        y, log_y: (..., n) softmax and log-softmax.
        o: (..., d) attention output, or None.
    """

    m: Array
    s: Array
    lse: Array
    y: Array
    log_y: Array
    o: Array | None = None


@dataclass(frozen=True)
class Machine:
    """One format's arithmetic: arrays of `dtype` in and out, exponentials kept in `stored`."""

    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    exp_of: Function
    normal: float
    flush: bool

    def rounded(self, a: Array) -> Array:
        """The result of an operation as the machine leaves it: subnormal results flushed where it does so."""
        a = a.astype(self.dtype, copy=False)
        return np.where(np.abs(a.astype(np.float64)) < self.normal, a * 0, a) if self.flush else a

    def exp(self, a: Array) -> Array:
        """exp, at most 1 for what is at most 0."""
        return self.rounded(self.exp_of(a))

    def log(self, a: Array) -> Array:
        return self.rounded(np.log(a.astype(np.float64)))

    def subtract(self, a: Array, b: Array) -> Array:
        """a - b of a and a maximum; -inf where a is."""
        return np.where(a == -np.inf, a, self.rounded(a - np.where(a == -np.inf, 0, b).astype(self.dtype)))

    def leaf(self, x: Array, top: Array) -> Array:
        """exp(x - top), kept in `stored`: of the arithmetic's dtype again."""
        kept = self.exp(self.subtract(x, top)).astype(self.stored)
        kept = self.rounded(kept) if self.stored == self.dtype else kept
        return kept.astype(self.dtype)

    def factor(self, old: Array, new: Array) -> Array:
        """What a sum at maximum `old` is multiplied by at `new`."""
        return self.exp(self.subtract(old, new))

    def add(self, a: Array, b: Array) -> Array:
        return self.rounded(a + b)

    def times(self, a: Array, b: Array) -> Array:
        return self.rounded(a * b)

    def running(self, terms: Array) -> Array:
        """terms[..., 0] + terms[..., 1] + ..., one after another."""
        total = terms[..., 0]
        for k in range(1, terms.shape[-1]):
            total = self.add(total, terms[..., k])
        return total

    def pairwise(self, terms: Array) -> Array:
        """Neighbours added in pairs, level by level: a term goes through ceil(log2 n) additions at most."""
        while terms.shape[-1] > 1:
            even = terms.shape[-1] // 2 * 2
            sums = self.add(terms[..., :even:2], terms[..., 1:even:2])
            terms = np.concatenate((sums, terms[..., even:]), axis=-1)
        return terms[..., 0]


def machine(
    format: DTypeLike,
    *,
    exp_format: DTypeLike | None = None,
    exp: Function | None = None,
    flush: bool = False,
) -> Machine:
    """A format's arithmetic; `exp` takes and returns float64 arrays (numpy's where None)."""
    arithmetic = Rounding.of(format, flush=flush)
    stored = arithmetic.dtype if exp_format is None else dtype_of(exp_format, "exp_format")
    function: Function = np.exp if exp is None else exp
    return Machine(
        arithmetic.dtype, stored, lambda a: function(a.astype(np.float64)), arithmetic.normal, flush
    )


def simulate(
    row: ArrayLike,
    algorithm: str,
    format: DTypeLike,
    *,
    block: int | None = None,
    order: str = "running",
    exp_format: DTypeLike | None = None,
    values: ArrayLike | None = None,
    exp: Function | None = None,
    flush: bool = False,
) -> Simulation:
    """Rows (..., n), n >= 1, through an algorithm in a format, both as in `error_bound`.

    Args:
        order: "running" or "pairwise", the sums of "batch": all entries one after another, or a balanced
            tree.
        exp: function used for exp, float64 in and out (the result is rounded): for a worse one than numpy's.
        values: (..., n, d); entries of -inf take no part in the output.

    Raises: ValueError for arguments that are none of these. Cost: some 5 microseconds a position and 10 ns an
        entry.
    """
    check_algorithm(algorithm, block)
    if order not in ("running", "pairwise") or (order == "pairwise" and algorithm != "batch"):
        raise ValueError(
            f"order: {order!r} is given to {algorithm!r}: running, or pairwise with batch, would do"
        )
    unit = machine(format, exp_format=exp_format, exp=exp, flush=flush)
    x = np.asarray(row).astype(unit.dtype)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"row: shape {x.shape} is given: rows (..., n) of one entry or more would do")
    v = None
    if values is not None:
        v = np.asarray(values).astype(unit.dtype)
        if v.ndim < 2 or v.shape[:-1] != x.shape:
            raise ValueError(f"values: shape {v.shape} is given with rows {x.shape}: (..., n, d) would do")
        v = np.swapaxes(np.where((x == -np.inf)[..., None], np.zeros((), unit.dtype), v), -1, -2)
    with np.errstate(all="ignore"):
        length = min(BLOCK if block is None else block, x.shape[-1])  # a block is no longer than a row
        m, s, weighted = _sums(x, v, algorithm, length, order, unit)
        log_s = unit.log(s)
        y = unit.rounded(unit.leaf(x, m[..., None]) / s[..., None])
        log_y = unit.rounded(unit.subtract(x, m[..., None]) - log_s[..., None])
        o = None if weighted is None else unit.rounded(weighted / s[..., None])
        lse = np.where(np.isfinite(m.astype(np.float64)), unit.add(m, log_s), m)
        undefined = ~np.isfinite(m.astype(np.float64))[..., None]
        y, log_y = (np.where(undefined, np.nan, a).astype(unit.dtype) for a in (y, log_y))
    return Simulation(m, s, lse, y, log_y, o)


def _sums(
    x: Array, v: Array | None, algorithm: str, block: int, order: str, unit: Machine
) -> tuple[Array, Array, Array | None]:
    """Maximum, sum of exponentials, sums of exponentials times v (..., d)."""
    if algorithm == "batch":
        m = np.max(x, axis=-1)
        leaf = unit.leaf(x, m[..., None])
        add = unit.running if order == "running" else unit.pairwise
        return m, add(leaf), None if v is None else add(unit.times(leaf[..., None, :], v))
    size = 1 if algorithm == "streaming" else block
    short = -x.shape[-1] % size
    count = (x.shape[-1] + short) // size
    low = np.full((*x.shape[:-1], short), -np.inf, unit.dtype)
    blocks = np.concatenate((x, low), axis=-1).reshape(*x.shape[:-1], count, size)
    parts = None
    if v is not None:
        parts = np.concatenate((v, np.zeros((*v.shape[:-1], short), unit.dtype)), axis=-1)
        parts = parts.reshape(*v.shape[:-1], count, size)
    tops = np.max(blocks, axis=-1)
    if algorithm != "tree":
        # Maxima do not depend on the sums, so each block's exponentials are taken at once.
        tops = np.maximum.accumulate(tops, axis=-1)
    leaf = unit.leaf(blocks, tops[..., None])
    s = unit.running(leaf)
    w = None if parts is None else unit.running(unit.times(leaf[..., None, :, :], parts))
    return (_tree if algorithm == "tree" else _fold)(tops, s, w, unit)


def _fold(tops: Array, s: Array, w: Array | None, unit: Machine) -> tuple[Array, Array, Array | None]:
    """Sums (..., p) and (..., d, p) joined from the left, at running maxima."""
    total, weighted = s[..., 0], None if w is None else w[..., 0]
    for k in range(1, tops.shape[-1]):
        old, new = tops[..., k - 1], tops[..., k]
        if (old != new).any():
            factor = unit.factor(old, new)
            total = unit.times(total, factor)
            weighted = None if weighted is None else unit.times(weighted, factor[..., None])
        total = unit.add(total, s[..., k])
        if w is not None and weighted is not None:
            weighted = unit.add(weighted, w[..., k])
    return tops[..., -1], total, weighted


def _tree(tops: Array, s: Array, w: Array | None, unit: Machine) -> tuple[Array, Array, Array | None]:
    """States (..., p) and (..., d, p) merged in pairs, level by level."""
    while tops.shape[-1] > 1:
        even = tops.shape[-1] // 2 * 2
        a, b = slice(0, even, 2), slice(1, even, 2)
        top = np.maximum(tops[..., a], tops[..., b])
        left, right = unit.factor(tops[..., a], top), unit.factor(tops[..., b], top)
        merged = unit.add(unit.times(s[..., a], left), unit.times(s[..., b], right))
        s = np.concatenate((merged, s[..., even:]), axis=-1)
        if w is not None:
            left, right = left[..., None, :], right[..., None, :]
            joined = unit.add(unit.times(w[..., a], left), unit.times(w[..., b], right))
            w = np.concatenate((joined, w[..., even:]), axis=-1)
        tops = np.concatenate((top, tops[..., even:]), axis=-1)
    return tops[..., 0], s[..., 0], None if w is None else w[..., 0]
