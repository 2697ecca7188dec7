"""Attention and its gradients in float64, some rows at a time, and how far a result is from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.data import Array

BLOCK = 512  # query rows whose scores are there at a time
#: A row whose true norm is under this much of the root mean square of all is judged by that much of it: what
#: is 0 but for cancellation has no relative accuracy, whoever computes.
LEAST = 0.01


def truth(q: Array, k: Array, v: Array, do: Array, *, causal: bool) -> dict[str, Array]:
    """ "o", "dq", "dk" and "dv" of (batch, heads, length, d) operands of any format, in float64.

    Cost: five products of the size of the scores, and BLOCK rows of these in memory.
    """
    names = ("o", "dq", "dk", "dv")
    made = {name: np.zeros(a.shape) for name, a in zip(names, (q, q, k, v), strict=True)}
    for head in np.ndindex(q.shape[:2]):
        wide = (a[head].astype(np.float64) for a in (q, k, v, do))
        _head(causal, {name: a[head] for name, a in made.items()}, *wide)
    return made


def _head(causal: bool, made: dict[str, Array], q: Array, k: Array, v: Array, do: Array) -> None:
    scale, keys = 1 / np.sqrt(q.shape[-1]), np.arange(len(k))
    for first in range(0, len(q), BLOCK):
        rows = slice(first, min(first + BLOCK, len(q)))
        scores = scale * (q[rows] @ k.T)
        if causal:
            scores[keys > np.arange(rows.start, rows.stop)[:, None] + len(k) - len(q)] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        made["o"][rows] = p @ v
        dp = do[rows] @ v.T
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        made["dq"][rows] = scale * (ds @ k)
        made["dk"] += scale * (ds.T @ q[rows])
        made["dv"] += p.T @ do[rows]


@dataclass(frozen=True)
class RowError:
    """Norm of a row's error over the norm of the true row: the mean over all rows, and the worst row."""

    mean: float
    worst: float


def row_error(result: Array, right: Array) -> RowError:
    """The error of a result whose last axis is a row; NaN counts as infinite."""
    wrong = np.linalg.norm(result.astype(np.float64) - right, axis=-1)
    norm = np.linalg.norm(right, axis=-1)
    relative = wrong / np.maximum(norm, LEAST * np.sqrt(np.mean(norm**2)))
    relative[np.isnan(relative)] = np.inf
    return RowError(float(relative.mean()), float(relative.max()))
