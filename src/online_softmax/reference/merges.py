"""Partial results merged: of rows as (m, s), of attention as (output, lse).

Both have an identity, (-inf, 0) and (0, -inf); a side that is one adds nothing and is not read otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .wide import Array, as_wide, log_sums, narrow


def merge_states(a: tuple[ArrayLike, ArrayLike], b: tuple[ArrayLike, ArrayLike]) -> tuple[Array, Array]:
    """(m, s) of what either (m, s) has seen: float64, of the shape that all four broadcast to.

    Where m is +inf s counts the entries that are +inf, those of the sides at +inf added. NaN on either side
    makes both NaN. Raises TypeError for numbers that are not real, ValueError for shapes that do not
    broadcast.
    """
    names = ("the m of a", "the s of a", "the m of b", "the s of b")
    wide = [as_wide(part, name) for part, name in zip((*a, *b), names, strict=True)]
    m_a, s_a, m_b, s_b = _together(wide, names)
    m = np.maximum(m_a, m_b)
    with np.errstate(all="ignore"):
        s = _share(m_a, m, s_a) + _share(m_b, m, s_b)
    tainted = np.isnan(s) | np.isnan(m)
    return narrow(np.where(tainted, np.nan, m))[()], narrow(np.where(tainted, np.nan, s))[()]


def merge_attention(
    o_a: ArrayLike, lse_a: ArrayLike, o_b: ArrayLike, lse_b: ArrayLike
) -> tuple[Array, Array]:
    """(o, lse) of the keys of both sides, lse in natural logarithms: float64, of the shapes that the
    outputs and that the lse broadcast to.

    o = (exp(lse_a) * o_a + exp(lse_b) * o_b) / (exp(lse_a) + exp(lse_b)), lse the log of that divisor; a side
    with lse -inf has seen no key: its o is not read, and two of them give (0, -inf). A side with lse +inf or
    NaN makes o NaN. A sink is a side with o = 0 and the sink for lse. Raises TypeError for numbers that are
    not real, ValueError for shapes that do not broadcast and an lse that is not of its o's shape without the
    last axis.
    """
    outputs = [as_wide(o, n) for o, n in ((o_a, "o_a"), (o_b, "o_b"))]
    lses = [as_wide(lse, n) for lse, n in ((lse_a, "lse_a"), (lse_b, "lse_b"))]
    for o, lse, side in zip(outputs, lses, "ab", strict=True):
        if not o.ndim or lse.shape != o.shape[:-1]:
            would = f"{o.shape[:-1]}, the shape of o_{side} without its last axis, would do"
            raise ValueError(f"lse_{side} has shape {lse.shape}: {would}")
    wide_a, wide_b = _together(outputs, ("o_a", "o_b"))
    pair = np.stack(_together(lses, ("lse_a", "lse_b")), axis=-1)
    lse = log_sums(pair)
    m = pair.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(pair - np.where(m == -np.inf, 0, m))
        parts = [
            np.where(pair[..., i, None] == -np.inf, 0, weights[..., i, None] * o)
            for i, o in enumerate((wide_a, wide_b))
        ]
        mixed = (parts[0] + parts[1]) / weights.sum(axis=-1, keepdims=True)
        result = np.where(m == -np.inf, 0, np.where(np.isfinite(m), mixed, np.nan))
    return narrow(result), narrow(lse)[()]


def _share(m_side: Array, m: Array, s: Array) -> Array:
    """s * exp(m_side - m), 0 of nothing; what a side at +inf counts stays, what lies below it is gone."""
    scaled = np.where(m == np.inf, np.where(m_side == np.inf, s, 0), s * np.exp(m_side - m))
    return np.where(m_side == -np.inf, 0, scaled)


def _together(arrays: list[Array], names: tuple[str, ...]) -> list[Array]:
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError as error:
        shapes = ", ".join(f"{name} has shape {a.shape}" for a, name in zip(arrays, names, strict=True))
        raise ValueError(f"{shapes}: shapes that broadcast to each other would do") from error
