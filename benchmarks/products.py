"""The matrix products of a linear cross-entropy, ours beside NumPy's and PyTorch's: results/products.json.

    python -m benchmarks.products [--quick] [--threads N] [--budget SECONDS]

logits = hidden weight^T, dhidden = G weight and dweight += G^T hidden, of tokens that come in chunks as the
loss takes them: (tokens, 2048) and (6288, 2048), an eighth of a vocabulary. In float32, and with hidden and
weight in bfloat16, for which NumPy has no product of its own and PyTorch, without instructions for it, one of
10 seconds: fewer tokens then. Rates are held against multiply-adds that stay in registers.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import THREADS, record
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array
from benchmarks.measure import interleave, warm
from online_softmax import cpu_attention, cpu_product

FEATURES, CLASSES = 2048, 6288
TOKENS = {"float32": (336, 2048), "bfloat16": (336,)}
PRODUCTS = ("logits", "dhidden", "dweight")
OURS, NUMPY, TORCH = "online_softmax", "numpy.matmul", "torch.mm"
BUDGET = 4.0
QUICK_SIZES = (24, 64, 200)


def operands(name: str, dtype: str, tokens: int, features: int, classes: int) -> tuple[Array, Array, Array]:
    """(a, b, out) of one product: hidden and weight in `dtype`, the rest in float32."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    hidden = normal(tokens, features).astype(DTYPES[dtype])
    weight = normal(classes, features).astype(DTYPES[dtype])
    if name == "logits":
        return hidden, weight.T, np.zeros((tokens, classes), np.float32)
    gradient = normal(tokens, classes)
    if name == "dhidden":
        return gradient, weight, np.zeros((tokens, features), np.float32)
    return gradient.T, hidden, np.zeros((classes, features), np.float32)


def _torch(a: Array, b: Array, out: Array, add: bool, threads: int) -> Contender | Absent:
    try:
        import torch
    except ModuleNotFoundError as error:
        return Absent(TORCH, str(error))
    torch.set_num_threads(threads)

    def tensor(x: Array) -> Any:
        if x.dtype == np.float32:
            return torch.from_numpy(x)
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)

    # A product of PyTorch has one format: where ours are mixed, its gradient is in bfloat16 beforehand.
    formats = {x.dtype for x in (a, b)}
    narrow = len(formats) > 1 or np.dtype(np.float32) not in formats
    left, right = (tensor(x).to(torch.bfloat16) if narrow else tensor(x) for x in (a, b))
    into = torch.zeros(out.shape, dtype=left.dtype)

    def call() -> Any:
        return torch.addmm(into, left, right, out=into) if add else torch.mm(left, right, out=into)

    return Contender(TORCH, call, lambda found: found.float().numpy())


def contenders(a: Array, b: Array, out: Array, add: bool, threads: int) -> list[Contender | Absent]:
    """Ours and the peers. NumPy's product cannot add to its result: its own is the whole it can do."""

    def ours() -> Array:
        cpu_product.product(a, b, out, add=add, threads=threads)
        return out

    entries: list[Contender | Absent] = [Contender(OURS, ours, np.asarray), _torch(a, b, out, add, threads)]
    if a.dtype != np.float32 or b.dtype != np.float32:
        return [*entries, Absent(NUMPY, "no product of bfloat16 but element by element")]
    apart = np.empty_like(out)

    def theirs() -> Array:
        return np.matmul(a, b, out=apart)

    return [*entries, Contender(NUMPY, theirs, np.asarray)]


def measure(
    name: str, dtype: str, sizes: tuple[int, int, int], threads: int, budget: float
) -> dict[str, Any]:
    """One product by all contenders: flops a second, and as a part of the peak of the same minute."""
    tokens, features, classes = sizes
    a, b, out = operands(name, dtype, *sizes)
    entries = contenders(a, b, out, name == "dweight", threads)
    running = [entry for entry in entries if isinstance(entry, Contender)]
    peaks = [cpu_attention.arithmetic_peak(DTYPES["float32"], threads=threads)]
    for contender in running:
        warm(contender)
    timings = interleave(running, {}, budget)
    peaks.append(cpu_attention.arithmetic_peak(DTYPES["float32"], threads=threads))
    flops = 2 * tokens * features * classes
    return {
        "name": f"{name} {dtype} {tokens} tokens",
        "sizes": {"tokens": tokens, "features": features, "classes": classes},
        "peak": max(peaks),
        "rates": {entry: flops / timing.median for entry, timing in timings.items()},
        "of_peak": {entry: flops / timing.median / max(peaks) for entry, timing in timings.items()},
        "absent": {entry.name: entry.reason for entry in entries if isinstance(entry, Absent)},
    }


def table(results: list[dict[str, Any]]) -> Table:
    """The results for a terminal."""
    grid = Table(title="GFLOP/s, medians of one run, contenders interleaved; in brackets of the peak")
    grid.add_column("product")
    names = (OURS, NUMPY, TORCH)
    for heading in names:
        grid.add_column(heading, justify="right")
    for result in results:
        cells = (
            f"{result['rates'][name] / 1e9:.1f} ({result['of_peak'][name]:.2f})"
            if name in result["rates"]
            else "-"
            for name in names
        )
        grid.add_row(result["name"], *cells)
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the harness run?")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each library")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of measuring a product")
    arguments = parser.parse_args()
    begin, budget = time.perf_counter(), 0.001 if arguments.quick else arguments.budget
    results = [
        measure(name, dtype, sizes, arguments.threads, budget)
        for dtype, tokens in TOKENS.items()
        for sizes in ([QUICK_SIZES] if arguments.quick else [(n, FEATURES, CLASSES) for n in tokens])
        for name in PRODUCTS
    ]
    console = Console(width=None if Console().is_terminal else 190)
    console.print(table(results))
    body = {"results": results, "threads": arguments.threads, "seconds": time.perf_counter() - begin}
    console.print(f"wrote {record.write('products', body, arguments.quick)}")


if __name__ == "__main__":
    main()
