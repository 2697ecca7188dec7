"""The meter: a context in which launches of interpreted kernels are counted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import replay as replaying
from .hook import Access, listening
from .operands import SECTOR, AddressSpace, operands
from .record import OutOfBounds, ProgramId, Recorder
from .report import Launch, MeterReport, TensorCounts


class Meter:
    """Counts the memory accesses of Triton kernels run under Triton's interpreter, on the CPU.

        with Meter() as m:
            kernel[grid](x, out, n, BLOCK=1024)
        m["x"].read_bytes

    Every launch inside the block counts, tensor argument by tensor argument, at about the interpreter's own
    speed; memory: up to three bytes for each byte of the tensors while a launch runs.

    Args:
        log: keep each access for `replay`; memory grows with the number of accesses, and tensors that were
            metered live as long as the meter.
        tensors: more tensors, by a name of your own, that kernels reach through addresses held in memory.

    Raises while it counts:
        OutOfBounds: an active lane lies outside every tensor argument; raised before memory is touched.
        ValueError: a launch without a tensor.
        RuntimeError: a kernel defined without TRITON_INTERPRET=1; a meter is active already, in any thread.
        MissingExtra: Triton is not installed.
    """

    def __init__(self, *, log: bool = False, tensors: Mapping[str, Any] | None = None) -> None:
        self._wants_log = log
        self._more = dict(tensors or {})
        self._launches: list[Launch] = []
        self._logged: list[replaying.LoggedLaunch] = []
        self._recorder: Recorder | None = None
        self._fault: OutOfBounds | None = None
        self._space = AddressSpace()
        self._kept: list[Any] = []
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Meter:
        stack = contextlib.ExitStack()
        stack.enter_context(listening(self))
        self._stack = stack
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def begin(self, kernel: str, arguments: dict[str, Any]) -> Access:
        """For the hook: a launch begins."""
        found = operands(arguments)
        if not found:
            raise ValueError(f"kernel {kernel!r} takes no tensors: there is no traffic to count")
        clashing = self._more.keys() & arguments.keys()
        if clashing:
            raise ValueError(
                f"tensors: {min(clashing)!r} is a parameter of {kernel!r}; another name would do"
            )
        # Memory that is freed and given out again would look like the same tensor to a replay.
        if self._wants_log:
            self._kept.append(arguments)
        self._fault = None
        self._recorder = Recorder(
            kernel, found + operands(self._more), log=self._wants_log, space=self._space
        )
        return self._access

    def _access(
        self, kind: int, pointers: Any, mask: Any, itemsize: int, program: ProgramId, grid: ProgramId
    ) -> None:
        assert self._recorder is not None
        try:
            self._recorder.access(kind, pointers, mask, itemsize, program, grid)
        except OutOfBounds as fault:
            self._fault = fault
            raise

    def end(self, grid: ProgramId) -> None:
        """For the hook: the launch has ended well."""
        assert self._recorder is not None
        launch = self._recorder.finish(grid)
        self._launches.append(launch)
        if self._wants_log:
            names = tuple(tensor.name for tensor in launch.tensors)
            self._logged.append(replaying.LoggedLaunch(launch.kernel, names, self._recorder.log))
        self._recorder = None

    def failed(self) -> OutOfBounds | None:
        """For the hook: the launch has failed, and is not counted."""
        self._recorder = None
        return self._fault

    @property
    def report(self) -> MeterReport:
        """What has been counted so far. Launches that failed are left out."""
        return MeterReport(tuple(self._launches))

    def __getitem__(self, name: str) -> TensorCounts:
        """The counts of a parameter of the one launch."""
        return self.report[name]

    def assert_bytes(
        self,
        *,
        read: int | Mapping[str, int] | None = None,
        written: int | Mapping[str, int] | None = None,
        atomic: int | Mapping[str, int] | None = None,
    ) -> None:
        """`MeterReport.assert_bytes` of the report so far."""
        self.report.assert_bytes(read=read, written=written, atomic=atomic)

    def replay(
        self,
        size: int,
        *,
        ways: int = replaying.WAYS,
        line: int = replaying.LINE,
        sector: int = SECTOR,
        interleave: int = 1,
        write_allocate: bool = True,
    ) -> replaying.Replay:
        """Run the launches so far, in order, through one cache of `size` bytes that is empty at first.

        Programs start in the order of their ids, the first axis fastest, and `interleave` of them are in
        flight: they take turns, one access operation each. Storages lie one after another, at multiples of
        512 bytes.

        Args:
            size: bytes; a multiple of ways * line.
            ways: lines in a set; the one used longest ago makes room.
            line, sector: bytes that share a tag, and that are fetched together. For a CPU both are 64.
            write_allocate: a store that misses takes a place in the cache. Otherwise it goes past it, as
                non-temporal stores do. It is counted as a miss either way; on a CPU that allocates, a miss is
                also a read of as many bytes.

        Cost: about half a microsecond a sector. Raises ValueError without `Meter(log=True)`, and for a cache
        that cannot be.
        """
        if not self._wants_log:
            raise ValueError("log: a replay needs the accesses, which Meter(log=True) keeps")
        return replaying.replay(
            self._logged,
            size=size,
            ways=ways,
            line=line,
            sector=sector,
            interleave=interleave,
            write_allocate=write_allocate,
        )
