"""How far from the truth a computed sum, log-sum-exp or softmax may be, row by row.

`error_bound` takes a row, an algorithm and a format and counts everything; the functions here are its pieces
in closed form, for kernels whose scheme is known only as an `eta`.

Notation: u unit roundoff of the arithmetic, e relative error of its exp, M the row's maximum, x_i its
entries, p_i their softmax, s = sum(exp(x_i - M)), n the row's length. Each exponential enters the sum with a
relative error eta_i, so that

    relative error of s  <=  sum_i p_i * |eta_i|

An exponent x_i - M that is rounded, or put together from rounded differences as the maximum moves, costs u *
(M - x_i) in every scheme: the pieces telescope. What a scheme adds to that is its `eta` here, one function a
scheme. Weighted by p_i the exponents' part is u * (H(p) - ln s) <= u * ln n, so a long tail never hurts.

Every bound is rigorous for rows whose maximum is finite, and not just to first order: a first-order sum t
enters as expm1(t), since |prod(1 + d_k) - 1| <= prod(1 + |d_k|) - 1 <= expm1(sum |d_k|), on both sides.
Exponentials that underflow are covered by `tiny`, the largest magnitude that may come out as 0 or lose bits:
the smallest subnormal with gradual underflow, the smallest normal where subnormals are flushed. Underflow of
rescale factors and overflow are `error_bound`'s. The bounds themselves are evaluated in float64.

Sources: Blanchard, Higham & Higham 2021 (batch log-sum-exp and softmax); the schemes with a moving maximum
and the merges are derived in the docstrings.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from .error_bound import ErrorBound, error_bound
from .roundoff import Array, rounding_error, smallest_subnormal, unit_roundoff

__all__ = [
    "ErrorBound",
    "batch_eta",
    "error_bound",
    "log_softmax_error",
    "lse_error",
    "merge_eta",
    "pairwise_depth",
    "rounding_error",
    "smallest_subnormal",
    "softmax_error",
    "streaming_eta",
    "sum_error",
    "tree_levels",
    "unit_roundoff",
]


@cache
def pairwise_depth(n: int) -> int:
    """Most additions any term goes through in numpy's pairwise sum of n adjacent entries.

    Up to 128 entries are added in 8 running sums, these by a tree of 3 levels, the remainder at the end; more
    are halved first, each half rounded to a multiple of 8. One addition more joins the sum to the start
    value. (numpy's documentation of `numpy.sum` names the scheme.)
    """
    return _pairwise(n) + 1


@cache
def _pairwise(n: int) -> int:
    if n < 8:
        return n
    if n <= 128:
        return (n // 8 - 1) + 3 + n % 8
    half = n // 2 - n // 2 % 8
    return 1 + max(_pairwise(half), _pairwise(n - half))


def batch_eta(n: int, *, u: float, e: float, depth: int) -> Array:
    """eta of each entry where the maximum is known first: one exp, at most `depth` additions. Shape (n,).

    eta_i = e + depth * u.
    """
    return np.full(n, e + depth * u)


def streaming_eta(row: ArrayLike, *, u: float, e: float) -> Array:
    """eta of each entry of a 1-d row pushed one at a time, in its order. Float64, shape (n,).

    eta_i = e + (n - i) * u + c_i * (u + e), where i counts from 0 and c_i is how often the maximum changes
    after i: an exp on entry, an addition for itself and each later entry, a rescale (one exp, one product)
    per change.
    """
    entries = np.asarray(row, dtype=np.float64)
    if not entries.size:
        return np.zeros(0)
    running = np.maximum.accumulate(entries)
    changes = np.concatenate(([0], np.cumsum(running[1:] > running[:-1])))
    later = changes[-1] - changes
    additions = entries.size - np.arange(entries.size)
    return np.asarray(e + additions * u + later * (u + e))


def merge_eta(levels: int, *, u: float, e: float) -> float:
    """What `levels` merges on a term's way add to its eta: an exp, a product and an addition each.

    A balanced tree over p states has ceil(log2(p)) levels, a chain of merges p - 1.
    """
    return levels * (2 * u + e)


def tree_levels(states: int) -> int:
    """Levels of a balanced tree of merges over `states` states: ceil(log2(states))."""
    return max(0, states - 1).bit_length()


def sum_error(row: ArrayLike, eta: ArrayLike, *, u: float, tiny: float = 0.0) -> Array:
    """Relative error of s over the last axis: sum_i p_i * expm1(u * (M - x_i) + eta_i), float64.

    Args:
        row: (..., n) float entries, exact, of finite maximum; -inf entries contribute nothing.
        eta: broadcastable to row: what the scheme adds to each entry.
        tiny: see the module. Each underflow costs at most this much of a sum that is at least 1, and errs on
            its way like any other term.
    """
    entries = np.asarray(row, dtype=np.float64)
    distance, p, _ = _softmax(entries)
    eta = np.broadcast_to(np.asarray(eta, dtype=np.float64), entries.shape)
    relative = (p * np.expm1(np.where(p > 0, u * distance + eta, 0))).sum(axis=-1)
    return np.asarray(relative + entries.shape[-1] * tiny * np.exp(np.max(eta, axis=-1)))


def softmax_error(row: ArrayLike, eta: ArrayLike, *, u: float, e: float, tiny: float = 0.0) -> Array:
    """Absolute error of y_j = exp(x_j - M) / s over the last axis: float64, row's shape.

    Relative: error of s, plus u * (M - x_j) + e for the exponential, plus u for the quotient. Absolute on
    top: `tiny` where the exponential, divided by a computed s of 1 - e at least, or the quotient underflows.
    Arguments as in `sum_error`.
    """
    entries = np.asarray(row, dtype=np.float64)
    distance, p, _ = _softmax(entries)
    of_sum = sum_error(entries, eta, u=u, tiny=tiny)[..., None]
    t = np.where(p > 0, u * distance + e + u + _of_quotient(of_sum), 0)
    return np.asarray(p * np.expm1(t) + (2 + 2 * (e + u)) * tiny)


def lse_error(
    row: ArrayLike, eta: ArrayLike, *, u: float, e_log: float | None = None, tiny: float = 0.0
) -> Array:
    """Absolute error of lse = M + log(s) over the last axis, float64: error of s + e_log * |log s| + u *
    |lse|.

    e_log is the relative error of the logarithm, u where not given. Arguments as in `sum_error`. It does not
    count the terms at the maximum taken out of the sum (log1p), which can only do better.
    """
    entries = np.asarray(row, dtype=np.float64)
    _, _, log_s = _softmax(entries)
    of_log = _of_quotient(sum_error(entries, eta, u=u, tiny=tiny))
    of_log = of_log + (u if e_log is None else e_log) * (log_s + of_log)
    lse = np.max(entries, axis=-1) + log_s
    return np.asarray(of_log + u * (np.abs(lse) + of_log))


def log_softmax_error(
    row: ArrayLike, eta: ArrayLike, *, u: float, e_log: float | None = None, tiny: float = 0.0
) -> Array:
    """Absolute error of log y_j = (x_j - M) - log(s) over the last axis: float64, row's shape, 0 at -inf
    entries.

    Error of s + e_log * |log s|, plus u * (M - x_j) for the first difference and u * |log y_j| for the
    second.
    """
    entries = np.asarray(row, dtype=np.float64)
    distance, _, log_s = _softmax(entries)
    of_log = _of_quotient(sum_error(entries, eta, u=u, tiny=tiny))
    of_log = (of_log + (u if e_log is None else e_log) * (log_s + of_log))[..., None]
    finite = np.isfinite(entries)
    distance = np.where(finite, distance, 0)
    before = u * distance + of_log
    return np.asarray(np.where(finite, before + u * (distance + log_s[..., None] + before), 0))


def _softmax(entries: Array) -> tuple[Array, Array, Array]:
    """(M - x, p, log s) over the last axis. log s is at least 0. Raises ValueError where a maximum is not
    finite."""
    m = np.max(entries, axis=-1, keepdims=True)
    if not np.isfinite(m).all():
        raise ValueError("row has a maximum that is not finite: there is no rounding error to bound")
    with np.errstate(over="ignore", under="ignore"):
        distance = m - entries
        weights = np.exp(-distance)
        s = weights.sum(axis=-1)
        return distance, weights / s[..., None], np.log(s)


def _of_quotient(relative: Array) -> Array:
    """|log(1 + d)| for |d| <= relative: what an error of s does to 1/s and to log(s). Infinite from relative
    1 on."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log1p(-np.minimum(relative, 1.0)))
