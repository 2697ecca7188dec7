"""What the tests of attention share: operands, options, and what a result is held to."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import FORMATS

from online_softmax import cpu

INF, NAN = np.inf, np.nan
SHORT = {dtype.name: dtype for dtype in FORMATS.values()}
every_isa = pytest.mark.parametrize("isa", cpu.isas())

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def operands(
    heads: int, groups: int, queries: int, keys: int, d: int, dv: int, dtype: str = "float32", batch: int = 2
) -> Arrays:
    rng = np.random.default_rng(heads * 1000 + queries * 100 + keys + d)
    shapes = ((batch, heads, queries, d), (batch, groups, keys, d), (batch, groups, keys, dv))
    q, k, v = (rng.standard_normal(shape).astype(SHORT[dtype]) for shape in shapes)
    return q, k, v


#: For operands (2, 4, 9, 8), (2, 2, 21, 8), (2, 2, 21, 5).
OPTIONS: dict[str, Any] = {
    "causal": {"causal": True},
    "upper left": {"causal": True, "causal_align": "upper_left"},
    "window": {"window": (3, 2)},
    "left window": {"window": (0, None)},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": -0.3},
    "mask": {"mask": np.random.default_rng(1).random((2, 4, 9, 21)) < 0.6},
    "padding mask": {"mask": np.arange(21) < 13},
    "bias": {"bias": np.random.default_rng(2).standard_normal((1, 4, 9, 21))},
    "bias of -inf": {"bias": np.where(np.arange(21) % 3, 0.25, -INF)},
    "sinks": {"sinks": np.array([0.5, -30.0, 40.0, -INF])},
    "slopes": {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625])},
    "dropout": {"dropout_p": 0.3, "seed": 5},
}


def optional_operands(dtype: str) -> Arrays:
    return operands(4, 2, 9, 21, 8, 5, dtype)


def pairs() -> list[Any]:
    """Every option alone, and all pairs that do not say the same thing twice."""
    chosen = [(name,) for name in OPTIONS] + list(itertools.combinations(OPTIONS, 2))
    return [
        pytest.param(names, id=" + ".join(names))
        for names in chosen
        if len({key for name in names for key in OPTIONS[name]}) == sum(len(OPTIONS[name]) for name in names)
    ]


def chosen(names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for name in names for key, value in OPTIONS[name].items()}


def of_reference(options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The same options for the reference, which is handed the mask of dropout. `shape`: of the scores."""
    import online_softmax as osm

    given = dict(options)
    seed = given.pop("seed", 0)
    if given.get("dropout_p"):
        given["keep"] = osm.dropout_mask(shape, given["dropout_p"], seed)
    return given
