"""One row through an algorithm as `simulate` carries it out, bit for bit, with a record of what happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .roundoff import Array
from .simulate import Machine


@dataclass(frozen=True)
class Event:
    """A new maximum, or of "tree" a merge of different maxima: a sum is rescaled.

    Attributes:
        index: first entry of the block, or of the merged part, that holds the greater maximum; maximum: that.
        start, stop: the sum of entries start..stop - 1 is rescaled; none (0, 0) where the first maximum
            comes.
        factor: what it is multiplied by (1 for the first maximum).
        before, after: that sum before, and the sum of all that is joined after.
    """

    index: int
    maximum: float
    start: int
    stop: int
    factor: float
    before: float
    after: float


@dataclass
class Trace:
    """What a run left behind. The masks (n,) mark entries.

    Attributes:
        s: the sum of exponentials. events: in the order they happened.
        zeros, subnormals: exponentials that were 0, or below the normal numbers, as they entered.
        vanished: entries whose sum was rescaled to 0.
        stalled: additions of two numbers above 0 that gave the greater. unheard: the entries in the smaller.
    """

    zeros: Array
    subnormals: Array
    vanished: Array
    unheard: Array
    s: float = 0.0
    stalled: int = 0
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """A state on its way: entries start..stop - 1, maximum and sum."""

    start: int
    stop: int
    top: Any
    s: Any


def trace(x: Array, algorithm: str, block: int | None, unit: Machine) -> Trace:
    """Follow a row of finite maximum, (n,) of the machine's dtype; algorithm and block as in `simulate`,
    checked.

    Cost: some 10 microseconds an addition that is not made beside others.
    """
    count = len(x)
    size = {"batch": count, "streaming": 1}.get(algorithm, min(block or 1, count))
    short = -count % size
    cut = np.concatenate((x, np.full(short, -np.inf, unit.dtype))).reshape(-1, size)
    tops = np.max(cut, axis=-1)
    if algorithm in ("streaming", "blocked"):
        tops = np.maximum.accumulate(tops)
    leaf = unit.leaf(cut, tops[:, None])
    entered = leaf.reshape(-1)[:count]
    result = Trace(
        zeros=(entered == 0) & (x > -np.inf),
        subnormals=(entered > 0) & (entered.astype(np.float64) < unit.normal),
        vanished=np.zeros(count, bool),
        unheard=np.zeros(count, bool),
    )
    sums = _within_blocks(leaf, unit, result)
    parts = [_Part(k * size, min((k + 1) * size, count), tops[k], sums[k]) for k in range(len(tops))]
    first = next(part for part in parts if part.top > -np.inf)
    result.events.append(_event(x, first, (0, 0), 1.0, 0.0, first.s))
    while len(parts) > 1:
        if algorithm == "tree":
            even = len(parts) // 2 * 2
            merged = [_join(parts[k], parts[k + 1], x, unit, result) for k in range(0, even, 2)]
            parts = merged + parts[even:]
        else:
            total = parts[0]
            for part in parts[1:]:
                total = _join(total, part, x, unit, result)
            parts = [total]
    result.s = float(parts[0].s)
    return result


def _within_blocks(leaf: Array, unit: Machine, result: Trace) -> Array:
    """Running sums of the rows of leaf, all rows at a time."""
    unheard = np.zeros(leaf.shape, bool)
    total = leaf[:, 0]
    for k in range(1, leaf.shape[-1]):
        term = leaf[:, k]
        after = unit.add(total, term)
        both = (term > 0) & (total > 0)
        unheard[:, k] = both & (after == total)
        before = both & (after == term)
        if before.any():
            unheard[:, :k] |= before[:, None]
        result.stalled += int(np.count_nonzero(unheard[:, k] | before))
        total = after
    result.unheard |= unheard.reshape(-1)[: len(result.unheard)]
    return total


def _join(a: _Part, b: _Part, x: Array, unit: Machine, result: Trace) -> _Part:
    """The state of both parts, b after a."""
    top = np.maximum(a.top, b.top)
    moved = []
    rescaled = None
    for part in (a, b):
        s = part.s
        if part.top != top:
            factor = unit.factor(part.top, top)
            s = unit.times(s, factor)
            if part.s > 0:
                rescaled = (part, factor)
                result.vanished[part.start : part.stop] |= s == 0
        moved.append(s)
    after = unit.add(*moved)
    if min(moved) > 0 and after == max(moved):
        small = a if moved[0] < moved[1] else b
        result.stalled += 1
        result.unheard[small.start : small.stop] = True
    joined = _Part(a.start, b.stop, top, after)
    if rescaled is not None:
        part, factor = rescaled
        other = b if part is a else a
        result.events.append(_event(x, other, (part.start, part.stop), factor, part.s, after))
    return joined


def _event(x: Array, at: _Part, span: tuple[int, int], factor: Any, before: Any, after: Any) -> Event:
    index = at.start + int(np.argmax(x[at.start : at.stop] == at.top))
    return Event(index, float(at.top), *span, float(factor), float(before), float(after))
