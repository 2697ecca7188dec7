"""Does the predicted-best algorithm win? A grid of shapes: predicted and measured time of every safe
algorithm.

    python -m benchmarks.choice [--quick] [--name choice]

Agreement: the algorithm the model puts first is the fastest measured, or within 5 % of it. The same is asked
of what
`auto` takes. Each shape's algorithms, `auto` among them, are timed in interleaved rounds into a caller's
result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import record
from online_softmax import cpu
from online_softmax.traffic import kernels, machine, predict

OPERATIONS = ("softmax", "log_softmax", "logsumexp")
DTYPES = ("float32", "bfloat16")
#: In L1, in L2, in the last-level cache, and in memory, on most machines.
TENSOR_BYTES = (16 << 10, 256 << 10, 4 << 20, 64 << 20)
COLUMNS = (32, 128, 512, 2048, 8192, 32768, 131072, 1 << 20)
WITHIN = 1.05


@dataclass(frozen=True)
class Line:
    """One shape: seconds by algorithm, predicted and measured (`auto` measured alone)."""

    operation: str
    dtype: str
    rows: int
    columns: int
    predicted: dict[str, float]
    measured: dict[str, float]
    bound: str

    @property
    def chosen(self) -> str:
        """The algorithm the model puts first."""
        return min(self.predicted, key=lambda name: self.predicted[name])

    def loses(self, name: str) -> float:
        """How much longer than the fastest safe algorithm."""
        return self.measured[name] / min(self.measured[safe] for safe in predict.SAFE)


def shapes() -> Iterator[tuple[str, str, int, int]]:
    """(operation, dtype, rows, columns) of the grid."""
    for operation in OPERATIONS:
        for dtype in DTYPES:
            size = cpu.numpy_dtype(dtype).itemsize
            for nbytes in TENSOR_BYTES:
                for columns in COLUMNS:
                    if columns * size <= nbytes:
                        yield operation, dtype, nbytes // (columns * size), columns


def measure(operation: str, dtype: str, rows: int, columns: int, budget: float) -> Line:
    """Predict, then time."""
    kind = cpu.numpy_dtype(dtype)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((rows, columns), np.float32) * np.float32(4)).astype(kind)
    out = np.empty_like(x)
    host = kernels.predictor()
    guesses = {name: predict.predict(operation, name, rows, columns, dtype, host) for name in predict.SAFE}
    calls = {name: kernels.call(operation, x, out, name) for name in (*predict.SAFE, "auto")}
    measured = machine.interleaved(calls, budget=budget, rounds=(7, 61))
    first = min(guesses.values(), key=lambda guess: guess.seconds)
    seconds = {name: guess.seconds for name, guess in guesses.items()}
    return Line(operation, dtype, rows, columns, seconds, measured, first.bound)


def table(lines: list[Line]) -> Table:
    """A line a shape; times in microseconds, predicted / measured."""
    grid = Table(title="predicted / measured, microseconds")
    headings = (
        "operation",
        "dtype",
        "rows",
        "columns",
        *predict.SAFE,
        "auto",
        "first",
        "loses",
        "auto loses",
    )
    for heading in headings:
        grid.add_column(heading, justify="right")
    for line in lines:
        grid.add_row(
            line.operation,
            line.dtype,
            str(line.rows),
            str(line.columns),
            *(f"{1e6 * line.predicted[a]:.1f} / {1e6 * line.measured[a]:.1f}" for a in predict.SAFE),
            f"{1e6 * line.measured['auto']:.1f}",
            line.chosen,
            f"{line.loses(line.chosen):.2f}",
            f"{line.loses('auto'):.2f}",
        )
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few shapes: does the harness run?")
    parser.add_argument("--name", default="choice", help="results/NAME.json")
    arguments = parser.parse_args()
    grid = list(shapes())
    if arguments.quick:
        grid = [shape for shape in grid if shape[2] * shape[3] <= 1 << 17][::8]
    lines = [measure(*shape, budget=0.02 if arguments.quick else 0.6) for shape in grid]
    Console(width=170).print(table(lines))
    agreed = sum(line.loses(line.chosen) <= WITHIN for line in lines)
    auto = sum(line.loses("auto") <= WITHIN for line in lines)
    results: list[dict[str, Any]] = [
        asdict(line)
        | {"chosen": line.chosen, "loses": line.loses(line.chosen), "auto_loses": line.loses("auto")}
        for line in lines
    ]
    path = record.write(
        arguments.name,
        {"results": results, "agreed": agreed, "auto_agreed": auto, "shapes": len(lines)},
        arguments.quick,
    )
    print(
        f"the predicted-best algorithm is the fastest, or within 5 % of it, on {agreed} of {len(lines)} "
        f"shapes, auto's on {auto}; wrote {path}"
    )


if __name__ == "__main__":
    main()
