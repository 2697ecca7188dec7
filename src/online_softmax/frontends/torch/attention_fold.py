"""What vmap's dimension becomes in attention: part of the batch or, where there are sinks or sequences side
by side, of the heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .attention_options import COUNT, TENSORS, Rest

#: Kinds of arguments: (batch, heads, ...); broadcastable to the scores; (heads,); (heads,) or (batch, heads);
#: (batch,); what all examples have to share.
ROWS, SCORES, HEADS, SLOPES, LENGTHS, SHARED = "rows", "scores", "heads", "slopes", "lengths", "shared"
#: Operations that a bias comes into and no gradient of it out of.
_FORWARDS = ("attention", "attention_any")
_REST = (SCORES, SLOPES, SHARED, LENGTHS, SHARED, SHARED)


class _Fold:
    def __init__(self, size: int, by_head: bool) -> None:
        self.size, self.by_head = size, by_head

    def rows(self, t: torch.Tensor, dim: int | None) -> torch.Tensor:
        t = self._lead(t, dim)
        return t.transpose(0, 1).flatten(1, 2) if self.by_head else t.flatten(0, 1)

    def scores(self, t: torch.Tensor, dim: int | None, batch: int, heads: int, whole: bool) -> torch.Tensor:
        """`whole`: with an entry of its own for each example, as gradients need it."""
        inner = _inner(t, dim)
        if dim is None and not whole and t[(None,) * (4 - t.ndim)].shape[self.by_head] == 1:
            return t
        t = self._lead(t, dim)
        t = t.reshape(self.size, *(1,) * (4 - len(inner)), *inner)
        sizes = [-1] * 5
        sizes[2 if self.by_head else 1] = heads if self.by_head else batch
        return self.rows(t.expand(sizes), 0)

    def heads(self, t: torch.Tensor, dim: int | None) -> torch.Tensor:
        return self._lead(t, dim).flatten(0, 1)

    def slopes(self, t: torch.Tensor, dim: int | None, batch: int) -> torch.Tensor:
        t = self._lead(t, dim)
        if self.by_head:
            return t.flatten(0, 1) if t.ndim == 2 else t.transpose(0, 1).flatten(1, 2)
        t = t if t.ndim == 3 else t[:, None].expand(-1, batch, -1)
        return t.flatten(0, 1)

    def lengths(self, t: torch.Tensor, dim: int | None) -> torch.Tensor:
        return t if self.by_head else self._lead(t, dim).flatten(0, 1)

    def back(self, t: torch.Tensor, kind: str, inner: tuple[int, ...]) -> torch.Tensor:
        """A result with the example first. `inner`: the shape of an example's."""
        if kind == HEADS:
            return t.reshape(self.size, *inner)
        along = int(self.by_head)
        t = t.unflatten(along, (self.size, t.shape[along] // self.size)).movedim(along, 0)
        if kind == ROWS:
            return t
        four = (1,) * (4 - len(inner)) + tuple(inner)
        summed = [d + 1 for d in range(4) if four[d] == 1 and t.shape[d + 1] != 1]
        t = t.sum(summed, keepdim=True) if summed else t
        return t.reshape(self.size, *inner)

    def _lead(self, t: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return t.expand(self.size, *t.shape)
        return t.movedim(dim, 0)


def rule(name: str, kinds: tuple[str | None, ...], results: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of an operation.

    Args:
        kinds: of its own arguments.
        results: (own arguments) -> (kind, index of the argument whose shape it has) of each result, None for
            one without elements.
    """
    kinds = (*kinds, *_REST, *(None,) * (COUNT - TENSORS))

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        op = getattr(torch.ops.online_softmax, name).default
        rest = Rest(*args[-COUNT:])
        sinks = any(kind == HEADS and a is not None for kind, a in zip(kinds, args, strict=True))
        by_head = sinks or rest.cu_seqlens_q is not None
        fixed = (SHARED, LENGTHS) if by_head else (SHARED,)
        differ = any(d is not None and kind in fixed for kind, d in zip(kinds, in_dims, strict=True) if kind)
        if differ or rest.seed is not None:
            return _one_by_one(op, info.batch_size, in_dims, args)
        fold = _Fold(info.batch_size, by_head)
        first = kinds.index(ROWS)
        batch, heads = _inner(args[first], in_dims[first])[:2]
        folded = [
            a if a is None or kind in (None, SHARED) else _folded(fold, kind, a, d, batch, heads, name, i)
            for i, (kind, a, d) in enumerate(zip(kinds, args, in_dims, strict=True))
        ]
        made = op(*folded)
        back = []
        for t, of in zip(made, results(*args[:-COUNT]), strict=True):
            if of is None:
                back.append(t.expand(info.batch_size, *t.shape))
            else:
                kind, i = of
                inner = () if kind == ROWS else _inner(args[i], in_dims[i])
                back.append(fold.back(t, kind, inner))
        return tuple(back), (0,) * len(back)

    return vmap


def alone(name: str) -> Callable[..., Any]:
    """The rule of an operation that is done an example at a time."""

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        op = getattr(torch.ops.online_softmax, name).default
        return _one_by_one(op, info.batch_size, in_dims, args)

    return vmap


def _folded(
    fold: _Fold, kind: str, a: torch.Tensor, d: int | None, batch: int, heads: int, name: str, at: int
) -> torch.Tensor:
    if kind == ROWS:
        return fold.rows(a, d)
    if kind == SCORES:
        return fold.scores(a, d, batch, heads, name not in _FORWARDS and a.dtype != torch.bool)
    if kind == HEADS:
        return fold.heads(a, d)
    return fold.slopes(a, d, batch) if kind == SLOPES else fold.lengths(a, d)


def _inner(t: torch.Tensor, dim: int | None) -> tuple[int, ...]:
    shape = tuple(t.shape)
    return shape if dim is None else shape[:dim] + shape[dim + 1 :]


def _one_by_one(op: Any, size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    made = [
        op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
        for i in range(size)
    ]
    if isinstance(made[0], torch.Tensor):
        return torch.stack(made), 0
    return tuple(torch.stack(each) for each in zip(*made, strict=True)), (0,) * len(made[0])
