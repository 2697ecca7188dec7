"""`online-softmax bytes`."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..extras import require_plots
from ..traffic import compare, devices, kernels, links, model, plot, roofline
from ..traffic.shapes import Rows, States
from ..traffic.units import bytes_text, parse_bytes, parse_rate, parse_seconds, rate_text, seconds_text

ITEMSIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
#: Short names, as kernels and papers have them.
SHORT = {"f64": "float64", "fp64": "float64", "f32": "float32", "fp32": "float32", "f16": "float16"}
SHORT |= {"fp16": "float16", "bf16": "bfloat16", "f8": "float8", "fp8": "float8"}
#: Field of a shape -> the option that gives it.
OPTIONS = {"columns": "cols", "seq_q": "seq"}
#: Sizes of a family's record that an operation of it does not look at.
UNUSED = {
    "attention": {"splits"},
    "attention_backward": {"splits"},
    "decode": {"block_q", "block_k", "causal"},
}
THIS = "this"
TOO_LARGE = 10**30
WIDTH = 150  # whatever the terminal, so that a file reads like the screen


def _shape(op: str, kind: type[Any], itemsize: int, given: dict[str, int | bool | None]) -> Any:
    """The record of sizes of these options. ValueError where one is missing, is beyond all machines, or
    belongs to another operation."""
    unused = UNUSED.get(op, set())
    known = {field.name: field for field in fields(kind) if field.name not in unused}
    sizes = {name: value for name, value in given.items() if value is not None}
    if "seq_q" in sizes and "seq_k" in known and "seq_k" not in sizes:
        sizes["seq_k"] = sizes["seq_q"]
        if op == "decode":
            sizes["seq_q"] = 1
    if "heads" in known:
        sizes.setdefault("heads", 1)
        sizes.setdefault("kv_heads", sizes["heads"])
        sizes.setdefault("batch", 1)
    _refuse({_option(name): value for name, value in sizes.items() if name not in known})
    if "itemsize" in known:
        sizes["itemsize"] = itemsize
    for name, value in sizes.items():
        if value >= TOO_LARGE:
            raise ValueError(f"{_option(name)}: sizes below 10^30 would do")
    missing = [name for name, f in known.items() if f.default is MISSING and name not in sizes]
    if "seq_q" in missing and "seq_k" in missing:
        missing.remove("seq_k")  # one option gives both
    if missing:
        raise ValueError(f"{', '.join(map(_option, missing))}: needed for this operation")
    return kind(**sizes)


def _refuse(options: dict[str, Any]) -> None:
    """ValueError for the first option that was given (is neither None nor False): it would not be applied."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: is of no effect on this operation; leave it out")


def _option(field: str) -> str:
    return "--" + OPTIONS.get(field, field).replace("_", "-")


def _machine(
    device: str | None, dtype: str, bandwidth: str | None, ridge: float | None, llc: str | None
) -> roofline.Machine:
    """The machine asked for: a device, this machine measured, or the rates given."""
    last_level = None if llc is None else parse_bytes(llc, name="--llc")
    if last_level == 0:
        raise ValueError(f"--llc: {llc!r} is no cache; leave it out where there is none")
    if device is None and bandwidth is not None:
        return roofline.given(parse_rate(bandwidth, name="--bandwidth"), ridge, last_level)
    for name, value in (("--bandwidth", bandwidth), ("--ridge", ridge), ("--llc", llc)):
        if value is not None and device is not None:
            raise ValueError(f"{name}: a known device has its own figure; leave it out or leave out --device")
        if value is not None:
            raise ValueError(f"{name}: needs --bandwidth beside it")
    if device is None or device == THIS:
        return kernels.roofline_machine()
    return roofline.of_device(devices.device(device), dtype)


def table(result: compare.Comparison) -> Table:
    """A line an algorithm."""
    rows = any(line.moved.reads is not None for line in result.lines)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("algorithm")
    passes = ("reads", "writes", "traversals") if rows else ("workspace",)
    for heading in (
        *passes,
        "bytes read",
        "written",
        "total",
        "floor",
        f"over {result.baseline}",
        "flop/byte",
    ):
        grid.add_column(heading, justify="right")
    grid.add_column("bound")
    grid.add_column("once each", justify="right")
    grid.add_column("bound")
    for line in result.lines:
        moved = line.moved
        counts = (
            (str(moved.reads), str(moved.writes), str(moved.traversals))
            if rows
            else (bytes_text(moved.workspace, binary=False),)
        )
        grid.add_row(
            moved.algorithm,
            *counts,
            f"{moved.read + moved.allocated:,}",
            f"{moved.written:,}",
            bytes_text(moved.total, binary=False),
            seconds_text(line.floor.seconds),
            f"{line.speedup:.2f}x",
            f"{float(moved.intensity):.4g}",
            line.floor.bound,
            seconds_text(line.once_floor.seconds),
            line.once_floor.bound,
        )
    return grid


def show(result: compare.Comparison) -> None:
    """Print the comparison."""
    console = Console(width=WIDTH, highlight=False)
    sizes = ", ".join(f"{name} {value}" for name, value in result.sizes.items() if value)
    console.print(f"{result.operation}: {sizes}")
    parts = [f"{result.machine.name}: {rate_text(result.machine.bandwidth)}"]
    machine, products = result.machine, any(line.moved.matrix_flops for line in result.lines)
    if machine.ridge is not None:
        parts.append(f"ridge {machine.ridge:.4g} flop/byte")
    if products and machine.matrix_ridge is not None:
        parts.append(f"{machine.matrix_ridge:.4g} in matrix products")
    if machine.last_level:
        parts.append(f"cache {bytes_text(machine.last_level)}")
    console.print(", ".join(parts))
    if result.regime is not None:
        console.print(
            f"row {bytes_text(result.regime.row_bytes)}, tensor {bytes_text(result.regime.tensor_bytes)}: "
            f"{result.regime.name}"
        )
    console.print(table(result))
    for remark in result.remarks:
        console.print(f"note: {remark}")


def show_schedules(result: links.Schedules) -> None:
    """Print the schedules of an operation over a link."""
    console = Console(width=WIDTH, highlight=False)
    sizes = ", ".join(f"{name} {value}" for name, value in result.sizes.items())
    console.print(f"{result.operation}: {sizes}")
    console.print(
        f"link {rate_text(result.bandwidth)} a direction, "
        + (f"latency {seconds_text(result.latency)} a step" if result.latency else "no latency (--latency)")
    )
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("schedule")
    for heading in ("steps", "bytes sent by a process", "workspace bytes", "time"):
        grid.add_column(heading, justify="right")
    for line in result.lines:
        grid.add_row(
            line.algorithm,
            str(line.steps),
            f"{math.ceil(line.sent):,}",
            f"{math.ceil(line.workspace):,}",
            seconds_text(result.seconds(line)),
        )
    console.print(grid)


def _link(device: str | None, link: str | None, latency: str | None) -> tuple[float, float]:
    """Rate and latency of the link: given, or the device's."""
    known = devices.device(device) if device is not None and device != THIS else None
    seconds = None if latency is None else parse_seconds(latency, name="--latency")
    if seconds is None:
        seconds = known.link_latency if known is not None and known.link_latency is not None else 0.0
    if link is not None:
        return parse_rate(link, name="--link"), seconds
    if known is None or known.link_bandwidth is None:
        raise ValueError("--link: needed for this operation, as 450GB/s, or a --device whose link is known")
    return float(known.link_bandwidth), seconds


def _itemsize(dtype: str | None) -> int:
    if dtype is not None and dtype not in ITEMSIZES:
        raise ValueError(f"--dtype: {dtype!r} is not one of {', '.join(ITEMSIZES)}")
    return ITEMSIZES[dtype or "float32"]


def _refuse_without_cache(resident_rows: int | None) -> None:
    if resident_rows is not None:
        raise ValueError("--resident-rows: is of no effect where no cache is known: give --llc beside it")


def _check_applied(op: str, shape: Any, options: dict[str, Any]) -> None:
    """ValueError for an option this operation does not look at, and for the one top-k cannot do without."""
    if op != "attention":
        _refuse({"--onchip": options["--onchip"]})
    if not isinstance(shape, Rows):
        _refuse({"--resident-rows": options["--resident-rows"]})
    if isinstance(shape, States):
        _refuse({"--dtype": options["--dtype"]})
    if op != "softmax_topk":
        _refuse({"--k": options["--k"]})
    elif options["--k"] is None:
        raise ValueError("--k: needed for this operation")


def _check_files(json_file: Path | None, plot_file: Path | None) -> None:
    if json_file is not None and plot_file is not None and json_file.absolute() == plot_file.absolute():
        raise ValueError(f"--plot: {plot_file} is given to --json too; one of them would be lost")
    if plot_file is not None:
        if plot_file.suffix not in plot.SUFFIXES:
            raise ValueError(f"--plot: {plot_file} does not end in {' or '.join(plot.SUFFIXES)}")
        require_plots()
    for name, path in (("--json", json_file), ("--plot", plot_file)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError(f"{name}: {path} cannot be written: its folder is missing, or it is one")


def _size(text: str) -> Any:
    return typer.Option(show_default=False, help=text)


Size = int | None


def command(
    op: Annotated[
        str,
        typer.Option(help="softmax, attention, decode, linear_cross_entropy ...; a wrong name lists all."),
    ] = "softmax",
    dtype: Annotated[
        str | None, typer.Option(help="float64, float32 (default), float16, bfloat16 or float8.")
    ] = None,
    rows: Annotated[Size, _size("Rows: tokens, or whatever is normalised one by one.")] = None,
    cols: Annotated[Size, _size("Columns of a row; of all ranks together for vocabulary_parallel.")] = None,
    k: Annotated[Size, _size("Entries a row of softmax_topk.")] = None,
    tokens: Annotated[Size, _size("linear_cross_entropy: rows of hidden.")] = None,
    hidden: Annotated[Size, _size("linear_cross_entropy: columns of hidden.")] = None,
    vocab: Annotated[Size, _size("linear_cross_entropy: rows of weight.")] = None,
    block_tokens: Annotated[Size, _size("Rows of a tile of logits (128).")] = None,
    block_vocab: Annotated[Size, _size("Columns of a tile of logits (256).")] = None,
    batch: Annotated[Size, _size("Sequences (1).")] = None,
    heads: Annotated[Size, _size("Query heads (1).")] = None,
    kv_heads: Annotated[Size, _size("Key-value heads (as many as query heads).")] = None,
    seq: Annotated[Size, _size("Queries, and keys too without --seq-k; of decode the keys alone.")] = None,
    seq_k: Annotated[Size, _size("Keys.")] = None,
    head_dim: Annotated[Size, _size("Size of a head.")] = None,
    block_q: Annotated[Size, _size("Queries of a tile of scores (128).")] = None,
    block_k: Annotated[Size, _size("Keys of a tile of scores (64).")] = None,
    splits: Annotated[Size, _size("decode: parts the keys are cut into (1).")] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Attention to keys up to the query's place.")
    ] = False,
    parts: Annotated[Size, _size("merge: partial states of a row.")] = None,
    values: Annotated[Size, _size("merge: numbers of an output beside m and s (0).")] = None,
    ranks: Annotated[Size, _size("Processes that share columns, or keys.")] = None,
    onchip: Annotated[
        str | None, typer.Option(help="On-chip memory of a block, for attention's bound.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Memory bandwidth, as 2.0TB/s.")] = None,
    ridge: Annotated[float | None, typer.Option(help="Ridge, flop/byte.")] = None,
    llc: Annotated[str | None, typer.Option(help="Last-level cache, as 256MB.")] = None,
    resident_rows: Annotated[int | None, typer.Option(help="Rows in flight at once (all).")] = None,
    device: Annotated[
        str | None, typer.Option(help="h100, h200, b200, a100, mi300x ...; this: measured.")
    ] = None,
    link: Annotated[str | None, typer.Option(help="Rate of a link, one direction, as 450GB/s.")] = None,
    latency: Annotated[str | None, typer.Option(help="Latency of a step over the link, as 5us.")] = None,
    write_allocate: Annotated[
        bool, typer.Option("--write-allocate", help="Count the read of each written line.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw it (.svg, .png).")] = None,
) -> None:
    """Bytes, floors, speed-ups, intensity and regime of an operation by every algorithm, on any machine."""
    dtype = None if dtype is None else SHORT.get(dtype.lower(), dtype.lower())
    device = None if device is None else device.lower()
    itemsize = _itemsize(dtype)
    _check_files(json_file, plot_file)
    sizes: dict[str, int | bool | None] = {
        "rows": rows, "columns": cols, "k": k, "tokens": tokens, "hidden": hidden, "vocab": vocab,
        "block_tokens": block_tokens, "block_vocab": block_vocab, "batch": batch, "heads": heads,
        "kv_heads": kv_heads, "seq_q": seq, "seq_k": seq_k, "head_dim": head_dim, "block_q": block_q,
        "block_k": block_k, "splits": splits, "causal": causal or None, "parts": parts, "values": values,
        "ranks": ranks,
    }  # fmt: skip
    machine = {"--bandwidth": bandwidth, "--ridge": ridge, "--llc": llc}
    more = {"--onchip": onchip, "--resident-rows": resident_rows, "--write-allocate": write_allocate}
    result: compare.Comparison | links.Schedules
    if op in links.OPERATIONS:
        _refuse(machine | more | {"--plot": plot_file})
        shape = _shape(op, links.OPERATIONS[op][0], itemsize, sizes)
        result = links.compare(op, shape, *_link(device, link, latency))
        show_schedules(result)
    elif op in model.OPERATIONS:
        _refuse({"--link": link, "--latency": latency})
        shape = _shape(op, model.shape_of(op), itemsize, sizes)
        _check_applied(op, shape, {"--dtype": dtype, "--k": k, **more})
        chosen = _machine(device, dtype or "float32", bandwidth, ridge, llc)
        if chosen.last_level is None:
            _refuse_without_cache(resident_rows)
        elements = None if onchip is None else parse_bytes(onchip, name="--onchip") // itemsize
        result = compare.compare(
            op, shape, chosen, write_allocate=write_allocate, resident_rows=resident_rows, onchip=elements
        )
        show(result)
        if plot_file is not None:
            plot.save(result, shape, plot_file)
    else:
        known = ", ".join(map(repr, (*model.OPERATIONS, *links.OPERATIONS)))
        raise ValueError(f"--op: {op!r} is unknown: one of {known} would do")
    if json_file is not None:
        json_file.write_text(json.dumps(result.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
