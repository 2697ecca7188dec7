"""Arguments of the JAX face, checked: what must be known when a computation is traced, and formats."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
P = ParamSpec("P")
R = TypeVar("R")
#: Formats the native core reads as they are.
SERVED = tuple(map(jnp.dtype, (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16)))
#: Axes travel as bits of an int64.
_LAST_AXIS = 62
_SERVED_NAMES = "float64, float32, float16 or bfloat16"


def any_rank(function: Callable[P, R]) -> Callable[P, R]:
    """`function` with operands of different ranks allowed inside, whatever jax_numpy_rank_promotion says.

    That setting is about the caller's code. What the library broadcasts is in its documents.
    """

    @wraps(function)
    def allowed(*args: P.args, **keywords: P.kwargs) -> R:
        with jax.numpy_rank_promotion("allow"):
            return function(*args, **keywords)

    return allowed


def array(value: Any, name: str, *, as_given: bool = False) -> Array:
    """`value` where JAX takes it for an array. Lists are not: jax.numpy refuses them too.

    Integers of 64 bits, which JAX without int64 would cut to 32, become floats unless `as_given`.
    """
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would be lost: a plain array would do")
        if isinstance(value, (np.ndarray, np.generic)) and _unknown(value.dtype):
            raise TypeError(f"{name} holds {value.dtype}, which JAX has not: real numbers would do")
        if not as_given and cut(value):
            return np.asarray(value, np.float32)
        return value
    if isinstance(value, (bool, int, float)) or hasattr(value, "__jax_array__"):
        try:
            return jnp.asarray(value)
        except OverflowError as error:
            raise ValueError(f"{name} is {value}, past JAX's integers: a smaller number would do") from error
    raise TypeError(f"{name} is a {type(value).__name__}: an array would do")


def cut(value: Any) -> bool:
    """Whether JAX would keep 32 of the 64 bits of NumPy's integers."""
    numpy = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu" and value.itemsize == 8
    return numpy and not jax.config.jax_enable_x64


def _unknown(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy has it and JAX does not: objects, texts, times, records, long double."""
    return dtype.kind in "OSUMm" or dtype.fields is not None or dtype.char in "gG"


def real(value: Any, name: str) -> Array:
    """A real array in a format that is computed in: integers and bool as JAX's default float."""
    given = jnp.asarray(array(value, name))
    if jnp.issubdtype(given.dtype, jnp.integer) or given.dtype == jnp.bool_:
        return given.astype(jnp.result_type(float))
    if not jnp.issubdtype(given.dtype, jnp.floating):
        raise TypeError(f"{name} holds {given.dtype}: {_SERVED_NAMES}, or integers, would do")
    return given


def computed(given: Array) -> Array:
    """In a format the core reads: formats of 8 bits and fewer as float32."""
    return given if given.dtype in SERVED else given.astype(jnp.float32)


def static(value: Any, name: str, would: str) -> Any:
    """`value` unless it is traced: it has to be known when the computation is built."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced: {would}, known before the computation is built, would do")
    return value


def axis_key(axis: Any, name: str = "axis") -> int | tuple[int, ...] | None:
    """An axis argument as something hashable: an int, a tuple of ints, or None."""
    if axis is None or type(axis) is int:
        return axis
    would = "an int, a tuple of ints or None"
    static(axis, name, would)
    try:
        if isinstance(axis, (tuple, list)):
            return tuple(operator.index(static(a, name, would)) for a in axis)
        if isinstance(axis, bool):
            raise TypeError
        return operator.index(axis)
    except TypeError as error:
        raise TypeError(f"{name} is {axis!r}: {would} would do") from error


def axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Non-negative axes in ascending order."""
    found: list[int] = []
    if axis is None:
        axis = tuple(range(ndim))
    for a in (axis,) if isinstance(axis, int) else axis:
        if not -ndim <= a < ndim:
            would = f"{-ndim} to {ndim - 1}" if ndim else "None or ()"
            raise ValueError(f"axis {a} is out of range for an array of {ndim} dimensions: {would} would do")
        found.append(a % ndim)
    if len(set(found)) != len(found):
        raise ValueError(f"axis={axis!r} names an axis twice: each once would do")
    if max(found, default=ndim) > _LAST_AXIS:  # an empty tuple makes every element a row along one axis more
        would = f"axes of at most {_LAST_AXIS} would do"
        raise ValueError(f"axis={axis!r} of an array of {ndim} dimensions: {would}")
    return tuple(sorted(found))


def mask(where: Any, shape: tuple[int, ...], name: str = "where") -> Array | None:
    """bool of as many axes as `shape`, each as long as there or 1."""
    if where is None:
        return None
    given = jnp.asarray(array(where, name))
    if given.dtype != jnp.bool_:
        raise TypeError(f"{name} holds {given.dtype}: bool, True takes part, would do")
    if given.ndim > len(shape) or any(
        n not in (1, m) for n, m in zip(given.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(
            f"{name} of shape {given.shape} does not broadcast to {shape}: a shape that does would do"
        )
    return given.reshape((1,) * (len(shape) - given.ndim) + given.shape)


def number(value: Any, name: str) -> float:
    """A finite number that is known when the computation is built."""
    static(value, name, "a number")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}: a number would do")
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is a number past the range of float64: a smaller one would do") from error
    if not math.isfinite(found):
        raise ValueError(f"{name} is {value}: a finite number would do")
    return found


def integer(value: Any, name: str) -> int:
    """A whole number that is known when the computation is built."""
    static(value, name, "an integer")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}: an integer would do")
    return int(value)


def flag(value: Any, name: str) -> bool:
    """True or False, known when the computation is built."""
    static(value, name, "True or False")
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: True or False would do")
    return bool(value)


def word(value: Any, name: str, words: tuple[str, ...]) -> str:
    """One of `words`."""
    static(value, name, "a word")
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {value!r}: {', '.join(map(repr, words))} would do")
    return value
