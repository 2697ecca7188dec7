"""What kernels on operands of a format compute in, and rows as the bounds want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...numerics import bounds
from ..recipes import DTYPES

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Options = Mapping[str, Any]

#: A sum may be carried in this many running sums, and begin with that many terms one after the other.
LANES: Final = 8
BLOCK: Final = 128
#: Relative error of exp and log in units of roundoff.
LIBRARY_UNITS: Final = 4.0


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel computes in.

    Attributes:
        u: unit roundoff of sums.
        v: unit roundoff of what may be kept in the operands' format.
        e: relative error of an exponential.
        e_log: relative error of a logarithm.
        tiny: magnitudes below it may become 0.
        dtype: the operands' format.
    """

    u: float
    v: float
    e: float
    e_log: float
    tiny: float
    dtype: np.dtype[Any]


def arithmetic(dtype: str) -> Arithmetic:
    """What kernels on operands of a format compute in."""
    kind = DTYPES[dtype]
    v = bounds.unit_roundoff(kind)
    u = min(v, bounds.unit_roundoff(np.float32))
    stored = v if v > u else 0.0
    info = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    # Formats of 5 exponent bits and fewer have no room to flush: 2**-14 is a probability that matters.
    flushed = info.smallest_normal if info.minexp < -100 else info.smallest_subnormal
    return Arithmetic(u, v, LIBRARY_UNITS * u + stored, LIBRARY_UNITS * u + stored, float(flushed), kind)


def ulp(value: Array, dtype: np.dtype[Any]) -> Array:
    """Distance of neighbours of `dtype` at |value|, subnormals included; 0 where value is not finite."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    finite = np.isfinite(value)
    exponent = np.frexp(np.where(finite, value, 0.0))[1] - 1
    exponent = np.where(value == 0, info.minexp, exponent)
    return np.where(finite, np.ldexp(1.0, np.maximum(exponent, info.minexp) - info.nmant), 0.0)


def depth(n: int) -> int:
    """Additions that a term may go through: eight running sums of n / 8, or blocks of 128 with a rescale
    each."""
    return min(n, BLOCK) + -(-n // LANES)


def eta(a: Arithmetic, n: int) -> float:
    """Relative error of each of n exponentials, and of the sum they enter."""
    return a.e + depth(n) * a.u


def as_rows(x: Array, axis: Any) -> tuple[Array, Callable[[Array], Array]]:
    """(x with the reduced axes as one last axis, how to bring an array of that shape back)."""
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    places = sorted({place % max(x.ndim, 1) for place in axes}) if x.ndim else []
    kept = [place for place in range(x.ndim) if place not in places]
    order = kept + places
    moved = x.transpose(order)
    rows = moved.reshape(*(x.shape[p] for p in kept), int(np.prod([x.shape[p] for p in places])))
    return rows, lambda y: y.reshape(moved.shape).transpose(np.argsort(order)) if x.ndim else y.reshape(())


def taken(inputs: Inputs) -> Array:
    """x with -inf where it is masked."""
    x = inputs["x"]
    return np.where(inputs["where"], x, -np.inf) if "where" in inputs else x


def bounded(rows: Array) -> Array:
    """Rows without a finite maximum become zeros: their results are exact, and no bound is asked of them."""
    if not rows.shape[-1]:
        return rows
    finite = np.isfinite(np.max(rows, axis=-1, keepdims=True))
    return np.where(finite, rows, 0.0)
