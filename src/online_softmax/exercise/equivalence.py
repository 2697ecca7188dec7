"""Whether a learner's formula is the law: by algebra where it decides, at points always, and where states are
empty or scores are large.

Points catch what algebra leaves open (ties, -inf, overflow); algebra catches what points could miss. A
formula passes only where neither objects.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
LOWEST: Final = -1e300
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
        sides: pairs (height, sum or "") that may be empty, (-inf, 0); of a score alone, -inf. One at a time.
        guarded: whether it must hold where all sides are empty at once.
        safe: whether it must hold for scores beyond the range of exp.
    """

    formula: str
    heights: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    defined: Mapping[str, str] | None = None
    sides: tuple[tuple[str, str], ...] = ()
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
        """Finite points, the same in every run: some at random, then all ties."""
        draw = random.Random(1)
        free = (*self.heights, *self.values)
        for _ in range(POINTS):
            yield {name: draw.randrange(-12, 13) / 4 + draw.random() / 8 for name in free} | {
                name: 0.5 + 3.5 * draw.random() for name in self.sums
            }
        level = dict.fromkeys(self.heights, 0.75) | dict.fromkeys(self.values, 1.5)
        yield level | {name: 1.25 + i for i, name in enumerate(self.sums)}

    def large(self) -> Iterator[Values]:
        """Points far out: all heights up or down, and far apart."""
        for at in list(self.points())[:4]:
            for shift in (LARGE, -LARGE):
                yield at | {name: at[name] + shift for name in self.heights}
            for far in self.heights:
                yield at | {far: at[far] + LARGE}
            if self.guarded:  # below any number that stands in for -inf
                yield at | dict.fromkeys(self.heights, LOWEST)

    def empty(self) -> Iterator[Values]:
        """Points with one side empty."""
        for height, total in self.sides if len(self.sides) > 1 else ():
            for at in list(self.points())[:3]:
                yield at | {height: -math.inf} | ({total: 0.0} if total else {})

    def nothing(self) -> Values:
        """The point at which every side is empty."""
        at = next(self.points())
        for height, total in self.sides:
            at |= {height: -math.inf} | ({total: 0.0} if total else {})
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
    reference = _guarded(law)
    for at in law.empty():
        if not _close(got := law.value(node, at), wanted := reference(at)):
            return Verdict("empty", at, got, wanted, algebra)
    for at in law.large() if law.safe else ():
        if not _close(got := law.value(node, at), wanted := law.value(law.node, at)):
            return Verdict("unsafe", at, got, wanted, algebra)
    if law.sides:
        at = law.nothing()
        if not _close(got := law.value(node, at), wanted := reference(at)):
            return Verdict("nan", at, got, wanted, algebra)
    return Verdict("same", by_algebra=algebra)


def agrees(node: Node, law: Law, other: str) -> bool:
    """Whether a formula is `other` at all finite points: how a known mistake is recognised."""
    wrong = law.read(other)
    return all(_close(law.value(node, at), law.value(wrong, at)) for at in law.points())


def _close(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= RELATIVE * max(abs(a), abs(b)) + ABSOLUTE


def _guarded(law: Law) -> Callable[[Values], float]:
    """The law's values at empty sides: its own, and 0 where it would be NaN; nothing at all sums to 0."""

    def value(at: Values) -> float:
        found = law.value(law.node, at)
        return 0.0 if math.isnan(found) else found

    return value


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
