"""softmax, log_softmax and logsumexp of a .npy file of any size, in bounded memory and the fewest reads.

A row that fits the memory is read once and written once. A longer row is read for its state (m, s), part by
part, and then read again to be written; its last part, still in memory, is not read again. The kernels are
handed in: this module moves bytes and merges states, and knows no kernel.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import state
from .plan import MIN_MEMORY, MIN_RUN, Block, Plan, Rows, make_plan, rows_of
from .readers import FileError, Header, NpyReader
from .writers import AtomicFile, header_bytes

Array = NDArray[Any]
Progress = Callable[[int, int], None]

OPERATIONS = ("softmax", "log_softmax", "logsumexp")


class BlockState(Protocol):
    """(m, s) of a block, reduced axes removed."""

    def __call__(self, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]: ...


class WriteBlock(Protocol):
    """Results of a block from its rows' states (reduced axes removed); `out` may be `x` itself."""

    def __call__(self, x: Array, m: Array, s: Array, out: Array, axes: tuple[int, ...]) -> None: ...


class WholeBlock(Protocol):
    """Results of a block of whole rows; `out` is `x` itself, or has the reduced axes removed (logsumexp)."""

    def __call__(self, x: Array, out: Array, axes: tuple[int, ...]) -> None: ...


@dataclass(frozen=True)
class Kernels:
    """The arithmetic of one operation on blocks in memory.

    `state` serves parts of rows. `write` is needed by softmax and log_softmax. `whole`, if given, serves
    blocks of whole rows, so that a file whose rows fit the memory gets the bits of the in-memory call.
    """

    state: BlockState
    write: WriteBlock | None = None
    whole: WholeBlock | None = None


@dataclass(frozen=True)
class RunResult:
    """What a run did.

    `bytes_read` and `bytes_written` are as moved, headers included; `seconds` run from opening the input to
    the durable rename; `reads` is how often the rows were read (1 or 2).
    """

    operation: str
    axis: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    output_shape: tuple[int, ...]
    output_dtype: np.dtype[Any]
    reads: int
    block_bytes: int
    bytes_read: int
    bytes_written: int
    seconds: float


def _element_bytes(header: Header) -> int:
    """Bytes one element takes while worked on: floats in place, others as stored and as float64."""
    return header.dtype.itemsize + (0 if header.dtype.kind == "f" else header.result_dtype.itemsize)


class _Buffers:
    """The one block in memory: read as stored, made native, overwritten by its results."""

    def __init__(self, header: Header, elements: int) -> None:
        self._raw = np.empty(elements, header.dtype)
        in_place = header.dtype.kind == "f"
        self._work = (
            self._raw.view(header.result_dtype) if in_place else np.empty(elements, header.result_dtype)
        )
        self._swap = in_place and not header.dtype.isnative

    def load(
        self, reader: NpyReader, rows: Rows, block: Block, progress: Callable[[int], None] | None
    ) -> Array:
        """Read a block; the array returned is overwritten by the next call."""
        at = 0
        for first, count in block.runs(rows):
            reader.read(first, self._raw[at : at + count], progress)
            at += count
        work = self._work[:at]
        if self._swap:
            work.byteswap(inplace=True)
        elif work.dtype != self._raw.dtype:
            work[...] = self._raw[:at]
        a, c, b = block.shape
        # A last axis of length 1 would hide from a kernel that the rows are contiguous.
        return work.reshape((a, c) if b == 1 else (a, c, b))


@dataclass
class _Job:
    """One run: where it reads, where it writes, and how far it is."""

    reader: NpyReader
    target: AtomicFile
    plan: Plan
    kernels: Kernels
    per_row: bool
    data_offset: int
    buffers: _Buffers
    progress: Progress | None

    def _read_progress(self, count: int) -> None:
        if self.progress is not None:
            self.progress(count, 0)

    def _write_progress(self, count: int) -> None:
        if self.progress is not None:
            self.progress(0, count)

    def _load(self, block: Block) -> Array:
        return self.buffers.load(self.reader, self.plan.rows, block, self._read_progress)

    def _store(self, block: Block, rows: Rows, values: Array) -> None:
        flat, at = values.reshape(-1), 0
        for first, count in block.runs(rows):
            position = self.data_offset + first * flat.itemsize
            self.target.write(position, flat[at : at + count], self._write_progress)
            at += count

    def _store_lse(self, group: Block, lse: Array) -> None:
        """Log-sum-exps of a group: an array of rows of length 1 in the output file."""
        rows = self.plan.rows
        block = Block(group.a0, group.a1, 0, 1, group.b0, group.b1)
        self._store(
            block, Rows(rows.outer, 1, rows.inner), lse.astype(self.reader.header.result_dtype, copy=False)
        )

    def execute(self) -> None:
        """Every group of the plan, one after the other."""
        for group in self.plan.groups():
            if self.plan.whole_rows:
                self.whole(group)
            else:
                self.in_parts(group)

    def whole(self, group: Block) -> None:
        """A group of whole rows: read once, worked on in place, written once."""
        x = self._load(group)
        if self.per_row:
            lse = np.empty(x.shape[:1] + x.shape[2:], x.dtype)
            if self.kernels.whole is not None:
                self.kernels.whole(x, lse, (1,))
            else:
                lse[...] = state.lse(*_double(self.kernels.state(x, (1,))))
            self._store_lse(group, lse)
            return
        if self.kernels.whole is not None:
            self.kernels.whole(x, x, (1,))
        else:
            self._write(x, *_double(self.kernels.state(x, (1,))))
        self._store(group, self.plan.rows, x)

    def in_parts(self, group: Block) -> None:
        """A group whose rows outgrow the memory: the states of its parts, merged, then the parts again."""
        parts = self.plan.parts(group)
        x = self._load(parts[0])
        m, s = _double(self.kernels.state(x, (1,)))
        for part in parts[1:]:
            x = self._load(part)
            m, s = state.merge((m, s), _double(self.kernels.state(x, (1,))))
        if self.per_row:
            self._store_lse(group, np.asarray(state.lse(m, s)))
            return
        # Backwards: the last part is still here, and the file's end is what the page cache kept.
        for part in reversed(parts):
            if part is not parts[-1]:
                x = self._load(part)
            self._write(x, m, s)
            self._store(part, self.plan.rows, x)

    def _write(self, x: Array, m: Array, s: Array) -> None:
        if self.kernels.write is None:
            raise TypeError("kernels: this operation writes every element and needs kernels.write")
        self.kernels.write(x, m, s, x, (1,))


def _double(block: tuple[Array, Array]) -> tuple[Array, Array]:
    """A block's state in float64: exact, and a chain of p merges then adds p * 2^-52, not p * 2^-23."""
    return np.asarray(block[0], np.float64), np.asarray(block[1], np.float64)


def _empty_rows(target: AtomicFile, offset: int, nbytes: int, dtype: np.dtype[Any], memory: int) -> None:
    """Log-sum-exps of rows of length 0, if any: -inf each, written in pieces that fit the memory."""
    piece = np.full(min(nbytes, memory) // dtype.itemsize, -np.inf, dtype)
    for first in range(0, nbytes, max(piece.nbytes, 1)):
        target.write(offset + first, piece[: (nbytes - first) // dtype.itemsize])


def _check_arguments(operation: str, memory: int, kernels: Kernels) -> None:
    if operation not in OPERATIONS:
        raise ValueError(f"operation: {operation!r} is not one of {', '.join(OPERATIONS)}")
    if memory < MIN_MEMORY:
        raise ValueError(f"memory: {memory} bytes is too little; give {MIN_MEMORY} or more")
    if operation != "logsumexp" and kernels.write is None:
        raise ValueError(f"kernels: {operation} writes every element and needs kernels.write")


def _output_shape(header: Header, operation: str, axis: int) -> tuple[int, ...]:
    if operation != "logsumexp":
        return header.shape
    return header.shape[:axis] + header.shape[axis + 1 :]


def _axis_of(header: Header, axis: int, reader: NpyReader) -> int:
    """The axis in 0..ndim-1; an array of no axes takes 0 or -1."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis: {axis!r} is not an integer")
    axis = operator.index(axis)
    ndim = max(len(header.shape), 1)
    if not -ndim <= axis < ndim:
        raise FileError(f"axis: {axis} is out of range for {reader.path}, of shape {header.shape}")
    return axis % ndim


def planned_bytes(header: Header, plan: Plan | None, per_row: bool) -> int:
    """Data bytes a run will read and write together, for a progress display."""
    if plan is None:
        return 0
    rows, item = plan.rows, header.result_dtype.itemsize
    if per_row:
        return header.nbytes + rows.outer * rows.inner * item
    twice = 0 if plan.whole_rows else rows.length - (rows.length - 1) % plan.length - 1
    return header.nbytes + twice * rows.outer * rows.inner * header.dtype.itemsize + header.size * item


def run(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    operation: str,
    kernels: Kernels,
    axis: int = -1,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    on_plan: Callable[[int], None] | None = None,
    min_run: int = MIN_RUN,
) -> RunResult:
    """Apply an operation along one axis of the .npy file `source` and write the .npy file `target`.

    Parameters: `operation` is "softmax", "log_softmax" (result: the input's shape) or "logsumexp" (that axis
    removed); `kernels` is its arithmetic; `memory` bounds the buffers, in bytes (4096 or more; the
    interpreter and the kernels' own scratch come on top); `on_plan` gets the number of bytes to be moved,
    once; `progress` gets (bytes read, bytes written) of every piece. Columns of a reduced axis that is not
    the last are read in strips where a strip's runs reach `min_run` bytes.

    Element types: float16, float32, float64 of either byte order keep their type (native order); integers
    and bool give float64. C and Fortran order are kept. Cost, with T the bytes of data: T read where a row
    (with its neighbours in the file, or a strip of them) fits `memory`; else, for softmax and log_softmax, 2T
    less the last part of each row, and T for logsumexp. The output appears under its name only when complete.

    Raises ValueError (FileError for anything about a file), TypeError for an axis that is no integer.
    """
    _check_arguments(operation, memory, kernels)
    start = time.perf_counter()
    with NpyReader(source) as reader:
        header = reader.header
        axis = _axis_of(header, axis, reader)
        per_row = operation == "logsumexp"
        rows = rows_of(header.shape, axis, header.fortran_order)
        plan = None  # no element, no block
        if header.size:
            plan = make_plan(rows, _element_bytes(header), memory, needs_rows=not per_row, min_run=min_run)
        if on_plan is not None:
            on_plan(planned_bytes(header, plan, per_row))
        shape = _output_shape(header, operation, axis)
        head = header_bytes(shape, header.result_dtype, header.fortran_order)
        data_bytes = (rows.outer * rows.inner if per_row else header.size) * header.result_dtype.itemsize
        with AtomicFile(target, len(head) + data_bytes, reader.stat) as out:
            out.write(0, head)
            if plan is not None:
                buffers = _Buffers(header, plan.block_size)
                _Job(reader, out, plan, kernels, per_row, len(head), buffers, progress).execute()
            else:
                _empty_rows(out, len(head), data_bytes, header.result_dtype, memory)
            reader.check_unchanged()
            out.commit()
        return RunResult(
            operation=operation,
            axis=axis,
            shape=header.shape,
            dtype=header.dtype,
            output_shape=shape,
            output_dtype=header.result_dtype,
            reads=1 if per_row or plan is None or plan.whole_rows else 2,
            block_bytes=0 if plan is None else plan.block_size * _element_bytes(header),
            bytes_read=reader.bytes_read,
            bytes_written=out.bytes_written,
            seconds=time.perf_counter() - start,
        )
