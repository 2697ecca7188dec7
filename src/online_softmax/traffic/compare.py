"""All algorithms of an operation side by side on a machine: bytes, floors, speed-ups, regime, remarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import attention, cache, model
from .count import Operand, Traffic
from .roofline import Floor, Machine, floor
from .shapes import Attention, Rows, Shape
from .units import bytes_text, seconds_text

_LAUNCH_DECIDES: Final = 4  # times the cost of a launch: below, what the bytes cost is lost in it
#: Speed-ups are over the first of these that the operation has.
_BASELINES: Final = ("three_pass", "standard", "single")


@dataclass(frozen=True)
class Line:
    """One algorithm: its traffic, its floor on the machine, and how much sooner than the baseline's it is.

    `once` is the traffic of memory where a cache serves whatever is asked for again, with its floor: between
    the two
    lies what a machine with a cache does.
    """

    moved: Traffic
    floor: Floor
    speedup: float
    once: Traffic
    once_floor: Floor

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings; bytes, seconds, flop/byte."""
        moved = self.moved
        return {
            "algorithm": moved.algorithm,
            "reads": moved.reads,
            "writes": moved.writes,
            "traversals": moved.traversals,
            "bytes_read": moved.read,
            "bytes_written": moved.written,
            "bytes_allocated": moved.allocated,
            "bytes_total": moved.total,
            "workspace_bytes": moved.workspace,
            "operands": [_operand(operand) for operand in moved.operands],
            "exps": moved.exps,
            "flops": moved.flops,
            "intensity": float(moved.intensity),
            "floor_seconds": self.floor.seconds,
            "bound": self.floor.bound,
            "speedup": self.speedup,
            "each_tensor_once": {
                "bytes_total": self.once.total,
                "floor_seconds": self.once_floor.seconds,
                "bound": self.once_floor.bound,
            },
        }


@dataclass(frozen=True)
class Comparison:
    """The algorithms of an operation for one shape on one machine.

    Attributes:
        sizes: the shape's fields.
        baseline: the algorithm that speed-ups are over.
        regime: against the machine's last-level cache; None where it is not known or the operation has no
        rows.
        remarks: what the table alone would leave out, a sentence each.
    """

    operation: str
    sizes: Mapping[str, int | bool]
    machine: Machine
    baseline: str
    lines: tuple[Line, ...]
    regime: cache.Regime | None
    remarks: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON takes it."""
        where = self.regime
        return {
            "operation": self.operation,
            "sizes": dict(self.sizes),
            "machine": {
                "name": self.machine.name,
                "bandwidth_bytes_per_second": self.machine.bandwidth,
                "ridge_flops_per_byte": self.machine.ridge,
                "matrix_ridge_flops_per_byte": self.machine.matrix_ridge,
                "vector_flops_per_second": self.machine.vector_peak,
                "matrix_flops_per_second": self.machine.matrix_peak,
                "exps_per_second": self.machine.exp_rate,
                "launch_seconds": self.machine.launch,
                "last_level_bytes": self.machine.last_level,
            },
            "baseline": self.baseline,
            "algorithms": [line.as_json() for line in self.lines],
            "regime": None
            if where is None
            else {
                "name": where.name,
                "row_bytes": where.row_bytes,
                "tensor_bytes": where.tensor_bytes,
                "resident_rows": where.resident_rows,
                "deciding_row_bytes": where.deciding_row_bytes,
            },
            "remarks": list(self.remarks),
        }


def _operand(operand: Operand) -> dict[str, Any]:
    return {
        "name": operand.name,
        "bytes": operand.size,
        "read": operand.read,
        "written": operand.written,
        "temporary": operand.temporary,
    }


def compare(
    operation: str,
    shape: Shape,
    machine: Machine,
    *,
    write_allocate: bool = False,
    resident_rows: int | None = None,
    onchip: int | None = None,
) -> Comparison:
    """Every algorithm of `operation` for `shape` on `machine`.

    Args:
        write_allocate: count the read of each written line.
        resident_rows: rows in flight at once; all of them where neither this nor the machine says.
        onchip: elements on chip, for the lower bound of attention.

    Raises ValueError, TypeError as `model.count`, and for a shape that moves no byte.
    """
    counts = [
        model.count(operation, name, shape, write_allocate=write_allocate)
        for name in model.algorithms(operation)
    ]
    if counts[0].read == 0:
        raise ValueError(f"{operation} of {shape}: nothing is read; sizes of at least 1 would do")
    baseline = next((name for name in _BASELINES if name in model.algorithms(operation)), counts[0].algorithm)
    where = None
    if isinstance(shape, Rows) and machine.last_level:
        resident = resident_rows if resident_rows is not None else machine.resident_rows
        where = cache.regime(shape.rows, shape.columns, shape.itemsize, machine.last_level, resident)
    floors = {moved.algorithm: floor(moved, machine) for moved in counts}
    lines = tuple(
        Line(
            moved,
            floors[moved.algorithm],
            floors[baseline].seconds / floors[moved.algorithm].seconds,
            cache.from_memory(moved, kept=True),
            floor(cache.from_memory(moved, kept=True), machine),
        )
        for moved in counts
    )
    remarks = [
        *_regime_remarks(where, shape, machine),
        *_floor_remarks(lines, machine),
        *_tile_remarks(lines, machine),
        *_attention_remarks(operation, shape, onchip),
    ]
    return Comparison(operation, dict(vars(shape)), machine, baseline, lines, where, tuple(remarks))


def _regime_remarks(where: cache.Regime | None, shape: Shape, machine: Machine) -> list[str]:
    if where is None or not isinstance(shape, Rows):
        return []
    deciding = where.deciding_row_bytes
    remarks = [
        f"the number of passes starts to predict the time at rows of {bytes_text(deciding)} "
        f"({deciding // shape.itemsize} columns): {bytes_text(where.last_level)} of cache shared by "
        f"{where.resident_rows} rows in flight"
    ]
    if machine.units is not None and machine.units < where.resident_rows:
        fewer = where.last_level // machine.units
        remarks.append(
            f"with one row in flight on each of {machine.units} units that is {bytes_text(fewer)} "
            f"({fewer // shape.itemsize} columns)"
        )
    if where.name == "tensor in cache":
        remarks.append(
            f"the whole tensor, {bytes_text(where.tensor_bytes)}, fits the {bytes_text(where.last_level)} "
            "cache: "
            "the bytes above are those of the cache, memory may see each element once or not at all, "
            "and the number of passes does not predict the time of a tensor that was just made"
        )
    elif where.name == "rows in cache":
        remarks.append(
            "the rows in flight fit the cache: memory sees every element once, whatever the algorithm"
        )
    return remarks


def _floor_remarks(lines: tuple[Line, ...], machine: Machine) -> list[str]:
    remarks = []
    least = min(line.floor.seconds for line in lines)
    if machine.launch and least <= _LAUNCH_DECIDES * machine.launch:
        remarks.append(
            f"a launch costs {seconds_text(machine.launch)} beside a floor of {seconds_text(least)}: "
            "launch, latency and instructions decide, not the number of passes"
        )
    best = min(lines, key=lambda line: line.moved.total)
    intensity = float(best.moved.intensity)
    if machine.ridge is not None and not best.moved.matrix_flops and 0 < intensity < machine.ridge:
        remarks.append(
            f"{best.moved.algorithm} does {intensity:.4g} flop/byte, {machine.ridge / intensity:.0f} times "
            f"under the ridge of {machine.ridge:.4g}: memory-bound"
        )
    return remarks


def _tile_remarks(lines: tuple[Line, ...], machine: Machine) -> list[str]:
    """On matrix products: what re-reading means, and memory that is not there."""
    if not any(line.moved.matrix_flops for line in lines):
        return []
    remarks = [
        "bytes are those the tiles ask for; a cache that serves what is asked for again brings the floor "
        "down to that of each tensor once"
    ]
    for line in lines:
        if machine.memory is not None and line.moved.workspace > machine.memory:
            remarks.append(
                f"{line.moved.algorithm} needs {bytes_text(line.moved.workspace)} beside its operands, more "
                f"than the {bytes_text(machine.memory)} there are"
            )
    return remarks


def _attention_remarks(operation: str, shape: Shape, onchip: int | None) -> list[str]:
    if not isinstance(shape, Attention) or operation != "attention":
        return []
    forms = attention.ASYMPTOTIC
    remarks = [
        f"elements moved: standard {forms['standard']}, flash {forms['flash']} with S on-chip elements"
    ]
    if shape.causal:
        remarks.append("standard makes every score, flash those of the tiles the mask leaves")
    if onchip is None:
        return remarks
    blocks = attention.blocks_for(onchip, shape.head_dim)
    bound = attention.lower_bound(shape.seq_q, shape.seq_k, shape.head_dim, onchip)
    for made, tiles in (
        (f"the {onchip} elements on chip", (blocks.block_q, blocks.block_k)),
        ("the table's tiles", (shape.block_q, shape.block_k)),
    ):
        one = Attention(1, 1, 1, shape.seq_q, shape.seq_k, shape.head_dim, shape.itemsize, *tiles)
        moved = model.count(operation, "flash", one).total // shape.itemsize
        remarks.append(
            f"one head without a mask, {tiles[0]} queries by {tiles[1]} keys ({made}): {moved:,} elements, "
            f"{float(moved / bound):.1f} times the order of the lower bound, {float(bound):.4g} "
            "(Saha & Ye 2024)"
        )
    return remarks
