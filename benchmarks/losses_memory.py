"""Peak memory of the losses: each call in a process of its own.

    python -m benchmarks.losses_memory WORK LIBRARY DTYPE ROWS CLASSES FEATURES    prints bytes

The peak is that of benchmarks.attention_memory. What a call takes beside its gradients is what is judged: of
"in place" nothing but a few statistics a row, of "linear" the budget.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax
from benchmarks import THREADS
from benchmarks.attention_memory import ROOT, STATUS, peak
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.bars import verdict
from benchmarks.data import DTYPES, Array
from benchmarks.losses_cases import CHUNKED, LINEAR, OURS, TORCH
from benchmarks.losses_work import NO_TORCH, targets_of

MIB = 1 << 20
BUDGET = 64 * MIB  # of linear_cross_entropy, its default
STATISTICS = 4 * MIB  # allowed to a call in place: scratch of the threads, 8 bytes a row and statistic
BLOCK = 1 << 20  # elements made at a time, so that no operand leaves a mark of its own on the peak

#: Work -> what takes part. "fresh": the gradient in a new array; "in place": where the logits are.
LIBRARIES = {"in place": (OURS,), "fresh": (OURS, TORCH), "linear": (OURS, LINEAR, CHUNKED)}
#: (work, rows, classes, features).
SIZES = (
    ("in place", 2048, 50257, 0),
    ("fresh", 2048, 50257, 0),
    ("linear", 512, 50257, 256),
    ("linear", 512, 256000, 256),
)
TINY_SIZES = (("in place", 64, 50257, 0), ("fresh", 64, 50257, 0), ("linear", 16, 5003, 16))


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal numbers, made in small pieces."""
    rng = np.random.default_rng(seed)
    a = np.empty(shape, DTYPES[dtype])
    flat = a.reshape(-1)
    for i in range(0, flat.size, BLOCK):
        part = flat[i : i + BLOCK]
        part[...] = rng.standard_normal(part.shape, np.float32)
    return a


def _rows_call(work: str, library: str, dtype: str, rows: int, classes: int) -> Callable[[], Any]:
    x, t = normal((rows, classes), dtype, 0), targets_of(rows, classes)
    if library == OURS:
        out = x if work == "in place" else None
        return lambda: online_softmax.cross_entropy_with_gradient(x, t, out=out, threads=THREADS)
    import torch

    leaf, targets = tensor(x).requires_grad_(), torch.from_numpy(t)
    return lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, targets), leaf)


def _linear_call(library: str, dtype: str, rows: int, classes: int, features: int) -> Callable[[], Any]:
    hidden, weight = normal((rows, features), dtype, 0), normal((classes, features), dtype, 1)
    t = targets_of(rows, classes)
    if library == OURS:
        function = online_softmax.linear_cross_entropy_with_gradient
        return lambda: function(hidden, weight, t, memory=BUDGET, threads=THREADS)
    import torch

    functional = torch.nn.functional
    leaves, targets = [tensor(a).requires_grad_() for a in (hidden, weight)], torch.from_numpy(t)
    if library == CHUNKED:
        options = torch.nn.LinearCrossEntropyOptions()
        return lambda: torch.autograd.grad(
            functional.linear_cross_entropy(*leaves, targets, options=options), leaves
        )
    return lambda: torch.autograd.grad(functional.cross_entropy(functional.linear(*leaves), targets), leaves)


def child(work: str, library: str, dtype: str, rows: int, classes: int, features: int) -> int:
    """Bytes by which a call raises this process's peak, its results included. A small call goes before it."""
    if library != OURS:
        import torch

        torch.set_num_threads(THREADS)

    def build(n: int, c: int) -> Callable[[], Any]:
        if work == "linear":
            return _linear_call(library, dtype, n, c, features)
        return _rows_call(work, library, dtype, n, c)

    build(2, 16)()
    call = build(rows, classes)
    before = peak()
    made = call()
    risen: int = peak() - before
    del made
    return risen


def gradient_bytes(work: str, dtype: str, rows: int, classes: int, features: int) -> int:
    """Of the results that are as large as operands; what is written in place takes nothing."""
    size = DTYPES[dtype].itemsize
    if work == "linear":
        return (rows + classes) * features * size
    return rows * classes * size if work == "fresh" else 0


def measure(quick: bool) -> list[dict[str, Any]]:
    """A line for each work, format and library, or why there is none."""
    lines = []
    for work, rows, classes, features in TINY_SIZES if quick else SIZES:
        for dtype in ("float32",) if quick else ("float32", "bfloat16"):
            for library in LIBRARIES[work]:
                lines.append(_line(work, library, dtype, rows, classes, features))
    return lines


def _line(work: str, library: str, dtype: str, rows: int, classes: int, features: int) -> dict[str, Any]:
    reason = _absent(library, work, dtype)
    found = None
    if reason is None:
        command = [sys.executable, "-m", "benchmarks.losses_memory"]
        command += [work, library, dtype, str(rows), str(classes), str(features)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        found = int(done.stdout)
    gradients = gradient_bytes(work, dtype, rows, classes, features)
    beside = None if found is None else max(0, found - gradients)
    bars = []
    if library == OURS and work != "fresh":
        allowed = BUDGET if work == "linear" else STATISTICS
        value = None if beside is None else beside / MIB
        bars.append(verdict("at most", library, "MiB beside the gradients", allowed / MIB, value))
    sizes = {"rows": rows, "classes": classes, "features": features}
    taken = {"logits": rows * classes * DTYPES[dtype].itemsize, "gradients": gradients}
    taken |= {"peak": found, "beside": beside}
    return (
        {"work": work, "library": library, "dtype": dtype} | sizes | taken | {"absent": reason, "bars": bars}
    )


def _absent(library: str, work: str, dtype: str) -> str | None:
    if not STATUS.exists():
        return f"no {STATUS} on this system"
    if library == OURS:
        return None
    if TORCH_MISSING:
        return NO_TORCH
    import torch

    if library == CHUNKED and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        return f"torch {torch.__version__} has no linear_cross_entropy"
    if work == "linear" and dtype == "bfloat16":
        return "left out: takes minutes where products in bfloat16 are slow"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", choices=sorted(LIBRARIES))
    parser.add_argument("library", choices=sorted({name for names in LIBRARIES.values() for name in names}))
    parser.add_argument("dtype", choices=sorted(DTYPES))
    for name in ("rows", "classes", "features"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    print(child(given.work, given.library, given.dtype, given.rows, given.classes, given.features))


if __name__ == "__main__":
    main()
