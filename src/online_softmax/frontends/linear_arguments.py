"""Arguments of the linear losses, checked and put into the one form that the core reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .. import cpu
from ..cpu_linear import Linear
from ..cpu_losses import IGNORED, Problem
from . import checks
from . import loss_arguments as arguments
from .loss_arguments import Options
from .loss_calls import Call

Array = checks.Array

#: Bytes for what is neither operand nor result.
MEMORY: Final = 64 << 20


@dataclass(frozen=True)
class LinearCall:
    """A call of linear cross-entropy, checked.

    Attributes:
        call: its loss; logits are a stand-in without memory of their own.
        linear: its products.
        kept: (tokens,) bool: rows that are not ignored.
        shape: of hidden.
        formats: of the gradients of hidden, weight and bias; None without a bias.
    """

    call: Call
    linear: Linear
    kept: Array
    shape: tuple[int, ...]
    formats: tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any] | None]

    def rows(self, *, ignored_too: bool) -> Array:
        """Places of the rows that take part."""
        return np.arange(len(self.kept)) if ignored_too else np.flatnonzero(self.kept)


def described(
    hidden: Any,
    weight: Any,
    targets: Any,
    bias: Any,
    options: Options,
    shard: Any,
    memory: Any,
    isa: str | None,
    threads: int | None,
) -> LinearCall:
    """A call put into the form that the core takes. Raises what `linear_cross_entropy` raises."""
    states, matrix = operand(hidden, "hidden"), operand(weight, "weight")
    if not states.ndim:
        raise ValueError("hidden has no dimensions: (..., features) would do")
    if matrix.ndim != 2 or matrix.shape[1] != states.shape[-1] or not matrix.shape[0]:
        would = f"(classes, {states.shape[-1]}), at least one class, would do"
        raise ValueError(f"weight has shape {matrix.shape} for hidden of shape {states.shape}: {would}")
    formats = [checks.result_dtype(x.dtype, None) for x in (states, matrix)]
    wide = checks.FLOAT64 if checks.FLOAT64 in formats else checks.FLOAT32
    shape, classes = states.shape[:-1], matrix.shape[0]
    rules = arguments.rules_of(options, wide)
    part = None if shard is None else arguments.shard_of(shard, classes, "weight")
    weights = arguments.class_weights(options.weight, classes, options.weight_name)
    found = arguments.targets_of(targets, options, rules, shape, len(shape), classes, weights, part)
    probabilities = found.probabilities
    if probabilities is not None and probabilities.dtype not in checks.SERVED:
        probabilities = checks.cast(probabilities, checks.FLOAT32)
    offset, bias_format = bias_of(bias, classes, wide)
    budget = memory_of(memory)
    cpu.plan_of(isa, "auto", threads, "exact")
    stand_in = np.broadcast_to(np.zeros((), wide), (*shape, classes))
    rule = arguments.part_rule(rules, classes, part)
    problem = Problem(stand_in, len(shape), rule, found.index, probabilities, weights, found.row_weights)
    call = Call(stand_in, problem, shape, rules, found, weights, part)
    tokens = math.prod(shape)
    read = [x if wide == checks.FLOAT32 else checks.cast(x, wide) for x in (states, matrix)]
    linear = Linear(
        hidden=read[0].reshape(tokens, matrix.shape[1]),
        weight=read[1],
        bias=offset,
        wide=wide,
        rule=rule,
        index=found.index,
        probabilities=None if probabilities is None else probabilities.reshape(tokens, classes),
        class_weights=weights,
        row_weights=found.row_weights,
        memory=budget,
        isa=isa,
        threads=threads,
    )
    kept = np.ones(tokens, np.bool_) if found.index is None else found.index != IGNORED
    return LinearCall(call, linear, kept, states.shape, (formats[0], formats[1], bias_format))


def operand(value: Any, name: str) -> Array:
    """hidden or weight: of a format that products are made of, or integers."""
    given = checks.array(value, name)
    if given.dtype in checks.CONVERTED:
        raise TypeError(f"{name} is {given.dtype}: bfloat16, float16 or a wider format would do")
    return given


def bias_of(bias: Any, classes: int, wide: np.dtype[Any]) -> tuple[Array | None, np.dtype[Any] | None]:
    """(classes,) of `wide`, and the format of its gradient."""
    if bias is None:
        return None, None
    given = checks.array(bias, "bias")
    if given.shape != (classes,):
        raise ValueError(f"bias has shape {given.shape}: {(classes,)}, one for each class, would do")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(given, wide), checks.result_dtype(given.dtype, None)


def memory_of(memory: Any) -> int:
    """A number of bytes."""
    if isinstance(memory, bool | np.bool_) or not isinstance(memory, int | np.integer):
        raise TypeError(f"memory is {memory!r}: a whole number of bytes, such as {MEMORY}, would do")
    if memory < 1:
        raise ValueError(f"memory is {memory}: a positive number of bytes, such as {MEMORY}, would do")
    return int(memory)


def filter_of(filter_below: Any) -> float | None:
    """The magnitude below which blocks of gradients are left out, or None."""
    if filter_below is None:
        return None
    below = checks.number(filter_below, "filter_below")
    if not 0 <= below < math.inf:
        raise ValueError(f"filter_below is {filter_below}: a number from 0 on, or None, would do")
    return below
