"""Which axes of a point's arrays belong together: what is cut along one of them is cut in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from .operations import OPERATIONS, Operation

Array = NDArray[Any]


def named(op: str, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Array -> a name for each of its axes, "" for one that has none.

    Axes of the same name have the same length, or 1 where they are stretched. Those of a "*" are counted from
    the right: "*-1" is the last.
    """
    operation = OPERATIONS[op]
    specs = {**operation.operands, **operation.optional}
    found = {name: _names(specs[name].split(), array.ndim) for name, array in inputs.items() if name in specs}
    first = next(iter(operation.operands))
    for name in operation.cotangents:
        if name in found and first in found and len(found[name]) < len(found[first]) and specs[name] == "*":
            found[name] = _without(found[first], options.get("axis", -1), len(found[name]))
    if "block_table" in inputs:  # paged caches: blocks, places, heads, features
        found |= {name: ("", "", "G", "D" if name[0] == "k" else "E") for name in ("k_cache", "v_cache")}
    return found


def rows(
    op: str, inputs: Mapping[str, Array], options: Mapping[str, Any]
) -> dict[str, tuple[int | None, ...]]:
    """Array -> its places of the axes of the batch, None where it lacks one: what `child.Call.rows` takes.

    The batch's axes are those of the first operand that a row's result does not depend on: not the last,
    not the heads of grouped attention, not the queries where a query's place counts. Empty where there is
    no such axis.
    """
    operation = OPERATIONS[op]
    names = named(op, inputs, options)
    first = next(iter(operation.operands))
    batch = [name for name in names[first][:-1] if name and name not in _bound(operation, options)]
    if not batch:
        return {}
    return {
        array: tuple(places.index(name) if name in places else None for name in batch)
        for array, places in names.items()
    }


def _bound(operation: Operation, options: Mapping[str, Any]) -> set[str]:
    """Axes along which the parts of a call belong together."""
    letters = " ".join(operation.operands.values()).split()
    bound = {"H"} if "G" in letters else set()
    if "T" in letters:
        bound |= {"T"}
    if options.get("causal") or options.get("window") is not None or operation.name == "decode_attention":
        bound |= {"L"}
    return bound


def _names(tokens: list[str], ndim: int) -> tuple[str, ...]:
    if "*" in tokens:
        stretch = ndim - len(tokens) + 1
        at = tokens.index("*")
        star = [f"*{place - stretch}" for place in range(stretch)]
        return tuple(tokens[:at] + star + tokens[at + 1 :]) if stretch >= 0 else ("",) * ndim
    return tuple(tokens[len(tokens) - ndim :]) if ndim <= len(tokens) else ("",) * ndim


def _without(names: tuple[str, ...], axis: Any, ndim: int) -> tuple[str, ...]:
    """Names of what is left after a reduction along `axis`: an integer, several, or None for all."""
    gone = range(len(names)) if axis is None else [axis] if isinstance(axis, int) else axis
    left = [name for place, name in enumerate(names) if place not in {a % len(names) for a in gone}]
    return tuple(left) if len(left) == ndim else ("",) * ndim
