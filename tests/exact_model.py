"""The law of `online_softmax.exact` once more, in whole numbers and fractions: slow and plain, for tests.

Nothing of that module is used but the constants of its formats. Numbers are `Fraction`s; where the law
rounds, `rounded` rounds. There are no signed zeros and no subnormal numbers here: the law has no place where
they would matter. A row is a mapping from elements (Python floats) to how often they come.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache

from online_softmax.exact import Format

#: m and the sums. Where nothing finite was seen m is an infinity or NaN.
ModelState = tuple[float, tuple[int, ...]]

#: Where log1p halves its argument: the double next to the root of 1/2, and log(2) in two doubles.
ROOT = Fraction(struct.unpack("<d", (0x3FE6A09E667F3BCD).to_bytes(8, "little"))[0])
LOG2 = Fraction(float.fromhex("0x1.62e42fefa39efp-1"))
LOG2_LOW = Fraction(float.fromhex("0x1.abc9e3b39803fp-56"))
LAST = 23  # atanh(s) = s + s**3/3 + ... + s**LAST/LAST


def exponent(v: Fraction) -> int:
    """floor(log2(|v|)) of v other than 0."""
    n, d = abs(v.numerator), v.denominator
    e = n.bit_length() - d.bit_length()
    return e if n * 2 ** max(0, -e) >= d * 2 ** max(0, e) else e - 1


def rounded(v: Fraction, bits: int) -> Fraction:
    """v to `bits` significant bits, ties to even, whatever its exponent."""
    if v == 0:
        return Fraction(0)
    unit = Fraction(2) ** (exponent(v) - bits + 1)
    return round(v / unit) * unit


def double(v: Fraction) -> Fraction:
    """v to the 53 bits of a double."""
    return rounded(v, 53)


def bits_of(form: Format) -> int:
    """Significant bits of the format's numbers."""
    return 24 if form.kind == 32 else 53


@cache
def term(x: float, form: Format) -> tuple[Fraction, int]:
    """(p, n): T(x) = p * 2**n. x finite."""
    bits, c = bits_of(form), Fraction(form.log2e)
    if form.kind == 32:
        y = Fraction(x) * c
        n = round(y)
        f = rounded(y - n, bits)
    elif abs(x) < form.far:
        y = Fraction(x) * c
        n = round(y)
        f = double(Fraction(x) * Fraction(form.log2e_low) + double(y - n))
    else:
        n, f = _far(Fraction(x), c, Fraction(form.log2e_low))
    p = Fraction(form.coefficients[-1])
    for coefficient in reversed(form.coefficients[:-1]):
        p = rounded(p * f + Fraction(coefficient), bits)
    return rounded(p * f + 1, bits), n


def _far(x: Fraction, c: Fraction, c_low: Fraction) -> tuple[int, Fraction]:
    """n and f of doubles whose product with log2(e) has no place left for a fraction."""
    high, part = double(x * c), double(x * c_low)
    low, part_low = x * c - high, x * c_low - part
    n = round(high) + round(low) + round(part)
    left = double(double((high - round(high)) + (low - round(low))) + double((part - round(part)) + part_low))
    return n + round(left), left - round(left)


def bin_of(n: int, form: Format) -> int:
    return (n + 1) // form.width


@cache
def slices(x: float, b: int, form: Format) -> tuple[int, ...]:
    """Slices of T(x) for top bin b: each the rest of what is above it, in whole units. x within some
    hundred of the bin."""
    p, n = term(x, form)
    rest, made = p * Fraction(2) ** (n - form.width * b), []  # in units of the top slice
    for k in range(form.slices):
        unit = Fraction(1, 2 ** (form.width * k))
        whole = round(rest / unit)
        rest -= whole * unit
        made.append(whole)
    return tuple(made)


def plain(m: float, form: Format) -> bool:
    return abs(m) <= form.large


def top_bin(m: float, form: Format) -> int:
    return bin_of(term(m, form)[1], form)


def canonical(m: float, form: Format) -> float:
    return 0.0 if abs(m) < form.least else m


def state(row: Mapping[float, int] | Iterable[float], form: Format) -> ModelState:
    """State of a row."""
    count = dict(row) if isinstance(row, Mapping) else Counter(row)
    nothing = (0,) * form.slices
    if any(math.isnan(x) for x in count):
        return math.nan, nothing
    m = canonical(max(count, default=-math.inf), form)
    if m == -math.inf:
        return m, nothing
    if not plain(m, form):
        return m, (sum(k for x, k in count.items() if x == m), *nothing[1:])
    b, sums = top_bin(m, form), list(nothing)
    for x, times in count.items():
        # T(x) < 2**(y + 1) is nothing on a grid whose lowest unit is beyond it; and -inf, and what is large.
        if x < m - 2 * form.width * (form.slices + 2):
            continue
        for k, whole in enumerate(slices(x, b, form)):
            sums[k] += times * whole
    return m, tuple(sums)


def wrapped(a: int) -> int:
    """A whole number as 64 bits hold it."""
    return (a + 2**63) % 2**64 - 2**63


def merge(left: ModelState, right: ModelState, form: Format) -> ModelState:
    """State of what either has seen."""
    nothing = (0,) * form.slices
    (m, a), (small, b) = left, right
    if math.isnan(m) or math.isnan(small):
        return math.nan, nothing
    if m < small:
        (m, a), (small, b) = right, left
    if m == -math.inf:
        return m, nothing
    if m == small:
        down = 0
    elif plain(m, form) and plain(small, form):
        down = top_bin(m, form) - top_bin(small, form)
    else:
        down = form.slices
    moved = (nothing if down >= form.slices else (0,) * down + b)[: form.slices]
    return m, tuple(wrapped(u + v) for u, v in zip(a, moved, strict=True))


def total(a: Iterable[int], form: Format) -> Fraction:
    """Sums as the law adds them up in doubles, in units of the top slice: carries first, lowest part
    first."""
    digits = list(a)
    for k in range(len(digits) - 1, 0, -1):
        carry, digits[k] = divmod(digits[k], 2**form.width)
        digits[k - 1] += carry
    found = double(Fraction(digits[-1]))
    for digit in reversed(digits[:-1]):
        found = double(found / 2**form.width + double(Fraction(digit)))
    return found


def rest_and_own(s: ModelState, form: Format) -> tuple[Fraction, Fraction]:
    """(V - T(m), T(m)) in units of the top slice; where elements are counted, the others and 1."""
    m, a = s
    if not plain(m, form):
        return total((a[0] - 1, *a[1:]), form), Fraction(1)
    p, n = term(m, form)
    b = bin_of(n, form)
    own = slices(m, b, form)
    left = (u - v for u, v in zip(a, own, strict=True))
    return total(left, form), p * Fraction(2) ** (n - form.width * b)


def log1p(u: Fraction) -> Fraction:
    """log(1 + u) of a double u >= 0 as the law makes it: a double."""
    r = double(1 + u)
    lost = 1 + u - r
    k = exponent(r / ROOT)
    z = double(double(r / Fraction(2) ** k - 1) + lost / Fraction(2) ** k)
    s = double(z / double(2 + z))
    square = double(s * s)
    q = double(Fraction(1, LAST))
    for d in range(LAST - 2, 1, -2):
        q = double(q * square + double(Fraction(1, d)))
    twice = 2 * s
    series = double(double(twice * square) * q + twice)
    return double(k * LOG2 + double(k * LOG2_LOW + series))


@cache
def log_sum(s: ModelState, form: Format) -> Fraction:
    """log(V / T(m)); 0 where nothing finite was seen."""
    if not math.isfinite(s[0]):
        return Fraction(0)
    rest, own = rest_and_own(s, form)
    return log1p(double(rest / own))


def lse(s: ModelState, form: Format) -> float:
    if not math.isfinite(s[0]):
        return s[0]
    return float(rounded(double(Fraction(s[0]) + log_sum(s, form)), bits_of(form)))


@cache
def inverse(s: ModelState, form: Format) -> tuple[Fraction, Fraction, int]:
    """(high, low, k): 1/V = (high + low) * 2**-k, in units of the top slice."""
    rest, own = rest_and_own(s, form)
    v = double(rest + own)
    k = exponent(v)
    v /= Fraction(2) ** k
    one = double(1 / v)
    if form.kind == 32:
        high = rounded(one, 24)
        return high, rounded(double(one - high), 24), k
    return one, double(double(1 - one * v) * one), k


def value(x: float, s: ModelState, form: Format) -> float:
    """The probability of an element of the row that the state is of, or of a longer one."""
    m, _ = s
    if not math.isfinite(m) or math.isnan(x):
        return math.nan
    high, low, k = inverse(s, form)
    if not plain(m, form):
        return float(high / Fraction(2) ** k) if x == m else 0.0
    if x < m - 2 * form.reach:  # far past where T(x) / V is below `smallest`
        return 0.0
    p, n = term(x, form)
    y = rounded(p * high + rounded(p * low, bits_of(form)), bits_of(form))
    y *= Fraction(2) ** (n - form.width * top_bin(m, form) - k)
    return float(y) if y >= Fraction(form.smallest) else 0.0


def log_value(x: float, s: ModelState, form: Format) -> float:
    """The logarithm of that."""
    m, _ = s
    if not math.isfinite(m) or math.isnan(x):
        return math.nan
    if math.isinf(x):
        return x
    y = rounded(double(double(Fraction(x) - Fraction(m)) - log_sum(s, form)), bits_of(form))
    if abs(y) < Fraction(form.least):
        return 0.0
    beyond = 128 if form.kind == 32 else 1024
    return float(y) if exponent(y) < beyond else -math.inf
