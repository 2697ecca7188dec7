"""What the attention examples are held to: attention in float64, and how far from it a result may be.

Not a script of its own: the others use it. The bound is for float32 arithmetic and one rounding to the
format of the operands, which is how `online_softmax.attention` computes formats of up to 32 bits. With u =
2^-24, x a row's scores and M its greatest one, an exponential is off by a factor within exp(-t) and exp(t),

    t  =  (d + 6) u |scale| |q| . |k|  +  2u (M - x + 8)  +  e

for the score's dot product, for the difference to a pivot that lies up to 8 below M (twice: once in the
exponential, once in the factors that rescale it), and for the exponential function. Its weight p is divided
by a sum of the same exponentials, so that with h = exp(t) - 1 it errs by h (1 - p) and by the others' mean
of h. Then come the additions of both sums, depth * u each: running sums and blocks as
`online_softmax.conformance` lets any kernel choose them; the division; and the result's rounding.

Of states that were merged, the greatest h of a row counts for all and nothing cancels, for a state's
divisor is a sum over its own keys; and their log-sum-exps, of up to max|x| + log(keys), are rounded too: 5u
of that and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from online_softmax.conformance.tolerance import ulp
from online_softmax.conformance.tolerance.arithmetic import depth

Array = NDArray[Any]

U = 2.0**-24
#: Error of the exponential in units of u: a vector library's, and the shorter polynomial of 16-bit formats.
EXP_UNITS = {4: 4, 2: 48}


class Dense(NamedTuple):
    """Rows of attention, float64 (..., heads, rows, dv), and the error allowed to each element."""

    output: Array
    bound: Array


def dense(
    q: Array,
    k: Array,
    v: Array,
    visible: Array | None = None,
    *,
    merged: bool = False,
    terms: Callable[[float], float] = float,
) -> Dense:
    """softmax(q k^T / sqrt(d)) v in float64, all scores of the given rows at once.

    q is (..., heads, rows, d), k (..., key heads, keys, d), v (..., key heads, keys, dv), of one format of
    up to 32 bits; visible, bool, broadcasts to (..., heads, rows, keys). Each row sees a key at least. n
    roundings in a row count as terms(n) of them: all, or their root where they are taken to be independent.
    merged is for the float32 output of states that were merged.
    """
    wide = [a.astype(np.float64) for a in (q, k, v)]
    share, (keys, d) = q.shape[-3] // k.shape[-3], k.shape[-2:]
    rows, every_k, every_v = wide[0], *(np.repeat(a, share, axis=-3) for a in wide[1:])
    scores = rows @ every_k.swapaxes(-1, -2) / np.sqrt(d)
    size = np.abs(rows) @ np.abs(every_k).swapaxes(-1, -2) / np.sqrt(d)
    if visible is not None:
        scores, size = np.where(visible, scores, -np.inf), np.where(visible, size, 0.0)
    top = scores.max(axis=-1, keepdims=True)
    below = np.where(scores == -np.inf, 0.0, top - scores)
    p = np.exp(scores - top)
    p /= p.sum(axis=-1, keepdims=True)
    units = terms(d + 6) * size + 2 * (below + 8) + EXP_UNITS[q.dtype.itemsize]
    if merged:
        logs = np.abs(np.where(scores == -np.inf, 0.0, scores)).max(axis=-1, keepdims=True) + np.log(keys)
        units = units.max(axis=-1, keepdims=True) + 5 * (1 + logs)
    h = np.expm1(units * U)
    mean = (p * h).sum(axis=-1, keepdims=True)
    relative = (h + mean - (0 if merged else 2 * p * h)) / (1 - mean)
    relative = relative + (1 + relative) * np.expm1((2 * terms(depth(keys)) + 4) * U)
    output = p @ every_v
    result = np.dtype(np.float32) if merged else q.dtype
    return Dense(output, (p * relative) @ np.abs(every_v) + ulp(output, result) / 2)


def share_of_bound(got: Array, truth: Dense) -> float:
    """The greatest error in units of what is allowed there: the result holds where this is 1 at most."""
    return float((np.abs(got.astype(np.float64) - truth.output) / truth.bound).max())


def largest_difference(got: Array, truth: Dense) -> float:
    """The greatest error."""
    return float(np.abs(got.astype(np.float64) - truth.output).max())
