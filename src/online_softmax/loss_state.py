"""Cross-entropy of a vocabulary that lies in parts: what is kept of each, merged in any order, and the loss.

Of a row the target's score stands apart from (m, s) of the other classes; both are states of the law, so
parts merge by it, and at the end, with d = lse of the others less the target's score,

    -log p = softplus(d),  lse = score + softplus(d)

which keeps all bits of the loss of a row that is sure of its target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import state as law
from .loss_rules import Rules, Whole, checked, reduced

Array = NDArray[Any]


class Parted:
    """What states of losses have in common: rows of a batch, and the parts of a vocabulary that were seen.

    Attributes:
        shape: of the rows' targets.
        target: score of the target, NaN where it has not been seen: (rows,), as the other arrays.
        target_weight: float64, its class weight, 0 where it has not been seen.
        parts: (start, stop) of the classes seen, ascending.
        kept: rows that are not ignored; row_weights: float64, one a row, or None.
        options: label smoothing, its rule, z-loss, and what else has to be the same in all parts.
        single: whether scores are float32, not float64.
    """

    shape: tuple[int, ...]
    target: Array
    target_weight: Array
    parts: tuple[tuple[int, int], ...]
    kept: Array
    row_weights: Array | None
    options: Rules
    single: bool

    def _check(self, other: Parted) -> None:
        for start, stop in self.parts:
            for a, b in other.parts:
                if start < b and a < stop:
                    raise ValueError(
                        f"other has classes {a} to {b}, of which {start} to {stop} are in this one too"
                    )
        if self.shape != other.shape or not np.array_equal(self.kept, other.kept):
            raise ValueError(
                f"other is of rows of shape {other.shape} and of other targets than these, of {self.shape}: "
                "states of one batch would do"
            )
        if self.options != other.options:
            raise ValueError(f"other was made with {self.options.unlike(other.options)} would do")
        if self.single != other.single:
            raise ValueError("other is of float64 logits, or this one is, and not both: one format would do")
        if not _same(self.row_weights, other.row_weights):
            raise ValueError("other was made with another row_weight than this one: the same would do")
        twice = ~np.isnan(self.target) & ~np.isnan(other.target)
        if twice.any():
            at = int(np.argmax(twice))
            raise ValueError(
                f"other has a target in row {at}, whose target is in these classes too: states made with the "
                "same targets would do"
            )

    def serve(
        self,
        shape: tuple[int, ...],
        kept: Array,
        row_weights: Array | None,
        options: Rules,
        part: tuple[int, int],
    ) -> None:
        """Raises ValueError where this is not of the rows, options and classes of a call for the gradient of
        the classes `part`."""
        if self.shape != shape:
            raise ValueError(
                f"state is of rows of shape {self.shape}: {shape}, that of the targets, would do"
            )
        # A gradient may be of another reduction than the state's own.
        mine = replace(self.options, reduction=options.reduction, empty=options.empty)
        if mine != options:
            raise ValueError(f"state was made with {options.unlike(mine)} would do")
        for own, theirs, name in (
            (self.kept, kept, "targets"),
            (self.row_weights, row_weights, "row_weight"),
        ):
            if not _same(own, theirs):
                raise ValueError(f"state was made with another {name} than this call has: the same would do")
        if not any(a <= part[0] and part[1] <= b for a, b in _joined(self.parts)):
            would = f"a state that has the classes of shard, {part[0]} to {part[1]}, would do"
            raise ValueError(
                f"state is of the classes {', '.join(f'{a} to {b}' for a, b in self.parts)}: {would}"
            )

    @property
    def classes(self) -> int:
        """How many have been seen."""
        return sum(stop - start for start, stop in self.parts)

    def _complete(self, spoilt: Array) -> None:
        """Raises ValueError where classes are missing, IndexError where a row that is not spoilt has a target
        that was not seen."""
        end = 0
        for start, stop in self.parts:
            if start != end:
                raise ValueError(
                    f"classes {end} to {start} are missing: a state of all parts merged would do"
                )
            end = stop
        missing = self.kept & np.isnan(self.target) & ~spoilt
        if missing.any():
            at = (
                tuple(int(i) for i in np.unravel_index(int(np.argmax(missing)), self.shape))
                if self.shape
                else ()
            )
            raise IndexError(
                f"targets[{', '.join(map(str, at))}] is none of the {end} classes that were merged"
            )

    def _rules(self, reduction: str | None, empty: str | None) -> Rules:
        """The options, with another reduction where that is said."""
        return checked(
            replace(
                self.options,
                reduction=self.options.reduction if reduction is None else reduction,
                empty=self.options.empty if empty is None else empty,
            )
        )

    def _has(self, classes: int | None) -> None:
        if classes is not None and classes != self.classes:
            would = f"{self.classes}, or a state of all parts merged, would do"
            raise ValueError(f"classes is {classes} where {self.classes} were merged: {would}")


@dataclass(frozen=True, eq=False)
class LossState(Parted):
    """Rows of a batch over some classes of a vocabulary. Immutable: merge gives a new one.

    Attributes:
        shape: of the rows' targets.
        m, s: of the classes seen but the target, sum of exp(z - m): (rows,) float64, as the other arrays.
        target: score of the target, NaN where it has not been seen.
        target_weight: its class weight, 0 where it has not been seen.
        scores: sum of class weight * score, where there is label smoothing; else None.
        weight_sum: of the class weights seen.
        parts: (start, stop) of the classes seen, ascending.
        kept: rows that are not ignored; row_weights: one a row, or None.
        options: label smoothing, its rule, z-loss, and what else has to be the same in all parts.
    """

    shape: tuple[int, ...]
    m: Array
    s: Array
    target: Array
    target_weight: Array
    scores: Array | None
    weight_sum: float
    parts: tuple[tuple[int, int], ...]
    kept: Array
    row_weights: Array | None
    options: Rules
    single: bool = field(default=True)

    def __post_init__(self) -> None:
        for name in ("m", "s", "target", "target_weight", "scores", "kept", "row_weights"):
            values = getattr(self, name)
            if values is not None:
                values = values.view()
                values.flags.writeable = False
                object.__setattr__(self, name, values)

    def merge(self, other: Self) -> Self:
        """Of the classes of both.

        Raises: TypeError for anything but a LossState; ValueError where the rows, the options or the format
            differ, or a class is in both.
        """
        if not isinstance(other, LossState):
            raise TypeError(f"other is a {type(other).__name__}: a LossState would do")
        self._check(other)
        with np.errstate(all="ignore"):
            m, s = law.merge((self.m, self.s), (other.m, other.s))
            seen = np.isnan(self.target)
            scores = None if self.scores is None else self.scores + other.scores
        return replace(
            self,
            m=m,
            s=s,
            target=np.where(seen, other.target, self.target),
            target_weight=self.target_weight + other.target_weight,
            scores=scores,
            weight_sum=self.weight_sum + other.weight_sum,
            parts=tuple(sorted(self.parts + other.parts)),
        )

    @classmethod
    def merge_many(cls, states: Iterable[Self]) -> Self:
        """All of them merged in a balanced tree. ValueError where there are none; as `merge`."""
        return law.tree(states, lambda a, b: a.merge(b))

    @property
    def lse(self) -> Array:
        """Log-sum-exp of the scores of the classes seen, of `shape`; float32 (float64 for float64 logits)."""
        return self._of_rows(self._finished()[0])

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
        self._complete(np.isnan(self.m))
        self._has(classes)
        lse, of_target = self._finished()
        rule = rules.rule(self.classes)
        with np.errstate(all="ignore"):
            weightless = (self.target_weight == 0) & ~np.isnan(of_target)
            loss = np.where(weightless, 0, rule.sharp * self.target_weight * of_target)
            if rule.uniform and self.scores is not None:
                rest = self.weight_sum * lse - self.scores
                loss = loss + rule.uniform * rest
                loss = np.where(np.isnan(of_target), np.nan, loss)
            if rule.z_loss:
                loss = loss + rule.z_loss * lse**2
            weights = np.ones(len(loss)) if self.row_weights is None else self.row_weights
            loss = np.where(self.kept, loss * weights, 0)
            denominator = self.denominator()
        return reduced(loss, rules, denominator, self.shape, self._dtype)

    def whole(self) -> Whole:
        """What the gradient of a part has to know of all of them."""
        self._complete(np.isnan(self.m))
        return Whole(self.m, self.s, self.target, self.target_weight, self.weight_sum)

    def denominator(self) -> float:
        """What a mean divides by."""
        weights = 1.0 if self.row_weights is None else self.row_weights
        with np.errstate(all="ignore"):
            return float((self.target_weight * weights)[self.kept].sum())

    def _finished(self) -> tuple[Array, Array]:
        """(lse, -log p of the target), float64."""
        with np.errstate(all="ignore"):
            others = np.where(self.s > 0, self.m + np.log(self.s), -math.inf)
            others = np.where(np.isposinf(self.m) | np.isnan(self.m), self.m, others)
            odd = ~(others < math.inf)
            # Not others - target: where m is great, log(s) is lost in it.
            d = np.where(self.s > 0, (self.m - self.target) + np.log(self.s), others - self.target)
            more = np.log1p(np.exp(-np.abs(d)))
            of_target = np.maximum(d, 0) + more
            none = np.isneginf(others) & np.isneginf(self.target)
            lse = np.where(d > 0, others, self.target) + more
            lse = np.where(np.isnan(self.target) | odd | none, others, lse)
            # Where all is -inf there is no distribution.
            return lse, np.where(odd, math.nan, of_target)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.single else np.float64)

    def _of_rows(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(values.reshape(self.shape).astype(self._dtype))


def _same(mine: Array | None, theirs: Array | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")


def _joined(parts: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Ascending spans, those that touch as one."""
    spans: list[tuple[int, int]] = []
    for start, stop in parts:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans
