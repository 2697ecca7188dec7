"""The model: bytes, exponentials and flops of every operation by algorithm, exact integers or expressions.

`count` takes an operation's sizes as a record of `shapes`; `traffic` is the short way for rows; `symbolic`
gives the same formulas as sympy expressions. `schedules` counts what goes over a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from ..extras import require
from . import attention, losses, rows, schedules
from .count import FLOPS_PER_EXP, LINE, Operand, Traffic
from .shapes import Attention, Projection, Rows, Shape, States

__all__ = [
    "FLOPS_PER_EXP",
    "LINE",
    "OPERATIONS",
    "Operand",
    "Traffic",
    "algorithms",
    "count",
    "expected_maxima",
    "shape_of",
    "symbolic",
    "traffic",
]

Formula = Callable[[Any], Traffic]

#: Operation -> (the record of its sizes, algorithm -> formula).
OPERATIONS: Final[Mapping[str, tuple[type[Shape], Mapping[str, Formula]]]] = MappingProxyType(
    {
        name: (shape, formulas)
        for shape, family in (
            (Rows, rows.FORMULAS),
            (Projection, losses.FORMULAS),
            (Attention, attention.FORMULAS),
            (States, schedules.FORMULAS),
        )
        for name, formulas in family.items()
    }
)


def algorithms(operation: str) -> tuple[str, ...]:
    """Algorithms the operation has a count for, in the table's order. Raises ValueError for an unknown
    operation."""
    return tuple(_operation(operation)[1])


def shape_of(operation: str) -> type[Shape]:
    """The record of sizes that `count` takes for the operation. Raises ValueError for an unknown one."""
    return _operation(operation)[0]


def count(operation: str, algorithm: str, shape: Shape, *, write_allocate: bool = False) -> Traffic:
    """Traffic of `operation` by `algorithm` for these sizes.

    Args:
        shape: a record of the class `shape_of(operation)`; `rows.SPLIT` counts rows in `Chunks`.
        write_allocate: count the read of each written line, results taken as contiguous from a line's start.

    Raises ValueError, naming the argument: an unknown operation, an algorithm it lacks ("auto" has no count
    of its own). TypeError: sizes of another family.

    Cost: a few microseconds; with causal attention one step for each block of queries or keys.
    """
    kind, formulas = _operation(operation)
    if algorithm not in formulas:
        raise ValueError(
            f"algorithm={algorithm!r} is not counted for {operation}: {_names(formulas)} would do"
        )
    if not isinstance(shape, kind):
        raise TypeError(f"shape={shape!r}: {operation} is counted for {kind.__name__}(...)")
    return replace(formulas[algorithm](shape), write_allocate=write_allocate)


def traffic(
    operation: str,
    algorithm: str,
    rows: int,
    columns: int,
    itemsize: int,
    *,
    k: int = 1,
    write_allocate: bool = False,
) -> Traffic:
    """Traffic of an operation on `rows` rows of `columns` elements of `itemsize` bytes: see `count`.

    Args:
        k: entries a row for softmax_topk; of no effect elsewhere.

    Raises ValueError, naming the argument: what `count` raises, an operation that has no rows, a negative
    size,
    an itemsize other than 1, 2, 4, 8, k outside 0 to columns.
    """
    if _operation(operation)[0] is not Rows:
        raise ValueError(f"operation={operation!r} is not one on rows of elements: count(...) would do")
    shape = Rows(rows, columns, itemsize, k if operation == "softmax_topk" else 0)
    return count(operation, algorithm, shape, write_allocate=write_allocate)


def symbolic(operation: str, algorithm: str, *, causal: bool = False) -> Traffic:
    """The same formulas with a sympy symbol for each size: every number of the result is an expression.

    Symbols are positive integers and have the names of the fields of `shape_of(operation)`. `causal` asks
    for the causal form of attention, whose sums stay as they are. Raises ValueError as `count` and for causal
    elsewhere, MissingExtra without sympy.
    """
    sympy = require("sympy", "symbols", "a symbolic count")
    kind, formulas = _operation(operation)
    if algorithm not in formulas:
        raise ValueError(
            f"algorithm={algorithm!r} is not counted for {operation}: {_names(formulas)} would do"
        )
    if causal and kind is not Attention:
        raise ValueError(f"causal=True: only attention has a causal form, {operation} has not")
    symbols = {
        field.name: sympy.Symbol(field.name, integer=True, positive=True)
        for field in fields(kind)
        if field.name != "causal"
    }
    if kind is Attention:
        symbols["causal"] = causal
    return formulas[algorithm](kind(**symbols))


def expected_maxima(columns: int) -> Fraction:
    """New maxima expected in a row without ties whose order is exchangeable: 1 + 1/2 + ... + 1/columns, about
    ln(columns) + 0.577. The first entry counts as one. Cost grows with columns: keep it under a few thousand.
    """
    return sum((Fraction(1, n) for n in range(1, columns + 1)), Fraction(0))


def _operation(name: str) -> tuple[type[Shape], Mapping[str, Formula]]:
    if name not in OPERATIONS:
        raise ValueError(f"operation={name!r} is unknown: {_names(OPERATIONS)} would do")
    return OPERATIONS[name]


def _names(of: Iterable[str]) -> str:
    return ", ".join(map(repr, of))
