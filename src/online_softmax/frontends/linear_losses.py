"""Cross-entropy of logits that are a product of hidden states and a weight: documents and routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import cpu, cpu_linear, cpu_linear_gradient
from ..cpu_linear import Upstream
from ..cpu_linear_gradient import Gradients
from ..exact_loss_state import ExactLossState
from ..loss_state import LossState
from . import arrays, checks, exact_losses
from . import linear_arguments as linear
from . import loss_arguments as arguments
from .linear_arguments import MEMORY, LinearCall
from .loss_arguments import Options
from .loss_calls import Wanted, wanted_of
from .losses import Loss, of_state, results_of, state_of, whole_of
from .numpy import ExactState

Array = checks.Array


class LinearGradients(NamedTuple):
    """Gradients of `linear_cross_entropy`, of the shapes of their operands and in their formats (float64 for
    integers)."""

    hidden: Array
    weight: Array
    #: None where no bias was given.
    bias: Array | None


class LinearLossAndGradients(NamedTuple):
    """What `linear_cross_entropy` returns with the same arguments, and the gradients of the loss."""

    loss: Any
    gradients: LinearGradients


@arrays.routed
def linear_cross_entropy(
    hidden: Any, weight: Any, targets: Any, *, bias: Any = None, softcap: Any = None, temperature: Any = 1.0,
    class_weight: Any = None, row_weight: Any = None, ignore_index: Any = -100, label_smoothing: Any = 0.0,
    smoothing: Any = "pytorch", z_loss: Any = 0.0, reduction: Any = "mean", empty: Any = "nan",
    return_lse: Any = False, riders: Any = (), tokens: Any = None, shard: Any = None, memory: Any = MEMORY,
    order: str = "row", isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """Cross-entropy of the logits hidden @ weight.T + bias, which never exist as a whole.

    Tiles of logits are made, gone through by the loss and forgotten. The options, and what comes back, are
    those of `cross_entropy`, whose `weight` is `class_weight` here.

    Args:
        hidden: (..., D), weight: (V, D), bias: (V,): any real format but those of 8 bits, any strides. 16-bit
            operands are widened on the way; products and sums are in float32, in float64 where hidden or
            weight is in float64 or of integers (the other is then converted: a copy).
        targets: integers (...): 0 to V - 1, or ignore_index; or class probabilities (..., V).
        ignore_index: rows with this index are left out of all products, whatever hidden holds there, unless
            return_lse, riders, tokens or a shard ask for their lse.
        riders, tokens: as in `cross_entropy`; beside these whole rows of logits are in memory at a time, as
            with class probabilities.
        shard: (start, stop): weight has these classes of a larger vocabulary, bias and class_weight are
            theirs. A `LossState` is returned: see `cross_entropy`.
        memory: bytes for all that is neither operand nor result nor a few numbers a token: tiles, and what
            threads pack of the operands, 1.5 MiB each (and some rows of logits with softcap, temperature or
            probabilities). Four threads are counted, and up to half of the memory: the rest is on top.
        order: "any": the bits depend on hidden, weight, bias and options alone, whatever the instruction set,
            threads, `memory` and cut of the vocabulary. A logit is then one sum whose order D fixes: chains
            of multiply-adds that round once over the fewest equal pieces of D of up to 384 (float64: 192)
            features, a multiple of 8 each, which are added to the bias from left to right. Then as in
            `cross_entropy`, without tokens. Flushing subnormal numbers may change logits.

    Returns: as `cross_entropy`: float32, float64 where products are.

    Raises: TypeError, ValueError, and IndexError for a class out of range with its place, each naming the
        argument, before anything is computed. ValueError for a `memory` that holds not even one tile, or one
        row where rows are taken whole.

    Cost: one product of 2 N V D flops. The bits of a row's loss depend on the row, weight, V and memory,
        never on threads or, with reduction="none", other rows where memory has room for some hundred.
    """
    options = Options(
        class_weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature,
        reduction, empty, "class_weight",
    )  # fmt: skip
    any_order = exact_losses.asked(order, softcap, riders, tokens)
    call = linear.described(hidden, weight, targets, bias, options, shard, memory, isa, threads)
    wanted = wanted_of(call.call, return_lse, riders, tokens, None)
    of_rows = bool(set(wanted.made) - {"loss"}) or call.call.shard is not None
    rows = call.rows(ignored_too=of_rows)
    if any_order:
        state_of_all = _exact_state(call, rows)
        return state_of_all if call.call.shard is not None else of_state(state_of_all, wanted, call.call)
    whole = call.linear.probabilities is not None or wanted.report
    if not whole or call.call.shard is not None:
        state = _state(call, rows)
        if call.call.shard is not None:
            return state
        loss = state.loss(reduction=call.call.rules.reduction, empty=call.call.rules.empty)
        return Loss(loss, state.lse) if wanted.lse else loss
    made = _made(call, wanted)
    cpu_linear.whole_rows(call.linear, rows, made, wanted.tokens)
    return results_of(call.call, wanted, made)


@arrays.routed
def linear_cross_entropy_backward(
    dloss: Any, hidden: Any, weight: Any, targets: Any, *, dlse: Any = None, bias: Any = None,
    softcap: Any = None, temperature: Any = 1.0, class_weight: Any = None, row_weight: Any = None,
    ignore_index: Any = -100, label_smoothing: Any = 0.0, smoothing: Any = "pytorch", z_loss: Any = 0.0,
    reduction: Any = "mean", empty: Any = "nan", shard: Any = None, state: LossState | None = None,
    filter_below: Any = None, memory: Any = MEMORY, order: str = "row", isa: str | None = None,
    threads: int | None = None,
) -> LinearGradients:  # fmt: skip
    """The gradients of `linear_cross_entropy` with respect to hidden, weight and bias.

    The logits are made anew, piece by piece, so nothing has to be kept from the forward. Sums over tokens
    and classes are in float32 (float64), and rounded once.

    Args:
        dloss: gradient of the loss: a number, or for reduction="none" of the rows' shape.
        dlse: gradient of the lse, broadcastable to the rows; None for 0. With it, rows that are ignored are
            read too.
        shard, state: the weight's part of the vocabulary and the state of all parts merged: the gradients of
            this part, where that of hidden is to be summed over the parts.
        order: "row" alone is built: the gradients' own products have no such order yet.
        filter_below: leave blocks of 128 tokens by 512 classes out of the two products of the gradients
            where all entries of the logits' gradient g are smaller than this. Then hidden's gradient of a
            token is off by at most filter_below * sum(|weight|) over the classes left out, feature by
            feature, and the weight's of a class by filter_below * sum(|hidden|) over the tokens left out,
            beside roundings. g is that of the loss as it is reduced: of a mean, divided by the number of
            tokens. None leaves nothing out.

    The other arguments are those of the forward.

    Cost: three products of 2 N V D flops where the weight's gradient is summed in place (float32, float64)
        or fits into `memory` in float32; else four.
    """
    checks.order(order, ("row",))
    options = Options(
        class_weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature,
        reduction, empty, "class_weight",
    )  # fmt: skip
    call = linear.described(hidden, weight, targets, bias, options, shard, memory, isa, threads)
    below = linear.filter_of(filter_below)
    whole = whole_of(call.call, state)
    if whole is not None and state is not None:
        rule = call.call.rules.rule(state.classes)
        call = replace(call, linear=replace(call.linear, rule=rule))
    denominator = call.call.targets.denominator if state is None else state.denominator()
    d_loss = arguments.upstream(dloss, call.call.rules, denominator, call.call.shape)
    d_lse = None if dlse is None else arguments.per_row(dlse, "dlse", call.call.shape)
    rows = call.rows(ignored_too=d_lse is not None)
    to = _memory(call, below)
    cpu_linear_gradient.gradients(call.linear, rows, {}, Upstream(d_loss, d_lse), to, whole=whole)
    return _gradients(call, to)


@arrays.routed
def linear_cross_entropy_with_gradient(
    hidden: Any, weight: Any, targets: Any, *, dloss: Any = 1.0, bias: Any = None, softcap: Any = None,
    temperature: Any = 1.0, class_weight: Any = None, row_weight: Any = None, ignore_index: Any = -100,
    label_smoothing: Any = 0.0, smoothing: Any = "pytorch", z_loss: Any = 0.0, reduction: Any = "mean",
    empty: Any = "nan", return_lse: Any = False, riders: Any = (), tokens: Any = None,
    filter_below: Any = None, memory: Any = MEMORY, order: str = "row", isa: str | None = None,
    threads: int | None = None,
) -> LinearLossAndGradients:  # fmt: skip
    """`linear_cross_entropy` and its gradients in one call: the backward's products, and none for the loss.

    Args:
        dloss, filter_below: as in `linear_cross_entropy_backward`.

    The other arguments are those of `linear_cross_entropy`.

    Returns: what `linear_cross_entropy` returns, and the gradients of the loss.
    """
    checks.order(order, ("row",))
    options = Options(
        class_weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature,
        reduction, empty, "class_weight",
    )  # fmt: skip
    call = linear.described(hidden, weight, targets, bias, options, None, memory, isa, threads)
    wanted = wanted_of(call.call, return_lse, riders, tokens, None)
    below = linear.filter_of(filter_below)
    rules = call.call.rules
    d_loss = arguments.upstream(dloss, rules, call.call.targets.denominator, call.call.shape)
    made, to = _made(call, wanted), _memory(call, below)
    # Of ignored rows what was asked for beside the loss.
    others = np.flatnonzero(~call.kept) if set(wanted.made) - {"loss"} else None
    cpu_linear_gradient.gradients(
        call.linear, call.rows(ignored_too=False), made, Upstream(d_loss, None), to, tokens=wanted.tokens,
        others=others,
    )  # fmt: skip
    return LinearLossAndGradients(results_of(call.call, wanted, made), _gradients(call, to))


def _made(call: LinearCall, wanted: Wanted) -> dict[str, Array]:
    return arguments.empty_results(wanted.made, call.call.rows, wanted.tokens)


def _state(call: LinearCall, rows: Array) -> LossState:
    names = ["m", "s", "target_score"] + (["scores"] if call.call.rules.label_smoothing else [])
    made = arguments.empty_results(names, call.call.rows, None)
    for name, nothing in (("m", -np.inf), ("s", 0), ("target_score", np.nan), ("scores", 0)):
        if name in made:
            made[name][...] = nothing
    cpu_linear.statistics(call.linear, rows, made)
    return state_of(call.call, made)


def _exact_state(call: LinearCall, rows: Array) -> ExactLossState:
    exact_losses.indexed(call.call)
    rules = call.call.rules
    pair, target, sums = cpu_linear.exact_statistics(
        call.linear, rows, rules.temperature, sums=bool(rules.label_smoothing)
    )
    return exact_losses.described(call.call, ExactState._wrap(pair), target, sums)


def _memory(call: LinearCall, below: float | None) -> Gradients:
    hidden, weight, bias = call.formats
    classes, features = call.linear.weight.shape
    return Gradients(
        cpu.empty((len(call.kept), features), hidden),
        cpu.empty((classes, features), weight),
        None if bias is None else np.empty(classes),
        below,
    )


def _gradients(call: LinearCall, to: Gradients) -> LinearGradients:
    bias = None
    if to.bias is not None:
        with np.errstate(over="ignore"):
            bias = to.bias.astype(call.formats[2])
    return LinearGradients(to.hidden.reshape(call.shape), to.weight, bias)
