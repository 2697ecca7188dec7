"""The shape of the exercise: parts, questions, answers to be filled in; and the draws a seed makes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ..numerics.formats import Format
from .choices import Choice, choice
from .fields import EXACT, THREE_DIGITS, Field, Number
from .quantity import Bound, Kind


@dataclass(frozen=True)
class Ask:
    """One answer line. `key`: "2.3b", unique in a sheet. `text`: the question, Markdown."""

    key: str
    text: str
    field: Field


@dataclass(frozen=True)
class Grid:
    """A table to fill in: `cells[i][j]` is the field of `rows[i]` under `columns[j]`; `corner` heads "
    "the rows."""

    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Field, ...], ...]


@dataclass(frozen=True)
class Question:
    """A numbered question: its text, answer lines, and a table or none."""

    number: str
    title: str
    text: str
    asks: tuple[Ask, ...] = ()
    grid: Grid | None = None

    def fields(self) -> Iterator[Ask]:
        """Everything to fill in, in the sheet's order; cells are keyed "5.2 [no shift / reads]"."""
        yield from self.asks
        if self.grid is not None:
            for row, cells in zip(self.grid.rows, self.grid.cells, strict=True):
                for column, field in zip(self.grid.columns, cells, strict=True):
                    yield Ask(cell_key(self.number, row, column), f"{column}, for {row}", field)


def cell_key(number: str, row: str, column: str) -> str:
    """The key of a table's cell."""
    return f"{number} [{row} / {column}]"


@dataclass(frozen=True)
class Part:
    """name: "1" to "6" or "bonus"."""

    name: str
    title: str
    text: str
    questions: tuple[Question, ...]


class Draw:
    """What a seed chooses: Python's generator, seeded for one part, so that parts do not shift each other."""

    def __init__(self, seed: int, part: int) -> None:
        self.random = random.Random(seed * 64 + part)

    def one(self, options: Sequence[int]) -> int:
        """One of the numbers."""
        return options[self.random.randrange(len(options))]

    def some(self, options: Sequence[str], count: int) -> list[str]:
        """`count` different ones, in their order."""
        chosen = set(self.random.sample(range(len(options)), count))
        return [option for at, option in enumerate(options) if at in chosen]

    def choice(
        self, options: Sequence[tuple[str, str]], right: int | Sequence[int] = 0, nudge: str = ""
    ) -> Choice:
        """(option, hint) in a drawn order; `right` by its place here."""
        return choice(options, right, self.random.sample(range(len(options)), len(options)), nudge)

    def custom_format(self) -> Format:
        """A format no machine has, by the rules of IEEE 754."""
        precision = self.one((5, 6, 7, 9, 10))
        return Format("mini", emax=2 ** (self.one((5, 6, 7)) - 1) - 1, precision=precision)


def exponent_bits(fmt: Format) -> int:
    """Bits of the exponent of a format by the rules of IEEE 754."""
    return (fmt.emax + 1).bit_length()


# --- short ways to fields -----------------------------------------------------------------------------

Traps = tuple[tuple[Fraction, str], ...]


def count_of(
    value: int,
    traps: Traps = (),
    nudge: str = "Write every single one down, then count them.",
    bound: Bound = "",
) -> Number:
    """A whole number, exactly."""
    return Number(
        Fraction(value), str(value), tolerance=EXACT, traps=_apart(value, traps), nudge=nudge, bound=bound
    )


def size_of(value: int, traps: Traps = (), nudge: str = "") -> Number:
    """Bytes."""
    return Number(
        Fraction(value),
        f"{value} B",
        "bytes",
        traps=_apart(value, traps),
        nudge=nudge or "Elements times bytes an element.",
    )


def time_of(seconds: float, traps: Traps = ()) -> Number:
    """A time."""
    return Number(
        Fraction(seconds),
        f"{seconds * 1e6:.6g} us",
        "seconds",
        traps=_apart(Fraction(seconds), traps),
        nudge="Bytes divided by bytes a second; mind the powers of ten.",
    )


def figure(
    value: Fraction | Decimal | float,
    traps: Traps = (),
    *,
    kind: Kind = "number",
    tolerance: Fraction = THREE_DIGITS,
    also: Traps = (),
    nudge: str = "Write down what is counted, then put the numbers in.",
    bound: Bound = "",
) -> Number:
    """A number worked out to a few digits."""
    exact = Fraction(value)
    return Number(exact, number_text(exact), kind, tolerance, _apart(exact, traps), also, nudge, bound)


def number_text(value: Fraction) -> str:
    """Whole numbers as they are, others with eight digits."""
    if value.denominator == 1 and abs(value) < 10**15:
        return str(value)
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.8g}"


def _apart(value: Fraction | int, traps: Traps) -> Traps:
    """Traps whose value is not the right one by coincidence of the sizes drawn."""
    return tuple((trap, hint) for trap, hint in traps if trap != value)
