"""What one operation in a format may be off by: the constants every bound is made of.

An operation rounds its exact result v to nearest: off by at most u * |v| where the result is normal, and by
at most `tiny` below that, where it is never off by more than |v| itself. `tiny` is half the smallest
subnormal with gradual underflow, the smallest normal number where subnormal results are flushed to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[Any]

#: Formats the arithmetic of a bound or a simulation may be done in.
NAMES = ("float64", "float32", "float16", "bfloat16")


def unit_roundoff(dtype: DTypeLike) -> float:
    """Largest relative error of one rounding to nearest in `dtype` (2**-24 for float32), from its
    precision."""
    return float(_info(dtype).eps) / 2


def smallest_subnormal(dtype: DTypeLike) -> float:
    """Smallest positive number of `dtype`."""
    return float(_info(dtype).smallest_subnormal)


def _info(dtype: DTypeLike) -> Any:
    # ml_dtypes has no types for this function, which knows numpy's formats too.
    return ml_dtypes.finfo(np.dtype(dtype))  # type: ignore[no-untyped-call]


def rounding_error(value: ArrayLike, dtype: DTypeLike) -> Array:
    """Largest absolute error of rounding `value` to nearest in `dtype`: float64, value's shape."""
    magnitude = np.abs(np.asarray(value, dtype=np.float64))
    return np.asarray(np.maximum(unit_roundoff(dtype) * magnitude, smallest_subnormal(dtype) / 2))


def dtype_of(format: DTypeLike | None, name: str = "format") -> np.dtype[Any]:
    """The dtype of a format given by name or dtype. ValueError, with the argument's `name`, where it is none
    of NAMES."""
    try:
        dtype = np.dtype(ml_dtypes.bfloat16 if format == "bfloat16" else format)
    except TypeError:
        dtype = np.dtype(np.void)
    if format is None or dtype.name not in NAMES:
        raise ValueError(f"{name}: {format!r} is unknown: one of {', '.join(map(repr, NAMES))} would do")
    return dtype


@dataclass(frozen=True)
class Rounding:
    """Constants of rounding to nearest in a format: u, the smallest normal and the largest finite number, and
    `tiny`, the most that a result below the normal numbers is off by. `flush`: such results become 0."""

    dtype: np.dtype[Any]
    u: float
    normal: float
    largest: float
    tiny: float
    flush: bool

    @classmethod
    def of(cls, format: DTypeLike | None, *, flush: bool = False, name: str = "format") -> Rounding:
        """Of a format by name or dtype; ValueError as `dtype_of`."""
        dtype = dtype_of(format, name)
        info = _info(dtype)
        normal, subnormal = float(info.smallest_normal), float(info.smallest_subnormal)
        # Half of float64's smallest number is no float64 itself.
        gradual = max(subnormal / 2, float(np.nextafter(0, 1)))
        tiny = normal if flush else gradual
        return cls(dtype, unit_roundoff(dtype), normal, float(info.max), tiny, flush)

    @property
    def limit(self) -> float:
        """What reaches this in magnitude rounds to infinity (float64: its largest number stands for it)."""
        half_ulp = np.ldexp(self.u, int(np.frexp(self.largest)[1]) - 1)
        return self.largest + float(half_ulp) if self.dtype.itemsize < 8 else self.largest

    def error(self, magnitude: Array) -> Array:
        """Largest error of rounding a number of at most this magnitude; infinite where it may overflow."""
        rounded = np.maximum(self.u * magnitude, np.minimum(self.tiny, magnitude))
        return np.where(magnitude >= self.limit, np.inf, rounded)

    def of_sum(self, magnitude: Array) -> Array:
        """The same for a sum or difference of two numbers of the format: subnormal results are exact unless
        flushed."""
        if self.flush:
            return self.error(magnitude)
        return np.where(magnitude >= self.limit, np.inf, self.u * magnitude)
