"""`online-softmax report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .. import report as measuring
from ..extras import require_plots

COLUMNS = ("algorithm", "worst rel. error", "bytes", "floor", "measured", "of floor", "of one copy")


def table(report: measuring.Report) -> Table:
    """The report as a table, a line a contender."""
    result = Table(*COLUMNS, box=SIMPLE_HEAD, pad_edge=False)
    for column in result.columns[1:]:
        column.justify = "right"
    for line in report.lines:
        result.add_row(
            line.name,
            "not finite" if line.worst_relative_error is None else f"{line.worst_relative_error:.2e}",
            "" if line.bytes_moved is None else f"{line.bytes_moved:,}",
            f"{1e3 * line.floor_seconds:.3f} ms",
            f"{1e3 * line.seconds:.3f} ms",
            f"{line.floor_fraction:.2f}",
            f"{line.copy_fraction:.2f}",
        )
    return result


def show(report: measuring.Report) -> None:
    """Print the report; the width does not depend on the terminal, so that a file reads like the screen."""
    shape = " x ".join(map(str, report.shape)) or "scalar"
    print(
        f"softmax over the last axis, {report.source}: {shape} {report.dtype}, {report.array_bytes:,} bytes"
    )
    print(
        f"{report.threads} threads, {report.isa}; memory reads {report.read_rate / 1e9:.1f} GB/s and copies "
        f"{report.copy_rate / 1e9:.1f} GB/s (read + written)"
    )
    Console(width=110, highlight=False).print(table(report))
    for note in report.notes:
        print(f"note: {note}")


def _array(source: Path | None, rows: int | None, cols: int | None, dtype: str | None) -> measuring.Array:
    """The file's array, or a generated one; both together would leave an option unused."""
    if source is None:
        return measuring.generate(
            8192 if rows is None else rows,
            4096 if cols is None else cols,
            "float32" if dtype is None else dtype,
        )
    for name, value in (("--rows", rows), ("--cols", cols), ("--dtype", dtype)):
        if value is not None:
            raise ValueError(f"{name}: belongs to generated data; leave it out or leave out {source}")
    return measuring.load(source)


def command(
    source: Annotated[Path | None, typer.Argument(metavar="[INPUT.npy]", help="Array to measure on.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of generated data (8192).")] = None,
    cols: Annotated[int | None, typer.Option(help="Columns of generated data (4096).")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float64, float32 (default), float16 or bfloat16, for generated data.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table as JSON.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Write a plot (.svg).")] = None,
    peers: Annotated[bool, typer.Option(help="Measure SciPy and PyTorch too, where installed.")] = True,
) -> None:
    """Error, bytes, floor and measured time of softmax by every algorithm, on a file or generated data."""
    if plot_file is not None:
        if plot_file.suffix != ".svg":
            raise ValueError(f"--plot: {plot_file} does not end in .svg, the one format written")
        require_plots()
    for name, path in (("--json", json_file), ("--plot", plot_file)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError(f"{name}: {path} cannot be written: its folder is missing, or it is one")
    x = _array(source, rows, cols, dtype)
    result = measuring.measure(x, "generated data" if source is None else source.name, peers=peers)
    show(result)
    if json_file is not None:
        measuring.save_json(result, json_file)
    if plot_file is not None:
        measuring.save_plot(result, plot_file)
