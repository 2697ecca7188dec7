"""Results whose bits do not depend on order beside the default ones, in one run: results/exact_rows.json.

    python -m benchmarks.exact_rows [--quick] [--budget SECONDS]

Softmax, log-softmax and log-sum-exp of rows from memory and from the cache, `order="any"` against the default
path, interleaved; and the merge of states against the machine's copy. A ratio is how much longer the bits for
any order take; of the merge, the bytes it moves a second over those of a copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import THREADS, record
from benchmarks.cases import Workload
from benchmarks.contender import Contender
from benchmarks.data import like, scores
from benchmarks.markdown import markdown
from benchmarks.measure import interleave, warm
from online_softmax import _core, cpu, cpu_exact, exact

DEFAULT, ANY, COPY = "default", 'order="any"', "copy"
BUDGET = 4.0
#: Most of the default's time: rows from memory, rows in the cache, 16 bits.
FROM_MEMORY, CACHED, NARROW = 1.25, 1.8, 2.0
#: Least of the copy's bytes a second.
MERGE = 0.5
STATES = 1 << 20


@dataclass(frozen=True)
class Case:
    """One measurement and the goal of its ratio."""

    op: str
    dtype: str
    shape: tuple[int, int]
    goal: float

    @property
    def workload(self) -> Workload:
        return Workload(self.op, self.dtype, self.shape, "rows", ())


def cases(quick: bool) -> list[Case]:
    """Of 64 MiB and more, and of a few hundred KiB."""
    from_memory = ((8, 64),) if quick else ((16384, 1024), (4096, 4096), (512, 32768), (256, 131072))
    cached = ((4, 64),) if quick else ((64, 1024), (16, 4096))
    made = [
        Case(op, "float32", shape, goal)
        for op in ("softmax", "log_softmax", "logsumexp")
        for shapes, goal in ((from_memory, FROM_MEMORY), (cached, CACHED))
        for shape in shapes
    ]
    made += [
        Case(op, "bfloat16", shape, NARROW)
        for op in ("softmax", "logsumexp")
        for shape in (*from_memory[:2], *cached)
    ]
    return made


def calls(case: Case) -> dict[str, Callable[[], Any]]:
    """The default path and that of any order, on the same arrays."""
    x = scores(case.workload)
    if case.op == "logsumexp":
        return {
            DEFAULT: lambda: cpu.logsumexp(x, (1,), threads=THREADS)[0],
            ANY: lambda: cpu_exact.logsumexp(x, (1,), threads=THREADS),
        }
    out, log = like(x), case.op == "log_softmax"
    return {
        DEFAULT: lambda: cpu.softmax(x, out, (1,), log=log, threads=THREADS),
        ANY: lambda: cpu_exact.softmax(x, out, (1,), log=log, threads=THREADS),
    }


def measure(case: Case, budget: float) -> dict[str, Any]:
    contenders = [Contender(name, call, np.asarray) for name, call in calls(case).items()]
    for contender in contenders:
        warm(contender)
    timings = interleave(contenders, {}, budget)
    return {
        "name": case.workload.name,
        "goal": case.goal,
        "seconds": {name: timing.median for name, timing in timings.items()},
        "rounds": {name: timing.rounds for name, timing in timings.items()},
        "ratio": timings[ANY].median / timings[DEFAULT].median,
    }


def merge(quick: bool, budget: float) -> dict[str, Any]:
    """States of 28 bytes of random rows: two read, one written."""
    n = 256 if quick else STATES
    random = np.random.default_rng(0)

    def states() -> exact.State:
        m = (random.standard_normal(n) * 20).astype(np.float32)
        return m, random.integers(0, 1 << 40, (n, exact.FLOAT32.slices))

    left, right = states(), states()
    nbytes = sum(a.nbytes for a in left)
    source, target = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def copy() -> float:
        return float(_core.probe("copy", cpu.address(source), cpu.address(target), nbytes, THREADS))

    contender = Contender(ANY, lambda: cpu_exact.merge(left, right), np.asarray)
    warm(Contender(ANY, contender.call, lambda found: found))
    timings = interleave([contender], {COPY: copy}, budget)
    return {
        "name": f"merge.float32.{n}",
        "goal": MERGE,
        "seconds": {name: timing.median for name, timing in timings.items()},
        "rounds": {name: timing.rounds for name, timing in timings.items()},
        "ratio": 3 * timings[COPY].median / (2 * timings[ANY].median),
    }


HEADINGS = ("case", "default, or copy, ms", f"{ANY}, ms", "ratio", "goal")


def rows_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of a table, a line a case."""
    lines = []
    for result in results:
        seconds, least = result["seconds"], result["name"].startswith("merge")
        other = seconds[COPY if least else DEFAULT]
        met = result["ratio"] >= result["goal"] if least else result["ratio"] <= result["goal"]
        goal = f"{'at least' if least else 'at most'} {result['goal']:g}" + ("" if met else ", missed")
        numbers = f"{other * 1e3:.3f}", f"{seconds[ANY] * 1e3:.3f}", f"{result['ratio']:.2f}"
        lines.append([result["name"], *numbers, goal])
    return lines


def text(data: dict[str, Any]) -> str:
    """The Markdown table of exact_rows.json."""
    title = f"Rows with {ANY} beside the default, and the merge of states beside a copy of memory:"
    return f"{title}\n\n{markdown(HEADINGS, rows_of(data['results']), 1)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the harness run?")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a case")
    arguments = parser.parse_args()
    begin, budget = time.perf_counter(), 0.001 if arguments.quick else arguments.budget
    results = [measure(case, budget) for case in cases(arguments.quick)]
    results.append(merge(arguments.quick, budget))
    console = Console(width=None if Console().is_terminal else 190)
    grid = Table(title="medians of one run, interleaved")
    for heading in HEADINGS:
        grid.add_column(heading, justify="left" if heading == "case" else "right")
    for cells in rows_of(results):
        grid.add_row(*cells)
    console.print(grid)
    body = {"results": results, "seconds": time.perf_counter() - begin}
    console.print(f"wrote {record.write('exact_rows', body, arguments.quick)}")


if __name__ == "__main__":
    main()
