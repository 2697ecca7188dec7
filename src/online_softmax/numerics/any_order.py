"""How far from the truth results of `order="any"` may be: the law of `exact`, float32 and float64.

A term is T(x) = p * 2**n; with M the row's maximum, d = M - x and w = exp(-d), S the sum of w,

    T(x) / T(M)  =  w * exp(eta * d) * (1 + a) / (1 + b),    |a|, |b| <= delta

eta     the law multiplies by a float for log2(e): eta = 1 - that float / log2(e), 1.335e-8 for float32; the
        pair of float64 leaves nothing (1e-33).
delta   what the polynomial and its roundings make of 2**f, and f's rounding: of float32 at most 7.8e-8 over
        all f (tests/test_exact_terms.py goes through them), taken as 9e-8. Of float64, in u = 2**-53: 1.44
        for p and for q's part in it, 0.52 for the two roundings of f, taken as 2.2; from 2**49 on f is put
        together by three sums, 1.21, taken as 3.
tail    V lacks what is below its lowest slice: half of a unit at most for each term that reaches below,
        which T(M) >= 2**-1.5 units of the top slice exceeds by 2**43.5 (float64: 2**95.5). A maximum that
        lies higher in its bin makes it less by as much.

So V / T(M) is off from S, relatively, by at most

    sum of softmax_i * (exp(eta * d_i) * (1 + delta) / (1 - delta) - 1)  +  tails / S

over the terms that are not the maximum's equals, whose error is none. To first order that is
2*delta + eta * (mean of d under the softmax) + (terms cut) * 2**-43.5 / S; the mean is the entropy less
log S, at most the logarithm of the row's length.

    lse     log1p of (V - T(M)) / T(M): four roundings and 2 ulp of log1p, in double, 9 * 2**-53 of log S in
            all; m + that: once in double, once to the format
    log y   the same, and a rounding of M - x and of the last difference in double, once to the format
    y       T(x) / V: terms off by delta each, exp(eta * d) against its mean over the row, the tails; the
            inverse in two numbers and the product, 2**-24 + 2**-47 (float64: 5 * 2**-53). 0 below 2**-125
            (2**-1021)

Elements below a maximum beyond 2**30 (2**62) are dropped; they lie 64 or more below it. Maxima and
log-probabilities below the least normal number count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .roundoff import Array, Rounding

#: Largest relative error of log S, of (V - T(M)) / T(M) and its log1p, in double.
LOG_ERROR: Final = 9 * 2.0**-53
#: float64's own underflow in a bound.
FLOOR: Final = 8 * 2.0**-1074
#: Further below the maximum than this nothing is left of a term, in either format.
GONE: Final = 1024.0


@dataclass(frozen=True)
class Law:
    """The constants of a format of `exact` that errors depend on; as there, but for the last four."""

    width: int
    slices: int
    log2e: float
    least: float
    far: float
    large: float
    smallest: float
    bits: int
    eta: float
    delta: float
    delta_far: float
    quotient: float  # relative error of T(x) / V, given both

    def unit_error(self, top: Array) -> tuple[Array, Array]:
        """(half the lowest unit over T(M), the exponent y = x*log2e from which on a term is not cut)."""
        y = top * self.log2e
        loose = np.abs(y) * 2.0**-50 + 2.0**-40  # more than y may be off by, in double
        known = loose < 0.25
        # Where the bin is in doubt, at the bottom of the upper one.
        bottom = np.floor((y + loose + 1.5) / self.width) * self.width
        place = np.where(known, y - loose - bottom, -1.5)
        half = np.exp2(-self.width * (self.slices - 1) - 1 - place) * (1 + self.delta_far)
        lowest = bottom - self.width * (self.slices - 1)
        return half, np.where(known, lowest + self.bits + 0.5 + 2 * loose, np.inf)


LAWS: Final = {
    "float32": Law(
        22, 3, float.fromhex("0x1.715476p+0"), 2.0**-126, 2.0**31, 2.0**30, 2.0**-125,
        24, 1.335e-8, 9e-8, 9e-8, 2.0**-24 + 2.0**-47,
    ),
    "float64": Law(
        32, 4, float.fromhex("0x1.71547652b82fep+0"), 2.0**-1022, 2.0**49, 2.0**62, 2.0**-1021,
        53, 0.0, 2.2 * 2.0**-53, 3 * 2.0**-53, 5 * 2.0**-53,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Sums:
    """What the bounds are made of, over the last axis; all relative to S."""

    log_s: Array
    y: Array
    distance: Array
    delta: Array
    growth: Array  # mean of exp(eta * d) under the softmax
    tail: Array
    error: Array  # of V / T(M)


def _sums(rows: Array, law: Law) -> _Sums:
    top = np.max(rows, axis=-1, keepdims=True)
    distance = top - rows
    w = np.exp(-distance)
    s = w.sum(axis=-1, keepdims=True)
    plain, others = np.abs(top) <= law.large, rows != top
    delta = np.where(np.abs(rows) >= law.far, law.delta_far, law.delta)
    of_top = np.where(np.abs(top) >= law.far, law.delta_far, law.delta)
    stretched = law.eta * np.minimum(distance, GONE)
    each = np.where(others & plain, np.expm1(stretched + np.log1p(delta) - np.log1p(-of_top)), 0)
    half, uncut = law.unit_error(np.where(plain, top, 0))
    lost = np.where(plain, np.minimum(half, w * (1 + each)), w)
    lost = np.where(others & ~(plain & (rows * law.log2e >= uncut)), lost, 0)
    tail = lost.sum(axis=-1) / s[..., 0]
    return _Sums(
        np.log(s[..., 0]),
        w / s,
        distance,
        delta,
        (w * np.exp(stretched)).sum(axis=-1) / s[..., 0],
        tail,
        (w * each).sum(axis=-1) / s[..., 0] + tail,
    )


def any_order(rows: Array, format: Rounding, out: Rounding | None) -> tuple[Array, Array, Array, Array]:
    """Bounds of s, lse, y and log y, as in `ErrorBound`, of rows (..., n), n >= 1, of finite maximum.

    format: float32 or float64. out: what lse, y and log y are rounded to at the end, if anything.
    """
    law, double = LAWS[format.dtype.name], 2.0**-53
    found = _sums(rows, law)
    top = np.max(rows, axis=-1)
    # V is T(M) at least, so the logarithm is never taken of less than 1.
    off = np.maximum(np.log1p(found.error), -np.log1p(-np.minimum(found.error, -np.expm1(-found.log_s))))
    off = off + LOG_ERROR * (found.log_s + off)
    tiny = np.where(np.abs(top) < law.least, law.least, 0)

    lse = np.abs(top + found.log_s)
    lse_error = off + tiny
    lse_error = lse_error + double * (lse + lse_error)
    if format.u > double:
        lse_error = lse_error + format.u * (lse + lse_error)

    log_y = found.distance + found.log_s[..., None]
    log_y_error = double * found.distance + (off + tiny)[..., None]
    log_y_error = log_y_error + double * (log_y + log_y_error)
    if format.u > double:
        log_y_error = log_y_error + format.u * (log_y + log_y_error)
    log_y_error = log_y_error + np.where(log_y - log_y_error < law.least, law.least, 0)
    log_y_error = np.where(log_y + log_y_error >= format.limit, np.inf, log_y_error)

    y, y_error = found.y, _of_probability(found, law)
    if out is not None:
        lse_error = lse_error + out.error(lse + lse_error)
        log_y_error = log_y_error + out.error(log_y + log_y_error)
        y_error = y_error + out.error(y + y_error)
    return found.error, lse_error, y_error, log_y_error


def _of_probability(found: _Sums, law: Law) -> Array:
    worst = np.max(found.delta, axis=-1)
    upper = (found.growth * (1 + worst) + found.tail)[..., None]
    lower = ((1 - worst) - found.tail)[..., None]
    most = np.exp(law.eta * np.minimum(found.distance, GONE)) * (1 + found.delta) * (1 + law.quotient)
    most = np.where(lower > 0, most / np.maximum(lower, 1e-300), np.inf)
    least = (1 - found.delta) * (1 - law.quotient) / upper
    y = found.y
    error = np.where(y > 0, y * np.maximum(np.where(y > 0, most, 1) - 1, 1 - least), 0)
    error = np.minimum(error, np.maximum(y, 1 - y) + 4 * 2.0**-53)  # no probability is above 1
    return np.asarray(np.where(y * least < law.smallest, np.maximum(error, y), error) + FLOOR)
