"""How a call whose bits depend on the elements alone is cut into programs: arithmetic on sizes.

Here sizes are a matter of speed and nothing else. Passes over the data (T bytes): rows of up to a block are
read once; longer ones once for the states of their chunks, 28 bytes each, and once more for results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import launch

#: Longest rows that are held in one block, with their terms, and chunks of longer ones.
BLOCK: Final = 8192
#: Elements of a thread, and threads of a program. Of short rows a thread holds one or two: it keeps doubles
#: for each.
_HELD: Final = 16
_MAX_THREADS: Final = 512
#: States a program of `merged` and `read` holds.
STATES: Final = 128
#: Sums of slices stay within 32 bits up to so many.
_MAX_PARTS: Final = 512


@dataclass(frozen=True)
class Cut:
    """Rows in blocks.

    Attributes:
        block: columns of a program.
        chunks: blocks of a row.
        many: rows of a program.
        threads: threads of a program.
        parts: see `exact._total`.
        programs: of a launch.
    """

    block: int
    chunks: int
    many: int
    threads: int
    parts: int
    programs: int


def cut(rows: int, columns: int, itemsize: int, align: int, block: int | None = None) -> Cut:
    """For `rows` rows of `columns` elements, of at least one element; `block` forces the columns of a
    program. Raises ValueError as `launch.plan` does."""
    launch.check_block(block)
    size = block or min(launch.covering(columns), BLOCK)
    chunks = launch.chunks_of(columns, size)
    many = launch.look_up(launch.ROWS, columns) if chunks == 1 and block is None else 1
    vector = 16 // itemsize if align >= 16 // itemsize else 1
    held = _HELD if many == 1 else max(2, vector)
    threads = max(32, min(size * many // held, _MAX_THREADS))
    parts = min(max(1, size // (vector * threads)), _MAX_PARTS)
    programs = launch.chunks_of(rows, many) * chunks
    if programs > launch.MAX_GRID:
        raise ValueError(
            f"{rows} rows of {columns} columns take over {launch.MAX_GRID} programs: fewer rows would do"
        )
    return Cut(size, chunks, many, threads, parts, programs)


def options(threads: int, warp_size: int) -> dict[str, int | bool]:
    """What Triton is to compile with: no product is fused with a sum but where the law says so."""
    return {"num_warps": max(1, threads // warp_size), "enable_fp_fusion": False}
