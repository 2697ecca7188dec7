"""softmax, log_softmax and logsumexp as `scipy.special` has them: its signatures, defaults and formats of
results, with the accuracy of this library.

Real numbers of up to 64 bits go to the native core. Complex numbers and longdouble, which it does not serve,
go by NumPy (wide_rows.py). Arrays of other libraries are passed on as everywhere in the package: see
arrays.py; PyTorch's and JAX's answer by their own rules for formats.

Where SciPy's results follow from the way it computes them and not from what it documents, these differ:

- Integers of any width give the softmax of their values, where SciPy's differences wrap around (int8) or are
  unsigned (uint8). bool counts as int8.
- The sign of an empty sum is 0, as of any sum that is 0, where SciPy's is -1; an empty array of several
  dimensions with axis=None gives -inf, where SciPy raises IndexError.
- An element of weight 0 adds nothing whatever it is, also where the rest is infinite; weights that cancel
  exactly give -inf and sign 0 at any size of `a`. SciPy's result is NaN for both.
- float16 is computed in float32 and rounded once.
- Masked arrays raise TypeError, where SciPy loses the mask. Nothing warns of NaN or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import arrays, checks, wide_rows
from . import numpy as rows
from .checks import Array

#: Integers past these are no longer float64 numbers.
_EXACT = 1 << 53
_WEAK = (bool, int, float, complex)


def softmax(x: Any, axis: Any = None) -> Any:
    """exp(x) / sum(exp(x)) over `axis`, of x's shape; a scalar for a scalar.

    Args:
        x: real or complex numbers, also lists and scalars.
        axis: int or tuple of ints; None for all axes together.

    Returns: in x's format; float16 for bool and integers of 8 bits, float32 for 16, float64 for wider ones.
    A row with NaN or +inf, or of -inf alone, is NaN throughout.

    Raises: TypeError for what is no number and for masked arrays; ValueError for an axis out of range, and
    where there is nothing along it.

    Cost: as `online_softmax.softmax`. Complex numbers and longdouble: a few passes in NumPy.
    """
    return _mapped(_SOFTMAX, x, axis)


def log_softmax(x: Any, axis: Any = None) -> Any:
    """x - logsumexp(x) over `axis`, of x's shape; a scalar for a scalar.

    Arguments, errors and cost as for `softmax`. In a row with +inf, and no NaN, everything below it is -inf
    and it itself is NaN; a row of -inf alone is NaN.
    """
    return _mapped(_LOG_SOFTMAX, x, axis)


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """log(sum(b * exp(a))) over `axis`; a scalar where no axis is left.

    Args:
        a: real or complex numbers, also lists and scalars.
        axis: int or tuple of ints; None for all axes together.
        b: weights, real or complex, of either sign; a and b broadcast to each other. An element of weight 0
            adds nothing, whatever a holds there.
        keepdims: keep each reduced axis with length 1.
        return_sign: return the pair (log(abs(sum)), sign): the sign is -1, 0 or 1, of complex numbers
            sum / abs(sum). Without it a negative sum gives NaN.

    Returns: in the format that a and b promote to, float64 for integers. Imaginary parts lie in (-pi, pi].

    Raises: TypeError and ValueError as `softmax`; ValueError where a and b do not broadcast.

    Cost: as `online_softmax.logsumexp`. Complex numbers and longdouble: a few passes in NumPy.
    """
    if type(a) not in arrays.PLAIN or type(b) not in arrays.PLAIN:
        given = {"a": a, "axis": axis, "b": b, "keepdims": keepdims, "return_sign": return_sign}
        found = arrays.elsewhere(_LOGSUMEXP, given)
        if found is not NotImplemented:
            return found
    terms = _number(a, "a")
    weights = None if b is None else _number(b, "b")
    dtype = _promoted(a, b, terms, weights)
    shape = terms.shape if weights is None else _common(terms, weights)
    shape = shape or (1,)
    if wide_rows.serves(dtype):
        over = checks.axes(axis, None, len(shape))
        spread = None if weights is None else np.broadcast_to(weights, shape)
        return wide_rows.logsumexp(
            np.broadcast_to(terms, shape), spread, over, bool(keepdims), bool(return_sign), dtype
        )
    if weights is not None:
        weights = np.broadcast_to(checks.cast(weights, np.promote_types(dtype, np.float32)), shape)
    return rows.logsumexp(
        np.broadcast_to(checks.cast(terms, dtype), shape), axis, b=weights, keepdims=bool(keepdims),
        return_sign=bool(return_sign),
    )  # fmt: skip


def _served(function: Callable[..., Any]) -> arrays.Served:
    """Without a default of axis, so that it is always said: SciPy's is not that of others."""
    here = arrays.served(function)
    return here._replace(defaults={name: value for name, value in here.defaults.items() if name != "axis"})


_SOFTMAX, _LOG_SOFTMAX, _LOGSUMEXP = _served(softmax), _served(log_softmax), _served(logsumexp)


def _mapped(here: arrays.Served, x: Any, axis: Any) -> Any:
    if type(x) not in arrays.PLAIN:
        found = arrays.elsewhere(here, {"x": x, "axis": axis})
        if found is not NotImplemented:
            return found
    given = _number(x, "x")
    over = checks.axes(axis, None, given.ndim)
    kept = math.prod(n for d, n in enumerate(given.shape) if d not in over)
    if not given.size and kept:
        raise ValueError(f"x has shape {given.shape}, with nothing along axis={axis!r}: one entry would do")
    log = here is _LOG_SOFTMAX
    if wide_rows.serves(given.dtype):
        return wide_rows.softmax(given, over, log)[()]
    values = _differences(given, over)
    result = (rows.log_softmax if log else rows.softmax)(values, over, dtype=_format(given.dtype))
    return (_below_infinity(values, result, over) if log else result)[()]


def _number(value: Any, name: str) -> Array:
    """An ndarray of numbers: what `checks.array` takes, complex numbers and longdouble."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost: {name}.data would do, with weights "
            f"b=~{name}.mask in logsumexp"
        )
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return checks.array(value, name)  # which says what is wrong
    if wide_rows.serves(given.dtype):
        return given.astype(checks.in_order(given.dtype), copy=False)
    return checks.array(given, name)


def _promoted(a: Any, b: Any, terms: Array, weights: Array | None) -> np.dtype[Any]:
    """The format of a result: NumPy's rule, in which Python's numbers are weak, and float64 for integers."""
    pairs = [(a, terms)] if weights is None else [(a, terms), (b, weights)]
    kinds = [array.dtype for value, array in pairs if type(value) not in _WEAK]
    try:
        dtype = np.result_type(*kinds) if kinds else checks.FLOAT64
    except TypeError as error:
        names = " and ".join(dtype.name for dtype in kinds)
        raise TypeError(
            f"a and b are {names}, which promote to no common format: one format would do"
        ) from error
    dtype = checks.result_dtype(dtype, None) if not wide_rows.serves(dtype) else dtype
    return np.result_type(dtype, 1j) if any(type(value) is complex for value, _ in pairs) else dtype


def _common(terms: Array, weights: Array) -> tuple[int, ...]:
    try:
        return checks.common_shape(terms.shape, weights.shape)
    except ValueError as error:
        raise ValueError(
            f"b has shape {weights.shape} and a {terms.shape}: shapes that broadcast to each other would do"
        ) from error


def _format(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """SciPy's format of a softmax: that of NumPy's exponentials of the numbers."""
    if dtype.kind not in "iub":
        return dtype
    return np.dtype({1: np.float16, 2: np.float32}.get(dtype.itemsize, np.float64))


def _differences(x: Array, over: tuple[int, ...]) -> Array:
    """x; for integers that float64 does not hold, x less its maximum in each row, made of them exactly."""
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8 or not x.size:
        return x
    if x.max() <= _EXACT and (x.dtype.kind == "u" or x.min() >= -_EXACT):
        return x
    # Modulo 2**64: the difference of any two is below it.
    distance: Array = x.max(axis=over, keepdims=True).astype(np.uint64) - x.astype(np.uint64)
    return -distance.astype(np.float64)


def _below_infinity(x: Array, result: Array, over: tuple[int, ...]) -> Array:
    """A log-softmax with -inf below +inf. Of a row that is NaN here one element tells."""
    if not result.size:
        return result
    if not np.isnan(result[tuple(0 if d in over else slice(None) for d in range(x.ndim))]).any():
        return result
    below = (x.max(axis=over, keepdims=True) == np.inf) & (x < np.inf)
    result[below] = -np.inf
    return result
