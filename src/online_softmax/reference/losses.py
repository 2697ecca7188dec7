"""Cross-entropy of logits, and of logits that are a product of hidden states and a weight; their gradients.

A row is one set of class logits x with lse = logsumexp(x). Its loss is

    sum over classes of c * (lse - x), and z_loss * lse**2 beside it

with coefficients c made of its target, as PyTorch has it (w: the weight of a class, 1 without; e: the label
smoothing, C: the number of classes):

    class index t           c = w[t] * (1 - e) at t, and w * e / C everywhere
    class probabilities p   c = w * ((1 - e) * p + e / C)

Rows whose index is `ignore_index` take no part: loss 0, gradient 0, their logits (or hidden states) are not
read, though they have an lse. A c of 0 drops its class even where the logit is -inf (PyTorch: NaN). A class
with c > 0 and a logit of -inf gives a loss of +inf. A row whose maximum is NaN, +inf or -inf has no
probabilities: its loss is NaN, and its gradient is.

The mean divides by the sum of the weights of the targets (by their number without weights); for class
probabilities by the number of rows. Where that is 0 it is NaN, with `empty="zero"` it is 0. The z-loss of a
row is not weighted, and summed and divided as the rest of its loss.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .wide import (
    Array,
    Wide,
    as_wide,
    broadcast,
    complements,
    integers,
    log_probabilities,
    log_sums,
    maximum,
    narrow,
    number,
    one_of,
    others,
    probabilities,
    real,
)


class LinearGradients(NamedTuple):
    """Gradients of `linear_cross_entropy`, float64 and of the shapes of their operands."""

    hidden: Array
    weight: Array
    #: None where no bias was given.
    bias: Array | None


class _Targets(NamedTuple):
    """The targets of n rows as coefficients: see the text above."""

    #: (n, C)
    coefficients: Array
    #: (n,) bool: the rows that take part
    keep: Array
    #: What the mean divides by.
    denominator: np.longdouble


def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    empty: str = "nan",
    return_lse: bool = False,
) -> Any:
    """Cross-entropy of logits (N, C, d1, ...) or (C,): a float64 scalar, of the targets' shape with
    reduction="none"; with `return_lse` the pair (loss, lse), lse of every row, (N, d1, ...) or ().

    targets: integers of the shape of logits without the classes, 0 to C - 1 or `ignore_index`; or floats of
    the shape of the logits, class probabilities, which need not sum to 1. weight: (C,). Reductions: "none",
    "mean", "sum". Raises IndexError for a class out of range, by its place; TypeError for operands of a wrong
    dtype; ValueError for shapes that do not fit, a label_smoothing outside 0 to 1, an `ignore_index` from
    0 on beside class probabilities, and an unknown reduction or `empty`. Semantics: torch.nn.functional's
    cross_entropy.
    """
    rows, shape = _class_rows(logits)
    taken = _targets(targets, rows.shape[-1], shape, weight, ignore_index, label_smoothing)
    _check_reduction(reduction, empty)
    loss = _reduced(_losses(rows, taken, number(z_loss, "z_loss")), taken, shape, reduction, empty)
    return (loss, narrow(log_sums(rows)).reshape(shape)[()]) if return_lse else loss


def cross_entropy_vjp(
    logits: ArrayLike,
    targets: ArrayLike,
    dloss: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    empty: str = "nan",
) -> Array:
    """The gradient with respect to the logits: float64, their shape.

    dloss has the shape of the loss or broadcasts to it; dlse that of the lse, None for 0. Rows that are
    ignored have gradient 0 but for what dlse gives them. Options and errors as in `cross_entropy`.
    """
    rows, shape = _class_rows(logits)
    taken = _targets(targets, rows.shape[-1], shape, weight, ignore_index, label_smoothing)
    _check_reduction(reduction, empty)
    g = _row_gradient(dloss, taken, shape, reduction, empty)
    dx = _logit_gradient(rows, taken, number(z_loss, "z_loss"), g, _of_lse(dlse, shape))
    given = np.asarray(logits)
    moved = narrow(dx).reshape(*shape, given.shape[1 if given.ndim > 1 else 0])
    return np.ascontiguousarray(np.moveaxis(moved, -1, 1 if given.ndim > 1 else 0))


def linear_cross_entropy(
    hidden: ArrayLike,
    weight: ArrayLike,
    targets: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    class_weight: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    empty: str = "nan",
    return_lse: bool = False,
) -> Any:
    """Cross-entropy of the logits hidden @ weight.T + bias, capped to softcap * tanh(logits / softcap).

    hidden (..., D), weight (V, D), bias (V,); targets integers (...) or class probabilities (..., V). Results
    as of `cross_entropy`, with shape (...) for "none" and lse. Raises as `cross_entropy`, and ValueError for
    sizes that do not fit and a softcap that is not positive. `class_weight` is the other's `weight`.
    """
    raw, shape = _products(hidden, weight, bias)
    rows = _capped(raw, softcap)[0]
    taken = _targets(targets, rows.shape[-1], shape, class_weight, ignore_index, label_smoothing, last=True)
    _check_reduction(reduction, empty)
    loss = _reduced(_losses(rows, taken, number(z_loss, "z_loss")), taken, shape, reduction, empty)
    return (loss, narrow(log_sums(rows)).reshape(shape)[()]) if return_lse else loss


def linear_cross_entropy_vjp(
    hidden: ArrayLike,
    weight: ArrayLike,
    targets: ArrayLike,
    dloss: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    class_weight: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    empty: str = "nan",
) -> LinearGradients:
    """The gradients with respect to hidden, weight and bias.

    Rows that are ignored add nothing to those of weight and bias, whatever their hidden states hold. dloss
    and dlse as in `cross_entropy_vjp`, the rest as in `linear_cross_entropy`.
    """
    raw, shape = _products(hidden, weight, bias)
    rows, slope = _capped(raw, softcap)
    taken = _targets(targets, rows.shape[-1], shape, class_weight, ignore_index, label_smoothing, last=True)
    _check_reduction(reduction, empty)
    g = _row_gradient(dloss, taken, shape, reduction, empty)
    read = taken.keep if dlse is None else np.ones_like(taken.keep)
    states, matrix = as_wide(hidden, "hidden"), as_wide(weight, "weight")
    flat = states.reshape(len(rows), matrix.shape[-1])
    with np.errstate(all="ignore"):
        dx = (_logit_gradient(rows, taken, number(z_loss, "z_loss"), g, _of_lse(dlse, shape)) * slope)[read]
        dhidden = np.zeros_like(flat)
        dhidden[read] = dx @ matrix
        dweight = dx.T @ flat[read]
        dbias = None if bias is None else narrow(dx.sum(axis=0))
    return LinearGradients(narrow(dhidden).reshape(states.shape), narrow(dweight), dbias)


def _class_rows(logits: ArrayLike) -> tuple[Array, tuple[int, ...]]:
    """(wide rows of classes (n, C), the shape of the targets)."""
    array = as_wide(logits, "logits")
    if not array.ndim:
        raise ValueError("logits has no dimensions: (classes,) or (rows, classes, ...) would do")
    moved = np.moveaxis(array, 1 if array.ndim > 1 else 0, -1)
    shape = moved.shape[:-1]
    return moved.reshape(math.prod(shape), moved.shape[-1]), shape


def _products(hidden: ArrayLike, weight: ArrayLike, bias: ArrayLike | None) -> tuple[Array, tuple[int, ...]]:
    """(wide logits (n, V) before the cap, hidden's shape without its features)."""
    states, matrix = as_wide(hidden, "hidden"), as_wide(weight, "weight")
    if not states.ndim:
        raise ValueError("hidden has no dimensions: (..., features) would do")
    if matrix.ndim != 2 or matrix.shape[-1] != states.shape[-1]:
        would = f"(classes, {states.shape[-1]}) would do for hidden of shape {states.shape}"
        raise ValueError(f"weight has shape {matrix.shape}: {would}")
    shape = states.shape[:-1]
    offset = as_wide(0.0 if bias is None else bias, "bias")
    if bias is not None and offset.shape != matrix.shape[:1]:
        raise ValueError(f"bias has shape {offset.shape}: {matrix.shape[:1]} would do")
    with np.errstate(all="ignore"):
        return states.reshape(math.prod(shape), states.shape[-1]) @ matrix.T + offset, shape


def _capped(raw: Array, softcap: float | None) -> tuple[Array, Array]:
    """(logits, their derivative by the product): cap * tanh(raw / cap) and 1 / cosh(raw / cap)**2."""
    if softcap is None:
        return raw, np.ones_like(raw)
    cap = number(softcap, "softcap")
    if cap <= 0:
        raise ValueError(f"softcap={softcap}: a positive number, or None for no cap, would do")
    with np.errstate(all="ignore"):
        return cap * np.tanh(raw / cap), 1 / np.cosh(raw / cap) ** 2


def _targets(
    targets: ArrayLike,
    classes: int,
    shape: tuple[int, ...],
    weight: ArrayLike | None,
    ignore_index: int,
    label_smoothing: float,
    *,
    last: bool = False,
) -> _Targets:
    """The coefficients of targets for rows of `shape`; `last`: the classes of probabilities lie last."""
    if not isinstance(ignore_index, int | np.integer):
        raise TypeError(f"ignore_index={ignore_index!r}: an integer would do")
    smoothing = number(label_smoothing, "label_smoothing")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing={label_smoothing}: 0 to 1 would do")
    name = "class_weight" if last else "weight"
    w = as_wide(np.ones(classes) if weight is None else weight, name)
    if w.shape != (classes,):
        raise ValueError(f"{name} has shape {w.shape}: {(classes,)}, one for each class, would do")
    uniform = w * (smoothing / max(classes, 1))
    given = real(targets, "targets")
    n = math.prod(shape)
    if given.dtype.kind not in "iub":
        if ignore_index >= 0:
            none = "class probabilities have no index to ignore: a negative one would do"
            raise ValueError(f"ignore_index={ignore_index}: {none}")
        p = _probability_rows(given, classes, shape, last)
        return _Targets((1 - smoothing) * w * p + uniform, np.ones(n, np.bool_), Wide(n))
    if given.shape != shape:
        would = f"{shape} would do for class indices, floats for class probabilities"
        raise ValueError(f"targets has shape {given.shape}: {would}")
    keep = integers(given, "targets") != ignore_index
    bad = keep & ((given < 0) | (given >= classes))
    if bad.any():
        at = np.unravel_index(np.flatnonzero(bad)[0], shape)
        place = f"targets[{', '.join(map(str, at))}]" if shape else "targets"
        would = f"0 to {classes - 1}, or ignore_index={ignore_index}, would do"
        raise IndexError(f"{place} = {given[at]} is out of range for {classes} classes: {would}")
    keep = keep.reshape(n)
    index = given.reshape(n)[keep].astype(np.int64)
    coefficients = np.zeros((n, classes), Wide)
    coefficients[keep] = uniform
    coefficients[np.flatnonzero(keep), index] += (1 - smoothing) * w[index]
    return _Targets(coefficients, keep, Wide(w[index].sum()))


def _probability_rows(given: Array, classes: int, shape: tuple[int, ...], last: bool) -> Array:
    """Class probabilities as wide rows (n, C)."""
    expected = (*shape, classes) if last else (*shape[:1], classes, *shape[1:])
    if given.shape != expected:
        would = f"{expected} would do for class probabilities, integers for class indices"
        raise ValueError(f"targets has shape {given.shape} and holds {given.dtype}: {would}")
    wide = as_wide(given, "targets")
    return (wide if last else np.moveaxis(wide, len(shape[:1]), -1)).reshape(math.prod(shape), classes)


def _check_reduction(reduction: str, empty: str) -> None:
    one_of(reduction, "reduction", ("none", "mean", "sum"))
    one_of(empty, "empty", ("nan", "zero"))


def _losses(rows: Array, taken: _Targets, z_loss: np.longdouble) -> Array:
    """The loss of each row, 0 where it is ignored."""
    log_p = log_probabilities(rows)
    with np.errstate(all="ignore"):
        dropped = (taken.coefficients == 0) & (log_p == -np.inf)
        loss = np.where(dropped, 0, taken.coefficients * -log_p).sum(axis=-1)
        # Not 0 * lse**2: the lse may be infinite.
        loss = loss + (z_loss * log_sums(rows) ** 2 if z_loss else 0)
    return np.where(taken.keep, loss, 0)


def _reduced(loss: Array, taken: _Targets, shape: tuple[int, ...], reduction: str, empty: str) -> Any:
    if reduction == "none":
        return narrow(loss).reshape(shape)[()]
    if reduction == "mean" and taken.denominator == 0 and empty == "zero":
        return np.float64(0)
    with np.errstate(all="ignore"):
        total = loss.sum()
        return narrow(total / taken.denominator if reduction == "mean" else total)[()]


def _row_gradient(
    dloss: ArrayLike, taken: _Targets, shape: tuple[int, ...], reduction: str, empty: str
) -> Array:
    """The gradient of each row's own loss, (n,)."""
    n = len(taken.keep)
    if reduction == "none":
        return broadcast(as_wide(dloss, "dloss"), shape, "dloss").reshape(n)
    g = broadcast(as_wide(dloss, "dloss"), (), "dloss")
    if reduction == "mean":
        nothing = taken.denominator == 0 and empty == "zero"
        with np.errstate(all="ignore"):
            g = np.zeros_like(g) if nothing else g / taken.denominator
    return np.broadcast_to(g, (n,))


def _of_lse(dlse: ArrayLike | None, shape: tuple[int, ...]) -> Array | None:
    if dlse is None:
        return None
    return broadcast(as_wide(dlse, "dlse"), shape, "dlse").reshape(math.prod(shape))


def _logit_gradient(
    rows: Array, taken: _Targets, z_loss: np.longdouble, g: Array, dlse: Array | None
) -> Array:
    """g * (p * sum of the other coefficients - c * (1 - p)) and what z-loss and dlse add, (n, C)."""
    p, c = probabilities(rows), taken.coefficients
    with np.errstate(all="ignore"):
        dx = p * others(c) - c * complements(rows)
        dx = dx + (2 * z_loss * log_sums(rows)[:, None] * p if z_loss else 0)
        dx = np.where(taken.keep[:, None], g[:, None] * dx, 0)
        if dlse is not None:
            dx = dx + np.where(maximum(rows) == -np.inf, 0, dlse[:, None] * p)
    return dx
