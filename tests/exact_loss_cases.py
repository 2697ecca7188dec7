"""What the tests of order="any" of losses, products and draws share: rows that every machine makes alike,
bits, the reference in more digits than any result has, and the bound that results are held to."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Wide = np.longdouble

#: Uneven cuts of 257 classes into 1, 2, 3 and 8 parts.
CLASSES = 257
CUTS = ((0, 257), (0, 40, 257), (0, 1, 200, 257), (0, 3, 4, 90, 91, 128, 250, 256, 257))


def numbers(shape: tuple[int, ...], seed: int, scale: float, dtype: Any = np.float32) -> Array:
    """Numbers in (-scale, scale), by an integer hash: the same on every machine."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        h = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        h = (h ^ h >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ h >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    whole = ((h ^ h >> np.uint64(31)) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (whole * (scale * 2.0**-23)).reshape(shape).astype(dtype)


def places(rows: int, classes: int, seed: int) -> Array:
    return np.floor((numbers((rows,), seed, 0.5, np.float64) + 0.5) * classes)


def bits(*arrays: Any) -> bytes:
    """All bits of all arrays, those of NaN too."""
    return b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)


def digest(*arrays: Any) -> str:
    little = (np.asarray(a) for a in arrays)
    return hashlib.sha256(bits(*(a.astype(a.dtype.newbyteorder("<")) for a in little))).hexdigest()


def truth(z: Array) -> tuple[Array, Array]:
    """(probabilities, what the definition may be off by relative to them) of scores along the last axis.

    The bound is that of `exact`: roundings of the terms, the base of the powers by the distance from the
    maximum, the grid; and of the few operations that read it.
    """
    wide = z.astype(Wide)
    gap = wide.max(-1, keepdims=True) - wide
    p = np.exp(-gap)
    p /= p.sum(-1, keepdims=True)
    distance = np.where(p > 0, gap, 0)
    if z.dtype == np.float64:
        return p, np.full(z.shape, 2e-15) + 2.0**-53 * distance
    mean = (p * distance).sum(-1, keepdims=True)
    grid = z.shape[-1] * 2.0**-43.5
    return p, 2 * 2 * 9e-8 + 1.33e-8 * (distance + mean) + grid + 4 * 2.0**-24


def grid_of(z: Array) -> float:
    """What the grid of a state may leave out of the sum of all classes but one, relative to the whole."""
    return float(z.shape[-1] * (2.0**-43.5 if z.dtype == np.float32 else 2.0**-95))


# ---- of losses

ROWS = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum"},
    "weight": {"weight": numbers((CLASSES,), 5, 1.0, np.float64) + 1.5},
    "row weight": {"row_weight": numbers((ROWS,), 6, 1.0, np.float64) + 1.2},
    "ignored": {"ignore_index": 17},
    "z-loss": {"z_loss": 0.03},
    "temperature": {"temperature": 0.7},
    "smoothing": {"label_smoothing": 0.2},
    "all": {
        "label_smoothing": 0.3, "smoothing": "megatron",
        "weight": numbers((CLASSES,), 7, 1.0, np.float64) + 1.5, "ignore_index": 17, "z_loss": 0.01,
        "row_weight": numbers((ROWS,), 8, 1.0, np.float64) + 1.2, "temperature": 1.3,
    },
}  # fmt: skip


def case(dtype: Any = np.float32, scale: float = 9.0) -> tuple[Array, Array]:
    x = numbers((ROWS, CLASSES), 1, scale).astype(dtype)
    x[1, 30] = x[1].max() + np.asarray(12).astype(dtype)  # one class nearly sure
    t = places(ROWS, CLASSES, 2).astype(np.int64)
    t[1], t[3] = 30, 17
    return x, t


def upstream(options: dict[str, Any]) -> Any:
    return numbers((ROWS,), 9, 2.0) if options.get("reduction") == "none" else 0.37
