"""Time of an operation on a CPU, with its caches, instructions and calls in it: why online is not always
faster.

A row's cost in cache is measured for each algorithm (`kernels.row_costs`): instructions, exponentials, and
the
reads of cached rows that further passes make. What memory adds is counted: each element once while the rows
in
flight stay in the second-level cache, every pass beyond, and the exponentials that no longer fit it there and
back. Arithmetic and memory overlap for the most part, not wholly: of the lesser of the two `EXPOSED` shows.

Predictions choose between algorithms; they are not floors (`roofline`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from . import cache, model
from .count import ceil_div
from .units import seconds_text

#: Share of the lesser of arithmetic and memory that the greater does not hide.
EXPOSED: Final = 0.3
#: Share of a cache that data of its size keep, with everything else that passes through.
USABLE: Final = 0.75
# As in native/context.h: less is done by the caller alone; about what a thread claims at a time.
PARALLEL_ELEMENTS: Final = 200_000
ITEM_BYTES: Final = 256 << 10
# As in native/table.h: pieces of one row that threads share out.
SEGMENT: Final = 32768


#: Algorithms that no row makes overflow: those `auto` may choose from, and predictions compare.
SAFE: Final = ("three_pass", "online", "cached")


ITEMSIZES: Final[Mapping[str, int]] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class RowCosts:
    """Seconds of a row in cache by its length, for one algorithm on one thread.

    Attributes:
        columns: lengths measured, ascending.
        seconds: of one row of each.
    """

    columns: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, columns: int) -> float:
        """Seconds of a row of any length: between two measured ones by their ratio, beyond the longest in
        proportion."""
        at = bisect.bisect_left(self.columns, columns)
        if at == len(self.columns):
            return self.seconds[-1] * columns / self.columns[-1]
        if self.columns[at] == columns or at == 0:
            return self.seconds[at]
        low, high = self.columns[at - 1], self.columns[at]
        share = math.log(columns / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(self.seconds[at - 1]) + share * math.log(self.seconds[at]))


@dataclass(frozen=True)
class Cpu:
    """A CPU as predictions take it, measured by `kernels.predictor`.

    Attributes:
        threads: most that work together.
        caches: bytes of "L1", "L2" of a core, and of "L3" of all where there is one.
        call, wake: seconds of a call without work, and what having a second thread adds.
        costs: (operation, dtype, algorithm) -> costs of its rows.
        rates: bytes -> (read, copy) in bytes/s of arrays of that size, with all threads.
    """

    threads: int
    caches: Mapping[str, int]
    call: float
    wake: float
    costs: Callable[[str, str, str], RowCosts]
    rates: Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Prediction:
    """Seconds by what they are spent on; `memory` and `arithmetic` overlap as `EXPOSED` says."""

    algorithm: str
    arithmetic: float
    memory: float
    call: float

    @property
    def seconds(self) -> float:
        """All of it."""
        low, high = sorted((self.arithmetic, self.memory))
        return self.call + high + EXPOSED * low

    @property
    def bound(self) -> str:
        """The greatest part: "memory", "compute" or "launch"."""
        parts = {"memory": self.memory, "compute": self.arithmetic, "launch": self.call}
        return max(parts, key=lambda name: parts[name])

    def __str__(self) -> str:
        return (
            f"{self.algorithm}: {seconds_text(self.seconds)}, bound by {self.bound} (arithmetic "
            f"{seconds_text(self.arithmetic)}, memory {seconds_text(self.memory)}, call "
            f"{seconds_text(self.call)})"
        )


def predict(operation: str, algorithm: str, rows: int, columns: int, dtype: str, cpu: Cpu) -> Prediction:
    """Time of `operation` by `algorithm` on `rows` rows of `columns` elements, into memory that exists.

    Raises ValueError as `model.traffic`, and for an operation, algorithm or dtype whose rows are not
    measured.
    """
    if algorithm not in SAFE:
        raise ValueError(f"algorithm={algorithm!r} is not predicted: {', '.join(map(repr, SAFE))} would do")
    if dtype not in ITEMSIZES:
        raise ValueError(f"dtype={dtype!r}: {', '.join(map(repr, ITEMSIZES))} would do")
    itemsize = ITEMSIZES[dtype]
    moved = model.traffic(operation, algorithm, rows, columns, itemsize)
    threads = _threads(rows, columns, itemsize, algorithm, cpu)
    arithmetic = rows * cpu.costs(operation, dtype, algorithm).of(columns) / threads
    return Prediction(
        algorithm,
        arithmetic,
        _memory(moved, rows, columns, itemsize, threads, cpu),
        cpu.call + (cpu.wake if threads > 1 else 0.0),
    )


def best(operation: str, rows: int, columns: int, dtype: str, cpu: Cpu) -> Prediction:
    """The fastest of the algorithms that are safe for any row."""
    return min(
        (predict(operation, algorithm, rows, columns, dtype, cpu) for algorithm in SAFE),
        key=lambda prediction: prediction.seconds,
    )


def _threads(rows: int, columns: int, itemsize: int, algorithm: str, cpu: Cpu) -> int:
    """Threads that find work: rows are claimed some at a time, one long row is shared by `online` alone."""
    if rows * columns < PARALLEL_ELEMENTS:
        return 1
    if algorithm == "online" and rows < 2 * cpu.threads and columns >= 2 * SEGMENT:
        return cpu.threads
    items = ceil_div(rows, max(1, ITEM_BYTES // max(1, columns * itemsize)))
    return min(cpu.threads, items)


def _memory(moved: model.Traffic, rows: int, columns: int, itemsize: int, threads: int, cpu: Cpu) -> float:
    """Seconds that memory, or the cache the arrays lie in, needs beyond what rows in L2 cost."""
    second_level = cpu.caches.get("L2", cache.TYPICAL["L2"])
    footprint = sum(operand.size for operand in moved.operands)
    if footprint <= USABLE * threads * second_level:
        return 0.0
    once = cache.from_memory(moved, kept=True)
    seconds = _moving(once.read, once.written, cpu.rates(footprint))
    kept = max(4, itemsize) if _keeps(moved) else 0
    in_flight = cache.working_set(columns, itemsize, kept)
    if in_flight > second_level:
        # What a pass asks for again, the kept exponentials too: the part of it that found no room in L2 comes
        # from where the rows in flight lie.
        rates = cpu.rates(min(threads * in_flight, footprint))
        elements, outside = rows * columns, 1 - second_level / in_flight
        spilled = elements * kept
        again = _read_again(moved, elements * itemsize) + spilled
        seconds += outside * _moving(again, spilled, rates)
    return seconds * cpu.threads / threads


def _read_again(moved: model.Traffic, data: int) -> int:
    """Bytes read beyond the first time, where no row stays. Of a log-softmax nothing is kept: past the caches
    `cached` goes over its row three times."""
    if moved.operation == "log_softmax" and moved.algorithm == "cached":
        return 2 * data
    return moved.read - data


def _moving(read: int, written: int, rates: tuple[float, float]) -> float:
    """Seconds to read and write so many bytes: in pairs at the copy's rate, what is left at the read's."""
    paired = min(read, written)
    return (read - paired) / rates[0] + (written + paired) / rates[1]


def _keeps(moved: model.Traffic) -> bool:
    """Whether exponentials are kept between reading a row and writing it."""
    return moved.operation == "softmax" and moved.algorithm == "cached"
