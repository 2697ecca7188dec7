"""Schedules over a link side by side: steps, bytes a process sends, time at a latency and a rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .schedules import CONTEXT_PARALLEL, VOCABULARY_PARALLEL, LinkTraffic
from .shapes import Ranks, Shards

#: Operation -> (the record of its sizes, algorithm -> formula).
OPERATIONS: Final[
    Mapping[str, tuple[type[Ranks] | type[Shards], Mapping[str, Callable[[Any], LinkTraffic]]]]
] = {
    "vocabulary_parallel": (Ranks, VOCABULARY_PARALLEL),
    "context_parallel": (Shards, CONTEXT_PARALLEL),
}


@dataclass(frozen=True)
class Schedules:
    """Every schedule of one operation; seconds at `bandwidth` (bytes/s, one direction) and `latency` (s)."""

    operation: str
    sizes: Mapping[str, int]
    bandwidth: float
    latency: float
    lines: tuple[LinkTraffic, ...]

    def seconds(self, line: LinkTraffic) -> float:
        """Time of a schedule of this record."""
        return line.seconds(self.latency, self.bandwidth)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings; bytes, seconds. Shares of a shard that is not whole are rounded up."""
        return {
            "operation": self.operation,
            "sizes": dict(self.sizes),
            "link": {"bytes_per_second": self.bandwidth, "latency_seconds": self.latency},
            "schedules": [
                {
                    "algorithm": line.algorithm,
                    "steps": line.steps,
                    "bytes_sent": -(-line.sent.numerator // line.sent.denominator),
                    "workspace_bytes": -(-line.workspace.numerator // line.workspace.denominator),
                    "seconds": self.seconds(line),
                }
                for line in self.lines
            ],
        }


def compare(operation: str, shape: Ranks | Shards, bandwidth: float, latency: float = 0.0) -> Schedules:
    """All schedules of `operation`. Raises ValueError for an unknown one, a rate or latency that makes no
    sense;
    TypeError for sizes of another family."""
    if operation not in OPERATIONS:
        listed = ", ".join(map(repr, OPERATIONS))
        raise ValueError(f"operation={operation!r} has no schedule over a link: {listed} would do")
    kind, formulas = OPERATIONS[operation]
    if not isinstance(shape, kind):
        raise TypeError(f"shape={shape!r}: {operation} is counted for {kind.__name__}(...)")
    lines = tuple(formula(shape) for formula in formulas.values())
    for line in lines:
        line.seconds(latency, bandwidth)  # refuses what makes no sense, before anything is shown
    sizes = {name: int(value) for name, value in vars(shape).items()}
    return Schedules(operation, sizes, bandwidth, latency, lines)
