"""Cross-entropy with order="any": the same bits for any cut of the classes, threads, instruction set, device.

    z     = logits / temperature, in float32 (float64)
    loss  = -((z[t] - m) - log(V / T(m))): minus ExactState's log-probability of the target
    p     = T(z) / V, ExactState's probability, and q = (V - T(z[t])) / V in double, whose numerator is whole
            numbers less whole numbers

With d = dloss * row_weight of the row in double, w the class weight of its target, k = d * w and
e = (d * (2 * z_loss)) * lse + dlse:

    gradient at c != t    K * p[c],  K = (k + e) / temperature rounded to float32 (float64)
    gradient at t         (e * p[t] - k * q) / temperature, in double and rounded once

With label smoothing, whose rule is sharp * (c is t) + uniform, k has the factor sharp, d * uniform times the
sum of all class weights is added to e, and (d * uniform / temperature) * weight[c], rounded to float32 at
each step, is taken off: at t in double.

Each operation is rounded by itself. In double what is smaller than 2**-1021 counts as 0 at each, and a result
that is smaller than 2**-125 (2**-1021) is 0. q does not come from 1 - p: a target that is nearly sure keeps
its digits. Where all other classes together are below 2**-44 of the target's or so they are lost to the grid
of the state, in the loss alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .. import cpu_exact, exact
from ..cpu_losses import IGNORED
from ..exact import FLOAT64, Format
from ..exact_loss_state import ExactLossState, settled
from ..exact_sums import Sums
from . import checks, exact_rows
from . import loss_arguments as arguments
from .loss_calls import Call
from .numpy import ExactState

Array = checks.Array
_BUILT: Final = (
    "weight", "row_weight", "ignore_index", "label_smoothing", "z_loss", "temperature", "reduction", "empty",
    "return_lse", "tokens", "shard",
)  # fmt: skip


def asked(order: Any, softcap: Any, riders: Any = (), tokens: Any = None, kl_to: Any = None) -> bool:
    """Whether the order is "any". Raises ValueError for one that is not built, and for an option that "any"
    does not have."""
    if not checks.order(order):
        return False
    given = {
        "softcap": softcap is not None,
        "riders": bool(arguments.riders_of(riders)),
        "tokens": tokens is not None,
        "kl_to": kl_to is not None,
    }
    for name, there in given.items():
        if there:
            # The losses of logits have tokens, those of hidden states have not.
            *built, last = (option for option in _BUILT if option != name)
            would = f"{', '.join(built)} and {last} are built, or order='row' would do"
            raise ValueError(f"{name} with order='any' is not built: {would}")
    return True


def served(probabilities: bool, temperature: float, wide: Any) -> None:
    """Raises ValueError for targets that are not class indices, and for a temperature that is none of the
    normal numbers of a format, that of the results."""
    if probabilities:
        would = "class indices, which are integers, or order='row' would do"
        raise ValueError(f"targets holds class probabilities with order='any': {would}")
    kind = np.dtype(wide)
    least, most = exact.format_of(kind).least, float(np.finfo(kind).max)
    if not least <= temperature <= most:
        would = f"from {least} to {most}, numbers of {kind.name}, with order='any' would do"
        raise ValueError(f"temperature is {temperature}: {would}")


def indexed(call: Call) -> Array:
    """The targets, which have to be class indices, of a temperature that states hold."""
    index = call.targets.index
    served(index is None, call.rules.temperature, call.wide)
    assert index is not None
    return index


def state_of(call: Call, isa: str | None, threads: int | None) -> ExactLossState:
    """The statistics of a call's classes, all of them or a shard."""
    indexed(call)
    problem, rules = call.problem, call.rules
    m, a = exact_rows.states(problem.logits, problem.axis, rules.temperature, isa=isa, threads=threads)
    state = ExactState._wrap((m.reshape(call.rows), a.reshape(call.rows, a.shape[-1])))
    sums = None
    if rules.label_smoothing:
        sums = exact_rows.sums(problem.logits, problem.axis, rules.temperature, call.weights)
    return described(call, state, target_scores(call, problem.logits), sums)


def target_scores(call: Call, logits: Array) -> Array:
    """(rows,) of the states' dtype: scores of the targets among these classes, NaN where there is none."""
    index = indexed(call)
    form = exact.format_of(call.wide)
    found = exact_rows.taken(logits, call.problem.axis, np.where(index >= 0, index, 0))
    z = exact_rows.scores(found, call.rules.temperature, form).astype(form.dtype)
    return np.where(index >= 0, z.reshape(call.rows), form.dtype.type(np.nan))


def described(call: Call, state: ExactState, target: Array, sums: Sums | None) -> ExactLossState:
    """A state with what a call says of its rows and classes; `sums` of the scores with label smoothing."""
    index = indexed(call)
    here = index >= 0
    weights = call.weights
    classes = call.problem.logits.shape[call.problem.axis]
    return ExactLossState(
        shape=call.shape,
        state=state,
        target=target,
        target_weight=np.where(here, 1.0 if weights is None else weights[np.where(here, index, 0)], 0.0),
        parts=((0, classes) if call.shard is None else call.shard,),
        kept=index != IGNORED,
        row_weights=call.targets.row_weights,
        options=call.rules,
        scores=sums,
        weights=None if sums is None else Sums.of(np.ones(classes) if weights is None else weights, FLOAT64),
    )


def whole_of(call: Call, state: Any, isa: str | None, threads: int | None) -> ExactLossState:
    """The state of all classes that the gradient of a call needs: its own, or that of the merged parts."""
    if call.shard is None and state is None:
        return state_of(call, isa, threads)
    if call.shard is None:
        raise TypeError("shard is missing: the gradient of a part takes both shard and state")
    if not isinstance(state, ExactLossState):
        given = "missing" if state is None else f"a {type(state).__name__}"
        raise TypeError(f"state is {given}: the merged ExactLossState, which order='any' makes, would do")
    kept = indexed(call) != IGNORED
    state.serve(call.shape, kept, call.targets.row_weights, call.rules, call.shard)
    state.complete()
    if exact.format_of(call.wide) != state.form:
        raise TypeError(f"state is of {state.form.dtype} scores: {call.wide}, those of logits, would do")
    return state


@dataclass(frozen=True)
class _Factors:
    """Of the rows, (rows,): what probabilities are multiplied by, the target's entry, and with label
    smoothing what is taken off times a class's weight."""

    each: Array
    target: Array
    off: Array | None


def _factors(
    call: Call, whole: ExactLossState, d_loss: Array, d_lse: Array | None, classes_here: Array
) -> _Factors:
    form, rules = whole.form, call.rules
    temperature = float(form.dtype.type(rules.temperature))
    with np.errstate(all="ignore"):
        d = np.broadcast_to(d_loss, (call.rows,))
        if whole.row_weights is not None:
            d = settled(d * whole.row_weights)
        d = np.where(whole.kept, d, 0.0)
        rule = rules.rule(whole.classes)
        k, e = settled(d * settled(rule.sharp * whole.target_weight)), np.zeros(call.rows)
        if rules.z_loss:
            lse = whole.state.lse.astype(np.float64)
            e = np.where(whole.kept, settled(settled(d * (2 * rules.z_loss)) * lse), 0.0)
        if d_lse is not None:
            e = settled(e + d_lse)
        p, q = whole.others_of_target()
        off = None
        if whole.scores is not None:
            off = settled(d * rule.uniform)
            e = settled(e + settled(off * whole.weight_sum()))
        own = settled(e * p) - settled(k * q)
        if off is not None:
            own = settled(own) - settled(off * whole.target_weight)
            off = settled(off / temperature, form).astype(form.dtype)
        own, each = (settled(settled(v) / temperature, form).astype(form.dtype) for v in (own, k + e))
    return _Factors(each, np.where(classes_here, own, form.dtype.type(0)), off)


def gradient(
    call: Call,
    whole: ExactLossState,
    to: Array,
    d_loss: Array,
    d_lse: Array | None,
    isa: str | None,
    threads: int | None,
) -> None:
    """The gradient of a call's classes into `to`: of the logits' shape and dtype, their memory or apart.

    Args:
        d_loss: () or (rows,), the gradient of each row's own loss; d_lse: (rows,) or None. float64.
    """
    index, form, axis = indexed(call), whole.form, call.problem.axis
    factors = _factors(call, whole, d_loss, d_lse, index >= 0)
    rows, out = (np.atleast_2d(np.moveaxis(v, axis, -1)) for v in (call.problem.logits, to))
    shape, classes = rows.shape[:-1], rows.shape[-1]
    of_rows = (whole.state.m, whole.state.a, factors.each, factors.target, index, whole.kept)
    m, a, each, own, index, kept = (v.reshape(*shape, *v.shape[1:]) for v in of_rows)
    weights = None if call.weights is None else call.weights.astype(form.dtype)
    odd = ~(np.isfinite(m) & np.isfinite(each))
    left_out = ~kept if d_lse is None else np.zeros(shape, np.bool_)
    for block in exact_rows.blocks(shape, max(1, exact_rows.CACHED // classes)):
        z = exact_rows.scores(rows[block], call.rules.temperature, form).astype(form.dtype, copy=False)
        made = out[block] if out.dtype == form.dtype else np.empty(z.shape, form.dtype)
        cpu_exact.normalize(z, m[block], a[block], made, (z.ndim - 1,), isa=isa, threads=threads)
        with np.errstate(all="ignore"):
            made *= each[block][..., None]
            _clear_small(made, form)
            if factors.off is not None:
                _take_off(made, factors.off.reshape(shape)[block], weights, form)
        if odd[block].any():
            made[np.isnan(made)] = np.nan
        made[left_out[block]] = 0
        places = index[block]
        at = np.nonzero(places >= 0)
        made[(*at, places[at])] = own[block][at]
        if out.dtype != form.dtype:
            with np.errstate(over="ignore"):
                out[block] = made.astype(out.dtype)


def _clear_small(made: Array, form: Format) -> None:
    """0 for what is smaller than machines agree on, -0.0 too."""
    small = np.abs(made) < form.smallest
    if small.any():
        made[small] = 0


def _take_off(made: Array, off: Array, weights: Array | None, form: Format) -> None:
    """What label smoothing takes off the gradients `made`, (..., classes)."""
    taken = off[..., None]
    if weights is not None:
        taken = taken * weights
        _clear_small(taken, form)
    made -= taken
    _clear_small(made, form)


def log_probabilities(call: Call, state: ExactLossState, tokens: Array) -> Array:
    """Of classes (rows, k), in the states' dtype."""
    form = state.form
    rows = np.moveaxis(call.problem.logits, call.problem.axis, -1)
    found = np.take_along_axis(rows, tokens.reshape(*rows.shape[:-1], -1), axis=-1)
    z = exact_rows.scores(found, call.rules.temperature, form).astype(form.dtype).reshape(tokens.shape)
    return exact.log_value(z, state.state.m[:, None], state.state.a[:, None], form)
