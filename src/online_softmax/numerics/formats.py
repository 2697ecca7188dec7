"""Number formats: where their exp overflows and vanishes, where their sums of ones stall and overflow.

Everything follows from a handful of parameters (`Format`) and is decided exactly: powers of two are
fractions, logarithms are intervals that are narrowed until the answer is certain. That always ends: exp of a
rational other than 0 is irrational, so it never meets a boundary of a format.

Rounding is to nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
from numpy.typing import DTypeLike

#: Beyond the 256-bit format of IEEE 754 (emax 262143, precision 237); larger ones would only cost time.
LARGEST_EXPONENT: Final = 2**18
LARGEST_PRECISION: Final = 2**10
#: Significant digits of the real thresholds.
DIGITS: Final = 30


@dataclass(frozen=True)
class Threshold:
    """An argument of exp at which results change kind.

    Attributes:
        real: the real number itself, correctly rounded to `DIGITS` significant digits.
        x: the last value of the format on the good side of it (exp finite, exp not 0).
    """

    real: Decimal
    x: Fraction

    def as_json(self) -> dict[str, Any]:
        """`real` as a float and with all its digits, `x`; for `json.dumps`."""
        return {
            "real": json_number(Fraction(self.real)),
            "real_digits": str(self.real),
            "x": json_number(self.x),
        }


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: what it is called.
        emax: exponent of the largest finite numbers, 2^emax <= largest < 2^(emax + 1).
        precision: significant bits, the implicit one included.
        emin: exponent of the smallest normal number, 2^emin. 1 - emax where not given, as in IEEE 754.
        subnormals: whether there are numbers between 0 and the smallest normal one.
        flush: whether arithmetic replaces results below the smallest normal number by 0, whatever the format
            could hold (FTZ). A result counts as below where it is so after rounding to `precision` bits, as
            IEEE 754 and x86 have it.
        finite_only: whether there is no infinity, and of the top exponent's numbers only the one with all
            bits set is lost, to NaN (float8 e4m3fn). Overflow gives NaN, or the largest number where a
            conversion saturates.

    Raises:
        TypeError: a parameter of another type.
        ValueError: a parameter out of range; the message says what would do.
    """

    name: str
    emax: int
    precision: int
    emin: int | None = None
    subnormals: bool = True
    flush: bool = False
    finite_only: bool = False

    def __post_init__(self) -> None:
        for name in ("emax", "precision", "emin"):
            value = getattr(self, name)
            if not (name == "emin" and value is None) and (
                isinstance(value, bool) or not isinstance(value, int)
            ):
                raise TypeError(f"{name}: {value!r} is no int")
        for name in ("subnormals", "flush", "finite_only"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: {getattr(self, name)!r} is no bool")
        _check("emax", self.emax, 1, LARGEST_EXPONENT)
        _check("precision", self.precision, 2, LARGEST_PRECISION)
        if self.emin is None:
            object.__setattr__(self, "emin", 1 - self.emax)  # so that a default equals the same value given
        _check("emin", self.min_exponent, -LARGEST_EXPONENT, 0)

    @property
    def min_exponent(self) -> int:
        """`emin`, never None."""
        return cast(int, self.emin)

    # --- range and precision ------------------------------------------------------------------------------

    @property
    def mantissa_bits(self) -> int:
        """Explicit ones: those stored."""
        return self.precision - 1

    @property
    def unit_roundoff(self) -> Fraction:
        """Largest relative error of one rounding in the normal range: 2^-precision."""
        return _power(-self.precision)

    @cached_property
    def largest(self) -> Fraction:
        """Largest finite number."""
        significand = (1 << self.precision) - (2 if self.finite_only else 1)
        return significand * _power(self.emax - self.precision + 1)

    @property
    def smallest_normal(self) -> Fraction:
        return _power(self.min_exponent)

    @property
    def smallest_subnormal(self) -> Fraction | None:
        """None for a format without. It is there even where arithmetic flushes."""
        return _power(self.min_exponent - self.precision + 1) if self.subnormals else None

    def effective_bits(self, value: Fraction | float) -> int:
        """Significant bits that a result of this magnitude keeps: `precision` in the normal range, fewer
        below, 0 where it becomes 0. ValueError for what is not positive and finite."""
        if not 0 < value < math.inf:
            raise ValueError(f"value: {value} has no magnitude; a positive number would do")
        value = Fraction(value)
        if self.becomes_zero(value):
            return 0
        if self.flush or value >= self.smallest_normal:
            return self.precision
        # Without subnormals, what is not taken for 0 is taken for the smallest normal number.
        left = _exponent(value) - self.min_exponent + self.precision if self.subnormals else 1
        return max(1, left)

    # --- boundaries of rounding ---------------------------------------------------------------------------

    @cached_property
    def overflow_bound(self) -> Fraction:
        """Where rounding leaves the finite numbers: half a unit in the last place above the largest."""
        return self.largest + _power(self.emax - self.precision)

    @property
    def zero_bound(self) -> Fraction:
        """Where rounding reaches 0: half the smallest number there is; with `flush` the boundary below which
        a result rounded to `precision` bits is less than the smallest normal number."""
        if self.flush:
            return self.smallest_normal - _power(self.min_exponent - self.precision - 1)
        return (self.smallest_subnormal or self.smallest_normal) / 2

    def overflows(self, value: Fraction) -> bool:
        """Whether a positive number rounds to no finite one."""
        # The tie goes to the even neighbour. The largest number is odd, but even below a NaN.
        return value > self.overflow_bound or (value == self.overflow_bound and not self.finite_only)

    def becomes_zero(self, value: Fraction) -> bool:
        """Whether a positive number rounds (or is flushed) to 0."""
        return value < self.zero_bound or (value == self.zero_bound and not self.flush)

    # --- exp ----------------------------------------------------------------------------------------------

    @cached_property
    def exp_overflows_above(self) -> Threshold:
        """Above it exp, correctly rounded, is not finite; `x` is the largest number whose exp is."""
        return self._threshold(self.overflow_bound, self._below)

    @cached_property
    def log_largest(self) -> Decimal:
        """Where exp passes the largest number. From there to `exp_overflows_above` it still rounds to it."""
        return log(self.largest)

    def exp_zero_below(self, flush: bool | None = None) -> Threshold:
        """Below it exp, correctly rounded, is 0; `x` is the smallest number whose exp is not 0.

        flush: with flush to zero or with gradual underflow, if not as the format says.
        """
        chosen = self if flush is None else replace(self, flush=flush)
        return chosen._threshold(chosen.zero_bound, lambda real: -self._below(-real))

    def _threshold(self, bound: Fraction, inside: Callable[[Fraction], Fraction]) -> Threshold:
        real = x = None
        for low, high in _log_intervals(bound):
            if real is None and _decimal(low) == _decimal(high):
                real = _decimal(low)
            if x is None and inside(low) == inside(high):
                x = inside(low)
            if real is not None and x is not None:
                break
        return Threshold(cast(Decimal, real), cast(Fraction, x))

    def _below(self, value: Fraction) -> Fraction:
        """The largest number of the format that is at most `value`; -largest where there is none."""
        if value == 0:
            return value
        exponent = max(_exponent(abs(value)), self.min_exponent)
        subnormal = not self.subnormals and abs(value) < self.smallest_normal
        unit = _power(exponent if subnormal else exponent - self.precision + 1)
        return max(-self.largest, min(self.largest, math.floor(value / unit) * unit))

    # --- sums of ones -------------------------------------------------------------------------------------

    @property
    def sum_of_ones_stalls_at(self) -> int | None:
        """The count at which ones added one after another stop growing: 2^precision + 1 is a tie that goes to
        2^precision. None where they overflow before."""
        ones = 1 << self.precision
        return ones if self.largest >= ones else None

    @property
    def largest_normaliser(self) -> int:
        """The most equal entries whose normaliser, in [1, C] for C of them, is at most the largest number.

        A running sum of them has stalled long before; this is the limit of a tree of additions, or of a sum
        in a wider format that is stored in this one.
        """
        return math.floor(self.largest)

    @property
    def normaliser_overflows_at(self) -> int:
        """The least C whose sum of ones, rounded once, is not finite. Between `largest_normaliser` and it
        the sum comes out as the largest number."""
        bound = self.overflow_bound
        return math.floor(bound) + 1 if self.finite_only else math.ceil(bound)

    def as_json(self) -> dict[str, Any]:
        """All figures, for `json.dumps`."""
        smallest, stall = self.smallest_subnormal, self.sum_of_ones_stalls_at
        return {
            "name": self.name,
            "emax": self.emax,
            "emin": self.emin,
            "subnormals": self.subnormals,
            "flush": self.flush,
            "finite_only": self.finite_only,
            "explicit_mantissa_bits": self.mantissa_bits,
            "effective_mantissa_bits": self.precision,
            "unit_roundoff": json_number(self.unit_roundoff),
            "largest": json_number(self.largest),
            "smallest_normal": json_number(self.smallest_normal),
            "smallest_subnormal": None if smallest is None else json_number(smallest),
            "log_largest": json_number(Fraction(self.log_largest)),
            "exp_overflows_above": self.exp_overflows_above.as_json(),
            "exp_zero_below": {
                "gradual": self.exp_zero_below(flush=False).as_json(),
                "flush": self.exp_zero_below(flush=True).as_json(),
            },
            "sum_of_ones_stalls_at": None if stall is None else json_number(Fraction(stall)),
            "largest_normaliser": json_number(Fraction(self.largest_normaliser)),
            "normaliser_overflows_at": json_number(Fraction(self.normaliser_overflows_at)),
        }


def exp_is_above(x: Fraction, bound: Fraction) -> bool:
    """Whether exp(x) > bound, for a positive bound: exactly."""
    if x == 0:
        return bound < 1
    for low, high in _log_intervals(bound):
        if x > high:
            return True
        if x < low:
            return False
    raise AssertionError("the intervals have no end")


def log(value: Fraction) -> Decimal:
    """Natural logarithm of a positive number, correctly rounded to `DIGITS` significant digits."""
    for low, high in _log_intervals(value):
        if _decimal(low) == _decimal(high):
            return _decimal(low)
    raise AssertionError("the intervals have no end")


def keeps_subnormals(dtype: DTypeLike = np.float32) -> bool:
    """Whether NumPy's arithmetic in `dtype` underflows gradually here and now (True) or flushes to zero.

    Measured by one multiplication in the calling thread, since a flag of the processor decides.
    """
    smallest = np.full(1, np.finfo(np.dtype(dtype)).smallest_normal, dtype)
    return bool((smallest * smallest.dtype.type(0.5))[0] != 0)


def json_number(value: Fraction) -> int | float | str:
    """For JSON: an int below 2^64 as it is, else a float, else (beyond float64) 17 digits in a string."""
    if value.denominator == 1 and abs(value) < 2**64:
        return value.numerator
    size = abs(value)
    if FORMATS["float64"].overflows(size) or FORMATS["float64"].becomes_zero(size):
        return str(_decimal(value, 17))
    return float(value)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}: {value} is out of range; {low} to {high} would do")


def _power(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def _exponent(value: Fraction) -> int:
    """floor(log2(value)) of a positive number."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if _power(guess) <= value else guess - 1


def _context(digits: int) -> Context:
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _decimal(value: Fraction, digits: int = DIGITS) -> Decimal:
    """Correctly rounded."""
    return _context(digits).divide(Decimal(value.numerator), Decimal(value.denominator))


def _log_intervals(value: Fraction) -> Iterator[tuple[Fraction, Fraction]]:
    """Ever narrower intervals around the natural logarithm of a positive number."""
    # Powers of two are taken out: what is left has few digits, which the cost of Decimal.ln goes by.
    top, bottom = value.numerator, value.denominator
    twos = _trailing_zeros(top) - _trailing_zeros(bottom)
    top >>= _trailing_zeros(top)
    bottom >>= _trailing_zeros(bottom)
    digits = 2 * DIGITS
    while True:
        context = _context(digits)
        log_two, log_top, log_bottom = (Fraction(context.ln(Decimal(n))) for n in (2, top, bottom))
        centre = twos * log_two + log_top - log_bottom
        # Decimal.ln is correctly rounded: half a unit in the last digit, taken twenty times here.
        error = Fraction(10) ** (1 - digits) * (abs(twos) * log_two + log_top + log_bottom)
        yield centre - error, centre + error
        digits *= 2


def _trailing_zeros(n: int) -> int:
    return (n & -n).bit_length() - 1


#: The formats that softmax meets, by name.
FORMATS: Final[dict[str, Format]] = {
    known.name: known
    for known in (
        Format("float64", emax=1023, precision=53),
        Format("float32", emax=127, precision=24),
        Format("tf32", emax=127, precision=11),
        Format("float16", emax=15, precision=11),
        Format("bfloat16", emax=127, precision=8),
        Format("float8_e4m3fn", emax=8, precision=4, emin=-6, finite_only=True),
        Format("float8_e5m2", emax=15, precision=3),
    )
}
