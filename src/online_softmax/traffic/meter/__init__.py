"""Counts what a real Triton kernel reads and writes, on a machine without a GPU."""

from .metering import Meter
from .record import OutOfBounds
from .replay import LINE, WAYS, LaunchMisses, Misses, Replay
from .report import Comparison, Counts, Launch, MeterReport, TensorCounts

__all__ = [
    "LINE",
    "WAYS",
    "Comparison",
    "Counts",
    "Launch",
    "LaunchMisses",
    "Meter",
    "MeterReport",
    "Misses",
    "OutOfBounds",
    "Replay",
    "TensorCounts",
]
