"""Ours on JAX arrays beside jax.nn, both compiled, on CPUs: results/jax.json.

    python -m benchmarks.jax_rows [--quick] [--budget SECONDS]

The shapes of `cases.py` for softmax, log_softmax and logsumexp; calls of a few elements, where time is that
of the dispatch; gradients of softmax and cross-entropy; attention, causal and not, forward and backward,
against jax.nn.dot_product_attention.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import record
from benchmarks.cases import WORKLOADS, Workload, shrink
from benchmarks.contender import Contender
from benchmarks.data import DTYPES, SPREAD, scores
from benchmarks.measure import interleave, warm

OURS, JAX = "online_softmax.jax", "jax.nn"
BUDGET = 4.0
#: What a peer's time over ours has to be at least, on the shapes of `cases.py` and for attention.
BAR = 1.0
SMALL = ((4, 8), (32, 64), (100, 100))
#: (batch, length, heads, key heads, features)
ATTENTION = ((4, 512, 8, 8, 64), (1, 2048, 8, 2, 64))
QUICK_ATTENTION = ((1, 32, 2, 1, 16),)
LOGITS = ((4096, 1024), (512, 50257))


@dataclass(frozen=True)
class Case:
    """One measurement: two functions of the same arrays. `held`: whether the bar is meant for it."""

    name: str
    held: bool
    arrays: Callable[[], tuple[Any, ...]]
    functions: dict[str, Callable[..., Any]]


def row_cases(quick: bool) -> list[Case]:
    """Softmax and its kin, on arrays as JAX has them: dense."""
    made = []
    plain = [w for w in WORKLOADS if w.layout == "contiguous"]
    for workload in [shrink(w) for w in plain] if quick else plain:
        made.append(_row_case(workload, True))
    for shape in SMALL:
        made += [
            _row_case(Workload(op, "float32", shape, "small", ()), False) for op in ("softmax", "logsumexp")
        ]
    return made


def _row_case(workload: Workload, held: bool) -> Case:
    import jax

    from online_softmax import jax as ours

    functions = {
        name: partial(getattr(module, workload.op), axis=workload.axis)
        for name, module in ((OURS, ours), (JAX, jax.nn))
    }
    return Case(workload.name, held, lambda: (scores(workload),), functions)


def gradient_cases(quick: bool) -> list[Case]:
    """A sum of squares of softmax, and the mean cross-entropy, with respect to their logits."""
    import jax
    import jax.numpy as jnp

    from online_softmax import jax as ours

    def squares(softmax: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x, t: jnp.sum(softmax(x) ** 2))

    def theirs(x: Any, t: Any) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), t[:, None], 1))

    made = []
    for rows, classes in ((16, 128),) if quick else LOGITS:

        def arrays(rows: int = rows, classes: int = classes) -> tuple[Any, ...]:
            random = np.random.default_rng(0)
            x = random.standard_normal((rows, classes), dtype=np.float32) * np.float32(SPREAD)
            return x, random.integers(0, classes, rows).astype(np.int32)

        pair = {OURS: squares(ours.softmax), JAX: squares(jax.nn.softmax)}
        losses = {OURS: jax.grad(ours.cross_entropy), JAX: jax.grad(theirs)}
        size = f"{rows}x{classes}"
        made += [
            Case(f"gradient of softmax.float32.{size}", False, arrays, pair),
            Case(f"gradient of cross_entropy.float32.{size}", False, arrays, losses),
        ]
    return made


def attention_cases(quick: bool) -> list[Case]:
    """Forward and backward, in float32 and bfloat16."""
    made = []
    for sizes in QUICK_ATTENTION if quick else ATTENTION:
        for dtype in ("float32", "bfloat16"):
            for causal in (False, True):
                made += [_attention_case(sizes, dtype, causal, backward) for backward in (False, True)]
    return made


def _attention_case(sizes: tuple[int, ...], dtype: str, causal: bool, backward: bool) -> Case:
    import jax
    import jax.numpy as jnp

    from online_softmax import jax as ours

    batch, length, heads, groups, d = sizes

    def arrays() -> tuple[Any, ...]:
        random = np.random.default_rng(0)
        shapes = ((batch, length, n, d) for n in (heads, groups, groups))
        return tuple(random.standard_normal(s, dtype=np.float32).astype(DTYPES[dtype]) for s in shapes)

    def of_ours(q: Any, k: Any, v: Any) -> Any:
        return ours.attention(q, k, v, causal=causal)

    def of_jax(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def graded(function: Callable[..., Any]) -> Callable[..., Any]:
        if not backward:
            return function
        return jax.grad(lambda *a: jnp.sum(function(*a).astype(jnp.float32) ** 2), (0, 1, 2))

    words = ["attention", dtype, "x".join(map(str, sizes))]
    words += (["causal"] if causal else []) + (["backward"] if backward else [])
    return Case(".".join(words), True, arrays, {OURS: graded(of_ours), JAX: graded(of_jax)})


def measure(case: Case, budget: float) -> dict[str, Any]:
    """Medians of both, in the same rounds, and the peer's over ours."""
    import jax

    arrays = [jax.device_put(a) for a in case.arrays()]
    contenders = []
    for name, function in case.functions.items():
        compiled = jax.jit(function)

        def call(compiled: Any = compiled) -> Any:
            return jax.block_until_ready(compiled(*arrays))

        contenders.append(Contender(name, call, np.asarray))
    for contender in contenders:
        warm(Contender(contender.name, contender.call, lambda found: found))
    timings = interleave(contenders, {}, budget)
    return {
        "name": case.name,
        "elements": sum(prod(a.shape) for a in arrays),
        "bar": BAR if case.held else None,
        "seconds": {name: timing.median for name, timing in timings.items()},
        "rounds": {name: timing.rounds for name, timing in timings.items()},
        "ratio": timings[JAX].median / timings[OURS].median,
    }


def table(results: list[dict[str, Any]]) -> Table:
    """The results for a terminal."""
    grid = Table(title="milliseconds, medians of one run, contenders interleaved")
    for heading in ("case", OURS, JAX, "ratio", "bar"):
        grid.add_column(heading, justify="left" if heading == "case" else "right")
    for result in results:
        times = (f"{result['seconds'][name] * 1e3:.3f}" for name in (OURS, JAX))
        bar = "" if result["bar"] is None else f"{result['bar']:g}"
        missed = result["bar"] is not None and result["ratio"] < result["bar"]
        grid.add_row(result["name"], *times, f"{result['ratio']:.2f}", bar + (" missed" if missed else ""))
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the harness run?")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a case")
    arguments = parser.parse_args()
    begin, budget = time.perf_counter(), 0.001 if arguments.quick else arguments.budget
    quick = arguments.quick
    cases = [*row_cases(quick), *gradient_cases(quick), *attention_cases(quick)]
    results = [measure(case, budget) for case in cases]
    console = Console(width=None if Console().is_terminal else 190)
    console.print(table(results))
    body = {"results": results, "seconds": time.perf_counter() - begin}
    console.print(f"wrote {record.write('jax', body, quick)}")


if __name__ == "__main__":
    main()
