"""Rates of this machine, and the clock for comparing calls: the only file that times hardware.

Every rate is bytes moved per second; a copy of n bytes moves 2n (n read, n written). Rates are medians of
several passes, kinds interleaved, and are kept for the life of the process: the machine may be shared, and
figures compared with each other should rest on the same measurement.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _core, cpu

# As large as the arrays whose traffic is judged, and far past the caches that help (L2, 1 to 2 MiB a core).
BUFFER_BYTES = 128 << 20
PASSES = 9
KINDS = ("read", "copy", "copy_nt")

DISK_BYTES = 64 << 20
DISK_PIECE = 4 << 20


@dataclass(frozen=True)
class MemoryRates:
    """Bandwidth of memory in bytes/s: `read`, `copy` (ordinary stores), `copy_nt` (non-temporal stores).

    `buffer_bytes` is the size of each buffer, `threads` the number that ran together.
    """

    read: float
    copy: float
    copy_nt: float
    buffer_bytes: int
    threads: int

    @property
    def best_copy(self) -> float:
        """The faster kind of copy, in bytes moved (read and written) per second."""
        return max(self.copy, self.copy_nt)

    def floor_seconds(self, bytes_read: float, bytes_written: float) -> float:
        """Least time to read and write so many bytes of memory: paired bytes are a copy, the rest a read.

        Bytes written beyond those read count at the copy's rate as well.
        """
        paired = min(bytes_read, bytes_written)
        return (bytes_read - paired) / self.read + (bytes_written + paired) / self.best_copy


@dataclass(frozen=True)
class DiskRates:
    """Rates of a folder's file system in bytes/s: `read` past the page cache, `write` up to the flush."""

    read: float
    write: float
    test_bytes: int

    def floor_seconds(self, bytes_read: float, bytes_written: float) -> float:
        """Least time to read and write so many bytes of files, one after the other."""
        return bytes_read / self.read + bytes_written / self.write


@functools.lru_cache(maxsize=8)
def _memory(threads: int, nbytes: int) -> MemoryRates:
    buffers = [_core.buffer(nbytes) for _ in range(2)]
    # Written once, so that every page is there: untouched pages all map to one page of zeros.
    arrays = [np.frombuffer(buffer, np.uint8, nbytes) for buffer in buffers]
    for value, array in enumerate(arrays, 1):
        array.fill(value)
    source, target = (int(array.ctypes.data) for array in arrays)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(PASSES):
        for kind in KINDS:
            seconds[kind].append(_core.probe(kind, source, target, nbytes, threads))
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    return MemoryRates(
        read=nbytes / medians["read"],
        copy=2 * nbytes / medians["copy"],
        copy_nt=2 * nbytes / medians["copy_nt"],
        buffer_bytes=nbytes,
        threads=threads,
    )


def memory(threads: int | None = None, *, nbytes: int = BUFFER_BYTES) -> MemoryRates:
    """Measured bandwidth of memory with `threads` threads (default: as many as the kernels use).

    Takes about a third of a second and two buffers of `nbytes` (4096 or more) the first time, nothing after.
    Raises ValueError for fewer than one thread or too small a buffer.
    """
    threads = cpu.default_threads() if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads: {threads} is less than 1")
    if nbytes < 4096:
        raise ValueError(f"nbytes: {nbytes} is too small a buffer to time; give 4096 or more")
    return _memory(threads, nbytes)


def _write_test(fd: int, nbytes: int, seconds: float) -> tuple[int, float]:
    """Bytes written and flushed, and the seconds it took; a slow disk gets fewer bytes."""
    piece = memoryview(secrets.token_bytes(min(nbytes, DISK_PIECE)))  # not compressible
    start = time.perf_counter()
    done = os.write(fd, piece)
    os.fsync(fd)
    first = max(time.perf_counter() - start, 1e-9)
    wanted = min(nbytes, int(len(piece) / first * seconds))
    while done < wanted:
        done += os.write(fd, piece[: wanted - done])
    os.fsync(fd)
    return done, max(time.perf_counter() - start, 1e-9)


def _read_test(fd: int, nbytes: int) -> float:
    """Seconds to read the file again, its pages dropped from the cache first where that can be asked."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    into, done = bytearray(DISK_PIECE), 0
    start = time.perf_counter()
    while done < nbytes:
        count = os.preadv(fd, [into], done)
        if count == 0:
            raise OSError(f"a test file of {nbytes} bytes ended at {done}")
        done += count
    return max(time.perf_counter() - start, 1e-9)


@functools.lru_cache(maxsize=32)
def _disk(folder: Path, nbytes: int, seconds: float) -> DiskRates:
    name = folder / f".rate.{secrets.token_hex(4)}.partial"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # open but nameless: no end of this process can leave it behind
        written, write_seconds = _write_test(fd, nbytes, seconds)
        read_seconds = _read_test(fd, written)
    finally:
        os.close(fd)
    return DiskRates(read=written / read_seconds, write=written / write_seconds, test_bytes=written)


def disk(folder: str | os.PathLike[str], *, nbytes: int = DISK_BYTES, seconds: float = 1.0) -> DiskRates:
    """Measured rates of the file system of `folder`, by writing and reading back one nameless test file.

    The file has `nbytes` bytes, fewer where writing them would take more than about `seconds`. Raises OSError
    if the folder is missing or can't be written, ValueError for a size or time that is not positive.
    """
    if nbytes < 1:
        raise ValueError(f"nbytes: {nbytes} is not a positive size")
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not a positive time")
    return _disk(Path(os.path.realpath(folder)), nbytes, seconds)


def _sample(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def interleaved(
    calls: Mapping[str, Callable[[], object]], *, budget: float = 10.0, rounds: tuple[int, int] = (5, 41)
) -> dict[str, float]:
    """Median seconds of each call, measured in rounds of all calls so that a busy moment hits them alike.

    As many rounds as fit `budget` seconds, within `rounds` (least, most); the first, which warms caches and
    thread pools, is not counted. Calls under a millisecond are repeated inside a sample. Each round starts
    with another call, so that none always follows the same one.
    """
    names = list(calls)
    first = {name: _sample(calls[name], 1) for name in names}
    repeats = {name: min(max(int(1e-3 / max(first[name], 1e-9)), 1), 1000) for name in names}
    round_seconds = sum(first[name] * repeats[name] for name in names)
    count = min(max(int(budget / max(round_seconds, 1e-9)), rounds[0]), rounds[1])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(count):
        shift = turn % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(_sample(calls[name], repeats[name]))
    return {name: statistics.median(times) for name, times in seconds.items()}
