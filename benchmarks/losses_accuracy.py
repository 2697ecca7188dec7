"""Errors of cross-entropy and its gradient, ours and PyTorch's, against float64.

Both get the same logits, rounded to the format; the truth is that of the rounded logits. An error is stated
in units of the rounding bound of the conformance kit, which allows statistics kept in 16 bits, and in units
in the last place: of float32 for losses, of the format for gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import online_softmax
from benchmarks import THREADS
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.bars import verdict
from benchmarks.data import DTYPES, Array
from benchmarks.losses_cases import OURS, SPREAD, TORCH
from benchmarks.losses_work import targets_of, wide
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance, ulp

ROWS, CLASSES = 32, 4096
TINY_ROWS, TINY_CLASSES = 8, 160
SHIFT, SCALE = 1e4, 1e3
#: How sure confident rows are of their target: odds p / (1 - p).
SURE = {"p = 0.9995": 0.9995 / 0.0005, "p = 1 - 1e-9": 1e9}
KINDS = ("plain", "shifted by 1e4", "scaled by 1e3", *SURE)
FORMATS = ("float32", "bfloat16", "float16")
#: What is judged: the loss, the gradient, and the sum of a row of the gradient, which is 0.
TENSORS = ("loss", "gradient", "row sum")


def operands(kind: str, dtype: str, rows: int, classes: int) -> tuple[Array, Array]:
    """Logits and targets of one kind."""
    x = np.random.default_rng(0).standard_normal((rows, classes)) * SPREAD
    t = targets_of(rows, classes)
    if kind == "shifted by 1e4":
        x += SHIFT
    elif kind == "scaled by 1e3":
        x *= SCALE / SPREAD
    elif kind in SURE:
        others = np.where(np.arange(classes) == t[:, None], -np.inf, x)
        top = others.max(axis=-1)
        lse = top + np.log(np.exp(others - top[:, None]).sum(axis=-1))
        x[np.arange(rows), t] = lse + np.log(SURE[kind])
    return x.astype(np.float32).astype(DTYPES[dtype]), t


def ours(x: Array, t: Array) -> dict[str, Array]:
    """Losses of the rows, and the gradient of their sum."""
    losses = online_softmax.cross_entropy(x, t, reduction="none", threads=THREADS)
    made = online_softmax.cross_entropy_with_gradient(x, t, reduction="sum", threads=THREADS)
    return {"loss": wide(losses), "gradient": wide(made.gradient)}


def torchs(x: Array, t: Array) -> dict[str, Array]:
    """The same by PyTorch."""
    import torch

    leaf = tensor(x).requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf, torch.from_numpy(t), reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return {"loss": wide(losses), "gradient": wide(gradient)}


def compare(kind: str, dtype: str, rows: int, classes: int) -> list[dict[str, Any]]:
    """A line for each of TENSORS."""
    x, t = operands(kind, dtype, rows, classes)
    inputs = {"logits": x, "targets": t}
    right = {
        "loss": reference.cross_entropy(x, t, reduction="none"),
        "gradient": reference.cross_entropy_vjp(x, t, 1.0, reduction="sum"),
    }
    of_loss = tolerance("cross_entropy", dtype, inputs, {"reduction": "none"}, {"loss": right["loss"]})
    of_gradient = tolerance(
        "cross_entropy_grad", dtype, inputs, {"reduction": "sum"}, {"dlogits": right["gradient"]}
    )
    allowed = {"loss": of_loss["loss"], "gradient": of_gradient["dlogits"]}
    units = {
        "loss": ulp(right["loss"], np.dtype(np.float32)),
        "gradient": ulp(right["gradient"], DTYPES[dtype]),
    }
    contenders = {OURS: ours} | ({} if TORCH_MISSING else {TORCH: torchs})
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in TENSORS}
    for name, run in contenders.items():
        made = run(x, t)
        for part in ("loss", "gradient"):
            wrong = np.abs(made[part].astype(np.float64) - right[part])
            found[part][name] = {"share": _worst(wrong, allowed[part]), "ulps": _worst(wrong, units[part])}
        sums = np.abs(made["gradient"].astype(np.float64).sum(axis=-1))
        share = _worst(sums, allowed["gradient"].sum(axis=-1))
        found["row sum"][name] = {"share": share, "absolute": float(sums.max())}
    return [
        {
            "kind": kind, "dtype": dtype, "rows": rows, "classes": classes, "tensor": name,
            "errors": found[name],
            "bars": [verdict("at most", OURS, "the bound", 1.0, found[name][OURS]["share"])],
        }
        for name in TENSORS
    ]  # fmt: skip


def _worst(wrong: Array, allowed: Array) -> float:
    """The greatest quotient; 0 of 0 is exact, NaN and what is over a bound of 0 infinitely far off."""
    share = np.divide(wrong, allowed, out=np.where(wrong == 0, 0.0, np.inf), where=allowed > 0)
    return float(np.where(np.isnan(share), np.inf, share).max())


def measure(quick: bool) -> list[dict[str, Any]]:
    """All kinds in all formats."""
    rows, classes = (TINY_ROWS, TINY_CLASSES) if quick else (ROWS, CLASSES)
    return [line for dtype in FORMATS for kind in KINDS for line in compare(kind, dtype, rows, classes)]
