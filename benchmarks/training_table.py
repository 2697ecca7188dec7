"""The Markdown table of results/training.json."""

from __future__ import annotations

from typing import Any

from benchmarks.bars import bars_text, count
from benchmarks.markdown import markdown
from benchmarks.training import FRAMEWORK, OURS, SEQUENCE

Record = dict[str, Any]
MIB = 1 << 20


def table(data: Record) -> str:
    """A row a case, and what a reader has to know of it."""
    headings = [
        "model",
        "dtype",
        "tokens",
        "ours s",
        "framework s",
        "faster",
        "ours MiB",
        "framework MiB",
        "bars",
    ]
    rows, notes = [], []
    for case in data["cases"]:
        median, peaks = case["median"], case["peaks"]
        times = [f"{median[name]:.2f}" for name in (OURS, FRAMEWORK)]
        memory = [f"{peaks[name] / MIB:.0f}" for name in (OURS, FRAMEWORK)]
        faster = f"{median[FRAMEWORK] / median[OURS]:.2f}x"
        names = [case["model"], case["dtype"], str(case["tokens"])]
        rows.append([*names, *times, faster, *memory, bars_text(case["bars"])])
        if case["tokens"] != SEQUENCE:
            notes.append(
                f"{case['model']}, {case['dtype']}: {case['tokens']} tokens, since PyTorch's products in "
                f"this format run at {case['product_gflops']:.1f} GFLOP/s on this machine."
            )
    what = (
        "A training step (forward, backward, AdamW) of one sequence; median of interleaved steps, peaks of "
        f"whole processes. Bars met: {count(data['cases'])}."
    )
    return "\n\n".join([what, markdown(headings, rows, right=3), *notes])
