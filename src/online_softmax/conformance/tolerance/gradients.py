"""Gradients of rows and of losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...numerics import bounds
from .arithmetic import LIBRARY_UNITS, Arithmetic, Array, Inputs, Options, as_rows, bounded, eta, taken
from .losses import class_rows, linear_logits, targets


def relative_error(a: Arithmetic, rows: Array) -> Array:
    """Relative error of each probability of the rows."""
    m = np.max(rows, axis=-1, keepdims=True)
    of_sum = bounds.sum_error(rows, eta(a, rows.shape[-1]), u=a.v, tiny=a.tiny)[..., None]
    of_exponent = np.where(np.isfinite(rows), a.v * (m - rows), 0.0)
    error = np.expm1(of_exponent + a.e + 3 * a.v - np.log1p(-np.minimum(of_sum, 1.0)))
    # What underflows is 0 and has no relative error: 0 * inf would be NaN.
    return np.where(np.exp(rows - m) > 0, error, 0.0)


def probabilities(rows: Array) -> Array:
    weights = np.exp(rows - np.max(rows, axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def softmax_grad(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    rows, back = as_rows(taken(inputs), options.get("axis", -1))
    dy, _ = as_rows(np.broadcast_to(np.abs(inputs["dy"]), inputs["x"].shape), options.get("axis", -1))
    if not rows.size:
        return {"dx": np.zeros(())}
    rows = bounded(rows)
    p, relative = probabilities(rows), relative_error(a, rows)
    dy = np.where(p > 0, dy, 0.0)
    sums = (p * dy).sum(axis=-1, keepdims=True)
    of_sum = (p * dy * np.expm1(relative + eta(a, rows.shape[-1]) + 2 * a.v)).sum(axis=-1, keepdims=True)
    return {"dx": back(p * ((relative + 3 * a.v) * (dy + sums) + (1 + relative) * of_sum) + 3 * a.tiny)}


def log_softmax_grad(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    rows, back = as_rows(taken(inputs), options.get("axis", -1))
    dy, _ = as_rows(np.broadcast_to(np.abs(inputs["dy"]), inputs["x"].shape), options.get("axis", -1))
    if not rows.size:
        return {"dx": np.zeros(())}
    rows = bounded(rows)
    p, relative = probabilities(rows), relative_error(a, rows)
    sums = dy.sum(axis=-1, keepdims=True)
    # The log-probabilities may be kept in the format, and their exponentials taken: v * |log p| of each.
    kept = a.v * np.where(p > 0, -np.log(np.where(p > 0, p, 1.0)), 0.0)
    return {
        "dx": back(
            p * sums * (relative + kept + eta(a, rows.shape[-1]) + 3 * a.v)
            + 2 * a.v * (dy + p * sums)
            + 3 * a.tiny
        )
    }


def logsumexp_grad(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    axis = options.get("axis", -1)
    rows, back = as_rows(taken(inputs), axis)
    if not rows.size:
        return {"dx": np.zeros(())}
    dlse = np.abs(inputs["dlse"]).reshape(*rows.shape[:-1], 1)
    if "b" in inputs:
        b, _ = as_rows(np.broadcast_to(inputs["b"], inputs["x"].shape), axis)
        rows = np.where(b == 0, -np.inf, rows) + np.log(np.abs(np.where(b == 0, 1.0, b)))
    rows = bounded(rows)
    p, relative = probabilities(rows), relative_error(a, rows)
    # exp(x - lse) from a rounded lse is what most do: v * |lse| more, as long as that is no gross error.
    lse = np.max(rows, axis=-1, keepdims=True) + np.log(
        np.exp(rows - np.max(rows, axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    )
    factor = np.expm1(relative + np.minimum(a.v * np.abs(lse), 0.05) + 3 * a.v)
    if "b" in inputs:
        signed = np.abs((np.sign(b) * p).sum(axis=-1, keepdims=True))
        p, factor = p / signed, factor / signed
    return {"dx": back(p * dlse * factor + 3 * a.tiny)}


def cross_entropy_grad(
    a: Arithmetic,
    inputs: Inputs,
    options: Options,
    right: Mapping[str, Array],
    of_logits: Array | None = None,
) -> dict[str, Array]:
    rows = class_rows(inputs["logits"])
    if not rows.size:
        return {"dlogits": np.zeros(())}
    share, _, divisor = targets(inputs, options)
    rows = bounded(rows)
    p = probabilities(rows)
    # p - 1 is taken in float32, or p from a log-probability kept in the format (B142): a p rounded to the
    # format first leaves nothing of it.
    wide = replace(a, v=a.u, e=LIBRARY_UNITS * a.u)
    relative = relative_error(wide, rows) + a.v * np.where(p > 0, -np.log(np.where(p > 0, p, 1.0)), 0.0)
    if of_logits is not None:
        relative = np.expm1(relative + 2 * of_logits[:, None])
    total = share.sum(axis=-1, keepdims=True)
    error = p * total * (relative + 4 * a.u + eta(wide, rows.shape[-1])) + 4 * a.u * share
    # The upstream gradient may be kept in the format: one factor for a lone target, else one a class.
    error = error + 4 * a.v * np.abs(p * total - share)
    if np.count_nonzero(share, axis=-1).max(initial=0) > 1:
        error = error + 2 * a.v * (share + p * total)
    if options.get("reduction", "mean") == "mean" and divisor.sum() > 0:
        error = error / divisor.sum()
    error = error + 4 * a.tiny
    logits = inputs["logits"]
    if logits.ndim == 1:
        return {"dlogits": error.reshape(logits.shape)}
    last = np.moveaxis(logits, 1, -1).shape
    return {"dlogits": np.moveaxis(error.reshape(last), -1, 1)}


def linear_cross_entropy_grad(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    ignored = inputs["targets"].reshape(-1) == options.get("ignore_index", -100)
    if inputs["targets"].dtype.kind in "iu":
        flat = inputs["hidden"].reshape(-1, inputs["hidden"].shape[-1])
        inputs = {**inputs, "hidden": np.where(ignored[:, None], 0.0, flat).reshape(inputs["hidden"].shape)}
    logits, error = linear_logits(a, inputs, options)
    rest = {name: value for name, value in options.items() if name != "softcap"}
    made = {"logits": logits, "targets": inputs["targets"].reshape(-1)}
    of_logits = cross_entropy_grad(a, made, rest, right, of_logits=error.max(axis=-1, initial=0.0))["dlogits"]
    share, _, divisor = targets(made, rest)
    total = share.sum(axis=-1, keepdims=True)
    size = share + probabilities(bounded(logits)) * total
    if rest.get("reduction", "mean") == "mean":
        size = size / divisor.sum()
    hidden = np.abs(inputs["hidden"]).reshape(-1, inputs["hidden"].shape[-1])
    weight = np.abs(inputs["weight"])
    of_hidden = of_logits @ weight + (len(weight) * a.u + 2 * a.v) * (size @ weight)
    of_weight = of_logits.T @ hidden + (len(hidden) * a.u + 2 * a.v) * (size.T @ hidden)
    return {"dhidden": of_hidden.reshape(inputs["hidden"].shape), "dweight": of_weight}
