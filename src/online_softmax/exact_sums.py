"""Sums of numbers whose bits do not depend on the order or the split: `exact` without the exponentials.

A number is cut into slices on a grid that the greatest magnitude alone fixes, and slices are summed as whole
numbers. So sums merge as states do: merge(sum(X), sum(Y)) = sum(X + Y) bit for bit. What falls below the grid
is less than 2**-43 of the greatest magnitude a number (float64: 2**-95).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from . import exact
from .exact import Format

Array = NDArray[Any]

#: The bin of nothing and of zeros, below that of any number.
_NONE: Final = -100
#: Elements worked on at once.
_PIECE: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of rows, of one shape.

    Attributes:
        top: int64, the bin of the greatest magnitude; a: int64 with a last axis of `form.slices`.
        odd: float64, the sum of what is not finite, 0 where all is.
        form: float32's or float64's widths.
    """

    top: Array
    a: Array
    odd: Array
    form: Format

    @classmethod
    def of(cls, values: Array, form: Format) -> Self:
        """Of float64 values over the last axis."""
        top = np.full(values.shape[:-1], _NONE, np.int64)
        a = np.zeros((*top.shape, form.slices), np.int64)
        made = cls(top, a, np.zeros(top.shape), form)
        for at in range(0, values.shape[-1], _PIECE):
            made = made.merge(cls._piece(values[..., at : at + _PIECE], form))
        return made

    @classmethod
    def _piece(cls, values: Array, form: Format) -> Self:
        finite = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            odd = np.where(finite, 0.0, values).sum(axis=-1)
        p, n = np.frexp(np.where(finite, values, 0.0))
        n = n.astype(np.int64)
        top = np.where(p == 0, _NONE, exact.bin_of(n, form)).max(axis=-1)
        a = exact.slices(p, n, top[..., None], form).sum(axis=-2)
        return cls(top, a, odd, form)

    def merge(self, other: Self) -> Self:
        """The sums of both."""
        upper = np.maximum(self.top, other.top)
        a = np.zeros_like(self.a)
        for part in (self, other):
            down = np.minimum(upper - part.top, self.form.slices)
            for k in range(self.form.slices):
                for d in range(k + 1):
                    a[..., k] += np.where(down == d, part.a[..., k - d], 0)
        with np.errstate(invalid="ignore"):
            return type(self)(upper, a, self.odd + other.odd, self.form)

    @property
    def value(self) -> Array:
        """The sums in float64; one pattern for NaN."""
        with np.errstate(all="ignore"):
            total = np.ldexp(exact._sum(self.a, self.form), (self.form.width * self.top).astype(np.int32))
            total = np.where(self.odd == 0, total, self.odd)
        return np.where(np.isnan(total), np.nan, total)


def weighted(scores: Array, weights: Array | None) -> Array:
    """weight * score in float64, 0 where the weight is 0 whatever the score."""
    wide = scores.astype(np.float64)
    if weights is None:
        return wide
    with np.errstate(all="ignore"):
        return np.where(weights == 0, 0.0, wide * weights)
