"""Rows for the tests of results whose bits depend on the elements alone, and the definition's answers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from online_softmax import exact

Array = NDArray[Any]

DTYPES = ("float32", "float64", "float16", "bfloat16")
LN2 = float(np.log(2))


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def same(got: Array, want: Array) -> bool:
    """Equal in every bit, NaN whatever its payload."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[got.dtype.itemsize]
    nan = np.isnan(want) if got.dtype.kind in "fV" else np.zeros(want.shape, bool)
    if got.dtype.kind in "fV" and not np.array_equal(np.isnan(got), nan):
        return False
    left, right = (np.ascontiguousarray(a).view(bits).reshape(a.shape) for a in (got, want))
    return bool(np.array_equal(left[~nan], right[~nan]))


def rows_of(dtype: str, n: int, seed: int = 0) -> Array:
    """(rows, n) of many kinds: random, equal, at the borders of bins, with gaps at which slices and results
    vanish, far out, and special."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal
    form = exact.format_of(dtype_of(dtype))
    kinds = [
        normal(n),
        normal(n) * 5,
        normal(n) * 40,
        np.full(n, 3.25),
        np.zeros(n),
        -np.abs(normal(n)) * 1e-3,
    ]
    for k in (-3, -1, 0, 1, 2, 5):  # maxima beside where the top bin changes
        border = (form.width * k - 1.5) * LN2
        row = border - np.abs(normal(n)) * 8
        row[random.integers(n) if n else slice(0)] = border + random.choice([-1e-3, -1e-6, 1e-6, 1e-3])
        kinds.append(row)
    for low, high in ((15, 46), (80, 130), (600, 760)):
        row = -random.uniform(low, high, n)
        row[random.integers(n) if n else slice(0)] = 0.0
        kinds += [row, row + 1000.0]
    for scale in (
        2.0**8,
        2.0**18.9,
        2.0**19,
        2.0**20,
        2.0**29,
        2.0**30,
        2.0**31,
        2.0**48,
        2.0**49,
        2.0**62,
        2.0**63,
    ):
        kinds += [
            scale + normal(n) * scale * 1e-6,
            -scale + normal(n) * 30,
            normal(n) * scale,
            np.full(n, scale),
        ]
    x = np.array(kinds).reshape(len(kinds), n)
    special = [special_row(normal(n), form, kind) for kind in range(9)]
    with np.errstate(over="ignore"):
        return np.concatenate([x, np.array(special).reshape(9, n)]).astype(dtype_of(dtype))


def special_row(row: Array, form: exact.Format, kind: int) -> Array:
    n = len(row)
    tiny = form.least
    if n == 0:
        return row
    at, other = kind % n, (kind * 7 + 3) % n
    match kind:
        case 0:
            row[at] = np.nan
        case 1:
            row[at] = np.inf
        case 2:
            row[at], row[other] = np.inf, np.nan
        case 3:
            row[:] = -np.inf
        case 4:
            row[::2] = -np.inf
        case 5:
            row = np.where(row > 0, -0.0, 0.0)
        case 6:
            row = row * tiny  # subnormal, and just not
        case 7:
            row = -np.abs(row) * tiny * 0.25
        case 8:
            row[at] = -np.nan
    return row


def expected(x: Array, where: Array | None = None) -> dict[str, Array]:
    """What the definition says of x, whose last axis is reduced."""
    form = exact.format_of(x.dtype)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        wide = x.astype(form.dtype)
        if where is not None:
            wide = np.where(where, wide, form.dtype.type(-np.inf))
        m, a = exact.state(wide, form)
        y = exact.value(wide, m[..., None], a[..., None, :], form).astype(x.dtype)
        log_y = exact.log_value(wide, m[..., None], a[..., None, :], form).astype(x.dtype)
        if where is not None:
            y, log_y = np.where(where, y, x.dtype.type(0)), np.where(where, log_y, x.dtype.type(-np.inf))
        return {
            "m": m, "a": a, "lse": exact.lse(m, a, form), "log_sum": exact.log_sum(m, a, form),
            "softmax": y, "log_softmax": log_y,
        }  # fmt: skip
