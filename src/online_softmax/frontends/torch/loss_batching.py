"""What batching the losses under vmap has in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registry import front


def alike(t: Tensor, along: int | None, size: int) -> Tensor:
    moved = front(t, along)
    return moved if along is not None and moved is not None else t.unsqueeze(0).expand(size, *t.shape)


def rows_weight(row_weight: Tensor | None, along: int | None, ndim: int) -> Tensor | None:
    if row_weight is None or along is None:
        return row_weight
    moved = row_weight.movedim(along, 0)
    return moved.reshape(moved.shape[0], *(1,) * (ndim - moved.ndim), *moved.shape[1:])


def one_by_one(call: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Where weights of classes differ within the batch: a call each."""
    made = [
        call(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(made[0], Tensor):
        return torch.stack(made), 0
    return tuple(torch.stack(parts) for parts in zip(*made, strict=True)), (0,) * len(made[0])
