"""Where the elements of rows lie: starts of rows, columns of blocks, and the way in and out of memory.

Rows lie in up to two levels of leading axes: row r starts at (r // inner) * outer_stride + (r % inner) *
inner_stride, counted in elements and in 64 bits. ALIGN, a power of two, divides the number of columns and
every row's start, so that accesses of 16 bytes can be made of it; it is 1 where nothing is known. VECTOR is
the number of elements in 16 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from . import state


@triton.jit
def aligned(n, ALIGN: constexpr):
    """n, a multiple of ALIGN, so spelt that the compiler can tell: attributes of values get lost."""
    return n // ALIGN * ALIGN


@triton.jit
def start(row, inner, outer_stride, inner_stride, ALIGN: constexpr):
    """Offset of the first element of each row."""
    return aligned((row // inner) * outer_stride + (row % inner) * inner_stride, ALIGN)


@triton.jit
def rest(columns, first, BLOCK: constexpr, ALIGN: constexpr):
    """How many of the BLOCK columns from `first` on there are, in 32 bits."""
    return aligned(tl.minimum(columns - first, BLOCK).to(tl.int32), ALIGN)


@triton.jit
def lanes(BLOCK: constexpr, VECTOR: constexpr):
    """Columns of a block, a lane of VECTOR adjacent ones each: a thread's own, if it loads 16 bytes."""
    return tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]


@triton.jit
def load(ptr, cols, mask, col_stride, other):
    return state.wide(tl.load(ptr + cols.to(tl.int64) * col_stride, mask=mask, other=other))


@triton.jit
def store(ptr, cols, mask, col_stride, y):
    tl.store(ptr + cols.to(tl.int64) * col_stride, state.narrow(y, ptr.dtype.element_ty), mask=mask)


@triton.jit
def one():
    """Index of the only element of a (1, 1) tile."""
    return tl.arange(0, 1)[:, None] + tl.arange(0, 1)[None, :]
