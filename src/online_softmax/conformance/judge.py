"""Whether what a subject did with a point keeps the case's law. The subject itself is never called here.

- value: every output equals the oracle's within the tolerance: NaN where NaN, infinities with their sign, the
  right shape and format;
- one_of: the outputs equal one of the literals of the case;
- raises: the call raises and returns nothing;
- finite, nan, zeros: every element of the first output is so;
- distribution: the first output is finite, in [0, 1], and sums to 1 along the axis;
- sums_to_one: the first output sums to 1 along the axis, within the summed tolerance;
- repeatable, threads, batch_invariant: the further calls gave the bits of the first.

Indices need not be the oracle's: they have to point at entries equal to those that the oracle's point at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .cases import Case, Outcome, Point, literal
from .operations import OPERATIONS, expected
from .recipes import DTYPES
from .tolerance import tolerance, ulp

Array = NDArray[Any]

#: A subject fails that is worse than the worst peer by more than this factor.
FACTOR: Final = 4.0
#: See `against_peers`.
PLAIN: Final = 64.0
PART: Final = 0.25


@dataclass(frozen=True)
class Judgement:
    """What became of a point.

    Attributes:
        ok: whether the verdict is met. A case whose verdict is "free" is always ok.
        recorded: of a free case: what happened, in a word or two.
        problem: why it is not ok, for a person; empty where it is.
        ratio: largest error over what is allowed, 0 where the law is not about values.
        unit: half a unit in the last place over what is allowed, at the same place: no kernel can be asked
        for less.
    """

    ok: bool
    recorded: str = ""
    problem: str = ""
    ratio: float = 0.0
    unit: float = 0.0


@dataclass(frozen=True)
class _Found:
    """Whether a law holds: `problem` is empty where it does."""

    problem: str = ""
    name: str = ""
    ratio: float = 0.0
    unit: float = 0.0


def judge(case: Case, point: Point, outcome: Outcome) -> Judgement:
    """Judge one point. Raises what the reference raises where the point itself is no legal input."""
    # These fail whatever the law and the verdict.
    if outcome.error in ("crash", "timeout"):
        return Judgement(False, problem=f"{outcome.error}: {outcome.message}")
    if outcome.changed:
        return Judgement(False, problem=f"changed its input {', '.join(outcome.changed)}")
    if outcome.error == "bad result":
        return Judgement(False, problem=outcome.message)
    if case.law == "raises":
        found = _Found("" if outcome.error else f"returned {show_all(outcome.outputs)} where it had to raise")
    elif outcome.error:
        found = _Found(f"raised {outcome.error}: {outcome.message}")
    else:
        found = _LAWS[case.law](case, point, outcome)
    if case.verdict == "free":
        return Judgement(True, recorded=_recorded(case, outcome, found), ratio=found.ratio, unit=found.unit)
    holds = not found.problem
    if case.verdict == "must_not":
        # A call that raised has not done what must not happen.
        problem = f"is what must not be ({case.law}): {show_all(outcome.outputs)}"
        return Judgement(not holds, problem=problem if holds else "")
    return Judgement(holds, problem=found.problem, ratio=found.ratio, unit=found.unit)


def against_peers(judgement: Judgement, worst: float, peer: str = "the worst peer") -> Judgement:
    """The same, but not ok where the error is more than FACTOR times the worst peer's ratio `worst`.

    Peers may be exact where a sensible kernel need not be: an error of up to PLAIN half units in the last
    place, if it is no more than PART of the bound, is always let through; so is one of a whole unit.
    """
    limit = max(FACTOR * worst, min(PLAIN * judgement.unit, PART), 2 * judgement.unit)
    if not judgement.ok or judgement.ratio <= limit or judgement.unit == 0:
        return judgement
    units = judgement.ratio / judgement.unit / 2
    times = f"{judgement.ratio / worst:.3g} times that of {peer}" if worst > 0 else f"where {peer} has none"
    problem = (
        f"worse than every peer: the largest error is {units:.3g} units in the last place, {times}; "
        f"up to {FACTOR:g} times would do"
    )
    return Judgement(False, problem=problem, ratio=judgement.ratio, unit=judgement.unit)


def _recorded(case: Case, outcome: Outcome, found: _Found) -> str:
    if outcome.error:
        return f"raises {outcome.error}"
    if case.law == "one_of":
        return found.name or "other"
    return "no" if found.problem else "yes"


def _first(case: Case, outcome: Outcome) -> tuple[str, Array]:
    name = OPERATIONS[case.op].outputs[0]
    assert outcome.outputs is not None
    return name, outcome.outputs[name]


def _value(case: Case, point: Point, outcome: Outcome) -> _Found:
    right = expected(case.op, point.inputs, point.options)
    allowed = tolerance(case.op, case.dtype, point.inputs, point.options, right)
    return _compare(case, point, outcome, right, allowed)


def _compare(
    case: Case, point: Point, outcome: Outcome, right: Mapping[str, Array], allowed: Mapping[str, Array]
) -> _Found:
    """Every output that came against what is right, each with its tolerance."""
    ratio = unit = 0.0
    assert outcome.outputs is not None
    for name in OPERATIONS[case.op].outputs:
        if name not in outcome.outputs or name not in right:
            continue
        got = outcome.outputs[name]
        problem = _form(case, name, got, right[name])
        if not problem and name == "indices":
            problem = _indices(point, got, right[name])
        elif not problem:
            found = _close(case, name, got, right[name], allowed[name])
            problem = found.problem
            if found.ratio >= ratio:
                ratio, unit = found.ratio, found.unit
        if problem:
            return _Found(problem, ratio=ratio, unit=unit)
    return _Found(ratio=ratio, unit=unit)


def _form(case: Case, name: str, got: Array, right: Array) -> str:
    """What is wrong with the shape or the format."""
    if got.shape != right.shape:
        return f"{name} has shape {got.shape}, and has to have {right.shape}"
    if name == "indices":
        return "" if got.dtype.kind in "iu" else f"indices are {got.dtype}, and have to be integers"
    kind = DTYPES[case.dtype]
    wider = [np.dtype(np.float32), np.dtype(np.float64)] if name in OPERATIONS[case.op].statistics else []
    if (
        kind.kind in "biu"
        or got.dtype == kind
        or (got.dtype in wider and got.dtype.itemsize >= kind.itemsize)
    ):
        return ""
    return f"{name} is {got.dtype}, and has to be {kind}"


def _indices(point: Point, got: Array, right: Array) -> str:
    x, axis = point.inputs["x"], point.options.get("axis", -1)
    if got.size and (got.min() < 0 or got.max() >= x.shape[axis]):
        return f"indices hold {show(got)}, out of the axis' {x.shape[axis]} entries"
    taken, there = (
        np.take_along_axis(x, i.astype(np.int64), axis=axis).astype(np.float64) for i in (got, right)
    )
    same = np.array_equal(taken, there, equal_nan=True)
    return "" if same else f"indices are {show(got)}, and have to be {show(right)}"


def _close(case: Case, name: str, got: Array, right: Array, allowed: Array) -> _Found:
    """A floating-point output against what is right: the worst error over what is allowed, or what is
    wrong."""
    kind = got.dtype if name in OPERATIONS[case.op].statistics else DTYPES[case.dtype]
    value, right = got.astype(np.float64), right.astype(np.float64)
    allowed = np.broadcast_to(allowed, right.shape)
    finite = np.isfinite(right)
    with np.errstate(all="ignore"):
        # A truth at the edge of the format may round to an infinity of its sign.
        largest = (np.abs(right) + allowed).astype(kind).astype(np.float64)
        edge = finite & np.isinf(value) & (np.sign(value) == np.sign(right)) & ~np.isfinite(largest)
        error = np.abs(np.where(finite & ~edge, value - right, 0.0))
        scaled = np.where(error == 0, 0.0, error / allowed)
    special = ~finite & ~((np.isnan(value) & np.isnan(right)) | (value == right))
    wrong = special | ~(error <= allowed)
    if wrong.any():
        # A NaN or an infinity first, else the worst of all.
        score = np.where(special, np.inf, np.where(wrong, np.nan_to_num(scaled, nan=np.inf), -1.0))
        place = _place(np.unravel_index(int(np.argmax(score)), score.shape))
        limit = (
            f", off by {error[place]:.3g} where {allowed[place]:.3g} is allowed" if error[place] > 0 else ""
        )
        count = f", {int(wrong.sum())} of {wrong.size} wrong" if wrong.size > 1 else ""
        at = f" at {list(place)}" if place else ""
        problem = f"{name}{at} is {value[place]!s}, and has to be {right[place]!s}{limit}{count}"
        return _Found(problem, ratio=float(np.max(np.nan_to_num(scaled, nan=np.inf))))
    if not scaled.size:
        return _Found()
    place = _place(np.unravel_index(int(np.argmax(scaled)), scaled.shape))
    half = ulp(right, DTYPES[case.dtype])[place] / 2
    return _Found(ratio=float(scaled[place]), unit=float(half / allowed[place]) if half else 0.0)


def _place(index: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in index)


def _one_of(case: Case, point: Point, outcome: Outcome) -> _Found:
    names = [alternative["name"] for alternative in case.allowed]
    for alternative in case.allowed:
        right = {name: literal(values) for name, values in alternative.items() if name != "name"}
        allowed = tolerance(case.op, case.dtype, point.inputs, point.options, _shaped(case, point, right))
        if not _compare(case, point, outcome, right, allowed).problem:
            return _Found(name=alternative["name"])
    return _Found(f"{show_all(outcome.outputs)} is none of what is allowed: {', '.join(names)}")


def _shaped(case: Case, point: Point, right: dict[str, Array]) -> dict[str, Array]:
    """The oracle's outputs with the literals in place of those that they name."""
    return expected(case.op, point.inputs, point.options) | right


def _every(test: Callable[[Array], Array], word: str) -> Callable[[Case, Point, Outcome], _Found]:
    def law(case: Case, point: Point, outcome: Outcome) -> _Found:
        name, got = _first(case, outcome)
        return _Found(
            "" if bool(np.all(test(got.astype(np.float64)))) else f"{name} is {show(got)}, not {word}"
        )

    return law


def _sums(case: Case, point: Point, outcome: Outcome) -> _Found:
    name, got = _first(case, outcome)
    right = expected(case.op, point.inputs, point.options)
    if got.shape != right[name].shape:
        return _Found(_form(case, name, got, right[name]))
    each = tolerance(case.op, case.dtype, point.inputs, point.options, right)[name]
    axis = point.options.get("axis", -1)
    allowed = np.sum(np.broadcast_to(each, got.shape), axis=axis)
    total = np.sum(got.astype(np.float64), axis=axis)
    wrong = ~(np.abs(total - 1) <= allowed)
    return _Found(f"{name} sums to {show(total[wrong])}, not to 1" if wrong.any() else "")


def _distribution(case: Case, point: Point, outcome: Outcome) -> _Found:
    name, got = _first(case, outcome)
    if got.shape != point.inputs[next(iter(OPERATIONS[case.op].operands))].shape:
        return _Found(f"{name} has shape {got.shape}")
    value = got.astype(np.float64)
    if not np.all((value >= 0) & (value <= 1)):
        return _Found(f"{name} is {show(got)}, not in [0, 1]")
    total = value.sum(axis=point.options.get("axis", -1))
    # Wide enough for any format and length: what is asked is whether this passes for probabilities.
    near = np.abs(total - 1) <= 0.05
    return _Found("" if np.all(near) else f"{name} sums to {show(total)}")


def _same_bits(case: Case, point: Point, outcome: Outcome) -> _Found:
    assert outcome.outputs is not None
    for number, outputs in enumerate(outcome.several, start=2):
        for name in OPERATIONS[case.op].outputs:
            if name in outcome.outputs and name in outputs:
                first, other = outcome.outputs[name], outputs[name]
                if first.shape != other.shape or not _bits_equal(first, other):
                    pair = f"{show(other)} and {show(first)}"
                    return _Found(f"{name} of call {number} differs in bits from the first: {pair}")
    return _Found()


def _bits_equal(a: Array, b: Array) -> bool:
    """Bytes equal, but for the payload of NaN."""
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    nan = np.isnan(a.astype(np.float64))
    if not np.array_equal(nan, np.isnan(b.astype(np.float64))):
        return False
    kind = np.dtype(f"u{a.dtype.itemsize}")
    left, right = (np.where(nan, 0, np.ascontiguousarray(x).reshape(x.shape).view(kind)) for x in (a, b))
    return np.array_equal(left, right)


_LAWS: Final[Mapping[str, Callable[[Case, Point, Outcome], _Found]]] = {
    "value": _value,
    "one_of": _one_of,
    "finite": _every(np.isfinite, "finite"),
    "nan": _every(np.isnan, "NaN throughout"),
    "zeros": _every(lambda x: x == 0, "zero throughout"),
    "distribution": _distribution,
    "sums_to_one": _sums,
    "repeatable": _same_bits,
    "threads": _same_bits,
    "batch_invariant": _same_bits,
}


def show(array: Array, *, most: int = 8) -> str:
    """An array in a line: all of it, or its first and last entries and its shape."""
    whole = np.asarray(array)
    if whole.dtype.kind not in "biu":
        whole = whole.astype(np.float64)
    short = whole.size <= 2 * most
    text = np.array2string(
        whole if short else whole.reshape(-1),
        threshold=2 * most,
        edgeitems=3,
        separator=", ",
        floatmode="unique",
    )
    return " ".join(text.split()) + ("" if short or whole.ndim == 1 else f" of shape {whole.shape}")


def show_all(outputs: Mapping[str, Array] | None) -> str:
    """Every output by name, in a line."""
    return (
        "nothing"
        if outputs is None
        else ", ".join(f"{name} = {show(value)}" for name, value in outputs.items())
    )
