"""Counts of one launch, kept while it runs: no loop over lanes, memory that the tensors' sizes bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .operands import SECTOR, AddressSpace, Operand, Region, Stretch, lay_out
from .report import Counts, Launch, TensorCounts

Addresses = NDArray[np.uint64]
ProgramId = tuple[int, int, int]
#: An operation's distinct sectors, numbered from the start of all memory.
Sectors = range | NDArray[np.int64]
#: An access: region, kind, sectors.
Access = tuple[int, int, Sectors]

KINDS: Final = ("load", "store", "atomic")
LOAD, STORE, ATOMIC = range(3)
_VERBS: Final = ("loads", "stores", "updates")


class OutOfBounds(IndexError):
    """A kernel addresses memory outside every tensor argument with a lane that is not masked off."""


@dataclass
class _Tally:
    operations: int = 0
    lanes: int = 0
    masked: int = 0
    nbytes: int = 0
    sectors: int = 0


@dataclass
class _Ground:
    """A stretch with the marks of the bytes that each kind of access has touched, made when first needed."""

    stretch: Stretch
    base: int
    seen: list[NDArray[np.bool_] | None] = field(default_factory=lambda: [None] * len(KINDS))

    def marks(self, kind: int) -> NDArray[np.bool_]:
        """One mark a byte, from the stretch's first sector boundary to its last."""
        found = self.seen[kind]
        if found is None:
            first = self.lead
            length = first + self.stretch.stop - self.stretch.start
            found = self.seen[kind] = np.zeros(-(-length // SECTOR) * SECTOR, dtype=np.bool_)
        return found

    @property
    def lead(self) -> int:
        """Bytes between the sector boundary at or below the stretch and the stretch."""
        return (self.stretch.start - self.stretch.origin) % SECTOR


class Recorder:
    """Takes the accesses of one launch. `log` keeps each access for a replay, in the order of its program."""

    def __init__(self, kernel: str, operands: tuple[Operand, ...], *, log: bool, space: AddressSpace) -> None:
        self._kernel, self._operands = kernel, operands
        self._regions, stretches = lay_out(operands)
        for stretch in sorted(stretches, key=lambda stretch: min(stretch.regions)):
            space.base(stretch)  # in the order of the arguments: that of host addresses depends on the run
        self._grounds = [_Ground(stretch, space.base(stretch)) for stretch in stretches]
        self._starts = np.array([stretch.start for stretch in stretches], dtype=np.uint64)
        self._stops = np.array([stretch.stop for stretch in stretches], dtype=np.uint64)
        self._tallies = [[_Tally() for _ in KINDS] for _ in self._regions]
        self._idle_operations = self._loose_masked = 0
        self._grid: ProgramId = (0, 0, 0)
        self._by_program: NDArray[np.int64] = np.zeros((len(KINDS), 0, 0, 0), dtype=np.int64)
        self._log: list[list[Access]] | None = [] if log else None

    def access(
        self, kind: int, pointers: Any, mask: Any, itemsize: int, program: ProgramId, grid: ProgramId
    ) -> None:
        """Count an operation. Raises OutOfBounds before anything is counted or memory is touched."""
        addresses: Addresses = np.asarray(pointers).reshape(-1)
        lanes = addresses.size
        if mask is not None:
            active = np.asarray(mask, dtype=np.bool_).reshape(-1)
            if not active.all():
                addresses = addresses[active]
        off = lanes - addresses.size
        if not addresses.size:
            self._idle_operations += 1
            self._loose_masked += off
            return
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        place = int(np.searchsorted(self._starts, low, side="right")) - 1
        self._open(grid)
        if place >= 0 and high <= self._grounds[place].stretch.stop:
            self._count(kind, place, addresses, itemsize, program, off)
        else:
            self._spread(kind, addresses, itemsize, program, off)

    def _open(self, grid: ProgramId) -> None:
        if grid != self._grid:
            if min(grid) < 0:
                raise ValueError(f"grid={tuple(grid)}: sizes of at least 0 would do")
            self._grid = grid
            self._by_program = np.zeros((len(KINDS), *grid), dtype=np.int64)
            if self._log is not None:
                self._log = [[] for _ in range(math.prod(grid))]

    def _spread(self, kind: int, addresses: Addresses, itemsize: int, program: ProgramId, off: int) -> None:
        """An operation whose lanes lie in several stretches, or outside all."""
        places = np.searchsorted(self._starts, addresses, side="right") - 1
        outside = places < 0
        inside = ~outside
        outside[inside] = addresses[inside] + np.uint64(itemsize) > self._stops[places[inside]]
        if outside.any():
            raise OutOfBounds(self._complaint(kind, addresses, outside, itemsize, program))
        self._loose_masked += off
        for place in np.unique(places):
            self._count(kind, int(place), addresses[places == place], itemsize, program, 0)

    def _complaint(
        self, kind: int, addresses: Addresses, outside: NDArray[np.bool_], itemsize: int, program: ProgramId
    ) -> str:
        address = int(addresses[outside][0])

        def distance(operand: Operand) -> int:
            return operand.start - address if address < operand.start else address + itemsize - operand.stop

        nearest = min(self._operands, key=distance)
        span, lanes = nearest.stop - nearest.start, f"{int(outside.sum())} of {outside.size}"
        return (
            f"kernel {self._kernel!r}, program {program}: {_VERBS[kind]} {itemsize} bytes at byte offset "
            f"{address - nearest.start} of {nearest.label}, which spans {span} bytes, by a lane that is "
            f"not masked off; {lanes} active lanes lie outside every tensor argument"
        )

    def _count(
        self, kind: int, place: int, addresses: Addresses, itemsize: int, program: ProgramId, off: int
    ) -> None:
        """Lanes of one stretch: they go to its region, or to the owners of their first bytes."""
        ground = self._grounds[place]
        stretch = ground.stretch
        self._by_program[(kind, *program)] += addresses.size * itemsize
        if stretch.owner is None:
            self._add(kind, stretch.regions[0], ground, addresses, itemsize, program, off)
            return
        owners = stretch.owner[(addresses - np.uint64(stretch.start)).astype(np.int64)]
        present = np.unique(owners)
        if present.size > 1:
            self._loose_masked += off
            off = 0
        for owner in present:
            region = stretch.regions[int(owner)]
            self._add(kind, region, ground, addresses[owners == owner], itemsize, program, off)

    def _add(
        self,
        kind: int,
        region: int,
        ground: _Ground,
        addresses: Addresses,
        itemsize: int,
        program: ProgramId,
        off: int,
    ) -> None:
        stretch = ground.stretch
        offsets = (addresses - np.uint64(stretch.origin)).astype(np.int64)
        sectors = _touch(ground.marks(kind), offsets, itemsize, ground.lead - stretch.start + stretch.origin)
        tally = self._tallies[region][kind]
        tally.operations += 1
        tally.lanes += addresses.size
        tally.masked += off
        tally.nbytes += addresses.size * itemsize
        tally.sectors += len(sectors)
        if self._log is not None:
            shift = ground.base // SECTOR
            moved: Sectors = (
                range(sectors.start + shift, sectors.stop + shift)
                if isinstance(sectors, range)
                else sectors + shift
            )
            x, y, z = program
            self._log[x + self._grid[0] * (y + self._grid[1] * z)].append((region, kind, moved))

    def finish(self, grid: ProgramId) -> Launch:
        """The counts of the launch that has ended."""
        self._open(grid)
        distinct = np.zeros((2, len(self._regions), len(KINDS)), dtype=np.int64)
        for ground in self._grounds:
            for kind, marks in enumerate(ground.seen):
                if marks is not None:
                    for region, nbytes, sectors in _distinct(ground, marks):
                        distinct[:, region, kind] = nbytes, sectors
        tensors = [
            _tensor(region, self._tallies[number], distinct[:, number])
            for number, region in enumerate(self._regions)
        ]
        self._by_program.flags.writeable = False
        return Launch(
            kernel=self._kernel,
            grid=(int(grid[0]), int(grid[1]), int(grid[2])),
            tensors=tuple(tensors),
            idle_operations=self._idle_operations,
            unattributed_masked=self._loose_masked,
            read_by_program=self._by_program[LOAD],
            written_by_program=self._by_program[STORE],
            atomic_by_program=self._by_program[ATOMIC],
        )

    @property
    def log(self) -> list[list[Access]]:
        """Accesses of each program, the first axis of the grid fastest, as hardware starts them."""
        return [] if self._log is None else self._log


def _touch(
    marks: NDArray[np.bool_], offsets: NDArray[np.int64], itemsize: int, shift: int
) -> range | NDArray[np.int64]:
    """Mark the bytes of the elements at `offsets` from the origin, and return their distinct sectors.

    `shift` takes an offset to its mark.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    steps = np.diff(offsets)
    if last - first == itemsize * steps.size and (steps == itemsize).all():
        marks[first + shift : last + itemsize + shift] = True
        return range(first // SECTOR, (last + itemsize - 1) // SECTOR + 1)
    places = offsets + shift
    aligned = not (places % itemsize).any()
    if aligned and itemsize > 1:
        # One mark for the whole element: its bytes are all ones.
        wide = marks.view(f"u{itemsize}")
        wide[places // itemsize] = int.from_bytes(b"\1" * itemsize)
    else:
        for byte in range(itemsize):
            marks[places + byte] = True
    sectors = offsets // SECTOR
    if not aligned:
        sectors = np.concatenate((sectors, (offsets + itemsize - 1) // SECTOR))
        return np.unique(sectors)
    rising = np.diff(sectors)
    if (rising >= 0).all():
        return sectors[np.concatenate(([True], rising > 0))]
    return np.unique(sectors)


def _distinct(ground: _Ground, marks: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Region, distinct bytes and distinct sectors, for each region of the stretch."""
    stretch = ground.stretch
    if stretch.owner is None:
        return [(stretch.regions[0], *_extent(marks))]
    found = []
    for owner, region in enumerate(stretch.regions):
        own = marks.copy()
        own[ground.lead : ground.lead + stretch.owner.size] &= stretch.owner == owner
        found.append((region, *_extent(own)))
    return found


def _extent(marks: NDArray[np.bool_]) -> tuple[int, int]:
    words = marks.view(np.uint64).reshape(-1, SECTOR // 8)
    return int(np.count_nonzero(marks)), int(np.count_nonzero(words.any(axis=1)))


def _tensor(region: Region, tallies: list[_Tally], distinct: NDArray[np.int64]) -> TensorCounts:
    counts = [
        Counts(
            operations=tally.operations,
            lanes=tally.lanes,
            masked=tally.masked,
            bytes=tally.nbytes,
            distinct_bytes=int(distinct[0, kind]),
            sectors=tally.sectors,
            distinct_sectors=int(distinct[1, kind]),
        )
        for kind, tally in enumerate(tallies)
    ]
    return TensorCounts(region.name, region.arguments, region.dtype, region.shape, region.size, *counts)
