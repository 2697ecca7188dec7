"""Which part of a file is held at a time: the file is read as few times as the memory allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

# Kept for each row in a block: its state, the running one (float64 pairs), and a merge's temporaries.
STATE_BYTES = 128
# A strip of columns is read run by run; below this length a second sequential read costs less than the calls.
MIN_RUN = 256 << 10
# Blocks of whole rows need not be larger: past this the calls are amortised and the cache is left behind.
TARGET = 8 << 20
MIN_MEMORY = 4 << 10


@dataclass(frozen=True)
class Rows:
    """An array in file order: element (a, c, b) is number (a*length + c)*inner + b; rows run along c.

    Fortran order is the same picture with the axes reversed, so every file and axis fits it.
    """

    outer: int
    length: int
    inner: int


@dataclass(frozen=True)
class Block:
    """The elements a in [a0, a1), c in [c0, c1), b in [b0, b1) of `Rows`."""

    a0: int
    a1: int
    c0: int
    c1: int
    b0: int
    b1: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a1 - self.a0, self.c1 - self.c0, self.b1 - self.b0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def runs(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """The block's contiguous runs in the file, in the block's own C order, as (first element, count)."""
        a, c, b = self.shape
        if b == rows.inner and (c == rows.length or a == 1):
            yield (self.a0 * rows.length + self.c0) * rows.inner, self.size
        elif b == rows.inner:
            for i in range(self.a0, self.a1):
                yield (i * rows.length + self.c0) * rows.inner, c * b
        else:
            for i in range(self.a0, self.a1):
                for j in range(self.c0, self.c1):
                    yield (i * rows.length + j) * rows.inner + self.b0, b


@dataclass(frozen=True)
class Plan:
    """Block lengths along (outer, row, inner), and whether rows are held whole (one read) or in parts."""

    rows: Rows
    outer: int
    length: int
    inner: int

    @property
    def whole_rows(self) -> bool:
        return self.length == self.rows.length

    def groups(self) -> Iterator[Block]:
        """Blocks of whole rows that together cover the array once, in file order where runs allow it."""
        for a0 in range(0, self.rows.outer, self.outer):
            a1 = min(a0 + self.outer, self.rows.outer)
            for b0 in range(0, self.rows.inner, self.inner):
                yield Block(a0, a1, 0, self.rows.length, b0, min(b0 + self.inner, self.rows.inner))

    def parts(self, group: Block) -> list[Block]:
        """A group cut along its rows into blocks that fit the memory, in file order."""
        starts = range(group.c0, group.c1, self.length)
        return [
            Block(group.a0, group.a1, c0, min(c0 + self.length, group.c1), group.b0, group.b1)
            for c0 in starts
        ]

    @property
    def block_size(self) -> int:
        """Elements of the largest block."""
        return self.outer * self.length * self.inner


def rows_of(shape: tuple[int, ...], axis: int, fortran_order: bool) -> Rows:
    """The array as rows along `axis` (already in 0..ndim-1; an array of no axes is one row of one number)."""
    if not shape:
        return Rows(1, 1, 1)
    if fortran_order:
        shape, axis = shape[::-1], len(shape) - 1 - axis
    return Rows(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def make_plan(
    rows: Rows,
    element_bytes: int,
    memory: int,
    *,
    needs_rows: bool,
    min_run: int = MIN_RUN,
    target: int = TARGET,
) -> Plan:
    """Choose blocks for `rows` (no length 0) that hold at most `memory` bytes.

    `element_bytes` is what one element takes while a block is worked on. `needs_rows` says that the result
    needs the row again after its state is known (softmax does, log-sum-exp doesn't). Preference: whole slabs
    in file order; then whole rows in strips of columns, if a strip's runs reach `min_run` bytes and that
    saves the second read; then parts of rows, read twice where `needs_rows`.
    """
    slab = rows.inner * (rows.length * element_bytes + STATE_BYTES)
    if slab <= memory:
        return Plan(rows, min(max(min(memory, target) // slab, 1), rows.outer), rows.length, rows.inner)
    strip = min(memory // (rows.length * element_bytes + STATE_BYTES), rows.inner)
    if needs_rows and strip * element_bytes >= min_run:
        return Plan(rows, 1, rows.length, strip)
    # Half the memory at most goes to states, so that a part is never a sliver beside them.
    inner = min(rows.inner, max(memory // (2 * (element_bytes + STATE_BYTES)), 1))
    length = max((memory - inner * STATE_BYTES) // (inner * element_bytes), 1)
    return Plan(rows, 1, min(length, rows.length), inner)
