"""Measure the table of work in cases.py and write results/rows.json.

python -m benchmarks.bench [--quick] [--only TEXT] [--budget SECONDS] [--name rows]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import record
from benchmarks.cases import WORKLOADS, Workload, shrink
from benchmarks.contender import Absent, Contender
from benchmarks.data import Error, Truth, like, scores
from benchmarks.judge import judge
from benchmarks.measure import interleave, warm
from benchmarks.ours import ceilings, ours
from benchmarks.peers import peers

BUDGET = 5.0  # seconds of measuring a workload


def measure(workload: Workload, budget: float) -> dict[str, Any]:
    """Check and time every contender on one workload; the figures, as they go to JSON."""
    x = scores(workload)
    out = None if workload.op == "logsumexp" else like(x)
    entries = [*ours(workload, x, out), *peers(workload, x, out)]
    contenders = [entry for entry in entries if isinstance(entry, Contender)]
    truth = Truth(workload, x)
    errors: dict[str, Error] = {}
    for contender in contenders:
        if out is not None:
            out.fill(0)  # so that nobody is praised for what the one before wrote
        errors[contender.name] = truth.error(warm(contender))
    passes = ceilings(workload, x, out)
    timings = interleave(contenders, passes, budget)
    return {
        "name": workload.name,
        "op": workload.op,
        "dtype": workload.dtype,
        "shape": workload.shape,
        "axis": workload.axis,
        "layout": workload.layout,
        "regime": workload.regime,
        "input_bytes": workload.nbytes,
        "ceilings": {name: asdict(timings[name]) for name in passes},
        "contenders": {c.name: asdict(timings[c.name]) | asdict(errors[c.name]) for c in contenders},
        "absent": {entry.name: entry.reason for entry in entries if isinstance(entry, Absent)},
        "goals": [judge(workload, goal, timings, errors) for goal in workload.goals],
    }


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _bar_text(bar: dict[str, Any]) -> str:
    unit = {"peer": "x ", "ceiling": " of ", "error": " error"}[bar["kind"]]
    text = f"{bar['bar']:g}{unit}{'' if bar['kind'] == 'error' else bar['against']}"
    mark = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]not measured[/]"}[bar["reached"]]
    return f"{text}: {mark}"


def table(results: list[dict[str, Any]]) -> Table:
    """The results as a table for a terminal."""
    grid = Table(title="Medians of one run, contenders interleaved", show_lines=False)
    grid.add_column("work", overflow="fold", min_width=30)
    grid.add_column("result")
    for heading in ("ms", "x torch", "x best peer", "of ceiling", "rel. error", "best peer's"):
        grid.add_column(heading, justify="right")
    grid.add_column("bars", min_width=28)
    for result in results:
        for goal in result["goals"]:
            grid.add_row(
                result["name"],
                goal["subject"],
                f"{goal['median_ms']:.3f}",
                _number(goal["over_torch"], ".2f"),
                f"{_number(goal['over_best_peer'], '.2f')} ({goal['best_peer'] or 'none'})",
                _number(goal["of_ceiling"], ".2f"),
                f"{goal['relative_error']:.1e}",
                _number(goal["best_peer_relative_error"], ".1e"),
                "\n".join(_bar_text(bar) for bar in goal["bars"]) or "-",
            )
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small arrays, few rounds: does the harness run?"
    )
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a workload")
    parser.add_argument("--name", default="rows", help="results/NAME.json")
    arguments = parser.parse_args()
    workloads = [workload for workload in WORKLOADS if arguments.only in workload.name]
    if not workloads:
        parser.error(f"--only {arguments.only!r} matches no workload; names look like {WORKLOADS[0].name}")
    console = Console(width=None if Console().is_terminal else 190)
    results = []
    for i, workload in enumerate(workloads, 1):
        start = time.perf_counter()
        chosen = shrink(workload) if arguments.quick else workload
        results.append(measure(chosen, 0.1 if arguments.quick else arguments.budget))
        console.print(f"{i}/{len(workloads)} {chosen.name}: {time.perf_counter() - start:.1f} s", style="dim")
    console.print(table(results))
    for name, reason in sorted({pair for result in results for pair in result["absent"].items()}):
        console.print(f"absent: {name}: {reason}", style="dim")
    path = record.write(arguments.name, {"results": results}, arguments.quick)
    bars = [bar["reached"] for result in results for goal in result["goals"] for bar in goal["bars"]]
    console.print(
        f"{bars.count(True)} of {len(bars)} bars reached, {bars.count(None)} not measured; wrote {path}"
    )


if __name__ == "__main__":
    main()
