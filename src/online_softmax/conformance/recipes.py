"""Arrays from small recipes, so that a case file can say 70,000 equal logits in a line.

A recipe is a table with one of the keys of `MAKERS` and what that takes beside it. Numbers in it may be
written in terms of the sweep's names: "n", "n+1", "n-1", "2*n".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Names = Mapping[str, int]

#: Formats of the cases, by the name that NumPy prints.
DTYPES: Final = {
    name: np.dtype(getattr(ml_dtypes, name, None) or name)
    for name in (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int64",
        "int32",
        "bool",
    )
}
LAYOUTS: Final = (
    "contiguous",
    "transposed",
    "strided",
    "rows_strided",
    "negative",
    "broadcast",
    "offset",
    "readonly",
)
_TERM: Final = re.compile(r"(?:(\d+)\*)?([a-z]\w*)(?:([+-])(\d+))?")


def number(value: Any, names: Names) -> Any:
    """`value`, or what a text such as "2*n+1" makes of the sweep's numbers; other texts stay as they are."""
    if isinstance(value, list):
        return [number(entry, names) for entry in value]
    match = _TERM.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in names:
        return value
    return int(match[1] or 1) * names[match[2]] + (int(f"{match[3]}{match[4]}") if match[3] else 0)


def build(recipe: Mapping[str, Any], dtype: str, names: Names) -> Array:
    """The array: C-contiguous, of the recipe's own dtype or else `dtype`. Values round to nearest."""
    kind = DTYPES[recipe.get("dtype", dtype)]
    if "bernoulli" in recipe or "causal" in recipe:
        kind = DTYPES["bool"]
    (key,) = set(recipe) & set(MAKERS)
    filled = {k: number(v, names) for k, v in recipe.items()}
    if key not in ("values", "concat"):
        strange = [size for size in filled[key] if not isinstance(size, int)]
        if strange:
            would = f"a number, or a name of the sweep ({', '.join(names)}) would do"
            raise ValueError(f"{key} has {strange[0]!r} for a size: {would}")
    made = MAKERS[key](filled, dtype, names)
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.array(made, dtype=kind, order="C")
    for place, value in recipe.get("set", []):
        array[tuple(_index(part, names) for part in place)] = value
    return array


def check(recipe: Any, where: str) -> None:
    """Raises ValueError, which begins with `where`, for what is no recipe."""
    keys = set(recipe) if isinstance(recipe, Mapping) else set()
    if len(keys & set(MAKERS)) != 1:
        raise ValueError(f"{where}: a table with one of {', '.join(MAKERS)} would do, given {recipe!r}")
    unknown = keys - set(MAKERS) - _BESIDE
    if unknown:
        known = ", ".join(sorted(_BESIDE))
        raise ValueError(
            f"{where}: unknown keys {', '.join(sorted(unknown))}: beside the maker {known} are known"
        )
    if recipe.get("layout", "contiguous") not in LAYOUTS:
        raise ValueError(f"{where}: layout={recipe['layout']!r}: one of {', '.join(LAYOUTS)} would do")
    if recipe.get("dtype", "float32") not in DTYPES:
        raise ValueError(f"{where}: dtype={recipe['dtype']!r}: one of {', '.join(DTYPES)} would do")
    for part in recipe.get("concat", ()):
        check(part, f"{where}: concat")


def _index(part: Any, names: Names) -> Any:
    part = number(part, names)
    if isinstance(part, str):
        ends = [number(end.strip(), names) for end in part.split(":")]
        return slice(*(int(end) if end != "" else None for end in ends))
    return part


def _generator(recipe: Mapping[str, Any]) -> np.random.Generator:
    return np.random.default_rng(recipe.get("seed", 0))


def _values(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return np.asarray(recipe["values"])


def _full(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return np.full(recipe["full"], recipe["value"])


def _zeros(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return np.zeros(recipe["zeros"])


def _normal(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    noise = _generator(recipe).standard_normal(recipe["normal"])
    return recipe.get("shift", 0.0) + recipe.get("scale", 1.0) * noise


def _uniform(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return _generator(recipe).uniform(recipe["low"], recipe["high"], recipe["uniform"])


def _ramp(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    shape = recipe["ramp"]
    return np.broadcast_to(recipe.get("start", 0.0) + recipe.get("step", 1.0) * np.arange(shape[-1]), shape)


def _integers(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return _generator(recipe).integers(recipe["low"], recipe["high"], recipe["integers"])


def _bernoulli(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    return _generator(recipe).random(recipe["bernoulli"]) < recipe.get("p", 0.5)


def _causal(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    queries, keys = recipe["causal"]
    return np.tri(queries, keys, keys - queries, dtype=bool)


def _concat(recipe: Mapping[str, Any], dtype: str, names: Names) -> Any:
    parts = [build(part, part.get("dtype", "float64"), names) for part in recipe["concat"]]
    return np.concatenate(parts, axis=recipe.get("axis", -1))


MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, Names], Any]]] = {
    "values": _values,
    "full": _full,
    "zeros": _zeros,
    "normal": _normal,
    "uniform": _uniform,
    "ramp": _ramp,
    "integers": _integers,
    "bernoulli": _bernoulli,
    "causal": _causal,
    "concat": _concat,
}
_BESIDE: Final = frozenset(
    ["dtype", "value", "seed", "scale", "shift", "low", "high", "start", "step", "p", "axis", "set", "layout"]
)
