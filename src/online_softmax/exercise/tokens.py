"""A learner's formula cut into tokens: every limit on its size is applied here, before anything is computed.

Text is read character by character and never handed to an interpreter. Unicode that a keyboard or an editor
puts in place of ASCII (a raised dot, a minus sign, primes, raised digits) means what it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: Characters of a formula, tokens of it, digits of a number, and the decimal exponent of one.
MAX_LENGTH: Final = 400
MAX_TOKENS: Final = 200
MAX_DIGITS: Final = 60
MAX_EXPONENT: Final = 400

_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_(?:\{[^{}]*\}|[A-Za-z0-9]+))*['′’]*")
_OPERATORS: Final = ("**", "<=", ">=", "==", "!=", ":=")
_SAME: Final = {
    "·": "*", "×": "*", "∗": "*", "⋅": "*", "•": "*", "÷": "/", "∕": "/", "⁄": "/",
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "＋": "+",
    "≤": "<=", "≥": ">=", "≠": "!=", "：": ":", "，": ",", "（": "(", "）": ")",
    "[": "(", "]": ")", "{": "(", "}": ")", "**": "^", ":=": "=",
}  # fmt: skip
_RAISED: Final = {raised: str(digit) for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_LOWERED: Final = {lowered: str(digit) for digit, lowered in enumerate("₀₁₂₃₄₅₆₇₈₉")}
_SINGLE: Final = "+-*/^(),<>=!&|"


class FormulaError(ValueError):
    """A formula that cannot be read.

    Attributes:
        reason: what is wrong and what would do, in one sentence.
        text: the formula as it was given, shortened where it is long.
        position: the character at which it is wrong, from 0; None where no single place is.
    """

    def __init__(self, reason: str, text: str, position: int | None = None) -> None:
        self.reason = reason
        self.text = "".join(c if c.isprintable() else " " for c in text)
        self.position = position
        super().__init__(reason)

    def __str__(self) -> str:
        """The reason and, below the formula, a mark at the place."""
        if self.position is None:
            return self.reason
        start = max(0, self.position - 50)
        cut = "..." if start else ""
        line = cut + self.text[start : self.position + 30]
        return f"{self.reason}\n    {line}\n    {' ' * (self.position - start + len(cut))}^"


@dataclass(frozen=True)
class Token:
    """kind: "number", "name", "end" or the operator itself. `at`: its place in the text."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The tokens of a formula, "end" last. FormulaError for text that is too long or holds anything else."""
    if len(text) > MAX_LENGTH:
        raise FormulaError(
            f"a formula of {len(text)} characters is too long: {MAX_LENGTH} would do", text[:40]
        )
    found = list(_tokens(text))
    if len(found) > MAX_TOKENS:
        raise FormulaError(
            f"a formula of {len(found)} parts is too long: {MAX_TOKENS} would do", text, found[MAX_TOKENS].at
        )
    return [*found, Token("end", "", len(text))]


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        token, length = _raised(text, at) or _word(text, at) or _operator(text, at)
        yield from token
        at += length


def _raised(text: str, at: int) -> tuple[list[Token], int] | None:
    """Raised digits are a power."""
    length = 0
    while at + length < len(text) and text[at + length] in _RAISED:
        length += 1
    if not length:
        return None
    digits = "".join(_RAISED[c] for c in text[at : at + length])
    return [Token("^", "^", at), Token("number", _checked(digits, text, at), at)], length


def _word(text: str, at: int) -> tuple[list[Token], int] | None:
    """A number, a name, or the sign of infinity."""
    if text[at] == "∞":
        return [Token("name", "inf", at)], 1
    if match := _NUMBER.match(text, at):
        return [Token("number", _checked(match[0], text, at), at)], len(match[0])
    if match := _NAME.match(text, at):
        length, name = len(match[0]), match[0]
        while at + length < len(text) and text[at + length] in _LOWERED:  # m₁ is m_1
            name += ("" if "_" in name else "_") + _LOWERED[text[at + length]]
            length += 1
        return [Token("name", re.sub(r"[{}\s]", "", name).replace("′", "'").replace("’", "'"), at)], length
    return None


def _operator(text: str, at: int) -> tuple[list[Token], int]:
    for operator in _OPERATORS:
        if text.startswith(operator, at):
            kind = _SAME.get(operator, operator)
            return [Token(kind, operator, at)], len(operator)
    kind = _SAME.get(text[at], text[at])
    if kind in ("<=", ">=", "!=") or kind in _SINGLE:
        return [Token(kind, text[at], at)], 1
    if text[at] == "\\":
        raise FormulaError("LaTeX is not read: write exp(m - M), max(a, b), a*b, a/b, a^b", text, at)
    raise FormulaError(f"{text[at]!r} has no place in a formula", text, at)


def _checked(number: str, text: str, at: int) -> str:
    mantissa, _, exponent = number.lower().partition("e")
    if len(mantissa) > MAX_DIGITS:
        raise FormulaError(f"a number of {len(mantissa)} digits is too long: {MAX_DIGITS} would do", text, at)
    if len(exponent) > 5 or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise FormulaError(
            f"the exponent is out of range: -{MAX_EXPONENT} to {MAX_EXPONENT} would do", text, at
        )
    return number
