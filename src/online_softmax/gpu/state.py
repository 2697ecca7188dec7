"""The law in Triton: a state (m, s) of float32, made of blocks of scores, merged in any order, and read.

The functions here are device functions: kernels call them, nothing else does. A state of a block keeps the
reduced axis with length 1, so that it broadcasts against the scores it came from.

    state       m = max(x), s = sum(exp(x - m)); of nothing: (-inf, 0)
    read        lse = m + log(s);  y = exp(x - m) / s;  log y = (x - m) - log(s)

As in `online_softmax.state`: the pivot is 0 where m is infinite; with m = +inf a term counts 1 where it is
+inf and 0 elsewhere; NaN taints m and s; m is never -0.0. Masked lanes hold -inf, whose weight is exactly 0.

Neither the maximum of a GPU nor that of Triton's interpreter sees NaN, so the maximum is taken of the rest
and the sum carries the taint: every NaN enters it by its own weight, and m takes it from s.

Exponentials are powers of two of (x - m) * log2(e), the difference first: exact shifts stay exact. With EXACT
the rounding of the product is put right, up to u * |x - m| relatively, which matters in float32 results
alone. NVIDIA's exp2 gives 0 below 2^-126.
"""

from __future__ import annotations

import math
import struct

import triton
import triton.language as tl
from triton.language import constexpr

#: Triton's interpreter truncates where it converts to bfloat16, and errs for subnormals of it.
INTERPRETED = constexpr(bool(triton.knobs.runtime.interpret))

_INF = constexpr(math.inf)
_LOG2_E = constexpr(struct.unpack("f", struct.pack("f", 1 / math.log(2)))[0])
_LOG2_E_REST = constexpr(1 / math.log(2) - _LOG2_E.value)
_LN_2 = constexpr(math.log(2))
_LN_2_HIGH = constexpr(0.693359375)  # few bits: its products with an exponent are exact
_LN_2_LOW = constexpr(math.log(2) - _LN_2_HIGH.value)
_ROOT_HALF_BITS = constexpr(struct.unpack("i", struct.pack("f", math.sqrt(0.5)))[0])
_SMALLEST_NORMAL = constexpr(2.0**-126)


@triton.jit
def identity(shape: constexpr):
    """The state of nothing: m all -inf, s all 0."""
    return tl.full(shape, -_INF, tl.float32), tl.full(shape, 0.0, tl.float32)


@triton.jit
def guard(m):
    """What to subtract inside an exponent: m, or 0 where m is infinite."""
    return tl.where(tl.abs(m) == _INF, 0.0, m)


@triton.jit
def exp(d, EXACT: constexpr):
    """e to the power of d: 0 at -inf, inf at inf, exactly 1 at 0."""
    t = d * _LOG2_E
    e = tl.exp2(t)
    if EXACT:
        rest = tl.fma(d, _LOG2_E_REST, tl.fma(d, _LOG2_E, -t))
        # Beyond, the result is infinite, 0 or subnormal, and the rest may be inf - inf.
        e = tl.where(tl.abs(t) < 126.0, tl.fma(e, rest * _LN_2, e), e)
    return e


@triton.jit
def weight(x, m, EXACT: constexpr):
    """exp(x - m) under the guard, for x <= m: what a term or a sum at height x counts in a sum at m."""
    # Not `guard`: inf - inf is taken out by the comparison, the rest of a row with +inf is at -inf.
    pivot = tl.where(m == -_INF, 0.0, m)
    return exp(tl.where(x == pivot, 0.0, x - pivot), EXACT)


@triton.jit
def highest(x, axis: constexpr):
    """The maximum along an axis, kept, of what is not NaN; -inf where nothing is."""
    return tl.max(tl.where(x == x, x, -_INF), axis, keep_dims=True) + 0.0


@triton.jit
def of_block(x, axis: constexpr, EXACT: constexpr):
    """(m, s, e): the state of the scores along an axis, and their weights in it."""
    m = highest(x, axis)
    e = weight(x, m, EXACT)
    s = tl.sum(e, axis, keep_dims=True)
    return tl.where(s == s, m, s), s, e


@triton.jit
def push(m, s, x, axis: constexpr, EXACT: constexpr):
    """The state after the scores of a block along an axis: an exponential a score and one a state."""
    top = _joint(m, highest(x, axis))
    total = s * weight(m, top, True) + tl.sum(weight(x, top, EXACT), axis, keep_dims=True)
    return tl.where(total == total, top, total), total


@triton.jit
def merge(m_a, s_a, m_b, s_b):
    """The state of what either has seen. One exponential; commutative bit for bit.

    The sum at the higher maximum counts whole, so that a fused multiply-add has one form in either order.
    """
    top = _joint(m_a, m_b)
    under = m_a < m_b
    m_low = tl.where(under, m_a, m_b)
    s_low = tl.where(under, s_a, s_b)
    s_top = tl.where(under, s_b, s_a)
    return top, tl.fma(s_low, weight(m_low, top, True), s_top)


@triton.jit
def join(m, s, axis: constexpr):
    """All states along an axis merged at once: an exponential each, and a tree of additions."""
    top = highest(m, axis)
    total = tl.sum(s * weight(m, top, True), axis, keep_dims=True)
    return tl.where(total == total, top, total), total


@triton.jit
def value(x, m, s, EXACT: constexpr):
    """exp(x - m) / s: the probability of x under the state. NaN where m is infinite or NaN."""
    return scaled(weight(x, m, EXACT), m, s)


@triton.jit
def scaled(e, m, s):
    """e / s for weights under the state. NaN where m is infinite or NaN."""
    return e * tl.where(tl.abs(m) < _INF, tl.div_rn(1.0, s), float("nan"))


@triton.jit
def log_value(x, m, s):
    """(x - m) - log(s): the log-probability of x under the state. NaN where m is infinite or NaN."""
    return (x - guard(m)) - tl.where(tl.abs(m) < _INF, log(s), float("nan"))


@triton.jit
def lse(m, s):
    """m + log(s): -inf of nothing, +inf where m is, NaN where tainted."""
    return m + log(s)


@triton.jit
def log(s):
    """Natural logarithm to one ulp. The GPU's own errs by an ulp of 1 near 1, where log-sum-exps pass 0.

    s = 2^k * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and with q = f / (2 + f):
    log(1 + f) = 2 * atanh(q) = f - (f^2/2 - q * (f^2/2 + 2 * (q^2/3 + q^4/5 + ...))).
    """
    bits = s.to(tl.int32, bitcast=True)
    k = (bits - _ROOT_HALF_BITS) >> 23
    f = (bits - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    q = tl.div_rn(f, 2.0 + f)
    z = q * q
    series = z * (2 / 3 + z * (2 / 5 + z * (2 / 7 + z * (2 / 9))))
    half = 0.5 * f * f
    exponent = k.to(tl.float32)
    low = q * (half + series) + exponent * _LN_2_LOW
    normal = (s >= _SMALLEST_NORMAL) & (s < _INF)
    return tl.where(normal, exponent * _LN_2_HIGH - ((half - low) - f), tl.log(s))


@triton.jit
def wide(x):
    """Scores in float32, exactly."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrow(y, dtype: constexpr):
    """float32 rounded to nearest, ties to even, in the format of a result."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = y.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(y == y, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return y.to(dtype)


@triton.jit
def _joint(m_a, m_b):
    """The larger maximum, NaN where either is. Adding 0 turns -0.0 into 0.0 and changes nothing else."""
    return tl.maximum(m_a, m_b, propagate_nan=tl.PropagateNan.ALL) + 0.0
