"""Attention's derivatives composed of PyTorch's operations on the matrix of scores, differentiable to any
order: what `attention_ops` has no kernel for is differentiated here. Memory is a multiple of the scores.

The formulas are those of the package's attention_derivatives.py, in whose letters this is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from .attention_options import COUNT, Rest, wide

_Args = tuple[Any, ...]


class _Scores(NamedTuple):
    """What all derivatives need of q, k, v, bias and sinks, with a head of k and v for each of q."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    #: Weights of the keys, before dropout, and of the sink.
    p: torch.Tensor
    p_sink: torch.Tensor
    #: What dropout multiplies weights by; 1 for nothing.
    f: Any
    #: dt/dr and t = ds/dr; None for 0 and 1.
    bend: torch.Tensor | None
    slope: torch.Tensor | None
    scale: float
    share: int

    def repeated(self, t: torch.Tensor | None) -> torch.Tensor | None:
        """Of a head of k for each head of q."""
        return None if t is None else t.to(self.q.dtype).repeat_interleave(self.share, 1)

    def summed(self, t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Over the heads of q that share one of k."""
        batch, heads, length, features = t.shape
        parts = t.reshape(batch, heads // max(self.share, 1), self.share, length, features)
        return parts.sum(2).to(like.dtype)

    def raw_move(self, dq: torch.Tensor | None, dk: torch.Tensor | None) -> torch.Tensor | None:
        """q'.k + q.k'"""
        moves = [] if dq is None else [dq.to(self.q.dtype) @ self.k.mT]
        moves += [] if dk is None else [self.q @ dk.mT]
        return sum(moves[1:], moves[0]) if moves else None

    def move(self, raw: torch.Tensor | None, d_bias: torch.Tensor | None) -> torch.Tensor:
        """h, the tangent of the scores."""
        made = torch.zeros_like(self.p) if raw is None else self.scale * raw
        made = made if self.slope is None else made * self.slope
        return made if d_bias is None else made + d_bias.to(made.dtype)


def _scores(q: Any, k: Any, v: Any, bias: Any, sinks: Any, rest: Rest) -> _Scores:
    to, share = wide(q), q.shape[1] // max(k.shape[1], 1)
    wide_q, wide_k, wide_v = q.to(to), *(t.to(to).repeat_interleave(share, 1) for t in (k, v))
    scale = 1 / math.sqrt(max(q.shape[3], 1)) if rest.scale is None else rest.scale
    scores, slope, bend = wide_q @ wide_k.mT * scale, None, None
    if rest.softcap:
        flat = torch.tanh(scores / rest.softcap)
        scores, slope = flat * rest.softcap, 1 - flat * flat
        bend = -2 / rest.softcap * flat * slope
    if bias is not None:
        scores = scores + bias.to(to)
    seen, distance = _seen(q, k, rest)
    if rest.slopes is not None:
        scores = scores - _slopes(q, rest).to(to) * distance.to(to)
    if seen is not None:
        scores = torch.where(seen, scores, -torch.inf)
    column = scores.new_full((), -torch.inf) if sinks is None else sinks.to(to)[None, :, None, None]
    scores = torch.cat([scores, column.expand(*scores.shape[:3], 1)], 3)
    top = scores.detach().amax(3, keepdim=True)
    weights = torch.exp(scores - torch.where(top == -torch.inf, 0, top))
    total = weights.sum(3, keepdim=True)
    weights = weights / torch.where(total == 0, 1, total)
    f: Any = 1
    if rest.seed is not None:
        f = _kept(q, k, rest).to(to) / (1 - rest.dropout_p)
    return _Scores(wide_q, wide_k, wide_v, weights[..., :-1], weights[..., -1], f, bend, slope, scale, share)


def backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv, dbias, dsinks) of (d_output, d_lse, q, k, v, bias, sinks, *rest)."""
    (do, dlse, q, k, v, bias, sinks), rest = args[:-COUNT], Rest(*args[-COUNT:])
    s = _scores(q, k, v, bias, sinks, rest)
    g = do.to(s.q.dtype)
    a = s.f * (g @ s.v.mT)
    level = _level(s, a, dlse)
    e = s.p * (a + level)
    by_product = s.scale * (e if s.slope is None else e * s.slope)
    return (
        (by_product @ s.k).to(q.dtype), s.summed(by_product.mT @ s.q, k), s.summed((s.f * s.p).mT @ g, v),
        _like(e, bias), _of_heads(s.p_sink * level[..., 0], sinks),
    )  # fmt: skip


def jvp(*args: Any) -> tuple[torch.Tensor, ...]:
    """Tangents of (output, lse) of (q, k, v, bias, sinks, their tangents, *rest)."""
    (q, k, v, bias, sinks, tq, tk, tv, tbias, tsinks), rest = args[:-COUNT], Rest(*args[-COUNT:])
    s = _scores(q, k, v, bias, sinks, rest)
    output, lse = _moved(s, s.move(s.raw_move(tq, s.repeated(tk)), tbias), s.repeated(tv), tsinks)
    return output.to(q.dtype), lse


def double_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Gradients of (d_output, d_lse, q, k, v, bias, sinks) of these, cotangents of `backward`'s results and
    *rest."""
    (do, dlse, q, k, v, bias, sinks, dq, dk, dv, d_bias, d_sinks), rest = args[:-COUNT], Rest(*args[-COUNT:])
    s = _scores(q, k, v, bias, sinks, rest)
    g, dk, dv = do.to(s.q.dtype), s.repeated(dk), s.repeated(dv)
    raw = s.raw_move(dq, dk)
    h = s.move(raw, d_bias)
    d_output, d_lse = _moved(s, h, dv, d_sinks)
    a = s.f * (g @ s.v.mT)
    lean, off = a + _level(s, a, dlse), h - d_lse[..., None]
    rest_of = (g * d_output).sum(3, keepdim=True)
    u = s.p * (lean * off - rest_of + (0 if dv is None else s.f * (g @ dv.mT)))
    by_move, by_product = s.scale * (s.p * lean), s.scale * u
    if s.slope is not None:
        by_product = by_product * s.slope
        if raw is not None:
            by_product = by_product + s.scale * by_move * raw * s.bend
        by_move = by_move * s.slope
    to_q, to_k = by_product @ s.k, by_product.mT @ s.q
    if dk is not None:
        to_q = to_q + by_move @ dk
    if dq is not None:
        to_k = to_k + by_move.mT @ dq.to(s.q.dtype)
    to_v = (s.f * s.p * off).mT @ g
    sink_move = -d_lse if d_sinks is None else d_sinks.to(s.q.dtype)[None, :, None] - d_lse
    to_sink = s.p_sink * (_level(s, a, dlse)[..., 0] * sink_move - rest_of[..., 0])
    return (
        d_output.to(do.dtype), _or_nothing(None if dlse is None else d_lse.to(dlse.dtype), do),
        to_q.to(q.dtype), s.summed(to_k, k), s.summed(to_v, v), _like(u, bias), _of_heads(to_sink, sinks),
    )  # fmt: skip


def _moved(
    s: _Scores, h: torch.Tensor, dv: torch.Tensor | None, d_sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    d_lse = (s.p * h).sum(3)
    if d_sinks is not None:
        d_lse = d_lse + s.p_sink * d_sinks.to(h.dtype)[None, :, None]
    d_output = (s.p * s.f * (h - d_lse[..., None])) @ s.v
    if dv is not None:
        d_output = d_output + (s.p * s.f) @ dv
    return d_output, d_lse


def _level(s: _Scores, a: torch.Tensor, dlse: torch.Tensor | None) -> torch.Tensor:
    """l - D"""
    delta = (s.p * a).sum(3, keepdim=True)
    return -delta if dlse is None else dlse.to(a.dtype)[..., None] - delta


def _like(t: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Summed over what bias was broadcast along."""
    if bias is None:
        return t.new_zeros(0)
    four = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    along = [d for d in range(4) if four[d] == 1 and t.shape[d] != 1]
    return (t.sum(along) if along else t).reshape(bias.shape).to(bias.dtype)


def _of_heads(t: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    return t.new_zeros(0) if sinks is None else t.sum((0, 2)).to(sinks.dtype)


def pull(function: Callable[..., Any], args: _Args, cotangents: _Args) -> list[torch.Tensor | None]:
    """The cotangents taken back through a function of tensors and None. None stands for 0."""
    given = [i for i, a in enumerate(args) if a is not None]

    def f(*some: torch.Tensor) -> Any:
        whole = list(args)
        for i, t in zip(given, some, strict=True):
            whole[i] = t
        return function(*whole)

    results, back = torch.func.vjp(f, *(args[i] for i in given))
    found = back(
        tuple(
            torch.zeros_like(r) if c is None else c.to(r.dtype)
            for r, c in zip(results, cotangents, strict=True)
        )
    )
    whole: list[torch.Tensor | None] = [None] * len(args)
    for i, t in zip(given, found, strict=True):
        whole[i] = t
    return whole


def push(function: Callable[..., Any], args: _Args, tangents: _Args) -> Any:
    """The tangents of a function's results, for a jvp rule. None stands for 0.

    By duals of the level that the rule serves: torch.func.jvp nests neither in the forward mode of
    torch.autograd nor in a rule.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        duals = []
        for a, t in zip(args, tangents, strict=True):
            if a is None or t is None:
                duals.append(a if a is None else forward_ad.unpack_dual(a, level=0).primal)
            else:
                primal = forward_ad.unpack_dual(a, level=0).primal
                duals.append(forward_ad.make_dual(primal, t.to(primal.dtype), level=0))
        found = [forward_ad.unpack_dual(r, level=0) for r in function(*duals)]
    return tuple(torch.zeros_like(r.primal) if r.tangent is None else r.tangent for r in found)


def _or_nothing(t: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(0) if t is None else t


def _slopes(q: torch.Tensor, rest: Rest) -> torch.Tensor:
    """The slopes of queries, broadcastable to the scores."""
    slopes = rest.slopes
    assert slopes is not None
    if rest.cu_seqlens_q is None or slopes.ndim == 1 or not slopes.shape[0]:
        slopes = slopes if len(slopes) else slopes.new_zeros(q.shape[1])
        return slopes[..., None, None]
    of = _sequence(rest.cu_seqlens_q, q.shape[2]).clamp_max(slopes.shape[0] - 1)
    return slopes[of].mT[None, :, :, None]


def _sequence(starts: torch.Tensor, length: int) -> torch.Tensor:
    """The sequence of each row; that past the last for rows of none."""
    at = torch.arange(length, device=starts.device)
    return torch.searchsorted(starts[1:].to(torch.int64), at, right=True)


def _seen(q: torch.Tensor, k: torch.Tensor, rest: Rest) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Who sees whom, None for all; how far a key lies from the query's place. Both broadcast to
    the scores."""
    queries, keys = (torch.arange(t.shape[2], device=q.device) for t in (q, k))
    rows, columns = queries[:, None], keys[None]
    length: Any = k.shape[2]
    parts = [] if rest.mask is None else [rest.mask]
    of = q.shape[2]
    if rest.cu_seqlens_q is not None and len(rest.cu_seqlens_q) == 1:
        return torch.zeros_like(columns - rows, dtype=torch.bool), (columns - rows).abs()
    if rest.cu_seqlens_q is not None and rest.cu_seqlens_k is not None:
        starts, ends = rest.cu_seqlens_q.long(), rest.cu_seqlens_k.long()
        own, other = _sequence(starts, q.shape[2]), _sequence(ends, k.shape[2])
        parts.append((own[:, None] == other[None]) & (own < len(starts) - 1)[:, None])
        # The last entry is met by rows of no sequence, which see nothing.
        last = own.clamp_max(len(starts) - 2)
        rows = (queries - starts[last])[:, None]
        columns = (keys - ends[other.clamp_max(len(ends) - 2)])[None]
        length, of = ends.diff()[last][:, None], starts.diff()[last][:, None]
    elif rest.seqlens_k is not None:
        length = rest.seqlens_k.long()[:, None, None, None]
        parts.append(columns < length)
    place = rest.origin[2] - rest.origin[3] if rest.origin is not None else length - of
    if rest.origin is None and not rest.lower_right:
        place = 0
    distance = columns - rows - place
    if rest.left >= 0:
        parts.append(distance >= -rest.left)
    if rest.right >= 0:
        parts.append(distance <= rest.right)
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    return seen, distance.abs()


def _kept(q: torch.Tensor, k: torch.Tensor, rest: Rest) -> torch.Tensor:
    return torch.ops.online_softmax.attention_keep(
        rest.seed, q.shape[0], q.shape[1], q.shape[2], k.shape[2], rest.cu_seqlens_q, rest.cu_seqlens_k,
        rest.dropout_p, rest.origin,
    )  # fmt: skip
