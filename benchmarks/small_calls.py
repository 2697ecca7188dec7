"""One call on 128 elements, where time is the overhead of the call: results/small_calls.json.

python -m benchmarks.small_calls [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import online_softmax
from benchmarks import record
from benchmarks.cases import OURS_FRESH, OURS_OUT, SCIPY, TORCH_FRESH, TORCH_OUT, Workload
from benchmarks.contender import Contender
from benchmarks.peers import peers

ELEMENTS = 128
CALLS = 2000  # calls a sample: 2 to 4 ms for the quick ones
ROUNDS = 101
MICROSECONDS_BAR = 2.0

# (operation, our contender, its peer, times faster at least)
BARS = (
    ("softmax", OURS_FRESH, TORCH_FRESH, 1.0),
    ("softmax", OURS_OUT, TORCH_OUT, 1.0),
    ("logsumexp", OURS_FRESH, TORCH_FRESH, 8.0),
    ("logsumexp", OURS_FRESH, SCIPY, 50.0),
)


def contenders(op: str) -> dict[str, Callable[[], Any]]:
    """Calls on one vector of 128 float32: ours as a user writes it, torch and SciPy."""
    x = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32) * np.float32(4)
    out = None if op == "logsumexp" else np.empty_like(x)
    workload = Workload(op, "float32", x.shape, "one small call", ())
    calls = {entry.name: entry.call for entry in peers(workload, x, out) if isinstance(entry, Contender)}
    wanted = {name: calls[name] for name in (TORCH_FRESH, TORCH_OUT, SCIPY) if name in calls}
    function = getattr(online_softmax, op)
    wanted[OURS_FRESH] = lambda: function(x)
    if out is not None:
        wanted[OURS_OUT] = lambda: function(x, out=out)
    return wanted


def sample(call: Callable[[], Any], calls: int) -> float:
    """Microseconds a call over `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measure(op: str, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Median and least microseconds a call of every contender, in interleaved rounds."""
    table = contenders(op)
    # SciPy takes about 50 microseconds, so fewer calls make a sample of the same length.
    repeats = {name: max(1, calls // 20) if name == SCIPY else calls for name in table}
    samples: dict[str, list[float]] = {name: [] for name in table}
    for name, call in table.items():
        sample(call, repeats[name])
    order, names = random.Random(0), list(table)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(sample(table[name], repeats[name]))
    return {
        name: {"median_us": statistics.median(s), "least_us": min(s), "rounds": len(s)}
        for name, s in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run?")
    quick = parser.parse_args().quick
    results = {
        op: measure(op, 3 if quick else ROUNDS, 200 if quick else CALLS) for op in ("softmax", "logsumexp")
    }
    bars = []
    for op, subject, peer, bar in BARS:
        found = results[op]
        value = found[peer]["median_us"] / found[subject]["median_us"] if peer in found else None
        reached = None if value is None else value >= bar
        bars.append(
            {"op": op, "subject": subject, "peer": peer, "bar": bar, "value": value, "reached": reached}
        )
    own = [
        results[op][name]["median_us"] for op in results for name in results[op] if name.startswith("ours")
    ]
    under = max(own) < MICROSECONDS_BAR
    grid = Table(title=f"One call on {ELEMENTS} float32, microseconds (median of rounds)")
    for heading in ("op", "contender", "median", "least"):
        grid.add_column(heading, justify="left" if heading in ("op", "contender") else "right")
    for op, found in results.items():
        for name, figures in found.items():
            grid.add_row(op, name, f"{figures['median_us']:.2f}", f"{figures['least_us']:.2f}")
    console = Console(width=None if Console().is_terminal else 120)
    console.print(grid)
    for bar_ in bars:
        console.print(bar_)
    console.print(f"every call of ours under {MICROSECONDS_BAR:g} us: {'yes' if under else 'no'}")
    body = {"elements": ELEMENTS, "results": results, "bars": bars, "under_2_us": under}
    console.print(f"wrote {record.write('small_calls', body, quick)}")


if __name__ == "__main__":
    main()
