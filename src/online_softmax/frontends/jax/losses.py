"""Cross-entropy of JAX arrays: documents, checks and routes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...loss_rules import REDUCTIONS, SMOOTHINGS
from ..losses import Loss
from . import checks
from .loss_primitives import Options, loss_rows
from .pure_rows import wide_dtype

Array = Any
_INDICES = (np.dtype(np.int32), np.dtype(np.int64))


def cross_entropy(
    logits: Any, targets: Any, *, axis: Any = -1, weight: Any = None, row_weight: Any = None,
    ignore_index: Any = -100, label_smoothing: Any = 0.0, smoothing: Any = "pytorch", z_loss: Any = 0.0,
    softcap: Any = None, temperature: Any = 1.0, reduction: Any = "mean", empty: Any = "nan",
    return_lse: Any = False,
) -> Any:  # fmt: skip
    """Cross-entropy of logits against class indices, in one read of the logits.

    As `online_softmax.cross_entropy`, whose rule for the loss holds, with JAX's ways where they differ:
    classes lie along the last axis unless `axis` says otherwise, and an index out of range gives NaN, because
    nothing can be raised for a value that is not known yet.

    Args:
        logits: (..., classes), real. Statistics and losses in float32, for float64 in float64.
        targets: integers, logits' shape without the classes.
        axis: of the classes.
        weight: (classes,): what a class counts, a constant to derivatives.
        row_weight: broadcastable to the rows: multiplies a row's loss, and counts in the mean's denominator.
        ignore_index: rows with this index have loss 0 and gradient 0.
        label_smoothing: from 0 on, below 1.
        smoothing: "pytorch" shares it out among all classes, "megatron" among the others.
        z_loss: times lse**2, added to a row's loss.
        softcap: scores become softcap * tanh(logits / softcap).
        temperature: scores are divided by it, after softcap.
        reduction: "none", "mean" (by the weights of the targets and rows that count) or "sum".
        empty: what a mean over nothing is: "nan", or "zero".
        return_lse: Loss(loss, lse), with the lse of every row, ignored ones too.

    All but the four arrays must be known when the computation is built.

    Returns: a number, or the rows' shape for "none"; float32, float64 for float64 logits. Differentiable to
        any order in logits and row_weight.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: on a CPU one read of the logits; the gradient one read and one write, with nothing kept but the
        logits. Forward mode and derivatives past the first are made in JAX's own operations, with a few
        temporaries of logits' size where XLA does not fuse them.
    """
    cap = None if softcap is None else checks.number(softcap, "softcap")
    options = Options(
        checks.number(label_smoothing, "label_smoothing"),
        checks.word(smoothing, "smoothing", SMOOTHINGS) == "megatron",
        checks.number(z_loss, "z_loss"), cap, checks.number(temperature, "temperature"),
        checks.integer(ignore_index, "ignore_index"),
    )  # fmt: skip
    return _cross_entropy(
        checks.array(logits, "logits"), whole_targets(targets), _optional(weight, "weight"),
        _optional(row_weight, "row_weight"), axis=checks.integer(axis, "axis"), options=options,
        reduction=checks.word(reduction, "reduction", REDUCTIONS),
        empty=checks.word(empty, "empty", ("nan", "zero")),
        return_lse=checks.flag(return_lse, "return_lse"),
    )  # fmt: skip


def _optional(value: Any, name: str) -> Array | None:
    return None if value is None else checks.array(value, name)


@partial(jax.jit, static_argnames=("axis", "options", "reduction", "empty", "return_lse"), inline=True)
@checks.any_rank
def _cross_entropy(
    logits: Array, targets: Array, weight: Array | None, row_weight: Array | None, *, axis: int,
    options: Options, reduction: str, empty: str, return_lse: bool,
) -> Any:  # fmt: skip
    given = checks.computed(checks.real(logits, "logits"))
    if not given.ndim:
        raise ValueError("logits has no dimensions: (classes,) or (..., classes) would do")
    (at,) = checks.axes(axis, given.ndim)
    given = jnp.moveaxis(given, at, -1)
    *shape, classes = given.shape
    if not classes:
        raise ValueError(f"logits has no classes along axis {at}: at least one would do")
    wide = wide_dtype(given.dtype)
    options = options_of(options, classes, wide)
    index = indices(targets, tuple(shape), options.ignore_index)
    class_weight = weights_of(weight, classes, wide)
    by_row = None if row_weight is None else _by_row(row_weight, tuple(shape), wide)
    loss, lse = loss_rows(given, index, class_weight, options)
    kept = index != options.ignore_index
    if by_row is not None:
        loss = jnp.where(kept, loss * by_row, 0)
    if reduction != "none":
        counted = _denominator(index, kept, class_weight, by_row, wide) if reduction == "mean" else None
        loss = reduced(loss, counted, empty)
    return Loss(loss, lse) if return_lse else loss


def options_of(options: Options, classes: int, wide: Any) -> Options:
    """Options checked against the number of classes and the format of the statistics.

    Raises: ValueError.
    """
    o, most = options, float(jnp.finfo(wide).max)
    if not 0 <= o.label_smoothing < 1:
        raise ValueError(f"label_smoothing is {o.label_smoothing}: from 0 on and below 1 would do")
    if o.megatron and o.label_smoothing * classes > classes - 1:
        would = f"up to {(classes - 1) / classes} for {classes} classes, or smoothing='pytorch', would do"
        raise ValueError(f"label_smoothing is {o.label_smoothing} with smoothing='megatron': {would}")
    if not o.temperature > 0 or not 1 / o.temperature <= most:
        would = f"a positive number, whose inverse {jnp.dtype(wide).name} holds, would do"
        raise ValueError(f"temperature is {o.temperature}: {would}")
    if o.softcap is not None and o.softcap <= 0:
        raise ValueError(f"softcap is {o.softcap}: a positive number would do, None for no cap")
    # One so large changes nothing, and its square would overflow.
    return o._replace(softcap=None) if o.softcap is not None and o.softcap > math.sqrt(most) else o


def whole_targets(targets: Any) -> Array:
    """Targets as given, but for numbers that JAX without int64 would cut to 32 bits and take for classes."""
    given = checks.array(targets, "targets", as_given=True)
    if not checks.cut(given):
        return given
    return np.where((given >= -(2**31)) & (given < 2**31), given, 2**31 - 1).astype(np.int32)


def indices(targets: Any, shape: tuple[int, ...], ignore_index: int) -> Array:
    """Targets of rows of `shape` as int32 or int64."""
    given = jnp.asarray(targets)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"targets holds {given.dtype}: integers, one class index a row, would do")
    if given.shape != shape:
        raise ValueError(f"targets has shape {given.shape}: {shape}, one class index a row, would do")
    if given.dtype not in _INDICES:
        # What int32 cannot hold is no class: the largest number stands for it.
        past = given > jnp.asarray(min(jnp.iinfo(given.dtype).max, 2**31 - 1), given.dtype)
        given = jnp.where(past, 2**31 - 1, given.astype(jnp.int32))
    info = jnp.iinfo(given.dtype)
    if not info.min <= ignore_index <= info.max:
        raise ValueError(f"ignore_index is {ignore_index}: a number that {given.dtype} holds would do")
    return given


def weights_of(weight: Any, classes: int, wide: Any) -> Array | None:
    """(classes,) in the format of the statistics, a constant to derivatives; or None."""
    if weight is None:
        return None
    given = checks.real(weight, "weight")
    if given.shape != (classes,):
        raise ValueError(f"weight has shape {given.shape}: {(classes,)}, one for each class, would do")
    return jax.lax.stop_gradient(given).astype(wide)


def _by_row(row_weight: Any, shape: tuple[int, ...], wide: Any) -> Array:
    given = checks.real(row_weight, "row_weight")
    try:
        fits = jnp.broadcast_shapes(given.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        would = f"a shape that broadcasts to {shape}, one number a row, would do"
        raise ValueError(f"row_weight has shape {given.shape}: {would}")
    return jnp.broadcast_to(given.astype(wide), shape)


def _denominator(
    index: Array, kept: Array, class_weight: Array | None, by_row: Array | None, wide: Any
) -> Array:
    """What a mean divides by: the weights of the targets that count, times those of their rows."""
    each = jnp.ones(index.shape, wide)
    if class_weight is not None:
        each = class_weight.at[index].get(mode="clip")
    if by_row is not None:
        each = each * by_row
    return jnp.sum(jnp.where(kept, each, 0))


def reduced(loss: Array, denominator: Array | None, empty: str) -> Array:
    """The sum of the rows' losses, or their mean where there is a denominator."""
    total = jnp.sum(loss)
    if denominator is None:
        return total
    if empty == "zero":
        return jnp.where(denominator == 0, 0, total / jnp.where(denominator == 0, 1, denominator))
    return total / denominator
