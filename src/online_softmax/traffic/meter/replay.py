"""The logged accesses of metered launches, run through a model of a cache."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from .operands import SECTOR
from .record import KINDS, STORE, Access, Sectors

#: The cache a replay takes where nothing is said: lines in a set, bytes in a line.
WAYS: Final = 16
LINE: Final = 128


@dataclass(frozen=True)
class Misses:
    """Bytes of one tensor that the cache did not hold when a load, store or atomic update asked for them."""

    name: str
    read: int
    written: int
    atomic: int


@dataclass(frozen=True)
class LaunchMisses:
    """Misses of one launch, tensor by tensor."""

    kernel: str
    tensors: tuple[Misses, ...]

    def __getitem__(self, name: str) -> Misses:
        """The misses of a tensor, by the name it has in the meter's report."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        names = ", ".join(repr(tensor.name) for tensor in self.tensors)
        raise KeyError(f"{name!r} is no tensor of {self.kernel}: {names} would do")


@dataclass(frozen=True)
class Replay:
    """What a replay missed, and the cache it was made with.

    Attributes:
        size, ways, line, sector: of the cache, in bytes (ways: lines a set).
        interleave: programs in flight.
        write_allocate: whether a store that misses takes a place in the cache.
        launches: in the order they ran.
    """

    size: int
    ways: int
    line: int
    sector: int
    interleave: int
    write_allocate: bool
    launches: tuple[LaunchMisses, ...]

    @property
    def read(self) -> int:
        """Bytes of load misses of all launches."""
        return sum(tensor.read for launch in self.launches for tensor in launch.tensors)

    @property
    def written(self) -> int:
        """Bytes of store misses of all launches."""
        return sum(tensor.written for launch in self.launches for tensor in launch.tensors)

    @property
    def atomic(self) -> int:
        """Bytes of misses of atomic updates of all launches."""
        return sum(tensor.atomic for launch in self.launches for tensor in launch.tensors)

    def __getitem__(self, name: str) -> Misses:
        """The misses of a tensor of the one launch. KeyError if there were none or several, or no such."""
        if len(self.launches) != 1:
            raise KeyError(f"{name!r} of {len(self.launches)} launches: launches[i][{name!r}] would do")
        return self.launches[0][name]

    def as_json(self) -> dict[str, Any]:
        """The figures as plain dicts and lists."""
        return {**asdict(self), "read": self.read, "written": self.written, "atomic": self.atomic}


@dataclass(frozen=True)
class LoggedLaunch:
    """The accesses of each program of a launch, and the names of the regions they number."""

    kernel: str
    regions: tuple[str, ...]
    programs: list[list[Access]]


class Cache:
    """Set-associative, least recently used line out first, lines filled sector by sector.

    Sets are chosen by the line's number modulo their count, which need not be a power of two.
    """

    def __init__(self, size: int, ways: int, line: int, sector: int, *, write_allocate: bool) -> None:
        for name, value, unit in (
            ("ways", ways, 1),
            ("sector", sector, SECTOR),
            ("line", line, sector),
            ("size", size, ways * line),
        ):
            if value < 1:
                raise ValueError(f"{name}={value}: at least 1 would do")
            if value % unit:
                raise ValueError(f"{name}={value}: a positive multiple of {unit} would do")
        self._count = size // (ways * line)
        self._ways, self._per_line = ways, line // sector
        self._per_sector = sector // SECTOR
        self._write_allocate = write_allocate
        #: In each set that was used the lines held, oldest use first, with a bit for each sector there.
        self._sets: defaultdict[int, dict[int, int]] = defaultdict(dict)

    def missed(self, kind: int, touched: Sectors) -> int:
        """Sectors of the cache that an operation on these pieces of 32 bytes did not find."""
        fill = kind != STORE or self._write_allocate
        misses = 0
        for sector in self._own(touched):
            line, place = divmod(sector, self._per_line)
            held = self._sets[line % self._count]
            valid = held.pop(line, 0)
            if not valid >> place & 1:
                misses += 1
                if fill:
                    if not valid and len(held) >= self._ways:
                        del held[next(iter(held))]
                    valid |= 1 << place
            if valid:
                held[line] = valid
        return misses

    def _own(self, touched: Sectors) -> Sequence[int]:
        if self._per_sector > 1:
            pieces = np.asarray(touched) // self._per_sector
            touched = np.unique(pieces)
        if isinstance(touched, range):
            return touched
        numbers: list[int] = touched.tolist()
        return numbers


def in_flight(programs: Sequence[Sequence[Access]], interleave: int) -> Iterator[Access]:
    """Accesses in the order of `interleave` programs that take turns, one operation each; the next program
    starts when one ends."""
    waiting = (iter(program) for program in programs)
    running = deque(itertools.islice(waiting, interleave))
    while running:
        program = running.popleft()
        access = next(program, None)
        if access is None:
            running.extend(itertools.islice(waiting, 1))
        else:
            yield access
            running.append(program)


def replay(
    launches: Sequence[LoggedLaunch],
    *,
    size: int,
    ways: int,
    line: int,
    sector: int,
    interleave: int,
    write_allocate: bool,
) -> Replay:
    """Run the launches through one cache that is empty at first. ValueError for a cache that cannot be."""
    if not isinstance(interleave, int) or not 1 <= interleave < 2**31:
        raise ValueError(f"interleave={interleave}: 1 program in flight or more would do")
    cache = Cache(size, ways, line, sector, write_allocate=write_allocate)
    results = []
    for launch in launches:
        misses = [[0] * len(KINDS) for _ in launch.regions]
        for region, kind, touched in in_flight(launch.programs, interleave):
            misses[region][kind] += cache.missed(kind, touched) * sector
        tensors = (Misses(name, *found) for name, found in zip(launch.regions, misses, strict=True))
        results.append(LaunchMisses(launch.kernel, tuple(tensors)))
    return Replay(size, ways, line, sector, interleave, write_allocate, tuple(results))
