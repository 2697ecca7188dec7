"""The law in whole numbers: statistics of a row that are the same bits for any split and any order.

A term is a pure function of its element, T(x) = p * 2**n near exp(x); a sum of terms is kept as three (four
in float64) 64-bit integers, the sums of the slices of the terms on a grid that the maximum alone fixes.
Integer sums have no order, and a slice that falls below the grid of a greater maximum falls below it in
whatever order the elements come. So the state of a multiset of elements is one value, and

    merge(state(X), state(Y)) = state(X + Y)        bit for bit.

    term        y = x*c;  n = round(y);  f = y - n;  p = 1 + f*q(f);  T = p * 2**n     (c: log2(e) in a float)
    bin         b(n) = floor((n + 1) / W)
    slices      of T for top bin b, unit 2**(W*(b - k)) for k = 0, 1, ...: from the top down, each the rest of
                what is above it rounded to a whole number of units, ties to even
    state       m = max(x);  a[k] = sum of the slices k for top bin b(n(m))
    merge       m = max;  the sums of the lower m move down by the difference of their top bins;  a adds up
    read        V = sum of a[k] * 2**-(W*k);  lse = m + log1p((V - T(m)) / T(m));  y = T(x) / V

m is never -0.0 nor subnormal: both count as 0.0, for machines differ in them. Of nothing, and of elements
that are all -inf: (-inf, 0). With +inf: (+inf, their number in a[0]). NaN: (NaN, 0), one pattern, and nothing
brings it back. Beyond `Format.large` neighbouring numbers lie so far apart that elements below m are 0: then
a[0] is the number of elements equal to m.

Every step is an operation that IEEE 754 defines to the bit (add, multiply, divide, fused multiply-add, whole
numbers, powers of two), in an order that is part of the format; no library's exp or log has a say. This file
needs no fused multiply-add: products of two floats are exact in double, and what doubles round away is made
up for (`_fused`). It is what the native and GPU kernels are held to, one bit and all.

Errors, against the true sum S of exp(x - m), relative: float32 2*9e-8 + 1.335e-8 * (mean of m - x under the
softmax) + n * 2**-43.5; `numerics.error_bound` has them. Sums hold up to 2**41 elements, 2**31 in float64.

The idea of sums on a grid that only the maximum fixes: Demmel and Nguyen, "Parallel reproducible summation",
IEEE Transactions on Computers 2015, doi:10.1109/TC.2014.2345391.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: m, and the sums in a last axis of `Format.slices`.
State = tuple[Array, Array]


@dataclass(frozen=True)
class Format:
    """A version of the definition. Another number in it makes other bits, and needs another name."""

    name: str
    kind: int  # what `wire` calls it
    dtype: np.dtype[Any]
    width: int  # W, bits of a slice
    slices: int
    log2e: float
    log2e_low: float  # what log2e leaves out; 0 where it is left out
    coefficients: tuple[float, ...]  # of q, lowest first
    least: float  # smallest magnitude of m and of results; below it they are 0
    far: float  # from here on terms of doubles are reduced in two parts
    large: float  # beyond it equal elements are counted
    smallest: float  # a probability below it is 0
    reach: float  # so far below m every probability is 0


#: Coefficients by scripts/fit_exp.py.
FLOAT32: Final = Format(
    name="lse-22x3/1",
    kind=32,
    dtype=np.dtype(np.float32),
    width=22,
    slices=3,
    log2e=float.fromhex("0x1.715476p+0"),
    log2e_low=0.0,
    coefficients=tuple(
        float.fromhex(c)
        for c in (
            "0x1.62e430p-1", "0x1.ebfbdcp-3", "0x1.c6af7cp-5", "0x1.3b2de0p-7", "0x1.5f0830p-10",
            "0x1.416b5ap-13",
        )
    ),
    least=2.0**-126,
    far=2.0**31,
    large=2.0**30,
    smallest=2.0**-125,
    reach=128.0,
)  # fmt: skip
FLOAT64: Final = Format(
    name="lse-32x4/1",
    kind=64,
    dtype=np.dtype(np.float64),
    width=32,
    slices=4,
    log2e=float.fromhex("0x1.71547652b82fep+0"),
    log2e_low=float.fromhex("0x1.777d0ffda0d24p-56"),
    coefficients=tuple(
        float.fromhex(c)
        for c in (
            "0x1.62e42fefa39efp-1", "0x1.ebfbdff82c58fp-3", "0x1.c6b08d704a0ccp-5", "0x1.3b2ab6fba4e7ap-7",
            "0x1.5d87fe78a2817p-10", "0x1.430912f86ae8bp-13", "0x1.ffcbfc767e0d0p-17",
            "0x1.62c02246389cbp-20", "0x1.b524d66e8dfc9p-24", "0x1.e4ceffef1e38ap-28",
            "0x1.ea0fee33cacf4p-32", "0x1.c4beee69db273p-36",
        )
    ),
    least=2.0**-1022,
    far=2.0**49,
    large=2.0**62,
    smallest=2.0**-1021,
    reach=1024.0,
)  # fmt: skip

_LOG2: Final = float.fromhex("0x1.62e42fefa39efp-1")
_LOG2_LOW: Final = float.fromhex("0x1.abc9e3b39803fp-56")
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
#: atanh(s) = s + s**3/3 + s**5/5 + ...
_SERIES: Final = tuple(1.0 / d for d in range(3, 25, 2))
#: Elements worked on at once.
_PIECE: Final = 1 << 16
_ONE: Final = float.fromhex("0x1p0")
_TINY: Final = float.fromhex("0x1p-60")


def rounds_to_nearest() -> bool:
    """Whether this thread does, now: an operating system lets it choose."""
    return _ONE + _TINY == _ONE and _ONE - _TINY == _ONE


def nearest() -> None:
    """Raises RuntimeError where this thread does not round to nearest: its results would have other bits."""
    if not rounds_to_nearest():
        would = "fesetround(FE_TONEAREST) before the call would do"
        raise RuntimeError(f'order="any" is refused: this thread does not round to nearest: {would}')


def format_of(dtype: np.dtype[Any]) -> Format:
    """FLOAT64 for float64, FLOAT32 for what is narrower."""
    return FLOAT64 if dtype == np.float64 else FLOAT32


def _two_product(a: Array, b: Array | float) -> tuple[Array, Array]:
    """a*b as an unevaluated sum of two doubles, exact (Dekker 1971), for |a|, |b| < 2**990."""
    split = 134217729.0
    b = np.float64(b)
    high_a = a * split - (a * split - a)
    high_b = b * split - (b * split - b)
    low_a, low_b = a - high_a, b - high_b
    p = a * b
    return p, ((high_a * high_b - p) + high_a * low_b + low_a * high_b) + low_a * low_b


def _two_sum(a: Array, b: Array | float) -> tuple[Array, Array]:
    """a + b as an unevaluated sum of two doubles, exact (Knuth)."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _odd(s: Array, rest: Array) -> Array:
    """s + rest rounded to odd: what is rounded again, to a few bits less, then comes out as if rounded
    once."""
    bits = s.view(np.int64)
    outward = np.signbit(rest) == np.signbit(s)
    step = np.where((rest != 0) & (bits & 1 == 0), np.where(outward, 1, -1), 0)
    return (bits + step).view(np.float64)


def _fused(a: Array, b: Array | float, c: Array | float, dtype: np.dtype[Any]) -> Array:
    """a*b + c rounded once to `dtype`; operands are doubles that hold numbers of `dtype`."""
    if dtype == np.float32:
        s, rest = _two_sum(np.asarray(a * b), c)  # the product is exact: 24 and 24 bits
        return _odd(s, rest).astype(np.float32).astype(np.float64)
    high, low = _two_product(a, b)
    t, t_rest = _two_sum(low, c)
    v, v_rest = _two_sum(high, t)
    z, z_rest = _two_sum(v_rest, t_rest)
    return np.asarray(v + _odd(z, z_rest))


def terms(x: Array, form: Format) -> tuple[Array, Array]:
    """(p, n) with T(x) = p * 2**n near exp(x); p in double, n int64. |x| up to `form.large`."""
    wide = x.astype(np.float64)
    if form.dtype == np.float32:
        y = wide * form.log2e  # exact: 24 and 24 bits
        n = np.rint(y)
        f = (y - n).astype(np.float32).astype(np.float64)
    else:
        n, f = _reduced(wide, form)
    p = np.full_like(f, form.coefficients[-1])
    for c in form.coefficients[-2::-1]:
        p = _fused(p, f, c, form.dtype)
    return _fused(p, f, 1.0, form.dtype), n.astype(np.int64)


def _reduced(x: Array, form: Format) -> tuple[Array, Array]:
    """x*log2(e) as n + f, n whole (exact in a double below 2**53, else near enough to be one)."""
    near = np.where(np.abs(x) < form.far, x, 0.0)
    magic = 1.5 * 2.0**52
    n = _fused(near, form.log2e, magic, form.dtype) - magic
    f = _fused(near, form.log2e_low, _fused(near, form.log2e, -n, form.dtype), form.dtype)
    if np.array_equal(near, x):
        return n, f
    # Far out the product has no place left for a fraction, and its low part takes its turn.
    high, low = _two_product(x, form.log2e)
    first, second = np.rint(high), np.rint(low)
    part, part_low = _two_product(x, form.log2e_low)
    third = np.rint(part)
    left = ((high - first) + (low - second)) + ((part - third) + part_low)
    fourth = np.rint(left)
    far = np.abs(x) >= form.far
    whole = first.astype(np.int64) + (second + third + fourth).astype(np.int64)
    return np.where(far, whole, n.astype(np.int64)), np.where(far, left - fourth, f)


def bin_of(n: Array, form: Format) -> Array:
    """The bin of a term's exponent: the top bin of a state whose maximum has it."""
    return (n + 1) // form.width


def slices(p: Array, n: Array, b: Array, form: Format) -> Array:
    """The slices of p * 2**n for top bin b, in a last axis: whole numbers, int64."""
    lowest = -form.width * form.slices - 8  # from here down all slices are 0
    rest = np.ldexp(p, np.clip(n - form.width * b, lowest, form.width - 2).astype(np.int32))
    made = []
    for _ in range(form.slices):
        whole = np.rint(rest)
        made.append(whole.astype(np.int64))
        rest = (rest - whole) * 2.0**form.width
    return np.stack(made, axis=-1)


def identity(shape: tuple[int, ...], form: Format) -> State:
    """The state of nothing."""
    return np.full(shape, -np.inf, form.dtype), np.zeros((*shape, form.slices), np.int64)


def canonical(m: Array, form: Format) -> Array:
    """A maximum as a state holds it: -0.0 and subnormal numbers are 0.0, NaN has one pattern."""
    m = np.where(np.abs(m) < form.least, form.dtype.type(0), m)
    return np.where(np.isnan(m), form.dtype.type(np.nan), m).astype(form.dtype)


def _plain(m: Array, form: Format) -> Array:
    return np.abs(m) <= form.large  # False for NaN and infinities


def _top(m: Array, form: Format) -> Array:
    """Top bin of a state with this maximum; 0 where it has none."""
    return bin_of(terms(np.where(_plain(m, form), m, form.dtype.type(0)), form)[1], form)


def state(x: Array, form: Format) -> State:
    """The states of the rows of x, whose last axis is reduced; x of `form.dtype`."""
    nearest()
    m = canonical(np.max(x, axis=-1, initial=-np.inf), form)
    a = np.zeros((*m.shape, form.slices), np.int64)
    plain, b = _plain(m, form), _top(m, form)
    for at in range(0, x.shape[-1], _PIECE):
        piece = x[..., at : at + _PIECE]
        with np.errstate(invalid="ignore"):
            # Far below the maximum nothing is left of a term, and its exponent may be past an integer.
            reach = np.where(plain, m - form.dtype.type(form.width * (form.slices + 2)), 0)[..., None]
            kept = (piece >= reach) & plain[..., None]
        p, n = terms(np.where(kept, piece, form.dtype.type(0)), form)
        cut = slices(p, n, b[..., None], form)
        a += np.where(kept[..., None], cut, 0).sum(axis=-2)
        equal = (piece == m[..., None]) & ~plain[..., None] & (m > -np.inf)[..., None]
        a[..., 0] += equal.sum(axis=-1)
    return m, a


def merge(left: State, right: State, form: Format) -> State:
    """The state of what either has seen. Shapes are one and the same."""
    nearest()
    (m_a, a), (m_b, b) = left, right
    with np.errstate(invalid="ignore"):
        lower = m_a < m_b
        m = canonical(np.where(lower, m_b, m_a), form)
        m = np.where(np.isnan(m_a) | np.isnan(m_b), form.dtype.type(np.nan), m)
    upper_sums, lower_sums = (np.where(lower[..., None], *pair) for pair in ((b, a), (a, b)))
    small = np.where(lower, m_a, m_b)
    down = np.where(
        m == small,
        0,
        np.where(
            _plain(m, form) & _plain(small, form),
            np.minimum(_top(m, form) - _top(small, form), form.slices),
            form.slices,
        ),
    )
    sums = upper_sums.copy()
    for k in range(form.slices):
        for d in range(k + 1):
            sums[..., k] += np.where(down == d, lower_sums[..., k - d], 0)
    empty = np.isnan(m) | np.isneginf(m)
    return m, np.where(empty[..., None], 0, sums)


def total(a: Array, width: int) -> Array:
    """Sums of slices of `width` bits as doubles, in units of the top slice; the lower ones are first brought
    below a unit."""
    digits = [a[..., k] for k in range(a.shape[-1])]
    for k in range(len(digits) - 1, 0, -1):
        digits[k - 1] = digits[k - 1] + (digits[k] >> width)
        digits[k] = digits[k] & ((1 << width) - 1)
    found = digits[-1].astype(np.float64)
    for digit in digits[-2::-1]:
        found = found * 2.0**-width + digit.astype(np.float64)
    return np.asarray(found)


def log1p(u: Array) -> Array:
    """log(1 + u) of doubles u >= 0, within 2 ulp, by operations that IEEE 754 defines."""
    r, c = _two_sum(np.ones_like(u), u)
    k = (r.view(np.int64) - _SQRT_HALF_BITS) >> 52
    scale = ((1023 - k) << 52).view(np.float64)  # 2**-k
    z = (r * scale - 1.0) + c * scale
    s = z / (2.0 + z)
    square = s * s
    q = np.full_like(s, _SERIES[-1])
    double = np.dtype(np.float64)
    for c_k in _SERIES[-2::-1]:
        q = _fused(q, square, c_k, double)
    twice = s + s
    series = _fused(twice * square, q, twice, double)
    whole = k.astype(np.float64)
    return _fused(whole, _LOG2, _fused(whole, _LOG2_LOW, series, double), double)


def rest_of(m: Array, a: Array, form: Format) -> tuple[Array, Array]:
    """(V - T(m), T(m)) in units of the top slice, for states that are not empty; where equal elements are
    counted, their number less 1, and 1."""
    plain = _plain(m, form)
    p, n = terms(np.where(plain, m, form.dtype.type(0)), form)
    b = bin_of(n, form)
    own = np.where(plain[..., None], slices(p, n, b, form), 0)
    own[..., 0] = np.where(plain, own[..., 0], 1)
    return total(a - own, form.width), np.where(
        plain, np.ldexp(p, (n - form.width * b).astype(np.int32)), 1.0
    )


def log_sum(m: Array, a: Array, form: Format) -> Array:
    """log(V / T(m)) in double: what lse has above m. 0 where nothing finite was seen."""
    finite = np.isfinite(m)
    rest, own = rest_of(np.where(finite, m, form.dtype.type(0)), np.where(finite[..., None], a, 0), form)
    return np.where(finite, log1p(np.where(finite, rest / own, 0.0)), 0.0)


def lse(m: Array, a: Array, form: Format) -> Array:
    """Natural logarithm of the sum of exp; `form.dtype`."""
    nearest()
    return (m.astype(np.float64) + log_sum(m, a, form)).astype(form.dtype)


def inverse(m: Array, a: Array, form: Format) -> tuple[Array, Array, Array]:
    """1/V as (high + low) * 2**-k with high in (1/2, 1]: two numbers of the format in doubles, k int64."""
    rest, own = rest_of(m, a, form)
    mantissa, k = np.frexp(rest + own)
    v = mantissa * 2.0
    one = 1.0 / v
    if form.dtype == np.float32:
        high = one.astype(np.float32).astype(np.float64)
        low = (one - high).astype(np.float32).astype(np.float64)
    else:
        high = one
        low = _fused(-high, v, np.ones_like(v), form.dtype) * high
    return high, low, k.astype(np.int64) - 1


def value(x: Array, m: Array, a: Array, form: Format) -> Array:
    """T(x)/V, the probability of x under the state: `form.dtype`. NaN where m is not finite or x is NaN.

    x has `form.dtype`, and the states broadcast to it."""
    nearest()
    plain, finite = _plain(m, form), np.isfinite(m)
    pivot = np.where(finite, m, form.dtype.type(0))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        high, low, k = inverse(pivot, np.where(finite[..., None], a, 0), form)
        within = (x <= form.large) & (x >= np.where(plain, m, 0) - form.dtype.type(form.reach)) & plain
        p, n = terms(np.where(within, x, form.dtype.type(0)), form)
        # The product with `low` is rounded by itself: to `dtype`, as all else.
        y = _fused(p, high, (p * low).astype(form.dtype).astype(np.float64), form.dtype)
        exponent = n - form.width * _top(m, form) - k
        y = np.ldexp(y, np.clip(exponent, -4096, 4096).astype(np.int32))
        y = np.where(within & (y >= form.smallest), y, 0.0)
        y = np.where(plain, y, np.where(x == m, np.ldexp(high, -k.astype(np.int32)), 0.0))
        return np.where(finite & ~np.isnan(x), y, np.nan).astype(form.dtype)


def log_value(x: Array, m: Array, a: Array, form: Format) -> Array:
    """(x - m) - log(V/T(m)), the log-probability of x under the state. Shapes and NaN as in `value`."""
    nearest()
    with np.errstate(invalid="ignore", over="ignore"):
        y = (x.astype(np.float64) - m.astype(np.float64)) - log_sum(m, a, form)
        y = y.astype(form.dtype)
        y = np.where(np.abs(y) < form.least, form.dtype.type(0), y)
        return np.where(np.isfinite(m) & ~np.isnan(x), y, form.dtype.type(np.nan)).astype(form.dtype)
