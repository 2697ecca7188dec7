"""What our own kernels reach on this machine, measured in cache: costs of rows, and the machine as models
take it.

With `machine`, the only files that time anything. Figures are kept for the life of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import cpu
from .cache import TYPICAL
from .count import FLOPS_PER_EXP
from .machine import BUFFER_BYTES, interleaved, memory
from .predict import PARALLEL_ELEMENTS, SAFE, Cpu, RowCosts
from .roofline import Machine

Array = NDArray[Any]

# Products of square matrices of this size are timed: 4 MiB each in float32, long enough to fill the units.
MATRIX = 1024
EXPS = (64, 1024)  # rows in L1, an array in L2


def exp_rate(threads: int | None = None) -> float:
    """Exponentials per second over all threads, which share nothing: of the kernel that does least beside
    them.

    That is the log-sum-exp of bfloat16 rows in L1: load, reduction, polynomial, sum. The least time counts,
    for
    a floor.
    """
    threads = cpu.default_threads() if threads is None else threads
    x = np.zeros(EXPS, cpu.numpy_dtype("bfloat16"))
    return x.size * threads / _least(call("logsumexp", x, x, "cached", 1))


def matrix_rate(dtype: str = "float32") -> float:
    """Flop/s of a product of square matrices by NumPy, in float32 or float64 (ValueError for another), at its
    best."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype={dtype!r}: 'float32' or 'float64' would do")
    a = np.ones((MATRIX, MATRIX), dtype)
    return 2 * MATRIX**3 / _least(lambda: a @ a)


def _least(work: Callable[[], object]) -> float:
    """Least seconds of a call in rounds of about a tenth of a second."""
    return min(interleaved({"work": work}, budget=0.02)["work"] for _ in range(5))


@functools.lru_cache(maxsize=1)
def roofline_machine() -> Machine:
    """This machine as the roofline takes it, measured: best copy, exponentials, matrix product, a small call.

    The cache that helps is the second level, all cores together, with two rows in flight on each. Plain flops
    count in the model's currency: as many a second as FLOPS_PER_EXP times the exponentials. About a second
    the first time.
    """
    threads, exps = cpu.default_threads(), exp_rate()
    row = np.zeros((1, 128), np.float32)
    return Machine(
        f"this machine ({cpu.info()['cpu']}, {threads} threads)",
        memory().best_copy,
        vector_peak=FLOPS_PER_EXP * exps,
        matrix_peak=matrix_rate(),
        exp_rate=exps,
        launch=_least(call("softmax", row, np.empty_like(row), "cached")),
        last_level=threads * cpu.info()["caches"].get("L2", TYPICAL["L2"]),
        resident_rows=2 * threads,
    )


# Lengths whose rows are timed in cache; arrays of this many elements, whose copies fit a second-level cache.
COST_COLUMNS = (8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 32768)
COST_ELEMENTS = 32768


def call(
    operation: str, x: Array, out: Array, algorithm: str, threads: int | None = None
) -> Callable[[], object]:
    """A call that does `operation` over the rows of x, into `out` where it has a result of x's shape."""
    if operation == "logsumexp":
        return lambda: cpu.logsumexp(x, (1,), algorithm=algorithm, threads=threads)
    return lambda: cpu.softmax(
        x, out, (1,), log=operation == "log_softmax", algorithm=algorithm, threads=threads
    )


@functools.lru_cache(maxsize=32)
def row_costs(operation: str, dtype: str) -> Mapping[str, RowCosts]:
    """Algorithm -> seconds of a row in cache, by length: softmax, log_softmax or logsumexp, on one thread.

    About two seconds the first time. Raises ValueError for another operation or dtype.
    """
    if operation not in ("softmax", "log_softmax", "logsumexp"):
        raise ValueError(f"operation={operation!r}: 'softmax', 'log_softmax' or 'logsumexp' would do")
    if dtype not in cpu.DTYPES:
        raise ValueError(f"dtype={dtype!r}: one of {', '.join(cpu.DTYPES)} would do")
    draw = np.random.default_rng(0).standard_normal(COST_ELEMENTS, np.float32) * np.float32(4)
    empty = _empty_call()
    seconds: dict[str, list[float]] = {name: [] for name in SAFE}
    for columns in COST_COLUMNS:
        x = draw.reshape(-1, columns).astype(cpu.numpy_dtype(dtype))
        out = np.empty_like(x)
        times = interleaved({name: call(operation, x, out, name, 1) for name in SAFE}, budget=0.15)
        for name in SAFE:
            seconds[name].append(max(times[name] - empty, 1e-9) / len(x))
    return {name: RowCosts(COST_COLUMNS, tuple(each)) for name, each in seconds.items()}


@functools.lru_cache(maxsize=1)
def _empty_call() -> float:
    """Seconds of a call on one element."""
    x = np.zeros((1, 1), np.float32)
    return interleaved({"call": call("softmax", x, np.empty_like(x), "cached", 1)}, budget=0.05)["call"]


@functools.lru_cache(maxsize=1)
def predictor() -> Cpu:
    """This machine as `predict` takes it, measured as far as the questions asked need it."""
    threads = cpu.default_threads()
    x = np.zeros((threads, PARALLEL_ELEMENTS // threads), np.float32)
    out = np.empty_like(x)
    times = interleaved(
        {
            "one": lambda: cpu.softmax(x, out, (1,), threads=1),
            "all": lambda: cpu.softmax(x, out, (1,), threads=threads),
        },
        budget=0.2,
    )

    def rates(nbytes: int) -> tuple[float, float]:
        # Half of what is moved is read and half written, into buffers of a power of two.
        buffer = min(BUFFER_BYTES, max(4096, 1 << ((nbytes // 2).bit_length() - 1)))
        found = memory(threads, nbytes=buffer)
        return found.read, found.best_copy

    return Cpu(
        threads=threads,
        caches=cpu.info()["caches"],
        call=_empty_call(),
        wake=max(times["all"] - times["one"] / threads, 0.0),
        costs=lambda operation, dtype, algorithm: row_costs(operation, dtype)[algorithm],
        rates=rates,
    )
