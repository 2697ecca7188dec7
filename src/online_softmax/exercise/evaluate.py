"""The value of a formula: in floating point as hardware would have it, or as a decimal number of many digits.

Neither can hang: a tree is small (`formula.parse`), floats are 64 bits, decimals have `DIGITS` digits and a
bounded exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Final

from .formula import Node
from .tokens import FormulaError

DIGITS: Final = 40
_LARGEST: Final = 5000  # decimal exponent of the largest number; float64 goes to 308
_DECIMAL: Final = Context(
    prec=DIGITS, Emax=_LARGEST, Emin=-_LARGEST, traps=[InvalidOperation, DivisionByZero, Overflow]
)


# --- floating point -----------------------------------------------------------------------------------


def evaluate(node: Node, values: Mapping[str, float]) -> float:
    """The value in float64 by the rules of IEEE 754: inf - inf is NaN, exp overflows to inf, log(0) is -inf;
    max and min of NaN are NaN, `where` drops what it does not choose. Raises KeyError for a variable without
    a value."""
    result = _float(node, values)
    return float(result)


def _float(node: Node, values: Mapping[str, float]) -> float | bool:
    op = node.op
    if op == "number":
        return _nearest(node)
    if op == "inf":
        return math.inf
    if op == "name":
        return values[node.name]
    parts = [_float(part, values) for part in node.parts]
    if op == "where":
        return parts[1] if parts[0] else parts[2]
    return _FLOATS[op](*parts)


def _nearest(node: Node) -> float:
    try:
        return float(node.number)
    except OverflowError:
        return math.inf


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float, log: Callable[[float], float] = math.log) -> float:
    return -math.inf if x == 0 else math.nan if x < 0 else log(x)


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.inf
    except ValueError:  # a negative base to a broken power, or a zero to a negative one
        return math.inf if a == 0 else math.nan


def _whole(rounded: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: float(rounded(x)) if math.isfinite(x) else x


def _greatest(*parts: float) -> float:
    return math.nan if any(map(math.isnan, parts)) else max(parts)


def _least(*parts: float) -> float:
    return math.nan if any(map(math.isnan, parts)) else min(parts)


_FLOATS: Final[Mapping[str, Callable[..., float | bool]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "^": _power,
    "neg": lambda a: -a,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "exp": _exp,
    "log": _log,
    "log2": lambda x: _log(x, math.log2),
    "sqrt": lambda x: math.nan if x < 0 else math.sqrt(x),
    "abs": abs,
    "ceil": _whole(math.ceil),
    "floor": _whole(math.floor),
    "max": _greatest,
    "min": _least,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
    "isnan": math.isnan,
}


# --- decimal ------------------------------------------------------------------------------------------


def evaluate_number(node: Node, text: str) -> Decimal:
    """The value of a formula without variables, with `DIGITS` significant digits; it may be infinite only
    where `inf` was written. FormulaError, which quotes `text`, where it is too large or has no value."""
    try:
        return _decimal(node, text)
    except Overflow:
        raise _too_large(text) from None
    except (InvalidOperation, DivisionByZero):
        raise FormulaError(
            "this has no value: it divides by zero, or takes a log or root it cannot", text
        ) from None


def scaled(value: Decimal, scale: Decimal, text: str) -> Decimal:
    """A number times the scale of its unit, with all digits. FormulaError where it is too large."""
    try:
        return _DECIMAL.multiply(value, scale)
    except Overflow:
        raise _too_large(text) from None


def _too_large(text: str) -> FormulaError:
    return FormulaError(f"this number is too large: below 1e{_LARGEST} would do", text)


def _decimal(node: Node, text: str) -> Decimal:
    if node.op == "number":
        return _DECIMAL.divide(Decimal(node.number.numerator), Decimal(node.number.denominator))
    if node.op == "inf":
        return Decimal("Infinity")
    if node.op not in _DECIMALS:
        raise FormulaError("a condition has no place in a number", text)
    return _DECIMALS[node.op](*(_decimal(part, text) for part in node.parts))


def _log_two(x: Decimal) -> Decimal:
    exact = _DECIMAL.divide(_DECIMAL.ln(x), _DECIMAL.ln(Decimal(2)))
    whole = exact.to_integral_value()
    return whole if abs(exact - whole) < Decimal(10) ** (5 - DIGITS) else exact


_DECIMALS: Final[Mapping[str, Callable[..., Decimal]]] = {
    "+": _DECIMAL.add,
    "-": _DECIMAL.subtract,
    "*": _DECIMAL.multiply,
    "/": _DECIMAL.divide,
    "^": lambda a, b: _DECIMAL.power(a, b) if a or b > 0 else _DECIMAL.divide(a, a),
    "neg": _DECIMAL.minus,
    "exp": _DECIMAL.exp,
    "log": _DECIMAL.ln,
    "log2": _log_two,
    "sqrt": _DECIMAL.sqrt,
    "abs": _DECIMAL.abs,
    "max": lambda *parts: max(parts),
    "min": lambda *parts: min(parts),
    "floor": lambda x: x.to_integral_value(rounding="ROUND_FLOOR"),
    "ceil": lambda x: x.to_integral_value(rounding="ROUND_CEILING"),
}
