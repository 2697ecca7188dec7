"""Part 4: number formats: what exp and sums can be in them, and what breaks first."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from ..numerics.formats import FORMATS, Format, exp_is_above, log
from .choices import Choice
from .fields import EXACT, Field, Number
from .part_shift import THRESHOLD
from .questions import Ask, Draw, Grid, Part, Question, Traps, exponent_bits, figure

_WIDE: Final = ("float64", "float32")
_NARROW: Final = ("tf32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_COLUMNS: Final = (
    "largest finite value",
    "exp is finite up to",
    "mantissa bits stored",
    "exp finite there",
    "ones stall at",
)
_PAST: Final = "the logarithm of the power of 2 past the range: the largest value lies below"
_NO_NUMBER: Final = "the code with all bits set is not a number in this format: one step lower"
_TWO: Final = Fraction(log(Fraction(2)))
_TEN: Final = Fraction(log(Fraction(10)))
_SCALED: Final = (
    ("still needed: the scale shrinks the typical spread, but bounds no score", ""),
    ("not needed: scaled scores have variance 1", "That is an average: look at 4.3c."),
    ("needed in 16 bits only", "Learnt weights can be of any size."),
    (
        "harmful, since scores are scaled twice",
        "A shift is no scale: it cancels, see 1.1.",
    ),
)


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 4)
    names = [*draw.some(_WIDE, 1), *draw.some(_NARROW, 2)]
    formats = [*(FORMATS[name] for name in names), draw.custom_format()]
    return Part(
        "4",
        "Number formats",
        "Rounding is to nearest, ties to even, and subnormal numbers are kept.",
        (_thresholds(draw, formats), _accumulators(draw, formats), _scaling(draw), _storing(draw)),
    )


def _thresholds(draw: Draw, formats: list[Format]) -> Question:
    score = draw.one((7, 9, 10, 12, 15, 20, 30, 45, 60, 80, 85, 90, 100, 300, 700))
    mini = formats[-1]
    bits = 1 + exponent_bits(mini) + mini.mantissa_bits
    return Question(
        "4.1",
        "Thresholds",
        f"mini is a made-up format of {bits} bits by the rules of IEEE 754, {exponent_bits(mini)} of them "
        "for the exponent."
        + (
            " float8_e4m3fn has no infinity: of the largest exponent only the code with all bits set is "
            "not a number."
            if any(fmt.finite_only for fmt in formats)
            else ""
        )
        + ' "exp is finite up to" asks for the logarithm of the largest finite value. "exp finite '
        'there" asks '
        f'whether exp({score}) is finite in the format, "ones stall at" for the sum at which adding 1 '
        "again and again stops changing anything.",
        grid=Grid(
            "format", tuple(fmt.name for fmt in formats), _COLUMNS, tuple(_row(fmt, score) for fmt in formats)
        ),
    )


def _row(fmt: Format, score: int) -> tuple[Field, ...]:
    past, limit = Fraction(2) ** (fmt.emax + 1), Fraction(fmt.log_largest)
    largest = figure(
        fmt.largest,
        (
            (past, "that power of 2 is the first number past the range: the largest lies just below"),
            (
                _all_ones(fmt) if fmt.finite_only else past * 2,
                _NO_NUMBER if fmt.finite_only else "the exponent is one lower",
            ),
            *_short_of(fmt, past),
            (Fraction(2) ** (2 * fmt.emax + 1), "half of the exponents are negative"),
        ),
        nudge="(2 - 2^-(stored bits)) times the largest power of 2; what is the largest exponent?",
    )
    exp = figure(
        limit,
        (
            (limit / _TWO, "that is the exponent of 2: exp has base e"),
            (limit / _TEN, "that is the exponent of 10: exp has base e"),
            (Fraction(fmt.emax), "that is the exponent of 2: exp has base e"),
            *((Fraction(log(value)), hint) for value, hint in _short_of(fmt, past)),
            *(((Fraction(log(_all_ones(fmt))), _NO_NUMBER),) if fmt.finite_only else ()),
            (fmt.largest, "that is the value: its natural logarithm is asked for"),
            *(() if _nearly_past(fmt) else ((Fraction(log(past)), _PAST),)),
        ),
        tolerance=THRESHOLD,
        also=(
            (
                Fraction(fmt.exp_overflows_above.real),
                "with rounding: from there on exp rounds to no finite value",
            ),
            *_nearly_past(fmt),
        ),
        nudge="The natural logarithm of the largest finite value: is the column to the left right?",
        bound="<",
    )
    above = exp_is_above(Fraction(score), fmt.overflow_bound)
    word = Choice(
        ("yes", "no"),
        frozenset({int(above)}),
        nudge="Compare with the column two to the left.",
        lettered=False,
    )
    return largest, exp, _stored(fmt), word, _stall(fmt)


def _all_ones(fmt: Format) -> Fraction:
    """What the code of all mantissa bits set under the top exponent would stand for."""
    return Fraction(2) ** (fmt.emax + 1) - Fraction(2) ** (fmt.emax - fmt.precision + 1)


def _short_of(fmt: Format, past: Fraction) -> Traps:
    """Too small a largest value: no mantissa bits, or the top exponent left out where it is usable."""
    if not fmt.finite_only:
        return ((past / 2, "all mantissa bits may be set: almost twice that"),)
    return (
        (past / 2, "all but the last mantissa bit may be set under that exponent"),
        (_all_ones(fmt) / 2, "the top exponent is usable here: it holds numbers, all but one code"),
    )


def _stored(fmt: Format) -> Number:
    return Number(
        Fraction(fmt.mantissa_bits),
        str(fmt.mantissa_bits),
        tolerance=EXACT,
        also=((Fraction(fmt.precision), "with the implicit bit; one less is stored"),),
        nudge="All bits, less the sign and the exponent.",
    )


def _stall(fmt: Format) -> Number:
    stall = fmt.sum_of_ones_stalls_at or fmt.normaliser_overflows_at
    return figure(
        Fraction(stall),
        (
            (Fraction(stall, 2), "the implicit bit counts too"),
            (Fraction(stall * 2), "one bit too many"),
            (fmt.largest, "it stops long before it overflows"),
        ),
        tolerance=Fraction(1, 1000),
        nudge="From where on are neighbouring numbers 2 apart?",
    )


def _nearly_past(fmt: Format) -> Traps:
    """ln of the power of 2 past the range, where it is as good as right."""
    past, limit = Fraction(log(Fraction(2) ** (fmt.emax + 1))), Fraction(fmt.log_largest)
    remark = "that power of 2 is just past the range; here the difference is too small to matter"
    return ((past, remark),) if abs(past - limit) <= THRESHOLD * limit and past != limit else ()


def _accumulators(draw: Draw, formats: list[Format]) -> Question:
    columns = draw.one((200, 1500, 4096, 30000, 100000))
    lasting = [at for at, fmt in enumerate(formats) if (fmt.sum_of_ones_stalls_at or 0) >= columns]
    score = draw.one((30, 50, 70))
    naive = [at for at, fmt in enumerate(formats) if exp_is_above(Fraction(score), fmt.overflow_bound)]
    names = tuple((fmt.name, "") for fmt in formats)
    none = ((*names, ("none of them", "")), [len(formats)])
    return Question(
        "4.2",
        "Which will do",
        f"Logits before scaling reach {score}; rows have {columns} entries, which may all be equal.",
        (
            Ask(
                "4.2a",
                "Without the shift, in which of the formats is a single exponential of such a row already "
                "too large?",
                draw.choice(
                    *((names, naive) if naive else none), "Compare the score with the second column of 4.1."
                ),
            ),
            Ask(
                "4.2b",
                "With the shift, and terms added one after another in the format itself: in which does "
                "the running sum of such a row of equal scores come out right?",
                draw.choice(
                    *((names, lasting) if lasting else none), "Compare the row with the last column of 4.1."
                ),
            ),
        ),
    )


def _scaling(draw: Draw) -> Question:
    root = draw.one((6, 8, 10, 12, 14, 16))
    each = draw.one((2, 3, 4))
    dim, score = root * root, each * each * root
    fmt = FORMATS[("float16", "bfloat16", "float32")[draw.one((0, 1, 2))]]
    above = exp_is_above(Fraction(score), fmt.overflow_bound)
    return Question(
        "4.3",
        "What the scale does",
        f"Heads have d = {dim} dimensions; scores are q·k / sqrt(d).",
        (
            Ask(
                "4.3a",
                "With independent entries of mean 0 and variance 1, the standard deviation of q·k, before "
                "the scale:",
                figure(
                    Fraction(root),
                    ((Fraction(dim), "that is the variance"), (Fraction(1), "that is it after the scale")),
                    nudge="Variances of independent terms add up.",
                ),
            ),
            Ask(
                "4.3b",
                "and after it:",
                figure(Fraction(1), ((Fraction(root), "that is it before the scale"),)),
            ),
            Ask(
                "4.3c",
                f"Now q = k, with every entry {each}. The score after the scale:",
                figure(
                    Fraction(score),
                    (
                        (Fraction(score * root), "that is before the scale"),
                        (Fraction(each * each), "divide by the root of d, not by d"),
                    ),
                    nudge="Add up d equal products, then divide.",
                ),
            ),
            Ask(
                "4.3d",
                f"Is exp of the score in 4.3c finite in {fmt.name}?",
                Choice(
                    ("yes", "no"),
                    frozenset({int(above)}),
                    nudge="Compare with its threshold.",
                    lettered=False,
                ),
            ),
            Ask(
                "4.3e",
                "So with the scale the shift by the maximum is",
                draw.choice(_SCALED),
            ),
        ),
    )


def _storing(draw: Draw) -> Question:
    fmt = FORMATS[("float16", "float8_e5m2", "float8_e4m3fn")[draw.one((0, 1, 2))]]
    bound = fmt.zero_bound
    rows = math.floor(fmt.unit_roundoff / bound)
    first = draw.choice(
        (
            (f"terms that were stored as 0 in {fmt.name} add up to something", ""),
            ("the float32 sum stops growing", "That takes 2^24 equal terms: far longer rows."),
            ("the exponentials overflow", "After the shift none is above 1."),
            ("the float32 sum overflows", "It is at most C."),
        )
    )
    return Question(
        "4.4",
        "Exponentials in few bits, the sum in many",
        f"To move fewer bytes, exp(x_i - m) is stored in {fmt.name}; the terms are then added in float32.",
        (
            Ask(
                "4.4a",
                "A stored term is 0 if the true one is below (a power of 2 is fine):",
                figure(
                    bound,
                    (
                        (fmt.smallest_normal, "below the normal numbers there are subnormal ones"),
                        (fmt.unit_roundoff, "that is the relative error of one rounding"),
                        (
                            bound * 2,
                            "that is the smallest subnormal number: what is more than half of it is rounded "
                            "up to it, not to 0",
                        ),
                    ),
                    nudge="Half the smallest subnormal number.",
                    bound="<",
                ),
            ),
            Ask(
                "4.4b",
                "The sum is at least 1. Up to which row length C is the mass that can vanish that way (C "
                f"terms of the size in 4.4a) at most the unit roundoff of {fmt.name}, 2^-{fmt.precision}?",
                figure(
                    Fraction(rows),
                    (
                        (Fraction(rows, 2), "the bound on a term is half the smallest subnormal number"),
                        (1 / bound, "one unit roundoff, not all of the sum"),
                        (Fraction(2**fmt.precision), "that is where a sum kept in the format would stall"),
                    ),
                    tolerance=EXACT,
                    nudge="The unit roundoff divided by 4.4a.",
                    bound="<",
                ),
            ),
            Ask("4.4c", "What breaks first as C grows:", first),
        ),
    )
