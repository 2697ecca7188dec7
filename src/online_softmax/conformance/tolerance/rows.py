"""Rows, their scans and their states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...numerics import bounds
from .arithmetic import LIBRARY_UNITS, Arithmetic, Array, Inputs, Options, as_rows, bounded, eta, taken


def softmax(a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]) -> dict[str, Array]:
    rows, back = as_rows(taken(inputs), options.get("axis", -1))
    if not rows.size:
        return {"y": np.zeros(())}
    error = bounds.softmax_error(bounded(rows), eta(a, rows.shape[-1]), u=a.v, e=a.e, tiny=a.tiny)
    return {"y": back(error)}


def log_softmax(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    rows, back = as_rows(taken(inputs), options.get("axis", -1))
    if not rows.size:
        return {"y": np.zeros(())}
    error = bounds.log_softmax_error(bounded(rows), eta(a, rows.shape[-1]), u=a.v, e_log=a.e_log, tiny=a.tiny)
    return {"y": back(error)}


def lse_rows(a: Arithmetic, rows: Array) -> Array:
    return bounds.lse_error(bounded(rows), eta(a, rows.shape[-1]), u=a.v, e_log=a.e_log, tiny=a.tiny)


def logsumexp(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    x = np.broadcast_to(taken(inputs), np.broadcast_shapes(*(array.shape for array in inputs.values())))
    rows, _ = as_rows(x, options.get("axis", -1))
    if not rows.size:
        return {"lse": np.zeros(())}
    if "b" not in inputs:
        return {"lse": lse_rows(a, rows).reshape(right["lse"].shape)}
    # A sum of terms of both signs keeps the terms' absolute errors: relative to what is left they may be
    # anything.
    b, _ = as_rows(np.broadcast_to(inputs["b"], x.shape), options.get("axis", -1))
    live = bounded(np.where(b == 0, -np.inf, rows))
    m = np.max(live, axis=-1, keepdims=True)
    terms = np.abs(b) * np.exp(live - m)
    each = np.where(terms > 0, terms * np.expm1(a.v * (m - live) + eta(a, rows.shape[-1]) + a.u), 0.0)
    wrong = each.sum(axis=-1) + a.tiny * terms.shape[-1]
    left = np.abs((b * np.exp(live - m)).sum(axis=-1))
    of_log = -np.log1p(-np.minimum(wrong / left, 1.0))
    size = np.abs(m[..., 0]) + np.abs(np.log(left)) + of_log
    return {"lse": (of_log + 2 * (a.v + a.e_log) * size).reshape(right["lse"].shape)}


def topk(a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]) -> dict[str, Array]:
    axis = options.get("axis", -1)
    error = softmax(a, inputs, options, right)["y"]
    of_values = np.take_along_axis(
        np.broadcast_to(error, inputs["x"].shape), right["indices"].astype(np.int64), axis=axis
    )
    return {"values": of_values, "lse": logsumexp(a, inputs, {"axis": axis}, right)["lse"]}


def logaddexp(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    pair = np.stack(np.broadcast_arrays(inputs["a"], inputs["b"]), axis=-1)
    return {"lse": lse_rows(a, pair)}


def logcumsumexp(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    axis = options.get("axis", -1)
    x = np.moveaxis(inputs["x"], axis, -1) if inputs["x"].ndim else inputs["x"].reshape(1)
    n = x.shape[-1]
    if not x.size:
        return {"lse": np.zeros(())}
    # One element at a time in float32, each with a rescale; or pairs of pairs, running values in the format.
    steps = a.e + n * (3 + LIBRARY_UNITS) * a.u
    levels = 2 + 2 * (n - 1).bit_length()
    prefixes = [
        bounds.lse_error(bounded(x[..., : i + 1]), steps, u=a.v, e_log=a.e_log, tiny=a.tiny) for i in range(n)
    ]
    size = 1 + np.maximum.accumulate(np.abs(np.where(np.isfinite(x), x, 0.0)), axis=-1)
    kept = (a.u * (1 + np.arange(n)) + a.v * levels) * (size + np.log1p(np.arange(n)))
    error = np.stack(prefixes, axis=-1) + kept
    return {"lse": np.moveaxis(error, -1, axis) if inputs["x"].ndim else error[0]}


def merge_attention(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    lses = np.stack([inputs["lse_a"], inputs["lse_b"]], axis=-1)
    of_lse = lse_rows(a, lses) if lses.size else np.zeros(lses.shape[:-1])
    size = sum(np.where(np.isfinite(inputs[n]), np.abs(inputs[n]), 0.0) for n in ("o_a", "o_b"))
    gap = np.where(np.isfinite(lses).all(axis=-1), np.abs(lses[..., 0] - lses[..., 1]), 0.0)
    relative = np.expm1(2 * (a.e + 4 * a.v + a.v * np.minimum(gap, 100.0)))
    return {"o": relative[..., None] * size + 2 * a.tiny, "lse": of_lse}


def merge_states(
    a: Arithmetic, inputs: Inputs, options: Options, right: Mapping[str, Array]
) -> dict[str, Array]:
    gap = np.abs(inputs["m_a"] - inputs["m_b"])
    relative = np.expm1(a.e + 3 * a.v + a.v * np.where(np.isfinite(gap), np.minimum(gap, 110.0), 0.0))
    return {"m": np.zeros_like(right["m"]), "s": relative * np.abs(right["s"]) + 2 * a.tiny}
