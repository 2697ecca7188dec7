"""The kernel of softmax_topk."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from . import state, tiles

_INF = constexpr(float("inf"))
_LOWEST = constexpr(-(2**63))
_NAN_RANK = constexpr(0x7FFFFFFF)


@triton.jit
def _keys(x, cols):
    """int64 that order as (score, lower column): NaN highest, -0.0 as 0.0. Columns under 2^32."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), _NAN_RANK)
    return (rank.to(tl.int64) << 32) | (0xFFFFFFFF - cols.to(tl.int64))


@triton.jit
def _scores(keys):
    """The scores that keys were made of."""
    rank = (keys >> 32).to(tl.int32)
    x = (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(rank == _NAN_RANK, float("nan"), x)


@triton.jit
def _highest_key(keys):
    return tl.max(tl.max(keys, 1), 0)


@triton.jit
def _sorted(top, K: constexpr, k):
    """The first k of `top`, descending; K long."""
    place = tl.arange(0, K)
    ordered = top
    for at in range(k):
        best = tl.max(top, 0)
        ordered = tl.where(place == at, best, ordered)
        top = tl.where(top == best, _LOWEST, top)
    return ordered


@triton.jit(do_not_specialize=["columns", "k"])
def topk(
    x_ptr,
    value_ptr,
    index_ptr,
    lse_ptr,
    columns,
    k,
    inner,
    x_outer,
    x_inner,
    x_col,
    K: constexpr,
    ALIGN: constexpr,
    BLOCK: constexpr,
    VECTOR: constexpr,
    EXACT: constexpr,
):
    """A program a row, in blocks: the k largest probabilities, their columns, and the row's lse. K >= k.

    value_ptr and index_ptr hold k a row, adjacent; lse_ptr one. The keys kept are replaced from the lowest
    up: k * (1 + ln(columns / k)) times a row, if its order is exchangeable; k times a block at the worst.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tiles.aligned(columns, ALIGN)
    x_ptr += tiles.start(row, inner, x_outer, x_inner, ALIGN)
    lanes = tiles.lanes(BLOCK, VECTOR)
    place = tl.arange(0, K)
    # Distinct, and below every score's; those past k are above, never replaced and never written.
    top = tl.where(place < k, tl.full([K], _LOWEST + 1, tl.int64) + place, tl.full([K], 2**63 - 1, tl.int64))
    m, s = state.identity([BLOCK // VECTOR, 1])
    for start in range(0, columns, BLOCK):
        cols = start + lanes
        x = tiles.load(x_ptr, cols, cols < columns, x_col, -_INF)
        m, s = state.push(m, s, x, 1, EXACT)
        keys = tl.where(cols < columns, _keys(x, cols), _LOWEST)
        best = _highest_key(keys)
        worst = tl.min(top, 0)
        while best > worst:
            top = tl.where(top == worst, best, top)
            keys = tl.where(keys == best, _LOWEST, keys)
            best = _highest_key(keys)
            worst = tl.min(top, 0)
    m, s = state.join(m, s, 0)
    tl.store(lse_ptr + row + tiles.one(), state.lse(m, s))
    keys = _sorted(tl.where(place < k, top, _LOWEST), K, k)
    y = state.value(_scores(keys), tl.sum(tl.sum(m, 1), 0), tl.sum(tl.sum(s, 1), 0), EXACT)
    tiles.store(value_ptr + row * k, place, place < k, 1, y)
    tl.store(index_ptr + row * k + place, 0xFFFFFFFF - (keys & 0xFFFFFFFF), mask=place < k)
