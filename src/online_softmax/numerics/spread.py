"""What the scale 1/sqrt(head_dim) does to attention scores, and how often a naive softmax fails on them.

The scale divides every score, and so the spread of every row, by sqrt(head_dim). For independent q and k with
entries of variance 1 that takes the standard deviation from sqrt(head_dim) to 1. It bounds nothing: a score
is |q| |k| cos / sqrt(head_dim), which grows with the norms, and is sqrt(head_dim) for q = k of variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .formats import FORMATS, Format

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Scores in numbers; masked ones (-inf) and rows without others are left out.

    Attributes:
        rows: rows counted.
        smallest, largest: over all scores.
        std: their standard deviation.
        widest_row: largest difference between two scores of a row.
        overflow: format -> share of rows whose sum of exp, unshifted, is not finite in it.
        zero: format -> share of rows all of whose exps, unshifted, are 0 in it.
    """

    rows: int
    smallest: float
    largest: float
    std: float
    widest_row: float
    overflow: dict[str, float]
    zero: dict[str, float]

    @property
    def spread(self) -> float:
        """largest - smallest."""
        return self.largest - self.smallest

    def fails(self, name: str) -> float:
        """Share of rows on which a naive softmax in the format `name` has no answer."""
        return self.overflow[name] + self.zero[name]

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {**asdict(self), "spread": self.spread}


@dataclass(frozen=True)
class ScaledSpread:
    """The same scores q.k, in rows of `columns`, before (`raw`) and after (`scaled`) the factor
    1/sqrt(head_dim)."""

    head_dim: int
    columns: int
    raw: Spread
    scaled: Spread

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "head_dim": self.head_dim,
            "columns": self.columns,
            "raw": self.raw.as_json(),
            "scaled": self.scaled.as_json(),
        }


def spread(scores: ArrayLike, formats: Iterable[Format] = tuple(FORMATS.values())) -> Spread:
    """Measure attention scores of shape (..., columns), a softmax a row.

    Scores are taken exactly as given; exp and its sum are judged by their true values, rounded once into each
    format (log-sum-exp in float64, whose own error is about 1e-15 of it). Masked scores are -inf. Costs about
    24 bytes a score.

    Raises:
        ValueError: scores without an axis, of complex or non-numeric type, holding NaN or +inf, or nothing
            but masked ones.
    """
    x = _checked(scores)
    seen = x > -np.inf
    rows = seen.any(axis=-1)
    if not rows.any():
        raise ValueError("scores: every one is masked (-inf) or there is none; one finite score would do")
    x, seen = x[rows], seen[rows]
    largest = x.max(axis=-1)
    smallest = np.where(seen, x, np.inf).min(axis=-1)
    lse = largest + np.log(np.exp(x - largest[:, None]).sum(axis=-1))
    formats = tuple(formats)
    return Spread(
        rows=len(x),
        smallest=float(smallest.min()),
        largest=float(largest.max()),
        std=float(x[seen].std()),
        widest_row=float((largest - smallest).max()),
        overflow={f.name: float((lse > float(f.exp_overflows_above.real)).mean()) for f in formats},
        zero={f.name: float((largest < float(f.exp_zero_below().real)).mean()) for f in formats},
    )


def score_spread(
    scores: ArrayLike,
    head_dim: int,
    *,
    scaled: bool = True,
    formats: Iterable[Format] = tuple(FORMATS.values()),
) -> ScaledSpread:
    """Measure attention scores with and without the scale.

    scores: shape (..., columns); q.k/sqrt(head_dim) where `scaled`, else q.k. The other kind is made from
    them by one multiplication in float64. Raises as `spread` does, and ValueError for head_dim < 1.
    """
    if isinstance(head_dim, bool) or not isinstance(head_dim, int):
        raise TypeError(f"head_dim: {head_dim!r} is no int")
    if head_dim < 1:
        raise ValueError(f"head_dim: {head_dim} is out of range; 1 or more would do")
    given = _checked(scores)
    root = math.sqrt(head_dim)
    formats = tuple(formats)
    raw, small = (given * root, given) if scaled else (given, given / root)
    return ScaledSpread(head_dim, given.shape[1], spread(raw, formats), spread(small, formats))


def _checked(scores: ArrayLike) -> Array:
    """As float64 of shape (rows, columns)."""
    given = np.asarray(scores)
    if given.ndim == 0:
        raise ValueError("scores: a single number has no rows; shape (..., columns) would do")
    if given.dtype.kind == "c":
        raise ValueError(f"scores: {given.dtype} has no order; real scores would do")
    x = given.astype(np.float64).reshape(math.prod(given.shape[:-1]), given.shape[-1])
    if not (x < np.inf).all():  # NaN compares false too
        raise ValueError("scores: NaN or +inf among them; finite scores, and -inf where masked, would do")
    return x
