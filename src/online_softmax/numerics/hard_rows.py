"""Rows that are hard on one algorithm or another, in any format: what bounds are tried on."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from .roundoff import Array, Rounding


def hard_rows(n: int, format: DTypeLike, seed: int = 0) -> dict[str, Array]:
    """Name -> row of n >= 1 entries that the format holds, of its dtype; random ones follow the seed.

    "just lost" has one 0 and entries whose exponentials vanish in a format of float16's exponents (elsewhere
    the sum stalls on them), "spread" reaches the format's ends. Raises ValueError for an unknown format.
    """
    rounding = Rounding.of(format)
    draw = np.random.default_rng(seed)
    steps = np.arange(n)
    normal = draw.standard_normal(n)
    masked = np.where(draw.random(n) < 0.4, -np.inf, 3 * normal)
    masked[0], masked[-1] = -np.inf, 1.0
    lost = np.full(n, -17.5)
    lost[0] = 0.0
    rows = {
        "normal": normal,
        "wide normal": 8 * draw.standard_normal(n),
        "slow ramp": 1e-3 * steps,
        "ascending": 1.0 * steps,
        "descending": -1.0 * steps,
        "sorted": np.sort(4 * draw.standard_normal(n)),
        "constant": np.full(n, draw.standard_normal()),
        "large shift": 2 * draw.standard_normal(n) + min(1e4, rounding.largest / 4),
        "spread": draw.uniform(-1, 1, n) * rounding.largest,
        "underflow": -draw.uniform(0, 1.2 * -(np.log(rounding.normal) + np.log(rounding.u)), n),
        "just lost": lost,
        "-inf": masked,
    }
    with np.errstate(over="ignore"):
        return {
            name: np.clip(row, -rounding.largest if name != "-inf" else None, rounding.largest).astype(
                rounding.dtype
            )
            for name, row in rows.items()
        }
