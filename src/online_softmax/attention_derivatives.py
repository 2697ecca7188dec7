"""Attention differentiated forward, and its backward differentiated once more, a tile of scores at a time.

Everything is in float64 whatever the operands' format, and rounded where a result is stored. Operands are
(batch, heads, length, features). For one query, with f = keep / (1 - dropout_p) and sums over its keys:

    r = scale * q.k   s = softcap * tanh(r / softcap) + bias   t = ds/dr   p = exp(s - lse)   o = sum p f v

The sink is a further key with f = 0. Tangents are q', k', v', bias' and sink'.

Forward. h_j = scale * t * (q'.k + q.k') + bias' is the tangent of a score (sink' for the sink), and

    lse' = sum p h        o' = sum p f (h v + v') - lse' o

so that sums of p, p f v, p h and p f (h v + v') in one pass are enough: the state (m, s, o) and two riders.

Twice. The backward maps g (the gradient of o) and l (that of lse) to a score's gradient e = p (a - D + l),
a = f (g.v), D = sum p a = g.o, and to those of q, k, v, bias and sink. Against cotangents of these, which
play the part of q', k', v', bias' and sink' above, its results sum to g.o' + l lse'. That sum is what has to
be differentiated; o' and lse' are its gradients by g and l already. With c = f (g.v') and R = g.o':

    by a score          U = p ((a - D + l) (h - lse') + c - R)         also the gradient of bias; a = c = 0
                                                                       makes it that of the sink
    by h                e
    by q.k              W = scale * (U t + e * scale * (q'.k + q.k') * dt/dr)
    of q                sum_j W k + scale * t * e * k'
    of k                sum_i W q + scale * t * e * q'
    of v                sum_i f p (h - lse') g

D, R and lse' of a query have to be known before its U: the first pass over its keys is the forward one, the
second makes the tiles anew from the maximum and the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import attention_tiles as at
from .attention_tiles import Array, Cell, Options, Strip, Tangents


class Moved(NamedTuple):
    """Attention and how it moves."""

    output: Array
    lse: Array
    d_output: Array
    d_lse: Array


class Gradients(NamedTuple):
    """Gradients of what the backward is given, of the same shapes. None where it is not wanted."""

    do: Array
    q: Array
    k: Array
    v: Array
    dlse: Array | None
    bias: Array | None
    sinks: Array | None


class _Row(NamedTuple):
    """What is known of each query after all its keys."""

    pivot: Array
    #: The sum of exp(score - pivot).
    total: Array
    output: Array
    lse: Array
    d_output: Array
    d_lse: Array
    #: Whether any of its values was read.
    reads: Array


def jvp(q: Array, k: Array, v: Array, moves: Tangents, options: Options, to: Moved) -> None:
    """Fills `to`, of any formats, with the output and log-sum-exps of attention and their tangents.

    What no query sees is not read. Cost: 6 * (d + d of the output) flops a pair of query and key; scratch of
    some nine to fifteen tiles and a copy of one head's keys and values in float64, with their tangents.
    """
    with np.errstate(all="ignore"):
        for cell in at.cells(k, v, moves, q.shape[1]):
            for strip in at.strips(cell, q, moves, options):
                row = _forward(options, cell, strip, moves)
                _store(to.output, cell, strip, row.output)
                _store(to.lse, cell, strip, row.lse)
                _store(to.d_output, cell, strip, row.d_output)
                _store(to.d_lse, cell, strip, row.d_lse)


def double_backward(
    do: Array, dlse: Array | None, q: Array, k: Array, v: Array, moves: Tangents, options: Options,
    to: Gradients,
) -> None:  # fmt: skip
    """Fills `to` with the gradients of sum(<move, result of the backward>), `moves` being held.

    bias and sinks in `to` are added to. Cost: some 20 * d + 12 * (d of the output) flops a pair of query and
    key, in two passes; scratch of some fourteen to twenty tiles and, in float64, copies of one head's keys
    and values, their tangents and their gradients.
    """
    groups = k.shape[1]
    with np.errstate(all="ignore"):
        for index, cell in enumerate(at.cells(k, v, moves, q.shape[1])):
            sums = np.zeros(cell.k.shape), np.zeros(cell.v.shape)
            for strip in at.strips(cell, q, moves, options):
                row = _forward(options, cell, strip, moves)
                _store(to.do, cell, strip, row.d_output)
                place = cell.batch, cell.heads, strip.queries
                above = np.zeros(len(strip.q)) if dlse is None else at.doubles(dlse[place]).reshape(-1)
                g = at.rows(do[place])
                _store(to.q, cell, strip, _second(options, cell, strip, moves, row, g, above, (*sums, to)))
                if to.dlse is not None:
                    _store(to.dlse, cell, strip, row.d_lse)
            to.k[cell.batch.start, index % groups], to.v[cell.batch.start, index % groups] = sums


def _store(to: Array, cell: Cell, strip: Strip, values: Array) -> None:
    part = to[cell.batch, cell.heads, strip.queries]
    part[...] = values.reshape(part.shape)


def _pivot(m: Array) -> Array:
    return np.where(np.isinf(m), 0.0, m)


def _forward(options: Options, cell: Cell, strip: Strip, moves: Tangents) -> _Row:
    """One pass over the keys of a strip: the state (m, s, o) and, beside it, the sums that move it."""
    count, features = len(strip.q), cell.v.shape[1]
    m, s, moved = np.full(count, -np.inf), np.zeros(count), np.zeros(count)
    o, d_o, reads = np.zeros((count, features)), np.zeros((count, features)), np.zeros(count, np.bool_)
    for keys, tile in at.tiles(options, cell, strip, moves):
        old, m = m, np.maximum(m, tile.scores.max(axis=1))
        pivot = _pivot(m)
        again = np.exp(old - pivot)
        p = np.exp(tile.scores - pivot[:, None])
        s = s * again + p.sum(axis=1)
        moved = moved * again + (p * tile.move).sum(axis=1)
        stays, v = at.only(p, tile.kept), cell.v[keys]
        o = o * again[:, None] + at.product(stays, v, tile.kept)
        d_o = d_o * again[:, None] + at.product(stays * tile.move, v, tile.kept)
        if cell.dv is not None:
            d_o += at.product(stays, cell.dv[keys], tile.kept)
        reads |= tile.kept.any(axis=1)
    return _finish(strip, at.factor(options), (m, s, o), (moved, d_o), reads)


def _finish(
    strip: Strip, factor: float, state: tuple[Array, Array, Array], riders: tuple[Array, Array], reads: Array
) -> _Row:
    """The sink merged, and what the sums stand for. No key and no sink: all 0, lse -inf."""
    (m, s, o), (moved, d_o) = state, riders
    top = np.maximum(m, strip.sinks)
    pivot = _pivot(top)
    again, sink = np.exp(m - pivot), np.exp(strip.sinks - pivot)
    s, moved = s * again + sink, moved * again + np.where(sink != 0, sink * strip.d_sinks, 0.0)
    total = np.where(np.isfinite(top), s, np.nan)
    lse = np.where(np.isfinite(top), top + np.log(s), top)
    d_lse = np.where(top == -np.inf, 0.0, moved / total)
    empty, weight = (m == -np.inf)[:, None], (factor * again / total)[:, None]
    output = np.where(empty, 0.0, o * weight)
    d_output = np.where(empty, 0.0, d_o * weight - d_lse[:, None] * output)
    return _Row(pivot, total, output, lse, d_output, d_lse, reads)


def _second(
    options: Options, cell: Cell, strip: Strip, moves: Tangents, row: _Row, g: Array, above: Array,
    to: tuple[Array, Array, Gradients],
) -> Array:  # fmt: skip
    """The second pass: the gradient of q returned, those of k, v, bias and sinks added to `to`."""
    to_k, to_v, result = to
    factor, scale, dq = at.factor(options), options.scale, np.zeros(strip.q.shape)
    # g of a query none of whose values were read is not read either.
    level = above - np.where(row.reads, (g * row.output).sum(axis=1), 0.0)
    rest = np.where(row.reads, (g * row.d_output).sum(axis=1), 0.0)
    for keys, tile in at.tiles(options, cell, strip, moves):
        k, v, seen, kept = cell.k[keys], cell.v[keys], tile.seen, tile.kept
        p = at.only(np.exp(tile.scores - row.pivot[:, None]) / row.total[:, None], seen)
        lean = factor * at.only(g @ v.T, kept) + level[:, None]
        off = tile.move - row.d_lse[:, None]
        by_score = lean * off - rest[:, None]
        if cell.dv is not None:
            by_score += factor * at.only(g @ cell.dv[keys].T, kept)
        by_score = at.only(p * by_score, seen)
        by_move = scale * (p * lean)
        by_product = scale * by_score
        if tile.slope is not None and tile.bend is not None:
            by_product = by_product * tile.slope + scale * by_move * tile.raw_move * tile.bend
            by_move = by_move * tile.slope
        by_move, by_product = at.only(by_move, seen), at.only(by_product, seen)
        dq += at.product(by_product, k, seen)
        to_k[keys] += at.product(by_product.T, strip.q, seen.T)
        if cell.dk is not None:
            dq += at.product(by_move, cell.dk[keys], seen)
        if strip.dq is not None:
            to_k[keys] += at.product(by_move.T, strip.dq, seen.T)
        to_v[keys] += at.product(factor * at.only(p * off, kept).T, g, kept.T)
        if result.bias is not None:
            at.add(result.bias, cell, strip.queries, keys, by_score)
    if result.sinks is not None:
        sink = np.where(strip.sinks == -np.inf, 0.0, np.exp(strip.sinks - row.pivot) / row.total)
        by_sink = np.where(sink != 0, sink * (level * (strip.d_sinks - row.d_lse) - rest), 0.0)
        result.sinks[cell.heads] += by_sink.reshape(cell.heads.stop - cell.heads.start, -1).sum(axis=1)
    return dq
