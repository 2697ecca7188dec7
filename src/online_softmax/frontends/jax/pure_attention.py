"""Attention and its gradients in JAX's own operations: a scan over blocks of keys that carries a state.

The state of a query is (m, s, o): the greatest score, the sum of exp(score - m) and the sum of values
weighted by the same. Two states merge, so memory is that of one block of scores, linear in the length. Both
functions can be differentiated by JAX any number of times; blocks are then made anew.

Operands are (batch, heads, length, features), with heads of q a multiple of those of k and v. Options:

mask: bool, bias: real, up to four axes that broadcast to (batch, heads, queries, keys); scale (None:
1/sqrt(d)), softcap (None for none); causal and window=(left, right), None for no limit, about the diagonal
through the last query and key (lower_right) or through the first; sinks (heads,); alibi_slopes (heads,) or
(batch, heads); dropout_p with seed: an integer of 64 bits, a traced integer, or two words (2,) of uint32
(high, low). A score goes through scale, softcap, bias, slopes and mask in this order.

What a mask hides reaches neither results nor gradients, whatever it holds. A value that is seen and has an
element that is not finite makes all features of that query's output NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import attention_scores as core
from .attention_scores import Options, Piece
from .manual import alike
from .pure_rows import pivot

Array = Any


class _State(NamedTuple):
    """Of queries (batch, groups, heads a group, queries[, features]); spoilt: bool, a value was no number."""

    m: Array
    s: Array
    o: Array
    spoilt: Array


class _Gradients(NamedTuple):
    """Sums over blocks, in the format of statistics; bias of the piece, or None."""

    q: Array
    k: Array
    v: Array
    bias: Array | None
    spoilt: Array


def forward(
    q: Array, k: Array, v: Array, *, mask: Array | None, bias: Array | None, scale: float | None,
    causal: bool, lower_right: bool, window: tuple[int | None, int | None] | None, softcap: float | None,
    sinks: Array | None, alibi_slopes: Array | None, dropout_p: float, seed: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """(output, lse): (batch, heads, queries, features of v) in q's format; (batch, heads, queries) in float32
    (float64 for float64), sinks included. A query that sees nothing gets 0 and -inf."""
    options = core.options_of(
        q, k, mask=mask, bias=bias, scale=scale, causal=causal, lower_right=lower_right, window=window,
        softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes, dropout_p=dropout_p, seed=seed,
    )  # fmt: skip
    batch, heads, queries, _ = q.shape
    grouped = _grouped(q, k)
    parts = [_finished(_piece(grouped, k, v, piece, options), options) for piece in _pieces(q, k, options)]
    if not parts:
        return jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), jnp.zeros(q.shape[:3], options.wide)
    out, lse = (jnp.concatenate(each, axis=3) for each in zip(*parts, strict=True))
    return out.reshape(batch, heads, queries, v.shape[3]).astype(q.dtype), lse.reshape(q.shape[:3])


def backward(
    do: Array, dlse: Array | None, q: Array, k: Array, v: Array, out: Array, lse: Array, *,
    mask: Array | None, bias: Array | None, scale: float | None, causal: bool, lower_right: bool,
    window: tuple[int | None, int | None] | None, softcap: float | None, sinks: Array | None,
    alibi_slopes: Array | None, dropout_p: float, seed: Any,
) -> tuple[Array, Array, Array, Array | None, Array | None]:  # fmt: skip
    """(dq, dk, dv, dbias, dsinks) from the gradients of output and lse, in the formats and shapes of what
    they belong to; None without bias or sinks. out and lse: what `forward` returned."""
    options = core.options_of(
        q, k, mask=mask, bias=bias, scale=scale, causal=causal, lower_right=lower_right, window=window,
        softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes, dropout_p=dropout_p, seed=seed,
    )  # fmt: skip
    wide = options.wide
    lse = lse.astype(wide)
    nothing = lse == -jnp.inf
    # What a query that sees nothing has in do is not read.
    do = jnp.where(nothing[..., None], 0, do)
    delta = jnp.sum(do.astype(wide) * out.astype(wide), -1)
    if dlse is not None:
        delta = delta - jnp.where(nothing, 0, dlse.astype(wide))
    rows = tuple(_grouped(a, k) for a in (q, do, lse, delta))
    dk, dv = jnp.zeros(k.shape, wide), jnp.zeros(v.shape, wide)
    spoilt = jnp.zeros(v.shape[:3], jnp.bool_)
    dq, dbias = [], None if options.bias is None else jnp.zeros(options.bias.shape, wide)
    for piece in _pieces(q, k, options):
        made = _piece_gradients(rows, k, v, (dk, dv, spoilt), piece, options)
        dk, dv, spoilt = made.k, made.v, made.spoilt
        dq.append(made.q)
        if dbias is not None:
            dbias = _with_piece(dbias, made.bias, piece)
    whole = jnp.concatenate(dq, axis=3).reshape(q.shape) if dq else jnp.zeros(q.shape, wide)
    dv = jnp.where(spoilt[..., None], jnp.nan, dv)
    if dbias is not None and bias is not None:
        dbias = dbias.reshape(bias.shape).astype(bias.dtype)
    dsinks = None
    if sinks is not None:
        share = jnp.exp(sinks.astype(wide)[:, None] - pivot(lse))
        of_each = jnp.where(share == 0, 0, -share * delta)
        dsinks = jnp.sum(of_each, (0, 2)).astype(sinks.dtype)
    return whole.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dbias, dsinks


def _grouped(array: Array, k: Array) -> Array:
    """(batch, heads, ...) as (batch, groups, heads a group, ...)."""
    groups = k.shape[1]
    return array.reshape(array.shape[0], groups, array.shape[1] // max(groups, 1), *array.shape[2:])


def _pieces(q: Array, k: Array, options: Options) -> list[Piece]:
    return core.pieces(q, k.shape[2], options) if q.size or not q.shape[3] else []


def _of_piece(options: Options, piece: Piece) -> Options:
    return options._replace(
        mask=core.queries_of(options.mask, piece), bias=core.queries_of(options.bias, piece)
    )


def _piece(q: Array, k: Array, v: Array, piece: Piece, options: Options) -> _State:
    """The state of a piece's queries over all keys that they may see."""
    q = q[:, :, :, piece.start : piece.stop]
    shape, wide = q.shape[:4], options.wide
    state = _State(
        jnp.full(shape, -jnp.inf, wide),
        jnp.zeros(shape, wide),
        jnp.zeros((*shape, v.shape[3]), wide),
        jnp.zeros(shape, jnp.bool_),
    )
    if not piece.blocks:
        return state
    dice = core.rows_of_dropout(q, piece, options)
    mine = _of_piece(options, piece)

    @partial(jax.checkpoint, prevent_cse=False)
    def step(state: _State, i: Array) -> tuple[_State, None]:
        wanted, start = core.block_start(piece, i)
        keys, values = (core.block_of(a, start, piece.size, 2) for a in (k, v))
        made = core.scores_of(q, keys, piece, wanted, start, dice, mine)
        values, bad = core.finite(values)
        top = lax.stop_gradient(jnp.max(made.scores, -1))
        m = jnp.maximum(state.m, top)
        p = jnp.exp(made.scores - pivot(m)[..., None])
        kept = jnp.where(made.kept, p, 0) if dice is not None else p
        fade = jnp.exp(state.m - pivot(m))
        added = core.product("bgrqk,bgkd->bgrqd", kept, values, options.wide)
        spoilt = jnp.any(made.kept & bad[:, :, None, None, :], -1)
        return _State(
            m, state.s * fade + jnp.sum(p, -1), state.o * fade[..., None] + added, state.spoilt | spoilt
        ), None

    state = _State(*alike(*state, q, k, v)[: len(state)])
    return lax.scan(step, state, jnp.arange(piece.blocks))[0]


def _finished(state: _State, options: Options) -> tuple[Array, Array]:
    """Output and lse of a state, after the sinks have taken their share."""
    m, s, o, spoilt = state
    if options.sinks is not None:
        greatest = jnp.maximum(m, lax.stop_gradient(options.sinks))
        fade = jnp.exp(m - pivot(greatest))
        s = s * fade + jnp.exp(options.sinks - pivot(greatest))
        o, m = o * fade[..., None], greatest
    total = jnp.where(s == 0, 1, s)
    # NaN in s for +inf in m, which is the lse then.
    lse = jnp.where(jnp.isfinite(m), m + jnp.log(total), m)
    by = 1 / total if not options.dropout_p else 1 / (total * (1 - options.dropout_p))
    return jnp.where(spoilt[..., None], jnp.nan, o * by[..., None]), lse


def _piece_gradients(
    rows: tuple[Array, ...], k: Array, v: Array, sums: tuple[Array, Array, Array], piece: Piece,
    options: Options,
) -> _Gradients:  # fmt: skip
    """The gradients of a piece's queries, and what they add to those of keys and values."""
    q, do, lse, delta = (a[:, :, :, piece.start : piece.stop] for a in rows)
    mine, wide = _of_piece(options, piece), options.wide
    bias = None if mine.bias is None else jnp.zeros(mine.bias.shape, wide)
    start_of = _Gradients(jnp.zeros(q.shape, wide), sums[0], sums[1], bias, sums[2])
    if not piece.blocks:
        return start_of
    dice = core.rows_of_dropout(q, piece, options)
    clean_q, clean_do = core.finite(q)[0], core.finite(do)
    factor = 1 / (1 - options.dropout_p)

    @partial(jax.checkpoint, prevent_cse=False)
    def step(to: _Gradients, i: Array) -> tuple[_Gradients, None]:
        wanted, start = core.block_start(piece, i)
        keys, values = (core.block_of(a, start, piece.size, 2) for a in (k, v))
        made = core.scores_of(q, keys, piece, wanted, start, dice, mine)
        p = jnp.where(made.seen, jnp.exp(made.scores - pivot(lse)[..., None]), 0)
        kept = p if dice is None else jnp.where(made.kept, p * factor, 0)
        dv = core.product("bgrqk,bgrqd->bgkd", kept, clean_do[0], wide)
        dp = jnp.where(made.kept, core.product("bgrqd,bgkd->bgrqk", do, values, wide), 0)
        ds = p * (dp * factor - delta[..., None])
        ds = jnp.where(made.seen, ds, 0)
        of_bias = to.bias
        if of_bias is not None:
            of_bias = _add_to(of_bias, _summed(ds, of_bias.shape), start, -1)
        raw = (ds if made.slope is None else jnp.where(made.seen, ds * made.slope, 0)) * options.scale
        dk = core.product("bgrqk,bgrqd->bgkd", raw, clean_q, wide)
        dq = to.q + core.product("bgrqk,bgkd->bgrqd", raw, core.finite(keys)[0], wide)
        spoilt = jnp.any(made.kept & clean_do[1][..., None], (2, 3))
        return _Gradients(
            dq, _add_to(to.k, dk, start, 2), _add_to(to.v, dv, start, 2), of_bias,
            _or_to(to.spoilt, spoilt, start),
        ), None  # fmt: skip

    start_of = _Gradients(*alike(*start_of, q, k, v)[: len(start_of)])
    return lax.scan(step, start_of, jnp.arange(piece.blocks))[0]


def _add_to(total: Array, part: Array, start: Array, axis: int) -> Array:
    """Adds what belongs to some keys to the sum over all."""
    axis %= total.ndim
    if part.shape[axis] == total.shape[axis]:
        return total + part
    before = lax.dynamic_slice_in_dim(total, start, part.shape[axis], axis)
    return lax.dynamic_update_slice_in_dim(total, before + part, start, axis)


def _or_to(total: Array, part: Array, start: Array) -> Array:
    before = lax.dynamic_slice_in_dim(total, start, part.shape[2], 2)
    return lax.dynamic_update_slice_in_dim(total, before | part, start, 2)


def _summed(block: Array, shape: tuple[int, ...]) -> Array:
    """Summed over the axes that a bias of this shape has 1 of."""
    axes = tuple(axis for axis in range(block.ndim) if shape[axis] == 1)
    return jnp.sum(block, axes, keepdims=True)


def _with_piece(total: Array, part: Array | None, piece: Piece) -> Array:
    if part is None:
        return total
    if total.shape[3] == 1:
        return total + part
    return total.at[:, :, :, piece.start : piece.stop].add(part)
