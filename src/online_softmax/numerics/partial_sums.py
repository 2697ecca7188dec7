"""Sums of exponentials with their error: three rules, from which every order of summation is put together.

An `Amount` is a true value and how far the computed one may be from it, both in float64. Values are relative
to a maximum: the number meant is value * exp(maximum).

    leaf    exp(x - m), perhaps times a v       `Model.leaf`, `Model.weigh`
    chain   amounts added one after another, the sum so far rescaled as the maximum rises      `chain`
    merge   two sums brought to the greater maximum and added                                  `merge`

Nothing is dropped as small: products of (1 + d) are taken as they are, a rounding counts min(|a|, |b|,
u * |a + b|) in a sum a + b (the result is a nearest number, and a and b are numbers too), and underflow
counts wherever a result may be below the normal numbers. The rule of the minimum is what covers sums that
stall.

What is taken for granted of the arithmetic: rounding to nearest; an exp that is at most 1 up to 0 and exactly
1 at 0, and elsewhere off by a relative `e` at most before a result below the normal numbers is rounded there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .roundoff import Array, Rounding

#: Relative error of float64 sums of k terms and the functions in them, in units of k * 2**-53: generous.
EVALUATION = 2.0**-53


class Amount(NamedTuple):
    """True values and bounds on the error of the computed ones: float64, of one shape."""

    value: Array
    error: Array

    @property
    def largest(self) -> Array:
        """What the computed value is at most, in magnitude."""
        return np.asarray(np.abs(self.value) + self.error)


@dataclass(frozen=True)
class Model:
    """The arithmetic of sums (`format`), the relative error `e` of its exp, what exponentials are kept in.

    `exact_top`: an entry at the maximum has exponential 1, as exp(x - m) has it.
    """

    format: Rounding
    e: float
    stored: Rounding | None = None
    exact_top: bool = True

    @property
    def least_top(self) -> float:
        """What the exponential of the maximum itself is at least, once stored."""
        return 1.0 if self.exact_top else (1 - self.e) * (1 - (self.stored.u if self.stored else 0.0))

    def leaf(self, distance: Array) -> Amount:
        """exp(-distance) of a distance >= 0, or infinite, that was rounded once: any shape."""
        value = np.exp(-distance)
        off = np.where(np.isfinite(distance), self.format.of_sum(distance), np.inf)
        off = np.where(np.isfinite(off), off, 0)  # a distance beyond the format has exponential 0 in it
        highest = np.exp(-(distance - off)) * (1 + self.e)
        relative = np.expm1(off + np.log1p(self.e))
        error = np.where(value > 0, value * relative, highest)
        vanishes = np.exp(-(distance + off)) * (1 - self.e) < self.format.normal
        error = error + np.where(vanishes, np.minimum(self.format.tiny, highest), 0)
        if self.stored is not None:
            error = error + self.stored.error(value + error)
        return Amount(value, np.where(distance == 0, 0, error) if self.exact_top else error)

    def weigh(self, leaf: Amount, v: Array) -> Amount:
        """leaf * v, rounded once; v exact, any sign, broadcastable."""
        value, error = leaf.value * v, leaf.error * np.abs(v)
        return Amount(value, error + self.format.error(np.abs(value) + error))

    def path(self, rise: Array, times: Array) -> Array:
        """Logarithm of the most that `times` rescales, over a rise of the maximum of `rise` in all, amplify
        by.

        Exponents' errors are u times their size and so add up to u * rise; each rescale has an exp and a
        product.
        """
        flushed = self.format.tiny if self.format.flush else 0.0
        return np.asarray(
            self.format.u * rise + times * (np.log1p(self.e) + np.log1p(self.format.u) + flushed)
        )

    def vanishing(self, carried: Array, rise: Array, floor: float) -> Array:
        """What underflow adds to the error of carried * exp(-rise), where the computed `carried` is at least
        `floor`: of the factor, and of the product."""
        one = np.ones_like(rise)
        highest = np.exp(self.path(rise, one) - rise)
        flushed = self.format.tiny if self.format.flush else 0.0
        lowest = np.exp(-(1 + self.format.u) * rise - flushed) * (1 - self.e) * (1 - self.format.u)
        normal, tiny = self.format.normal, self.format.tiny
        # An infinite rise is the end of an empty state, 0 however it is rescaled.
        counts = np.isfinite(rise) & (rise > 0)
        factor = np.where(counts & (lowest < normal), np.minimum(tiny, highest) * (1 + self.format.u), 0)
        product = np.where(
            counts & (lowest * floor < normal), np.minimum(tiny, carried * (highest + factor)), 0
        )
        return np.asarray(carried * factor + product)


def _times(a: Array, b: Array) -> Array:
    """a * b, 0 where a is 0 whatever b is."""
    return np.where(a == 0, 0, a * np.where(a == 0, 0, b))


def _shifted(a: Array) -> Array:
    """What stands before each entry of the last axis; 0 before the first."""
    return np.concatenate((np.zeros_like(a[..., :1]), a[..., :-1]), axis=-1)


def chain(terms: Amount, top: Array, model: Model, *, floor: float) -> Amount:
    """terms[0] + terms[1] + ... over the last axis, each relative to its entry of `top`, the running maximum.

    Args:
        terms: (..., k), k >= 1. top: broadcastable to it, never falling; -inf where nothing has come yet.
        floor: what the computed sum is at least in magnitude once top is finite (0 where signs differ).

    Returns: (...), relative to the last top. The error is infinite where a partial sum may overflow.

    With r the last maximum, a term's error arrives at the end times the amplification of the rescales to
    come, and so does each addition's. Amplified partial sums are bounded twice: from growth by at most
    min(2, (1 + u)^k) first, then from the errors so found. Cost: some 30 passes over the terms.
    """
    u = model.format.u
    value, error = np.broadcast_arrays(*terms)
    count = value.shape[-1]
    top = np.broadcast_to(top, np.broadcast_shapes(np.shape(top), (count,)))
    fall, rises, steps = _levels(top)
    later = model.path(fall, steps)
    scale, amplified = np.exp(-fall), np.exp(np.where(np.isfinite(fall), later - fall, -np.inf))
    own = Amount(value, error).largest
    largest = _times(own, amplified)
    extra = np.where(scale > 0, _times(scale, np.expm1(later)), amplified)
    base = _times(error, amplified) + _times(np.abs(value), extra)
    sums = np.cumsum(largest, axis=-1)
    growth = np.minimum(2.0, np.exp(u * np.arange(count)))

    # The computed sum in its own scale: rescaling never raises it, an addition adds a term twice at the most,
    # and nothing at all once it is past 2/u terms.
    greatest = np.maximum.accumulate(own, axis=-1)
    carried = np.minimum(2 * np.cumsum(own, axis=-1), (2 / u + 2) * greatest)
    lost = _times(model.vanishing(_shifted(carried), rises, floor), amplified)
    added = _roundings(growth * (sums + np.cumsum(lost, axis=-1)), largest, lost, model, amplified)

    partial = sums + np.cumsum(added + lost, axis=-1)
    true = np.abs(np.cumsum(value * scale, axis=-1)) + count * EVALUATION * sums
    partial = np.minimum(partial, _times(true, np.exp(later)) + np.cumsum(base + added + lost, axis=-1))
    with np.errstate(divide="ignore"):
        carried = np.fmin(carried, np.where(amplified > 0, partial / amplified, np.inf))
    lost = _times(model.vanishing(_shifted(carried), rises, floor), amplified)
    added = _roundings(partial, largest, lost, model, amplified)
    total = (base + added + lost).sum(axis=-1)
    overflows = (carried >= model.format.limit).any(axis=-1)
    return Amount((value * scale).sum(axis=-1), np.where(overflows, np.inf, total))


def _levels(top: Array) -> tuple[Array, Array, Array]:
    """How far each entry of `top` lies below the last, by how much it rose, and how many rises come after
    it."""
    before = np.concatenate((top[..., :1], top[..., :-1]), axis=-1)
    risen = top > before
    with np.errstate(invalid="ignore", over="ignore"):
        fall = np.where(top == top[..., -1:], 0, top[..., -1:] - top)
        rises = np.where(risen, top - before, 0)
    steps = np.cumsum(risen & np.isfinite(before), axis=-1)
    return fall, rises, steps[..., -1:] - steps


def _roundings(partial: Array, term: Array, lost: Array, model: Model, amplified: Array) -> Array:
    """Errors of the additions that lead to these partial sums: nothing for the first, which is added to 0."""
    rounded = np.minimum(np.minimum(term, _shifted(partial) + lost), model.format.u * partial)
    rounded[..., :1] = 0
    if model.format.flush:
        rounded = rounded + np.minimum(_times(np.full_like(partial, model.format.tiny), amplified), partial)
    return np.asarray(rounded)


def merge(a: Amount, b: Amount, tops: tuple[Array, Array], model: Model, *, floor: float) -> Amount:
    """a + b at the greater of two maxima: shapes alike, `tops` broadcastable to them; `floor` as in
    `chain`."""
    top = np.maximum(*tops)
    moved = []
    for part, own in zip((a, b), tops, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            rise = np.where(own == top, 0, top - own)
        later = model.path(rise, (rise > 0).astype(np.float64))
        scale, amplified = np.exp(-rise), np.exp(later - rise)
        extra = np.where(scale > 0, _times(scale, np.expm1(later)), amplified)
        error = _times(part.error, amplified) + _times(np.abs(part.value), extra)
        error = error + model.vanishing(part.largest, np.broadcast_to(rise, part.error.shape), floor)
        moved.append(Amount(part.value * scale, error))
    value = moved[0].value + moved[1].value
    error = moved[0].error + moved[1].error
    smaller = np.minimum(moved[0].largest, moved[1].largest)
    rounded = np.minimum(smaller, model.format.u * (np.abs(value) + error))
    if model.format.flush:
        rounded = rounded + np.where(smaller > 0, np.minimum(model.format.tiny, np.abs(value) + error), 0)
    error = error + rounded
    return Amount(value, np.where(np.abs(value) + error >= model.format.limit, np.inf, error))


def balanced(terms: Amount, depth: int, model: Model) -> Amount:
    """Sum over the last axis by any order in which a term goes through at most `depth` additions.

    The roundings of all additions add up, each within u of its result. Those that the greatest term goes
    through are within what they add to it, too, and that is all the others together.
    """
    u = model.format.u
    each = terms.largest
    largest = each.sum(axis=-1)
    others = np.maximum(largest - each.max(axis=-1), 0) + largest * EVALUATION * each.shape[-1]
    added = np.minimum(largest * np.expm1(depth * u), others * (np.exp(depth * u) + np.expm1(depth * u)))
    if model.format.flush:
        added = added + each.shape[-1] * model.format.tiny
    error = terms.error.sum(axis=-1) + added
    return Amount(terms.value.sum(axis=-1), np.where(largest + error >= model.format.limit, np.inf, error))
