"""Arguments of the losses, checked and put into the one form that the core reads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..cpu_losses import ELSEWHERE, IGNORED
from ..loss_rules import SMOOTHINGS, Rule, Rules, checked, word
from . import checks

Array = checks.Array

RIDERS: Final = ("entropy", "rank", "correct")
#: What a target can number: it is an int64.
_MOST_CLASSES: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Options:
    """What a caller gave beside logits and targets, as it came."""

    weight: Any = None
    row_weight: Any = None
    ignore_index: Any = -100
    label_smoothing: Any = 0.0
    smoothing: Any = "pytorch"
    z_loss: Any = 0.0
    softcap: Any = None
    temperature: Any = 1.0
    reduction: Any = "mean"
    empty: Any = "nan"
    #: What a message calls `weight`.
    weight_name: str = "weight"


@dataclass(frozen=True)
class Targets:
    """Targets of rows, with what they weigh.

    Attributes:
        index: (rows,) int64, with IGNORED and ELSEWHERE; None where there are probabilities.
        probabilities: of the logits' shape, or None.
        row_weights: (rows,) float64 or None.
        denominator: of the mean.
    """

    index: Array | None
    probabilities: Array | None
    row_weights: Array | None
    denominator: float


def rules_of(options: Options, wide: np.dtype[Any]) -> Rules:
    """The options that need neither logits nor targets."""
    o = options
    index = _integer(o.ignore_index, "ignore_index")
    smoothing = checks.number(o.label_smoothing, "label_smoothing")
    if not 0 <= smoothing < 1:
        raise ValueError(f"label_smoothing is {o.label_smoothing}: from 0 on and below 1 would do")
    temperature = checks.number(o.temperature, "temperature")
    if not temperature > 0 or not 1 / temperature <= float(np.finfo(wide).max):
        would = f"a positive number, whose inverse {wide.name} holds, would do"
        raise ValueError(f"temperature is {o.temperature}: {would}")
    cap = 0.0
    if o.softcap is not None:
        cap = checks.number(o.softcap, "softcap")
        if cap <= 0:
            raise ValueError(f"softcap is {o.softcap}: a positive number would do, None for no cap")
        # One so large changes nothing, and its square would overflow.
        cap = 0.0 if cap > math.sqrt(float(np.finfo(wide).max)) else cap
    word(o.smoothing, "smoothing", SMOOTHINGS)
    z_loss = checks.number(o.z_loss, "z_loss")
    return checked(Rules(index, smoothing, o.smoothing, z_loss, cap, temperature, o.reduction, o.empty))


def class_axis(axis: Any, ndim: int) -> int:
    """The axis of the classes: the second, or that of a lone row, where it is not said."""
    if not ndim:
        raise ValueError("logits has no dimensions: (classes,) or (rows, classes, ...) would do")
    if axis is None:
        return 1 if ndim > 1 else 0
    return checks.single_axis(axis, None, ndim)


def class_weights(weight: Any, classes: int, name: str) -> Array | None:
    """(classes,) float64, or None."""
    if weight is None:
        return None
    given = checks.array(weight, name)
    if given.shape != (classes,):
        raise ValueError(f"{name} has shape {given.shape}: {(classes,)}, one for each class, would do")
    wide = np.ascontiguousarray(given, np.float64)
    if not np.isfinite(wide).all():
        at = int(np.flatnonzero(~np.isfinite(wide))[0])
        raise ValueError(f"{name}[{at}] is {wide[at]}: finite numbers would do")
    return wide


def per_row(values: Any, name: str, shape: tuple[int, ...]) -> Array:
    """One number a row, (rows,) float64."""
    given = checks.array(values, name)
    try:
        wide = np.broadcast_to(given, shape)
    except ValueError as error:
        would = f"a shape that broadcasts to {shape}, one number a row, would do"
        raise ValueError(f"{name} has shape {given.shape}: {would}") from error
    return np.ascontiguousarray(wide.astype(np.float64)).reshape(math.prod(shape))


def targets_of(
    targets: Any,
    options: Options,
    rules: Rules,
    shape: tuple[int, ...],
    axis: int,
    classes: int,
    weights: Array | None,
    shard: tuple[int, int] | None = None,
) -> Targets:
    """Targets for rows of `shape`, whose classes lie along `axis` of the logits."""
    row_weights = None if options.row_weight is None else per_row(options.row_weight, "row_weight", shape)
    given = checks.array(targets, "targets")
    if given.dtype.kind in "iu":
        index = _indices(given, rules.ignore_index, shape, classes, shard)
        counted = None if weights is None or shard else weights
        return Targets(index, None, row_weights, _denominator(index, counted, row_weights))
    if given.dtype.kind == "b":
        raise TypeError(
            "targets holds bool: integers for class indices, floats for class probabilities would do"
        )
    if shard is not None:
        raise TypeError(
            f"targets holds {given.dtype} with shard: class indices, which are integers, would do"
        )
    if rules.ignore_index >= 0:
        would = "class probabilities have no index to ignore: a negative one would do"
        raise ValueError(f"ignore_index is {rules.ignore_index}: {would}")
    expected = (*shape[:axis], classes, *shape[axis:])
    if given.shape != expected:
        would = f"{expected} would do for class probabilities, integers of shape {shape} for class indices"
        raise ValueError(f"targets has shape {given.shape} and holds {given.dtype}: {would}")
    negative = given < 0
    if negative.any():
        at = np.unravel_index(int(np.argmax(negative)), given.shape)
        raise ValueError(f"targets[{_places(at)}] is {given[at]}: probabilities from 0 on would do")
    with np.errstate(all="ignore"):
        total = float(math.prod(shape)) if row_weights is None else float(row_weights.sum())
    return Targets(None, given, row_weights, total)


def upstream(dloss: Any, rules: Rules, denominator: float, shape: tuple[int, ...]) -> Array:
    """The gradient of each row's own loss, () or (rows,) float64."""
    if rules.reduction == "none":
        given = checks.array(dloss, "dloss")
        return given.astype(np.float64) if not given.ndim else per_row(given, "dloss", shape)
    given = checks.array(dloss, "dloss")
    if given.shape not in ((), (1,)):
        would = f"one number, for reduction={rules.reduction!r}, would do"
        raise ValueError(f"dloss has shape {given.shape}: {would}")
    g = given.astype(np.float64).reshape(())
    if rules.reduction == "mean":
        if denominator == 0 and rules.empty == "zero":
            return np.zeros_like(g)
        with np.errstate(all="ignore"):
            g = np.asarray(g / np.float64(denominator))
    return g


def riders_of(riders: Any) -> tuple[str, ...]:
    """Names of what is asked for beside the loss."""
    if isinstance(riders, str) or not isinstance(riders, Iterable) or hasattr(riders, "dtype"):
        raise TypeError(f"riders is {riders!r}: some of {', '.join(map(repr, RIDERS))}, in a tuple, would do")
    names = tuple(riders)
    for name in names:
        word(name, "riders", RIDERS)
    return names


def tokens_of(tokens: Any, shape: tuple[int, ...], classes: int) -> Array:
    """Classes whose log-probabilities are wanted, (rows, k) int64."""
    given = checks.array(tokens, "tokens")
    if given.dtype.kind not in "iu":
        raise TypeError(f"tokens holds {given.dtype}: integers would do")
    if given.ndim != len(shape) + 1 or given.shape[:-1] != shape:
        raise ValueError(f"tokens has shape {given.shape}: {(*shape, 'k')}, k classes a row, would do")
    given = given.copy()  # what has been checked is what is read, though it lie where the gradient goes
    bad = (given < 0) | (given >= classes)
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), given.shape)
        would = f"0 to {classes - 1} would do"
        raise IndexError(
            f"tokens[{_places(at)}] = {given[at]} is out of range for {classes} classes: {would}"
        )
    return np.ascontiguousarray(given, np.int64).reshape(math.prod(shape), given.shape[-1])


def other_logits(kl_to: Any, logits: Array) -> Array:
    """A second stream of logits, in the first's shape and format."""
    given = checks.array(kl_to, "kl_to")
    if given.shape != logits.shape:
        raise ValueError(f"kl_to has shape {given.shape}: the shape {logits.shape} of logits would do")
    return checks.cast(given, logits.dtype)


def shard_of(shard: Any, classes: int, what: str) -> tuple[int, int]:
    """(start, stop) of a part of the vocabulary."""
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise TypeError(f"shard is {shard!r}: (start, stop), the classes that {what} has, would do")
    start, stop = (_integer(end, "shard") for end in shard)
    if start < 0 or stop - start != classes or stop > _MOST_CLASSES:
        most = f", up to {_MOST_CLASSES}," if stop > _MOST_CLASSES else ""
        would = f"(start, start + {classes}) for the {classes} classes of {what}{most} would do"
        raise ValueError(f"shard is {shard!r}: {would}")
    return start, stop


def part_rule(rules: Rules, classes: int, part: tuple[int, int] | None) -> Rule:
    """The rule of a call that sees `classes`.

    What a part keeps does not depend on how smoothing is shared out among the whole, and Megatron's way may
    not be possible among so few.
    """
    return (rules if part is None else replace(rules, smoothing="pytorch")).rule(classes)


def _indices(
    given: Array, ignore_index: int, shape: tuple[int, ...], classes: int, shard: tuple[int, int] | None
) -> Array:
    if given.shape != shape:
        would = f"{shape} would do for class indices, floats for class probabilities"
        would += "; for logits whose classes are last axis=-1" if len(shape) > 1 else ""
        raise ValueError(f"targets has shape {given.shape}: {would}")
    ignored = given == ignore_index
    bad = ~ignored & (given < 0)
    if shard is None:
        bad |= ~ignored & (given >= classes)
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), given.shape)
        place = f"targets[{_places(at)}]" if shape else "targets"
        would = (
            f"0 to {classes - 1}"
            if shard is None
            else "numbers of the whole vocabulary, which are not negative"
        )
        raise IndexError(
            f"{place} = {given[at]} is out of range for {classes} classes: "
            f"{would}, or ignore_index={ignore_index}, would do"
        )
    index = np.ascontiguousarray(given, np.int64).reshape(math.prod(shape))
    if shard is not None:
        start, stop = shard
        index = np.where((index >= start) & (index < stop), index - start, ELSEWHERE)
    return np.where(ignored.reshape(index.shape), IGNORED, index)


def _denominator(index: Array, weights: Array | None, row_weights: Array | None) -> float:
    """What a mean divides by: the weights of the targets that count, times those of their rows."""
    kept = index != IGNORED
    if weights is None and row_weights is None:
        return float(np.count_nonzero(kept))
    each = np.ones(np.count_nonzero(kept)) if weights is None else weights[index[kept]]
    with np.errstate(all="ignore"):
        return float((each if row_weights is None else each * row_weights[kept]).sum())


def _places(at: tuple[Any, ...]) -> str:
    return ", ".join(str(int(i)) for i in at)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}: an integer would do")
    return int(value)


def compute_format(logits: Array) -> np.dtype[Any]:
    """The format that logits are read in: float64 for integers, float32 for the 8-bit ones."""
    return checks.compute_dtype(checks.result_dtype(logits.dtype, None))


def empty_results(names: Iterable[str], rows: int, tokens: Array | None) -> dict[str, Array]:
    """Arrays for `cpu_losses.run` to fill; it leaves the losses of rows that take no part as they are, 0."""
    made: dict[str, Array] = {
        name: np.zeros(rows, np.int64 if name == "rank" else np.float64) for name in names
    }
    if tokens is not None:
        made["log_probabilities"] = np.empty(tokens.shape, np.float64)
    return made
