"""Measure the attention of attention_cases.py and write results/attention.json.

    python -m benchmarks.attention [--quick] [--only TEXT] [--budget SECONDS] [--name attention]

Every case is timed against PyTorch's scaled_dot_product_attention on the same arrays, or against our own
plain call, in interleaved rounds. The peak of multiply-adds is measured before and after each case, the
better one counts. A call of more than three seconds is timed once. Some 20 minutes where ours reaches
40 GFLOP/s and PyTorch 20.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import attention_memory, record
from benchmarks.attention_cases import COUNTED, FAMILIES, OURS, SDPA, Case, cases
from benchmarks.attention_model import model_of
from benchmarks.attention_work import build
from benchmarks.bars import judge
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array
from benchmarks.measure import Timing, interleave, warm
from online_softmax import cpu_attention

BUDGET = 4.0  # seconds of measuring a case; the few that have many contenders get as much for each pair
QUICK_BUDGET = 0.001
MEMORY = "memory"


def peak_of(case: Case) -> float:
    """Flops a second of multiply-adds in registers, on as many threads as the case."""
    return cpu_attention.arithmetic_peak(DTYPES[case.dtype], threads=case.threads)


@functools.lru_cache(maxsize=4)
def _quick_peak(threads: int) -> float:
    return cpu_attention.arithmetic_peak(DTYPES["float32"], threads=threads)


def differences(results: Mapping[str, Array]) -> dict[str, float]:
    """How far ours is from PyTorch's, norm over norm, for each option both have: do they do the same work?"""
    found = {}
    for name, ours in results.items():
        theirs = results.get(name.replace(OURS, SDPA, 1))
        if name.startswith(OURS) and theirs is not None and "dropout" not in name:
            # Ours may have more results behind the common ones.
            wide = theirs.astype(np.float64)
            apart = ours[: wide.size].astype(np.float64) - wide
            found[name] = float(np.linalg.norm(apart) / np.linalg.norm(wide))
    return found


def measure(case: Case, budget: float, quick: bool) -> dict[str, Any]:
    """Time every contender on one case; the figures, as they go to JSON."""
    entries, ceilings = build(case)
    contenders = [entry for entry in entries if isinstance(entry, Contender)]
    before = _quick_peak(case.threads) if quick else peak_of(case)
    apart = differences({contender.name: warm(contender) for contender in contenders})
    share = max(1, len(contenders) // 2)
    timings = interleave(contenders, ceilings, budget * share)
    peak = before if quick else max(before, peak_of(case))
    medians = {name: timing.median for name, timing in timings.items()}
    counted = case.family in COUNTED
    of_peak = case.flops / medians[OURS] / peak if counted else None
    return {
        "name": case.name,
        "family": case.family,
        "dtype": case.dtype,
        "causal": case.causal,
        "threads": case.threads,
        "sizes": asdict(case.sizes),
        "flops": case.flops if counted else None,
        "peak": peak,
        "ceilings": {name: asdict(timings[name]) for name in ceilings},
        "contenders": {c.name: _figures(timings[c.name], case, peak, counted) for c in contenders},
        "absent": {entry.name: entry.reason for entry in entries if isinstance(entry, Absent)},
        "differences": apart,
        "model": _model(case, peak, medians[OURS]) if case.family == "forward" else None,
        "bars": [judge(bar, medians, of_peak) for bar in case.bars],
    }


def _figures(timing: Timing, case: Case, peak: float, counted: bool) -> dict[str, Any]:
    rate = case.flops / timing.median
    return asdict(timing) | ({"flops_rate": rate, "of_peak": rate / peak} if counted else {})


def _model(case: Case, peak: float, seconds: float) -> dict[str, Any]:
    model = model_of(case, peak)
    return asdict(model) | {"over_floor": seconds / model.floor}


def table(results: list[dict[str, Any]]) -> Table:
    """The results as a table for a terminal."""
    grid = Table(title="Medians of one run, contenders interleaved", show_lines=False)
    grid.add_column("case", overflow="fold", min_width=40)
    for heading in ("ms", "GFLOP/s", "of peak", "x SDPA"):
        grid.add_column(heading, justify="right")
    grid.add_column("bars", min_width=40)
    for result in results:
        found = result["contenders"]
        ours = found.get(OURS) or next(iter(found.values()))
        sdpa = found.get(SDPA)
        counted = result["flops"] is not None
        grid.add_row(
            result["name"],
            f"{1e3 * ours['median']:.2f}",
            f"{ours['flops_rate'] / 1e9:.1f}" if counted else "-",
            f"{ours['of_peak']:.2f}" if counted else "-",
            "-" if sdpa is None else f"{sdpa['median'] / ours['median']:.2f}",
            "\n".join(_bar_text(bar) for bar in result["bars"]) or "-",
        )
    return grid


def _bar_text(bar: dict[str, Any]) -> str:
    mark = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]not measured[/]"}[bar["reached"]]
    found = "" if bar["value"] is None else f", {bar['value']:.2f}"
    return f"{bar['subject']} {bar['kind']} {bar['bar']:g} {bar['against']}{found}: {mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds: does the harness run?")
    parser.add_argument("--only", default="", help=f"cases whose name contains this, or {MEMORY!r}")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a case")
    parser.add_argument("--name", default="attention", help="results/NAME.json")
    arguments = parser.parse_args()
    chosen = [case for case in cases(arguments.quick) if arguments.only in case.name]
    if not chosen and arguments.only != MEMORY:
        parser.error(f"--only {arguments.only!r} matches no case; names start with {', '.join(FAMILIES)}")
    console = Console(width=None if Console().is_terminal else 190)
    results, begin = [], time.perf_counter()
    for i, case in enumerate(chosen, 1):
        results.append(measure(case, QUICK_BUDGET if arguments.quick else arguments.budget, arguments.quick))
        if not arguments.quick:
            gc.collect()  # graphs of PyTorch that hold on to their arrays
        console.print(f"{i}/{len(chosen)} {case.name}: {time.perf_counter() - begin:.0f} s", style="dim")
    memory = attention_memory.measure(arguments.quick) if arguments.only in ("", MEMORY) else []
    console.print(table(results))
    for name, reason in sorted({pair for result in results for pair in result["absent"].items()}):
        console.print(f"absent: {name}: {reason}", style="dim")
    body = {"results": results, "memory": memory, "seconds": time.perf_counter() - begin}
    path = record.write(arguments.name, body, arguments.quick)
    bars = [bar["reached"] for result in results for bar in result["bars"]]
    console.print(
        f"{bars.count(True)} of {len(bars)} bars reached, {bars.count(None)} not measured; wrote {path}"
    )


if __name__ == "__main__":
    main()
