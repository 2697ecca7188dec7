"""Attention and its derivatives composed of PyTorch's operations on the matrix of scores, differentiable to
any order. What `attention_ops` has no kernel for is differentiated here: memory is a multiple of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .attention_options import COUNT, Rest, wide

_Args = tuple[Any, ...]


def attended(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of the arguments of the operation `attention`."""
    (q, k, v, bias, sinks), rest = args[:-COUNT], Rest(*args[-COUNT:])
    to = wide(q)
    share = q.shape[1] // max(k.shape[1], 1)
    keys, values = (t.to(to).repeat_interleave(share, 1) for t in (k, v))
    scale = 1 / math.sqrt(max(q.shape[3], 1)) if rest.scale is None else rest.scale
    scores = q.to(to) @ keys.mT * scale
    if rest.softcap:
        scores = torch.tanh(scores / rest.softcap) * rest.softcap
    if bias is not None:
        scores = scores + bias.to(to)
    seen, distance = _seen(q, k, rest)
    if rest.slopes is not None:
        slopes = rest.slopes.to(to)
        if rest.cu_seqlens_q is not None and slopes.ndim == 2:
            of = _sequence(rest.cu_seqlens_q, q.shape[2]).clamp_max(slopes.shape[0] - 1)
            each = slopes[of].mT[None, :, :, None]
        else:
            each = slopes[..., None, None]
        scores = scores - each * distance.to(to)
    if seen is not None:
        scores = torch.where(seen, scores, -torch.inf)
    column = scores.new_full((), -torch.inf) if sinks is None else sinks.to(to)[None, :, None, None]
    scores = torch.cat([scores, column.expand(*scores.shape[:3], 1)], 3)
    top = scores.detach().amax(3, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(3, keepdim=True)
    empty = total == 0
    total = torch.where(empty, 1, total)
    lse = torch.where(empty, -torch.inf, torch.log(total) + top)[..., 0]
    weights = weights[..., :-1] / total
    if rest.seed is not None:
        weights = torch.where(_kept(q, k, rest), weights / (1 - rest.dropout_p), 0)
    return (weights @ values).to(q.dtype), lse


def backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv, dbias, dsinks) of (d_output, d_lse, q, k, v, bias, sinks, *rest)."""
    do, dlse, *operands = args[:-COUNT]
    found = pull(_with(attended, args), tuple(operands), (do, dlse))
    return tuple(_or_nothing(t, do) for t in found)


def jvp(*args: Any) -> tuple[torch.Tensor, ...]:
    """Tangents of (output, lse) of (q, k, v, bias, sinks, their tangents, *rest)."""
    own = args[:-COUNT]
    made: tuple[torch.Tensor, ...] = push(_with(attended, args), own[:5], own[5:])
    return made


def double_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Gradients of (d_output, d_lse, q, k, v, bias, sinks) of these, cotangents of `backward`'s results and
    *rest."""
    own = args[:-COUNT]
    found = pull(_with(backward, args), own[:7], own[7:])
    return tuple(_or_nothing(t, own[0]) for t in found)


def pull(function: Callable[..., Any], args: _Args, cotangents: _Args) -> list[torch.Tensor | None]:
    """The cotangents taken back through a function of tensors and None. None stands for 0."""
    given = [i for i, a in enumerate(args) if a is not None]
    results, back = torch.func.vjp(_of(function, given, args), *(args[i] for i in given))
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
    """The tangents of a function's results. None stands for 0.

    The way back is linear in the cotangents, and its own way back is the way forward: torch.func.jvp does not
    nest in the forward mode of torch.autograd.
    """
    given = [i for i, t in enumerate(tangents) if t is not None and args[i] is not None]
    primals = tuple(args[i] for i in given)
    moves = tuple(tangents[i].to(args[i].dtype) for i in given)
    results, back = torch.func.vjp(_of(function, given, args), *primals)
    _, forward = torch.func.vjp(lambda *above: back(above), *(torch.zeros_like(r) for r in results))
    return forward(moves)


def _of(function: Callable[..., Any], given: list[int], args: _Args) -> Callable[..., Any]:
    def f(*some: torch.Tensor) -> Any:
        whole = list(args)
        for i, t in zip(given, some, strict=True):
            whole[i] = t
        return function(*whole)

    return f


def _with(function: Callable[..., Any], args: _Args) -> Callable[..., Any]:
    rest = args[-COUNT:]

    def f(*own: Any) -> Any:
        return function(*own, *rest)

    return f


def _or_nothing(t: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(0) if t is None else t


def _sequence(starts: torch.Tensor, length: int) -> torch.Tensor:
    """The sequence of each row; that past the last for rows of none."""
    at = torch.arange(length, device=starts.device)
    return torch.searchsorted(starts[1:].to(torch.int64), at, right=True)


def _seen(q: torch.Tensor, k: torch.Tensor, rest: Rest) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Who sees whom, None for all; how far a key lies from the query's place. Both broadcast to the scores."""
    queries, keys = (torch.arange(t.shape[2], device=q.device) for t in (q, k))
    rows, columns = queries[:, None], keys[None]
    length: Any = k.shape[2]
    parts = [] if rest.mask is None else [rest.mask]
    of = q.shape[2]
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
