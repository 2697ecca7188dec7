"""What a number format is good for in a softmax.

A verdict follows from the figures of a `Format`, a workload and the criteria in `verdict`; no format is
judged by its name.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final, Literal

from .formats import Format, exp_is_above, log

#: Entries of a row: the vocabularies of language models, long contexts.
COLUMNS: Final = 131072
#: Logits go from minus this to this: the largest whole number whose exp float32 can hold.
LARGEST_LOGIT: Final = 88.0
#: Relative error of the normaliser that is let pass.
TOLERANCE: Final = 0.01

Usable = Literal["yes", "limited", "no"]


@dataclass(frozen=True)
class Judgement:
    """Whether a format will do, and why: one sentence with the numbers that decide."""

    usable: Usable
    why: str


@dataclass(frozen=True)
class Verdict:
    """A format's use in a softmax whose rows have `columns` entries.

    Attributes:
        naive: exp(x) and its sum kept in the format, without a shift.
        safe: exp(x - max), in [0, 1], and the probabilities kept in the format; the sum elsewhere.
        accumulator: the sum of exp(x - max), in [1, columns], made in the format one term after another.
    """

    naive: Judgement
    safe: Judgement
    accumulator: Judgement

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return asdict(self)


def verdict(
    fmt: Format,
    *,
    columns: int = COLUMNS,
    largest_logit: float = LARGEST_LOGIT,
    smallest_logit: float | None = None,
    tolerance: float = TOLERANCE,
) -> Verdict:
    """Judge a format by a workload.

    The criteria, with t the magnitude below which a result becomes 0 and u the unit roundoff:

    - naive: no, where exp(largest_logit) overflows or exp(smallest_logit) becomes 0 (a row of such entries is
      0/0); limited, where the sum of `columns` of the former overflows or the latter is below the normal
      numbers and so loses bits; else yes. The sum is taken to be rounded once: how it is made is left to
      `accumulator`.
    - safe: no, where 1/columns, every entry of a uniform row, becomes 0; limited, where the terms that become
      0 may be more than one rounding error, columns * t > u, which without flush is also where 1/columns
      becomes subnormal; else yes.
    - accumulator: no, where a sum of `columns` ones stalls or overflows; limited, where the worst error of a
      running sum, (columns - 1) * u (Rump 2012, for any number of terms), is above `tolerance`; else yes.

    columns: entries of a row, 1 to 2^63. largest_logit, smallest_logit: finite, the latter
    -abs(largest_logit) where not given. tolerance: relative error of the sum, above 0 and up to 1.

    Raises TypeError where `columns` is no int, ValueError outside these ranges.
    """
    if isinstance(columns, bool) or not isinstance(columns, int):
        raise TypeError(f"columns: {columns!r} is no int")
    if not 1 <= columns <= 2**63:
        raise ValueError(f"columns: {columns} is out of range; 1 to 2^63 would do")
    lowest = -abs(largest_logit) if smallest_logit is None else smallest_logit
    if not math.isfinite(largest_logit):
        raise ValueError(f"largest_logit: {largest_logit} is out of range; a finite number would do")
    if not (math.isfinite(lowest) and lowest <= largest_logit):
        raise ValueError(
            f"smallest_logit: {lowest} is out of range; a finite number up to {largest_logit} "
            "(largest_logit) would do"
        )
    if not 0 < tolerance <= 1:
        raise ValueError(f"tolerance: {tolerance} is out of range; a number above 0 and up to 1 would do")
    return Verdict(
        _naive(fmt, columns, Fraction(largest_logit), Fraction(lowest)),
        _safe(fmt, columns),
        _accumulator(fmt, columns, Fraction(tolerance)),
    )


def _naive(fmt: Format, columns: int, highest: Fraction, lowest: Fraction) -> Judgement:
    overflow, zero = fmt.exp_overflows_above.real, fmt.exp_zero_below().real
    infinite = "NaN" if fmt.finite_only else "infinite"
    room = fmt.overflow_bound / columns
    if exp_is_above(highest, fmt.overflow_bound):
        return Judgement(
            "no",
            f"exp is {infinite} above {overflow:.2f}, a sum of {columns} above {log(room):.2f}, "
            f"and logits reach {_short(highest)}",
        )
    if not exp_is_above(lowest, fmt.zero_bound):
        return Judgement("no", f"exp is 0 below {zero:.2f}, and a row of logits at {_short(lowest)} is 0/0")
    if exp_is_above(highest, room):
        return Judgement(
            "limited",
            f"one exponential is finite up to {overflow:.2f}, "
            f"a sum of {columns} only up to {log(room):.2f}; logits reach {_short(highest)}",
        )
    if lowest < 0 and not fmt.flush and not exp_is_above(lowest, fmt.smallest_normal):
        bits = fmt.effective_bits(Fraction(Context(prec=30).exp(Decimal(float(lowest)))))
        return Judgement(
            "limited",
            f"exp({_short(lowest)}) keeps {bits} of {fmt.precision} bits: it is below the normal numbers",
        )
    return Judgement(
        "yes",
        f"a sum of {columns} exponentials is finite up to logits of {log(room):.2f}, "
        f"and exp is not 0 down to {zero:.2f}",
    )


def _safe(fmt: Format, columns: int) -> Judgement:
    # With flush the exact boundary lies a fraction of a rounding error lower.
    least = fmt.smallest_normal if fmt.flush else fmt.zero_bound
    lost = columns * least
    terms = f"terms below {_power_text(least)} become 0"
    if fmt.becomes_zero(Fraction(1, columns)):
        return Judgement("no", f"{terms}, which is every probability of a uniform row of {columns}")
    share = f"{terms}: at most {_percent(lost)} of the mass of {columns} entries"
    rounding = f"within one rounding error ({_power_text(fmt.unit_roundoff)})"
    if lost > fmt.unit_roundoff:
        return Judgement(
            "limited", f"{share}; {rounding} up to {math.floor(fmt.unit_roundoff / least)} entries"
        )
    return Judgement("yes", f"{share}, {rounding}")


def _accumulator(fmt: Format, columns: int, tolerance: Fraction) -> Judgement:
    stall, worst = fmt.sum_of_ones_stalls_at, (columns - 1) * fmt.unit_roundoff
    if stall is not None and columns > stall:
        return Judgement("no", f"a running sum of ones stalls at {_count(stall)}, short of {columns}")
    if fmt.overflows(Fraction(columns)):
        return Judgement(
            "no", f"a sum of ones overflows at {fmt.normaliser_overflows_at}, short of {columns}"
        )
    limit = "overflows before it stalls" if stall is None else f"stalls at {_count(stall)}"
    off = f"a running sum of {columns} may be off by {_percent(worst)}"
    if worst > tolerance:
        return Judgement("limited", f"{off}: add in blocks or a tree; a sum of ones {limit}")
    return Judgement("yes", f"{off} at the worst; a sum of ones {limit}")


def _count(n: int) -> str:
    """The stall of a format, a power of two."""
    return str(n) if n < 10**6 else f"2^{n.bit_length() - 1}"


def _power_text(value: Fraction) -> str:
    """A power of two."""
    return f"2^{value.numerator.bit_length() - value.denominator.bit_length()}"


def _percent(share: Fraction) -> str:
    """Two digits; what is less than a millionth not as a percentage."""
    if 0 < share < Fraction(1, 10**6):
        return f"{Decimal(share.numerator) / Decimal(share.denominator):.1e}"
    percent = float(100 * share)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _short(value: Fraction) -> str:
    return f"{float(value):g}"
