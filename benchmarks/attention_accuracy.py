"""How accurate attention is, ours and PyTorch's, against float64: results/attention_accuracy.json.

    python -m benchmarks.attention_accuracy [--quick] [--name attention_accuracy]

Both get the same operands, rounded to the format; the truth is that of the rounded operands. PyTorch's is its
flash path. Two parts: the relative error of rows beside PyTorch's, and, on sizes where the rounding bound of
the conformance kit can be computed, every element of ours against that bound.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import online_softmax
from benchmarks import THREADS, record
from benchmarks.attention_cases import DTYPES
from benchmarks.attention_truth import RowError, row_error, truth
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.data import DTYPES as FORMATS
from benchmarks.data import Array
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance

D = 64
WIDE = 8.0  # what scores are multiplied by
SHIFT = 1e4  # what is added to every product of q and k
#: Our error over PyTorch's at most, mean and worst row.
BARS = {"float32": 1.0, "bfloat16": 1.2, "float16": 1.2}
BOUND_LENGTH, BOUND_HEADS = 96, 2
TENSORS = ("o", "dq", "dk", "dv")


@dataclass(frozen=True)
class Inputs:
    """Operands of one kind: (1, heads, length, D)."""

    kind: str
    heads: int
    length: int


INPUTS = (
    Inputs("plain", 4, 1024),
    Inputs("wide scores", 4, 1024),
    Inputs("common shift", 4, 1024),
    Inputs("long rows", 1, 8192),
)


def shrink(inputs: Inputs) -> Inputs:
    """The same on a few keys, for trying the harness."""
    return Inputs(inputs.kind, 1, 64 if inputs.length == 1024 else 192)


def operands(inputs: Inputs, dtype: str) -> dict[str, Array]:
    """q, k, v and do, normal numbers but for what the kind asks for."""
    rng = np.random.default_rng(0)
    shape = (1, inputs.heads, inputs.length, D)
    q, k, v, do = (rng.standard_normal(shape, np.float32) for _ in range(4))
    if inputs.kind == "wide scores":
        q *= np.float32(WIDE)
    elif inputs.kind == "common shift":
        q[..., 0], k[..., 0] = 1, SHIFT
    named = {"q": q, "k": k, "v": v, "do": do}
    return {name: a.astype(FORMATS[dtype]) for name, a in named.items()}


def ours(arrays: dict[str, Array], causal: bool) -> dict[str, Array]:
    """TENSORS and "lse"."""
    q, k, v, do = (arrays[name] for name in ("q", "k", "v", "do"))
    output, lse = online_softmax.attention(q, k, v, causal=causal, return_lse=True, threads=THREADS)
    made = online_softmax.attention_backward(do, q, k, v, output, lse, causal=causal, threads=THREADS)
    return {"o": output, "dq": made.q, "dk": made.k, "dv": made.v, "lse": lse}


def torch_flash(arrays: dict[str, Array], causal: bool) -> dict[str, Array]:
    """TENSORS by the flash path, which is made to take the call."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_num_threads(THREADS)
    leaves = [tensor(arrays[name]).requires_grad_() for name in ("q", "k", "v")]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        made = torch.autograd.grad(out, leaves, tensor(arrays["do"]))
    return {name: t.detach().double().numpy() for name, t in zip(TENSORS, (out, *made), strict=True)}


def _bar(statistic: str, asked: float, mine: float, other: float | None) -> dict[str, Any]:
    value = None if other is None else mine / other if other else float(mine > 0)
    reached = None if value is None else value <= asked
    return {"statistic": statistic, "bar": asked, "value": value, "reached": reached}


def compare(inputs: Inputs, dtype: str, causal: bool) -> Iterator[dict[str, Any]]:
    """A line for each of TENSORS: both errors and the bars on their ratio."""
    arrays = operands(inputs, dtype)
    right = truth(**arrays, causal=causal)
    mine = ours(arrays, causal)
    theirs = {} if TORCH_MISSING else torch_flash(arrays, causal)
    for name in TENSORS:
        error = row_error(mine[name], right[name])
        other: RowError | None = row_error(theirs[name], right[name]) if theirs else None
        yield {
            "dtype": dtype,
            **asdict(inputs),
            "d": D,
            "causal": causal,
            "tensor": name,
            "ours": asdict(error),
            "torch": None if other is None else asdict(other),
            "bars": [
                _bar("mean", BARS[dtype], error.mean, None if other is None else other.mean),
                _bar("worst row", BARS[dtype], error.worst, None if other is None else other.worst),
            ],
        }


def bounds(inputs: Inputs, dtype: str, causal: bool) -> Iterator[dict[str, Any]]:
    """A line for each of TENSORS and lse: the greatest share of its bound that an element's error takes."""
    arrays = operands(inputs, dtype)
    q, k, v, do = (arrays[name] for name in ("q", "k", "v", "do"))
    output, lse = reference.attention(q, k, v, return_lse=True, causal=causal)
    gradient = reference.attention_vjp(q, k, v, do, causal=causal)
    options = {"causal": causal}
    forward = {"o": output, "lse": lse}
    backward = {"dq": gradient.q, "dk": gradient.k, "dv": gradient.v}
    operand = {"q": q, "k": k, "v": v}
    allowed = tolerance("attention", dtype, operand, options, forward)
    allowed |= tolerance("attention_grad", dtype, operand | {"do": do}, options, backward)
    mine = ours(arrays, causal)
    for name, right in (forward | backward).items():
        wrong = np.abs(mine[name].astype(np.float64) - right)
        # 0 of 0 is exact; what is over a bound of 0, or NaN, is infinitely far off.
        share = np.divide(
            wrong, allowed[name], out=np.where(wrong == 0, 0.0, np.inf), where=allowed[name] > 0
        )
        worst = float(np.where(np.isnan(share), np.inf, share).max())
        yield {
            "dtype": dtype,
            **asdict(inputs),
            "d": D,
            "causal": causal,
            "tensor": name,
            "bars": [{"statistic": "share of the bound", "bar": 1.0, "value": worst, "reached": worst <= 1}],
        }


def measure(quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Both parts, as they go to JSON."""
    results: list[dict[str, Any]] = []
    within: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for inputs in INPUTS:
            for causal in (False, True):
                results += compare(shrink(inputs) if quick else inputs, dtype, causal)
                if inputs.length == INPUTS[0].length:
                    length = BOUND_LENGTH // 3 if quick else BOUND_LENGTH
                    within += bounds(Inputs(inputs.kind, BOUND_HEADS, length), dtype, causal)
    return {"results": results, "bounds": within}


def table(results: list[dict[str, Any]]) -> Table:
    """The comparison as a table for a terminal."""
    grid = Table(title="Relative error of rows against float64, ours / PyTorch's")
    for heading in ("dtype", "inputs", "causal", "tensor", "mean", "ratio", "worst row", "ratio", "reached"):
        grid.add_column(heading)
    for line in results:
        cells = [line["dtype"], line["kind"], "yes" if line["causal"] else "no", line["tensor"]]
        for bar, part in zip(line["bars"], ("mean", "worst"), strict=True):
            other = "-" if line["torch"] is None else f"{line['torch'][part]:.2e}"
            cells += [f"{line['ours'][part]:.2e} / {other}"]
            cells += ["-" if bar["value"] is None else f"{bar['value']:.3f}"]
        reached = [bar["reached"] for bar in line["bars"]]
        grid.add_row(*cells, "-" if None in reached else "yes" if all(reached) else "no")
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the harness run?")
    parser.add_argument("--name", default="attention_accuracy", help="results/NAME.json")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    body = measure(arguments.quick)
    console = Console(width=None if Console().is_terminal else 150)
    console.print(table(body["results"]))
    path = record.write(arguments.name, body | {"seconds": time.perf_counter() - begin}, arguments.quick)
    for part, lines in body.items():
        bars = [bar["reached"] for line in lines for bar in line["bars"]]
        console.print(f"{part}: {bars.count(True)} of {len(bars)} reached, {bars.count(None)} not measured")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
