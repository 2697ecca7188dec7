"""Part 2: the update for one more score, derived step by step, and run by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from .. import state
from ..numerics.formats import log
from ..traffic.model import expected_maxima
from .equivalence import Law
from .fields import Formula
from .questions import Ask, Draw, Grid, Part, Question, count_of, figure

#: The push of `state.py` for one score; `tests/exercise` holds these to it.
_EITHER: Final = (("m", ""), ("x", ""))
MAXIMUM: Final = Law("max(m, x)", heights=("m", "x"), sides=_EITHER, strict=False)
NEW_TERM: Final = Law("exp(x - M)", heights=("m", "x"), defined={"M": "max(m, x)"}, sides=_EITHER)
INSERTED: Final = Law("exp(m)", heights=("m",), safe=False)
DIVIDED: Final = Law("exp(-m)", heights=("m",), safe=False)
RESCALE: Final = Law("exp(m - M)", heights=("m", "x"), defined={"M": "max(m, x)"}, sides=_EITHER)
PUSH: Final = Law(
    "s*exp(m - M) + exp(x - M)",
    heights=("m", "x"),
    sums=("s",),
    defined={"M": "max(m, x)"},
    sides=(("m", "s"), ("x", "")),
)
NO_NEW_MAXIMUM: Final = Law("s + exp(x - m)", heights=("m", "x"), sums=("s",), safe=False)
CHANCE: Final = Law("1/n", sums=("n",))

SPELLINGS: Final = {
    "m_k": "m",
    "m_old": "m",
    "s_k": "s",
    "s_old": "s",
    "x_k": "x",
    "x_new": "x",
    "m'": "M",
    "M'": "M",
    "m_k+1": "M",
    "m_new": "M",
    "m_next": "M",
    "new_m": "M",
    "M_new": "M",
    "m_kplus1": "M",
    "x_k+1": "x",
}
RESCALED: Final = "a sum that is shifted by m cannot be added to terms shifted by M: bring it over first"
TURNED: Final = "the sign is the wrong way round: try x far above m, where the old sum has to shrink"
OLD: Final = "the new term is shifted by the old maximum: if x is the new one, its own term should be 1"
UNSAFE: Final = "equal on paper, but it overflows or vanishes for scores of 800: keep differences inside exp"
PUSH_TRAPS: Final = (
    ("s + exp(x - M)", RESCALED),
    ("s + exp(x - m)", RESCALED),
    ("s*exp(M - m) + exp(x - M)", TURNED),
    ("s*exp(m - M) + exp(x - m)", OLD),
    ("s*exp(M - m) + exp(x - m)", TURNED),
    (
        "s*exp(m - x) + exp(x - M)",
        "the old sum is shifted to the new maximum, which need not be x",
    ),
    ("s*exp(m - M) + 1", "the new term is 1 only if x is the new maximum"),
    ("s*exp(m - M)", "the term of x itself is missing"),
    ("s*exp(m) + exp(x)", "max forgotten: nothing is shifted, and the sum overflows"),
    ("s + exp(x)", "max forgotten: nothing is shifted, and the sum overflows"),
    ("(s + exp(x - m))*exp(M - m)", TURNED),
)
CHANCE_TRAPS: Final = (
    ("1/(n + 1)", "check n = 1: the first score always is one"),
    ("1/2", "the more scores have been seen, the harder they are to beat"),
    ("(n - 1)/n", "that is the chance that it is none"),
    ("1/2^n", "check n = 2: which of two is larger is a coin's toss"),
)
NO_NEW_TRAPS: Final = (
    ("s + 1", "the new term is 1 only if x equals the maximum"),
    ("s + exp(x)", "the term of x is shifted like all the others"),
    ("s", "x still counts"),
)


def part(seed: int) -> Part:
    """The part for a seed."""
    draw = Draw(seed, 2)
    return Part(
        "2",
        "One more score",
        "The row arrives score by score, and all that is kept is a pair: m, the maximum of the scores so "
        "far, and s, the sum of exp(x_i - m) over them. Now a score x arrives. Write M for the new "
        "maximum and S for the new sum; in formulas M may be used wherever it helps.",
        (_maximum(), _derivation(), _factor(draw), _frequency(draw), _by_hand(draw)),
    )


def _maximum() -> Question:
    field = Formula(
        MAXIMUM,
        "M",
        {name: to for name, to in SPELLINGS.items() if to != "M"},
        (("min(m, x)", "the wrong end of the row"), ("x", "and if x is smaller than what came before?")),
        nudge="M has to be at least both.",
    )
    return Question("2.1", "The new maximum", "", (Ask("2.1", "M, from m and x:", field),))


def _derivation() -> Question:
    def formula(law: Law, name: str, traps: tuple[tuple[str, str], ...], nudge: str) -> Formula:
        return Formula(law, name, SPELLINGS, traps, nudge=nudge, unsafe=UNSAFE)

    return Question(
        "2.2",
        "The new sum, derived",
        "Start from what S is: the sum of exp(x_i - M) over the old scores, and one term for x. The old "
        "terms are not kept, s is.",
        (
            Ask(
                "2.2a",
                "The term that x itself contributes to S:",
                formula(
                    NEW_TERM,
                    "",
                    (
                        ("exp(x - m)", OLD),
                        ("exp(x)", "every term of S is shifted by the new maximum"),
                        ("exp(M - x)", TURNED),
                        ("1", "only if x is the new maximum; it need not be"),
                    ),
                    "Put x into the definition of S.",
                ),
            ),
            Ask(
                "2.2b",
                "To bring the old terms to the shape they have in s, each is multiplied and divided by "
                "one factor that does not depend on i. Which? (It, or its inverse.)",
                Formula(
                    INSERTED,
                    spellings={name: to for name, to in SPELLINGS.items() if to == "m"},
                    also=(DIVIDED,),
                    nudge="exp(x_i - M) has to become exp(x_i - m) times the rest.",
                ),
            ),
            Ask(
                "2.2c",
                "So exp(x_i - M) is exp(x_i - m) times",
                formula(
                    RESCALE,
                    "",
                    (("exp(M - m)", TURNED), ("exp(m)", "M has to appear too"), ("1", "m and M may differ")),
                    "Subtract the two exponents.",
                ),
            ),
            Ask(
                "2.2d",
                "Summed up, S from m, s, x (and M) is",
                formula(
                    PUSH,
                    "S",
                    PUSH_TRAPS,
                    "Put 2.2a and 2.2c into the definition of S.",
                ),
            ),
        ),
    )


def _factor(draw: Draw) -> Question:
    interval = draw.choice(
        (
            ("above 0, and at most 1", ""),
            ("at least 1", "Is M ever below m?"),
            ("between 0 and 1, never 1 itself", "What if x is not a new maximum?"),
            ("any positive number", "Which sign does the exponent have?"),
        )
    )
    reason = draw.choice(
        (
            ("M is never below m, so that its exponent is never positive", ""),
            ("s is at least 1", "True, but the factor does not depend on s."),
            ("exp is never above 1", "exp(2) is."),
            ("x is never above m", "If it is, x is the new maximum."),
        )
    )
    safe = draw.choice(
        (
            (
                "an old sum can only shrink, and the new term is at most 1, so S stays at most the number "
                "of scores seen",
                "",
            ),
            ("the factor is rounded towards 0", "Rounding is to nearest here."),
            ("s is kept in a wider format", "No format is needed that holds more than C."),
            ("the factor is 1 most of the time", "True, but one overflow would be enough."),
        )
    )
    return Question(
        "2.3",
        "The factor of the old sum",
        "Look at the factor found in 2.2c.",
        (
            Ask("2.3a", "For finite scores it is", interval),
            Ask("2.3b", "because", reason),
            Ask("2.3c", "The update cannot overflow, since", safe),
        ),
    )


def _frequency(draw: Draw) -> Question:
    columns = draw.one((192, 256, 384, 512, 768, 1024))
    expected = expected_maxima(columns)
    share = Fraction(100) * expected / columns
    logarithm = Fraction(log(Fraction(columns)))
    return Question(
        "2.4",
        "How often the maximum moves",
        f"The scores of a row of C = {columns} are all different and in random order: every order is "
        "equally likely.",
        (
            Ask(
                "2.4a",
                "When x is no new maximum, the factor is 1. What is left of the update, from m, s and x?",
                Formula(
                    NO_NEW_MAXIMUM,
                    "S",
                    SPELLINGS,
                    NO_NEW_TRAPS,
                    nudge="Put M = m into 2.2d.",
                ),
            ),
            Ask(
                "2.4b",
                "The chance that the n-th score (counted from 1) is a new maximum, as a formula in n:",
                Formula(
                    CHANCE,
                    traps=CHANCE_TRAPS,
                    nudge="Among the first n scores each is equally likely to be the largest.",
                ),
            ),
            Ask(
                "2.4c",
                "The number of new maxima to be expected in the row, the first score counted as one:",
                figure(
                    expected,
                    (
                        (logarithm, "the sum of 1/n is more than the logarithm, by a constant"),
                        (expected - 1, "the first score counts as a new maximum here"),
                        (logarithm / Fraction(log(Fraction(2))), "the natural logarithm, not that of base 2"),
                        (Fraction(columns, 2), "the chance falls with n: add up 2.4b"),
                    ),
                    tolerance=Fraction(2, 100),
                    nudge="Add up 2.4b over n = 1 ... C; the sum is close to ln C + 0.577.",
                ),
            ),
            Ask(
                "2.4d",
                "So the share of all C updates whose factor is not 1, in percent:",
                figure(
                    share,
                    ((share / 100, "in percent, please"), (100 - share, "that is the others' share")),
                    kind="percent",
                    tolerance=Fraction(3, 100),
                    nudge="2.4c out of C.",
                ),
            ),
        ),
    )


def _by_hand(draw: Draw) -> Question:
    two, two_exact = float(np.log(2)), Fraction(log(Fraction(2)))
    heights = [draw.one(range(-1, 3))]
    for step in (draw.one((-3, -2, -1)), draw.one((2, 3)), 0, draw.one((-2, -1)), draw.one((2, 3, 4))):
        heights.append(max(heights) + step if step else draw.one(range(max(heights) - 3, max(heights))))
    pair, rows, cells = state.identity(dtype=np.float64), [], []
    for at, height in enumerate(heights):
        before = float(pair[1])
        pair = state.push(pair, np.array([height * two]))
        m, s = float(pair[0]) / two, float(pair[1])
        unscaled = before + float(np.exp(height * two - float(pair[0])))
        rows.append(f"x_{at} = {height} ln 2")
        cells.append(
            (
                count_of(
                    round(m),
                    (
                        (Fraction(height), "and the scores before it?"),
                        (round(m) * two_exact, "divided by ln 2: the whole number alone"),
                    ),
                    "The largest so far: of k ln 2 the whole number k alone.",
                ),
                figure(
                    Fraction(round(s * 2**20), 2**20),
                    ((Fraction(round(unscaled * 2**20), 2**20), RESCALED),),
                    nudge="exp of k ln 2 is a power of 2: rescale, then add.",
                ),
            )
        )
    return Question(
        "2.5",
        "The update by hand",
        "Run it. The scores are whole multiples of ln 2, so that every exponential is a power of 2. Give "
        "m as a multiple of ln 2 (the whole number alone) and s as a number, after each step.",
        grid=Grid("score", tuple(rows), ("m / ln 2", "s"), tuple(cells)),
    )
