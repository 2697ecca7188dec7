"""What a meter counted: records, totals, comparisons. All figures are whole numbers, bytes where not said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

#: Head of `MeterReport.rows`: bytes, but for the ratios to the tensor's size, sectors, lanes and operations.
COLUMNS: Final = (
    "tensor",
    "size",
    "read",
    "/ size",
    "distinct read",
    "written",
    "/ size",
    "distinct written",
    "atomic",
    "sectors",
    "masked",
    "operations",
)


class Modelled(Protocol):
    """What a launch is compared with: bytes read and written, as `traffic.model.Traffic` has them."""

    @property
    def read(self) -> int: ...

    @property
    def written(self) -> int: ...


@dataclass(frozen=True)
class Counts:
    """The loads, the stores or the atomic updates of one tensor.

    Attributes:
        operations: load, store or atomic operations of a program that had an active lane here.
        lanes: active lanes.
        masked: lanes masked off, of operations whose active lanes all lay in this tensor.
        bytes: asked for, each time they were.
        distinct_bytes: asked for at least once in the launch.
        sectors: of 32 bytes, distinct within an operation, summed over operations.
        distinct_sectors: distinct in the launch.
    """

    operations: int = 0
    lanes: int = 0
    masked: int = 0
    bytes: int = 0
    distinct_bytes: int = 0
    sectors: int = 0
    distinct_sectors: int = 0


@dataclass(frozen=True)
class TensorCounts:
    """One tensor argument, or the bytes that several share ("x = out").

    Attributes:
        name: the kernel's parameter, or several joined.
        arguments: each parameter.
        dtype, shape: of the first of them.
        size: bytes from the first element to the last, or of the shared part.
        loads, stores, atomics: an atomic update is neither a load nor a store.
    """

    name: str
    arguments: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    size: int
    loads: Counts
    stores: Counts
    atomics: Counts

    @property
    def read_bytes(self) -> int:
        """Bytes loaded, each time they were."""
        return self.loads.bytes

    @property
    def written_bytes(self) -> int:
        """Bytes stored, each time they were."""
        return self.stores.bytes

    @property
    def atomic_bytes(self) -> int:
        """Bytes updated by atomic operations, each time they were."""
        return self.atomics.bytes


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: its name.
        grid: programs along each of three axes.
        tensors: in the order of the parameters.
        idle_operations: operations without an active lane; no address says whose they are.
        unattributed_masked: lanes masked off in them, and in operations that touch several tensors.
        read_by_program, written_by_program, atomic_by_program: bytes of each program, int64 of the grid's
            shape.
    """

    kernel: str
    grid: tuple[int, int, int]
    tensors: tuple[TensorCounts, ...]
    idle_operations: int
    unattributed_masked: int
    read_by_program: NDArray[np.int64] = field(repr=False)
    written_by_program: NDArray[np.int64] = field(repr=False)
    atomic_by_program: NDArray[np.int64] = field(repr=False)

    @property
    def read(self) -> int:
        """Bytes loaded from all tensors."""
        return sum(tensor.loads.bytes for tensor in self.tensors)

    @property
    def written(self) -> int:
        """Bytes stored to all tensors."""
        return sum(tensor.stores.bytes for tensor in self.tensors)

    @property
    def atomic(self) -> int:
        """Bytes updated by atomic operations in all tensors."""
        return sum(tensor.atomics.bytes for tensor in self.tensors)

    def __getitem__(self, name: str) -> TensorCounts:
        """The counts of a parameter, by its name or the joint one.

        KeyError, saying which names there are, for any other, and for a parameter that shares only some of
        its bytes: its parts are in `tensors`.
        """
        found = [tensor for tensor in self.tensors if name in (tensor.name, *tensor.arguments)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(repr(tensor.name) for tensor in self.tensors)
        if found:
            raise KeyError(f"{name!r} of {self.kernel} lies in several parts: look in tensors for {names}")
        raise KeyError(f"{name!r} is no tensor of {self.kernel}: {names} would do")

    def as_json(self, *, programs: bool = False) -> dict[str, Any]:
        """The figures as plain dicts and lists; `programs` adds those of each program."""
        result: dict[str, Any] = {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "read": self.read,
            "written": self.written,
            "atomic": self.atomic,
            "idle_operations": self.idle_operations,
            "unattributed_masked": self.unattributed_masked,
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }
        if programs:
            for name in ("read_by_program", "written_by_program", "atomic_by_program"):
                result[name] = getattr(self, name).tolist()
        return result


@dataclass(frozen=True)
class Comparison:
    """Measured less modelled bytes."""

    read: int
    written: int
    modelled_read: int
    modelled_written: int

    @property
    def exact(self) -> bool:
        """Whether the kernel moves what the model says, to the byte."""
        return self.read == 0 == self.written

    def __str__(self) -> str:
        if self.exact:
            return f"equal to the model: read {self.modelled_read:,}, written {self.modelled_written:,} bytes"
        return (
            f"read {self.modelled_read + self.read:,} bytes, {self.read:+,} to the model's "
            f"{self.modelled_read:,}; written {self.modelled_written + self.written:,}, {self.written:+,} to "
            f"the model's {self.modelled_written:,}"
        )


@dataclass(frozen=True, eq=False)
class MeterReport:
    """All launches that a meter saw, in order."""

    launches: tuple[Launch, ...]

    @property
    def read(self) -> int:
        """Bytes loaded by all launches."""
        return sum(launch.read for launch in self.launches)

    @property
    def written(self) -> int:
        """Bytes stored by all launches."""
        return sum(launch.written for launch in self.launches)

    @property
    def atomic(self) -> int:
        """Bytes updated by atomic operations of all launches."""
        return sum(launch.atomic for launch in self.launches)

    def __getitem__(self, name: str) -> TensorCounts:
        """The counts of a parameter of the one launch. KeyError if there were none or several, or no such."""
        if len(self.launches) != 1:
            raise KeyError(
                f"{name!r} of {len(self.launches)} launches: report.launches[i][{name!r}] would do"
            )
        return self.launches[0][name]

    def against(self, model: Modelled) -> Comparison:
        """The difference to a model's bytes. Atomic updates are on neither side."""
        return Comparison(self.read - model.read, self.written - model.written, model.read, model.written)

    def assert_bytes(
        self,
        *,
        read: int | Mapping[str, int] | None = None,
        written: int | Mapping[str, int] | None = None,
        atomic: int | Mapping[str, int] | None = None,
    ) -> None:
        """Raise AssertionError, tensor by tensor, unless the bytes are as given.

        A number is the total of all launches; a mapping goes by parameter, or by a name in `Launch.tensors`,
        and needs one launch. A kind left out is not checked; a tensor left out of a mapping has to have 0.
        """
        wrong = [
            line
            for kind, wanted in (("read", read), ("written", written), ("atomic", atomic))
            if wanted is not None
            for line in self._differences(kind, wanted)
        ]
        if wrong:
            raise AssertionError("\n".join(wrong))

    def _differences(self, kind: str, wanted: int | Mapping[str, int]) -> list[str]:
        if isinstance(wanted, int):
            got = int(getattr(self, kind))
            parts = ", ".join(
                f"{tensor.name} {getattr(tensor, f'{kind}_bytes'):,}"
                for launch in self.launches
                for tensor in launch.tensors
            )
            return [] if got == wanted else [_line("all", kind, got, wanted) + f" ({parts})"]
        found = {t.name: int(getattr(t, f"{kind}_bytes")) for launch in self.launches for t in launch.tensors}
        due = {name if name in found else self[name].name: nbytes for name, nbytes in wanted.items()}
        return [
            _line(name, kind, got, due.get(name, 0)) for name, got in found.items() if got != due.get(name, 0)
        ]

    def rows(self) -> list[tuple[str, ...]]:
        """A row of `COLUMNS` for each tensor of each launch, as text."""
        return [_row(tensor) for launch in self.launches for tensor in launch.tensors]

    def __str__(self) -> str:
        """The table of `rows`, in columns."""
        lines = [COLUMNS, *self.rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        return "\n".join(
            "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
        )

    def as_json(self, *, programs: bool = False) -> dict[str, Any]:
        """The figures as plain dicts and lists; `programs` adds those of each program."""
        return {
            "read": self.read,
            "written": self.written,
            "atomic": self.atomic,
            "launches": [launch.as_json(programs=programs) for launch in self.launches],
        }


def _line(name: str, kind: str, got: int, wanted: int) -> str:
    return f"{name}: {kind} {got:,} bytes, expected {wanted:,} ({got - wanted:+,})"


def _row(tensor: TensorCounts) -> tuple[str, ...]:
    parts = (tensor.loads, tensor.stores, tensor.atomics)

    def share(nbytes: int) -> str:
        return f"{nbytes / tensor.size:.4f}" if tensor.size else ""

    return (
        tensor.name,
        f"{tensor.size:,}",
        f"{tensor.loads.bytes:,}",
        share(tensor.loads.bytes),
        f"{tensor.loads.distinct_bytes:,}",
        f"{tensor.stores.bytes:,}",
        share(tensor.stores.bytes),
        f"{tensor.stores.distinct_bytes:,}",
        f"{tensor.atomics.bytes:,}",
        f"{sum(part.sectors for part in parts):,}",
        f"{sum(part.masked for part in parts):,}",
        f"{sum(part.operations for part in parts):,}",
    )
