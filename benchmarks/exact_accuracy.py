"""Errors of log-sum-exp, log-softmax and softmax in any order, by default and of peers.

    python -m benchmarks.exact_accuracy [--quick] [--name exact_accuracy]     -> results/exact_accuracy.json

Rows of normal scores of several spreads and lengths, rows far from 0, and rows of one great element over many
whose terms a running sum loses. The truth is made in long doubles of 64 bits. Of log-sum-exps and
log-probabilities the largest error in units in the last place, of 1 where they are nearer to 0; of
probabilities the largest relative error, down to 2**-100. `order="any"` has a bar: each of its errors within
`error_bound`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

import online_softmax
from benchmarks import THREADS, record
from benchmarks.data import Array
from benchmarks.markdown import markdown
from online_softmax.numerics.bounds import error_bound

wide = np.longdouble
ANY, ROW, TORCH, JAX = 'order="any"', 'order="row"', "PyTorch", "JAX"
LENGTHS: Final = (1_000, 32_768, 1_000_000)
#: Elements of all rows of a case.
ELEMENTS: Final = 1 << 20
#: kind -> what makes a row of standard normal scores one of it.
KINDS: Final[dict[str, Callable[[Array], Array]]] = {
    "sigma 1": lambda x: x,
    "sigma 4": lambda x: 4 * x,
    "sigma 16": lambda x: 16 * x,
    "sigma 4, at 1e4": lambda x: 4 * x + 1e4,
    "one above all": lambda x: np.where(np.arange(x.shape[-1]) == x.shape[-1] // 2, 0.0, -16.6 + 1e-3 * x),
}
RESULTS: Final = ("lse", "log_y", "y")
#: Probabilities below this are not judged relatively.
LEAST: Final = 2.0**-100

Errors = dict[str, float]
#: Rows to their log-sum-exp, log-softmax and softmax.
Run = Callable[[Array], tuple[Array, Array, Array]]


def ours(order: str) -> Run:
    """This library's, in an order."""
    options: Any = {"order": order, "threads": THREADS}

    def run(x: Array) -> tuple[Array, Array, Array]:
        return (
            online_softmax.logsumexp(x, **options),
            online_softmax.log_softmax(x, **options),
            online_softmax.softmax(x, **options),
        )

    return run


def by_torch(x: Array) -> tuple[Array, Array, Array]:
    import torch

    t = torch.from_numpy(x)
    made = (torch.logsumexp(t, -1), torch.log_softmax(t, -1), torch.softmax(t, -1))
    return made[0].numpy(), made[1].numpy(), made[2].numpy()


def by_jax(x: Array) -> tuple[Array, Array, Array]:
    import jax

    jax.config.update("jax_enable_x64", True)
    t = jax.numpy.asarray(x)
    made = (jax.scipy.special.logsumexp(t, axis=-1), jax.nn.log_softmax(t), jax.nn.softmax(t))
    return np.asarray(made[0]), np.asarray(made[1]), np.asarray(made[2])


def contenders() -> dict[str, Run]:
    """Those that are installed."""
    runs: dict[str, Run] = {ANY: ours("any"), ROW: ours("row")}
    for module, name, run in (("torch", TORCH, by_torch), ("jax", JAX, by_jax)):
        if importlib.util.find_spec(module) is not None:
            runs[name] = run
    return runs


def truth(x: Array) -> tuple[Array, Array, Array]:
    """In long doubles."""
    x = x.astype(wide)
    m = x.max(axis=-1, keepdims=True)
    w = np.exp(x - m)
    w[np.arange(len(x)), x.argmax(axis=-1)] = 0
    rest = w.sum(axis=-1, keepdims=True)
    log_s = np.log1p(rest)
    return (m + log_s)[:, 0], x - m - log_s, np.exp(x - m) / (1 + rest)


def errors(made: tuple[Array, ...], true: tuple[Array, ...], dtype: np.dtype[Any]) -> Errors:
    """The largest of each of RESULTS."""
    found = {}
    for name, got, right in zip(("lse", "log_y"), made, true, strict=False):
        unit = np.spacing(np.maximum(np.abs(right), 1).astype(dtype))
        found[name] = float((np.abs(got - right) / unit).max())
    judged = true[2] >= LEAST
    return found | {"y": float(np.abs(made[2][judged] / true[2][judged] - 1).max())}


def share(made: tuple[Array, ...], true: tuple[Array, ...], x: Array) -> float:
    """The greatest part of its bound that an error of order="any" takes, of all results."""
    bound = error_bound(x, order="any")
    worst = 0.0
    for name, got, right in zip(RESULTS, made, true, strict=True):
        wrong = np.abs(got - right).astype(np.float64)
        told = getattr(bound, name)
        part = np.divide(wrong, told, out=np.where(wrong == 0, 0.0, np.inf), where=told > 0)
        worst = max(worst, float(part.max()))
    return worst


def compare(kind: str, dtype: np.dtype[Any], rows: int, length: int) -> dict[str, Any]:
    """One case, as it goes to JSON."""
    x = KINDS[kind](np.random.default_rng(0).standard_normal((rows, length))).astype(dtype)
    true = truth(x)
    found = {name: run(x) for name, run in contenders().items()}
    part = share(found[ANY], true, x)
    return {
        "kind": kind,
        "dtype": dtype.name,
        "rows": rows,
        "length": length,
        "errors": {name: errors(made, true, dtype) for name, made in found.items()},
        "bars": [{"statistic": "share of the bound", "bar": 1.0, "value": part, "reached": part <= 1}],
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    """All cases. Raises RuntimeError where long doubles are no wider than doubles."""
    if np.finfo(wide).nmant < 63:
        raise RuntimeError("the truth needs long doubles of 64 bits or more: x86-64's would do")
    lengths = (100, 3_000) if quick else LENGTHS
    total = 3_000 if quick else ELEMENTS
    return [
        compare(kind, np.dtype(dtype), max(1, total // length), length)
        for dtype in ("float32", "float64")
        for length in lengths
        for kind in KINDS
    ]


def _cells(line: dict[str, Any], name: str) -> list[str]:
    """The errors of one contender in a case; dashes where it is not installed."""
    if name not in line["errors"]:
        return ["-"] * len(RESULTS)
    error = line["errors"][name]
    return [f"{error['lse']:.2f}", f"{error['log_y']:.2f}", f"{error['y']:.1e}"]


HEADINGS: Final = ("dtype", "length", "rows of", "lse, ulp", "log y, ulp", "y, relative")


def rows_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """Cells under HEADINGS: of each error those of all contenders, in the order of `names`."""
    table = []
    for line in results:
        cells = zip(*(_cells(line, name) for name in (ANY, ROW, TORCH, JAX)), strict=True)
        table.append([line["dtype"], f"{line['length']:,}", line["kind"], *(" / ".join(c) for c in cells)])
    return table


def text(record: dict[str, Any]) -> str:
    """The Markdown table of exact_accuracy.json."""
    title = f"Largest errors of {ANY} / {ROW} / {TORCH} / {JAX}, against long doubles:"
    return f"{title}\n\n{markdown(HEADINGS, rows_of(record['results']), 3)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rows: does the harness run?")
    parser.add_argument("--name", default="exact_accuracy", help="results/NAME.json")
    arguments = parser.parse_args()
    results = measure(arguments.quick)
    grid = Table(title=f"{ANY} / {ROW} / {TORCH} / {JAX}")
    for heading in HEADINGS:
        grid.add_column(heading)
    for cells in rows_of(results):
        grid.add_row(*cells)
    console = Console(width=None if Console().is_terminal else 150)
    console.print(grid)
    reached = [line["bars"][0]["reached"] for line in results]
    console.print(f"within the bound: {sum(reached)} of {len(reached)} cases")
    console.print(f"wrote {record.write(arguments.name, {'results': results}, arguments.quick)}")


if __name__ == "__main__":
    main()
