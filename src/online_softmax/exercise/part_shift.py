"""Part 1: any shift gives the same softmax, and why the maximum is the one to take."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from ..numerics.formats import FORMATS, Format, log
from .choices import Choice
from .equivalence import Law
from .fields import Formula
from .questions import Ask, Draw, Part, Question, Traps, count_of, figure

FACTOR: Final = Law("exp(c)", heights=("c",), safe=False)
#: Threshold of exp: two or three digits are enough to tell one from another.
THRESHOLD: Final = Fraction(2, 1000)
_KINDS: Final = ("a normal number", "a subnormal number, with few digits left", "exactly 0")


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 1)
    columns = draw.one((96, 384, 1000, 2048, 5120, 32000, 50304))
    return Part(
        "1",
        "A shift changes nothing",
        "Throughout, a row is x_0 ... x_{C-1}, and its softmax is y_i = exp(x_i) / Σ_j exp(x_j).",
        (_any_shift(), _why_the_maximum(draw), _normaliser(draw, columns), _vanishing(draw)),
    )


def _any_shift() -> Question:
    field = Formula(
        FACTOR,
        traps=(
            ("exp(-c)", "that is what the shift put in; what takes it out again?"),
            ("c", "c lies in the exponent: what does that make it outside?"),
        ),
        nudge="Split exp(x_i - c) into a product of two exponentials.",
    )
    return Question(
        "1.1",
        "The shift cancels",
        "Someone computes exp(x_i - c) / Σ_j exp(x_j - c) with a constant c of their own.",
        (
            Ask(
                "1.1",
                "By which factor, written in c, must numerator and denominator both be multiplied to get "
                "back exp(x_i) / Σ_j exp(x_j)?",
                field,
            ),
        ),
    )


def _why_the_maximum(draw: Draw) -> Question:
    field = draw.choice(
        (
            ("none of them is above 0, and at least one is 0", ""),
            ("all of them are above 0", "Subtract the largest score from a smaller one: which sign?"),
            ("all of them lie between -1 and 0", "Take the row 0, 50: how far down do the differences go?"),
            ("they add up to 0", "That is what subtracting the mean would do."),
        )
    )
    return Question(
        "1.2",
        "Which constant",
        "Every c is right on paper. Kernels take c = max(x).",
        (Ask("1.2", "What does this choice ensure of the exponents x_i - c?", field),),
    )


def _normaliser(draw: Draw, columns: int) -> Question:
    overflow = draw.choice(
        (
            (
                "it lies between two numbers that depend on C alone, and both are tiny beside the largest "
                "float",
                "",
            ),
            ("the exponentials of negative numbers never round", "Rounding is not the question: size is."),
            ("it is always 1", "Try a row of equal scores."),
            ("the division by it comes later", "It has to be finite before it can divide."),
        )
    )
    return Question(
        "1.3",
        "The normaliser cannot overflow",
        f"Let m = max(x) and s = Σ_j exp(x_j - m), over a row of C = {columns} finite scores.",
        (
            Ask(
                "1.3a",
                "The lower bound on s that holds for every such row:",
                count_of(
                    1,
                    ((Fraction(0), "One of the terms is always the same: which, and how large is it?"),),
                    "One of the terms is always the same: which?",
                    ">",
                ),
            ),
            Ask(
                "1.3b",
                "The largest value s can have:",
                count_of(
                    columns,
                    (
                        (
                            Fraction(1),
                            "That would be a single term. There are C of them, each as large as it can be.",
                        ),
                    ),
                    "How large can one term be, and how many are there?",
                    "<",
                ),
            ),
            Ask("1.3c", "So s cannot overflow, because", overflow),
        ),
    )


def _vanishing(draw: Draw) -> Question:
    fmt = FORMATS[("float32", "bfloat16", "float16")[draw.one((0, 1, 2))]]
    gradual, flushed = fmt.exp_zero_below(flush=False).real, fmt.exp_zero_below(flush=True).real
    kind = draw.one((0, 1, 2))
    lowest, normal = int(-gradual), int(-flushed)
    gap = (
        draw.one(range(4, normal - 1)),
        draw.one(range(normal + 1, lowest)),
        lowest + draw.one(range(2, 40)),
    )[kind]
    top = draw.one(range(1, gap))
    return Question(
        "1.4",
        "What becomes of the small ones",
        f"One score of a row is {top}, all the others are {top - gap}. Everything is computed in "
        f"{fmt.name} by the safe formula, with correctly rounded exponentials.",
        (
            Ask(
                "1.4a",
                "The argument of exp for each of the small scores:",
                count_of(
                    -gap, ((Fraction(top - gap), "The maximum is subtracted first."),), "Score minus maximum."
                ),
            ),
            Ask(
                "1.4b",
                f"exp rounds to 0 in {fmt.name} once its argument is below, where subnormal numbers are "
                "kept:",
                figure(
                    gradual,
                    (
                        *_threshold_traps(fmt, gradual=True),
                        (Fraction(log(fmt.smallest_subnormal or fmt.smallest_normal)), _SMALLEST),
                    ),
                    tolerance=THRESHOLD,
                    nudge="The natural logarithm of half the smallest subnormal number.",
                    bound="<",
                ),
            ),
            Ask(
                "1.4c",
                "And where the processor flushes subnormal results to 0:",
                figure(
                    flushed,
                    _threshold_traps(fmt, gradual=False),
                    tolerance=THRESHOLD,
                    nudge="The natural logarithm of the smallest normal number.",
                    bound="<",
                ),
            ),
            Ask(
                "1.4d",
                "With subnormal numbers kept, the exponential of each small score is stored as",
                draw.choice(tuple((text, "") for text in _KINDS), kind, "Compare 1.4a with 1.4b and 1.4c."),
            ),
            Ask("1.4e", "If small terms of a row do come out as 0, the probabilities are", _harm(draw)),
        ),
    )


_SMALLEST: Final = "that is the smallest subnormal itself: what is more than half of it is rounded up to it"


def _harm(draw: Draw) -> Choice:
    return draw.choice(
        (
            (
                "as good as the format allows: what was lost is below one rounding of a sum that is at "
                "least 1, unless there are very many such terms",
                "",
            ),
            ("wrong: a probability is never 0", "Which number nearer to the true one does the format have?"),
            ("NaN, since 0 is divided by 0", "Is the denominator 0? Look at 1.3a."),
            ("too large for the top score by a factor of two", "How much mass is missing from s?"),
        )
    )


def _threshold_traps(fmt: Format, *, gradual: bool) -> Traps:
    """Base 2 and 10, the other threshold, the sign."""
    right, other = fmt.exp_zero_below(flush=not gradual).real, fmt.exp_zero_below(flush=gradual).real
    two, ten = Fraction(log(Fraction(2))), Fraction(log(Fraction(10)))
    kept = "kept" if not gradual else "flushed"
    return (
        (Fraction(other), f"that is where subnormal numbers are {kept}: the other case"),
        (Fraction(right) / two, "that is the exponent of 2: exp has base e"),
        (Fraction(right) / ten, "that is the exponent of 10: exp has base e"),
    )
