"""The write pass of columns: results for parts of many rows that lie across the file, not along it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import state

Array = NDArray[Any]

# A tile and its float64 temporaries stay in a core's second-level cache.
TILE_ROWS, TILE_COLUMNS = 16, 2048


def write_columns(x: Array, m: Array, s: Array, out: Array, *, log: bool = False) -> None:
    """Softmax (or log-softmax) of `x`, shape (a, c, b), reduced over c, from the states of its longer rows.

    `m` and `s` have shape (a, b); `out` has x's shape and type and may be x. Computed in float64 and rounded
    once, by the law's own `value`: just under 1 GB/s of float32 a core. A kernel for rows
    called once a column would take twenty times as long. Special rows as in `state.value`.
    """
    read = state.log_value if log else state.value
    for first in range(0, x.shape[2], TILE_COLUMNS):
        columns = slice(first, first + TILE_COLUMNS)
        m_tile, s_tile = (part[:, None, columns].astype(np.float64) for part in (m, s))
        for start in range(0, x.shape[1], TILE_ROWS):
            tile = (slice(None), slice(start, start + TILE_ROWS), columns)
            with np.errstate(under="ignore"):  # a probability below the result's format is 0
                out[tile] = read(x[tile].astype(np.float64), m_tile, s_tile)
