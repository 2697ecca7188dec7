"""Cross-entropy of NumPy arrays: documents and routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import cpu, cpu_losses
from ..exact_loss_state import ExactLossState
from ..loss_rules import Whole, reduced
from ..loss_state import LossState
from . import arrays, checks, exact_losses
from . import loss_arguments as arguments
from .loss_arguments import Options
from .loss_calls import Call, Wanted, described, wanted_of

Array = checks.Array


class Loss(NamedTuple):
    """A loss with the log-sum-exps of the rows' scores."""

    loss: Any
    lse: Array


class LossReport(NamedTuple):
    """A loss with what was asked for beside it, of the shape of the rows; None for what was not.

    entropy, divergence and log_probabilities are in natural units, float32 (float64 for float64 logits).
    """

    loss: Any
    lse: Array
    #: Entropy of the row's distribution.
    entropy: Array | None = None
    #: Classes that come before the target in descending order of scores, equal ones by their number; int64.
    #: -1 for rows that are ignored or have no distribution.
    rank: Array | None = None
    #: Whether the target comes first.
    correct: Array | None = None
    #: Of the classes in `tokens`, of its shape.
    log_probabilities: Array | None = None
    #: sum(p * (log p - log q)), with q of the logits in `kl_to`.
    divergence: Array | None = None


class LossAndGradient(NamedTuple):
    """What `cross_entropy` returns with the same arguments, and the gradient of the loss."""

    loss: Any
    gradient: Array


@arrays.routed
def cross_entropy(
    logits: Any, targets: Any, *, axis: Any = None, weight: Any = None, row_weight: Any = None,
    ignore_index: Any = -100, label_smoothing: Any = 0.0, smoothing: Any = "pytorch", z_loss: Any = 0.0,
    softcap: Any = None, temperature: Any = 1.0, reduction: Any = "mean", empty: Any = "nan",
    return_lse: Any = False, riders: Any = (), tokens: Any = None, kl_to: Any = None, shard: Any = None,
    order: str = "row", isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """Cross-entropy of logits against targets, in one read of the logits.

    A row's scores z are softcap * tanh(logits / softcap) / temperature, and with lse = log(sum(exp(z))) its
    loss is sum of c * (lse - z) over the classes, plus z_loss * lse**2. The coefficients c follow
    torch.nn.functional.cross_entropy, with w the class weights and e the label smoothing of C classes:

        class index t           c = w[t] * (1 - e) at t, and w * e / C everywhere
        class probabilities p   c = w * ((1 - e) * p + e / C)

    The target is kept apart from the sum of the other classes, so that the loss of a row that is sure of its
    target keeps its bits: log1p(others / target), never log(p). With order="any" it does down to about 1e-11
    (float64: 1e-27), where the others fall below the grid of the state.

    Args:
        logits: (rows, classes, ...) as PyTorch has it, or (classes,); any real format and strides. Statistics
            and losses are in float32, for float64 and integers in float64.
        targets: integers of logits' shape without the classes: 0 to classes - 1, or ignore_index. Or floats
            of logits' shape: class probabilities from 0 on, which need not sum to 1.
        axis: of the classes, where it is not the second (the only one of a lone row).
        weight: (classes,), finite.
        row_weight: broadcastable to the rows: multiplies a row's loss, and counts in the mean's denominator.
        ignore_index: rows with this index have loss 0 and gradient 0, and their logits are not read.
        label_smoothing: from 0 on, below 1.
        smoothing: "megatron" shares label_smoothing out among the other classes: e is then label_smoothing *
            C / (C - 1).
        reduction: "none", "mean" (by the weights of the targets and rows that count) or "sum".
        empty: what a mean over nothing is: "nan", or "zero".
        return_lse: Loss(loss, lse), with the lse of every row, ignored ones too.
        riders: some of "entropy", "rank" and "correct", found in the same pass: a LossReport is returned.
        tokens: (rows..., k) classes whose log-probabilities are wanted, in a LossReport.
        kl_to: logits of the same shape: how far the first distribution is from theirs, in a LossReport.
        shard: (start, stop): logits has these classes of a larger vocabulary, `weight` theirs, targets are
            numbers of the whole. A `LossState` is returned, to be merged with the others'; its loss() reduces
            as is said here, or there anew. Class indices alone, without riders, tokens, kl_to and return_lse.
        order: "row": a row's bits depend on the row, the format and the instruction set. "any": on its
            elements and options alone, however classes are cut, ordered and laid out, on any machine; a row's
            loss is then minus `ExactState.logprob` of its target, a sum over rows is the exact sum rounded
            once, and `shard` gives an `ExactLossState`. Scores are logits / temperature, one division in
            float32 (float64). Class indices alone, without softcap, riders and kl_to, which raise ValueError;
            logits of ignored rows are read too.

    Returns: a number (an array for "none") in float32, in float64 for float64 logits; or as named above.
        Rows that hold NaN or +inf, or nothing but -inf, have a loss of NaN. A class of -inf whose coefficient
        is 0 counts nothing.

    Raises: TypeError, ValueError, and IndexError for a class out of range with its place, each naming the
        argument, before anything is computed.

    Cost: the logits are read once. Copies of some 256 KiB a thread where classes do not lie side by side, or
        with softcap, temperature or probabilities; 8 bytes a row and statistic.
    """
    options = Options(
        weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature, reduction,
        empty,
    )  # fmt: skip
    any_order = exact_losses.asked(order, softcap, riders, kl_to=kl_to)
    call = described(logits, targets, options, axis, shard)
    wanted = wanted_of(call, return_lse, riders, tokens, kl_to)
    if any_order:
        state = exact_losses.state_of(call, isa, threads)
        return state if call.shard is not None else of_state(state, wanted, call)
    if call.shard is not None:
        return _shard_state(call, isa, threads)
    made = arguments.empty_results(wanted.made, call.rows, wanted.tokens)
    cpu_losses.run(wanted.problem, made, isa=isa, threads=threads)
    return results_of(call, wanted, made)


@arrays.routed
def cross_entropy_backward(
    dloss: Any, logits: Any, targets: Any, *, dlse: Any = None, axis: Any = None, weight: Any = None,
    row_weight: Any = None, ignore_index: Any = -100, label_smoothing: Any = 0.0, smoothing: Any = "pytorch",
    z_loss: Any = 0.0, softcap: Any = None, temperature: Any = 1.0, reduction: Any = "mean",
    empty: Any = "nan", shard: Any = None, state: LossState | ExactLossState | None = None, out: Any = None,
    order: str = "row", isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """The gradient of `cross_entropy` with respect to the logits, in one read and one write of memory.

    The statistics are made anew while a row is in cache, so nothing has to be kept from the forward. At the
    target the gradient is minus the share of the other classes, which does not cancel.

    Args:
        dloss: gradient of the loss: a number, or for reduction="none" of the rows' shape.
        dlse: gradient of the lse, broadcastable to the rows; None for 0. Rows that are ignored have it too.
        out: where the gradient goes: an array of logits' shape and format, disjoint from logits or logits
            itself, which is then overwritten.
        shard, state: as in `cross_entropy`, with the state of all parts merged: the gradient of this part.
        order: as in `cross_entropy`. "any": the gradient's bits depend on the row's elements and options
            alone. Away from the target it is a factor times ExactState's probability, each rounded to float32
            (float64); at the target minus the share of the others in double, made of whole numbers, and
            rounded once. What is below 2**-125 (2**-1021) is 0.

    The other arguments are those of the forward.

    Returns: the gradient, of logits' shape, in its format (float64 for integers).
    """
    options = Options(
        weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature, reduction,
        empty,
    )  # fmt: skip
    any_order = exact_losses.asked(order, softcap)
    call = described(logits, targets, options, axis, shard)
    gradient = _gradient_memory(call, out)
    if any_order:
        exactly = exact_losses.whole_of(call, state, isa, threads)
        d_loss = arguments.upstream(dloss, call.rules, exactly.denominator(), call.shape)
        d_lse = None if dlse is None else arguments.per_row(dlse, "dlse", call.shape)
        exact_losses.gradient(call, exactly, gradient, d_loss, d_lse, isa, threads)
        return _as_given(call, gradient, out)
    whole = whole_of(call, state)
    denominator = state.denominator() if isinstance(state, LossState) else call.targets.denominator
    d_loss = arguments.upstream(dloss, call.rules, denominator, call.shape)
    d_lse = None if dlse is None else arguments.per_row(dlse, "dlse", call.shape)
    problem = call.problem
    if whole is not None and isinstance(state, LossState):
        problem = replace(problem, rule=call.rules.rule(state.classes))
    cpu_losses.run(
        problem, {}, gradient=gradient, d_loss=d_loss, d_lse=d_lse, whole=whole, isa=isa, threads=threads
    )  # fmt: skip
    return _as_given(call, gradient, out)


@arrays.routed
def cross_entropy_with_gradient(
    logits: Any, targets: Any, *, dloss: Any = 1.0, axis: Any = None, weight: Any = None,
    row_weight: Any = None, ignore_index: Any = -100, label_smoothing: Any = 0.0, smoothing: Any = "pytorch",
    z_loss: Any = 0.0, softcap: Any = None, temperature: Any = 1.0, reduction: Any = "mean",
    empty: Any = "nan", return_lse: Any = False, riders: Any = (), tokens: Any = None, kl_to: Any = None,
    out: Any = None, order: str = "row", isa: str | None = None, threads: int | None = None,
) -> LossAndGradient:  # fmt: skip
    """`cross_entropy` and its gradient in one call, which reads the logits once and writes once.

    Args:
        dloss, out: as in `cross_entropy_backward`; with out=logits no memory is needed beside them.

    The other arguments are those of `cross_entropy`.

    Returns: what `cross_entropy` returns, and the gradient of the loss.
    """
    options = Options(
        weight, row_weight, ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature, reduction,
        empty,
    )  # fmt: skip
    any_order = exact_losses.asked(order, softcap, riders, kl_to=kl_to)
    call = described(logits, targets, options, axis, None)
    wanted = wanted_of(call, return_lse, riders, tokens, kl_to)
    if any_order:
        state = exact_losses.state_of(call, isa, threads)
        d_loss = arguments.upstream(dloss, call.rules, state.denominator(), call.shape)
        gradient = _gradient_memory(call, out)
        found = of_state(state, wanted, call)
        exact_losses.gradient(call, state, gradient, d_loss, None, isa, threads)
        return LossAndGradient(found, _as_given(call, gradient, out))
    d_loss = arguments.upstream(dloss, call.rules, call.targets.denominator, call.shape)
    gradient = _gradient_memory(call, out, wanted.problem.other)
    made = arguments.empty_results(wanted.made, call.rows, wanted.tokens)
    cpu_losses.run(wanted.problem, made, gradient=gradient, d_loss=d_loss, isa=isa, threads=threads)
    return LossAndGradient(results_of(call, wanted, made), _as_given(call, gradient, out))


def of_state(state: ExactLossState, wanted: Wanted, call: Call) -> Any:
    """The results of an exact call that has all classes."""
    if wanted.tokens is not None:
        logs = exact_losses.log_probabilities(call, state, wanted.tokens)
        return LossReport(state.loss(), state.lse, log_probabilities=logs.reshape(*call.shape, -1))
    return Loss(state.loss(), state.lse) if wanted.lse else state.loss()


def results_of(call: Call, wanted: Wanted, made: dict[str, Array]) -> Any:
    loss = reduced(made["loss"], call.rules, call.targets.denominator, call.shape, call.wide)
    if not wanted.lse and not wanted.report:
        return loss

    def narrow(name: str) -> Array | None:
        with np.errstate(over="ignore"):
            return made[name].reshape(call.shape).astype(call.wide) if name in made else None

    lse = narrow("lse")
    if not wanted.report:
        return Loss(loss, np.asarray(lse))
    rank = made["rank"].reshape(call.shape) if "rank" in made else None
    chosen = made.get("log_probabilities")
    if chosen is not None:
        with np.errstate(over="ignore"):
            chosen = chosen.reshape((*call.shape, chosen.shape[-1])).astype(call.wide)
    return LossReport(
        loss,
        np.asarray(lse),
        narrow("entropy"),
        rank if "rank" in wanted.riders else None,
        rank == 0 if rank is not None and "correct" in wanted.riders else None,
        chosen,
        narrow("divergence"),
    )


def _gradient_memory(call: Call, out: Any, other: Array | None = None) -> Array:
    """Where the core writes the gradient: `out` itself where that has the format the core works in."""
    dtype = checks.result_dtype(call.given.dtype, None)
    taken = checks.output(out, call.given, dtype, None)
    logits = call.problem.logits
    if taken is not None:
        others = {"targets": call.problem.probabilities, "weight": call.problem.class_weights, "kl_to": other}
        for name, array in others.items():
            checks.apart(taken, array, name)
    fits = taken is not None and taken.dtype == logits.dtype and taken.flags.aligned
    if taken is not None and fits and (taken is logits or not _copied(call)):
        return taken
    return cpu.empty(logits.shape, logits.dtype, like=logits)


def _copied(call: Call) -> bool:
    return call.problem.logits is not call.given


def _as_given(call: Call, gradient: Array, out: Any) -> Array:
    result = checks.cast(gradient, checks.result_dtype(call.given.dtype, None))
    if out is None:
        return result
    if result is not out and not np.shares_memory(result, out):
        np.copyto(out, result)
    return np.asarray(out)


def whole_of(call: Call, state: LossState | ExactLossState | None) -> Whole | None:
    if call.shard is None and state is None:
        return None
    if isinstance(state, ExactLossState):
        raise TypeError("state is an ExactLossState: a LossState, which order='row' makes, would do")
    if call.shard is None or not isinstance(state, LossState):
        name, would = ("shard", "(start, stop)") if call.shard is None else ("state", "the merged LossState")
        raise TypeError(
            f"{name} is missing: the gradient of a part takes both shard and state, {would} would do"
        )
    index = call.targets.index
    assert index is not None  # a shard has no class probabilities
    kept = index != cpu_losses.IGNORED
    state.serve(call.shape, kept, call.targets.row_weights, call.rules, call.shard)
    return state.whole()


def _shard_state(call: Call, isa: str | None, threads: int | None) -> LossState:
    names = ["m", "s", "target_score"] + (["scores"] if call.rules.label_smoothing else [])
    made = arguments.empty_results(names, call.rows, None)
    cpu_losses.run(call.problem, made, isa=isa, threads=threads)
    return state_of(call, made)


def state_of(call: Call, made: dict[str, Array]) -> LossState:
    """Statistics of rows as a state, of the call's part of the vocabulary or of all of it: class indices."""
    index = call.targets.index
    assert index is not None  # who made the statistics has seen to it
    here = index >= 0
    weights = call.weights
    part = (0, call.problem.logits.shape[call.problem.axis]) if call.shard is None else call.shard
    classes = part[1] - part[0]
    of_target = np.where(here, 1.0 if weights is None else weights[np.where(here, index, 0)], 0.0)
    with np.errstate(all="ignore"):
        weight_sum = float(classes) if weights is None else float(weights.sum())
    return LossState(
        shape=call.shape,
        m=made["m"],
        s=made["s"],
        target=made["target_score"],
        target_weight=of_target,
        scores=made.get("scores"),
        weight_sum=weight_sum,
        parts=(part,),
        kept=index != cpu_losses.IGNORED,
        row_weights=call.targets.row_weights,
        options=call.rules,
        single=call.wide == np.float32,
    )
