"""Roofline: how long an operation must take on a machine, and what holds it back.

A machine is a handful of rates; an operation's floor is the time of its slowest resource, as if all of them
worked side by side. Bandwidth is bytes/s, peaks are flop/s, exponentials count by themselves where the rate
of the unit that makes them is known, and as FLOPS_PER_EXP flops each where it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .count import Traffic
from .devices import Device


@dataclass(frozen=True)
class Machine:
    """Rates and sizes that bound an operation; None where not known, and then without effect.

    Attributes:
        bandwidth: of memory, bytes/s.
        vector_peak, matrix_peak: flop/s outside and inside matrix products.
        exp_rate: exponentials/s.
        launch: seconds a kernel costs before it does anything.
        last_level: bytes of the last cache before memory.
        resident_rows: rows in flight at once, where the machine limits them.
        units: what runs blocks of threads: rows in flight where each has one.
        memory: bytes of main memory.
    """

    name: str
    bandwidth: float
    vector_peak: float | None = None
    matrix_peak: float | None = None
    exp_rate: float | None = None
    launch: float | None = None
    last_level: int | None = None
    resident_rows: int | None = None
    units: int | None = None
    memory: int | None = None

    @property
    def ridge(self) -> float | None:
        """Flops a byte from which arithmetic outside matrix products takes longer than memory."""
        return None if self.vector_peak is None else self.vector_peak / self.bandwidth

    @property
    def matrix_ridge(self) -> float | None:
        """The same for matrix products."""
        return None if self.matrix_peak is None else self.matrix_peak / self.bandwidth


def given(bandwidth: float, ridge: float | None = None, last_level: int | None = None) -> Machine:
    """A machine told by its bandwidth (bytes/s), ridge (flop/byte, of any arithmetic) and last-level cache.

    Raises ValueError, naming the argument, for a rate or ridge that is not positive, or a negative size.
    """
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth={bandwidth!r}: a positive rate in bytes/s would do")
    if ridge is not None and not 0 < ridge * bandwidth < math.inf:
        raise ValueError(f"ridge={ridge!r}: a positive number of flops a byte would do")
    if last_level is not None and last_level < 0:
        raise ValueError(f"last_level={last_level}: bytes of at least 0 would do")
    peak = None if ridge is None else ridge * bandwidth
    return Machine("given", bandwidth, vector_peak=peak, matrix_peak=peak, last_level=last_level)


def of_device(device: Device, dtype: str) -> Machine:
    """The machine a device is for operands of `dtype`; matrix products in float32 count as vector ones.
    Floors of
    float64 are loose: they take the peak of float32."""
    vector = device.peak.get("float32")
    return Machine(
        device.name,
        float(device.memory_bandwidth),
        vector_peak=vector,
        matrix_peak=device.matrix_peak.get(dtype, vector),
        exp_rate=device.exps_per_second,
        launch=device.launch_seconds,
        last_level=device.last_level,
        units=device.units,
        memory=device.memory,
    )


@dataclass(frozen=True)
class Floor:
    """Least seconds by resource; 0.0 where nothing is asked of it or its rate is not known."""

    memory: float
    vector: float
    matrix: float
    exp: float
    launch: float

    @property
    def seconds(self) -> float:
        """The slowest resource's time."""
        return max(self.memory, self.vector, self.matrix, self.exp, self.launch)

    @property
    def bound(self) -> str:
        """ "memory", "compute", "exp" or "launch": the slowest resource, memory where two are equal."""
        times = {
            "memory": self.memory,
            "compute": max(self.vector, self.matrix),
            "exp": self.exp,
            "launch": self.launch,
        }
        return max(times, key=lambda name: times[name])


def floor(moved: Traffic, machine: Machine) -> Floor:
    """The floor of an operation on a machine."""

    def at(amount: int, rate: float | None) -> float:
        return amount / rate if rate else 0.0

    vector = moved.plain_flops if machine.exp_rate else moved.vector_flops
    return Floor(
        memory=moved.total / machine.bandwidth,
        vector=at(vector, machine.vector_peak),
        matrix=at(moved.matrix_flops, machine.matrix_peak),
        exp=at(moved.exps, machine.exp_rate),
        launch=machine.launch or 0.0,
    )
