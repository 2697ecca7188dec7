"""A block of attention scores in JAX's own operations: what forward and backward share.

Arrays of queries are (batch, groups, queries' heads a group, queries, ...): nothing of K and V is repeated.
Blocks of keys start at multiples of their size; the last one starts earlier, so that all have one size, and
what it has in common with the one before is hidden in it.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jax import lax

from . import counter
from .pure_rows import wide_dtype

Array = Any

#: Keys of a block.
KEYS: Final = 256
#: Scores of a block, over all heads and batch elements, before queries are cut; pieces at most.
SCORES: Final = 1 << 22
PIECES: Final = 8


class Options(NamedTuple):
    """What is done to scores. mask and bias: (batch, groups, heads a group, queries, keys), or 1 instead."""

    scale: float
    softcap: float
    mask: Array | None
    bias: Array | None
    #: (batch or 1, groups, heads a group, 1, 1)
    slopes: Array | None
    #: (groups, heads a group, 1)
    sinks: Array | None
    #: Place of query 0 among the keys; keys seen to the left of a query's place, to the right; -1: all.
    offset: int
    left: int
    right: int
    dropout_p: float
    seed: Any
    wide: Any


class Piece(NamedTuple):
    """Some queries, and the keys that any of them may see: static numbers."""

    start: int
    stop: int
    first: int
    end: int

    @property
    def size(self) -> int:
        """Keys of a block."""
        return min(KEYS, self.end - self.first)

    @property
    def blocks(self) -> int:
        return -(-(self.end - self.first) // self.size) if self.end > self.first else 0


class Scores(NamedTuple):
    """A block of scores, -inf where not seen."""

    scores: Array
    #: bool, or None where all is seen.
    seen: Array | None
    #: bool: seen, and not dropped; None likewise.
    kept: Array | None
    #: Derivative by scale * q.k, None for 1.
    slope: Array | None


def options_of(
    q: Array, k: Array, *, mask: Array | None, bias: Array | None, scale: float | None, causal: bool,
    lower_right: bool, window: tuple[int | None, int | None] | None, softcap: float | None,
    sinks: Array | None, alibi_slopes: Array | None, dropout_p: float, seed: Any,
) -> Options:  # fmt: skip
    """The options of a call of q (batch, heads, queries, d) and k (batch, groups, keys, d)."""
    heads, groups, wide = q.shape[1], k.shape[1], wide_dtype(q.dtype)
    each = heads // groups if groups else 1
    left, right = (-1 if side is None else side for side in (window or (None, None)))
    right = 0 if causal else right

    def grouped(array: Array | None) -> Array | None:
        if array is None:
            return None
        four = array.reshape((1,) * (4 - array.ndim) + array.shape)
        over = (1, 1) if four.shape[1] == 1 else (groups, each)
        return four.reshape(four.shape[0], *over, *four.shape[2:])

    slopes = None
    if alibi_slopes is not None:
        slopes = alibi_slopes.astype(wide).reshape(-1, groups, each, 1, 1)
    return Options(
        scale=1 / math.sqrt(max(q.shape[3], 1)) if scale is None else scale,
        softcap=softcap or 0.0,
        mask=grouped(mask),
        bias=grouped(bias),
        slopes=slopes,
        sinks=None if sinks is None else sinks.astype(wide).reshape(groups, each, 1),
        offset=k.shape[2] - q.shape[2] if lower_right else 0,
        left=left,
        right=right,
        dropout_p=dropout_p,
        seed=seed,
        wide=wide,
    )


def pieces(q: Array, keys: int, options: Options) -> list[Piece]:
    """The queries cut where blocks would be large, or where each piece sees only some of the keys."""
    batch, heads, queries = q.shape[:3]
    wanted = -(-batch * heads * queries * min(keys, KEYS) // SCORES)
    if options.left >= 0 or options.right >= 0:
        wanted = max(wanted, min(-(-queries // (4 * KEYS)), PIECES // 2))
    step = -(-queries // max(1, min(wanted, PIECES))) if queries else 1
    made = []
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        first, end = 0, keys
        if options.left >= 0:
            first = max(0, start + options.offset - options.left)
        if options.right >= 0:
            end = min(keys, stop + options.offset + options.right)
        made.append(Piece(start, stop, first, max(first, end)))
    return made


def block_start(piece: Piece, i: Array) -> tuple[Array, Array]:
    """(the first key that block i is to have, the one that it is read from)."""
    wanted = piece.first + i * piece.size
    return wanted, jnp.minimum(wanted, piece.end - piece.size)


def block_of(array: Array, start: Array, size: int, axis: int = -1) -> Array:
    """`size` keys of an array, which may have one for all."""
    axis %= array.ndim
    return array if array.shape[axis] == 1 else lax.dynamic_slice_in_dim(array, start, size, axis)


def queries_of(array: Array | None, piece: Piece) -> Array | None:
    """The part of a mask or bias for a piece of the queries."""
    if array is None or array.shape[3] == 1:
        return array
    return array[:, :, :, piece.start : piece.stop]


def rows_of_dropout(q: Array, piece: Piece, options: Options) -> counter.Word | None:
    """What tells rows apart: pairs (batch, groups, heads a group, queries, 1)."""
    if not options.dropout_p:
        return None
    batch, groups, each = q.shape[:3]
    made = counter.dropout_rows(options.seed, batch, groups * each, jnp.arange(piece.start, piece.stop))
    shape = (batch, groups, each, piece.stop - piece.start, 1)
    return counter.Word(made.high.reshape(shape), made.low.reshape(shape))


def scores_of(
    q: Array, k: Array, piece: Piece, wanted: Array, start: Array, dice: counter.Word | None, options: Options
) -> Scores:
    """Scores of a piece's queries, q (..., queries, d), and a block's keys, k (batch, groups, keys, d).

    options.mask and .bias are those of the piece.
    """
    size, wide = piece.size, options.wide
    raw = product("bgrqd,bgkd->bgrqk", q, k, wide) * options.scale
    slope = None
    if options.softcap:
        part = raw * (1 / options.softcap)
        raw = options.softcap * jnp.tanh(part)
        e = jnp.exp(-2 * jnp.abs(part))
        slope = 4 * e / ((1 + e) * (1 + e))
    hidden = []  # what is True where a key is not seen
    keys = start + lax.broadcasted_iota(jnp.int32, (1, size), 1)
    if (piece.end - piece.first) % size:
        hidden.append(keys < wanted)
    queries = lax.broadcasted_iota(jnp.int32, (piece.stop - piece.start, 1), 0) + (
        piece.start + options.offset
    )
    if options.left >= 0:
        hidden.append(keys < queries - min(options.left, 1 << 30))
    if options.right >= 0:
        hidden.append(keys > queries + min(options.right, 1 << 30))
    if options.bias is not None:
        bias = block_of(options.bias, start, size).astype(wide)
        hidden.append(bias == -jnp.inf)
        raw = raw + bias
    if options.slopes is not None:
        raw = raw - options.slopes * jnp.abs(keys - queries).astype(wide)
    if options.mask is not None:
        hidden.append(~block_of(options.mask, start, size))
    hidden.append(raw == -jnp.inf)
    out = hidden[0]
    for more in hidden[1:]:
        out = out | more
    seen = kept = ~out
    if dice is not None:
        least = min(round(options.dropout_p * 2**32), 2**32 - 1)
        kept = seen & (counter.dropout_numbers(dice, keys) >= jnp.uint32(least))
    return Scores(jnp.where(seen, raw, -jnp.inf), seen, kept, slope)


def product(formula: str, a: Array, b: Array, wide: Any, *, narrow: bool = False) -> Array:
    """An einsum in `wide`. Operands of 16 bits go in as they are where both are, and their products are
    exact; float32 is not rounded to fewer bits, as accelerators would, unless `narrow`: made of such."""
    narrow = narrow or a.dtype.itemsize < 4 or b.dtype.itemsize < 4
    if a.dtype != b.dtype:
        a, b = a.astype(wide), b.astype(wide)
    precision = lax.Precision.DEFAULT if narrow else lax.Precision.HIGHEST
    return jnp.einsum(formula, a, b, precision=precision, preferred_element_type=wide)


def finite(array: Array) -> tuple[Array, Array]:
    """(the array with 0 for what is not finite, bool: which rows, of the last axis, had such)."""
    good = jnp.isfinite(array)
    return jnp.where(good, array, 0), ~jnp.all(good, -1)
