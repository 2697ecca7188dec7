"""Rows for tests of "the same bits": made by whole numbers alone, so that they are one and the same on every
machine, and the pools of numbers at which the law has an edge."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from online_softmax.exact import FLOAT32, FLOAT64, Format

Array = NDArray[Any]
FORMATS: Final = (FLOAT32, FLOAT64)
DTYPES: Final = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
#: log(2) to 128 places.
LOG2: Final = Fraction(0xB17217F7D1CF79ABC9E3B39803F2F6AF, 2**128)


def hashed(shape: tuple[int, ...], seed: int) -> Array:
    """uint64 from a counter: the mixing of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def _layout(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int, int]:
    """The unsigned type of a float's bits, the bits of its mantissa, its bias."""
    mantissa = int(ml_dtypes.finfo(dtype).nmant)
    bits = 8 * dtype.itemsize
    return np.dtype(f"uint{bits}"), mantissa, 2 ** (bits - mantissa - 2) - 1


def floats(h: Array, exponent: Array, dtype: np.dtype[Any]) -> Array:
    """Floats of the sign and mantissa of hashes and these biased exponents."""
    unsigned, mantissa, _ = _layout(dtype)
    sign = (h >> np.uint64(63)) << np.uint64(8 * dtype.itemsize - 1)
    bits = sign | (exponent.astype(np.uint64) << np.uint64(mantissa)) | (h & np.uint64(2**mantissa - 1))
    return bits.astype(unsigned).view(dtype)


def moderate(shape: tuple[int, ...], seed: int, dtype: np.dtype[Any]) -> Array:
    """Scores of either sign from 2**-7 to 2**6 in magnitude."""
    h = hashed(shape, seed)
    _, _, bias = _layout(dtype)
    return floats(h, bias - 7 + (h >> np.uint64(55)) % np.uint64(13), dtype)


def wide(shape: tuple[int, ...], seed: int, dtype: np.dtype[Any]) -> Array:
    """Any exponent up to one of the row's own: from subnormal rows to rows of huge numbers."""
    h = hashed(shape, seed)
    _, mantissa, bias = _layout(dtype)
    largest = hashed((*shape[:-1], 1), seed + 1) % np.uint64(2 * bias) + np.uint64(1)
    return floats(h, (h >> np.uint64(mantissa)) % np.uint64(2048) % (largest + np.uint64(1)), dtype)


def offset(shape: tuple[int, ...], seed: int, dtype: np.dtype[Any]) -> Array:
    """Neighbours of one number of the row's own, from 2**-3 to 2**30 (float64: 2**62) and of either sign."""
    h = hashed(shape, seed)
    unsigned, mantissa, bias = _layout(dtype)
    limit = {8: 66, 4: 34}.get(dtype.itemsize, 16)
    own = hashed((*shape[:-1], 1), seed + 1)
    base = floats(own, bias - 3 + (own >> np.uint64(54)) % np.uint64(limit), dtype).view(unsigned)
    steps = (h >> np.uint64(40)) % np.uint64(2) ** (h % np.uint64(mantissa + 1))
    return (base + steps.astype(unsigned)).astype(unsigned).view(dtype)


def ties(shape: tuple[int, ...], seed: int, dtype: np.dtype[Any]) -> Array:
    """Few different numbers: halves from -16 to 15.5."""
    return ((hashed(shape, seed) >> np.uint64(7)) % np.uint64(64)).astype(np.int64).astype(
        dtype
    ) / 2 - dtype.type(16)


def nearest(v: Fraction, dtype: np.dtype[Any]) -> float:
    """A fraction as a number of float32 or float64."""
    return float(dtype.type(float(v)))


def borders(form: Format, bins: range) -> list[float]:
    """Numbers on either side of where a maximum's bin begins, 2**(W*b - 3/2) in exp, and of where n
    changes."""
    found = []
    for b in bins:
        for n in (form.width * b - 1, form.width * b):
            x = form.dtype.type(nearest((n - Fraction(1, 2)) * LOG2, form.dtype))
            found += [np.nextafter(x, form.dtype.type(-np.inf)), x, np.nextafter(x, form.dtype.type(np.inf))]
    return [float(x) for x in found]


def edges(form: Format) -> list[float]:
    """Every number at which the law takes another way, with its neighbours."""
    powers = (19, 20, 29, 30, 31) if form.kind == 32 else (19, 20, 48, 49, 61, 62, 63)
    of, info = form.dtype.type, np.finfo(form.dtype)
    found = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]
    for x in (float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)):
        found += [x, -x]
    found.append(float(np.nextafter(of(info.smallest_normal), of(0))))
    for k in powers:
        for sign in (1, -1):
            x = of(sign * 2.0**k)
            found += [float(v) for v in (x, np.nextafter(x, of(0)), np.nextafter(x, of(sign * np.inf)))]
    found += [-float(gap) for gap in range(15, 47)]
    if form.kind == 64:
        found += [-float(gap) for gap in range(47, 100, 4)]
    return found + borders(form, range(-3, 4))


def edge_rows(shape: tuple[int, ...], seed: int, form: Format) -> Array:
    """Rows picked from `edges`; half of them without NaN and infinities, of these half of moderate size, so
    that not every one is beyond `large`."""
    pool = np.array(edges(form))
    finite = pool[np.isfinite(pool)]
    pools = (pool, finite, finite[np.abs(finite) < 200], pool[~(np.abs(pool) >= form.large / 4)])
    h = (hashed(shape, seed) >> np.uint64(9)).astype(np.int64)
    rows = [pools[i % len(pools)][row % pools[i % len(pools)].size] for i, row in enumerate(h)]
    return np.stack(rows).astype(form.dtype)


def bin_rows(shape: tuple[int, ...], seed: int, form: Format) -> Array:
    """A maximum at the border of a bin, and numbers a whole number of bins and some steps below it."""
    pool = np.array(borders(form, range(-8, 9)))
    h = hashed(shape, seed)
    top = pool[(hashed((shape[0], 1), seed + 1) % np.uint64(pool.size)).astype(np.int64)]
    pitch = float(form.width * LOG2)
    below = (h >> np.uint64(8)) % np.uint64(4)
    near = ((h >> np.uint64(16)) % np.uint64(4096)).astype(np.float64) / 2048 - 1
    rows = (top - below.astype(np.float64) * pitch + near).astype(form.dtype)
    rows[:, 0] = top[:, 0]
    return np.where(rows > rows[:, :1], rows[:, :1], rows)
