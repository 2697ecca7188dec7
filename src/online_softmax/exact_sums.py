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
        """Of up to _PIECE values a row, so that doubles hold the sums of their slices."""
        most = np.abs(values).max(axis=-1, initial=0.0)
        odd = np.zeros(most.shape)
        if not np.isfinite(most).all():
            finite = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                odd = np.where(finite, 0.0, values).sum(axis=-1)
            values = np.where(finite, values, 0.0)
            most = np.abs(values).max(axis=-1)
        n = np.frexp(most)[1].astype(np.int64)
        b = np.where(most > 0, exact.bin_of(n, form), 0)
        # In two steps, for 2**-(W*b) may be past what a double holds; W is even.
        half = np.ldexp(1.0, (-form.width // 2 * b).astype(np.int32))[..., None]
        rest, a = (values * half) * half, np.empty((*most.shape, form.slices), np.int64)
        for k in range(form.slices):
            whole = np.rint(rest)
            a[..., k] = whole.sum(axis=-1)
            rest -= whole
            rest *= 2.0**form.width
        return cls(np.where(most > 0, b, _NONE), a, odd, form)

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
            total = np.ldexp(
                exact.total(self.a, self.form.width), (self.form.width * self.top).astype(np.int32)
            )
            total = np.where(self.odd == 0, total, self.odd)
        return np.where(np.isnan(total), np.nan, total)


def weighted(scores: Array, weights: Array | None) -> Array:
    """weight * score in float64, 0 where the weight is 0 whatever the score."""
    wide = scores.astype(np.float64)
    if weights is None:
        return wide
    with np.errstate(all="ignore"):
        made = wide * weights
    # Smaller ones, too, are what machines differ in.
    return np.where((weights == 0) | (np.abs(made) < exact.FLOAT64.smallest), 0.0, made)
