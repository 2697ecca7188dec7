"""What a call on tensors costs beside the same call on arrays: results/torch_calls.json.

Times are of one thread's processor, so that what else runs on the machine shows little. "numpy" is the NumPy
face, "tensor" the PyTorch face without gradient, "gradient" with it (forward alone), "training" forward and
backward, and each of the last three once more as PyTorch's own function. "numpy kept" is the NumPy face where
it makes what "gradient" makes in the forward: the gradient of cross-entropy, the log-sum-exps of attention.

python -m benchmarks.torch_calls [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import online_softmax
import online_softmax.torch as faces
from benchmarks import record

ROWS = (1, 64, 4096)  # of 128 elements: from a small call to one that takes all its time in the kernel
COLUMNS = 128
SAMPLE_SECONDS = 2e-3  # a sample is as many calls as fit
ROUNDS = 31
#: Microseconds that a call may take longer than the NumPy face's.
BARS = {"tensor": ("numpy", 5.0), "gradient": ("numpy kept", 20.0)}

Call = Callable[[], Any]


def _grads(call: Callable[[], torch.Tensor], leaves: tuple[torch.Tensor, ...]) -> Call:
    up = torch.ones_like(call())
    return lambda: torch.autograd.grad(call(), leaves, up)


def _contenders(
    arrays: tuple[Any, ...],
    numpy: tuple[Callable[..., Any], Callable[..., Any]],
    ours: Callable[..., torch.Tensor],
    theirs: Callable[..., torch.Tensor],
    floats: int,
) -> dict[str, Call]:
    """Calls of each kind; the first `floats` operands want a gradient where there is one.

    numpy: what the forward does, and what it does where a gradient will be asked for.
    """
    plain = tuple(torch.from_numpy(a) for a in arrays)
    leaves = tuple(t.clone().requires_grad_() for t in plain[:floats])
    operands = (*leaves, *plain[floats:])
    calls: dict[str, Call] = {"numpy": lambda: numpy[0](*arrays), "numpy kept": lambda: numpy[1](*arrays)}
    for name, function in (("", ours), ("torch ", theirs)):
        calls[f"{name}tensor"] = lambda function=function: function(*plain)
        calls[f"{name}gradient"] = lambda function=function: function(*operands)
        calls[f"{name}training"] = _grads(lambda function=function: function(*operands), leaves)
    return calls


def contenders(op: str, rows: int) -> dict[str, Call]:
    """Calls on float32 of `rows` rows."""
    generator = np.random.default_rng(0)

    def noise(*shape: int) -> Any:
        return generator.standard_normal(shape, dtype=np.float32)

    functional, attend = torch.nn.functional, online_softmax.attention
    loss, both = online_softmax.cross_entropy, online_softmax.cross_entropy_with_gradient
    if op == "attention":
        operands = tuple(noise(1, 1, rows, 64) if rows < 4096 else noise(1, 8, 512, 64) for _ in range(3))
        return _contenders(
            operands, (partial(attend, threads=1), partial(attend, threads=1, return_lse=True)),
            faces.attention, functional.scaled_dot_product_attention, 3,
        )  # fmt: skip
    x = noise(rows, COLUMNS)
    if op == "cross_entropy":
        targets = generator.integers(0, COLUMNS, rows)
        return _contenders(
            (x, targets), (partial(loss, threads=1), partial(both, threads=1)), faces.cross_entropy,
            functional.cross_entropy, 1,
        )  # fmt: skip
    numpy, ours = partial(getattr(online_softmax, op), threads=1), getattr(faces, op)
    return _contenders((x,), (numpy, numpy), ours, lambda x: getattr(torch, op)(x, -1), 1)


def sample(call: Call, calls: int) -> float:
    """Microseconds a call over `calls` calls."""
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls * 1e6


def measure(op: str, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median and least microseconds a call of every contender, in interleaved rounds."""
    table = contenders(op, rows)
    repeats = {}
    for name, call in table.items():
        sample(call, 3)
        repeats[name] = max(1, round(SAMPLE_SECONDS / (sample(call, 5) * 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in table}
    order, names = random.Random(0), list(table)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(sample(table[name], repeats[name]))
    return {name: {"median_us": statistics.median(s), "least_us": min(s)} for name, s in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run?")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    ops = ("softmax", "logsumexp", "cross_entropy", "attention")
    results = {op: {str(rows): measure(op, rows, 3 if quick else ROUNDS) for rows in ROWS} for op in ops}
    console = Console(width=None if Console().is_terminal else 140)
    kinds = list(results["softmax"]["1"])
    grid = Table(title="One call, microseconds of one thread (median of rounds); 'more': than the NumPy face")
    for heading in ("op", "rows", *kinds, "tensor, more", "gradient, more"):
        grid.add_column(heading, justify="left" if heading == "op" else "right")
    bars = []
    for op, by_rows in results.items():
        for rows, found in by_rows.items():
            more = {
                kind: found[kind]["median_us"] - found[base]["median_us"] for kind, (base, _) in BARS.items()
            }
            for kind, (_, bar) in BARS.items():
                bars.append(
                    {"op": op, "rows": int(rows), "kind": kind, "more_us": more[kind], "bar_us": bar,
                     "reached": more[kind] <= bar}
                )  # fmt: skip
            figures = [f"{found[kind]['median_us']:.1f}" for kind in kinds]
            grid.add_row(op, rows, *figures, *(f"{more[kind]:+.1f}" for kind in BARS))
    console.print(grid)
    missed = [bar for bar in bars if not bar["reached"]]
    console.print(f"bars reached: {len(bars) - len(missed)} of {len(bars)}")
    body = {"columns": COLUMNS, "results": results, "bars": bars, "threads": 1}
    console.print(f"wrote {record.write('torch_calls', body, quick)}")


if __name__ == "__main__":
    main()
