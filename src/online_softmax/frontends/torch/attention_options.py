"""What attention's operations share beside q, k, v, bias and sinks: one list of arguments, in one order."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch


class Rest(NamedTuple):
    """The trailing arguments of every operation of attention, in their order."""

    mask: torch.Tensor | None = None
    #: (heads,) or (batch, heads)
    slopes: torch.Tensor | None = None
    #: int64, one element; None where nothing is dropped.
    seed: torch.Tensor | None = None
    seqlens_k: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    #: None for 1/sqrt(d).
    scale: float | None = None
    #: 0 for none.
    softcap: float = 0.0
    #: Keys seen to the left and to the right of a query's place, -1 for all.
    left: int = -1
    right: int = -1
    lower_right: bool = True
    dropout_p: float = 0.0
    origin: list[int] | None = None

    def tensors(self) -> tuple[Any, ...]:
        return tuple(self[:TENSORS])

    def numbers(self) -> tuple[Any, ...]:
        return tuple(self[TENSORS:])


#: The first fields of Rest, which are tensors.
TENSORS: Final = 6
SCHEMA: Final = (
    "Tensor? mask, Tensor? slopes, Tensor? seed, Tensor? seqlens_k, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, float? scale, float softcap, int left, int right, bool lower_right, "
    "float dropout_p, int[]? origin"
)
COUNT: Final = len(Rest._fields)


def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Rest]:
    """An operation's own arguments, and the rest."""
    return args[:-COUNT], Rest(*args[-COUNT:])


def wide(t: torch.Tensor) -> torch.dtype:
    """The format of statistics."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def rows_by_place(q: torch.Tensor) -> bool:
    """Whether the heads of a place lie side by side in memory, as in a transposed (batch, length, heads, d):
    results are then laid out alike, so that turning them back costs nothing."""
    return q.shape[1] > 1 and q.shape[2] > 1 and 0 < q.stride(1) < q.stride(2)
