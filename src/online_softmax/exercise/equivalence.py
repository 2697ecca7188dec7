"""Whether a learner's formula is the law: by algebra where it decides, at points always, and where states are
empty or scores are large.

Points catch what algebra leaves open (ties, -inf, overflow); algebra catches what points could miss. A
formula passes only where neither objects.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final, Literal

from .algebra import same
from .evaluate import evaluate
from .formula import Node, parse

Values = dict[str, float]
#: "same": the law. "off": another function. "empty": right for finite scores, wrong where a side is empty.
#: "nan": right but for NaN where everything is empty. "unsafe": equal on paper, not where scores are large.
Outcome = Literal["same", "off", "empty", "nan", "unsafe"]

POINTS: Final = 24
RELATIVE: Final = 1e-8
ABSOLUTE: Final = 1e-12
#: A score whose exponential no format up to float64 holds.
LARGE: Final = 800.0
#: Further out: where constants that stand for "very large" tend to lie, and where halves overflow too.
FURTHER: Final = (950.0, 1e4, 1e5)
#: So far out that a float64 holds few or no digits of a difference of scores.
HUGE: Final = (1e6, 1e8, 1e15, 1e30, 1e100, 1e200)
#: Distances at which exp is small or large, and far from either end of float64; and scales of a sum.
MODERATE: Final = (9.0, 30.0, 100.0, 200.0)
_SCALES: Final = (4.0, 1e3, 1e6)
#: The lowest score there is: below any number that stands in for -inf.
LOWEST: Final = -sys.float_info.max
_TIES: Final = 4
_EXACTLY: Final = (-math.inf, 0.0)


@dataclass(frozen=True)
class Law:
    """What a formula has to be.

    Attributes:
        formula: the law in the learner's own language, in the variables below.
        heights: variables that stand for scores and maxima: any real number, and -inf.
        sums: variables that are positive, and 0 beside a height of -inf.
        values: variables that are any real number.
        defined: variable -> what it is, in the others; it may be used in place of that.
        sides: pairs (height, sum or "") that may be empty, (-inf, 0); of a score alone, -inf. Any but not all
            of them; all, where the law or a sum of nothing, 0, says what it is then.
        strict: whether NaN is wrong where some sides are empty; else it is "nan", a remark.
        guarded: whether it must hold where all sides are empty at once.
        safe: whether it must hold for scores beyond the range of exp.
    """

    formula: str
    heights: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    defined: Mapping[str, str] | None = None
    sides: tuple[tuple[str, str], ...] = ()
    strict: bool = True
    guarded: bool = False
    safe: bool = True

    @property
    def variables(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.heights, *self.sums, *self.values, *(self.defined or {}))

    def read(self, text: str) -> Node:
        """A formula in these variables."""
        return parse(text, {name: name for name in self.variables})

    @cached_property
    def node(self) -> Node:
        """The law's tree."""
        return self.read(self.formula)

    @cached_property
    def definitions(self) -> Mapping[str, Node]:
        """`defined`, parsed."""
        return {name: self.read(text) for name, text in (self.defined or {}).items()}

    def value(self, node: Node, at: Mapping[str, float]) -> float:
        """A formula at a point of the free variables."""
        full = dict(at)
        for name, definition in self.definitions.items():
            full[name] = evaluate(definition, full)
        return evaluate(node, full)

    # --- points

    def points(self) -> Iterator[Values]:
        """Finite points, the same in every run: at random, with heights moderately far out or apart, large
        sums; then every pattern of ties, each at several heights and with the others below and above."""
        draw = random.Random(1)
        for _ in range(POINTS):
            yield self._at_random(draw)
        for distance in (sign * far for far in MODERATE for sign in (1, -1)):
            for moved in (self.heights, *((name,) for name in self.heights)):
                at = self._at_random(draw)
                yield at | {name: at[name] + distance for name in moved}
        for scale in _SCALES if self.sums else ():
            at = self._at_random(draw)
            yield at | {name: at[name] * scale for name in self.sums}
        for count in range(2, len(self.heights) + 1):
            for tied in combinations(self.heights, count):
                for i in range(_TIES):
                    level, apart = draw.randrange(-12, 13) / 4 + draw.random() / 8, (-1) ** i * 0.5
                    others = [name for name in self.heights if name not in tied]
                    yield (
                        self._at_random(draw)
                        | dict.fromkeys(tied, level)
                        | {name: level + apart * (1 + draw.random()) for name in others}
                    )

    def _at_random(self, draw: random.Random) -> Values:
        free = (*self.heights, *self.values)
        return {name: draw.randrange(-12, 13) / 4 + draw.random() / 8 for name in free} | {
            name: 0.5 + 3.5 * draw.random() for name in self.sums
        }

    def large(self) -> Iterator[Values]:
        """Points far out: all heights up or down, and far apart, some of them beside an empty side."""
        some = list(self.points())[:4]
        level = some[0] | dict.fromkeys(self.heights, 0.0) | dict.fromkeys(self.sums, 1.0)
        ends = (-LOWEST, LOWEST) if "exp" in self.formula else ()  # a mean of maxima may overflow there
        for up in (1, -1):
            for distance in (LARGE, *FURTHER):
                for at in some:
                    yield from self._out(at, up * distance)
            # Sums of 1, heights of 0: no term is lost for being too small beside what it is added to.
            for distance in sorted((*(end for end in ends if end * up > 0), *(up * huge for huge in HUGE))):
                yield from self._out(level, distance)

    def _out(self, at: Values, shift: float) -> Iterator[Values]:
        moved = at | {name: at[name] + shift for name in self.heights}
        yield moved
        for far in self.heights:
            yield at | {far: at[far] + shift}
        for side in self.sides if self.strict and len(self.sides) > 1 else ():
            yield _emptied(moved, side)

    def empty(self) -> Iterator[Values]:
        """Points with some sides empty, and not all."""
        some = list(self.points())
        for count in range(1, max(2, len(self.sides))):
            for sides in combinations(self.sides, count):
                for at in (*some[:3], some[-1]):
                    yield _emptied(at, *sides)

    def nothing(self) -> Values:
        """The point at which every side is empty."""
        return _emptied(next(self.points()), *self.sides)


def _emptied(at: Values, *sides: tuple[str, str]) -> Values:
    for height, total in sides:
        at = at | {height: -math.inf} | ({total: 0.0} if total else {})
    return at


@dataclass(frozen=True)
class Verdict:
    """What became of a formula; the point where it failed, its value there and the law's."""

    outcome: Outcome
    at: Values | None = None
    got: float = math.nan
    wanted: float = math.nan
    by_algebra: bool | None = None

    def where(self) -> str:
        """The counterexample, in words; "" where there is none."""
        if self.at is None:
            return ""
        shown = ", ".join(f"{name} = {value:.6g}" for name, value in self.at.items())
        return f"at {shown} it gives {self.got:.6g}, not {self.wanted:.6g}"


def compare(node: Node, law: Law) -> Verdict:
    """Hold a formula to the law. MissingExtra without sympy. Cost: milliseconds."""
    for at in law.points():
        if not _close(got := law.value(node, at), wanted := law.value(law.node, at)):
            return Verdict("off", at, got, wanted)
    algebra = _algebra(node, law)
    if algebra is False:
        return Verdict("off", by_algebra=False)
    undefined = None
    for at in law.empty():
        wanted = law.value(law.node, at)
        if math.isnan(wanted) or _close(got := law.value(node, at), wanted):
            continue
        if law.strict or not math.isnan(got):
            return Verdict("empty", at, got, wanted, algebra)
        undefined = undefined or Verdict("nan", at, got, wanted, algebra)
    for at in law.large() if law.safe else ():
        if not _close(got := law.value(node, at), wanted := law.value(law.node, at)):
            return Verdict("unsafe", at, got, wanted, algebra)
    return _at_nothing(node, law, algebra) or undefined or Verdict("same", by_algebra=algebra)


def _at_nothing(node: Node, law: Law, algebra: bool | None) -> Verdict | None:
    """What is wrong where every side is empty. The law's value counts; where it is NaN, a sum is 0, and
    anything else, as a factor of a sum of nothing, is free."""
    if not law.sides:
        return None
    at = law.nothing()
    got, wanted = law.value(node, at), law.value(law.node, at)
    if math.isnan(wanted):
        if not law.sums:
            return None
        wanted = 0.0
    if _close(got, wanted):
        return None
    return Verdict("nan" if math.isnan(got) else "empty", at, got, wanted, algebra)


def agrees(node: Node, law: Law, other: str) -> bool:
    """Whether a formula is `other` at all finite points: how a known mistake is recognised."""
    wrong = law.read(other)
    return all(_close(law.value(node, at), law.value(wrong, at)) for at in law.points())


def _close(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= RELATIVE * max(abs(a), abs(b)) + ABSOLUTE


def _algebra(node: Node, law: Law) -> bool | None:
    return same(
        _inlined(node, law.definitions),
        _inlined(law.node, law.definitions),
        law.heights,
        (*law.sums, *law.values),
    )


def _inlined(node: Node, definitions: Mapping[str, Node]) -> Node:
    if node.op == "name":
        return definitions.get(node.name, node)
    return Node(node.op, tuple(_inlined(part, definitions) for part in node.parts), node.number, node.name)


# --- the laws of a merge ------------------------------------------------------------------------------


def broken_laws(node: Node, law: Law, names: Sequence[str] = ("m_a", "s_a", "m_b", "s_b")) -> list[str]:
    """Which laws of a merge a formula for its sum breaks, the new maximum being right: in words.

    names: the variables of the two sides. A side is (height, sum).
    """
    a_m, a_s, b_m, b_s = names

    def merge(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        at = {a_m: a[0], a_s: a[1], b_m: b[0], b_s: b[1]}
        return max(a[0], b[0]), law.value(node, at)

    a, b, c = (1.0, 1.5), (2.0, 1.25), (0.5, 2.0)
    found = []
    if not _close(ab := merge(a, b)[1], ba := merge(b, a)[1]):
        found.append(f"it is not commutative: {a} with {b} gives s = {ab:.6g} one way and {ba:.6g} the other")
    left, right = merge(merge(a, b), c)[1], merge(a, merge(b, c))[1]
    if not _close(left, right):
        found.append(
            f"it is not associative: {a}, {b}, {c} give s = {left:.6g} or {right:.6g} by the brackets"
        )
    for side, given in (merge(a, _EXACTLY), "right"), (merge(_EXACTLY, a), "left"):
        if not _close(side[1], a[1]):
            found.append(f"(-inf, 0) on the {given} is no identity: {a} becomes s = {side[1]:.6g}")
            break
    return found
