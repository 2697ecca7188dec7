"""Every small custom format, against a list of all its numbers and a rounding that looks them up."""

from __future__ import annotations

import bisect
import itertools
import math
from fractions import Fraction

import pytest

from online_softmax.numerics.formats import Format

#: emax, precision, emin, subnormals, flush, finite_only.
GRID = list(itertools.product((1, 2, 4), (2, 4), (-5, -1, 0), *[(False, True)] * 3))


class Numbers:
    """The positive numbers of a format in order, from 0 to one that stands for overflow."""

    def __init__(self, fmt: Format) -> None:
        low, top = 2 ** (fmt.precision - 1), 2**fmt.precision
        found = {
            (m, Fraction(2) ** (e - fmt.precision + 1))
            for e in range(fmt.emin, fmt.emax + 1)
            for m in range(low, top)
        }
        if fmt.subnormals:
            found |= {(m, Fraction(2) ** (fmt.emin - fmt.precision + 1)) for m in range(1, low)}
        # The code after the largest number: 2^(emax + 1), or the one that float8 e4m3fn takes for NaN.
        found.add((low, Fraction(2) ** (fmt.emax - fmt.precision + 2)))
        ordered = sorted((m * unit, m % 2 == 0) for m, unit in found)
        if fmt.finite_only:
            ordered.pop()
        self.values = [Fraction(0), *(value for value, _ in ordered)]
        self.even = [True, *(even for _, even in ordered)]
        self.fmt = fmt

    @property
    def finite(self) -> list[Fraction]:
        return self.values[1:-1]

    def round(self, value: Fraction) -> Fraction | None:
        """The nearest, ties to even; None for overflow."""
        if self.fmt.flush and self._tiny(value):
            return Fraction(0)
        above = bisect.bisect_left(self.values, value)
        if above == len(self.values):
            return None
        below = max(above - 1, 0)
        left, right = value - self.values[below], self.values[above] - value
        if left == right and not self.fmt.subnormals and below == 0:
            chosen = 0  # both are even: the format has no codes between them
        else:
            chosen = below if left < right or (left == right and self.even[below]) else above
        return None if chosen == len(self.values) - 1 else self.values[chosen]

    def _tiny(self, value: Fraction) -> bool:
        """Less than the smallest normal number after rounding as if there were smaller ones."""
        unit = Fraction(2) ** (self.fmt.emin - self.fmt.precision)
        return round(value / unit) * unit < Fraction(2) ** self.fmt.emin


@pytest.mark.parametrize("parameters", GRID, ids=str)
def test_every_number_of_a_small_custom_format(parameters):
    emax, precision, emin, *kind = parameters
    fmt = Format("own", emax, precision, emin, *kind)
    numbers = Numbers(fmt)
    assert fmt.largest == numbers.finite[-1]
    assert fmt.smallest_normal == Fraction(2) ** emin
    assert fmt.smallest_subnormal == (min(numbers.finite) if fmt.subnormals else None)

    for low, high in itertools.pairwise(numbers.values):
        for value in (low, (low + high) / 2, (low * 99 + high) / 100, (low + high * 99) / 100, high):
            if value > 0:
                rounded = numbers.round(value)
                assert fmt.overflows(value) == (rounded is None)
                assert fmt.becomes_zero(value) == (rounded == 0)

    for x in (sign * value for value in numbers.finite for sign in (-1, 1)):
        # No exp of these comes near a boundary: float64's will do.
        rounded = numbers.round(Fraction(math.exp(x)))
        assert (rounded is not None) == (x <= fmt.exp_overflows_above.x)
        assert (rounded != 0) == (x >= fmt.exp_zero_below().x)


@pytest.mark.parametrize("parameters", GRID, ids=str)
def test_sums_of_ones_in_a_small_custom_format(parameters):
    emax, precision, emin, *kind = parameters
    fmt = Format("own", emax, precision, emin, *kind)
    numbers = Numbers(fmt)
    total: Fraction | None = Fraction(1)
    for count in range(2, 2 ** (precision + 2)):
        before, total = total, numbers.round(total + 1)
        if total is None or total == before:
            break
        assert total == count
    assert fmt.sum_of_ones_stalls_at == (None if total is None else before)
    assert fmt.largest_normaliser == max(n for n in range(1, 2 ** (emax + 1)) if n <= numbers.finite[-1])
    overflowing = (n for n in range(1, 2 ** (emax + 2)) if numbers.round(Fraction(n)) is None)
    assert fmt.normaliser_overflows_at == next(overflowing)
