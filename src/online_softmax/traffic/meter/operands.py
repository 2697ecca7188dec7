"""Where a launch's tensor arguments lie in memory, and which of them owns a byte.

Addresses are all that an access shows. Arguments that overlap share a name, "x = out", on the bytes they
share; a byte that is no element of any argument, but lies between elements of some, goes to those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes of the piece of memory that GPUs move at least.
SECTOR = 32
#: Where a storage may begin: allocators of GPUs align to 512 bytes, those of CPUs to less, which would make
#: counts of lines depend on the run.
ALIGNMENT = 512


@dataclass(frozen=True)
class Operand:
    """A tensor argument. Addresses are the host's; `stop` is the first byte past the last element.

    Attributes:
        name: the kernel's parameter; "xs[1]" where it is part of a tuple.
        dtype, shape: as the caller's tensor has them.
        strides: in bytes.
        storage: first byte of the storage, and the first past it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    start: int
    stop: int
    storage: tuple[int, int]

    @property
    def label(self) -> str:
        """Name, format and shape in words."""
        return f"{self.name} ({self.dtype}[{','.join(map(str, self.shape))}])"


@dataclass(frozen=True)
class Region:
    """Bytes that belong to the same arguments: the unit that is counted.

    Attributes:
        name: "x", or "x = out" for bytes that both arguments hold.
        arguments: the parameters' names.
        dtype, shape: of the first of them.
        size: number of bytes.
    """

    name: str
    arguments: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Stretch:
    """Memory without a gap that one region fills, or several overlapping arguments.

    Attributes:
        start, stop: host addresses.
        origin: the storage's first byte, which alignment counts from.
        storage_stop: the first byte past the storage.
        regions: numbers of the regions in it.
        owner: for each byte an index into `regions`; None where there is one.
    """

    start: int
    stop: int
    origin: int
    storage_stop: int
    regions: tuple[int, ...]
    owner: NDArray[np.uint16] | None


def _operand(name: str, tensor: Any) -> Operand:
    base = getattr(tensor, "base", None)  # of triton.reinterpret; a plain tensor has none
    plain = tensor if base is None else base
    itemsize, shape = int(plain.element_size()), tuple(map(int, plain.shape))
    strides = tuple(itemsize * int(step) for step in plain.stride())
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + itemsize
    start, storage = int(plain.data_ptr()), plain.untyped_storage()
    first = int(storage.data_ptr())
    return Operand(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        start=start,
        stop=start + (reach if all(shape) else 0),
        storage=(first, first + int(storage.nbytes())),
    )


def _find(name: str, value: Any) -> list[Operand]:
    if hasattr(value, "data_ptr"):
        return [_operand(name, value)]
    if isinstance(value, tuple):
        return [found for i, part in enumerate(value) for found in _find(f"{name}[{i}]", part)]
    if hasattr(value, "block_shape"):  # a tensor descriptor made by the caller
        return _find(name, value.base)
    return []


def operands(arguments: Mapping[str, Any]) -> tuple[Operand, ...]:
    """The tensors among a launch's arguments, those in tuples and under descriptors included."""
    return tuple(found for name, value in arguments.items() for found in _find(name, value))


def _overlapping(of: Iterable[Operand]) -> list[list[Operand]]:
    """Operands grouped: those of a group overlap, directly or by way of others."""
    groups: list[list[Operand]] = []
    end = 0
    for operand in sorted(of, key=lambda operand: operand.start):
        if not groups or operand.start >= end:
            groups.append([])
        groups[-1].append(operand)
        end = max(end, operand.stop)
    return groups


def _holders(group: list[Operand], start: int, stop: int) -> NDArray[np.unsignedinteger[Any]]:
    """For each byte the set of operands that hold it, as bits."""
    width = next((bits for bits in (8, 16, 32, 64) if len(group) <= bits), None)
    if width is None:
        raise ValueError(f"{len(group)} tensor arguments overlap in memory: up to 64 can be told apart")
    holders = np.zeros(stop - start, dtype=f"uint{width}")
    step = holders.itemsize
    for bit, operand in enumerate(group):
        elements = np.lib.stride_tricks.as_strided(
            holders[operand.start - start :],
            (*operand.shape, operand.itemsize),
            (*(stride * step for stride in operand.strides), step),
        )
        elements |= holders.dtype.type(1 << bit)
    between = holders == 0
    for bit, operand in enumerate(group):
        span = slice(operand.start - start, operand.stop - start)
        holders[span][between[span]] |= holders.dtype.type(1 << bit)
    return holders


def _region(arguments: list[Operand], size: int) -> Region:
    names = tuple(operand.name for operand in arguments)
    return Region(" = ".join(names), names, arguments[0].dtype, arguments[0].shape, size)


def _split(group: list[Operand], start: int, stop: int) -> tuple[list[Region], NDArray[np.uint16] | None]:
    """The regions of overlapping operands, and the owner of each byte."""
    alike = {(operand.start, operand.shape, operand.strides) for operand in group}
    if len(alike) == 1:
        return [_region(group, stop - start)], None
    holders = _holders(group, start, stop)
    sets, sizes = np.unique(holders, return_counts=True)
    regions = [
        _region([operand for bit, operand in enumerate(group) if int(held) >> bit & 1], int(size))
        for held, size in zip(sets, sizes, strict=True)
    ]
    return regions, np.searchsorted(sets, holders).astype(np.uint16)


def lay_out(of: tuple[Operand, ...]) -> tuple[tuple[Region, ...], tuple[Stretch, ...]]:
    """Regions in the order of the arguments, and the stretches they lie in, by address.

    Cost: a byte of memory or more per byte of arguments that overlap, none for the others.
    """
    order = {operand.name: place for place, operand in enumerate(of)}
    regions = [_region([operand], 0) for operand in of if operand.stop == operand.start]
    drafts: list[tuple[Stretch, list[Region]]] = []
    for group in _overlapping(operand for operand in of if operand.stop > operand.start):
        group.sort(key=lambda operand: order[operand.name])
        start, stop = min(o.start for o in group), max(o.stop for o in group)
        storage = min(o.storage[0] for o in group), max(o.storage[1] for o in group)
        found, owner = _split(group, start, stop)
        regions += found
        drafts.append((Stretch(start, stop, *storage, (), owner), found))
    regions.sort(key=lambda region: [order[name] for name in region.arguments])
    number = {region.name: place for place, region in enumerate(regions)}
    stretches = (replace(s, regions=tuple(number[r.name] for r in found)) for s, found in drafts)
    return tuple(regions), tuple(stretches)


class AddressSpace:
    """Addresses of storages that do not depend on the run: in order of appearance, 512-aligned."""

    def __init__(self) -> None:
        self._bases: dict[tuple[int, int], int] = {}
        self._next = 0

    def base(self, stretch: Stretch) -> int:
        """The storage's address; the same again when the same storage is seen again."""
        key = (stretch.origin, stretch.storage_stop)
        if key not in self._bases:
            self._bases[key] = self._next
            self._next += -(-(key[1] - key[0]) // ALIGNMENT) * ALIGNMENT
        return self._bases[key]
