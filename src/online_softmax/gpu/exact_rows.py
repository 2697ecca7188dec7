"""The kernels of states, softmax, log_softmax and logsumexp whose bits depend on the elements alone.

OP is "softmax", "log_softmax" or "logsumexp". A state is a float32 at m_ptr and three adjacent int64 at
a_ptr; the states of the chunks of a row are adjacent. PARTS is that of `exact._total`, the other parameters
are those of `tiles`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from . import exact, state, tiles

_INF = constexpr(float("inf"))


@triton.jit
def _store(ptr, cols, mask, col_stride, y):
    """As `tiles.store`, and every NaN with one pattern: devices have their own."""
    dtype: constexpr = ptr.dtype.element_ty
    narrow = state.narrow(y, dtype)
    if dtype != tl.float32:
        pattern: constexpr = 0x7E00 if dtype == tl.float16 else 0x7FC0
        bits = tl.where(y == y, narrow.to(tl.int16, bitcast=True), pattern)
        narrow = bits.to(tl.int16).to(dtype, bitcast=True)
    tl.store(ptr + cols.to(tl.int64) * col_stride, narrow, mask=mask)


@triton.jit
def _load_state(m_ptr, a_ptr, at, mask):
    m = tl.load(m_ptr + at, mask=mask, other=-_INF)
    a0 = tl.load(a_ptr + 3 * at, mask=mask, other=0)
    a1 = tl.load(a_ptr + 3 * at + 1, mask=mask, other=0)
    a2 = tl.load(a_ptr + 3 * at + 2, mask=mask, other=0)
    return m, a0, a1, a2


@triton.jit
def _store_state(m_ptr, a_ptr, at, mask, m, a0, a1, a2):
    tl.store(m_ptr + at, m, mask=mask)
    tl.store(a_ptr + 3 * at, a0, mask=mask)
    tl.store(a_ptr + 3 * at + 1, a1, mask=mask)
    tl.store(a_ptr + 3 * at + 2, a2, mask=mask)


@triton.jit(do_not_specialize=["rows", "columns"])
def whole(
    x_ptr,
    y_ptr,
    rows,
    columns,
    inner,
    x_outer,
    x_inner,
    x_col,
    y_outer,
    y_inner,
    y_col,
    OP: constexpr,
    ROWS: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """ROWS rows a program, each whole in one block: read once, its terms kept. logsumexp writes row by row
    from y_ptr on."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (cols < tiles.aligned(columns, ALIGN))
    x_start = tiles.start(row, inner, x_outer, x_inner, ALIGN)[:, None]
    x = tiles.load(x_ptr + x_start, cols, mask, x_col, -_INF)
    m, a0, a1, a2, p, e = exact.of_block(x, PARTS)
    if OP == "logsumexp":
        tl.store(y_ptr + row[:, None], exact.lse(m, a0, a1, a2), mask=(row < rows)[:, None])
    else:
        y_start = tiles.start(row, inner, y_outer, y_inner, ALIGN)[:, None]
        if OP == "softmax":
            y = exact.value(x, p, e, m, a0, a1, a2, False)
        else:
            y = exact.log_value(x, m, a0, a1, a2)
        _store(y_ptr + y_start, cols, mask, y_col, y)


@triton.jit(do_not_specialize=["rows", "columns", "chunks"])
def states(
    x_ptr,
    m_ptr,
    a_ptr,
    rows,
    columns,
    chunks,
    inner,
    x_outer,
    x_inner,
    x_col,
    ROWS: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """The states of one chunk of BLOCK columns of ROWS rows a program."""
    program = tl.program_id(0).to(tl.int64)
    row = (program // chunks) * ROWS + tl.arange(0, ROWS)
    first = (program % chunks) * BLOCK
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (cols < tiles.rest(columns, first, BLOCK, ALIGN))
    x_start = tiles.start(row, inner, x_outer, x_inner, ALIGN)[:, None] + first * x_col
    m, a0, a1, a2, _, _ = exact.of_block(tiles.load(x_ptr + x_start, cols, mask, x_col, -_INF), PARTS)
    at = (row * chunks + program % chunks)[:, None]
    _store_state(m_ptr, a_ptr, at, (row < rows)[:, None], m, a0, a1, a2)


@triton.jit(do_not_specialize=["rows", "count"])
def merged(
    m_ptr,
    a_ptr,
    m_out_ptr,
    a_out_ptr,
    rows,
    count,
    row_stride,
    state_stride,
    ROWS: constexpr,
    STATES: constexpr,
):
    """The `count` states of each of ROWS rows a program made one: first their maximum, then their sums
    there."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, STATES)[None, :]
    highest = tl.full([ROWS, STATES], -_INF, tl.float32)
    tainted = tl.full([ROWS, STATES], 0, tl.int32)
    for start in range(0, count, STATES):
        mask = (row < rows) & (start + lane < count)
        at = row * row_stride + (start + lane) * state_stride
        m = tl.load(m_ptr + at, mask=mask, other=-_INF)
        tainted |= (m != m).to(tl.int32)
        highest = tl.maximum(highest, tl.where(m == m, m, -_INF))
    top = exact.canonical(tl.max(highest, 1, keep_dims=True), tl.max(tainted, 1, keep_dims=True) != 0)
    a0 = tl.full([ROWS, STATES], 0, tl.int64)
    a1 = tl.full([ROWS, STATES], 0, tl.int64)
    a2 = tl.full([ROWS, STATES], 0, tl.int64)
    for start in range(0, count, STATES):
        mask = (row < rows) & (start + lane < count)
        at = row * row_stride + (start + lane) * state_stride
        m, b0, b1, b2 = _load_state(m_ptr, a_ptr, at, mask)
        b0, b1, b2 = exact.moved(m, top, b0, b1, b2)
        a0 += b0
        a1 += b1
        a2 += b2
    some = (top == top) & (top > -_INF)
    a0 = tl.where(some, tl.sum(a0, 1, keep_dims=True), 0)
    a1 = tl.where(some, tl.sum(a1, 1, keep_dims=True), 0)
    a2 = tl.where(some, tl.sum(a2, 1, keep_dims=True), 0)
    _store_state(m_out_ptr, a_out_ptr, row, row < rows, top, a0, a1, a2)


@triton.jit(do_not_specialize=["rows"])
def read(m_ptr, a_ptr, y_ptr, rows, ROWS: constexpr):
    """The log-sum-exps of ROWS states a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    m, a0, a1, a2 = _load_state(m_ptr, a_ptr, row, row < rows)
    tl.store(y_ptr + row, exact.lse(m, a0, a1, a2), mask=row < rows)


@triton.jit(do_not_specialize=["rows", "columns", "chunks"])
def results(
    x_ptr,
    m_ptr,
    a_ptr,
    y_ptr,
    rows,
    columns,
    chunks,
    inner,
    x_outer,
    x_inner,
    x_col,
    y_outer,
    y_inner,
    y_col,
    OP: constexpr,
    ROWS: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    FOREIGN: constexpr,
):
    """The results of one chunk of ROWS rows a program, under the states of the rows; FOREIGN: or others."""
    program = tl.program_id(0).to(tl.int64)
    row = (program // chunks) * ROWS + tl.arange(0, ROWS)
    first = (program % chunks) * BLOCK
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (cols < tiles.rest(columns, first, BLOCK, ALIGN))
    m, a0, a1, a2 = _load_state(m_ptr, a_ptr, row[:, None], (row < rows)[:, None])
    x_start = tiles.start(row, inner, x_outer, x_inner, ALIGN)[:, None] + first * x_col
    x = tiles.load(x_ptr + x_start, cols, mask, x_col, -_INF)
    if OP == "softmax":
        p, e = exact.terms_under(exact.near(x, m) if FOREIGN else x, m)
        y = exact.value(x, p, e, m, a0, a1, a2, FOREIGN)
    else:
        y = exact.log_value(x, m, a0, a1, a2)
    y_start = tiles.start(row, inner, y_outer, y_inner, ALIGN)[:, None] + first * y_col
    _store(y_ptr + y_start, cols, mask, y_col, y)
