"""The kernels of softmax, log_softmax and logsumexp over rows.

OP is "softmax", "log_softmax" or "logsumexp". A result is rounded to the format its pointer has. m_ptr and
s_ptr hold the float32 states of chunks, `chunks` to a row, adjacent. EXACT is for float32 data (see `state`),
the other parameters are those of `tiles`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from . import state, tiles

_INF = constexpr(float("inf"))


@triton.jit
def _result(x, m, s, OP: constexpr, EXACT: constexpr):
    if OP == "softmax":
        return state.value(x, m, s, EXACT)
    else:
        return state.log_value(x, m, s)


@triton.jit
def _statistics(
    x_ptr,
    columns,
    x_col,
    ALGORITHM: constexpr,
    BLOCK: constexpr,
    VECTOR: constexpr,
    EXACT: constexpr,
):
    """State of one row as (1, 1) tiles. That of "naive" has m = 0, whatever the row holds."""
    lanes = tiles.lanes(BLOCK, VECTOR)
    if ALGORITHM == "online":
        m, s = state.identity([BLOCK // VECTOR, 1])
        for start in range(0, columns, BLOCK):
            cols = start + lanes
            m, s = state.push(m, s, tiles.load(x_ptr, cols, cols < columns, x_col, -_INF), 1, EXACT)
        return state.join(m, s, 0)
    else:
        total = tl.full([BLOCK // VECTOR, VECTOR], 0.0, tl.float32)
        if ALGORITHM == "three_pass":
            top = tl.full([BLOCK // VECTOR, VECTOR], -_INF, tl.float32)
            for start in range(0, columns, BLOCK):
                cols = start + lanes
                x = tiles.load(x_ptr, cols, cols < columns, x_col, -_INF)
                top = tl.maximum(top, tl.where(x == x, x, -_INF))
            m = state.highest(state.highest(top, 1), 0)
        else:
            m = tl.full([1, 1], 0.0, tl.float32)
        for start in range(0, columns, BLOCK):
            cols = start + lanes
            x = tiles.load(x_ptr, cols, cols < columns, x_col, -_INF)
            total += state.weight(x, m, EXACT)
        s = tl.sum(tl.sum(total, 1, keep_dims=True), 0, keep_dims=True)
        return tl.where(s == s, m, s), s


@triton.jit(do_not_specialize=["columns"])
def looped(
    x_ptr,
    y_ptr,
    columns,
    inner,
    x_outer,
    x_inner,
    x_col,
    y_outer,
    y_inner,
    y_col,
    OP: constexpr,
    ALGORITHM: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    VECTOR: constexpr,
    EXACT: constexpr,
):
    """A program a row, in blocks: "naive", "three_pass" or "online". logsumexp writes y at a row's start."""
    row = tl.program_id(0).to(tl.int64)
    columns = tiles.aligned(columns, ALIGN)
    x_ptr += tiles.start(row, inner, x_outer, x_inner, ALIGN)
    m, s = _statistics(x_ptr, columns, x_col, ALGORITHM, BLOCK, VECTOR, EXACT)
    if OP == "logsumexp":
        y_ptr += tiles.start(row, inner, y_outer, y_inner, 1)
        tiles.store(y_ptr, tiles.one(), None, 1, state.lse(m, s))
    else:
        y_ptr += tiles.start(row, inner, y_outer, y_inner, ALIGN)
        lanes = tiles.lanes(BLOCK, VECTOR)
        for start in range(0, columns, BLOCK):
            cols = start + lanes
            x = tiles.load(x_ptr, cols, cols < columns, x_col, -_INF)
            tiles.store(y_ptr, cols, cols < columns, y_col, _result(x, m, s, OP, EXACT))


@triton.jit(do_not_specialize=["rows", "columns"])
def cached(
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
    EXACT: constexpr,
):
    """ROWS rows a program, each whole in one block: read once, its exponentials kept."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (cols < tiles.aligned(columns, ALIGN))
    x_start = tiles.start(row, inner, x_outer, x_inner, ALIGN)[:, None]
    x = tiles.load(x_ptr + x_start, cols, mask, x_col, -_INF)
    m, s, e = state.of_block(x, 1, EXACT)
    if OP == "logsumexp":
        y_start = tiles.start(row, inner, y_outer, y_inner, 1)[:, None]
        tiles.store(y_ptr + y_start, tiles.one(), (row < rows)[:, None], 1, state.lse(m, s))
    else:
        y_start = tiles.start(row, inner, y_outer, y_inner, ALIGN)[:, None]
        y = state.scaled(e, m, s) if OP == "softmax" else state.log_value(x, m, s)
        tiles.store(y_ptr + y_start, cols, mask, y_col, y)


@triton.jit(do_not_specialize=["columns", "chunks"])
def chunk_states(
    x_ptr,
    m_ptr,
    s_ptr,
    columns,
    chunks,
    inner,
    x_outer,
    x_inner,
    x_col,
    ALIGN: constexpr,
    BLOCK: constexpr,
    EXACT: constexpr,
):
    """The state of one chunk of BLOCK columns a program: program row * chunks + chunk."""
    program = tl.program_id(0).to(tl.int64)
    first = (program % chunks) * BLOCK
    x_ptr += tiles.start(program // chunks, inner, x_outer, x_inner, ALIGN) + first * x_col
    cols = tl.arange(0, BLOCK)[None, :]
    mask = cols < tiles.rest(columns, first, BLOCK, ALIGN)
    m, s, _ = state.of_block(tiles.load(x_ptr, cols, mask, x_col, -_INF), 1, EXACT)
    tl.store(m_ptr + program + tiles.one(), m)
    tl.store(s_ptr + program + tiles.one(), s)


@triton.jit
def _row_state(m_ptr, s_ptr, chunks, STATES: constexpr):
    """All states of a row merged, STATES at a time. The pointers are at its first."""
    m, s = state.identity([1, STATES])
    for start in range(0, chunks, STATES):
        chunk = start + tl.arange(0, STATES)[None, :]
        m_next = tl.load(m_ptr + chunk, mask=chunk < chunks, other=-_INF)
        s_next = tl.load(s_ptr + chunk, mask=chunk < chunks, other=0.0)
        m, s = state.merge(m, s, m_next, s_next)
    return state.join(m, s, 1)


@triton.jit(do_not_specialize=["columns", "chunks"])
def chunk_results(
    x_ptr,
    m_ptr,
    s_ptr,
    y_ptr,
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
    ALIGN: constexpr,
    BLOCK: constexpr,
    STATES: constexpr,
    EXACT: constexpr,
):
    """The results of one chunk a program, which merges the states of its row itself."""
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks
    m, s = _row_state(m_ptr + row * chunks, s_ptr + row * chunks, chunks, STATES)
    first = (program % chunks) * BLOCK
    x_ptr += tiles.start(row, inner, x_outer, x_inner, ALIGN) + first * x_col
    y_ptr += tiles.start(row, inner, y_outer, y_inner, ALIGN) + first * y_col
    cols = tl.arange(0, BLOCK)[None, :]
    mask = cols < tiles.rest(columns, first, BLOCK, ALIGN)
    x = tiles.load(x_ptr, cols, mask, x_col, -_INF)
    tiles.store(y_ptr, cols, mask, y_col, _result(x, m, s, OP, EXACT))


@triton.jit(do_not_specialize=["chunks"])
def row_lse(m_ptr, s_ptr, y_ptr, chunks, inner, y_outer, y_inner, STATES: constexpr):
    """The log-sum-exp of one row a program, of the states of its chunks."""
    row = tl.program_id(0).to(tl.int64)
    m, s = _row_state(m_ptr + row * chunks, s_ptr + row * chunks, chunks, STATES)
    tiles.store(y_ptr + tiles.start(row, inner, y_outer, y_inner, 1), tiles.one(), None, 1, state.lse(m, s))
