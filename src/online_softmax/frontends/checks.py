"""Argument checks shared by the array front ends.

Every function takes what the caller gave and either returns it in the one form the native core reads, or
raises: `TypeError` where the kind of the argument is wrong, `ValueError` where its value is. Each message
names the argument, says what was given and what would do. Nothing here does arithmetic on data, and nothing
is written.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.exceptions import AxisError, TooHardError

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

FLOAT64: Final = np.dtype(np.float64)
FLOAT32: Final = np.dtype(np.float32)
#: Formats the native core reads and writes.
SERVED: Final = (FLOAT64, FLOAT32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
#: Formats read and written here, computed in float32.
CONVERTED: Final = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
_BY_NAME: Final = {dtype.name: dtype for dtype in SERVED + CONVERTED}
_NAMES: Final = ", ".join(_BY_NAME)
#: Of NumPy's arrays, and of the native core's.
MOST_DIMENSIONS: Final = 64
#: Orders of combination: what the bits of a row depend on.
ORDERS: Final = ("row", "any")
#: Steps allowed to the exact overlap test before the answer counts as "they overlap".
_OVERLAP_WORK: Final = 100_000


class DefaultAxis(int):
    """The value an `axis` parameter has when the caller gave none, so that `axis=-1, dim=0` can be told
    from `dim=0`."""


LAST_AXIS: Final = DefaultAxis(-1)


def array(value: Any, name: str) -> Array:
    """`value` as an aligned ndarray in the byte order of this machine: a view where possible, else a copy.

    Raises:
        TypeError: masked arrays, and anything but real numbers.
        ValueError: nested sequences of unequal lengths.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost: pass {name}.data and where=~{name}.mask"
        )
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} could not be read as an array of numbers: {error}") from error
    except (TypeError, RuntimeError) as error:  # tensors of PyTorch that NumPy cannot read
        if isinstance(value, list | tuple):
            hint = "of several tensors or JAX arrays, one of them all, by their library's stack(), would do"
        else:
            hint = (
                "of a tensor, t.detach().cpu().numpy() would do, in bfloat16 "
                "t.detach().cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)"
            )
        raise TypeError(f"{name} could not be read as an array: {error} ({hint})") from error
    native = in_order(given.dtype)
    _real(native, name, hasattr(value, "astype") and not isinstance(value, type))
    return aligned(given.astype(native, copy=False))


def in_order(dtype: DType) -> DType:
    """`dtype` in the byte order of this machine. NumPy's variable-length strings have none to change."""
    return dtype.newbyteorder("=") if dtype.byteorder in "<>" else dtype


def aligned(values: Array) -> Array:
    """`values`, copied where its elements do not lie at multiples of their size, as the core needs them."""
    return values if values.flags.aligned else values.copy()


def _real(dtype: DType, name: str, converts: bool) -> None:
    if dtype in SERVED or dtype in CONVERTED or dtype.kind in "iub":
        return
    if dtype.kind == "f" and dtype.itemsize > FLOAT64.itemsize:
        raise TypeError(
            f"{name} is {dtype.name}: float64 is the widest format served, convert with .astype('float64')"
        )
    if dtype.kind == "c":
        raise TypeError(f"{name} is {dtype.name}: complex numbers are not served, pass real numbers")
    hint = f"; {name}.astype('float64') converts numbers" if dtype.kind == "O" and converts else ""
    raise TypeError(f"{name} holds {dtype}: real numbers would do ({_NAMES}, integers, bool){hint}")


def result_dtype(given: DType, dtype: Any) -> DType:
    """Format of a result: `dtype` where given, else the format of x, with float64 for integers and bool."""
    if dtype is None:
        return FLOAT64 if given.kind in "iub" else given
    try:
        asked = _BY_NAME[dtype] if isinstance(dtype, str) and dtype in _BY_NAME else np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"dtype={dtype!r} is not a data type: one of {_NAMES} would do") from error
    asked = in_order(asked)
    if asked not in SERVED and asked not in CONVERTED:
        raise TypeError(f"dtype={asked.name} cannot hold the result: one of {_NAMES} would do")
    return asked


def compute_dtype(result: DType) -> DType:
    """Format the core computes `result` from: its own, or float32 for the 8-bit ones."""
    return FLOAT32 if result in CONVERTED else result


def cast(values: Array, *steps: DType) -> Array:
    """`values` rounded to each format in turn; what is past a format's range becomes its infinity (NaN
    where it has none).

    A broadcast view stays one: only the elements that exist are converted.
    """
    if all(values.dtype == dtype for dtype in steps):
        return values
    shape = values.shape
    values = values[tuple(slice(1) if s == 0 else slice(None) for s in values.strides)]
    with np.errstate(over="ignore", invalid="ignore"):
        for dtype in steps:
            values = values.astype(dtype, copy=False)
    return np.broadcast_to(values, shape) if values.shape != shape else values


def axes(axis: Any, dim: Any, ndim: int) -> tuple[int, ...]:
    """The reduced axes, non-negative and sorted. Empty for 0-d operands and for `axis=()`: every element is
    a row."""
    name = "axis"
    if dim is not None:
        if axis is not LAST_AXIS:
            raise ValueError(
                f"axis={axis!r} and dim={dim!r} were both given: they are one argument, give one of them"
            )
        axis, name = dim, "dim"
    if axis is None:
        return tuple(range(ndim))
    many = isinstance(axis, tuple)
    found = sorted(_one_axis(a, name, ndim, axis) for a in (axis if many else (axis,)))
    if len(set(found)) != len(found):
        raise ValueError(f"{name}={axis!r} names an axis twice: each axis once would do")
    if not found and ndim >= MOST_DIMENSIONS:  # every element becomes a row along one axis more
        raise ValueError(
            f"{name}=() of an array of {ndim} dimensions: at most {MOST_DIMENSIONS - 1} would do"
        )
    return tuple(found) if ndim else ()


def single_axis(axis: Any, dim: Any, ndim: int) -> int:
    """The one reduced axis of an operation that takes no tuple and no None."""
    given, name = (axis, "axis") if dim is None else (dim, "dim")
    if given is None or isinstance(given, tuple):
        raise TypeError(f"{name}={given!r}: this operation takes one axis, an int would do")
    if not ndim:
        raise ValueError("x has no dimensions: an array of at least one would do, for example x.reshape(1)")
    return axes(axis, dim, ndim)[0]


def _one_axis(axis: Any, name: str, ndim: int, given: Any) -> int:
    if isinstance(axis, bool | np.bool_):
        raise TypeError(f"{name}={given!r} is a bool: an int, a tuple of ints or None would do")
    try:
        number = operator.index(axis)
    except TypeError as error:
        kind = type(axis).__name__
        raise TypeError(
            f"{name}={given!r} holds a {kind}: an int, a tuple of ints or None would do"
        ) from error
    bound = max(ndim, 1)
    if not -bound <= number < bound:
        raise AxisError(
            f"{name}={given!r} is out of range for {ndim} dimensions: {-bound} to {bound - 1} would do"
        )
    return number % bound


def mask(where: Any, shape: tuple[int, ...]) -> Array | None:
    """`where` broadcast to `shape` (no copy), or None."""
    if where is None:
        return None
    if isinstance(where, np.ma.MaskedArray):
        raise TypeError(
            "where is a masked array: a plain bool array would do, True where an element takes part"
        )
    try:
        given = np.asarray(where)
    except ValueError as error:
        raise ValueError(f"where could not be read as an array of bool: {error}") from error
    if given.dtype != np.bool_:
        raise TypeError(f"where holds {given.dtype}: bool would do, True where an element takes part")
    return _broadcast(given, shape, "where")


def weights(b: Any, shape: tuple[int, ...]) -> Array | None:
    """`b` as float64 or float32, broadcast to `shape`, or None."""
    if b is None:
        return None
    given = array(b, "b")
    if given.dtype.kind in "iub":
        given = given.astype(FLOAT64)
    elif given.dtype not in (FLOAT64, FLOAT32):
        given = given.astype(FLOAT32)
    return _broadcast(given, shape, "b")


def common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two broadcast to: numpy.broadcast_shapes, which takes 32 dimensions at most.

    Raises ValueError where there is none.
    """
    ndim = max(len(a), len(b))
    pairs = zip((1,) * (ndim - len(a)) + a, (1,) * (ndim - len(b)) + b, strict=True)
    shape = tuple(m if n == 1 else n for n, m in pairs)
    if any(
        given != 1 and given != made
        for of in (a, b)
        for given, made in zip(of[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(f"{a} and {b} do not broadcast to each other")
    return shape


def _broadcast(given: Array, shape: tuple[int, ...], name: str) -> Array:
    try:
        return np.broadcast_to(given, shape)
    except ValueError as error:
        raise ValueError(
            f"{name} has shape {given.shape}, which does not broadcast to the shape {shape} of x: "
            f"a shape that does, without enlarging x, would do"
        ) from error


def output(out: Any, x: Array, dtype: DType, where: Array | None, name: str = "x") -> Array | None:
    """`out` as a plain ndarray over the same memory, once it is known to be safe to write, or None.

    `x` is the operand called `name`, as the caller gave it and of the result's shape. Cost: constant, but for
    an exact overlap test between two arrays whose memory ranges cross.
    """
    if out is None:
        return None
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(
            f"out is a {type(out).__name__}: a numpy.ndarray of shape {x.shape} and {dtype.name} would do"
        )
    if out.shape != x.shape:
        raise ValueError(f"out has shape {out.shape}: the shape {x.shape} of {name} would do")
    if out.dtype != dtype:
        raise TypeError(f"out is {out.dtype}: the format of the result, {dtype.name}, would do")
    if not out.flags.writeable:
        raise ValueError("out is read-only: a writeable array would do")
    plain = np.asarray(out)
    if _overlaps_itself(plain):
        raise ValueError(
            f"out has strides {out.strides}, by which its elements share memory: distinct ones would do"
        )
    if not _same_memory(plain, x) and _may_overlap(plain, x):
        raise ValueError(
            f"out overlaps {name} in part: the memory of {name} itself, with the same strides, or none of it "
            f"would do"
        )
    if where is not None and _may_overlap(plain, where):
        raise ValueError("out overlaps where: separate memory would do")
    return plain


def apart(out: Array, read: Array | None, name: str) -> None:
    """Raises ValueError where writing `out` may change what is read of an operand."""
    if read is not None and _may_overlap(out, read):
        raise ValueError(f"out overlaps {name}: separate memory would do")


def _same_memory(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.itemsize == b.itemsize
        and all(n <= 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True))
    )


def _may_overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]  # any count works
    except TooHardError:
        return True


def _overlaps_itself(a: Array) -> bool:
    """Whether two elements of `a` may share memory: exact for every layout numpy itself makes, else on the
    safe side."""
    if not a.size:
        return False
    reach = a.itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def order(value: Any, built: tuple[str, ...] = ORDERS) -> bool:
    """Whether an order of combination is "any". Refuses one that is not built."""
    if not isinstance(value, str):
        raise TypeError(
            f"order={value!r} is a {type(value).__name__}: {', '.join(map(repr, built))} would do"
        )
    if value not in built:
        raise ValueError(f"order={value!r} is not built: {', '.join(map(repr, built))} would do")
    return value == "any"


def any_order(algorithm: Any, precision: Any = "exact") -> None:
    """Refuses, for order="any", what would make other bits; the schedules that do not are left to it."""
    if algorithm not in ("auto", "cached", "online"):
        would = "'auto', 'cached' or 'online', whose bits are the same, would do"
        raise ValueError(f"algorithm={algorithm!r} with order='any': {would}")
    if precision != "exact":
        raise ValueError(f"precision={precision!r} with order='any': 'exact' would do")


def flag(value: Any, name: str) -> bool:
    """`value` where it is a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: True or False would do")
    return bool(value)


def number(value: Any, name: str) -> float:
    """`value` where it is a finite number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}: a number would do")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is a number past the range of float64: a smaller one would do") from error
    if not -math.inf < number < math.inf:  # as a comparison, which torch.compile can trace for any number
        raise ValueError(f"{name} is {value}: a finite number would do")
    return number


def count(k: Any, length: int) -> int:
    """`k` where it is a number of entries that an axis of `length` entries has."""
    if isinstance(k, bool | np.bool_):
        raise TypeError(f"k={k!r} is a bool: an int would do")
    try:
        number = operator.index(k)
    except TypeError as error:
        raise TypeError(f"k={k!r} is a {type(k).__name__}: an int would do") from error
    if not 0 <= number <= length:
        raise ValueError(
            f"k={number} is out of range for an axis of {length} entries: 0 to {length} would do"
        )
    return number
