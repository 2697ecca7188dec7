"""Cross-entropies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...numerics import bounds
from .arithmetic import Arithmetic, Array, Inputs, Options, bounded, depth, eta


def targets(inputs: Inputs, options: Options) -> tuple[Array, Array, Array]:
    """(|weight| of each class's log-probability in a row's loss, rows that count, what a row adds to the
    mean's divisor).

    Shapes (N, C), (N,), (N,), classes last, from logits whose classes are on axis 1.
    """
    logits, targets = inputs["logits"], inputs["targets"]
    classes = logits.shape[0 if logits.ndim == 1 else 1]
    weight = np.abs(inputs.get("weight", np.ones(classes)))
    smoothing = options.get("label_smoothing", 0.0)
    if targets.dtype.kind in "iu":
        labels = targets.reshape(-1)
        taken = labels != options.get("ignore_index", -100)
        safe = np.where(taken, labels, 0)
        hit = np.arange(classes) == safe[:, None]
        share = (1 - smoothing) * np.where(hit, weight, 0.0) + smoothing / classes * weight
        return np.where(taken[:, None], share, 0.0), taken, np.where(taken, weight[safe], 0.0)
    t = (targets[None] if logits.ndim == 1 else np.moveaxis(targets, 1, -1)).reshape(-1, classes)
    share = ((1 - smoothing) * np.abs(t) + smoothing / classes) * weight
    return share, np.ones(len(t), bool), np.ones(len(t))


def class_rows(logits: Array) -> Array:
    return (logits[None] if logits.ndim == 1 else np.moveaxis(logits, 1, -1)).reshape(
        -1, logits.shape[0 if logits.ndim == 1 else 1]
    )


def cross_entropy(
    a: Arithmetic,
    inputs: Inputs,
    options: Options,
    right: Mapping[str, Array],
    of_logits: Array | None = None,
) -> dict[str, Array]:
    """`of_logits`: absolute errors that the logits have already, per row."""
    rows = class_rows(inputs["logits"])
    if not rows.size:
        return {"loss": np.zeros(())}
    share, taken, divisor = targets(inputs, options)
    rows = bounded(rows)
    of_log = bounds.log_softmax_error(rows, eta(a, rows.shape[-1]), u=a.v, e_log=a.e_log, tiny=a.tiny)
    m = np.max(rows, axis=-1, keepdims=True)
    distance = m - rows + np.log(np.exp(rows - m).sum(axis=-1, keepdims=True))  # -log p
    live = share > 0
    size = np.where(live, share * np.where(np.isfinite(distance), distance, 0.0), 0.0).sum(axis=-1)
    terms = depth(int(np.count_nonzero(live, axis=-1).max(initial=0)))
    error = np.where(live, share * of_log, 0.0).sum(axis=-1) + (terms + 3) * a.u * size + 2 * a.v * size
    if of_logits is not None:
        error = error + 2 * of_logits * share.sum(axis=-1)
    error = np.where(taken, error, 0.0)
    reduction = options.get("reduction", "mean")
    if reduction == "none":
        return {"loss": error.reshape(right["loss"].shape)}
    total = error.sum() + ((depth(len(rows)) + 2) * a.u + 2 * a.v) * size.sum()
    return {"loss": np.asarray(total / divisor.sum() if reduction == "mean" else total)}


def linear_logits(a: Arithmetic, inputs: Inputs, options: Options) -> tuple[Array, Array]:
    """(logits of a linear layer, their absolute error)."""
    hidden, weight = inputs["hidden"], inputs["weight"]
    hidden = hidden.reshape(-1, hidden.shape[-1])
    logits, size = hidden @ weight.T, np.abs(hidden) @ np.abs(weight).T
    exact = hidden.shape[-1] == 1 and np.array_equal(logits, logits.astype(a.dtype).astype(np.float64))
    if "bias" in inputs:
        exact = False
        logits, size = logits + inputs["bias"], size + np.abs(inputs["bias"])
    error = (hidden.shape[-1] + 2) * a.u * size + 2 * a.v * size
    # A product of two that the format holds is not rounded; nor is what is added to -inf.
    error = np.where(exact | ~np.isfinite(logits), 0.0, error)
    if options.get("softcap"):
        cap = options["softcap"]
        logits = cap * np.tanh(logits / cap)
        error = error + a.e * np.abs(logits)
    return logits, error


def linear_cross_entropy(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    logits, error = linear_logits(a, inputs, options)
    rest = {name: value for name, value in options.items() if name != "softcap"}
    made = {"logits": logits, "targets": inputs["targets"].reshape(-1)}
    return cross_entropy(a, made, rest, right, of_logits=error.max(axis=-1, initial=0.0))
