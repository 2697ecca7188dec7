"""Measure the losses of losses_cases.py and write results/losses.json.

    python -m benchmarks.losses [--quick] [--only TEXT] [--budget SECONDS] [--name losses]

Cross-entropy with its gradient against PyTorch, torch.compile and JAX and against a copy of the same bytes;
the head of a language model with its loss against PyTorch's ways and the products alone; sampling, prefix,
ragged and windowed log-sum-exps; peak memory; errors against float64. A call of more than three seconds is
timed once, by its first call. The head takes fewer tokens where the machine is too slow for all.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import losses_accuracy, losses_head, losses_memory, losses_rows, losses_work, record
from benchmarks.attention_work import TORCH_MISSING
from benchmarks.bars import bar_text, count, judge
from benchmarks.contender import Absent, Contender
from benchmarks.data import Array
from benchmarks.losses_cases import (
    COMPILED,
    COPIES,
    COPY,
    FAMILIES,
    LINEAR,
    OURS,
    OURS_IN_PLACE,
    OURS_OUT,
    PRODUCTS,
    TORCH,
    Case,
    cases,
)
from benchmarks.measure import ONCE, Timing, interleave, settle

BUDGET = 8.0  # seconds of measuring a case, more where a call is slow
QUICK_BUDGET = 0.001
MEMORY, ACCURACY = "memory", "accuracy"

#: Whose results are those of the plain call, whatever is behind the name.
_PLAIN = (OURS, OURS_OUT, OURS_IN_PLACE)

Builder = Callable[[Case], tuple[list[losses_work.Entry], losses_work.Ceilings]]
_BUILDERS: dict[str, Builder] = {
    "options": losses_work.options_entries,
    "linear": losses_head.linear_entries,
    "sample": losses_rows.sample_entries,
    "scans": losses_rows.scans_entries,
}


def build(case: Case, quick: bool) -> tuple[list[losses_work.Entry], losses_work.Ceilings]:
    """Every contender of a case and its ceilings; PyTorch is told how many threads to use."""
    if not TORCH_MISSING:
        import torch

        torch.set_num_threads(case.threads)
    return losses_work.loss_entries(case, quick) if case.family == "loss" else _BUILDERS[case.family](case)


def first(contender: Contender) -> tuple[Array, float]:
    """The first call of a contender: its result and its seconds."""
    if contender.prepare is not None:
        contender.prepare()
    start = time.perf_counter()
    made = contender.call()
    took = time.perf_counter() - start
    result = contender.result(made)
    settle(contender.settle)
    return result, took


def differences(case: Case, results: Mapping[str, Array]) -> dict[str, float]:
    """How far each is from PyTorch's, norm over norm: do they do the same work? Draws are not compared."""
    found = {}
    for name, made in results.items():
        option = name.removeprefix(OURS) if name.startswith(OURS) else ""
        plain = LINEAR if case.family == "linear" else TORCH
        other = plain if name in _PLAIN else plain + option
        theirs = name.startswith(TORCH) and name != COMPILED
        if case.family != "sample" and name != PRODUCTS and not theirs and other in results and other != name:
            wide = results[other].astype(np.float64)
            apart = made.astype(np.float64) - wide
            found[name] = float(np.linalg.norm(apart) / np.linalg.norm(wide))
    return found


def measure(case: Case, budget: float, quick: bool) -> dict[str, Any]:
    """Time every contender on one case; the figures, as they go to JSON."""
    entries, ceilings = build(case, quick)
    contenders = [entry for entry in entries if isinstance(entry, Contender)]
    results, timings = {}, {}
    for contender in contenders:
        results[contender.name], took = first(contender)
        if took > ONCE:
            timings[contender.name] = Timing.of([took])
    timings |= interleave([c for c in contenders if c.name not in timings], ceilings, budget)
    seconds = {name: timing.median for name, timing in timings.items()}
    copies = [seconds[name] for name in COPIES if name in seconds]
    floors = {COPY: min(copies)} if copies else {}
    return {
        "name": case.name,
        "family": case.family,
        "kind": case.kind,
        "dtype": case.dtype,
        "shape": case.shape,
        "whole": case.whole,
        "threads": case.threads,
        "flops": case.flops,
        "ceilings": {name: asdict(timings[name]) for name in ceilings},
        "contenders": {c.name: asdict(timings[c.name]) for c in contenders},
        "absent": {entry.name: entry.reason for entry in entries if isinstance(entry, Absent)},
        "differences": differences(case, results),
        "bars": [judge(bar, seconds | floors) for bar in case.bars],
    }


def table(results: list[dict[str, Any]]) -> Table:
    """The results as a table for a terminal."""
    grid = Table(title="Medians of one run, contenders interleaved", show_lines=False)
    grid.add_column("case", overflow="fold", min_width=30)
    grid.add_column("contender")
    for heading in ("ms", "x torch", "rounds"):
        grid.add_column(heading, justify="right")
    grid.add_column("bars", min_width=40)
    marks = {True: "green", False: "red", None: "yellow"}
    for result in results:
        found = result["contenders"] | result["ceilings"]
        for name, figures in found.items():
            bars = [bar for bar in result["bars"] if bar["subject"] == name]
            theirs = found.get(TORCH)
            grid.add_row(
                result["name"],
                name,
                f"{1e3 * figures['median']:.3f}",
                "-" if theirs is None else f"{theirs['median'] / figures['median']:.2f}",
                str(figures["rounds"]),
                "\n".join(f"[{marks[bar['reached']]}]{bar_text(bar)}, {bar['against']}[/]" for bar in bars)
                or "-",
            )
    return grid


def run(only: str, budget: float, quick: bool, console: Console) -> dict[str, Any]:
    """All parts whose names contain `only`, as they go to JSON."""
    begin, results = time.perf_counter(), []
    chosen = [case for case in cases(quick) if only in case.name]
    for i, case in enumerate(chosen, 1):
        fitted = losses_head.sized(case) if case.family == "linear" and not quick else case
        results.append(measure(fitted, QUICK_BUDGET if quick else budget, quick))
        if not quick:
            gc.collect()  # graphs of PyTorch that hold on to their arrays
        console.print(f"{i}/{len(chosen)} {fitted.name}: {time.perf_counter() - begin:.0f} s", style="dim")
    losses_work.forget()
    memory = losses_memory.measure(quick) if only in ("", MEMORY) else []
    accuracy = losses_accuracy.measure(quick) if only in ("", ACCURACY) else []
    seconds = time.perf_counter() - begin
    return {"results": results, "memory": memory, "accuracy": accuracy, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds: does the harness run?")
    parser.add_argument(
        "--only", default="", help=f"cases whose name contains this, {MEMORY!r}, {ACCURACY!r}"
    )
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a case")
    parser.add_argument("--name", default="losses", help="results/NAME.json")
    arguments = parser.parse_args()
    names = [case.name for case in cases(arguments.quick)]
    if arguments.only not in (MEMORY, ACCURACY) and not any(arguments.only in name for name in names):
        parser.error(f"--only {arguments.only!r} matches no case; names start with {', '.join(FAMILIES)}")
    console = Console(width=None if Console().is_terminal else 190)
    body = run(arguments.only, arguments.budget, arguments.quick, console)
    console.print(table(body["results"]))
    for name, reason in sorted({pair for result in body["results"] for pair in result["absent"].items()}):
        console.print(f"absent: {name}: {reason}", style="dim")
    path = record.write(arguments.name, body, arguments.quick)
    for part in ("results", "memory", "accuracy"):
        console.print(f"{part}: {count(body[part])} bars reached")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
