"""Softmax of one array by every algorithm and peer: error, bytes, floor, time. The arithmetic of `report`.

The floor is the time this machine's memory needs for the bytes, at bandwidths measured in the same process.
For our algorithms the bytes are those of `traffic.model`, which keeps nothing between passes; where a row
stays in a cache between passes, an algorithm may beat its own floor. For peers, whose passes we don't know,
bytes are not given and the floor is that of any softmax at all: every element read once and written once.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import __version__, cpu, reference
from .extras import require_plots
from .frontends.numpy import softmax
from .streaming import NpyReader, RunResult
from .traffic import machine, model

Array = NDArray[Any]

ALGORITHMS = ("naive", "three_pass", "online", "cached")
DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
SEED = 0
SPREAD = 4.0
MAX_BYTES = 4 << 30
_finfo: Any = ml_dtypes.finfo  # NumPy's, and bfloat16; it carries no types
# Rows compared at a time: the float64 reference of a whole array would be twice its size.
COMPARE_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Line:
    """One contender, times in seconds: `floor_fraction` is floor / time, `copy_fraction` one copy / time.

    `worst_relative_error` is against float64, over results the format holds as normal numbers; None where
    some result is not finite and should be, or the reverse. `bytes_moved` is None for peers.
    """

    name: str
    worst_relative_error: float | None
    bytes_moved: int | None
    floor_seconds: float
    seconds: float
    floor_fraction: float
    copy_fraction: float


@dataclass(frozen=True)
class Report:
    """What was measured, on what, and the rates it is judged by (bytes/s)."""

    source: str
    shape: tuple[int, ...]
    dtype: str
    array_bytes: int
    threads: int
    isa: str
    read_rate: float
    copy_rate: float
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    version: str = __version__

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; seconds, bytes, bytes/s."""
        return asdict(self)


def generate(rows: int, cols: int, dtype: str) -> Array:
    """Normal numbers of standard deviation 4 and a fixed seed, shape (rows, cols).

    Raises ValueError for sizes below 1, more than 4 GiB, or a dtype other than those of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    for name, size in (("rows", rows), ("cols", cols)):
        if size < 1:
            raise ValueError(f"{name}: {size} is less than 1")
    kind = np.dtype(DTYPES[dtype])
    _check_size(rows * cols * kind.itemsize, "rows and cols")
    draw = np.random.default_rng(SEED).standard_normal((rows, cols), np.float32)
    draw *= np.float32(SPREAD)
    return draw.astype(kind, copy=False)


def load(path: str | os.PathLike[str]) -> Array:
    """The array of a .npy file, native and C-contiguous. FileError for a file that can't be used."""
    with NpyReader(path) as reader:
        header = reader.header
        _check_size(header.nbytes, str(path))
        flat = np.empty(header.size, header.dtype)
        reader.read(0, flat)
    array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
    return np.ascontiguousarray(array, header.result_dtype)


def _check_size(nbytes: int, name: str) -> None:
    if nbytes > MAX_BYTES:
        raise ValueError(f"{name}: {nbytes} bytes is more than a report takes ({MAX_BYTES}); give fewer rows")


def _as_torch(array: Array) -> Any:
    """A tensor on the array's memory."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _torch_softmax(x: Array, out: Array) -> Array:
    import torch

    torch.softmax(_as_torch(x), -1, out=_as_torch(out))
    return out


def _scipy_softmax(x: Array, out: Array) -> Array:
    from scipy.special import softmax as scipy_softmax

    return np.asarray(scipy_softmax(x, axis=-1))


def _contenders(dtype: np.dtype[Any], peers: bool) -> dict[str, Callable[[Array, Array], Array]]:
    """Name -> call(x, out): our algorithms, then the peers installed that serve the dtype."""

    def ours(algorithm: str) -> Callable[[Array, Array], Array]:
        return lambda x, out: softmax(x, axis=-1, out=out, algorithm=algorithm)

    calls = {name: ours(name) for name in ALGORITHMS}
    if peers and importlib.util.find_spec("scipy") is not None and dtype != ml_dtypes.bfloat16:
        calls["SciPy"] = _scipy_softmax
    if peers and importlib.util.find_spec("torch") is not None:
        calls["PyTorch"] = _torch_softmax
    return calls


def worst_relative_error(y: Array, exact: Array) -> float | None:
    """max |y - exact| / exact over entries that are normal numbers of y's dtype; None if finiteness differs.

    Below the smallest normal number a format has fewer bits, and a relative error says nothing of a kernel.
    """
    got = y.astype(np.float64)
    if not np.array_equal(np.isfinite(got), np.isfinite(exact)):
        return None
    normal = np.isfinite(exact) & (exact >= float(_finfo(y.dtype).smallest_normal))
    truth = exact[normal]
    return float(np.max(np.abs(got[normal] - truth) / truth, initial=0.0))


def _errors(x: Array, calls: Mapping[str, Callable[[Array, Array], Array]]) -> dict[str, float | None]:
    """Worst relative error of each contender over all rows, some rows at a time."""
    errors: dict[str, float | None] = dict.fromkeys(calls, 0.0)
    step = max(COMPARE_ELEMENTS // x.shape[1], 1)
    for start in range(0, len(x), step):
        part = x[start : start + step]
        exact = reference.softmax(part, axis=-1)
        out = np.empty_like(part)
        for name, call in calls.items():
            # The naive algorithm overflows on large scores, as it is there to show.
            with np.errstate(all="ignore"):
                error, so_far = worst_relative_error(call(part, out), exact), errors[name]
            errors[name] = None if error is None or so_far is None else max(error, so_far)
    return errors


def _notes(x: Array) -> list[str]:
    row, total = x.shape[1] * x.itemsize, x.nbytes
    notes = [
        "bytes count every pass as if nothing were kept between passes; a row kept in a cache between passes "
        "lets an algorithm beat its floor",
    ]
    for level, size in cpu.info().get("caches", {}).items():
        if row <= size:
            notes.append(f"a row ({row} bytes) fits {level} ({size} bytes)")
            break
    for level, size in cpu.info().get("caches", {}).items():
        if 2 * total <= size:
            notes.append(f"the array and its result ({2 * total} bytes) fit {level}, so memory is no limit")
            break
    return notes


def measure(x: Array, source: str, *, peers: bool = True, budget: float = 12.0) -> Report:
    """Softmax over the last axis of `x` by every algorithm and, with `peers`, SciPy and PyTorch if there.

    `x` is a native array of float64, float32, float16 or bfloat16; `source` says where it comes from;
    `budget` is roughly the seconds spent on timing. Raises ValueError for an array without elements.
    """
    if x.size == 0:
        raise ValueError(f"{source}: shape {x.shape} holds no element, so there is nothing to measure")
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1] if x.ndim else 1)
    calls = _contenders(rows.dtype, peers)
    errors = _errors(rows, calls)
    out = cpu.empty(rows.shape, rows.dtype)
    rates = machine.memory()

    def bound(call: Callable[[Array, Array], Array]) -> Callable[[], object]:
        return lambda: call(rows, out)

    with np.errstate(all="ignore"):
        times = machine.interleaved({name: bound(call) for name, call in calls.items()}, budget=budget)
    copy_seconds = rates.floor_seconds(rows.nbytes, rows.nbytes)
    lines = []
    for name in calls:
        moved, floor = None, copy_seconds
        if name in ALGORITHMS:
            traffic = model.traffic("softmax", name, *rows.shape, rows.itemsize)
            moved, floor = traffic.total, rates.floor_seconds(traffic.read, traffic.written)
        seconds = times[name]
        lines.append(Line(name, errors[name], moved, floor, seconds, floor / seconds, copy_seconds / seconds))
    return Report(
        source=source,
        shape=x.shape,
        dtype=str(x.dtype),
        array_bytes=rows.nbytes,
        threads=cpu.default_threads(),
        isa=cpu.default_isa(),
        read_rate=rates.read,
        copy_rate=rates.best_copy,
        lines=tuple(lines),
        notes=tuple(_notes(rows)),
    )


def save_json(report: Report, path: Path) -> None:
    """Write the report as JSON. OSError if the file can't be written."""
    path.write_text(json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def save_plot(report: Report, path: Path) -> None:
    """Write an SVG of times beside their floors. MissingExtra without matplotlib, OSError as open."""
    matplotlib = require_plots()
    from matplotlib.figure import Figure

    title = f"softmax, {report.source}, {report.shape} {report.dtype}, {report.threads} threads"
    figure = Figure(figsize=(7.5, 0.5 * len(report.lines) + 1.6), layout="constrained")
    axes = figure.subplots()
    names = [line.name for line in report.lines]
    axes.barh(names, [1e3 * line.seconds for line in report.lines], color="#7a9cc6", label="measured")
    floors = [1e3 * line.floor_seconds for line in report.lines]
    axes.plot(
        floors, names, "|", color="#222222", markersize=20, markeredgewidth=2, label="floor of its bytes"
    )
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(title, fontsize=10)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    # A fixed salt and no date: the same report gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "online-softmax"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


@dataclass(frozen=True)
class RunVerdict:
    """A streaming run against what the machine could do: `limit` is "disk" or "memory"; rates in bytes/s."""

    limit: str
    fraction: float
    read_rate: float
    write_rate: float


def judge_run(
    result: RunResult, source: Path, target: Path, memory: int = 2 * machine.BUFFER_BYTES
) -> RunVerdict:
    """How close a run came to its disk's rate, or to memory's where the page cache beat the disk.

    Measures the folders of both files with a test of about the run's size, 4 to 64 MiB; the input's folder
    stands in by the output's where it can't be written. Takes no more than `memory` bytes for it. OSError if
    neither can.
    """
    size = min(max(result.bytes_read, result.bytes_written, machine.DISK_PIECE), machine.DISK_BYTES)
    output = machine.disk(target.absolute().parent, nbytes=size)
    try:
        read_rate = machine.disk(source.absolute().parent, nbytes=size).read
    except OSError:
        read_rate = output.read
    floor = machine.DiskRates(read_rate, output.write, size).floor_seconds(
        result.bytes_read, result.bytes_written
    )
    if result.seconds >= floor:
        return RunVerdict("disk", floor / result.seconds, read_rate, output.write)
    rates = machine.memory(nbytes=max(4096, min(machine.BUFFER_BYTES, memory // 2)))
    floor = rates.floor_seconds(result.bytes_read, result.bytes_written)
    return RunVerdict("memory", floor / result.seconds, rates.read, rates.best_copy)
