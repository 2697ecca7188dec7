"""Mesh axes that a computation is written by hand for, inside `jax.shard_map`: what varies over them."""

from __future__ import annotations

from typing import Any

import jax

Array = Any


def varying(array: Any) -> frozenset[str]:
    """The mesh axes that an array, or its type, varies over. None in JAX that does not keep book of them."""
    kind = getattr(array, "aval", array)
    return frozenset(getattr(getattr(kind, "manual_axis_type", None), "varying", getattr(kind, "vma", ())))


def alike(*arrays: Array | None) -> tuple[Any, ...]:
    """The arrays, all of them varying over every mesh axis that one of them varies over.

    So JAX does for its own operations: the gradient of what is the same on all devices is summed over them
    there, and what a loop starts with is of the type that it ends with.
    """
    every = frozenset[str]().union(*(varying(a) for a in arrays if a is not None))
    if not every:
        return arrays
    return tuple(a if a is None else _varying(a, every - varying(a)) for a in arrays)


def _varying(array: Array, axes: frozenset[str]) -> Array:
    if not axes:
        return array
    names = tuple(sorted(axes))
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, names, to="varying")
    return jax.lax.pvary(array, names)  # its name before
