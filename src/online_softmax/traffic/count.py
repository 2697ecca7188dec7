"""What an algorithm moves and computes, per operand: the record every formula of this package fills in.

Formulas are written once, in whole-number arithmetic that sympy's symbols take as well: Python integers in,
exact Python integers out; symbols in, closed expressions out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ..extras import require

#: Flops an exponential counts as.
FLOPS_PER_EXP: Final = 8
#: Bytes of a cache line.
LINE: Final = 64


def ceil_div(a: Any, b: Any) -> int:
    """The least whole number not under a/b, for integers and for symbols."""
    whole: int = -(-a // b) if isinstance(a, int) and isinstance(b, int) else _symbolic("ceiling", a / b)
    return whole


def least(a: int, b: int) -> int:
    """min, which symbols cannot decide at once."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else _symbolic("Min", a, b)


def greatest(a: int, b: int) -> int:
    """max, which symbols cannot decide at once."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else _symbolic("Max", a, b)


def _symbolic(function: str, *arguments: Any) -> int:
    expression: int = getattr(require("sympy", "symbols", "a symbolic count"), function)(*arguments)
    return expression


def sum_over(n: int, term: Callable[[int], int]) -> int:
    """term(0) + ... + term(n - 1); a sympy Sum where n is symbolic. Cost for integers: n calls."""
    if not hasattr(n, "free_symbols"):
        return sum(term(i) for i in range(n))
    sympy = require("sympy", "symbols", "a symbolic count")
    i = sympy.Symbol("i", integer=True, nonnegative=True)
    total: int = sympy.Sum(term(i), (i, 0, n - 1))
    return total


def _ratio(a: Any, b: Any) -> Fraction:
    """a / b, exactly, of integers or symbols."""
    ratio: Fraction = Fraction(a, b) if isinstance(a, int) and isinstance(b, int) else a / b
    return ratio


@dataclass(frozen=True)
class Operand:
    """One tensor of an operation, in bytes.

    Attributes:
        name: as in the function's signature; a tensor that exists only between two kernels has its usual
        name.
        size: bytes of the whole tensor.
        read, written: bytes asked for by the kernels, each time they ask.
        temporary: neither an input nor a result: memory that exists for this algorithm alone.
    """

    name: str
    size: int
    read: int = 0
    written: int = 0
    temporary: bool = False

    @property
    def traversals(self) -> Fraction:
        """How often the tensor is gone over, reads and writes. Raises ZeroDivisionError for an empty one."""
        return _ratio(self.read + self.written, self.size)


@dataclass(frozen=True)
class Traffic:
    """What an algorithm moves and computes, at least. Bytes and counts are exact.

    Attributes:
        operation, algorithm: names.
        operands: bytes, tensor by tensor.
        exps: exponentials, without those per new maximum (`expected_maxima` a row, in `online`).
        plain_flops: additions, subtractions, products and quotients beside exponentials and matrix products.
        matrix_flops: flops of matrix products, two for a multiply-add.
        reads, writes: traversals of the data, and of an array of its shape; None where an operation has no
            single array that deserves the name.
        write_allocate: whether the cache reads each line before it is overwritten.
    """

    operation: str
    algorithm: str
    operands: tuple[Operand, ...]
    exps: int = 0
    plain_flops: int = 0
    matrix_flops: int = 0
    reads: int | None = None
    writes: int | None = None
    write_allocate: bool = False

    def __getitem__(self, name: str) -> Operand:
        """The operand of this name. Raises KeyError."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)

    @property
    def read(self) -> int:
        """Bytes read as data."""
        return sum(operand.read for operand in self.operands)

    @property
    def written(self) -> int:
        """Bytes written."""
        return sum(operand.written for operand in self.operands)

    @property
    def traversals(self) -> int | None:
        """Reads and writes of the data; None where those are."""
        return None if self.reads is None or self.writes is None else self.reads + self.writes

    @property
    def allocated(self) -> int:
        """Bytes read because the cache allocates lines on write; every operand starts a line of its own."""
        if not self.write_allocate:
            return 0
        return sum(ceil_div(operand.written, LINE) * LINE for operand in self.operands)

    @property
    def total(self) -> int:
        """All bytes moved."""
        return self.read + self.written + self.allocated

    @property
    def workspace(self) -> int:
        """Bytes of memory beside inputs and results."""
        return sum(operand.size for operand in self.operands if operand.temporary)

    @property
    def vector_flops(self) -> int:
        """Flops outside matrix products: FLOPS_PER_EXP for each exponential, and the plain operations."""
        return FLOPS_PER_EXP * self.exps + self.plain_flops

    @property
    def flops(self) -> int:
        """All flops."""
        return self.vector_flops + self.matrix_flops

    @property
    def intensity(self) -> Fraction:
        """Flops per byte moved. Raises ZeroDivisionError where nothing is moved."""
        return _ratio(self.flops, self.total)

    def seconds(self, bytes_per_second: float) -> float:
        """The floor: time to move `total` at this rate. Raises ValueError where the rate is not positive."""
        if not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second={bytes_per_second!r}: a positive rate would do")
        return self.total / bytes_per_second
