"""The law of `online_softmax.exact` in Triton, for float32 (what is narrower is widened first), bit for bit.

Device functions: kernels call them, nothing else does. Scores are tiles of (rows, columns); what a row has,
its maximum m and its three sums a0, a1, a2 in int64, are tiles of (rows, 1).

Of floats only maxima are taken across elements, and sums only of whole numbers: the layout of a tile, the
number of warps and the order of programs have no say. No exponential, logarithm or reciprocal of the device
is used: they are approximate and differ between chips. What is used, IEEE 754 defines: `fused`, additions,
products with powers of two, divisions of doubles, conversions. No product or sum can be subnormal where that
would reach a result, so that a device may flush them.

Kernels are compiled without fusion of what is written apart: then each rounding is written here.
"""

from __future__ import annotations

import math
import struct

import triton
import triton.language as tl
from triton.language import constexpr

from .. import exact
from . import state

#: Before 3.9 Triton's interpreter rounds the product of a fused multiply-add, which no GPU does. There, and
#: nowhere else, the NumPy definition's way without hardware takes its place.
_ROUNDS_TWICE = constexpr(
    bool(state.INTERPRETED.value) and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
)


def _bits(pattern: str, x: float) -> int:
    return int(struct.unpack(f"<{'iq'[pattern == 'd']}", struct.pack(f"<{pattern}", x))[0])


_FORMAT = exact.FLOAT32
_INF = constexpr(math.inf)
_WIDTH = constexpr(_FORMAT.width)
_UNIT = constexpr(2.0**_FORMAT.width)
_BELOW = constexpr(2.0**-_FORMAT.width)
_DIGIT = constexpr(2**_FORMAT.width - 1)
_LOG2E = constexpr(_FORMAT.log2e)
_C0, _C1, _C2, _C3, _C4, _C5 = map(constexpr, _FORMAT.coefficients)
_LEAST = constexpr(_FORMAT.least)
_LARGE = constexpr(_FORMAT.large)
_SMALLEST = constexpr(_FORMAT.smallest)
#: From here on a float32 holds too few bits of x * log2(e), and a double takes over: the same numbers.
_FAR = constexpr(2.0**19)
#: So far below m nothing is left of a term, neither in the sums nor as a probability, however the difference
#: is rounded: neighbours lie up to 128 apart. So far above m a probability overflows.
_REACH = constexpr(256.0)
#: Added to a number it rounds it to a whole one, ties to even, which then stands in the low bits.
_MAGIC = constexpr(1.5 * 2.0**23)
_MAGIC_BITS = constexpr(_bits("f", _MAGIC.value))
_WIDE_MAGIC = constexpr(1.5 * 2.0**52)
#: Exponents further down are not told apart in sums: 2**-100 is less than half a unit of the lowest slice.
_LOWEST = constexpr(-100)
_LOG2 = constexpr(exact._LOG2)
_LOG2_LOW = constexpr(exact._LOG2_LOW)
_SQRT_HALF_BITS = constexpr(exact._SQRT_HALF_BITS)
_SERIES = tuple(map(constexpr, exact._SERIES))
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S10 = _SERIES


@triton.jit
def fused(a, b, c):
    """a * b + c rounded once, in a's format."""
    if _ROUNDS_TWICE:
        return emulated(a, b, c)
    else:
        return tl.fma(a, b, c)


@triton.jit
def emulated(a, b, c):
    """`fused` without the operation, as in the definition: a double's rounding to odd bears another."""
    zero = tl.zeros_like(a).to(tl.float64)
    if a.dtype == tl.float64:
        return _fused_double(a, zero + b, zero + c)
    else:
        s, rest = _two_sum(a.to(tl.float64) * (zero + b), zero + c)  # the product is exact
        return _odd(s, rest).to(tl.float32)


@triton.jit
def _two_sum(a, b):
    """a + b as a sum of two numbers, exact."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


@triton.jit
def _odd(s, rest):
    """s + rest, doubles, rounded to odd."""
    bits = s.to(tl.int64, bitcast=True)
    step = tl.where((rest < 0) == (bits < 0), 1, -1)
    return (bits + tl.where((rest != 0) & (bits & 1 == 0), step, 0)).to(tl.float64, bitcast=True)


@triton.jit
def _fused_double(a, b, c):
    """a * b + c rounded once, of doubles, without the operation."""
    high_a = a * 134217729.0 - (a * 134217729.0 - a)
    high_b = b * 134217729.0 - (b * 134217729.0 - b)
    low_a = a - high_a
    low_b = b - high_b
    high = a * b
    low = ((high_a * high_b - high) + high_a * low_b + low_a * high_b) + low_a * low_b
    t, t_rest = _two_sum(low, c)
    v, v_rest = _two_sum(high, t)
    z, z_rest = _two_sum(v_rest, t_rest)
    return v + _odd(z, z_rest)


@triton.jit
def power(e):
    """2**e in float32, for int32 e of a normal number."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def plain(m):
    """Whether terms are summed under this maximum, and equal elements not counted; not under NaN or inf."""
    return tl.abs(m) <= _LARGE


@triton.jit
def pivot(m):
    """The maximum, or 0 where no terms are summed under it."""
    return tl.where(plain(m), m, 0.0)


@triton.jit
def canonical(m, tainted):
    """A maximum as a state holds it."""
    m = tl.where(tl.abs(m) < _LEAST, 0.0, m)
    return tl.where(tainted, float("nan"), m)


@triton.jit
def highest(x, axis: constexpr):
    """The canonical maximum along an axis, kept; -inf of nothing, NaN where any is."""
    tainted = tl.max((x != x).to(tl.int32), axis, keep_dims=True) != 0
    return canonical(tl.max(tl.where(x == x, x, -_INF), axis, keep_dims=True), tainted)


@triton.jit
def some(rows):
    """Whether a condition of shape (rows, 1) holds anywhere, as a scalar."""
    return tl.max(tl.max(rows.to(tl.int32), 1), 0) != 0


@triton.jit
def _exponent(x):
    """x * log2(e) as n and the rest of it, doubles, exact for |x| up to 2**30."""
    y = x.to(tl.float64) * _LOG2E
    n = (y + _WIDE_MAGIC) - _WIDE_MAGIC
    return n, y - n


@triton.jit
def bin_of(top):
    """The bin, int32, of the term of a pivot."""
    n, _ = _exponent(top)
    up = n.to(tl.int32) + 1
    near_zero = up // _WIDTH  # it truncates
    return tl.where(near_zero * _WIDTH > up, near_zero - 1, near_zero)


@triton.jit
def terms(x, b, far):
    """(p, e): T(x) = p * 2**(e + W*b), float32 and int32. |x| up to 2**30, or near 0 where not `far`."""
    if far:
        n, rest = _exponent(x)
        f = rest.to(tl.float32)
        e = n.to(tl.int32) - b * _WIDTH
    else:
        shifted = -((b * _WIDTH).to(tl.float32) - _MAGIC)  # exact, and so is what is taken from it
        v = fused(x, _LOG2E, shifted)
        f = fused(x, _LOG2E, -(v - shifted))
        e = v.to(tl.int32, bitcast=True) - _MAGIC_BITS
    p = fused(f, _C5, _C4)
    p = fused(f, p, _C3)
    p = fused(f, p, _C2)
    p = fused(f, p, _C1)
    p = fused(f, p, _C0)
    return fused(f, p, 1.0), e


@triton.jit
def terms_under(x, m):
    """(p, e) of scores of up to m, for its top bin; what is far below counts as lying nearer, but nothing."""
    top = pivot(m)
    return terms(tl.maximum(x, top - _REACH), bin_of(top), some(tl.abs(top) >= _FAR))


@triton.jit
def slices(p, e):
    """The three slices of p * 2**e in units of the top one: int32, up to 2**21 in size."""
    # Products with powers of two are exact: it makes no difference how these are fused.
    scale = power(tl.maximum(e, _LOWEST))
    v0 = tl.fma(p, scale, _MAGIC)
    rest = tl.fma(p, scale, -(v0 - _MAGIC))
    v1 = tl.fma(rest, _UNIT, _MAGIC)
    rest = tl.fma(rest, _UNIT, -(v1 - _MAGIC))
    v2 = tl.fma(rest, _UNIT, _MAGIC)
    return _whole(v0), _whole(v1), _whole(v2)


@triton.jit
def _whole(v):
    return v.to(tl.int32, bitcast=True) - _MAGIC_BITS


@triton.jit
def _total(s, PARTS: constexpr):
    """Sums along axis 1, kept, int64. PARTS, up to 512, columns far apart are first summed in 32 bits."""
    near = tl.sum(tl.reshape(s, [s.shape[0], PARTS, s.shape[1] // PARTS]), 1)
    return tl.sum(near.to(tl.int64), 1, keep_dims=True)


@triton.jit
def of_block(x, PARTS: constexpr):
    """(m, a0, a1, a2, p, e): the states of the rows of a tile, and the terms of its scores under them."""
    m = highest(x, 1)
    p, e = terms_under(x, m)
    s0, s1, s2 = slices(p, e)
    summed = plain(m)
    a0 = tl.where(summed, _total(s0, PARTS), 0)
    a1 = tl.where(summed, _total(s1, PARTS), 0)
    a2 = tl.where(summed, _total(s2, PARTS), 0)
    counted = (summed == 0) & (m > -_INF)
    if some(counted):
        a0 = tl.where(counted, tl.sum((x == m).to(tl.int32), 1, keep_dims=True).to(tl.int64), a0)
    return m, a0, a1, a2, p, e


@triton.jit
def moved(m, top, a0, a1, a2):
    """Sums under m as they count in a sum under `top`, a maximum of at least m."""
    under = bin_of(pivot(top)) - bin_of(pivot(m))
    down = tl.where(m == top, 0, tl.where(plain(top) & plain(m), under, 3))
    a2 = tl.where(down == 0, a2, tl.where(down == 1, a1, tl.where(down == 2, a0, 0)))
    a1 = tl.where(down == 0, a1, tl.where(down == 1, a0, 0))
    return tl.where(down == 0, a0, 0), a1, a2


@triton.jit
def _sum(a0, a1, a2):
    """Sums of slices as one double, in units of the top slice."""
    a1 += a2 >> _WIDTH
    a2 = a2 & _DIGIT
    a0 += a1 >> _WIDTH
    a1 = a1 & _DIGIT
    total = a2.to(tl.float64) * _BELOW + a1.to(tl.float64)
    return total * _BELOW + a0.to(tl.float64)


@triton.jit
def rest_of(m, a0, a1, a2):
    """(V - T(m), T(m)), doubles; where equal elements are counted, their number less 1, and 1."""
    summed = plain(m)
    top = pivot(m)
    p, e = terms(top, bin_of(top), True)
    s0, s1, s2 = slices(p, e)
    a0 = a0 - tl.where(summed, s0, 1).to(tl.int64)
    a1 = a1 - tl.where(summed, s1, 0).to(tl.int64)
    a2 = a2 - tl.where(summed, s2, 0).to(tl.int64)
    return _sum(a0, a1, a2), tl.where(summed, p * power(e), 1.0).to(tl.float64)


@triton.jit
def log1p(u):
    """log(1 + u) of doubles u >= 0."""
    r, c = _two_sum(tl.full(u.shape, 1.0, tl.float64), u)
    k = (r.to(tl.int64, bitcast=True) - _SQRT_HALF_BITS) >> 52
    scale = ((1023 - k) << 52).to(tl.float64, bitcast=True)
    z = (r * scale - 1.0) + c * scale
    s = z / (2.0 + z)
    square = s * s
    q = fused(square, _S10, _S9)
    q = fused(square, q, _S8)
    q = fused(square, q, _S7)
    q = fused(square, q, _S6)
    q = fused(square, q, _S5)
    q = fused(square, q, _S4)
    q = fused(square, q, _S3)
    q = fused(square, q, _S2)
    q = fused(square, q, _S1)
    q = fused(square, q, _S0)
    twice = s + s
    series = fused(twice * square, q, twice)
    whole = k.to(tl.float64)
    return fused(whole, _LOG2, fused(whole, _LOG2_LOW, series))


@triton.jit
def log_sum(m, a0, a1, a2):
    """log(V / T(m)), double; 0 where nothing finite was seen."""
    finite = tl.abs(m) < _INF
    rest, own = rest_of(m, a0, a1, a2)
    return tl.where(finite, log1p(tl.where(finite, rest / own, 0.0)), 0.0)


@triton.jit
def lse(m, a0, a1, a2):
    """Natural logarithm of the sum of exp, float32."""
    y = (m.to(tl.float64) + log_sum(m, a0, a1, a2)).to(tl.float32)
    return tl.where(m == m, y, float("nan"))


@triton.jit
def inverse(m, a0, a1, a2):
    """1/V as (high + low) * 2**-k: float32, float32, int32."""
    rest, own = rest_of(m, a0, a1, a2)
    bits = (rest + own).to(tl.int64, bitcast=True)
    k = ((bits >> 52) - 1023).to(tl.int32)
    one = 1.0 / ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).to(tl.float64, bitcast=True)
    high = one.to(tl.float32)
    return high, (one - high.to(tl.float64)).to(tl.float32), k


@triton.jit
def value(x, p, e, m, a0, a1, a2, FOREIGN: constexpr):
    """The probabilities of scores under the states of their rows, from their terms. FOREIGN: the states may
    not have seen them, and they may lie above m, as `near` has them."""
    high, low, k = inverse(m, a0, a1, a2)
    # Past the lowest exponent all are 0, and products with 2**-126 below `_SMALLEST`, flushed or not.
    exponent = tl.maximum(e - k, -126)
    y = fused(p, high, p * low)
    if FOREIGN:
        exponent = tl.minimum(exponent, 254)
        y = y * power(exponent >> 1) * power(exponent - (exponent >> 1))
        y = tl.where((y >= _SMALLEST) & (x <= _LARGE), y, 0.0)
    else:
        y = y * power(exponent)
        y = tl.where(y >= _SMALLEST, y, 0.0)
    if some(plain(m) == 0):
        share = high * power(tl.maximum(-k, -126))
        counted = tl.where(tl.abs(m) < _INF, tl.where(x == m, share, 0.0), float("nan"))
        y = tl.where(plain(m), y, counted)
    if FOREIGN:
        y = tl.where(x == x, y, float("nan"))
    return y


@triton.jit
def near(x, m):
    """Scores that may lie above m, so far down that exponents stay small; higher ones overflow as well."""
    return tl.minimum(x, pivot(m) + _REACH)


@triton.jit
def log_value(x, m, a0, a1, a2):
    """The log-probabilities of scores under the states of their rows."""
    y = ((x.to(tl.float64) - m.to(tl.float64)) - log_sum(m, a0, a1, a2)).to(tl.float32)
    y = tl.where(tl.abs(y) < _LEAST, 0.0, y)
    return tl.where((tl.abs(m) < _INF) & (x == x), y, float("nan"))
