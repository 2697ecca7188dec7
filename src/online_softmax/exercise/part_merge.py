"""Part 3: streaming is the batch result, two halves merge, and where the merge is undefined."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from .. import state
from .choices import Choice
from .equivalence import Law
from .fields import Formula, Number
from .part_update import RESCALED, TURNED, UNSAFE
from .questions import Ask, Draw, Part, Question, count_of, figure

_SIDES: Final = (("m_a", "s_a"), ("m_b", "s_b"))
_JOINT: Final = {"M": "max(m_a, m_b)"}
FIRST: Final = Law("x", heights=("x",), sides=(("x", ""),))
EXPONENT: Final = Law("x_i - M", heights=("x_i", "m", "M"))
#: The same, written with its exp.
TERM: Final = Law("exp(x_i - M)", heights=("x_i", "m", "M"))
JOINT: Final = Law("max(m_a, m_b)", heights=("m_a", "m_b"), sides=(("m_a", ""), ("m_b", "")))
#: The merge of `state.py` without and with its guard; `tests/exercise` holds these to it.
MERGE: Final = Law(
    "s_a*exp(m_a - M) + s_b*exp(m_b - M)",
    heights=("m_a", "m_b"),
    sums=("s_a", "s_b"),
    defined=_JOINT,
    sides=_SIDES,
)
GUARDED: Final = Law(
    "s_a*exp(m_a - where(isinf(M), 0, M)) + s_b*exp(m_b - where(isinf(M), 0, M))",
    heights=("m_a", "m_b"),
    sums=("s_a", "s_b"),
    defined=_JOINT,
    sides=_SIDES,
    guarded=True,
)
THREE: Final = Law(
    "s_a*exp(m_a - M) + s_b*exp(m_b - M) + s_c*exp(m_c - M)",
    heights=("m_a", "m_b", "m_c"),
    sums=("s_a", "s_b", "s_c"),
    defined={"M": "max(m_a, max(m_b, m_c))"},
    sides=(*_SIDES, ("m_c", "s_c")),
)
_NAMES: Final = {"m": "M", "m'": "M", "m_ab": "M", "m_new": "M", "m_max": "M"}
SPELLINGS: Final = (
    _NAMES
    | {f"{v}{side}": f"{v}_{side}" for v in "ms" for side in "abc"}
    | {f"{v}_{at}": f"{v}_{side}" for v in "ms" for at, side in ((1, "a"), (2, "b"), (3, "c"))}
)
MERGE_TRAPS: Final = (
    ("s_a + s_b", "two sums with different shifts cannot be added: bring both to the new maximum"),
    ("s_a*exp(M - m_a) + s_b*exp(M - m_b)", TURNED),
    ("s_a + s_b*exp(m_b - m_a)", "that is shifted by m_a, which need not be the larger"),
    ("s_a*exp(m_a - m_b) + s_b", "that is shifted by m_b, which need not be the larger"),
    ("s_a*exp(m_a) + s_b*exp(m_b)", "max forgotten: nothing is shifted, and the sum overflows"),
    ("(s_a + s_b)*exp(m_a - M)", "each side has a maximum of its own to come from"),
    ("s_a*exp(m_a - M) * s_b*exp(m_b - M)", "sums of terms are added"),
    ("s_a*exp(m_a - m_b) + s_b*exp(m_b - m_a)", "bring both to one maximum, the larger of the two"),
)


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 3)
    return Part(
        "3",
        "Streams and halves",
        "Now show that nothing was approximated, and that a row may be cut anywhere.",
        (_induction(draw), _merge(draw), _monoid(draw), _undefined(draw)),
    )


def _induction(draw: Draw) -> Question:
    names = {"m_k": "m", "m_old": "m", "m_new": "M", "m'": "M", "m_k+1": "M", "xi": "x_i"}
    law = draw.choice(
        (
            ("exp(a) exp(b) = exp(a + b)", ""),
            ("exp(a) + exp(b) = exp(a + b)", "Try a = b = 0."),
            ("exp(a) > a", "True, but nothing here is an estimate."),
            ("log(a b) = log a + log b", "There is no logarithm in the update."),
        )
    )
    return Question(
        "3.1",
        "The stream ends with the definition",
        "Claim: after k scores the stream holds exactly m = max of them and s = Σ exp(x_i - m). By "
        "induction on k.",
        (
            Ask("3.1a", "It starts with one score x. After it, m is", Formula(FIRST, "m", {"x_0": "x"})),
            Ask(
                "3.1b",
                "and s is",
                count_of(1, ((Fraction(0), "one score has been seen"),), "exp(x - m), with 3.1a."),
            ),
            Ask(
                "3.1c",
                "Step: let s = Σ exp(x_i - m) by assumption. The factor of 2.2c goes inside the sum, and "
                "every term becomes exp of which exponent (in x_i, m, M)?",
                Formula(
                    EXPONENT,
                    "",
                    names,
                    (
                        ("x_i - m", "the factor has moved it"),
                        ("x_i - m + M", TURNED),
                    ),
                    also=(TERM,),
                    nudge="Add the two exponents.",
                ),
            ),
            Ask("3.1d", "The only rule of exp used is", law),
            Ask(
                "3.1e",
                "In real arithmetic, the streamed softmax therefore differs from the batch one by",
                draw.choice(
                    (
                        ("nothing", ""),
                        ("an error that grows with the number of new maxima", "Rounding aside: see 3.1c."),
                        ("a factor that cancels", "s itself is the same number, not only the quotient."),
                    )
                ),
            ),
        ),
    )


def _merge(draw: Draw) -> Question:
    two = float(np.log(2))
    low = draw.one(range(-3, 4))
    heights = [low, low + draw.one((1, 2, 3, 4))]
    if draw.one((0, 1)):
        heights.reverse()
    sums = [draw.one((3, 5, 6, 7, 9, 10, 12)) / 4 + 1 for _ in range(2)]
    sides = [(np.array(h * two), np.array(s)) for h, s in zip(heights, sums, strict=True)]
    merged = float(state.merge(*sides)[1])
    return Question(
        "3.2",
        "The merge",
        "Two threads have each seen a part of the row, and hold (m_a, s_a) and (m_b, s_b). Together they "
        "have seen all of it.",
        (
            Ask(
                "3.2a",
                "The maximum of both parts, from m_a and m_b:",
                Formula(
                    JOINT,
                    "M",
                    SPELLINGS,
                    (("m_a + m_b", "the largest score of either part, no sum"),),
                    nudge="The largest score lies in one of the parts.",
                ),
            ),
            Ask(
                "3.2b",
                "Call it M. The sum of both parts, from m_a, s_a, m_b, s_b and M:",
                Formula(
                    MERGE,
                    "S",
                    SPELLINGS,
                    MERGE_TRAPS,
                    merge=True,
                    unsafe=UNSAFE,
                    nudge="Each side is rescaled as an old sum is in 2.2d.",
                ),
            ),
            Ask(
                "3.2c",
                f"With (m_a, s_a) = ({heights[0]} ln 2, {sums[0]:g}) and (m_b, s_b) = ({heights[1]} ln 2, "
                f"{sums[1]:g}), the sum is",
                figure(
                    Fraction(round(merged * 2**20), 2**20),
                    ((Fraction(sum(sums)), RESCALED),),
                    nudge="exp of k ln 2 is a power of 2.",
                ),
            ),
        ),
    )


def _monoid(draw: Draw) -> Question:
    parts = draw.one((6, 12, 24, 48, 96, 100, 200, 1000))
    why = draw.choice(
        (
            ("parts may be cut and merged in any grouping and order: lanes, threads, blocks, machines", ""),
            ("the sum needs no maximum any more", "Every state carries its own."),
            ("each score is read only once", "That holds for one thread already."),
            (
                "floating-point results are the same bits in any order",
                "The laws are those of real numbers; rounding depends on the order.",
            ),
        )
    )
    return Question(
        "3.3",
        "Its laws",
        "The merge is commutative and associative, and has an identity.",
        (
            Ask(
                "3.3a",
                "Associativity: merging a, b, c gives the same sum with either bracketing. With M the "
                "maximum of all three, that sum is",
                Formula(
                    THREE,
                    "S",
                    SPELLINGS,
                    (
                        ("s_a + s_b + s_c", "each of the three has a shift of its own"),
                        ("s_a*exp(M - m_a) + s_b*exp(M - m_b) + s_c*exp(M - m_c)", TURNED),
                    ),
                    unsafe=UNSAFE,
                    nudge="Merge a and b, then merge the result with c, and multiply out.",
                ),
            ),
            Ask("3.3b", "The identity is the state of no scores at all. Its m is", _infinite(-math.inf)),
            Ask("3.3c", "and its s is", _zero()),
            Ask("3.3d", "What all this buys on parallel hardware:", why),
            Ask(
                "3.3e",
                f"Merged pairwise in a balanced tree, {parts} states need how many levels of merges?",
                count_of(
                    math.ceil(math.log2(parts)),
                    (
                        (Fraction(parts - 1), "that is the number of merges, or the length of a chain"),
                        (Fraction(math.floor(math.log2(parts))), "not quite enough: states are left over"),
                    ),
                    "Each level halves the number of states, rounded up.",
                ),
            ),
        ),
    )


def _infinite(value: float) -> Number:
    shown = "-inf" if value < 0 else "inf"
    return Number(
        Decimal(shown),
        shown,
        traps=((Fraction(0), "with a score of -5 on the other side, max would give 0"),),
        nudge="max(m, it) has to be m for every m, however low: no finite number will do.",
    )


def _zero() -> Number:
    return count_of(0, ((Fraction(1), "that would be one score"),), "How many terms has a sum over nothing?")


def _undefined(draw: Draw) -> Question:
    where = draw.choice(
        (
            ("where both maxima are -inf: nothing seen, or only masked scores, on either side", ""),
            ("where the two maxima are equal", "Then both exponents are 0."),
            ("where one side is the identity and the other is not", "exp(-inf - M) is 0 for a finite M."),
            ("where the maxima are further apart than exp reaches", "exp of a large negative number is 0."),
        )
    )
    return Question(
        "3.4",
        "Where it breaks",
        "On a computer, -inf is a value like others, and 3.2b as it is usually written can give NaN "
        "though no score is.",
        (
            Ask("3.4a", "It does so", where),
            Ask("3.4b", "Which operation is the first to give NaN there?", _operation(draw)),
            Ask(
                "3.4c",
                "Write the sum of 3.2b so that it is right there too. A comparison can be written "
                "where(condition, a, b): a where the condition holds and b elsewhere; conditions are made "
                "of ==, !=, <, >, isinf(...), and, or, not; -inf may be written.",
                Formula(
                    GUARDED,
                    "S",
                    SPELLINGS,
                    MERGE_TRAPS,
                    merge=True,
                    unsafe=UNSAFE,
                    nudge="One comparison is enough: which pivot is harmless where M is not finite?",
                ),
            ),
        ),
    )


def _operation(draw: Draw) -> Choice:
    return draw.choice(
        (
            ("the subtraction in the exponent", ""),
            ("the comparison in max", "max(-inf, -inf) is -inf."),
            ("exp of -inf", "That is 0."),
            ("the sum of the two products", "NaN was there before."),
        )
    )
