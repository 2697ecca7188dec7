"""The smallest failing input: a failing point is cut down, and its numbers made plain, as long as it fails.

What is right is computed anew for each candidate, and a candidate counts only where the right answer itself
would keep the law: so a smaller input is never called a fault that is none. Hypothesis does the searching;
without it a point is shown as it is.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..extras import MissingExtra, require
from . import axes
from .cases import Case, Outcome, Point
from .judge import Judgement, judge
from .operations import OPERATIONS, expected
from .recipes import DTYPES

Array = NDArray[Any]
#: (candidate, seconds it may take) -> what the subject did with it, and the judge's word.
Again = Callable[[Point, float], tuple[Outcome, Judgement]]

#: Seconds for a case, and for one that crashes, where each failing candidate costs a new process.
SECONDS: Final = 8.0
CRASH_SECONDS: Final = 15.0
#: Candidates that may crash.
CRASHES: Final = 12
#: Numbers of a point that are made plain one by one; where there are more, arrays are as a whole.
FEW: Final = 64
#: What the oracle, or the building of an input, raises for what is no legal input.
REFUSALS: Final = (ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError)

_BITS: Final = frozenset({"repeatable", "threads", "batch_invariant"})
_EXAMPLES: Final = 60
#: Of the numbers drawn for a choice, those up to its `top` differ, and the many above it leave things as
#: they are: so a draw at random mostly fails as the original does, and a smaller draw is a simpler input.
#: Hypothesis spreads numbers below _EVEN evenly.
_SPREAD: Final = 200
_EVEN: Final = (1 << 24) - 1


@dataclass(frozen=True)
class Smallest:
    """A failing point and what the subject made of it.

    Attributes:
        made: array -> Python that makes it out of the case's recipe, for arrays too large to be written out.
        note: why it is not smaller, where that was not tried.
        searched: whether a smaller one was looked for.
    """

    point: Point
    outcome: Outcome
    judgement: Judgement
    made: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    searched: bool = False


#: A stage of the search: choices as (lowest, top), and what makes a point, and its `made`, of one number
#: for each.
Edit = Callable[[Sequence[int]], tuple[Point, dict[str, str]]]
Stage = tuple[list[tuple[int, int]], Edit]


def smallest(
    case: Case, point: Point, outcome: Outcome, judgement: Judgement, again: Again | None
) -> Smallest:
    """The smallest failing input found near `point`, which failed with `outcome`.

    `again` calls the subject; None leaves the point as it is. Takes SECONDS at the most, or what one call
    takes more.
    """
    start = Smallest(point, outcome, judgement, _made(case, point))
    if again is None or _stays(case, outcome):
        return start
    try:
        require("hypothesis", "check", "a smaller failing input")
    except MissingExtra as error:
        return replace(start, note=str(error))
    try:
        if judge(case, point, outcome).ok:  # it is the peers who do better, and on this input alone
            return start
        search = _Search(case, start, again)
    except REFUSALS:
        return start
    for stage in (cut, whole, cut, elements, cut):
        search.improve(*stage(case, search.best))
    return replace(search.best, searched=True)


def _stays(case: Case, outcome: Outcome) -> bool:
    """Whether the law is about this one input alone, or each try would take the time limit."""
    own = case.law in ("raises", "one_of") or (case.verdict == "must_not" and case.law == "value")
    return own or outcome.error == "timeout"


def _made(case: Case, point: Point) -> dict[str, str]:
    at = [part.split("=") for part in point.label.split(", ")] if point.label else []
    names = ", ".join(f"{name!r}: {value}" for name, value in at)
    return {
        name: f"recipes.build({dict(case.inputs[name])!r}, {case.dtype!r}, {{{names}}})"
        for name in point.inputs
    }


class _Search:
    """Looks for a smaller failing input than the best so far, one stage at a time."""

    def __init__(self, case: Case, start: Smallest, again: Again) -> None:
        self.best = start
        self._case, self._again = case, again
        self._crash = start.outcome.error == "crash"
        self._crashes = 0
        self._end = time.monotonic() + (CRASH_SECONDS if self._crash else SECONDS)
        self._kind = self._kind_of(start.outcome, self._right(start.point))

    def improve(self, choices: list[tuple[int, int]], edit: Edit) -> None:
        """The best, edited with the smallest numbers that still fail."""
        from hypothesis import HealthCheck, Phase, errors, find, settings
        from hypothesis import strategies as st

        tops = tuple(top for _, top in choices)
        tried: dict[tuple[int, ...], Smallest | None] = {tops: self.best}

        def fails(drawn: tuple[int, ...]) -> bool:
            plain = tuple(map(min, drawn, tops))
            if plain not in tried:
                tried[plain] = self._failing(*edit(plain))
            return tried[plain] is not None

        if all(low == top for low, top in choices) or self._late():
            return
        limits = settings(
            max_examples=_EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        each = [st.integers(low, min(_SPREAD * max(top, 50), max(_EVEN, 2 * top))) for low, top in choices]
        try:
            found = find(st.tuples(*each), fails, settings=limits, random=random.Random(0))
        except (errors.NoSuchExample, errors.Flaky):
            return
        better = tried[tuple(map(min, found, tops))]
        assert better is not None
        self.best = better

    def _late(self) -> bool:
        return time.monotonic() > self._end or self._crashes >= CRASHES

    def _failing(self, point: Point, made: Mapping[str, str]) -> Smallest | None:
        """The candidate with what came of it, where it fails as the original does; None where not, or too
        late."""
        if self._late():
            return None
        with np.errstate(all="ignore"):
            try:
                right = self._right(point)
                if not self._lawful(point, right):
                    return None
                outcome, judgement = self._again(point, max(1.0, self._end - time.monotonic()))
            except REFUSALS:
                return None
        self._crashes += outcome.error == "crash"
        if judgement.ok or self._kind_of(outcome, right) != self._kind:
            return None
        return Smallest(point, outcome, judgement, made)

    def _right(self, point: Point) -> Array:
        """The first output as the oracle has it, in the case's format."""
        name = OPERATIONS[self._case.op].outputs[0]
        right = expected(self._case.op, point.inputs, point.options)[name]
        with np.errstate(all="ignore"):
            return right.astype(DTYPES[self._case.dtype])

    def _lawful(self, point: Point, right: Array) -> bool:
        """Whether the right answer keeps the law: it does not have to, at an input other than the case's
        own."""
        if self._case.law in _BITS or self._case.law == "value":
            return True
        name = OPERATIONS[self._case.op].outputs[0]
        return judge(self._case, point, Outcome(outputs={name: right})).ok

    def _kind_of(self, outcome: Outcome, right: Array) -> tuple[Any, ...]:
        """What sort of fault it is: another one is not taken for this one made smaller."""
        how = (outcome.error, bool(outcome.changed))
        if outcome.outputs is None:
            return how
        got = outcome.outputs[OPERATIONS[self._case.op].outputs[0]]
        if got.shape != right.shape:
            return (*how, "shape")
        nan, due = np.isnan(got.astype(np.float64)), np.isnan(right.astype(np.float64))
        return (*how, str(got.dtype), bool((nan & ~due).any()), bool((due & ~nan).any()))


def cut(case: Case, now: Smallest) -> Stage:
    """Windows of the arrays, the same along axes that belong together; optional arrays, options and layouts
    left out."""
    point = now.point
    names = axes.named(case.op, point.inputs, point.options)
    lengths: dict[str, int] = {}
    for array, places in names.items():
        for name, length in zip(places, point.inputs[array].shape, strict=True):
            lengths[name] = max(length, lengths.get(name, 1))
    long = [name for name, length in lengths.items() if name and length > 1]
    optional = [name for name in point.inputs if name in OPERATIONS[case.op].optional]
    choices = [(1, lengths[name]) for name in long for _ in range(2)]
    choices += [(0, 1)] * (len(optional) + len(point.options) + len(point.layouts))

    def edit(drawn: Sequence[int]) -> tuple[Point, dict[str, str]]:
        numbers = iter(drawn)
        windows = {}
        for name in long:
            stop, keep = next(numbers), next(numbers)
            windows[name] = slice(max(stop - keep, 0), stop)
        gone = {name for name in optional if not next(numbers)}
        options = {name: value for name, value in point.options.items() if next(numbers)}
        layouts = {name: value for name, value in point.layouts.items() if next(numbers) and name not in gone}
        inputs, made = {}, {}
        for name, array in point.inputs.items():
            if name not in gone:
                inputs[name], made[name] = _window(
                    array, now.made.get(name, ""), names.get(name, ()), windows
                )
        return replace(point, inputs=inputs, options=options, layouts=layouts), made

    return choices, edit


def _window(
    array: Array, made: str, names: tuple[str, ...], windows: Mapping[str, slice]
) -> tuple[Array, str]:
    where = tuple(
        windows.get(name, slice(None)) if length > 1 else slice(None)
        for name, length in zip(names, array.shape, strict=False)
    )
    taken = np.ascontiguousarray(array[where]).reshape(array[where].shape)
    if taken.shape == array.shape or not made:
        return taken, made
    text = ", ".join(f"{part.start}:{part.stop}" if part != slice(None) else ":" for part in where)
    return taken, f"{made}[{text}]"


def whole(case: Case, now: Smallest) -> Stage:
    """Arrays made plain as a whole: zeros, ones, whole numbers; zeros of integers; all true or all false of
    bool."""
    ways = {name: _ways(array, now.made.get(name, "")) for name, array in now.point.inputs.items()}

    def edit(drawn: Sequence[int]) -> tuple[Point, dict[str, str]]:
        inputs, made = dict(now.point.inputs), dict(now.made)
        for (name, choices), number in zip(ways.items(), drawn, strict=True):
            if number < len(choices):
                inputs[name], made[name] = choices[number]
        return replace(now.point, inputs=inputs), made

    return [(0, len(choices)) for choices in ways.values()], edit


def _ways(array: Array, made: str) -> list[tuple[Array, str]]:
    constants = {"b": (True, False), "i": (0,), "u": (0,)}.get(array.dtype.kind, (0, 1))
    found = [(np.full_like(array, value), "") for value in constants]
    if array.dtype.kind not in "biu":
        found.append((np.rint(array), f"np.rint({made})" if made else ""))
    return [way for way in found if not _equal(way[0], array)]


def elements(case: Case, now: Smallest) -> Stage:
    """Single numbers made plain: 0, 1, -1, a whole number, one decimal. Only where there are FEW."""
    arrays = {
        name: array for name, array in now.point.inputs.items() if now.point.layouts.get(name) != "broadcast"
    }
    places = [
        (name, at) for name, array in arrays.items() for at in itertools.product(*map(range, array.shape))
    ]
    options = [_plain(arrays[name][at]) for name, at in places] if len(places) <= FEW else []

    def edit(drawn: Sequence[int]) -> tuple[Point, dict[str, str]]:
        inputs = dict(now.point.inputs) | {name: array.copy() for name, array in arrays.items()}
        for (name, at), choices, number in zip(places, options, drawn, strict=True):
            if number < len(choices):
                inputs[name][at] = choices[number]
        return replace(now.point, inputs=inputs), {}

    return [(0, len(choices)) for choices in options], edit


def _plain(value: Any) -> list[Any]:
    """Simpler values than this one, the simplest first."""
    if value.dtype.kind == "b":
        return [] if value else [True]
    if value.dtype.kind in "iu":
        return [0] if value else []
    number = float(value)
    ladder = [0.0, 1.0, -1.0]
    if np.isfinite(number):
        ladder += [float(np.rint(number)), float(np.round(number, 1))]
    if number in ladder and not (number == 0 and np.signbit(number)):
        return ladder[: ladder.index(number)]
    return list(dict.fromkeys(ladder))


def _equal(a: Array, b: Array) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.all((a == b) | ((a != a) & (b != b))))
