"""`online-softmax run`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .. import cpu, streaming
from ..report import judge_run
from ..traffic.units import parse_bytes

Array = NDArray[Any]


class Operation(StrEnum):
    """The operations of `run`."""

    softmax = "softmax"
    log_softmax = "log_softmax"
    logsumexp = "logsumexp"


def kernels(operation: Operation) -> streaming.Kernels:
    """The native core's arithmetic for one operation, in the form streaming takes."""
    log = operation is Operation.log_softmax

    def state(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        m, s = cpu.state(x, axes, wide=True)
        return m, s

    def write(x: Array, m: Array, s: Array, out: Array, axes: tuple[int, ...]) -> None:
        cpu.normalize(x, m, s, out, axes, log=log)

    def rows(x: Array, out: Array, axes: tuple[int, ...]) -> None:
        cpu.softmax(x, out, axes, log=log)

    def sums(x: Array, out: Array, axes: tuple[int, ...]) -> None:
        with np.errstate(over="ignore"):  # a float16 lse past 65504 is inf, as in memory
            out[...] = cpu.logsumexp(x, axes)[0]

    if operation is Operation.logsumexp:
        return streaming.Kernels(state, None, sums)
    return streaming.Kernels(state, write, rows)


def _run(source: Path, target: Path, operation: Operation, axis: int, memory: int) -> streaming.RunResult:
    """The run itself, with a progress bar if stderr is a terminal."""
    amounts = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts)
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(operation.value, total=None)

        def planned(nbytes: int) -> None:
            bar.update(task, total=nbytes)

        def moved(read: int, written: int) -> None:
            bar.advance(task, read + written)

        return streaming.run(
            source,
            target,
            operation=operation.value,
            kernels=kernels(operation),
            axis=axis,
            memory=memory,
            progress=moved,
            on_plan=planned,
        )


def last_line(result: streaming.RunResult, source: Path, target: Path, memory: int) -> str:
    """Bytes read, bytes written, seconds, and the fraction of the measured rate."""
    done = f"read {result.bytes_read:,} bytes, wrote {result.bytes_written:,} bytes in {result.seconds:.3f} s"
    try:
        verdict = judge_run(result, source, target, memory)
    except OSError as error:
        return f"{done}; this disk's rate could not be measured: {error.strerror}"
    if verdict.limit == "disk":
        rates = f"read {verdict.read_rate / 1e9:.2f} GB/s, write {verdict.write_rate / 1e9:.2f} GB/s"
        return f"{done}: {verdict.fraction:.2f} of this disk's measured rate ({rates})"
    rates = f"read {verdict.read_rate / 1e9:.1f} GB/s, copy {verdict.write_rate / 1e9:.1f} GB/s"
    return f"{done}: from the page cache, {verdict.fraction:.2f} of memory's measured rate ({rates})"


def command(
    source: Annotated[Path, typer.Argument(metavar="INPUT.npy", help="Array of floats, integers or bool.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .npy file to write.")],
    op: Annotated[Operation, typer.Option(help="What to compute.")] = Operation.softmax,
    axis: Annotated[int, typer.Option(help="The axis to reduce over.")] = -1,
    memory: Annotated[str, typer.Option(help="Most memory for buffers, as 512MB or 1GiB.")] = "1GiB",
) -> None:
    """Apply an operation to a .npy file of any size, rows longer than the memory included.

    A row that fits the memory is read once; a longer one is read for its statistics and read again to be
    written. The output appears under its name only when it is complete, and takes the place of a file of
    that name. Buffers of a few kilobytes make it slow: many small reads. The last line compares the time with
    what this disk, or memory where the files were in the page cache, was measured to do just then.

    Environment: ONLINE_SOFTMAX_ISA, ONLINE_SOFTMAX_THREADS.
    """
    budget = parse_bytes(memory, name="--memory")
    result = _run(source, output, op, axis, budget)
    shape = " x ".join(map(str, result.output_shape)) or "scalar"
    print(
        f"{op.value} of {source.name} over axis {result.axis}: {output.name}, {shape} {result.output_dtype}"
    )
    print(last_line(result, source, output, budget))
