"""How a call is cut into programs: tables and arithmetic on sizes, nothing else.

What is chosen depends on the operation, the algorithm, the columns, and the element's size, never on the
number of rows: a row gets the same bits in every batch. A table is a tuple of (limit, value), the limits
rising: the value of the first limit that is not exceeded holds.

Passes over the data (T bytes), as in `traffic.model`; softmax and log_softmax write T besides:

    naive 2 T, three_pass 3 T, online 2 T; logsumexp reads one T less, softmax_topk reads T
    cached            T: rows of up to MAX_BLOCK columns lie in the registers of one program
    cached, longer    2 T, 8 bytes written for each chunk of a row, and 8 bytes for each chunk of its row read
                      by each program that writes; logsumexp T, and each state written and read once
    softmax_backward  cached 2 T (y and dy), online 4 T;  log_softmax_backward  cached 2 T, online 3 T
    logsumexp_backward  T, and 8 bytes a row for each of its chunks
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

Table = tuple[tuple[int, int], ...]

_ANY: Final = 2**63 - 1
#: Sizes a block may be forced to, powers of two. 16384 is the largest that is held without spills, aligned or
#: not, on sm_80 to sm_100 and gfx942.
MIN_BLOCK: Final = 16
MAX_BLOCK: Final = 16384
#: Largest k of softmax_topk. Keys are kept in registers and replaced one by one.
MAX_K: Final = 1024
#: Programs of one launch.
MAX_GRID: Final = 2**31 - 1

#: By columns: block of a program that goes over its row in a loop.
LOOP_BLOCK: Final[Table] = ((512, 512), (1024, 1024), (_ANY, 4096))
#: By columns: block of softmax_topk, which keeps 64-bit keys besides.
TOPK_BLOCK: Final[Table] = ((512, 512), (_ANY, 1024))
#: By columns: block of a gradient that goes over its rows in a loop: two arrays are held.
BACKWARD_BLOCK: Final[Table] = ((512, 512), (1024, 1024), (_ANY, 2048))
#: By columns: chunk of a row too long for one block.
CHUNK: Final[Table] = ((_ANY, 8192),)
#: By columns: rows of one program, where they are short.
ROWS: Final[Table] = ((16, 64), (32, 32), (64, 16), (128, 8), (256, 4), (512, 2), (_ANY, 1))
#: By elements held: threads of a program, for 8 to 32 elements a thread. Elements count twice where no
#: access of 16 bytes can be made of them: each then has an address and a mask of its own.
THREADS: Final[Table] = ((256, 32), (512, 64), (2048, 128), (4096, 256), (16384, 512), (_ANY, 1024))
#: Most threads for float32: 1024 would have 64 registers each, too few for its exponentials.
MAX_THREADS_EXACT: Final = 512
#: Longest rows whose gradient is taken in one block: two arrays are held.
MAX_BACKWARD_BLOCK: Final = 8192
#: States merged at a time.
_STATES: Final = 1024

_FORWARD: Final = ("naive", "three_pass", "online", "cached")
#: Operation -> its algorithms; "auto" takes the one with the fewest bytes.
ALGORITHMS: Final = MappingProxyType(
    {
        "softmax": _FORWARD,
        "log_softmax": _FORWARD,
        "logsumexp": _FORWARD,
        "softmax_topk": ("online",),
        "softmax_backward": ("online", "cached"),
        "log_softmax_backward": ("online", "cached"),
        "logsumexp_backward": ("cached",),
    }
)


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: its name in `online_softmax.gpu.ops.KERNELS`.
        grid: number of programs.
        constants: the kernel's compile-time parameters.
        threads: threads of a program.
    """

    kernel: str
    grid: tuple[int]
    constants: dict[str, Any]
    threads: int

    def options(self, warp_size: int = 32) -> dict[str, Any]:
        """What Triton is to compile with. Fusion is said aloud: its default differs between versions."""
        return {"num_warps": max(1, self.threads // warp_size), "enable_fp_fusion": True}


def look_up(table: Table, size: int) -> int:
    """The value of the first limit that `size` does not exceed."""
    return next(value for limit, value in table if size <= limit)


def covering(columns: int) -> int:
    """The smallest block that holds `columns`."""
    return max(MIN_BLOCK, 1 << max(0, columns - 1).bit_length())


def chunks_of(columns: int, block: int) -> int:
    """Blocks that cover a row."""
    return -(-columns // block)


def alignment(*sizes: int) -> int:
    """The largest power of two up to 16 that divides all of `sizes` (columns and strides, in elements)."""
    joint = 16
    for size in sizes:
        joint |= size
    return joint & -joint


def check_block(block: int | None) -> None:
    """Raises TypeError where `block` is no int or None, ValueError where it is no size a block may have."""
    would = f"a power of two from {MIN_BLOCK} to {MAX_BLOCK}, or None, would do"
    if block is None:
        return
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"block={block!r} is a {type(block).__name__}: {would}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block & (block - 1):
        raise ValueError(f"block={block}: {would}")


def resolve(op: str, algorithm: str, columns: int, block: int | None = None) -> str:
    """The algorithm that is to run. Raises ValueError, naming what would do, for an unknown operation or
    algorithm, and for a "cached" gradient of rows that no block holds."""
    if op not in ALGORITHMS:
        raise ValueError(f"op={op!r} is unknown: {_names(tuple(ALGORITHMS))} would do")
    offered = ALGORITHMS[op]
    if algorithm not in (*offered, "auto"):
        raise ValueError(f"algorithm={algorithm!r} is unknown to {op}: {_names((*offered, 'auto'))} would do")
    if op not in ("softmax_backward", "log_softmax_backward"):
        return offered[-1] if algorithm == "auto" else algorithm
    room = MAX_BACKWARD_BLOCK if block is None else block
    if algorithm == "cached" and columns > room:
        raise ValueError(
            f"algorithm='cached': rows of {columns} columns do not fit a block of {room}: "
            "'online' or 'auto' would do"
        )
    return ("cached" if columns <= room else "online") if algorithm == "auto" else algorithm


def plan(
    op: str,
    algorithm: str,
    rows: int,
    columns: int,
    itemsize: int,
    *,
    block: int | None = None,
    align: int | None = None,
    k: int = 1,
) -> tuple[Launch, ...]:
    """The launches of `op` over `rows` rows of `columns` elements of `itemsize` bytes (2 or 4), in order.

    Args:
        block: the size of a block or chunk, in place of the tables' choice.
        align: see `alignment`; None takes the rows as adjacent.
        k: entries a row of softmax_topk.

    Empty where there is nothing to compute. Raises as `resolve` and `check_block` do, and ValueError for an
    itemsize or a k out of range and for more programs than one launch takes.
    """
    if rows < 0 or columns < 0:
        raise ValueError(f"rows={rows}, columns={columns}: sizes of at least 0 would do")
    check_block(block)
    chosen = resolve(op, algorithm, columns, block)
    if itemsize not in (2, 4):
        raise ValueError(f"itemsize={itemsize}: 2 or 4 bytes would do")
    if not rows or not columns:
        return ()
    common = {"ALIGN": alignment(columns) if align is None else align, "EXACT": itemsize == 4}
    if op == "logsumexp_backward":
        made = _elementwise(rows, columns, block, common)
    elif chosen == "cached" and op.endswith("_backward"):
        made = _whole("backward_cached", rows, columns, block, {"OP": op.removesuffix("_backward"), **common})
    elif chosen == "cached":
        made = _cached(op, rows, columns, block, common)
    else:
        made = _looped(op, chosen, rows, columns, block, {**common, "VECTOR": 16 // itemsize}, k)
    if max(launch.grid[0] for launch in made) > MAX_GRID:
        raise ValueError(
            f"{rows} rows of {columns} columns take over {MAX_GRID} programs: fewer rows would do"
        )
    return made


def _looped(
    op: str, algorithm: str, rows: int, columns: int, block: int | None, common: dict[str, Any], k: int
) -> tuple[Launch, ...]:
    if op == "softmax_topk":
        check_k(k, columns)
        size = block or look_up(TOPK_BLOCK, columns)
        constants = {"K": max(2, covering_power(k)), **common, "BLOCK": size}
        return (Launch("topk", (rows,), constants, _threads(size, common, arrays=2)),)
    if op.endswith("_backward"):
        size = block or look_up(BACKWARD_BLOCK, columns)
        named = {"OP": op.removesuffix("_backward")}
        threads = _threads(size, common, arrays=2)
        return (Launch("backward_online", (rows,), {**named, **common, "BLOCK": size}, threads),)
    size = block or look_up(LOOP_BLOCK, columns)
    named = {"OP": op, "ALGORITHM": algorithm}
    return (Launch("looped", (rows,), {**named, **common, "BLOCK": size}, _threads(size, common)),)


def _cached(
    op: str, rows: int, columns: int, block: int | None, common: dict[str, Any]
) -> tuple[Launch, ...]:
    if columns <= (block or MAX_BLOCK):
        return _whole("cached", rows, columns, block, {"OP": op, **common})
    chunk = block or look_up(CHUNK, columns)
    chunks = chunks_of(columns, chunk)
    of_chunk = {**common, "BLOCK": chunk}
    states = {"STATES": min(covering_power(chunks), _STATES)}
    first = Launch("chunk_states", (rows * chunks,), of_chunk, _threads(chunk, common))
    if op == "logsumexp":
        return first, Launch("row_lse", (rows,), states, 32)
    last = {"OP": op, **of_chunk, **states}
    return first, Launch("chunk_results", (rows * chunks,), last, _threads(chunk, common))


def _whole(
    kernel: str, rows: int, columns: int, block: int | None, constants: dict[str, Any]
) -> tuple[Launch, ...]:
    """Each row in one block, several rows a program where the block is not forced."""
    size, many = (covering(columns), look_up(ROWS, columns)) if block is None else (block, 1)
    constants = {**constants, "ROWS": many, "BLOCK": size}
    arrays = 2 if kernel == "backward_cached" else 1
    threads = _threads(size * many, constants, arrays)
    return (Launch(kernel, (chunks_of(rows, many),), constants, threads),)


def _elementwise(rows: int, columns: int, block: int | None, common: dict[str, Any]) -> tuple[Launch, ...]:
    size = block or min(covering(columns), look_up(LOOP_BLOCK, columns))
    many = look_up(ROWS, columns) if block is None else 1
    grid = chunks_of(rows, many) * chunks_of(columns, size)
    constants = {**common, "ROWS": many, "BLOCK": size}
    return (Launch("lse_backward", (grid,), constants, _threads(size * many, common)),)


def _threads(elements: int, constants: dict[str, Any], arrays: int = 1) -> int:
    """Threads that hold `arrays` tiles of `elements`, each with 16 bytes of one at least."""
    vector = 4 if constants["EXACT"] else 8
    held = arrays * elements * (1 if constants["ALIGN"] >= vector else 2)
    threads = min(look_up(THREADS, held), elements // vector)
    return max(32, min(threads, MAX_THREADS_EXACT) if constants["EXACT"] else threads)


def check_k(k: int, columns: int) -> None:
    """Raises ValueError for a k that softmax_topk does not serve."""
    most = min(columns, MAX_K)
    if not 0 <= k <= most:
        limit = f" (the limit on a GPU is {MAX_K})" if columns > MAX_K else ""
        raise ValueError(f"k={k}: 0 to {most} would do for rows of {columns} columns{limit}")


def covering_power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def _names(of: tuple[str, ...]) -> str:
    return ", ".join(map(repr, of))
