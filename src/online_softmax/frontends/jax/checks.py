"""Arguments of the JAX face, checked: what must be known when a computation is traced, and formats."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
#: Formats the native core reads as they are.
SERVED = tuple(map(jnp.dtype, (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16)))
_SERVED_NAMES = "float64, float32, float16 or bfloat16"


def array(value: Any, name: str) -> Array:
    """`value` where JAX takes it for an array. Lists are not: jax.numpy refuses them too."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would be lost: a plain array would do")
        return value
    if isinstance(value, (bool, int, float)) or hasattr(value, "__jax_array__"):
        return jnp.asarray(value)
    raise TypeError(f"{name} is a {type(value).__name__}: an array would do")


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
    if axis is None:
        return tuple(range(ndim))
    found = []
    for a in (axis,) if isinstance(axis, int) else axis:
        if not -ndim <= a < ndim:
            would = f"{-ndim} to {ndim - 1}" if ndim else "None or ()"
            raise ValueError(f"axis {a} is out of range for an array of {ndim} dimensions: {would} would do")
        found.append(a % ndim)
    if len(set(found)) != len(found):
        raise ValueError(f"axis={axis!r} names an axis twice: each once would do")
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
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {value!r}: {', '.join(map(repr, words))} would do")
    return value
