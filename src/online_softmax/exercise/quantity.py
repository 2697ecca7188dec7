"""Numbers with units as learners write them: `134,217,728`, `128 MiB`, `134.2 us`, `3.4e38`, `-inf`.

The number may be any formula without variables (`4096 * 2 B`, `ln(65504)`), and is read by `formula`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Literal

from ..traffic.units import PREFIXES
from .evaluate import evaluate_number, scaled
from .formula import parse
from .tokens import MAX_LENGTH, FormulaError

Kind = Literal["bytes", "seconds", "flop/byte", "times", "percent", "number"]
Bound = Literal["", ">", "<"]

#: Words that may follow any plain number; what they count is said by the question.
_COUNTED: Final = (
    "row", "rows", "column", "columns", "element", "elements", "entry", "entries", "bit", "bits", "step",
    "steps", "level", "levels", "read", "reads", "write", "writes", "key", "keys", "rescales", "maxima",
    "flop", "flops", "flop/element", "flops/element", "x", "×", "times", "fold",
)  # fmt: skip
_BYTES: Final = {f"{prefix}b": Decimal(scale) for prefix, scale in PREFIXES.items()} | {
    word: Decimal(1) for word in ("byte", "bytes")
}
_SECONDS: Final = {
    "s": Decimal(1), "sec": Decimal(1), "second": Decimal(1), "seconds": Decimal(1), "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"), "ns": Decimal("1e-9"),
}  # fmt: skip
_INTENSITY: Final = {
    f"{flop}/{byte}": Decimal(1) for flop in ("flop", "flops") for byte in ("b", "byte", "bytes")
}
#: What a question asks for -> its units, each with its size.
UNITS: Final[Mapping[Kind, Mapping[str, Decimal]]] = MappingProxyType(
    {
        "bytes": _BYTES,
        "seconds": _SECONDS,
        "flop/byte": _INTENSITY,
        "times": {"x": Decimal(1), "×": Decimal(1), "times": Decimal(1), "fold": Decimal(1)},
        "percent": {"%": Decimal(1), "percent": Decimal(1)},
        "number": dict.fromkeys(_COUNTED, Decimal(1)),
    }
)
_KNOWN: Final = frozenset(unit for units in UNITS.values() for unit in units)
#: Asked for a lower or an upper bound, these words may stand before it.
_BEFORE: Final[Mapping[Bound, str]] = MappingProxyType(
    {">": ">=|=>|≥|>|at least", "<": "<=|=<|≤|<|at most|below|up to"}
)
_UNIT: Final = re.compile(r"(?<![A-Za-zµμ_])([A-Za-zµμ]+(?:/[A-Za-z]+)?|%|×)\s*$")
_GROUPS: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:([,'’_ \u00a0\u2009\u202f])\d{3})(?:\1\d{3})*(?![\d,'’_])")


@dataclass(frozen=True)
class Quantity:
    """A number with its unit applied: bytes, seconds, or as it is.

    Attributes:
        value: may be infinite, never NaN.
        unit: as written, "" where none was.
        grouped: whether a comma was read as a separator of thousands.
    """

    value: Decimal
    unit: str
    grouped: bool = False


def quantity(text: str, kind: Kind, bound: Bound = "") -> Quantity:
    """The number in `text`, with a unit of `kind` or none; after a last = or ≈ where there is one.

    With a `bound`, its sign and a letter may stand before it: `s >= 1`.

    FormulaError for text that is no number, a unit of another kind, or a time without a unit.
    """
    if len(text) > MAX_LENGTH:
        raise FormulaError(
            f"{len(text)} characters are too long for a number: {MAX_LENGTH} would do", text[:40]
        )
    if bound:
        text = re.sub(rf"^\s*(?:[A-Za-z]\w*\s*)??(?:{_BEFORE[bound]})", "", text)
    written = re.split(r"(?<![<>!=])=|[≈~≃]|\babout\b", text)[-1].strip().removesuffix(".").strip()
    number, unit = _split(written)
    if unit and unit.lower() not in UNITS[kind]:
        raise FormulaError(f"{unit} is no unit of what is asked: {_wanted(kind)}", text)
    if not unit and kind == "seconds":
        raise FormulaError(f"a time needs its unit: {_wanted(kind)}", text)
    joined = _GROUPS.sub(lambda match: re.sub(r"\D", "", match[0]), number)
    if re.fullmatch(r"[+-]?\d+,\d*", joined.strip()):
        raise FormulaError("a comma separates thousands here: write decimals with a point", text)
    value = evaluate_number(parse(joined), text)
    scale = UNITS[kind][unit.lower()] if unit else Decimal(1)
    return Quantity(
        scaled(value, scale, text) if value.is_finite() else value, unit, joined != number and "," in number
    )


def _split(text: str) -> tuple[str, str]:
    """The number and its unit, "" where the last word is no unit."""
    match = _UNIT.search(text)
    if match is None or match[1].lower() not in _KNOWN or match.start() == 0:
        return text, ""
    return text[: match.start()].rstrip(), match[1]


def _wanted(kind: Kind) -> str:
    return {
        "bytes": "bytes would do, or kB, MB, GB, KiB, MiB, GiB",
        "seconds": "s, ms, us or ns would do",
        "flop/byte": "a number or FLOP/byte would do",
        "times": "a number or x would do",
        "percent": "a percentage would do",
        "number": "a number would do",
    }[kind]
