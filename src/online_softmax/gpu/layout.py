"""Tensors of one shape seen as rows: a row index of up to two levels, a stride for each.

Leading axes that lie behind each other in every tensor are one axis. Where more than two are left, the outer
ones are gone over one by one, a launch each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: A stride for each tensor.
_Strides = tuple[int, ...]


@dataclass(frozen=True)
class Slab:
    """Rows that one launch goes over.

    Attributes:
        rows: their number.
        inner: row r lies at place r % inner of level r // inner.
        starts: name of a tensor -> a view of its rows here: its first element, and the span a kernel may
        touch.
        strides: name -> (outer, inner, column) strides, in elements.
    """

    rows: int
    inner: int
    starts: Mapping[str, torch.Tensor]
    strides: Mapping[str, tuple[int, int, int]]

    def arguments(self) -> dict[str, Any]:
        """What kernels call these: NAME_ptr, NAME_outer, NAME_inner, NAME_col, rows, inner."""
        named: dict[str, Any] = {"rows": self.rows, "inner": self.inner}
        for name, start in self.starts.items():
            named[f"{name}_ptr"] = start
            for level, stride in zip(("outer", "inner", "col"), self.strides[name], strict=True):
                named[f"{name}_{level}"] = stride
        return named


def slabs(tensors: Mapping[str, torch.Tensor], dim: int) -> Iterator[Slab]:
    """The rows along `dim` of tensors of one shape, none of whose axes is empty."""
    names = tuple(tensors)
    shape = next(iter(tensors.values())).shape
    columns = [tensor.stride(dim) for tensor in tensors.values()]
    axes = joined(
        [
            (shape[axis], tuple(tensor.stride(axis) for tensor in tensors.values()))
            for axis in range(len(shape))
            if axis != dim
        ]
    )
    looped, (outer, inner) = axes[:-2], _two(axes[-2:], len(names))
    for place in itertools.product(*(range(size) for size, _ in looped)):
        starts, strides = {}, {}
        for n, name in enumerate(names):
            offset = sum(at * step[n] for at, (_, step) in zip(place, looped, strict=True))
            strides[name] = (outer[1][n], inner[1][n], columns[n])
            sizes = (outer[0], inner[0], shape[dim])
            starts[name] = _at(tensors[name], offset, sizes, strides[name])
        yield Slab(outer[0] * inner[0], inner[0], starts, strides)


def joined(axes: Sequence[tuple[int, _Strides]]) -> list[tuple[int, _Strides]]:
    """Axes of length 1 left out, neighbours made one where in every tensor the outer continues the inner."""
    found: list[tuple[int, _Strides]] = []
    for size, strides in axes:
        if size == 1:
            continue
        if found and all(a == b * size for a, b in zip(found[-1][1], strides, strict=True)):
            found[-1] = (found[-1][0] * size, strides)
        else:
            found.append((size, strides))
    return found


def like_rows(statistic: torch.Tensor, dim: int, columns: int) -> torch.Tensor:
    """A tensor of one value a row, seen in the shape of the data: without a copy, its stride along dim 0."""
    shape = (*statistic.shape[:dim], columns, *statistic.shape[dim:])
    return statistic.unsqueeze(dim).expand(shape)


def _two(axes: Sequence[tuple[int, _Strides]], tensors: int) -> Sequence[tuple[int, _Strides]]:
    """Exactly two levels: what is missing has length 1. One axis is the outer level, so that inner is 1."""
    none = (1, (0,) * tensors)
    return [*axes, none, none][:2]


def _at(tensor: torch.Tensor, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return tensor.as_strided(sizes, strides, tensor.storage_offset() + offset)
