"""Calls of cross-entropy, checked: what the front ends hand to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import cpu
from ..cpu_losses import Problem
from ..loss_rules import Rules
from . import checks
from . import loss_arguments as arguments
from .loss_arguments import Options, Targets

Array = checks.Array


@dataclass(frozen=True)
class Call:
    """A call of cross-entropy, checked."""

    given: Array  # logits as they came
    problem: Problem
    shape: tuple[int, ...]  # of the rows
    rules: Rules
    targets: Targets
    weights: Array | None
    shard: tuple[int, int] | None

    @property
    def wide(self) -> np.dtype[Any]:
        """The format of the loss."""
        return cpu.state_dtype(self.problem.logits.dtype)

    @property
    def rows(self) -> int:
        return math.prod(self.shape)


def described(logits: Any, targets: Any, options: Options, axis: Any, shard: Any) -> Call:
    """A call put into the form that the core takes. Raises what `cross_entropy` raises."""
    given = checks.array(logits, "logits")
    at = arguments.class_axis(axis, given.ndim)
    classes = given.shape[at]
    if not classes:
        raise ValueError(
            f"logits has shape {given.shape}, without classes: at least one along axis {at} would do"
        )
    read = checks.cast(given, arguments.compute_format(given))
    rules = arguments.rules_of(options, cpu.state_dtype(read.dtype))
    part = None if shard is None else arguments.shard_of(shard, classes, "logits")
    weights = arguments.class_weights(options.weight, classes, options.weight_name)
    shape = given.shape[:at] + given.shape[at + 1 :]
    found = arguments.targets_of(targets, options, rules, shape, at, classes, weights, part)
    probabilities = found.probabilities
    if probabilities is not None and probabilities.dtype not in checks.SERVED:
        probabilities = checks.cast(probabilities, checks.FLOAT32)
    # What smoothing shares out is known when all parts are: of one part it counts whether there is any.
    rule = arguments.part_rule(rules, classes, part)
    problem = Problem(read, at, rule, found.index, probabilities, weights, found.row_weights)
    return Call(given, problem, shape, rules, found, weights, part)


@dataclass(frozen=True)
class Wanted:
    problem: Problem
    made: tuple[str, ...]
    riders: tuple[str, ...]
    report: bool
    lse: bool
    tokens: Array | None


def wanted_of(call: Call, return_lse: Any, riders: Any, tokens: Any, kl_to: Any) -> Wanted:
    lse = checks.flag(return_lse, "return_lse")
    names = arguments.riders_of(riders)
    if call.shard is not None and (lse or names or tokens is not None or kl_to is not None):
        given = [n for n, on in (("return_lse", lse), ("riders", names)) if on]
        given += [n for n, value in (("tokens", tokens), ("kl_to", kl_to)) if value is not None]
        raise ValueError(f"{given[0]} with shard: what the merged LossState offers, lse and loss, would do")
    ranked = {"rank", "correct"} & set(names)
    if ranked and call.targets.index is None:
        raise ValueError(f"riders has {sorted(ranked)[0]!r} with class probabilities: class indices would do")
    classes = call.problem.logits.shape[call.problem.axis]
    chosen = None if tokens is None else arguments.tokens_of(tokens, call.shape, classes)
    other = None if kl_to is None else arguments.other_logits(kl_to, call.problem.logits)
    report = bool(names) or chosen is not None or other is not None
    made = ["loss"]
    made += ["lse"] if lse or report else []
    made += ["entropy"] if "entropy" in names else []
    made += ["rank"] if ranked else []
    made += ["divergence"] if other is not None else []
    problem = replace(call.problem, tokens=chosen, other=other)
    return Wanted(problem, tuple(made), names, report, lse, chosen)
