"""The CPU kernels of attention's forward mode and second derivative: by tiles, a sequence at a time where
lengths differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import attention_derivatives as arrays
from . import memory
from .attention_direct import like
from .attention_kernels import number
from .attention_options import Rest, split, wide

Array = memory.Array


class _Piece(NamedTuple):
    """Queries and keys that meet: all of them, or those of one sequence."""

    number: int
    batch: slice
    queries: slice
    keys: slice
    #: Whether it is all there is.
    whole: bool

    def rows(self, t: torch.Tensor | None, *, keys: bool = False) -> Array | None:
        if t is None:
            return None
        return memory.array(t)[self.batch, :, self.keys if keys else self.queries]

    def scores(self, a: Array | None) -> Array | None:
        """Of (batch, heads, queries, keys), or 1 instead."""
        if a is None or self.whole:
            return a
        a = a.reshape((1,) * (4 - a.ndim) + a.shape)
        wanted = (self.batch, slice(None), self.queries, self.keys)
        return a[tuple(slice(None) if n == 1 else w for n, w in zip(a.shape, wanted, strict=True))]


def _pieces(q: torch.Tensor, k: torch.Tensor, rest: Rest) -> Iterator[_Piece]:
    every = slice(None)
    if rest.cu_seqlens_q is not None and rest.cu_seqlens_k is not None:
        starts = [t.tolist() for t in (rest.cu_seqlens_q, rest.cu_seqlens_k)]
        for i in range(len(starts[0]) - 1):
            q_rows, k_rows = (slice(s[i], s[i + 1]) for s in starts)
            yield _Piece(i, every, q_rows, k_rows, False)
    elif rest.seqlens_k is not None:
        for i, n in enumerate(rest.seqlens_k.tolist()):
            yield _Piece(i, slice(i, i + 1), every, slice(0, n), False)
    else:
        yield _Piece(0, every, every, every, True)


def _prepared(
    piece: _Piece, q: Any, k: Any, v: Any, bias: Array | None, sinks: Array | None, rest: Rest
) -> arrays.Prepared:
    slopes = memory.optional(rest.slopes)
    if slopes is not None and slopes.ndim == 2 and not piece.whole:
        slopes = slopes[piece.number : piece.number + 1]
    window = tuple(None if side < 0 else side for side in (rest.left, rest.right))
    seed = 0 if rest.seed is None else number(rest.seed)
    call = arrays.prepared(
        piece.rows(q), piece.rows(k, keys=True), piece.rows(v, keys=True),
        mask=piece.scores(memory.optional(rest.mask)), bias=piece.scores(bias), scale=rest.scale,
        causal=False, causal_align="lower_right" if rest.lower_right else "upper_left", window=window,
        softcap=rest.softcap or None, sinks=sinks, alibi_slopes=slopes, dropout_p=rest.dropout_p, seed=seed,
        layout="BHSD",
    )  # fmt: skip
    batch, head, query, key = rest.origin or (0, 0, 0, 0)
    options = call.options
    if rest.origin is not None:
        options = options._replace(band=(query - key, *options.band[1:]))
    keep = arrays.keep_of(rest.dropout_p, seed, (batch + piece.number, head, query, key))
    return call._replace(options=options._replace(keep=keep))


def jvp(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (q, k, v, bias, sinks, tq, tk, tv, tbias, tsinks), rest = split(args)
    output, lse = like(q, v.shape[3]).zero_(), torch.zeros(q.shape[:-1], dtype=wide(q))
    to = memory.array(output), memory.array(lse)
    logits, added = memory.optional(sinks), memory.optional(bias)
    for piece in _pieces(q, k, rest):
        call = _prepared(piece, q, k, v, added, logits, rest)
        found = arrays.moved(
            call, piece.rows(tq), piece.rows(tk, keys=True), piece.rows(tv, keys=True),
            piece.scores(memory.optional(tbias)), memory.optional(tsinks),
        )  # fmt: skip
        for a, made in zip(to, (found.d_output, found.d_lse), strict=True):
            a[piece.batch, :, piece.queries] = made
    return output, lse


def double_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    (do, dlse, q, k, v, bias, sinks, gdq, gdk, gdv, gdbias, gdsinks), rest = split(args)
    made = tuple(_zeros(t) for t in (do, dlse, q, k, v))
    added, logits = (None if t is None else memory.array(t).astype(np.float64) for t in (bias, sinks))
    by_bias, by_sinks = (None if a is None else np.zeros(a.shape) for a in (added, logits))
    for piece in _pieces(q, k, rest):
        call = _prepared(piece, q, k, v, added, logits, rest)
        found = arrays.doubled(
            call, piece.rows(do), piece.rows(dlse), piece.rows(gdq), piece.rows(gdk, keys=True),
            piece.rows(gdv, keys=True), piece.scores(memory.optional(gdbias)), memory.optional(gdsinks),
        )  # fmt: skip
        sides = (found.do, found.dlse, found.q), (found.k, found.v)
        for t, a in zip(made[:3], sides[0], strict=True):
            if a is not None:
                memory.array(t)[piece.batch, :, piece.queries] = a
        for t, a in zip(made[3:], sides[1], strict=True):
            memory.array(t)[piece.batch, :, piece.keys] = a
        if by_bias is not None and found.bias is not None:
            part = piece.scores(by_bias)
            assert part is not None
            part += found.bias.reshape(part.shape)
        if by_sinks is not None and found.sinks is not None:
            by_sinks += found.sinks
    return (*made, _stored(by_bias, bias), _stored(by_sinks, sinks))


def _zeros(t: torch.Tensor | None) -> torch.Tensor:
    """Zeros of t's shape, contiguous; nothing for None."""
    return torch.empty(0) if t is None else torch.zeros(t.shape, dtype=t.dtype)


def _stored(a: Array | None, t: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(0) if a is None or t is None else torch.from_numpy(a).to(t.dtype)
