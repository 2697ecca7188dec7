"""The kernels of the gradients of softmax, log_softmax and logsumexp."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from . import state, tiles

_INF = constexpr(float("inf"))


@triton.jit
def _gradient(y, dy, total, OP: constexpr, EXACT: constexpr):
    if OP == "softmax":
        return y * (dy - total)
    else:
        return dy - state.exp(y, EXACT) * total


@triton.jit(do_not_specialize=["rows", "columns"])
def backward_cached(
    y_ptr,
    dy_ptr,
    dx_ptr,
    rows,
    columns,
    inner,
    y_outer,
    y_inner,
    y_col,
    dy_outer,
    dy_inner,
    dy_col,
    dx_outer,
    dx_inner,
    dx_col,
    OP: constexpr,
    ROWS: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    EXACT: constexpr,
):
    """Gradient of (log-)softmax from its result y, ROWS rows a program, each whole in one block."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (cols < tiles.aligned(columns, ALIGN))
    y_start = tiles.start(row, inner, y_outer, y_inner, ALIGN)[:, None]
    dy_start = tiles.start(row, inner, dy_outer, dy_inner, ALIGN)[:, None]
    dx_start = tiles.start(row, inner, dx_outer, dx_inner, ALIGN)[:, None]
    y = tiles.load(y_ptr + y_start, cols, mask, y_col, 0.0)
    dy = tiles.load(dy_ptr + dy_start, cols, mask, dy_col, 0.0)
    total = tl.sum(y * dy if OP == "softmax" else dy, 1, keep_dims=True)
    tiles.store(dx_ptr + dx_start, cols, mask, dx_col, _gradient(y, dy, total, OP, EXACT))


@triton.jit(do_not_specialize=["columns"])
def backward_online(
    y_ptr,
    dy_ptr,
    dx_ptr,
    columns,
    inner,
    y_outer,
    y_inner,
    y_col,
    dy_outer,
    dy_inner,
    dy_col,
    dx_outer,
    dx_inner,
    dx_col,
    OP: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    VECTOR: constexpr,
    EXACT: constexpr,
):
    """The same, a program a row in blocks: dy is read twice, and so is y where its products are summed."""
    row = tl.program_id(0).to(tl.int64)
    columns = tiles.aligned(columns, ALIGN)
    y_ptr += tiles.start(row, inner, y_outer, y_inner, ALIGN)
    dy_ptr += tiles.start(row, inner, dy_outer, dy_inner, ALIGN)
    dx_ptr += tiles.start(row, inner, dx_outer, dx_inner, ALIGN)
    lanes = tiles.lanes(BLOCK, VECTOR)
    sums = tl.full([BLOCK // VECTOR, VECTOR], 0.0, tl.float32)
    for start in range(0, columns, BLOCK):
        cols = start + lanes
        dy = tiles.load(dy_ptr, cols, cols < columns, dy_col, 0.0)
        if OP == "softmax":
            dy = dy * tiles.load(y_ptr, cols, cols < columns, y_col, 0.0)
        sums += dy
    total = tl.sum(tl.sum(sums, 1, keep_dims=True), 0, keep_dims=True)
    for start in range(0, columns, BLOCK):
        cols = start + lanes
        dy = tiles.load(dy_ptr, cols, cols < columns, dy_col, 0.0)
        y = tiles.load(y_ptr, cols, cols < columns, y_col, 0.0)
        tiles.store(dx_ptr, cols, cols < columns, dx_col, _gradient(y, dy, total, OP, EXACT))


@triton.jit(do_not_specialize=["rows", "columns", "chunks"])
def lse_backward(
    x_ptr,
    lse_ptr,
    dlse_ptr,
    dx_ptr,
    rows,
    columns,
    chunks,
    inner,
    x_outer,
    x_inner,
    x_col,
    dx_outer,
    dx_inner,
    dx_col,
    ROWS: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    EXACT: constexpr,
):
    """exp(x - lse) * dlse, a chunk of BLOCK columns of ROWS rows a program.

    lse_ptr and dlse_ptr hold one value a row, adjacent.
    """
    program = tl.program_id(0).to(tl.int64)
    row = (program // chunks) * ROWS + tl.arange(0, ROWS)
    held = (row < rows)[:, None]
    lse = tl.load(lse_ptr + row[:, None], mask=held, other=0.0)
    dlse = state.wide(tl.load(dlse_ptr + row[:, None], mask=held, other=0.0))
    first = (program % chunks) * BLOCK
    cols = tl.arange(0, BLOCK)[None, :]
    mask = held & (cols < tiles.rest(columns, first, BLOCK, ALIGN))
    x_start = (tiles.start(row, inner, x_outer, x_inner, ALIGN) + first * x_col)[:, None]
    dx_start = (tiles.start(row, inner, dx_outer, dx_inner, ALIGN) + first * dx_col)[:, None]
    x = tiles.load(x_ptr + x_start, cols, mask, x_col, -_INF)
    # Nothing moves where nothing was there; +inf and NaN have no gradient.
    dlse = tl.where(lse == -_INF, 0.0, tl.where(lse < _INF, dlse, float("nan")))
    dx = state.weight(x, lse, EXACT) * dlse
    tiles.store(dx_ptr + dx_start, cols, mask, dx_col, dx)
