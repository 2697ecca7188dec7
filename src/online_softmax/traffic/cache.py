"""Which bytes a cache saves, and with them the regime an operation runs in: pure arithmetic, no hardware.

Rows are worked on several at a time. While those in flight fit a cache, a second pass over them is served
by it, and memory sees each element once whatever the algorithm; the number of passes predicts the time only
from the row size on where they no longer fit. `cpu` takes its choice of algorithm from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from .count import Traffic

#: Columns worked on side by side where the reduced axis is not the last.
STRIP: Final = 64
#: What a core's caches are taken to hold where the system does not tell, in bytes.
TYPICAL: Final[Mapping[str, int]] = {"L1": 32 << 10, "L2": 1 << 20}


def from_memory(moved: Traffic, *, kept: bool) -> Traffic:
    """The traffic that memory sees: all of it, or with `kept` every tensor at most once in each direction.

    `kept`: a cache serves whatever is asked for again. A whole tensor between two kernels is moved like any
    other, once each way.
    """
    if not kept:
        return moved
    return replace(
        moved,
        operands=tuple(
            replace(operand, read=min(operand.read, operand.size), written=min(operand.written, operand.size))
            for operand in moved.operands
        ),
    )


@dataclass(frozen=True)
class Regime:
    """Where the rows of a tensor lie while they are worked on.

    Attributes:
        name: "tensor in cache", "rows in cache" or "rows past cache".
        row_bytes, tensor_bytes: of the input.
        last_level: bytes of the cache they are held against.
        resident_rows: rows in flight.
        deciding_row_bytes: the row size from which the number of passes predicts the time: the cache divided
            among the rows in flight.
    """

    name: str
    row_bytes: int
    tensor_bytes: int
    last_level: int
    resident_rows: int
    deciding_row_bytes: int

    @property
    def kept(self) -> bool:
        """Whether a second pass over a row is served by the cache."""
        return self.name != "rows past cache"


def regime(
    rows: int, columns: int, itemsize: int, last_level: int, resident_rows: int | None = None
) -> Regime:
    """The regime of `rows` rows of `columns` elements against a cache of `last_level` bytes.

    `resident_rows`: rows in flight, all of them where not given. Raises ValueError for sizes under 1.
    """
    resident = rows if resident_rows is None else resident_rows
    for name, size in (("rows", rows), ("columns", columns), ("resident_rows", resident)):
        if size < 1:
            raise ValueError(f"{name}={size}: a size of at least 1 would do")
    resident = min(resident, rows)
    row = columns * itemsize
    if rows * row <= last_level:
        name = "tensor in cache"
    elif resident * row <= last_level:
        name = "rows in cache"
    else:
        name = "rows past cache"
    return Regime(name, row, rows * row, last_level, resident, last_level // resident)


# ---- what `auto` means on the CPU


def working_set(columns: int, itemsize: int, kept_itemsize: int) -> int:
    """Bytes `cached` has in flight a thread: the row it reads, the one it writes, the exponentials it
    keeps."""
    return columns * (2 * itemsize + kept_itemsize)


def cached_columns(operation: str, itemsize: int, caches: Mapping[str, int]) -> int:
    """The longest row `auto` gives to `cached` on a CPU; longer ones go to `online`.

    Args:
        operation: "softmax", "log_softmax", "logsumexp" or "state".
        itemsize: bytes of an element.
        caches: bytes of "L1" and "L2" of a core (`TYPICAL` where one is missing).

    A softmax keeps its exponentials. In 16 bits they are dear beside the bytes, and its working set may fill
    the
    second-level cache; in wider formats half of it, the other half being lines on their way in and out: past
    that
    `online`, which makes them anew from the second read, is as fast (`benchmarks.choice`). The
    others keep nothing, and read a row in L2 as fast the second time: `cached` pays for them only while a row
    lies in two thirds of L1, where the next row's maximum is looked for beside this one's sums.
    """
    if operation == "softmax":
        share = 1 if itemsize <= 2 else 2
        return caches.get("L2", TYPICAL["L2"]) // share // working_set(1, itemsize, max(4, itemsize))
    return caches.get("L1", TYPICAL["L1"]) * 2 // 3 // itemsize


def cached_column_length(caches: Mapping[str, int]) -> int:
    """The longest column `auto` gives to `cached` where the reduced axis is not the last.

    A strip of columns one line wide, widened to float32, may keep its exponentials in a quarter of L2.
    """
    return caches.get("L2", TYPICAL["L2"]) // 4 // (STRIP * 4)
