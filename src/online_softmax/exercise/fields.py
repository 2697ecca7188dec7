"""What a learner fills in, and how it is graded: a number, a formula or a choice.

A grade tells right or wrong and, where it can, why; the hint never is the answer. Known mistakes (`traps`)
are recognised by their value and have a hint of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal, Protocol

from .equivalence import LOWEST, Law, Verdict, agrees, broken_laws, compare
from .evaluate import evaluate
from .formula import Node, parse
from .quantity import Bound, Kind, Quantity, quantity
from .tokens import FormulaError

Status = Literal["right", "wrong", "unanswered"]

#: Relative errors let pass: what is counted is exact; what is worked out has three digits.
EXACT: Final = Fraction(0)
THREE_DIGITS: Final = Fraction(5, 1000)
#: How far the ratio of two formulas of the same order may vary over sizes that vary by thousands.
SPREAD: Final = 4.0
STAND_IN: Final = "a finite number in place of -inf fails for scores below it: compare with -inf itself"


@dataclass(frozen=True)
class Grade:
    """What a field's text is worth.

    Attributes:
        message: a hint where wrong, a remark or "" where right.
        readable: False where the text is no number, formula or option at all.
    """

    status: Status
    message: str = ""
    readable: bool = True


class Field(Protocol):
    """A place for one answer.

    Attributes:
        label: what is to be written there, in brackets behind the question: "a formula in m, x".
        answer: the answer, as it could be written there.
        nudge: a hint for whoever is stuck.
    """

    @property
    def label(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def nudge(self) -> str: ...
    def grade(self, text: str) -> Grade:
        """Grade the text of a field, as it was written."""
        ...


def clean(text: str) -> str:
    """The answer without what editors and Markdown put around it: blanks of `____`, quotes of code, bold."""
    text = unescaped(text.replace("\u00a0", " "))
    text = re.sub(r"\s+", " ", re.sub(r"_{2,}", " ", text)).strip()
    for mark in ("$$", "$", "`", "**"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return "" if text in ("?", "-", "...", "…", "TODO", "**") else text


def unescaped(text: str) -> str:
    """Without the backslashes that Markdown editors put before marks."""
    return re.sub(r"\\([*_`#~$\[\](){}<>^|+.!-])", r"\1", text)


# --- numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A number with a unit of `kind`.

    Attributes:
        value: exact, or infinite.
        answer: as written on the key.
        tolerance: relative error let pass.
        traps: (value, hint): wrong values with a known origin.
        also: (value, remark): values that are right by another way of counting.
        bound: ">" or "<" where a lower or an upper bound is asked for, which may be written before it.
    """

    value: Fraction | Decimal
    answer: str
    kind: Kind = "number"
    tolerance: Fraction = THREE_DIGITS
    traps: tuple[tuple[Fraction, str], ...] = ()
    also: tuple[tuple[Fraction, str], ...] = ()
    nudge: str = "Write down what is counted, then put the numbers in."
    bound: Bound = ""

    @property
    def label(self) -> str:
        return {
            "bytes": "bytes, or with a unit",
            "seconds": "a time with its unit",
            "flop/byte": "FLOP/byte",
            "times": "a number, in the sense of 1.5x",
            "percent": "percent",
            "number": "a number",
        }[self.kind]

    def grade(self, text: str) -> Grade:
        text = clean(text)
        if not text:
            return Grade("unanswered")
        try:
            given = quantity(text, self.kind, self.bound)
        except FormulaError as error:
            return Grade("wrong", f"cannot be read: {error}", readable=False)
        if isinstance(self.value, Decimal) or not given.value.is_finite():
            wanted = self.value if isinstance(self.value, Decimal) else Decimal(0)
            return Grade("right") if given.value == wanted else Grade("wrong", self._off(given))
        exact = Fraction(given.value)
        # Another value may lie within the tolerance: what was meant is then told by which is met much closer.
        met = [
            (abs(exact - value), message, at < len(self.traps))
            for at, (value, message) in enumerate((*self.traps, *self.also))
            if abs(exact - value) <= abs(self.value - value) / 10
            and _near(exact, value, max(self.tolerance, THREE_DIGITS))
        ]
        if met:
            _, message, wrong = min(met)
            return Grade("wrong" if wrong else "right", message)
        if any(_near(exact, value, self.tolerance) for value in (self.value, *(v for v, _ in self.also))):
            return Grade("right")
        for value, hint in self.traps:
            if _near(exact, value, self.tolerance):
                return Grade("wrong", hint)
        return Grade("wrong", self._off(given))

    def _off(self, given: Quantity) -> str:
        """What kind of slip a wrong value may be."""
        if isinstance(self.value, Decimal) or not given.value.is_finite():
            return "Finite or infinite, and with which sign? Think of what leaves everything else unchanged."
        if not self.value or not given.value:
            return self.nudge
        ratio = Fraction(given.value) / self.value
        if given.grouped and _near(ratio, Fraction(1000), THREE_DIGITS):
            return "a comma separates thousands here: write decimals with a point"
        if _near(-ratio, Fraction(1), self.tolerance):
            return "the sign is the other way round"
        if self.kind in ("bytes", "seconds"):
            for power in (1, 2, 3, 4):
                for factor in (ratio, 1 / ratio):
                    if _near(factor, Fraction(1000) ** power, THREE_DIGITS):
                        return "a unit slipped: it is off by a power of 1000"
                    if self.kind == "bytes" and _near(factor, Fraction(128, 125) ** power, THREE_DIGITS):
                        return "decimal and binary units are mixed: 1 kB is 1000 bytes, 1 KiB is 1024"
        if self.kind == "bytes" and _near(ratio, Fraction(8), THREE_DIGITS):
            return "that looks like bits: there are 8 to a byte"
        if _near(ratio, Fraction(1), Fraction(3, 100)):
            return (
                "close: keep more digits on the way"
                if self.tolerance
                else "close, but an exact count is asked for: nothing in it needs rounding"
            )
        return self.nudge


def _near(a: Fraction, b: Fraction | Decimal, tolerance: Fraction) -> bool:
    b = Fraction(b)
    return abs(a - b) <= tolerance * abs(b)


# --- formulas -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """A formula that has to be the law.

    Attributes:
        law: what it is held to.
        name: what it defines: `S = ...` is accepted with it.
        spellings: further spellings -> variables of the law.
        traps: (formula, hint): formulas that are wrong in a known way.
        also: further laws that are right answers too.
        merge: whether it is the sum of a merge, whose laws are looked at where it is wrong.
        unsafe, empty: what to say where it is right on paper but not there.
    """

    law: Law
    name: str = ""
    spellings: Mapping[str, str] | None = None
    traps: tuple[tuple[str, str], ...] = ()
    also: tuple[Law, ...] = ()
    merge: bool = False
    nudge: str = "Write the definition down first, then change one thing at a time."
    unsafe: str = (
        "equal on paper, but it overflows or vanishes for scores of 800: keep differences inside exp"
    )
    empty: str = "right for finite scores, but not where a side has seen nothing, (-inf, 0)"

    @property
    def label(self) -> str:
        free = ", ".join(self.law.variables)
        return f"a formula in {free}" if free else "a formula"

    @property
    def answer(self) -> str:
        return self.law.formula

    def read(self, text: str) -> Node:
        """The formula, parsed. FormulaError."""
        names = {name: name for name in self.law.variables}
        names |= {name: to for name, to in (self.spellings or {}).items() if to in names}
        return parse(text, names, name=self.name or None)

    def grade(self, text: str) -> Grade:
        text = clean(text)
        if not text:
            return Grade("unanswered")
        try:
            node = self.read(text)
        except FormulaError as error:
            return Grade("wrong", f"cannot be read: {error}", readable=False)
        verdict = compare(node, self.law)
        if verdict.outcome == "same" or (verdict.outcome == "nan" and not self.law.guarded):
            return Grade("right", self._remark(verdict))
        if any(compare(node, law).outcome == "same" for law in self.also):
            return Grade("right")
        return Grade("wrong", self._hint(text, node, verdict))

    def _remark(self, verdict: Verdict) -> str:
        remarks = []
        if verdict.outcome == "nan":
            remarks.append(
                "right for every score there is; on a computer one case is left, which 3.4 is about"
            )
        if verdict.by_algebra is None:
            remarks.append("checked at points: its form is beyond the algebra here")
        return "; ".join(remarks)

    def _hint(self, text: str, node: Node, verdict: Verdict) -> str:
        if verdict.outcome == "unsafe":
            stand_in = verdict.at is not None and LOWEST in verdict.at.values()
            return STAND_IN if stand_in else self.unsafe
        if verdict.outcome == "empty":
            return f"{self.empty}: {verdict.where()}"
        if verdict.outcome == "nan":
            return "right, but NaN where both sides have seen nothing: -inf - (-inf) is still in an exponent"
        if re.search(r"\b[a-zA-Z]_k\s*\+\s*1", text):
            return "m_k+1 reads as m_k plus 1: write the name in one piece, as m_{k+1}, or use the sheet's"
        for wrong, hint in self.traps:
            if agrees(node, self.law, wrong):
                return hint
        found = broken_laws(node, self.law) if self.merge else []
        return "; ".join([*found, *filter(None, [verdict.where()])]) or self.nudge


@dataclass(frozen=True)
class Order:
    """A formula in N, d and S up to a constant factor: how traffic grows.

    Attributes:
        formula: what it has to grow like, for N well above d and S between d and N*d.
        traps: (formula, hint).
    """

    formula: str
    traps: tuple[tuple[str, str], ...] = ()
    nudge: str = "Double one quantity at a time and say what happens to the bytes."

    @property
    def label(self) -> str:
        return "a formula in N, d, S, up to a constant factor"

    @property
    def answer(self) -> str:
        return self.formula

    def grade(self, text: str) -> Grade:
        text = clean(text)
        if not text:
            return Grade("unanswered")
        bounded = re.fullmatch(r"(?:O|Θ|Theta|Ω|order)\s*\((.*)\)", text, re.I)
        given = bounded[1] if bounded else text
        try:
            node = self.read(given)
        except FormulaError as error:
            return Grade("wrong", f"cannot be read: {error}", readable=False)
        if self._grows_like(node, self.formula):
            return Grade("right")
        for wrong, hint in self.traps:
            if self._grows_like(node, wrong):
                return Grade("wrong", hint)
        return Grade("wrong", self.nudge)

    @staticmethod
    def read(text: str) -> Node:
        """A formula in N, d, S (also M, the usual letter for on-chip memory)."""
        return parse(text, {"N": "N", "d": "d", "S": "S", "n": "N", "D": "d", "M": "S"})

    def _grows_like(self, node: Node, formula: str) -> bool:
        other, ratios = self.read(formula), []
        for d in (2.0**4, 2.0**8, 2.0**12):
            for n in (4 * d, 2.0**18, 2.0**24):
                for on_chip in (d, n * d / 4):
                    at = {"N": n, "d": d, "S": on_chip}
                    ratios.append(evaluate(node, at) / evaluate(other, at))
        return all(0 < ratio < math.inf for ratio in ratios) and max(ratios) <= SPREAD * min(ratios)
