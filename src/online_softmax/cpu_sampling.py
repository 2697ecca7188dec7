"""Face of the native core's sampling: a call described, then drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import _core
from .cpu import DTYPES, address, numpy_dtype, plan_of

Array = NDArray[Any]
_CODE: Final = {numpy_dtype(name): code for name, code in zip(DTYPES, (1, 0, 2, 3), strict=True)}


@dataclass(frozen=True)
class Draw:
    """What is drawn, checked by whoever makes it.

    Attributes:
        x: logits of a served dtype, any strides, at least one along `axis`.
        axis: of the vocabulary, non-negative.
        temperature: float64, C-contiguous, of the rows' shape (x's without axis); 0 takes the greatest.
        top_k, top_p, min_p: int64, float64, float64, likewise, 0, 1 and 0 for all; or None.
        seed, draw: 0 to 2**64 - 1.
        origin: numbers of the first row and the first token in a whole.
        same: noise from logarithms of the same bits on every machine, not from the C library's.
    """

    x: Array
    axis: int
    temperature: Array
    top_k: Array | None
    top_p: Array | None
    min_p: Array | None
    seed: int
    draw: int
    origin: tuple[int, int]
    same: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        return self.x.shape[: self.axis] + self.x.shape[self.axis + 1 :]


def _run(given: Draw, results: tuple[Array, ...], isa: str | None, threads: int | None) -> None:
    plan = plan_of(isa, "auto", threads, "exact")
    options = (given.temperature, given.top_k, given.top_p, given.min_p)
    if not given.temperature.size:
        return
    _core.sample_array(
        plan, _CODE[given.x.dtype], given.x.shape, given.axis, address(given.x), given.x.strides,
        [0 if option is None else address(option) for option in options], given.seed, given.draw,
        given.same, given.origin, [address(result) for result in results],
    )  # fmt: skip


def tokens(given: Draw, *, isa: str | None = None, threads: int | None = None) -> tuple[Array, Array]:
    """(tokens int64, their log-probabilities float64) of the rows' shape; -1 and NaN where a row has none.

    Cost: one read of x; with filters two, and a list of 40 bytes a token of scratch a thread.
    """
    results = np.empty(given.rows, np.int64), np.empty(given.rows, np.float64)
    _run(given, results, isa, threads)
    return results


def parts(given: Draw, *, isa: str | None = None, threads: int | None = None) -> tuple[Array, ...]:
    """What merges: (tokens int64, keys, what rounding left out of them, logits over the temperature, m, s),
    all but the first float64, of the rows' shape. No filters. A row without a token has -1, and -inf for
    key and logit.

    Cost: one read of x.
    """
    results = np.empty(given.rows, np.int64), *(np.empty(given.rows, np.float64) for _ in range(5))
    _run(given, results, isa, threads)
    return results
