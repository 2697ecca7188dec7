"""No cliff: what a call costs while another process holds one of our two cores. results/busy_core.json.

    python -m benchmarks.busy_core [--quick]

A fork-join over two threads waits for the slower one; a library whose waiting thread spins, or that has no
work left to hand over, falls by far more than the half that is missing. Quiet and busy phases alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import online_softmax
from benchmarks import CPUS, THREADS, record
from benchmarks.cases import OURS_OUT, TORCH_OUT, Workload
from benchmarks.contender import Contender
from benchmarks.data import like, scores
from benchmarks.measure import settle
from benchmarks.peers import peers

SHAPES = ((8, 1024), (8192, 4096))
PHASES, PHASE_SECONDS = 3, 1.0
BAR = 2.5  # busy over quiet, medians

# Runs until its parent is gone or ends it, so that no run leaves it behind.
SPINNER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
print("spinning", flush=True)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextlib.contextmanager
def busy(cpu: int) -> Iterator[None]:
    """Another process spins on `cpu` inside the block."""
    spinner = subprocess.Popen([sys.executable, "-c", SPINNER, str(cpu)], stdout=subprocess.PIPE)
    try:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        yield
    finally:
        spinner.kill()
        spinner.communicate()


def phase(call: Callable[[], Any], length: float) -> list[float]:
    """Seconds of each call, over about `length` seconds; at least five calls."""
    samples: list[float] = []
    end = time.perf_counter() + length
    while len(samples) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def calls(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Ours and torch, softmax with `out=`, two threads."""
    workload = Workload("softmax", "float32", shape, "busy core", ())
    x = scores(workload)
    out = like(x)
    found = {entry.name: entry.call for entry in peers(workload, x, out) if isinstance(entry, Contender)}
    wanted = {TORCH_OUT: found[TORCH_OUT]} if TORCH_OUT in found else {}
    wanted[OURS_OUT] = lambda: online_softmax.softmax(x, out=out, threads=THREADS)
    return wanted


def figures(quiet: list[float], held: list[float]) -> dict[str, Any]:
    """Medians and 99th percentiles in microseconds, and busy over quiet."""

    def p99(samples: list[float]) -> float:
        return float(np.percentile(samples, 99))

    return {
        "quiet_median_us": statistics.median(quiet) * 1e6,
        "busy_median_us": statistics.median(held) * 1e6,
        "ratio": statistics.median(held) / statistics.median(quiet),
        "quiet_p99_us": p99(quiet) * 1e6,
        "busy_p99_us": p99(held) * 1e6,
        "ratio_p99": p99(held) / p99(quiet),
        "quiet_calls": len(quiet),
        "busy_calls": len(held),
    }


def measure(shape: tuple[int, ...], phases: int, length: float) -> dict[str, dict[str, Any]]:
    """Quiet and busy figures of each contender on `shape`."""
    results = {}
    for name, call in calls(shape).items():
        quiet: list[float] = []
        held: list[float] = []
        call()
        for _ in range(phases):
            settle(0.05)  # the kernel has just got a core back: let it spread the threads again
            quiet += phase(call, length)
            with busy(CPUS[-1]):
                held += phase(call, length)
        results[name] = figures(quiet, held)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short phases: does it run?")
    quick = parser.parse_args().quick
    console = Console(width=None if Console().is_terminal else 140)
    if not hasattr(os, "sched_setaffinity") or len(CPUS) < THREADS:
        console.print("busy_core needs Linux and two CPUs: nothing was measured")
        return
    results = {
        "x".join(map(str, shape)): measure(shape, 1 if quick else PHASES, 0.1 if quick else PHASE_SECONDS)
        for shape in SHAPES
    }
    grid = Table(title="softmax float32 out=, one core held by another process")
    headings = (
        "shape",
        "contender",
        "quiet us",
        "busy us",
        "ratio",
        "quiet p99 us",
        "busy p99 us",
        "ratio p99",
    )
    for heading in headings:
        grid.add_column(heading, justify="left" if heading in ("shape", "contender") else "right")
    keys = ("quiet_median_us", "busy_median_us", "ratio", "quiet_p99_us", "busy_p99_us", "ratio_p99")
    for shape_name, found in results.items():
        for name, row in found.items():
            grid.add_row(shape_name, name, *(f"{row[key]:.1f}" for key in keys))
    console.print(grid)
    worst = max(found[OURS_OUT]["ratio"] for found in results.values())
    reached = worst <= BAR
    console.print(f"ours busy over quiet, worst median: {worst:.2f}; bar {BAR}: {'yes' if reached else 'no'}")
    body = {"bar": BAR, "reached": reached, "worst_ratio": worst, "results": results}
    console.print(f"wrote {record.write('busy_core', body, quick)}")


if __name__ == "__main__":
    main()
