"""The table of operations: one frozen row each, read by front ends, tests, benchmarks, byte counts and
commands.

A row says what the operation carries through the pass (the state, and riders beside it), how two carriers
merge, what is read out at the end, how often each algorithm goes over the data, and how wrong a result may
be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import state
from .numerics import bounds

Array = NDArray[Any]


@dataclass(frozen=True)
class Passes:
    """What one algorithm does to a row, per element (rows are not kept between passes, but by `cached`).

    Attributes:
        reads: times the data is read.
        writes: times an array of the data's shape is written.
        exps: exponentials, without the one per new maximum that `online` adds.
        flops: additions, subtractions, products and quotients beside the exponentials. Comparisons are not
            counted.
    """

    reads: int
    writes: int
    exps: int
    flops: int


@dataclass(frozen=True)
class Results:
    """What is written for each row beside arrays of the data's shape.

    Attributes:
        values: numbers in the data's format.
        indices: numbers of 8 bytes.
        statistics: numbers in the state's format (float32, or float64 for float64).
        exps: exponentials per row to make them.
    """

    values: int = 0
    indices: int = 0
    statistics: int = 0
    exps: int = 0


@dataclass(frozen=True)
class Rider:
    """A further accumulator carried beside the state in the same pass.

    Attributes:
        name: what it accumulates.
        of: (block, k, start) -> carrier of a block whose first entry has index `start`, over the last axis.
        merge: (a, b, k) -> carrier of what either has seen. Commutative and associative, bit for bit.
    """

    name: str
    of: Callable[[Array, int, int], tuple[Array, Array]]
    merge: Callable[[tuple[Array, Array], tuple[Array, Array], int], tuple[Array, Array]]


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
        name: the public function's name, the first part of a variant's id.
        identity: (shape, dtype) -> state of no data.
        merge: (state, state) -> state.
        finish: (x, m, s) -> result for the entries x under the finished state; rows that reduce ignore x.
        passes: algorithm -> what it does per element, for the algorithms the operation has.
        results: k -> what is written per row besides.
        tolerance: (row, eta, u=, e=, tiny=) -> largest absolute error of the result, from `numerics.bounds`.
        rider: carried beside the state, or None.
        reduces: whether the reduced axis is gone from the (main) result.
    """

    name: str
    identity: Callable[..., state.State]
    merge: Callable[[state.State, state.State], state.State]
    finish: Callable[[Array, Array, Array], Array]
    passes: Mapping[str, Passes]
    results: Callable[[int], Results]
    tolerance: Callable[..., Array]
    rider: Rider | None = None
    reduces: bool = False


#: Algorithms by name; "auto" chooses among the others and has no count of its own.
ALGORITHMS: Final = ("naive", "three_pass", "online", "cached", "auto")


def _select(logits: Array, indices: Array, k: int) -> tuple[Array, Array]:
    """The first k by descending logit, NaN before all, ties by the lower index."""
    order = np.lexsort((indices, -logits, ~np.isnan(logits)), axis=-1)[..., :k]
    return np.take_along_axis(logits, order, axis=-1), np.take_along_axis(indices, order, axis=-1)


def _top_of(block: Array, k: int, start: int) -> tuple[Array, Array]:
    """The k largest of (..., n) entries, fewer where n is, and their int64 indices, which count from
    `start`."""
    places = np.broadcast_to(np.arange(start, start + block.shape[-1], dtype=np.int64), block.shape)
    return _select(block, places, k)


def _top_merge(a: tuple[Array, Array], b: tuple[Array, Array], k: int) -> tuple[Array, Array]:
    logits, indices = (np.concatenate(parts, axis=-1) for parts in zip(a, b, strict=True))
    return _select(logits, indices, k)


TOP: Final = Rider("top", _top_of, _top_merge)


def _lse(x: Array, m: Array, s: Array) -> Array:
    return state.lse(m, s)


def _log_bound(bound: Callable[..., Array]) -> Callable[..., Array]:
    # The exponential's error is in eta already; the logarithm is taken to be as good as rounding (e_log = u).
    return lambda row, eta, *, u, e, tiny=0.0: bound(row, eta, u=u, tiny=tiny)


def _table(*rows: Operation) -> Mapping[str, Operation]:
    return MappingProxyType({row.name: row for row in rows})


# How the counts come about, pass by pass:
#   naive       exp, +          | exp, /          (log: exp, + | -, its log-sum being known)
#   three_pass  max | -, exp, + | -, exp, *       (log: max | -, exp, + | -, -)
#   online      max, -, exp, +  | -, exp, *       and a rescale (exp, *) per new maximum: ~ln(n) a row
#   cached      max, -, exp, +, * over a row that is read once, its exponentials kept (log: -, exp, +, -)
OPERATIONS: Final = _table(
    Operation(
        name="softmax",
        identity=state.identity,
        merge=state.merge,
        finish=state.value,
        passes=MappingProxyType(
            {
                "naive": Passes(reads=2, writes=1, exps=2, flops=2),
                "three_pass": Passes(reads=3, writes=1, exps=2, flops=4),
                "online": Passes(reads=2, writes=1, exps=2, flops=4),
                "cached": Passes(reads=1, writes=1, exps=1, flops=3),
            }
        ),
        results=lambda k: Results(),
        tolerance=bounds.softmax_error,
    ),
    Operation(
        name="log_softmax",
        identity=state.identity,
        merge=state.merge,
        finish=state.log_value,
        passes=MappingProxyType(
            {
                "naive": Passes(reads=2, writes=1, exps=1, flops=2),
                "three_pass": Passes(reads=3, writes=1, exps=1, flops=4),
                "online": Passes(reads=2, writes=1, exps=1, flops=4),
                "cached": Passes(reads=1, writes=1, exps=1, flops=3),
            }
        ),
        results=lambda k: Results(),
        tolerance=_log_bound(bounds.log_softmax_error),
    ),
    Operation(
        name="logsumexp",
        identity=state.identity,
        merge=state.merge,
        finish=_lse,
        passes=MappingProxyType(
            {
                "naive": Passes(reads=1, writes=0, exps=1, flops=1),
                "three_pass": Passes(reads=2, writes=0, exps=1, flops=2),
                "online": Passes(reads=1, writes=0, exps=1, flops=2),
                "cached": Passes(reads=1, writes=0, exps=1, flops=2),
            }
        ),
        results=lambda k: Results(statistics=1),
        tolerance=_log_bound(bounds.lse_error),
        reduces=True,
    ),
    Operation(
        name="softmax_topk",
        identity=state.identity,
        merge=state.merge,
        finish=state.value,
        passes=MappingProxyType({"online": Passes(reads=1, writes=0, exps=1, flops=2)}),
        results=lambda k: Results(values=k, indices=k, statistics=1, exps=k),
        tolerance=bounds.softmax_error,
        rider=TOP,
        reduces=True,
    ),
)
