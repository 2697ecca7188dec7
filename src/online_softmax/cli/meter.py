"""`online-softmax meter`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..traffic.meter import LINE, WAYS, Launch, MeterReport, Replay
from ..traffic.meter.report import COLUMNS
from ..traffic.meter.run import run
from ..traffic.units import parse_bytes

REPLAY_COLUMNS = ("tensor", "read misses", "written misses", "atomic misses")
#: The width does not depend on the terminal, so that a file reads like the screen.
WIDTH = 160


def _table(columns: tuple[str, ...]) -> Table:
    result = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in result.columns[1:]:
        column.justify = "right"
    return result


def show(report: MeterReport) -> None:
    """Print the counts, a line a tensor; all in bytes but for sectors, masked lanes and operations."""
    for launch in report.launches:
        print(describe(launch))
    table = _table(COLUMNS)
    for row in report.rows():
        table.add_row(*row)
    Console(width=WIDTH, highlight=False).print(table)


def describe(launch: Launch) -> str:
    """One line on a launch: its size, and what its programs read and write."""
    grid = " x ".join(map(str, launch.grid))
    read, written = launch.read_by_program, launch.written_by_program
    return (
        f"{launch.kernel}, {grid} programs: read {launch.read:,} bytes, {read.min():,} to {read.max():,} a "
        f"program; wrote {launch.written:,} bytes, {written.min():,} to {written.max():,} a program"
    )


def show_replay(replay: Replay) -> None:
    """Print what a cache of this size would have missed, in bytes."""
    print(
        f"cache of {replay.size:,} bytes, {replay.ways} ways, lines of {replay.line} bytes, "
        f"{replay.interleave} in flight: missed {replay.read:,} bytes read, {replay.written:,} written"
    )
    table = _table(REPLAY_COLUMNS)
    for launch in replay.launches:
        for tensor in launch.tensors:
            table.add_row(tensor.name, f"{tensor.read:,}", f"{tensor.written:,}", f"{tensor.atomic:,}")
    Console(width=WIDTH, highlight=False).print(table)


def command(
    kernel: Annotated[str, typer.Argument(metavar="MODULE_OR_FILE:KERNEL", help="The @triton.jit function.")],
    grid: Annotated[str, typer.Option(help="Programs along one to three axes, as 64 or 8,4.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter: x=f32[64,4096] (normal numbers), i64[64]:4096 (integers below 4096), n=4096."
        ),
    ] = None,
    constexpr: Annotated[list[str] | None, typer.Option(help="A tl.constexpr, as BLOCK=1024.")] = None,
    cache: Annotated[str | None, typer.Option(help="Replay through a cache of this size, as 256KiB.")] = None,
    ways: Annotated[int | None, typer.Option(min=1, help="Lines in a set of the cache (16).")] = None,
    line: Annotated[int | None, typer.Option(min=1, help="Bytes in a line of the cache (128).")] = None,
    interleave: Annotated[int | None, typer.Option(min=1, help="Programs in flight (1).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tensors' values.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON.")] = None,
) -> None:
    """Run a Triton kernel under its interpreter and count the bytes it reads and writes, tensor by tensor.

    Formats: f64, f32, f16, bf16, i64, i32, i16, i8, u8, i1. Needs triton and torch, and no GPU; use blocks of
    1024 elements or more, as a step of the interpreter costs milliseconds whatever the block's size.
    """
    for name, value in (("ways", ways), ("line", line), ("interleave", interleave)):
        if value is not None and cache is None:
            raise ValueError(f"--{name}: belongs to a replay; add --cache, as --cache 256KiB")
    size = None if cache is None else parse_bytes(cache, name="--cache")
    piece = (ways or WAYS) * (line or LINE)
    if size is not None and (size == 0 or size % piece):
        raise ValueError(f"--cache: {size} bytes; a positive multiple of {piece}, ways times line, would do")
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise ValueError(f"--json: {json_file} cannot be written: its folder is missing, or it is one")
    meter = run(
        kernel, grid=grid, arguments=arg or (), constexprs=constexpr or (), seed=seed, log=cache is not None
    )
    show(meter.report)
    replay = None
    if size is not None:
        replay = meter.replay(size, ways=ways or WAYS, line=line or LINE, interleave=interleave or 1)
        show_replay(replay)
    if json_file is not None:
        figures = meter.report.as_json() | ({"replay": replay.as_json()} if replay else {})
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
