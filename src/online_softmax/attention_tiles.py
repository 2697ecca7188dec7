"""Tiles of attention scores and of their tangents: queries of all heads that share keys against some keys.

Operands are (batch, heads, length, features) of any format and strides; what is made of them is float64.
Tiles that causal triangle, window, mask or bias hide altogether are not made. The law and the passes over
tiles are in `attention_derivatives`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: (batch, head, queries, keys) -> bool, True where a weight stays.
Keep = Callable[[int, int, slice, slice], Array]

#: Rows of a tile at most, the queries of all heads that share keys; and its keys.
ROWS: Final = 128
KEYS: Final = 256


class Options(NamedTuple):
    """What is done to scores. mask, bias and its tangents are (batch, heads, queries, keys), or 1 instead."""

    scale: float
    #: 0 for none.
    softcap: float = 0.0
    #: Place of query 0 among the keys; keys seen to the left of a query's place, to the right; -1: all.
    band: tuple[int, int, int] = (0, -1, -1)
    mask: Array | None = None
    bias: Array | None = None
    #: (batch, heads)
    slopes: Array | None = None
    #: (heads,)
    sinks: Array | None = None
    dropout_p: float = 0.0
    #: None where nothing is dropped.
    keep: Keep | None = None


class Tangents(NamedTuple):
    """Directions, of the shapes of their operands. None for 0."""

    q: Array | None = None
    k: Array | None = None
    v: Array | None = None
    bias: Array | None = None
    sinks: Array | None = None


class Cell(NamedTuple):
    """Keys and values of one head, float64, with their tangents, and whose they are."""

    batch: slice
    heads: slice
    k: Array
    v: Array
    dk: Array | None
    dv: Array | None


class Strip(NamedTuple):
    """Queries that meet the keys together: those of `queries` of the first head, of the second, ..."""

    queries: slice
    q: Array
    dq: Array | None
    sinks: Array
    d_sinks: Array


class Tile(NamedTuple):
    """Scores of a strip and some keys."""

    #: Who sees whom, and what of it dropout keeps.
    seen: Array
    kept: Array
    #: -inf where not seen.
    scores: Array
    #: q'.k + q.k' and the tangent of the scores, the latter 0 where not seen.
    raw_move: Array
    move: Array
    #: dt/dr and t, None for 0 and 1.
    bend: Array | None
    slope: Array | None


def doubles(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.float64)


def rows(array: Array) -> Array:
    """(1, heads, queries, features) with a query a row, float64."""
    return doubles(array).reshape(-1, array.shape[-1])


def cells(k: Array, v: Array, moves: Tangents, heads: int) -> Iterator[Cell]:
    for batch, group in np.ndindex(k.shape[:2]):
        each = heads // k.shape[1]
        dk, dv = (None if a is None else doubles(a[batch, group]) for a in (moves.k, moves.v))
        whose = slice(batch, batch + 1), slice(group * each, (group + 1) * each)
        yield Cell(*whose, doubles(k[batch, group]), doubles(v[batch, group]), dk, dv)


def strips(cell: Cell, q: Array, moves: Tangents, options: Options) -> Iterator[Strip]:
    heads, length = cell.heads.stop - cell.heads.start, q.shape[2]
    step = max(1, ROWS // max(heads, 1))
    for start in range(0, length, step) if heads else ():
        queries = slice(start, min(start + step, length))
        place = (cell.batch, cell.heads, queries)
        logits = np.full(heads, -np.inf) if options.sinks is None else doubles(options.sinks[cell.heads])
        moved = np.zeros(heads) if moves.sinks is None else doubles(moves.sinks[cell.heads])
        times = queries.stop - queries.start
        dq = None if moves.q is None else rows(moves.q[place])
        yield Strip(queries, rows(q[place]), dq, np.repeat(logits, times), np.repeat(moved, times))


def tiles(options: Options, cell: Cell, strip: Strip, moves: Tangents) -> Iterator[tuple[slice, Tile]]:
    """The tiles of a strip in which anything may be seen, made when they are asked for."""
    place, left, right = options.band
    first, end = 0, len(cell.k)
    if left >= 0:
        first = max(first, strip.queries.start + place - left)
    if right >= 0:
        end = min(end, strip.queries.stop + place + right)
    for start in range(first, end, KEYS):
        keys = slice(start, min(start + KEYS, end))
        seen = _seen(options, cell, strip.queries, keys)
        if seen.any():
            yield keys, _tile(options, cell, strip, moves, keys, seen)


def _distance(options: Options, queries: slice, keys: slice) -> Array:
    """(queries, keys): how far a key lies to the right of the query's place."""
    own = np.arange(queries.start, queries.stop)[:, None] + options.band[0]
    return np.asarray(np.arange(keys.start, keys.stop) - own)


def block(array: Array, cell: Cell, queries: slice, keys: slice) -> Array:
    """The part of (batch, heads, queries, keys) for a tile, a row a query; dimensions of 1 are repeated."""
    wanted = (cell.batch, cell.heads, queries, keys)
    part = array[tuple(slice(None) if n == 1 else w for n, w in zip(array.shape, wanted, strict=True))]
    shape = tuple(w.stop - w.start for w in wanted[1:])
    return np.broadcast_to(part[0], shape).reshape(shape[0] * shape[1], shape[2])


def _seen(options: Options, cell: Cell, queries: slice, keys: slice) -> Array:
    """bool: by mask, bias and band; the scores may hide more."""
    heads = cell.heads.stop - cell.heads.start
    seen = np.ones((heads * (queries.stop - queries.start), keys.stop - keys.start), np.bool_)
    _, left, right = options.band
    if left >= 0 or right >= 0:
        distance = _distance(options, queries, keys)
        near = np.ones(distance.shape, np.bool_)
        if left >= 0:
            near &= distance >= -left
        if right >= 0:
            near &= distance <= right
        seen &= np.tile(near, (heads, 1))
    if options.mask is not None:
        seen &= block(options.mask, cell, queries, keys)
    if options.bias is not None:
        seen &= block(options.bias, cell, queries, keys) != -np.inf
    return seen


def _tile(options: Options, cell: Cell, strip: Strip, moves: Tangents, keys: slice, seen: Array) -> Tile:
    queries, k = strip.queries, cell.k[keys]
    raw = options.scale * (strip.q @ k.T)
    slope = bend = None
    scores = raw
    if options.softcap:
        raw /= options.softcap
        scores, slope = np.tanh(raw), 1 / np.square(np.cosh(raw))
        bend = -2.0 / options.softcap * scores * slope
        scores *= options.softcap
    if options.bias is not None:
        scores = scores + doubles(block(options.bias, cell, queries, keys))
    if options.slopes is not None:
        each = options.slopes[cell.batch, cell.heads][0, :, None, None]
        scores = scores - (each * np.abs(_distance(options, queries, keys))).reshape(scores.shape)
    seen = seen & (scores != -np.inf)
    raw_move = np.zeros(scores.shape)
    if strip.dq is not None:
        raw_move += strip.dq @ k.T
    if cell.dk is not None:
        raw_move += strip.q @ cell.dk[keys].T
    move = options.scale * raw_move
    if slope is not None:
        move *= slope
    if moves.bias is not None:
        move += doubles(block(moves.bias, cell, queries, keys))
    kept = seen
    if options.keep is not None:
        of = range(cell.heads.start, cell.heads.stop)
        stays = np.concatenate([options.keep(cell.batch.start, head, queries, keys) for head in of])
        kept = seen & stays
    return Tile(seen, kept, only(scores, seen, -np.inf), raw_move, only(move, seen), bend, slope)


def only(values: Array, where: Array, otherwise: float = 0.0) -> Array:
    """The values where `where`, and `otherwise` elsewhere, whatever is there."""
    return values if where.all() else np.where(where, values, otherwise)


def product(weights: Array, rows: Array, seen: Array) -> Array:
    """weights @ rows, where a row that is not finite reaches only those who see it: 0 * NaN is NaN."""
    good = np.asarray(np.isfinite(rows).all(axis=1))
    if good.all():
        return np.asarray(weights @ rows)
    total: Array = weights @ np.where(good[:, None], rows, 0.0)
    for i in np.flatnonzero(~good):
        total += np.where(seen[:, i, None], weights[:, i, None] * rows[i], 0.0)
    return total


def factor(options: Options) -> float:
    """What dropout multiplies the weights by that stay."""
    return 1.0 if options.keep is None else 1 / (1 - options.dropout_p)


def add(total: Array, cell: Cell, queries: slice, keys: slice, tile: Array) -> None:
    """Adds a tile to what `block` took it from: summed where a dimension was repeated."""
    wanted = (cell.batch, cell.heads, queries, keys)
    values = tile.reshape([w.stop - w.start for w in wanted])
    repeated = tuple(axis for axis, n in enumerate(total.shape) if n == 1)
    place = tuple(slice(None) if n == 1 else w for n, w in zip(total.shape, wanted, strict=True))
    total[place] += values.sum(axis=repeated, keepdims=True)
