"""Whether two formulas are the same by algebra, decided exactly, in bounded time.

Scores and maxima ("heights") are real numbers in some strict order; everything else is positive. In a given
order max, min, abs and conditions on heights have one meaning, exp of a whole combination of heights is a
monomial in new letters e^m, e^x, ..., and log of a monomial is a sum. What is left are fractions of
polynomials, which are compared by cross multiplication. m and e^m are algebraically independent, so equal
fractions are equal functions and unequal ones are not.

Bounded by construction: no simplification is searched for, and what grows beyond `MAX_TERMS` terms, degree
`MAX_DEGREE` or `MAX_BITS` of a coefficient, or leaves this class of formulas, is `Undecided` at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ..extras import require
from .formula import Node

MAX_TERMS: Final = 400
MAX_DEGREE: Final = 80
MAX_BITS: Final = 4096
MAX_POWER: Final = 12


class Undecided(Exception):
    """The formula is outside what algebra here decides; points have to."""


def same(a: Node, b: Node, heights: Sequence[str], others: Sequence[str]) -> bool | None:
    """Whether a and b are the same function for all real heights and all positive values of the others.

    Heights are at most four. None where it is not decided. Ties between heights are limits of strict orders.
    Raises MissingExtra without sympy. Cost: milliseconds an order.
    """
    if len(heights) > 4:
        raise ValueError(f"heights: {len(heights)} have too many orders; 4 or fewer would do")
    for order in itertools.permutations(heights):
        world = _World(tuple(order), tuple(others))
        try:
            if not world.equal(world.of(a), world.of(b)):
                return False
        except Undecided:
            return None
    return True


@dataclass(frozen=True)
class _Ratio:
    """A fraction of two polynomials of sympy's, not reduced."""

    top: Any
    bottom: Any


class _World:
    """The letters and one order of the heights, the lowest first."""

    def __init__(self, order: tuple[str, ...], others: tuple[str, ...]) -> None:
        rings = require("sympy.polys.rings", "symbols", "checking a formula by algebra")
        domain = require("sympy", "symbols", "checking a formula by algebra").QQ
        names = [*order, *(f"e^{h}" for h in order), *others, *(f"log {v}" for v in others), "e^1"]
        ring, *letters = rings.ring(names, domain)
        self.ring, self.order, self.others = ring, order, others
        self.letters: Mapping[str, Any] = dict(zip(names, letters, strict=True))
        self.index = {name: i for i, name in enumerate(names)}
        self.one = _Ratio(ring.one, ring.one)

    # --- arithmetic, within limits

    def ratio(self, top: Any, bottom: Any) -> _Ratio:
        for poly in (top, bottom):
            if len(poly) > MAX_TERMS:
                raise Undecided
            for exponents, coefficient in poly.terms():
                size = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length())
                if sum(exponents) > MAX_DEGREE or size > MAX_BITS:
                    raise Undecided
        if not bottom:
            raise Undecided  # a division by zero
        return _Ratio(top, bottom)

    def product(self, a: Any, b: Any) -> Any:
        if len(a) * len(b) > 4 * MAX_TERMS:
            raise Undecided
        return a * b

    def number(self, value: Fraction) -> _Ratio:
        return self.ratio(self.ring(1) * value.numerator, self.ring(1) * value.denominator)

    def letter(self, name: str) -> _Ratio:
        return _Ratio(self.letters[name], self.ring.one)

    def add(self, a: _Ratio, b: _Ratio) -> _Ratio:
        if a.bottom == b.bottom:
            return self.ratio(a.top + b.top, a.bottom)
        top = self.product(a.top, b.bottom) + self.product(b.top, a.bottom)
        return self.ratio(top, self.product(a.bottom, b.bottom))

    def negative(self, a: _Ratio) -> _Ratio:
        return _Ratio(-a.top, a.bottom)

    def subtract(self, a: _Ratio, b: _Ratio) -> _Ratio:
        return self.add(a, self.negative(b))

    def multiply(self, a: _Ratio, b: _Ratio) -> _Ratio:
        return self.ratio(self.product(a.top, b.top), self.product(a.bottom, b.bottom))

    def divide(self, a: _Ratio, b: _Ratio) -> _Ratio:
        if not b.top:
            raise Undecided
        return self.multiply(a, _Ratio(b.bottom, b.top))

    def power(self, base: _Ratio, exponent: _Ratio) -> _Ratio:
        whole = self.constant(exponent)
        if whole.denominator != 1 or abs(whole) > MAX_POWER:
            raise Undecided
        result = self.one
        for _ in range(abs(whole.numerator)):
            result = self.multiply(result, base)
        return result if whole >= 0 else self.divide(self.one, result)

    def equal(self, a: _Ratio, b: _Ratio) -> bool:
        return bool(self.product(a.top, b.bottom) == self.product(b.top, a.bottom))

    def constant(self, a: _Ratio) -> Fraction:
        """The number a is. Undecided for anything with a letter in it."""
        if not (a.top.is_ground and a.bottom.is_ground):
            raise Undecided
        value = a.top.coeff(1) / a.bottom.coeff(1)
        return Fraction(int(value.numerator), int(value.denominator))

    def linear(self, a: _Ratio) -> dict[str, int]:
        """a as a whole combination of letters, "" standing for 1. Undecided where it is none."""
        if not a.bottom.is_ground:
            raise Undecided
        names, found = list(self.letters), {}
        for exponents, coefficient in a.top.terms():
            value = coefficient / a.bottom.coeff(1)
            if sum(exponents) > 1 or value.denominator != 1 or abs(value) > MAX_POWER:
                raise Undecided
            name = names[exponents.index(1)] if any(exponents) else ""
            found[name] = int(value.numerator)
        return found

    # --- exp, log, and the order

    def exp(self, a: _Ratio) -> _Ratio:
        result = self.one
        for name, count in self.linear(a).items():
            if name == "":
                base = "e^1"
            elif name in self.order:
                base = f"e^{name}"
            elif name.startswith("log "):
                base = name.removeprefix("log ")
            else:
                raise Undecided
            factor = self.letter(base)
            for _ in range(abs(count)):
                result = self.multiply(result, factor) if count > 0 else self.divide(result, factor)
        return result

    def log(self, a: _Ratio) -> _Ratio:
        if len(a.top) != 1 or len(a.bottom) != 1:
            raise Undecided
        ((up, over),), ((down, under),) = a.top.terms(), a.bottom.terms()
        if over != under:
            raise Undecided
        result, names = self.number(Fraction(0)), list(self.letters)
        for name, count in zip(names, (u - d for u, d in zip(up, down, strict=True)), strict=True):
            if not count:
                continue
            if name == "e^1":
                term = self.one
            elif name.startswith("e^"):
                term = self.letter(name.removeprefix("e^"))
            elif name in self.others:
                term = self.letter(f"log {name}")
            else:
                raise Undecided
            result = self.add(result, self.multiply(self.number(Fraction(count)), term))
        return result

    def sign(self, a: _Ratio) -> int:
        """-1, 0 or 1 where the order or positivity tells."""
        if not a.top:
            return 0
        try:
            found = self.linear(a)
        except Undecided:
            found = {}
        # A difference of heights, weighed: positive where every sum of coefficients from the top is.
        if found and set(found) <= set(self.order) and sum(found.values()) == 0:
            sums = list(itertools.accumulate(found.get(name, 0) for name in reversed(self.order)))
            if min(sums) >= 0 or max(sums) <= 0:
                return 1 if max(sums) > 0 else -1
            raise Undecided
        positive = {i for name, i in self.index.items() if name not in self.order and "log" not in name}
        signs = set()
        for poly in (a.top, a.bottom):
            for exponents, coefficient in poly.terms():
                if any(n and i not in positive for i, n in enumerate(exponents)):
                    raise Undecided
                signs.add((poly is a.top, coefficient > 0))
        if len(signs) != 2:
            raise Undecided
        return 1 if signs in ({(True, True), (False, True)}, {(True, False), (False, False)}) else -1

    # --- formulas

    def of(self, node: Node) -> _Ratio:
        """The formula as a fraction of polynomials, in this order."""
        op = node.op
        if op == "number":
            return self.number(node.number)
        if op == "name" and node.name in self.letters:
            return self.letter(node.name)
        if op == "where":
            return self.of(node.parts[1] if self.holds(node.parts[0]) else node.parts[2])
        if op in ("max", "min"):
            return self.extreme([self.of(part) for part in node.parts], 1 if op == "max" else -1)
        rule = self.rules.get(op)
        if rule is None:
            raise Undecided
        return rule(*(self.of(part) for part in node.parts))

    @property
    def rules(self) -> Mapping[str, Callable[..., _Ratio]]:
        return {
            "+": self.add, "-": self.subtract, "*": self.multiply, "/": self.divide, "^": self.power,
            "neg": self.negative, "exp": self.exp, "log": self.log,
            "abs": lambda a: a if self.sign(a) >= 0 else self.negative(a),
        }  # fmt: skip

    def extreme(self, parts: list[_Ratio], towards: int) -> _Ratio:
        best = parts[0]
        for part in parts[1:]:
            if self.sign(self.subtract(part, best)) == towards:
                best = part
        return best

    def holds(self, node: Node) -> bool:
        """Whether a condition is true: all values are finite here."""
        if node.op in ("and", "or"):
            join = all if node.op == "and" else any
            return join([self.holds(part) for part in node.parts])
        if node.op == "not":
            return not self.holds(node.parts[0])
        if node.op in ("isinf", "isnan", "isfinite"):
            self.of(node.parts[0])
            return node.op == "isfinite"
        left, right = node.parts
        infinite = {part: _infinity(part) for part in (left, right)}
        difference = (
            infinite[left] - infinite[right]
            if infinite[left] or infinite[right]
            else self.sign(self.subtract(self.of(left), self.of(right)))
        )
        return {
            "==": difference == 0, "!=": difference != 0, "<": difference < 0, "<=": difference <= 0,
            ">": difference > 0, ">=": difference >= 0,
        }[node.op]  # fmt: skip


def _infinity(node: Node) -> int:
    """1 or -1 for inf or -inf as written, 0 for all else."""
    if node.op == "neg":
        return -_infinity(node.parts[0])
    return int(node.op == "inf")
