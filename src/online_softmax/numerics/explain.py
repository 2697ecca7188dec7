"""`explain`: what happens in one row, step by step, and its error beside the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .error_bound import BLOCK, ErrorBound, check_algorithm, error_bound
from .roundoff import Array, dtype_of
from .simulate import machine, simulate
from .trace import Event, Trace, trace

#: Digits of the true values beside what the smallest entry takes, and how far below the maximum an entry
#: still counts in them. No format tells an error below 1e-340 from 0; long rows do with fewer digits.
DIGITS = 40
FARTHEST = 2000.0
MOST_DIGITS = {True: 100, False: 380}
LONG = 2000


@dataclass(frozen=True)
class Errors:
    """A true value, what came out, how far apart they are and how far they may be: of s relative, else
    absolute."""

    true: float
    computed: float
    error: float
    bound: float


@dataclass(frozen=True)
class Explanation:
    """What happened in a row.

    Attributes:
        n, dtype, algorithm, block: of the row and the way it went; block None where there is none.
        special: why there is nothing to compute, in words; None for an ordinary row. All below is then empty
            or None.
        rounded: entries that the dtype does not hold, so that they were rounded first.
        masked: entries of -inf.
        m: the maximum.
        events: new maxima in order, the first finite one too; of "batch" the maximum alone.
        expected: how many new maxima a row of distinct entries in random order has on average (streaming: H_n
            of the entries that are not -inf); None where the algorithm moves no maximum.
        zeros, subnormals: entries whose exponential was 0, or subnormal, as it entered the sum.
        lost_by_underflow: their part of the true sum, zeros' alone; sums rescaled to 0 included.
        lost_by_flush: the further part that would go if subnormal exponentials were flushed to 0.
        stalled: additions that left the greater operand as it was although the other was not 0.
        lost_by_stalling: the part of the true sum in those others.
        y_zeros: results of 0 at entries that are not -inf.
        s, lse, y: true, computed and bounded; y is the entry with the greatest error. worst: its index.
    """

    n: int
    dtype: str
    algorithm: str
    block: int | None
    special: str | None
    rounded: int
    masked: int
    m: float
    events: tuple[Event, ...] = ()
    expected: float | None = None
    zeros: int = 0
    subnormals: int = 0
    lost_by_underflow: float = 0.0
    lost_by_flush: float = 0.0
    stalled: int = 0
    lost_by_stalling: float = 0.0
    y_zeros: int = 0
    s: Errors | None = None
    lse: Errors | None = None
    y: Errors | None = None
    worst: int | None = None

    def text(self, *, events: int = 8) -> str:
        """For a person to read: some lines, of the events the first `events`."""
        return "\n".join(_lines(self, events))


def explain(
    row: ArrayLike, dtype: DTypeLike, algorithm: str = "streaming", block: int | None = None
) -> Explanation:
    """Follow a row through an algorithm carried out in dtype, each operation and function rounded once.

    Args:
        row: (n,) numbers up to float64. What dtype does not hold is rounded first; true values are those of
            the row as given.
        dtype: float64, float32, float16 or bfloat16. algorithm, block: as in `error_bound`.

    Raises: ValueError for another shape, format or algorithm. Cost: about 200 microseconds an entry, most of
        it for the true values, which have 40 digits.
    """
    check_algorithm(algorithm, block)
    unit = machine(dtype_of(dtype, "dtype"))
    given = _row(row)
    with np.errstate(over="ignore", invalid="ignore"):
        x = given.astype(unit.dtype)
    held = x.astype(np.float64)
    m = float(np.max(held, initial=-np.inf))
    blocks = (BLOCK if block is None else block) if algorithm in ("blocked", "tree") else None
    head: dict[str, Any] = {
        "n": len(x),
        "dtype": unit.dtype.name,
        "algorithm": algorithm,
        "block": blocks,
        "special": _special(given, held, unit.dtype.name),
        "rounded": int(np.sum((held != given) & ~np.isnan(given))),
        "masked": int(np.sum(held == -np.inf)),
        "m": m,
    }
    if head["special"] is not None:
        return Explanation(**head)
    with np.errstate(all="ignore"):
        steps = trace(x, algorithm, blocks, unit)
    result = simulate(x, algorithm, unit.dtype, block=block)
    y = result.y.astype(np.float64)
    bound = error_bound(given, algorithm, unit.dtype, block=block)
    return Explanation(
        **head,
        events=tuple(steps.events),
        expected=_expected(held, algorithm, blocks),
        stalled=steps.stalled,
        **_losses(steps, held),
        y_zeros=int(np.sum((y == 0) & (held > -np.inf))),
        **_errors(given, (steps.s, float(result.lse), y), bound),
    )


def _row(row: ArrayLike) -> Array:
    given = np.asarray(row)
    try:
        numbers = given.astype(np.float64) if given.ndim == 1 and given.dtype.kind not in "cOUSmM" else None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None:
        raise ValueError(f"row: shape {given.shape} of {given.dtype} is given: (n,) real numbers would do")
    return numbers


def _special(given: Array, held: Array, name: str) -> str | None:
    """Why a row has no ordinary result; None where it has one."""
    if not len(given):
        return "The row is empty: m = -inf, s = 0, lse = -inf, and there is no y."
    where = np.flatnonzero(np.isnan(given))
    if len(where):
        return f"Entry {where[0]} is NaN, which taints the row: m, s, lse and all of y are NaN."
    where = np.flatnonzero(held == np.inf)
    if len(where):
        which = f"Entry {where[0]} is +inf"
        if given[where[0]] < np.inf:
            which = f"Entry {where[0]}, {given[where[0]]:g}, overflows to +inf in {name}"
        return f"{which}: lse = +inf, and inf - inf makes all of y NaN."
    if (held == -np.inf).all():
        which = "Every entry is -inf" + (f" in {name}" if (given > -np.inf).any() else "")
        return f"{which}: m = -inf, s = 0, lse = -inf, and 0/0 makes all of y NaN."
    return None


def _expected(held: Array, algorithm: str, block: int | None) -> float | None:
    """Mean number of new maxima over all orders of distinct entries: the k-th block of sizes c_1, c_2, ...
    brings one with probability c_k / (c_1 + ... + c_k)."""
    if algorithm in ("batch", "tree"):
        return None
    size = block or 1
    sizes = np.add.reduceat(held > -np.inf, np.arange(0, len(held), size), dtype=np.int64)
    total = np.cumsum(sizes)
    return float((sizes[total > 0] / total[total > 0]).sum())


def _losses(steps: Trace, held: Array) -> dict[str, Any]:
    """What is lost, as parts of the true sum."""
    with np.errstate(over="ignore"):
        weights = np.exp(held - held.max())
    p = weights / weights.sum()
    under = steps.zeros | steps.vanished
    unheard = steps.unheard & ~under
    return {
        "zeros": int(np.sum(steps.zeros)),
        "subnormals": int(np.sum(steps.subnormals)),
        "lost_by_underflow": float(p[under].sum()),
        "lost_by_flush": float(p[steps.subnormals & ~under].sum()),
        "lost_by_stalling": float(p[unheard].sum()),
    }


def _errors(given: Array, computed: tuple[float, float, Array], bound: ErrorBound) -> dict[str, Any]:
    """True values, to so many digits that the smallest entry has 40, and what the computed ones are off
    by."""
    top = given.max()
    with np.errstate(over="ignore"):
        distance = top - given
    depth = float(distance[distance <= FARTHEST].max(initial=0.0)) / math.log(10)
    digits = min(DIGITS + math.ceil(depth), MOST_DIGITS[len(given) > LONG])
    exact = Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
    shift = Decimal(float(top))
    # exp of what lies further off is below the smallest number of every format.
    near = {
        int(i): exact.exp(exact.subtract(Decimal(float(given[i])), shift))
        for i in np.flatnonzero(distance <= FARTHEST)
    }
    s = Decimal(0)
    for weight in near.values():
        s = exact.add(s, weight)
    log_s = exact.ln(s)
    s_hat, lse_hat, y_hat = computed

    def off(value: float, true: Decimal, shift: Decimal = Decimal(0)) -> float:
        if not np.isfinite(value):
            return np.inf
        # The shift is taken out first: beside it the rest may be too small for the digits.
        return abs(float(exact.subtract(exact.subtract(Decimal(value), shift), true)))

    y = [exact.divide(near[i], s) if i in near else Decimal(0) for i in range(len(given))]
    errors = [off(float(a), b) for a, b in zip(y_hat, y, strict=True)]
    worst = int(np.argmax(errors))
    return {
        "s": Errors(float(s), s_hat, off(s_hat, s) / float(s), float(bound.s)),
        "lse": Errors(float(exact.add(shift, log_s)), lse_hat, off(lse_hat, log_s, shift), float(bound.lse)),
        "y": Errors(float(y[worst]), float(y_hat[worst]), errors[worst], float(bound.y[worst])),
        "worst": worst,
    }


def _lines(it: Explanation, events: int) -> list[str]:
    way = it.algorithm + (f" in blocks of {it.block}" if it.block else "")
    lines = [f"{_count(it.n, 'entry')}, {it.dtype}, {way}"]
    if it.rounded:
        lines.append(f"{_count(it.rounded, 'entry')} rounded first: not of {it.dtype}.")
    if it.special is not None:
        return [*lines, it.special]
    if it.masked:
        lines.append(f"{_count(it.masked, 'entry')} of -inf: no part of any sum.")
    lines += _event_lines(it, events)
    lines += _loss_lines(it)
    lines += ["", f"{'':12}{'computed':>24}{'true':>24}{'error':>12}{'bound':>12}"]
    rows = {"s": it.s, "lse": it.lse, f"y[{it.worst}]": it.y}
    for name, found in rows.items():
        if found is not None:
            lines.append(
                f"{name:12}{found.computed:24.17g}{found.true:24.17g}{found.error:12.3g}{found.bound:12.3g}"
            )
    return [*lines, f"(errors of s are relative; y[{it.worst}] is the entry of y with the greatest error)"]


def _event_lines(it: Explanation, most: int) -> list[str]:
    count = len(it.events)
    if it.algorithm == "batch":
        lines = ["The maximum is known before the first exponential: nothing is rescaled."]
    elif it.expected is None:
        lines = [
            f"{_count(count - 1, 'merge')} of parts with different maxima: the sum of the lower is rescaled."
        ]
    else:
        lines = [f"new maxima: {count}; {it.expected:.3g} on average if the order were random."]
    for event in it.events[:most]:
        what = f"  entry {event.index}: maximum {event.maximum:g}"
        if event.stop > event.start:
            what += f", sum of entries {event.start} to {event.stop - 1} times {event.factor:.6g}"
            what += f": s {event.before:.6g} -> {event.after:.6g}"
            what += " (wiped out)" if event.factor == 0 else ""
        else:
            what += f": s = {event.after:.6g}"
        lines.append(what)
    if count > most:
        lines.append(f"  ... and {count - most} more")
    return lines


def _loss_lines(it: Explanation) -> list[str]:
    lines = []
    if it.zeros or it.lost_by_underflow:
        zeros = f"{_count(it.zeros, 'exponential')} of 0 in {it.dtype}"
        what = zeros if it.zeros else "sums or factors became 0 in a rescale"
        lines.append(f"{what}: underflow loses {it.lost_by_underflow:.3g} of the sum.")
    if it.subnormals:
        lines.append(
            f"{_count(it.subnormals, 'exponential')} below the normal numbers: flushed to 0, they would lose "
            f"{it.lost_by_flush:.3g} of the sum."
        )
    if it.stalled:
        lines.append(
            f"{_count(it.stalled, 'addition')} that changed nothing, one number too small beside the other: "
            f"they lose {it.lost_by_stalling:.3g} of the sum."
        )
    if it.y_zeros:
        lines.append(f"{_count(it.y_zeros, 'result')} of 0 where the entry is not -inf.")
    return lines or ["Nothing underflows, and every addition counts."]


def _count(n: int, thing: str) -> str:
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{n} {thing if n == 1 else plural}"
