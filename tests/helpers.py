"""What the value tests share: formats, rows to try, the bound a result is held to, and a comparison that
asserts.

The tolerance of a value is never chosen: it is the rounding bound of `online_softmax.numerics.bounds` for
blocked summation in the format computed in (float32 for operands of up to 32 bits), plus half an ulp of the
result's format for the one rounding at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import ml_dtypes
import numpy as np

from online_softmax import reference
from online_softmax.numerics import bounds

#: Choices a developer's shell may hold would change what the tests run.
CHOICES = ("ONLINE_SOFTMAX_ISA", "ONLINE_SOFTMAX_ALGORITHM", "ONLINE_SOFTMAX_THREADS")
FORMATS = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
#: Relative error of the kernels' exp and log in units of u: one ulp each. For 16-bit formats exp is a shorter
#: polynomial, off by up to 2.9e-6: 0.006 ulp of float16, so that a result stays within 0.512 ulp.
EXP_UNITS = 2.0
EXP_UNITS_OF_16_BITS = 48.0
LOG_UNITS = 2.0
#: Error of the reference itself in units of u of float64: half an ulp where it has a wider float to work in.
REFERENCE_UNITS = 1.02 if np.finfo(np.longdouble).nmant >= 63 else 16.0
#: Depth of blocked summation: independent lanes, then a tree. One running sum of a long row breaks it.
DEPTH = 8
#: Lanes of the widest vector (16 of float32): sizes are taken around it, and around blocks of it.
WIDTH = 16
SIZES = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    127,
    128,
    129,
    255,
    256,
    257,
    1023,
    1024,
    1025,
    4096,
    4097,
)
#: Around the longest piece of a row that is summed as one, and several of them.
LONG = (32767, 32768, 32769, 65537)


#: Elements of all the results that one function's `kept` holds.
KEPT = 1 << 23


def content(argument: Any) -> Any:
    """What an argument is known by: an array by what it holds."""
    if not isinstance(argument, np.ndarray):
        return argument
    return argument.shape, argument.dtype.str, hashlib.blake2b(argument.tobytes(), digest_size=16).digest()


def kept(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Every instruction set and algorithm is held to the same truths and bounds: each is worked out once."""
    results: dict[Any, np.ndarray] = {}
    held = 0

    @wraps(function)
    def known(*given: Any, **options: Any) -> np.ndarray:
        nonlocal held
        key = (*map(content, given), *((name, content(option)) for name, option in sorted(options.items())))
        if key not in results:
            made = np.asarray(function(*given, **options))
            made.flags.writeable = False
            while results and held + made.size > KEPT:
                held -= results.pop(next(iter(results))).size
            results[key] = made
            held += made.size
        return results[key]

    return known


@kept
def truth(op: str, rows: np.ndarray, where: np.ndarray | None = None) -> Any:
    """The reference's result of rows in float64, reduced axis last."""
    return getattr(reference, op)(rows, axis=-1, where=where)


def ulp(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Distance of neighbours of `dtype` at |y|, subnormals included."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.frexp(np.where(np.isfinite(y), y, 0.0))[1] - 1
    exponent = np.where(y == 0, info.minexp, exponent)
    return np.ldexp(1.0, np.maximum(exponent, info.minexp) - info.nmant)


@kept
def bound(
    op: str, x: np.ndarray, y: np.ndarray, dtype: np.dtype, *, shifted: bool = True, fast: bool = False
):
    """Largest error allowed to `op` of the rows of x (float64, reduced axis last) whose true result is y.

    `shifted=False` is for "naive", whose logarithms are of the size of the logits; `fast` allows what
    precision="fast" may be off by.
    """
    computed = FORMATS["f64" if dtype == np.float64 else "f32"]
    u = bounds.unit_roundoff(computed)
    final = (1.0 if fast else 0.5) * ulp(y, dtype)
    if fast and op == "softmax" and dtype.itemsize == 2 and dtype != np.float16:
        final = 2.0**-6 * np.abs(y) + 2.0**-126  # logarithms of 16 bits, and no subnormal results
    if dtype == np.float64:
        final = final + REFERENCE_UNITS * u * np.where(np.isfinite(y), np.abs(y), 0)
    if not x.size:
        return final
    # A row without a finite maximum has no rounding error: its result, infinite or NaN, is compared exactly.
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(np.max(x, axis=-1, keepdims=True))
    rows = np.where(finite, x, 0.0)
    e = u * (EXP_UNITS_OF_16_BITS if dtype.itemsize == 2 else EXP_UNITS)
    # The kernels take another pivot than the maximum: no exponential is exactly 1.
    limits = bounds.error_bound(
        rows, "batch", computed, depth=DEPTH, exp_error=e, log_error=LOG_UNITS * u, exact_top=False
    )
    allowed = final + {"softmax": limits.y, "log_softmax": limits.log_y, "logsumexp": limits.lse}[op]
    if not shifted and op != "softmax":
        with np.errstate(all="ignore"):
            size = np.max(np.abs(rows), axis=-1, keepdims=op == "log_softmax") + np.log(rows.shape[-1])
            allowed = allowed + (LOG_UNITS + 1) * u * 2 * size
    return allowed


def assert_close(actual, expected, allowed, label: str = "") -> None:
    """NaN where NaN, infinity where infinity, of the same sign, and nowhere further than `allowed`."""
    actual, expected = np.asarray(actual), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, expected {expected.shape}"
    got = actual.astype(np.float64)
    # A finite truth that rounds past the format's range is an infinity in that format.
    with np.errstate(over="ignore"):
        rounded = expected.astype(actual.dtype).astype(np.float64)
    expected = np.where(np.isinf(rounded), rounded, expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite], err_msg=label)
    error = np.abs(np.where(finite, got, 0.0) - np.where(finite, expected, 0.0))
    wrong = ~(error <= allowed)
    if wrong.any():
        at = np.unravel_index(np.argmax(np.where(wrong, error / np.maximum(allowed, 5e-324), 0)), error.shape)
        limit = np.broadcast_to(allowed, error.shape)[at]
        raise AssertionError(
            f"{label}: {int(wrong.sum())} of {error.size} past the bound, worst at {tuple(map(int, at))}: "
            f"{got[at]!r}, expected {expected[at]!r}, error {error[at]:.3g} allowed {limit:.3g}"
        )


def assert_same_bits(a, b, label: str = "") -> None:
    """Equal byte for byte, but for the payload of NaN."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype, f"{label}: {a.dtype} against {b.dtype}"
    assert a.shape == b.shape, f"{label}: {a.shape} against {b.shape}"
    nan = np.isnan(a.astype(np.float64))
    np.testing.assert_array_equal(nan, np.isnan(b.astype(np.float64)), err_msg=label)
    kind = np.dtype(f"u{a.dtype.itemsize}")
    left = np.where(nan, 0, np.ascontiguousarray(a).reshape(a.shape).view(kind))
    right = np.where(nan, 0, np.ascontiguousarray(b).reshape(b.shape).view(kind))
    np.testing.assert_array_equal(left, right, err_msg=label)


def row_kinds(dtype: np.dtype) -> tuple[str, ...]:
    """Names of the rows `row` makes."""
    return ("random", "ramp", "constant", "shift", "spread", "tail")


@cache
def row(kind: str, dtype: np.dtype, n: int) -> np.ndarray:
    """A read-only row of n elements: each kind is one way to lose accuracy."""
    rng = np.random.default_rng(n)
    top = float(ml_dtypes.finfo(dtype).max)
    far = {"float64": 1e8, "float32": 1e5, "float16": 3e3, "bfloat16": 3e3}[dtype.name]
    make = {
        "random": lambda: 3 * rng.standard_normal(n),
        "ramp": lambda: 1e-3 * np.arange(n),  # every element a new maximum
        "constant": lambda: np.full(n, 3.25),  # 16-bit sums would stall
        "shift": lambda: far + 3 * rng.standard_normal(n),
        "spread": lambda: np.linspace(-top / 2, top / 2, n) * 2,  # differences past the format's range
        "tail": lambda: -rng.uniform(0, 120, n),  # results in and below the subnormals
    }[kind]
    with np.errstate(over="ignore"):
        made = np.clip(make(), -top, top).astype(dtype)
    made.flags.writeable = False
    return made


def noise(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    """Normal logits of the given format."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
