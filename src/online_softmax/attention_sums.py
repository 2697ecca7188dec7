"""Attention partials whose merge is associative and commutative in bits: the law, in NumPy.

The atom is the super-tile: `TILE` keys that begin at a multiple of `TILE`, counted in the whole sequence. One
sequence of instructions makes a partial of it for each query, which depends on the query and on these keys
alone:

    pivot       a number near the greatest score
    weight      sum(exp(x_j - pivot))
    o           sum(exp(x_j - pivot) * v_j)

From there on nothing is left to chance. exp(pivot) is p * 2**n as `exact` has it for float64, by operations
that IEEE 754 defines; p * weight and p * o are rounded to double, and each of these numbers, for the weight
and for every feature, goes into a sum of its own on a grid of `WIDTH` bits:

    number      u * 2**n = f * 2**e, 1/2 <= abs(f) < 1;  its bin: floor(e / WIDTH)
    slices      of the number for top bin b, unit 2**(WIDTH*(b - k)) for k = 0, 1, ...: from the top down,
                each the rest of what is above it rounded to a whole number of units, ties to even
    sum         b = the greatest bin of its numbers;  a[k] = sum of their slices k for top bin b
    merge       b = max;  the sums of the lower b move down by the difference;  a adds up
    read        o = sum of a[k] of a feature / that of the weight;  lse = log of the latter

A slice that falls below the grid of the greatest number falls below it in whatever order they come, and sums
of whole numbers have no order: so a state is one value for a set of super-tiles,

    merge(state(X), state(Y)) = state(X + Y)        bit for bit.

Scores past `LARGE` in size lie so far apart that a lower pivot weighs nothing: the state keeps such a pivot
as its `level`, which is 0 for all others, -inf where nothing was seen, and +inf or NaN where a score was; of
two levels the higher counts alone. o is NaN under +inf and NaN. An infinite or NaN entry of an o counts
however little it weighs.

**Error.** With N super-tiles and K slices, beside that of the partials: of o and of the weight, each relative
to its largest p * o, or p * weight, of all super-tiles, N * 2**-(WIDTH * (K - 1)) + 2**-50; 2**-50 *
(1 + abs(lse)) more for the lse; and one rounding at the end. Sums hold up to 2**31 super-tiles.

The idea of sums on a grid that only the maximum fixes: Demmel and Nguyen, "Parallel reproducible summation",
IEEE Transactions on Computers 2015, doi:10.1109/TC.2014.2345391.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import exact

Array = NDArray[Any]

#: Keys of a super-tile. Part of the format, as are WIDTH and LARGE.
TILE: Final = 512
WIDTH: Final = 32
LARGE: Final = 2.0**30
#: The bin of a sum of nothing but zeros.
NONE: Final = -(2**31)
_MOST_SUM: Final = 1 << 62
#: What an entry of o may be beside finite numbers, as bits.
PLUS, MINUS, NAN = 1, 2, 4
_LOG2: Final = float.fromhex("0x1.62e42fefa39efp-1")


@dataclass(frozen=True)
class Format:
    """A version of the definition. Another number in it makes other bits, and needs another name."""

    name: str
    kind: int  # what `wire` calls it
    dtype: np.dtype[Any]
    slices: int


FLOAT32: Final = Format("attention-32x2/1", 34, np.dtype(np.float32), 2)
FLOAT64: Final = Format("attention-32x3/1", 66, np.dtype(np.float64), 3)
FORMATS: Final = {form.dtype: form for form in (FLOAT32, FLOAT64)}


class Sums(NamedTuple):
    """What a state holds, for rows of any leading shape; entry 0 of bins and a is the weight, the others are
    the features of o."""

    level: Array  # the format's dtype
    bins: Array  # int32, (..., 1 + dv)
    a: Array  # int64, (..., 1 + dv, slices)
    odd: Array  # uint8, (..., dv): PLUS, MINUS and NAN


def identity(shape: tuple[int, ...], dv: int, form: Format) -> Sums:
    """The sums of nothing."""
    return Sums(
        np.full(shape, -np.inf, form.dtype),
        np.full((*shape, 1 + dv), NONE, np.int32),
        np.zeros((*shape, 1 + dv, form.slices), np.int64),
        np.zeros((*shape, dv), np.uint8),
    )


def partial(pivot: Array, weight: Array, o: Array, form: Format) -> Sums:
    """The sums of one partial a row: pivot and weight (...), o (..., dv), float64 or the format's dtype.
    A row that saw nothing has a pivot of -inf and a weight of 0."""
    exact.nearest()
    with np.errstate(all="ignore"):
        broken = np.isnan(weight) | np.isnan(pivot)
        plain = np.abs(pivot) <= LARGE
        level = np.where(broken, np.nan, np.where(plain, 0.0, pivot)).astype(form.dtype)
        p, n = exact.terms(np.where(plain, pivot, 0.0).astype(np.float64), exact.FLOAT64)
        seen = np.isfinite(level)[..., None]
        u = np.concatenate([weight[..., None], o], axis=-1).astype(np.float64) * p[..., None]
        of_o = u[..., 1:]
        odd = (of_o == np.inf) * PLUS + (of_o == -np.inf) * MINUS + np.isnan(of_o) * NAN
        f, e = np.frexp(np.where(np.isfinite(u) & seen, u, 0.0))
    exponent = e + n[..., None]
    bins = np.where(f == 0, 0, exponent // WIDTH)
    rest = np.ldexp(f, (exponent - WIDTH * bins).astype(np.int32))
    a = np.empty((*bins.shape, form.slices), np.int64)
    for k in range(form.slices):
        whole = np.rint(rest)
        a[..., k] = whole
        rest = (rest - whole) * 2.0**WIDTH
    bins = np.where(f == 0, NONE, bins).astype(np.int32)
    return Sums(level, bins, a, np.where(seen, odd, 0).astype(np.uint8))


def merge(left: Sums, right: Sums) -> Sums:
    """The sums of what either has seen. Shapes and formats are the same."""
    with np.errstate(invalid="ignore"):
        level = np.maximum(left.level, right.level)  # NaN where one is
    finite = np.isfinite(level)
    kept = [np.where(((s.level == level) & finite)[..., None], s.bins, NONE) for s in (left, right)]
    bins = np.maximum(*kept)
    a = np.zeros_like(left.a)
    slices = a.shape[-1]
    for given, own in zip((left, right), kept, strict=True):
        down = np.minimum(bins.astype(np.int64) - own, slices)
        down[own == NONE] = slices
        if not down.any():
            a += given.a
            continue
        for k in range(slices):
            for d in range(k + 1):
                a[..., k] += np.where(down == d, given.a[..., k - d], 0)
    odd = np.where(finite[..., None], left.odd | right.odd, 0).astype(np.uint8)
    return Sums(level, bins, a, odd)


def read(sums: Sums) -> tuple[Array, Array]:
    """(o, lse) in float64: 0 and -inf of nothing."""
    exact.nearest()
    finite = np.isfinite(sums.level)
    total = exact.total(sums.a, WIDTH)
    weight = np.where(finite, total[..., 0], 1.0)
    bins = np.where(sums.bins == NONE, 0, sums.bins).astype(np.int64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        by = np.clip((bins[..., 1:] - bins[..., :1]) * WIDTH, -4096, 4096).astype(np.int32)
        o = np.ldexp(total[..., 1:] / weight[..., None], by)
        plus, minus, nan = ((sums.odd & bit) != 0 for bit in (PLUS, MINUS, NAN))
        o = np.where(plus, np.inf, np.where(minus, -np.inf, o))
        o = np.where(nan | (plus & minus), np.nan, o)
        o = np.where(finite[..., None], o, np.where(np.isneginf(sums.level)[..., None], 0.0, np.nan))
        f, e = np.frexp(weight)
        small = f < 0.75
        exponent = (e - small + WIDTH * bins[..., 0]).astype(np.float64)
        log = exponent * _LOG2 + exact.log1p(np.where(small, f * 2, f) - 1)
        level = sums.level.astype(np.float64)
        return o, np.where(finite, level + log, level)


def possible(sums: Sums) -> bool:
    """Whether these are sums as `partial` and `merge` make them, as far as one can tell."""
    level, bins, a, odd = sums
    finite = np.isfinite(level)
    canonical = np.where(np.isnan(level), level.dtype.type(np.nan), level + level.dtype.type(0))
    good = canonical.tobytes() == level.tobytes()
    with np.errstate(invalid="ignore"):
        good &= bool(np.all((np.abs(level) > LARGE) | (level == 0) | np.isnan(level)))
    good &= bool(np.all(bins[~finite] == NONE) and np.all(odd[~finite] == 0))
    good &= bool(np.all(bins[..., 0][finite] != NONE) and np.all(odd < 8))
    top = (2**31 + 1100) // WIDTH + 1
    good &= bool(np.all((bins == NONE) | (np.abs(bins.astype(np.int64)) <= top)))
    good &= not np.any(a[bins == NONE])
    return good and not beyond(sums) and bool(np.all(exact.total(a, WIDTH)[..., 0][finite] > 0))


def beyond(sums: Sums) -> bool:
    """Whether a sum is of more than 2**31 super-tiles, whose slices are of up to 2**31.

    Two states within these bounds have a sum that int64 holds, but for 2**63, which turns up as -2**63."""
    return bool((sums.a > _MOST_SUM).any() or (sums.a < -_MOST_SUM).any())
