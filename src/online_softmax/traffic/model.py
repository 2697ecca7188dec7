"""Bytes, exponentials and flops of an operation, by algorithm: exact integers, from the counts in `ops`.

The model: data of R rows by C columns, T = R * C * itemsize bytes, is too large to stay in a cache between
two passes, so that each pass moves all of it once; `cached` keeps the one row it works on. What a smaller
working set saves is no matter of this file. A cache that allocates on write reads each line before it is
overwritten: ordinary stores of a CPU do, non-temporal ones and GPUs' do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ..ops import OPERATIONS, Operation

#: Flops an exponential counts as.
FLOPS_PER_EXP: Final = 8
#: Bytes of a cache line.
LINE: Final = 64
_INDEX: Final = 8


@dataclass(frozen=True)
class Traffic:
    """What an algorithm moves and computes, at least. Bytes and counts are exact.

    Attributes:
        operation, algorithm: names.
        reads, writes: traversals of the data, and of an array of its shape.
        read: bytes read as data.
        written: bytes of the results.
        allocated: bytes read because the cache allocates lines on write; 0 where it does not.
        exps: exponentials, without those per new maximum (`expected_maxima` a row, in `online`).
        flops: FLOPS_PER_EXP for each exponential, and the plain operations.
    """

    operation: str
    algorithm: str
    reads: int
    writes: int
    read: int
    written: int
    allocated: int
    exps: int
    flops: int

    @property
    def total(self) -> int:
        """All bytes moved."""
        return self.read + self.written + self.allocated

    @property
    def intensity(self) -> Fraction:
        """Flops per byte moved. Raises ZeroDivisionError where nothing is moved."""
        return Fraction(self.flops, self.total)

    def seconds(self, bytes_per_second: float) -> float:
        """The floor: time to move `total` at this rate. Raises ValueError where the rate is not positive."""
        if not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second={bytes_per_second!r}: a positive rate would do")
        return self.total / bytes_per_second


def algorithms(operation: str) -> tuple[str, ...]:
    """Algorithms the operation has a count for, in the table's order. Raises ValueError for an unknown
    operation."""
    return tuple(_operation(operation).passes)


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
    """Traffic of `operation` by `algorithm` over `rows` rows of `columns` elements of `itemsize` bytes.

    Args:
        k: entries a row for softmax_topk; of no effect elsewhere.
        write_allocate: count the read of each written line, results taken as contiguous from a line's start.

    Raises ValueError, naming the argument: an unknown operation, an algorithm it lacks ("auto" has no count
    of its own), a negative size, an itemsize other than 1, 2, 4, 8, k outside 0 to columns.
    """
    row = _operation(operation)
    if algorithm not in row.passes:
        raise ValueError(
            f"algorithm={algorithm!r} is not counted for {operation}: {_names(row.passes)} would do"
        )
    if rows < 0 or columns < 0:
        raise ValueError(f"rows={rows}, columns={columns}: sizes of at least 0 would do")
    if itemsize not in (1, 2, 4, 8):
        raise ValueError(f"itemsize={itemsize}: 1, 2, 4 or 8 bytes would do")
    if row.rider is not None and not 0 <= k <= columns:
        raise ValueError(f"k={k}: 0 to columns={columns} would do")
    passes, results = row.passes[algorithm], row.results(k)
    elements = rows * columns
    per_row = results.values * itemsize + results.indices * _INDEX + results.statistics * max(4, itemsize)
    written = passes.writes * elements * itemsize + rows * per_row
    exps = passes.exps * elements + rows * results.exps
    return Traffic(
        operation=operation,
        algorithm=algorithm,
        reads=passes.reads,
        writes=passes.writes,
        read=passes.reads * elements * itemsize,
        written=written,
        allocated=-(-written // LINE) * LINE if write_allocate else 0,
        exps=exps,
        flops=FLOPS_PER_EXP * exps + passes.flops * elements,
    )


def expected_maxima(columns: int) -> Fraction:
    """New maxima expected in a row without ties whose order is exchangeable: 1 + 1/2 + ... + 1/columns, about
    ln(columns) + 0.577. The first entry counts as one. Cost grows with columns: keep it under a few thousand.
    """
    return sum((Fraction(1, n) for n in range(1, columns + 1)), Fraction(0))


def _operation(name: str) -> Operation:
    if name not in OPERATIONS:
        raise ValueError(f"operation={name!r} is unknown: {_names(OPERATIONS)} would do")
    return OPERATIONS[name]


def _names(of: Iterable[str]) -> str:
    return ", ".join(map(repr, of))
