"""Markdown tables of results/torch_calls.json, training.json and jax.json.

`benchmarks.table` puts them into results/table.md, and those of training and JAX into the README.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from benchmarks.bars import bars_text, count
from benchmarks.markdown import markdown

Record = dict[str, Any]

MIB = 1 << 20
#: Contenders by the names under which benchmarks.training and benchmarks.jax_rows write them down.
OURS, FRAMEWORK, SEQUENCE = "ours", "framework", 1024
OURS_JAX, JAX = "online_softmax.jax", "jax.nn"


def training(data: Record) -> str:
    """A row a case, and what a reader has to know of it."""
    headings = ["model", "dtype", "tokens", "ours s", "framework s", "faster", "ours MiB", "framework MiB"]
    rows, notes = [], []
    for case in data["cases"]:
        median, peaks = case["median"], case["peaks"]
        times = [f"{median[name]:.2f}" for name in (OURS, FRAMEWORK)]
        memory = [f"{peaks[name] / MIB:.0f}" for name in (OURS, FRAMEWORK)]
        faster = f"{median[FRAMEWORK] / median[OURS]:.2f}x"
        names = [case["model"], case["dtype"], str(case["tokens"])]
        rows.append([*names, *times, faster, *memory, bars_text(case["bars"])])
        if case["tokens"] != SEQUENCE:
            rate = f"{case['product_gflops']:.1f} GFLOP/s"
            name = f"{case['model']} in {case['dtype']}"
            notes.append(
                f"{name} with {case['tokens']} tokens: PyTorch's products in this format run at {rate} here."
            )
    what = (
        "A training step (forward, backward, AdamW) of one sequence: a BERT of 6 layers, 384 wide, and GPT-2 "
        'small, random weights; "framework" is the same model with sdpa and F.cross_entropy. Medians of '
        f"interleaved steps, peaks of whole processes. Bars (faster; no more memory): {count(data['cases'])}."
    )
    return "\n\n".join([what, markdown([*headings, "bars"], rows, right=3), *notes])


def calls(data: Record) -> str:
    """What one call costs beside the NumPy face."""
    kinds = list(next(iter(data["results"]["softmax"].values())))
    rows = [
        [op, of_rows, *(f"{found[kind]['median_us']:.1f}" for kind in kinds)]
        for op, by_rows in data["results"].items()
        for of_rows, found in by_rows.items()
    ]
    reached = sum(bar["reached"] for bar in data["bars"])
    what = (
        "One call on tensors, microseconds of one thread. At most 5 more than the NumPy face (numpy), with a "
        f"gradient at most 20 more than what makes the same (numpy kept): {reached} of {len(data['bars'])}."
    )
    return f"{what}\n\n{markdown(['operation', 'rows', *kinds], rows, right=1)}"


def jax(data: Record) -> str:
    """Ours over jax.nn, case by case."""
    rows = [
        [r["name"], *(f"{r['seconds'][name] * 1e3:.3f}" for name in (OURS_JAX, JAX)), f"{r['ratio']:.2f}x"]
        for r in data["results"]
    ]
    return f"JAX on the CPU, milliseconds.\n\n{markdown(['case', OURS_JAX, JAX, 'faster'], rows, right=1)}"


def jax_summary(data: Record) -> str:
    """One sentence: how much faster, over which cases, and where not."""
    held = [r for r in data["results"] if r["bar"] is not None]
    slower = [f"{r['name']} {r['ratio']:.2f}x" for r in data["results"] if r["ratio"] < 1]
    groups = [
        f"{name} {_mean(r['ratio'] for r in found):.1f}x ({len(found)} cases)"
        for name in dict.fromkeys(_operation(r) for r in held)
        if (found := [r for r in held if _operation(r) == name])
    ]
    reached = sum(r["ratio"] >= r["bar"] for r in held)
    text = (
        f"Against jax.nn on the CPU, geometric means: {', '.join(groups)}. At least as fast in {reached} of "
    )
    return f"{text}{len(held)}{'; slower of all: ' + ', '.join(slower) if slower else ''}."


def _operation(result: Record) -> str:
    return str(result["name"].split(".")[0])


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))
