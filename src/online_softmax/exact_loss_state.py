"""Cross-entropy whose bits do not depend on how a vocabulary was cut, nor on the order of its parts.

A row's statistics are an `ExactState` of all its classes, and its loss is minus the log-probability of the
target under that: what a sampler of the same order reports. Sums over rows are of the exact sum of doubles,
rounded once, so they have no order either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import exact
from .exact import FLOAT64, Format
from .exact_state import ExactState, several
from .exact_sums import Sums
from .loss_rules import Rules
from .loss_state import Parted

Array = NDArray[Any]

#: From here on a sum of doubles is made of numbers 2**-64 as great, lest it overflows on the way.
_GREAT = 2.0**960


def total(values: Array) -> float:
    """The sum of doubles, rounded once: their order does not matter. NaN and infinities as in any sum."""
    finite = np.isfinite(values)
    if not finite.all():
        odd = values[~finite]
        return float(odd[0]) if (odd == odd[0]).all() else math.nan
    if values.size and np.abs(values).max() >= _GREAT:
        with np.errstate(under="ignore"):
            return math.fsum((values * 2.0**-64).tolist()) * 2.0**64
    return math.fsum(values.tolist())


def settled(values: Array, form: Format = FLOAT64) -> Array:
    """Results, or doubles on the way to them: 0 where smaller than machines agree on, and one pattern for
    NaN."""
    values = np.where(np.abs(values) < form.smallest, 0.0, values)
    return np.where(np.isnan(values), np.nan, values)


def reduced(loss: Array, rules: Rules, denominator: float, shape: tuple[int, ...], form: Format) -> Any:
    """Losses of rows, (rows,) float64, as the caller wants them."""
    with np.errstate(all="ignore"):
        if rules.reduction == "none":
            return loss.reshape(shape).astype(form.dtype)[()]
        made = np.float64(total(loss))
        if rules.reduction == "mean":
            if denominator == 0 and rules.empty == "zero":
                return form.dtype.type(0)
            made = made / np.float64(denominator)
        return form.dtype.type(settled(np.asarray(made), form))


@dataclass(frozen=True, eq=False)
class ExactLossState(Parted):
    """Rows of a batch over some classes of a vocabulary, for losses with order="any". Immutable: merge gives
    a new one, the same bits in whatever order and however the classes were cut.

    Attributes:
        shape: of the rows' targets.
        state: `ExactState` of the scores of the classes seen, the target among them: (rows,).
        target: score of the target in the states' dtype, NaN where it has not been seen: (rows,).
        target_weight: its class weight, 0 where it has not been seen: (rows,) float64.
        parts: (start, stop) of the classes seen, ascending.
        kept: rows that are not ignored; row_weights: one a row, or None.
        options: z-loss, temperature, and what else has to be the same in all parts.
        scores: sums of class weight * score over the classes seen, and weights: that of their weights, where
            there is label smoothing; else None.
    """

    shape: tuple[int, ...]
    state: ExactState
    target: Array
    target_weight: Array
    parts: tuple[tuple[int, int], ...]
    kept: Array
    row_weights: Array | None
    options: Rules
    scores: Sums | None = None
    weights: Sums | None = None

    def __post_init__(self) -> None:
        for name in ("target", "target_weight", "kept", "row_weights"):
            values = getattr(self, name)
            if values is not None:
                values = values.view()
                values.flags.writeable = False
                object.__setattr__(self, name, values)

    def merge(self, other: Parted) -> Self:
        """Of the classes of both.

        Raises: TypeError for anything but an ExactLossState, a LossState too; ValueError where the rows, the
            options or the format differ, or a class is in both.
        """
        if not isinstance(other, ExactLossState):
            would = "an ExactLossState, which order='any' makes, would do"
            raise TypeError(f"other is a {type(other).__name__}: {would}")
        self._check(other)
        return replace(
            self,
            state=self.state.merge(other.state),
            target=np.where(np.isnan(self.target), other.target, self.target),
            target_weight=self.target_weight + other.target_weight,
            parts=tuple(sorted(self.parts + other.parts)),
            scores=_joint(self.scores, other.scores),
            weights=_joint(self.weights, other.weights),
        )

    @classmethod
    def merge_many(cls, states: Iterable[Parted]) -> Self:
        """All of them merged, one after another. ValueError where there are none; as `merge`."""
        listed = list(several(states))
        if not listed:
            raise ValueError("states is empty: at least one state would do")
        merged: Any = listed[0]
        if not isinstance(merged, ExactLossState):
            would = "states that order='any' makes would do"
            raise TypeError(f"states[0] is a {type(merged).__name__}: {would}")
        for state in listed[1:]:
            merged = merged.merge(state)
        return merged  # type: ignore[no-any-return]  # of the class of the first

    @property
    def form(self) -> Format:
        return exact.format_of(self.state.dtype)

    @property
    def single(self) -> bool:  # type: ignore[override]  # of Parted, which has it as an attribute
        return self.state.dtype == np.float32

    @property
    def lse(self) -> Array:
        """Log-sum-exp of the scores of the classes seen: of `shape`, float32 (float64 for float64 logits)."""
        return self.state.lse.reshape(self.shape)

    def loss(
        self, *, reduction: str | None = None, empty: str | None = None, classes: int | None = None
    ) -> Any:
        """The loss, once the whole vocabulary has been merged; see `cross_entropy`.

        Args:
            reduction, empty: those that the states were made with, where not said anew.
            classes: of the whole vocabulary. Without it nobody can tell that the last classes are missing.

        Raises: ValueError where classes are missing, an IndexError where a row has a target that none of the
            parts has.
        """
        rules = self._rules(reduction, empty)
        self.complete()
        self._has(classes)
        with np.errstate(all="ignore"):
            nll = self.of_target()
            weightless = (self.target_weight == 0) & ~np.isnan(nll)
            rule = rules.rule(self.classes)
            loss = np.where(weightless, 0.0, settled(settled(rule.sharp * self.target_weight) * nll))
            if self.scores is not None:
                wide = self.state.m.astype(np.float64) + exact.log_sum(self.state.m, self.state.a, self.form)
                rest = settled(settled(self.weight_sum() * wide) - self.scores.value)
                loss = loss + settled(rule.uniform * rest)
            if rules.z_loss:
                lse = self.state.lse.astype(np.float64)
                loss = loss + settled(rules.z_loss * settled(lse * lse))
            if self.row_weights is not None:
                loss = loss * self.row_weights
            loss = settled(np.where(self.kept, loss, 0.0), self.form)
        return reduced(loss, rules, self.denominator(), self.shape, self.form)

    def of_target(self) -> Array:
        """Minus the log-probability of each row's target: (rows,) doubles that hold numbers of the states'
        dtype, NaN where the target has not been seen."""
        found = self.state.logprob(self.target[:, None])[:, 0]
        return 0.0 - found.astype(np.float64)  # 0.0, not -0.0, where it is sure

    def others_of_target(self) -> tuple[Array, Array]:
        """(probability of the target, of all others together), float64: neither is 1 less the other."""
        m, a, form = self.state.m, self.state.a, self.form
        p = self.state.prob(self.target[:, None])[:, 0].astype(np.float64)
        return p, others_share(self.target, m, a, form)

    def weight_sum(self) -> float:
        """The sum of the weights of all classes seen, 0 where nobody asks for it."""
        return 0.0 if self.weights is None else float(self.weights.value)

    def denominator(self) -> float:
        """What a mean divides by: a sum that no order changes."""
        weights = 1.0 if self.row_weights is None else self.row_weights
        with np.errstate(all="ignore"):
            return total(settled(self.target_weight * weights)[self.kept])

    def complete(self) -> None:
        """Raises ValueError where classes are missing, IndexError where a row's target was not seen."""
        self._complete(np.isnan(self.state.m))


def _joint(a: Sums | None, b: Sums | None) -> Sums | None:
    return None if a is None or b is None else a.merge(b)


def others_share(x: Array, m: Array, a: Array, form: Format) -> Array:
    """(V - T(x)) / V, the probability of all that was seen but one element x: float64, NaN as in `value`.

    The slices of the element leave the sums as whole numbers, so nothing cancels. Where m is beyond
    `Format.large`, and equal elements are counted: their number less 1 where x is one of them.
    """
    finite = np.isfinite(m) & ~np.isnan(x)
    plain = finite & (np.abs(m) <= form.large)
    top = np.where(finite, m, form.dtype.type(0))
    sums = np.where(finite[..., None], a, 0)
    with np.errstate(invalid="ignore"):
        near = plain & (x <= form.large) & (x >= top - form.dtype.type(form.reach))
    p, n = exact.terms(np.where(near, x, form.dtype.type(0)), form)
    b = exact.bin_of(exact.terms(np.where(plain, m, form.dtype.type(0)), form)[1], form)
    own = np.where(near[..., None], exact.slices(p, n, b, form), 0)
    own[..., 0] += finite & ~plain & (x == m)
    rest, first = exact.rest_of(top, sums, form)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = exact.total(sums - own, form.width) / (rest + first)
    return np.where(finite, np.minimum(share, 1.0), np.nan)
