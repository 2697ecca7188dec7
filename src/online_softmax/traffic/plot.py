"""A comparison as a picture: the roofline with the algorithms on it, and time against the length of a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..extras import require_plots
from . import cache, model
from .compare import Comparison
from .roofline import Machine, floor
from .shapes import Attention, Rows, Shape

SUFFIXES: Final = (".svg", ".png")
_COLORS: Final = ("#b3564b", "#c9913f", "#4f7cac", "#3f8f6b", "#7d5ba6")
_MARKERS: Final = ("o", "s", "^", "D", "v")
# Points of the curve a doubling of the length.
_PER_DOUBLING: Final = 2


def save(result: Comparison, shape: Shape, path: Path) -> None:
    """Draw the comparison into an SVG or PNG file.

    Left, the roofline: flop/s against flop/byte, a mark an algorithm. Right, where the operation has rows or
    a
    sequence, the floor against its length with everything else as it is, and where the regime changes.

    Raises MissingExtra without matplotlib, ValueError for another suffix, OSError as open.
    """
    matplotlib = require_plots()
    from matplotlib.figure import Figure

    if path.suffix not in SUFFIXES:
        raise ValueError(f"path={path}: a name that ends in {' or '.join(SUFFIXES)} would do")
    varied = shape if isinstance(shape, Rows | Attention) else None
    figure = Figure(figsize=(6.2 if varied is None else 12.0, 4.6), layout="constrained")
    axes = figure.subplots(1, 1 if varied is None else 2, squeeze=False)[0]
    _draw_roofline(axes[0], result)
    if varied is not None:
        _draw_lengths(axes[1], result, varied)
    # A fixed salt and no date: the same comparison gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "online-softmax"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, format=path.suffix[1:], metadata=metadata, dpi=150)


def _style(index: int) -> dict[str, str]:
    return {"color": _COLORS[index % len(_COLORS)], "marker": _MARKERS[index % len(_MARKERS)]}


def _peak(machine: Machine, result: Comparison) -> tuple[float | None, str]:
    """The roof: the matrix units' where there are matrix products, else the plain one."""
    if any(line.moved.matrix_flops for line in result.lines) and machine.matrix_peak:
        return machine.matrix_peak, "matrix peak"
    return machine.vector_peak, "peak"


def _draw_roofline(axes: Any, result: Comparison) -> None:
    machine = result.machine
    peak, name = _peak(machine, result)
    points = [float(line.moved.intensity) for line in result.lines if line.moved.flops] or [1.0]
    right = max(*points, *points, peak / machine.bandwidth if peak else 0.0) * 8
    x = np.geomspace(min(points) / 8, right, 200)
    roof = x * machine.bandwidth
    axes.loglog(x, np.minimum(roof, peak) if peak else roof, color="#222222", linewidth=1.5)
    if peak:
        axes.axvline(peak / machine.bandwidth, color="#999999", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"ridge {peak / machine.bandwidth:.3g}",
            (peak / machine.bandwidth, roof.min()),
            fontsize=8,
            rotation=90,
            ha="right",
            va="bottom",
        )
        axes.annotate(f"{name} {peak / 1e12:.3g} Tflop/s", (x[0], peak), fontsize=8, va="bottom")
    for index, line in enumerate(result.lines):
        if not line.moved.flops:
            continue
        reached = line.moved.flops / line.floor.seconds
        axes.plot(
            [float(line.moved.intensity)],
            [reached],
            linestyle="none",
            label=line.moved.algorithm,
            **_style(index),
        )
    axes.set_xlabel("flop/byte")
    axes.set_ylabel("flop/s at the floor")
    axes.set_title(f"{result.operation} on {machine.name}", fontsize=10)
    if any(line.moved.flops for line in result.lines):
        axes.legend(frameon=False, fontsize=8)


def _lengths(length: int) -> list[int]:
    """Powers of two and the points between, from 32 to 64 times the length asked for."""
    count = int(np.log2(max(length, 2) * 64 / 32) * _PER_DOUBLING)
    return sorted({round(32 * 2 ** (i / _PER_DOUBLING)) for i in range(count + 1)})


def _draw_lengths(axes: Any, result: Comparison, shape: Rows | Attention) -> None:
    machine = result.machine
    length = shape.columns if isinstance(shape, Rows) else shape.seq_k
    lengths = _lengths(length)
    if isinstance(shape, Rows) and result.regime is not None:
        # Both sides of a change of regime, so that it is drawn as the step it is.
        edge = result.regime.deciding_row_bytes // shape.itemsize
        lengths = sorted({*lengths, *(n for n in (edge, edge + 1) if lengths[0] < n < lengths[-1])})
    for index, line in enumerate(result.lines):
        seconds = [_seconds(result, line.moved.algorithm, shape, n) for n in lengths]
        axes.loglog(lengths, seconds, label=line.moved.algorithm, color=_style(index)["color"])
    axes.axvline(length, color="#999999", linewidth=0.8, linestyle=":")
    if isinstance(shape, Rows) and result.regime is not None:
        limits = {result.regime.last_level // (shape.rows * shape.itemsize): "tensor leaves the cache"}
        limits[result.regime.deciding_row_bytes // shape.itemsize] = "from here the passes decide"
        for limit, name in limits.items():
            if lengths[0] < limit < lengths[-1]:
                axes.axvline(limit, color="#555555", linewidth=0.8, linestyle="--")
                axes.annotate(
                    name, (limit, axes.get_ylim()[0]), fontsize=8, rotation=90, ha="right", va="bottom"
                )
    if machine.launch:
        axes.axhline(machine.launch, color="#999999", linewidth=0.8)
        axes.annotate("one launch", (lengths[0], machine.launch), fontsize=8, va="bottom")
    axes.set_xlabel("columns" if isinstance(shape, Rows) else "sequence length")
    axes.set_ylabel("least seconds")
    axes.set_title("time against length, rows in a cache read once", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _seconds(result: Comparison, algorithm: str, shape: Rows | Attention, length: int) -> float:
    """The floor at another length: of what memory sees, where the rows in flight stay in the cache."""
    if isinstance(shape, Attention):
        queries = max(1, round(length * shape.seq_q / shape.seq_k))
        longer: Shape = replace(shape, seq_q=queries, seq_k=length, splits=min(shape.splits, length))
    else:
        longer = replace(shape, columns=length, k=min(shape.k, length))
    allocate = result.lines[0].moved.write_allocate
    moved = model.count(result.operation, algorithm, longer, write_allocate=allocate)
    if isinstance(shape, Rows) and result.regime is not None:
        where = cache.regime(
            shape.rows, length, shape.itemsize, result.regime.last_level, result.regime.resident_rows
        )
        moved = cache.from_memory(moved, kept=where.kept)
    return floor(moved, result.machine).seconds
